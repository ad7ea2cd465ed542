"""An operator's day on Kafka alone: after each step, all that autothrottle shows is compared with what Kafka says.

Kafka's side is read with kafka-python alone: DescribeConfigs of each broker, ListPartitionReassignments, the topics'
metadata and the log directories.
"""

from __future__ import annotations

import http.client
import io
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, THROTTLE_KEYS
from autothrottle_client import throttlectl
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster, Partition
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, scratch_directory
from tests.builders import eventually
from tests.paths import ROOT
from tests.server_fixtures import BROKERS
from tests.system.test_upgrade_on_kafka import earlier_sources

MB = 1_000_000
LINK_MB = 2
SLACK_BYTES = 6 * LINK_MB * MB
"""What a link copies between two readings of the log sizes, which are 5 s apart."""
SMALL_FETCHES = {"replica.fetch.max.bytes": 32 * 1024, "replica.fetch.response.max.bytes": 64 * 1024}
"""As `check` asks for with such a link."""
PARTITION_BYTES = 24 * MB
"""A move of this size takes longer than the longest comparison, 40 s, unless `finish` raises its throttle."""
SECONDS = 120.0
"""Deadline of a step."""
AGREE_SECONDS, AGREE_READINGS = 10.0, 10
"""Seconds and readings of everything in which all views must agree with Kafka; a reading takes a second.

It takes several seconds on a busy machine, on which the services need longer, too.
"""
CYCLE_SECONDS = 35.0
"""No difference may last longer on any machine: the interval is 30 s, and a cycle takes up to a second."""
STATE_TOPIC = "__autothrottle_state"
EARLIER = "e361e1cb"
"""A version that the upgrade replaces; in a clone without it, the same version."""
ROLES = {LEADER_RATE: "leader", FOLLOWER_RATE: "follower"}

ROUNDING = 5_000
"""Texts have two digits of MB/s."""

LinkSides = dict[tuple[int, str], int]
"""(broker id, role) -> throttle, bytes/s."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What Kafka says."""

    throttles: LinkSides
    moving: frozenset[Partition]
    bytes_left: int
    """Of the adding replicas outside the ISR, by the sizes of their logs; without the state topic."""

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _ in self.moving}


@dataclass(frozen=True, slots=True)
class View:
    """What a view of autothrottle says. None: it does not show it."""

    throttles: LinkSides
    topics: set[str] | None = None
    bytes_left: int | None = None


def facts_of(cluster: KafkaCluster) -> Facts:
    """Read them with kafka-python."""
    brokers = [broker_id for broker_id, server in cluster.brokers.items() if server.running]
    addresses = [cluster.brokers[broker_id].address for broker_id in brokers]
    with closing(kafka.KafkaAdminClient(bootstrap_servers=addresses, **CLIENT)) as admin:
        throttles: LinkSides = {}
        for broker_id in brokers:
            resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.BROKER, str(broker_id))
            for key, entry in admin.describe_configs([resource])["broker"].get(str(broker_id), {}).items():
                if key in ROLES and entry["config_source"] == "DYNAMIC_BROKER_CONFIG":
                    throttles[broker_id, ROLES[key]] = int(entry["value"])
        moves = admin.list_partition_reassignments()
        topics = sorted({partition.topic for partition in moves} - {STATE_TOPIC})
        described = admin.describe_topics(topics) if topics else []
        sizes = {
            (directories["broker"], topic["name"], partition["partition_index"]): partition["partition_size"]
            for directories in admin.describe_log_dirs(brokers=brokers)
            for directory in directories["log_dirs"]
            for topic in directory["topics"]
            for partition in topic["partitions"]
        }
    for broker_id in cluster.brokers.keys() - set(brokers):  # a broker that is down still has its disk
        sizes |= {(broker_id, *partition): size for partition, size in cluster.log_bytes(broker_id).items()}
    bytes_left = 0
    for topic in described:
        for partition in topic["partitions"]:
            name, number = topic["name"], partition["partition_index"]
            move = moves.get(kafka.TopicPartition(name, number))
            for broker_id in set(move["adding_replicas"]) - set(partition["isr_nodes"]) if move else ():
                leader_bytes = sizes.get((partition["leader_id"], name, number), 0)
                bytes_left += max(0, leader_bytes - sizes.get((broker_id, name, number), 0))
    return Facts(throttles, frozenset((p.topic, p.partition) for p in moves), bytes_left)


class Page:
    """Keeps the newest documents of a gateway's event stream, as an open page does."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=SECONDS)
        self._connection.request("GET", "/page/events")
        self._response = self._connection.getresponse()
        self.documents: dict[str, Any] = {}
        """Kind -> newest document."""
        self._thread = threading.Thread(target=self._follow, name="page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream. Idempotent."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._response.close()
        self._connection.close()

    def _follow(self) -> None:
        kind = ""
        try:
            while line := self._response.readline().decode():
                line = line.rstrip()
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.documents[kind] = json.loads(line.removeprefix("data: "))
        except (OSError, ValueError, http.client.HTTPException):
            return  # its gateway has ended


class Day:
    """The processes of one day, and what an operator sees and does."""

    def __init__(self, cluster: KafkaCluster, directory: Path, stack: ExitStack) -> None:
        self.cluster, self._directory, self._stack = cluster, directory, stack
        self.options = ["--bootstrap-servers", cluster.bootstrap_servers]
        self.options += ["--capacity", f"{LINK_MB}MB/s", "--min-rate", "0.5"]
        self.address = self._api = ""
        self._page: Page | None = None
        self.views = 0
        """Number of views that agreed with Kafka."""

    # What an operator does

    def start(self, name: str, environment: Mapping[str, str] = {}) -> Process:
        """Start a process with the README's command, and use its page and its API from now on."""
        command = [sys.executable, "-m", "autothrottle", "run", *self.options, "--state-store", "kafka"]
        command += ["--decisions", str(self._directory / "decisions")]
        command += ["--grpc-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"]
        log = self._directory / f"{name}.log"
        process = self._stack.enter_context(Process(name, command, log, environment))
        process.wait_until(lambda: " gRPC API: " in log.read_text() and "Admin API" in log.read_text(), SECONDS)
        (self.address,) = re.findall(r" gRPC API: (\S+)$", log.read_text(), re.MULTILINE)
        (self._api,) = re.findall(r"Admin API[^:]*: (?:http://)?([^/\s]+)", log.read_text())
        return process

    def open_page(self) -> None:
        if self._page is not None:
            self._page.close()
        page = self._page = self._stack.enter_context(closing(Page(self._api)))
        eventually(lambda: {"now", "sides"} <= page.documents.keys(), SECONDS)

    def run(self, program: str, *arguments: str) -> str:
        """Run a command of the toolkit; return what it prints."""
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if result.returncode or "Traceback" in result.stderr:
            pytest.fail(f"{program} {' '.join(arguments)}: {result.returncode}\n{result.stdout}\n{result.stderr}")
        return result.stdout

    def throttlectl(self, *arguments: str) -> str:
        """Run throttlectl in this process, which takes a tenth of the CPU time; return what it prints."""
        output = io.StringIO()
        with redirect_stdout(output):
            status = throttlectl.main([*arguments, "--admin-addr", self.address, "--timeout", "30"])
        assert not status, (arguments, status, output.getvalue())
        return output.getvalue()

    def reassign(self, topic: str, targets: Mapping[int, Sequence[int]]) -> None:
        rows = [{"topic": topic, "partition": number, "replicas": list(to)} for number, to in targets.items()]
        plan = self._directory / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        self.throttlectl("reassign", str(plan), "--no-wait")

    def finish(self, topic: str) -> None:
        """Let a move end fast, and compare after the end of its throttles."""
        self.throttlectl("set", "100MB/s", "--beyond-capacity", "--autoremove")
        eventually(lambda: not any(name == topic for name, _ in self.cluster.reassigning()), SECONDS)
        eventually(lambda: not self.is_throttled(), SECONDS)
        self.compare()

    def is_throttled(self) -> bool:
        return any(key in config for config in self.cluster.stored_configs().values() for key in ROLES)

    # What an operator sees

    def compare(self, topics: Set[str] | None = None, rate: int | None = None) -> Facts:
        """Compare all views with Kafka until they agree; return what Kafka says.

        Args:
            topics: the topics that Kafka must move then; None: any.
            rate: the only throttle that Kafka must have then, bytes/s; None: any.

        Raises:
            AssertionError: a view differs for longer than `AGREE_SECONDS` and `AGREE_READINGS`, or than a cycle.
        """
        start = time.monotonic()
        for reading in itertools.count(1):
            began = time.monotonic() - start
            try:
                differences, facts = self._differences()
            except kafka.errors.KafkaError as error:  # a broker that has just started
                differences = [f"Kafka cannot be read: {error!r}"]
            else:
                if topics is not None and facts.topics != topics:
                    differences.append(f"Kafka moves {facts.topics}, not {topics}")
                if rate is not None and set(facts.throttles.values()) != {rate}:
                    differences.append(f"Kafka has the throttles {facts.throttles}, not {rate}")
                if not differences:
                    return facts
            is_late = began >= AGREE_SECONDS and reading >= AGREE_READINGS
            if is_late or began >= CYCLE_SECONDS:
                pytest.fail(f"after {reading} readings in {began:.1f} s:\n" + "\n".join(differences))
        raise AssertionError("itertools.count ended")

    def _differences(self) -> tuple[list[str], Facts]:
        first = facts_of(self.cluster)
        views = self._views()
        facts = facts_of(self.cluster)
        differences = []
        for name, view in views.items():
            for side in first.throttles.keys() | facts.throttles.keys() | view.throttles.keys():
                rates = [first.throttles.get(side, 0), facts.throttles.get(side, 0)]  # a ramp may pass between them
                if not min(rates) - ROUNDING <= view.throttles.get(side, 0) <= max(rates) + ROUNDING:
                    differences.append(f"{name} says {view.throttles.get(side)} of {side}, Kafka {rates}")
            if view.topics is not None and view.topics not in (first.topics, facts.topics):
                differences.append(f"{name} says that {view.topics} move, Kafka {first.topics} and {facts.topics}")
            shown = view.bytes_left
            if shown is not None and not facts.bytes_left - MB // 10 <= shown <= first.bytes_left + SLACK_BYTES:
                differences.append(f"{name} says {shown} bytes left, Kafka {first.bytes_left}, {facts.bytes_left}")
        self.views += len(views) if not differences else 0
        return differences, facts

    def _views(self) -> Mapping[str, View]:
        top = json.loads(self.throttlectl("-o", "json", "top", "--once"))
        views = {"top": View(_sides(top["sides"]), _topics(top["topics"]), top["bytes_left"])}
        if self._page is not None:
            now, sides = self._page.documents["now"], self._page.documents["sides"]["sides"]
            views["page"] = View(_sides(sides), _topics(now["topics"]), now["bytesLeft"])
        reassignments = json.loads(self.throttlectl("-o", "json", "reassignments"))
        views["state"] = View(_printed_sides(self.throttlectl("state")), _topics(reassignments["topics"]))
        views["explain"] = View({side: rate for broker_id in BROKERS for side, rate in self._explained(broker_id)})
        views["metrics"] = View(self._metrics())
        return views

    def _explained(self, broker_id: int) -> Iterator[tuple[tuple[int, str], int]]:
        lines = self.throttlectl("explain", str(broker_id))
        pattern = r"\[(leader|follower)\] (?:may (?:send|receive)|has a throttle of) ([\d.]+)MB/s"
        for role, rate in re.findall(pattern, lines):
            yield (broker_id, role), round(float(rate) * MB)

    def _metrics(self) -> LinkSides:
        with urllib.request.urlopen(f"http://{self._api}/metrics", timeout=30) as response:
            text = response.read().decode()
        throttles: LinkSides = {}
        for labels, value in re.findall(r"^autothrottle_throttle_bytes_per_second{(.*)} (\S+)$", text, re.MULTILINE):
            label_values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            throttles[int(label_values["broker_id"]), label_values["role"]] = int(float(value))
        return throttles


def _sides(rows: Sequence[Mapping[str, Any]]) -> LinkSides:
    return {(row["broker"], row["role"]): row["throttle"] for row in rows if row["throttle"] is not None}


def _topics(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return {row["topic"] for row in rows}


def _printed_sides(state: str) -> LinkSides:
    rows = re.findall(r"^(\d+) +(leader|follower) +([\d.]+)MB/s", state, re.MULTILINE)
    return {(int(broker_id), role): round(float(rate) * MB) for broker_id, role, rate in rows}


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("operators-day")
def test_what_autothrottle_shows_all_day_is_what_kafka_says(tmp_path: Path) -> None:
    with (
        scratch_directory() as directory,
        KraftCluster(directory, BROKERS, broker_properties=SMALL_FETCHES) as cluster,
        ExitStack() as stack,
    ):
        day = Day(cluster, tmp_path, stack)
        for topic in ("orders", "payments"):
            cluster.create_topic(topic, {n: [1001, 1003] for n in range(3)})
            fill(cluster, topic, PARTITION_BYTES)
        configs = cluster.stored_configs()

        first = day.start("first")
        first.wait_until(lambda: "Leading in term" in first.log.read_text(), SECONDS)
        day.open_page()
        day.compare()

        findings = day.run("autothrottle", "check", *day.options)
        assert not re.findall(r"^(?:WARN|FAIL).*", findings, re.MULTILINE)

        # A move by another tool. Its destination waits, so that little is copied before the first throttle.
        cluster.reassign_through_bootstrap({("orders", n): [1001, 1004] for n in range(3)})
        cluster.brokers[1004].freeze()
        eventually(day.is_throttled, SECONDS)
        cluster.brokers[1004].thaw()
        day.compare({"orders"})
        day.finish("orders")

        # A move by autothrottle. It is slowed down, and that is undone.
        day.reassign("payments", {n: [1001, 1005] for n in range(3)})
        day.compare()
        day.throttlectl("set", "1MB/s")
        day.compare({"payments"}, MB)
        day.throttlectl("remove")
        day.compare()

        # Its destination dies, and returns.
        cluster.kill_broker(1005)
        eventually(lambda: "broker 1005 is down since" in day.throttlectl("state"), SECONDS)
        day.compare()
        cluster.start_broker(1005)
        day.compare()
        day.finish("payments")

        # One move of two is cancelled.
        day.reassign("orders", {n: [1001, 1002] for n in range(3)})
        day.reassign("payments", {n: [1001, 1003] for n in range(3)})
        day.compare({"orders", "payments"})
        day.throttlectl("cancel", "payments")
        day.compare({"orders"})
        day.finish("orders")
        replicas = {(topic, state.replicas) for (topic, _), state in cluster.partitions(["orders", "payments"]).items()}
        assert replicas == {("orders", (1001, 1002)), ("payments", (1001, 1005))}

        # The broker that leads the state topic is decommissioned.
        leader = cluster.partitions([STATE_TOPIC])[STATE_TOPIC, 0].leader
        command = ["decommission", str(leader), "--topics", ".*,__autothrottle_state"]
        command += ["--bootstrap-servers", cluster.bootstrap_servers, "--admin-addr", day.address, "--execute"]
        day.run("topicmappr", *command, "--ignore-warns", "--out-path", str(tmp_path))
        day.compare()
        day.throttlectl("set", "100MB/s", "--beyond-capacity", "--autoremove")
        eventually(lambda: not any(leader in state.replicas for state in cluster.partitions().values()), SECONDS)
        eventually(lambda: not day.is_throttled(), SECONDS)
        day.compare(set())

        # An upgrade from an earlier version, in the middle of a move.
        lookup = ["git", "-C", str(ROOT), "cat-file", "-e", f"{EARLIER}^{{commit}}"]
        is_in_clone = subprocess.run(lookup, capture_output=True, check=False).returncode == 0
        old = day.start("old", earlier_sources(tmp_path / "earlier", EARLIER) if is_in_clone else {})
        assert stopped(first) == 0
        old.wait_until(lambda: "Leading in term" in old.log.read_text(), SECONDS)
        day.throttlectl("set", "0.5MB/s")  # so slow that the move outlasts the upgrade on a busy machine
        survivors = sorted(set(BROKERS) - {leader})
        day.reassign("orders", {n: survivors[2:] for n in range(3)})
        eventually(day.is_throttled, SECONDS)
        new = day.start("new")
        assert stopped(old) == 0
        new.wait_until(lambda: "Leading in term" in new.log.read_text(), SECONDS)
        day.open_page()
        day.compare({"orders"})
        day.finish("orders")

        # What happened, how good it was, and the end.
        audit = day.throttlectl("audit")
        for words in ("orders", "payments", "1MB/s", "cancel"):
            assert words in audit
        scores = tmp_path / "scores"
        day.run("autothrottle", "score", "--decisions", str(tmp_path / "decisions"), "--out", str(scores))
        assert (scores / "report.html").exists()
        assert stopped(new) == 0
        day.run("autothrottle", "uninstall", "--bootstrap-servers", cluster.bootstrap_servers)
        left_over = {entity: c for entity, c in cluster.stored_configs().items() if STATE_TOPIC not in entity}
        assert left_over.items() >= configs.items()
        assert not [key for config in left_over.values() for key in config if key in THROTTLE_KEYS]
        print(f"{day.views} views agreed with Kafka")


def stopped(process: Process) -> int:
    process.terminate()
    return process.wait(60)
