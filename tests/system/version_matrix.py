"""The same recovery on three brokers of each release of Kafka: `python -m tests.system.version_matrix` (`make matrix`).

    start 3 brokers and 2 `autothrottle run`  ->  reassign with the release's own tool  ->  override by throttlectl
    ->  SIGKILL of the leader  ->  a high override lets the reassignment end  ->  configs are equal before and after

It prints a Markdown table with a row for each release. `--write` puts the rows into docs/architecture.md, where the
rows of other releases stay.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from subprocess import SubprocessError

from autothrottle_client import AdminClient, AutothrottleError, ClusterState
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import Process, Startable, scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.paths import ROOT
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch
from tests.system.test_throttlectl import address_of, throttlectl

MB = 1_000_000

STATE_STORES = ("zookeeper", "kafka")
"""Values of `--state-store`: where autothrottle keeps its own state."""

BROKERS = (1001, 1002, 1003)
DESTINATION = 1003
TOPIC = "moving"
PARTITIONS = 9
BYTES_PER_PARTITION = 30 * MB
TARGETS = {(TOPIC, p): (1001 + p % 2, DESTINATION) for p in range(PARTITIONS)}

START_SECONDS = 60.0
"""Deadline for the first cycle of two `autothrottle run`; it takes 3 s on an idle machine."""

STEADY_SECONDS = 8.0
"""Time of the reassignment before the override: several cycles."""

OVERRIDE = 2 * MB
"""Rate of the override in the middle, bytes/s: so low that the rest of the reassignment outlasts the takeover."""

MOST_COPIED = 2.0
"""Limit of the bytes copied in 12 s, as a share of the throttle.

The quota's meter is idle before the first throttle, and lets through 11 s of the rate at once: 23 s of the rate in all.
"""

STATE_TOPIC = "__autothrottle_state"

SMALL_FETCHES: Mapping[str, object] = {
    # The loopback interface copies less until the first throttle, and bursts stay small beside the throttle.
    "replica.fetch.max.bytes": 32 * 1024,
    "replica.fetch.response.max.bytes": 64 * 1024,
}

PAGE = ROOT / "docs/architecture.md"
TITLE = "## Kafka versions that were run"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kafka, and its mode."""

    version: str
    zookeeper: bool = False
    """Whether the brokers run in ZooKeeper mode."""

    def __str__(self) -> str:
        return f"{self.version}-zookeeper" if self.zookeeper else self.version

    @classmethod
    def parse(cls, text: str) -> Release:
        """Return the release of its text form, such as `4.3.1` or `3.9.2-zookeeper`."""
        match = re.fullmatch(r"(\d+\.\d+\.\d+)(-zookeeper)?", text)
        if match is None:
            problem = f"{text!r} is not a release of Kafka"
            raise argparse.ArgumentTypeError(f"{problem}; write 4.3.1, or 3.9.2-zookeeper for ZooKeeper mode")
        return cls(match[1], zookeeper=match[2] is not None)


RELEASES = tuple(map(Release.parse, ("3.9.2-zookeeper", "3.9.2", "4.0.2", "4.1.2", "4.2.2", "4.3.1", "4.4.0")))


class Environment(Startable):
    """Three brokers of a release, and the ZooKeeper that they or autothrottle's state need."""

    def __init__(self, release: Release, store: str, directory: Path, zookeeper_port: int | None = None) -> None:
        self.store = store
        self._stack = ExitStack()
        needs_zookeeper = release.zookeeper or store == "zookeeper"
        self.zookeeper = ZooKeeperServer(directory / "zookeeper", zookeeper_port) if needs_zookeeper else None
        self.cluster: KafkaCluster
        if release.zookeeper:
            assert self.zookeeper is not None
            self.cluster = ZooKeeperModeCluster(
                *(self.zookeeper.connect, directory, BROKERS),
                version=release.version,
                broker_properties=SMALL_FETCHES,
            )
        else:
            self.cluster = KraftCluster(directory, BROKERS, release.version, broker_properties=SMALL_FETCHES)

    def start(self) -> None:
        if self.zookeeper is not None:
            self._stack.enter_context(self.zookeeper)
        self._stack.enter_context(self.cluster)

    def close(self) -> None:
        self._stack.close()

    def flags(self) -> list[str]:
        """Return the flags with which `autothrottle run` finds Kafka and its own state."""
        brokers = f"--bootstrap-servers={self.cluster.bootstrap_servers}"
        if self.store == "kafka":
            return [brokers]
        assert self.zookeeper is not None
        flags = [brokers, f"--zk-addr={self.zookeeper.connect}", "--metrics-source=kafka"]
        return flags if isinstance(self.cluster, ZooKeeperModeCluster) else [*flags, "--kafka-backend=admin"]

    def configs(self) -> dict[str, dict[str, str]]:
        """Return the dynamic configs of the cluster, without those of the state topic."""
        stored = self.cluster.stored_configs()
        return {entity: config for entity, config in stored.items() if entity != f"topics/{STATE_TOPIC}"}

    def create_topic(self) -> None:
        """Create the topic that is reassigned, on the first two brokers."""
        self.cluster.create_topic(TOPIC, {p: [1001 + p % 2, 1002 - p % 2] for p in range(PARTITIONS)})
        fill(self.cluster, TOPIC, BYTES_PER_PARTITION, record_bytes=20_000)


def run_process(
    name: str, flags: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Process:
    """Return an `autothrottle run` with frequent cycles, not yet started."""
    quick = ("--capacity=6MB/s", "--min-rate=2", "--metrics-window=6", "--interval=3")
    listen = ("--api-listen=127.0.0.1:0", "--grpc-listen=127.0.0.1:0")
    command = [sys.executable, "-m", "autothrottle", "run", *flags, *quick, *listen]
    return Process(name, command, directory / f"{name}.log", environment)


def state_of(addresses: Sequence[str]) -> ClusterState | None:
    """Return the state of the leader; None: none leads, or it has not run a cycle in its term."""
    try:
        with AdminClient(addresses) as admin:
            state = admin.state()
    except AutothrottleError:
        return None
    return state if state.last_cycle and state.last_cycle.term == state.term else None


class RunReplicas(Startable):
    """Two `autothrottle run` processes, of which one leads, and `throttlectl` with both addresses."""

    def __init__(self, flags: Sequence[str], directory: Path) -> None:
        self.processes = [run_process(name, flags, directory) for name in ("run-1", "run-2")]
        self.addresses: list[str] = []
        self._stack = ExitStack()

    def start(self) -> None:
        """Start both; return when one of them has run a cycle as the leader."""
        for process in self.processes:
            self._stack.enter_context(process)
        self.addresses = [address_of(process) for process in self.processes]
        self.processes[0].wait_until(lambda: self.state() is not None, START_SECONDS)

    def close(self) -> None:
        self._stack.close()

    def stop(self) -> None:
        """End the running processes by SIGTERM; check their exit statuses and logs."""
        running = [process for process in self.processes if process.running]
        for process in running:
            process.terminate()
        for process in running:
            assert process.wait(30.0) == 0, process.log_end()
        for process in self.processes:
            assert "Traceback" not in process.log.read_text(), process.log_end()

    def state(self) -> ClusterState | None:
        return state_of(self.addresses)

    def wait_for_cycle(self, after: datetime) -> ClusterState:
        """Return the state as soon as the leader has run a cycle that started after this time."""
        states: list[ClusterState] = []

        def has_run() -> bool:
            states.extend(state for state in [self.state()] if state is not None)
            return bool(states) and (cycle := states[-1].last_cycle) is not None and cycle.start_time > after

        eventually(has_run)
        return states[-1]

    def leader(self) -> Process:
        """Return the process that leads."""
        state = self.state()
        assert state is not None, "no replica leads"
        return self.processes[self.addresses.index(state.leader_address)]

    def throttlectl(self, *arguments: str) -> str:
        return throttlectl(",".join(self.addresses), *arguments)


@dataclass(slots=True)
class Row:
    """What was seen on one release; None: the run did not get that far, or the check failed."""

    release: Release
    store: str
    day: date
    copied: float | None = None
    """The most bytes that the destination copied in 12 s, as a share of what its throttle allowed."""
    override_seconds: float | None = None
    """From `throttlectl set` until the destination itself reports the rate."""
    takeover_seconds: float | None = None
    """From the SIGKILL of the leader until the first cycle of the next one."""
    clean: bool = False
    """Whether the configs were the same before and after."""
    seconds: float = 0.0

    def cells(self) -> list[str]:
        """Return the cells of the row, in the order of `HEAD`."""
        return [
            *(self.release.version, "ZooKeeper" if self.release.zookeeper else "KRaft", self.store),
            _yes(self.copied, "{:.2f} of the rate"),
            _yes(self.override_seconds, "after {:.1f} s"),
            _yes(self.takeover_seconds, "after {:.1f} s"),
            *("yes" if self.clean else "no", f"{self.seconds:.0f}", self.day.isoformat()),
        ]


HEAD = ("Kafka", "mode", "state in", "throttled", "override", "takeover", "clean", "seconds", "date")


def _yes(figure: float | None, form: str) -> str:
    return "no" if figure is None else f"yes, {form.format(figure)}"


def run(release: Release, store: str, report: Callable[[str], None]) -> Row:
    """Play the recovery on one release. The row of a failed run has what was seen until then."""
    row = Row(release, store, datetime.now(UTC).date())
    began = time.monotonic()
    try:
        with scratch_directory() as directory, Environment(release, store, directory) as environment:
            environment.create_topic()
            report(f"Kafka {release} started and filled a topic in {time.monotonic() - began:.0f} s")
            began = time.monotonic()
            play_recovery(environment, directory, row)
    except (AssertionError, OSError, SubprocessError, AutothrottleError):
        report(f"Kafka {release} failed:\n{traceback.format_exc()}")
    row.seconds = time.monotonic() - began
    return row


def play_recovery(environment: Environment, directory: Path, row: Row) -> None:
    """Play the recovery, and fill in the row after each check that passed."""
    configs = environment.configs()
    with RunReplicas(environment.flags(), directory) as replicas, RecoveryWatch(environment.cluster, TOPIC) as watch:
        environment.cluster.reassign_through_tool(TARGETS)
        watch.wait_until(lambda s: bool(s.moving) and not s.unthrottled, 30, "all replicas are throttled")
        time.sleep(STEADY_SECONDS)
        row.override_seconds = set_override(replicas, environment.cluster)
        row.takeover_seconds = kill_leader(replicas, watch)
        replicas.throttlectl("set", "500MB/s", "--beyond-capacity", "--autoremove")
        watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
        row.copied = copied_share(watch)
        eventually(lambda: environment.configs() == configs)
        replicas.stop()
        assert environment.configs() == configs, f"{environment.configs()}; before: {configs}"
        row.clean = True


def set_override(replicas: RunReplicas, cluster: KafkaCluster) -> float:
    """Set the override; return the seconds until the destination reports the rate."""
    began = time.monotonic()
    replicas.throttlectl("set", f"{OVERRIDE // MB}MB/s", "--autoremove")
    eventually(lambda: cluster.described_configs(DESTINATION).get(FOLLOWER_RATE) == str(OVERRIDE))
    return time.monotonic() - began


def kill_leader(replicas: RunReplicas, watch: RecoveryWatch) -> float:
    """Kill the leader; return the seconds until the other one has run a cycle, which keeps the override."""
    state, leader = replicas.state(), replicas.leader()
    assert state is not None
    began = time.monotonic()
    leader.kill()

    def succeeded() -> bool:
        successor = replicas.state()
        return successor is not None and successor.term > state.term

    survivor = next(process for process in replicas.processes if process is not leader)
    survivor.wait_until(succeeded, 60)
    seconds = time.monotonic() - began
    assert replicas.leader() is survivor
    sample = watch.wait_until(lambda s: s.at > began + seconds, 10, "a sample after the takeover")
    assert sample.moving, "the reassignment ended before the takeover"
    assert sample.rates[DESTINATION, FOLLOWER_RATE] == OVERRIDE
    return seconds


def copied_share(watch: RecoveryWatch) -> float:
    """Return the bytes copied as a share of the throttle; check that a throttle was there from the first one on."""
    unthrottled, copied = watch.unthrottled_seconds(), watch.worst_window(DESTINATION)
    assert unthrottled == 0, f"{unthrottled:.1f} s without a throttle"
    assert copied <= MOST_COPIED, f"copied {copied:.2f} times the throttle"
    return copied


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |\n" for cells in (HEAD, *rows)]
    return "".join([lines[0], "|---" * len(HEAD), "|\n", *lines[1:]])


def with_rows(page: str, rows: Sequence[Row]) -> str:
    """Return the page with these rows in its table; rows of other releases, modes and stores stay."""
    above, title, section = page.partition(f"{TITLE}\n")
    old_table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    if old_table is None:
        raise ValueError(f"{PAGE} has no table below {TITLE!r}")
    merged = {tuple(cells[:3]): cells for cells in [*cells_of(old_table[0]), *(row.cells() for row in rows)]}
    ordered = sorted(
        merged.values(), key=lambda cells: ([int(part) for part in cells[0].split(".")], cells[2], cells[1])
    )
    return above + title + section[: old_table.start()] + table(ordered) + section[old_table.end() :]


def cells_of(old_table: str) -> list[list[str]]:
    """Return the cells of each row of a table below its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in old_table.splitlines()[2:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix; return 0, or 1 if a check failed on a release."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.version_matrix", description=main.__doc__)
    parser.add_argument(
        "--releases",
        type=lambda text: [Release.parse(part) for part in text.split(",")],
        default=list(RELEASES),
        metavar="RELEASE,...",
        help=f"releases of Kafka (default {','.join(map(str, RELEASES))})",
    )
    parser.add_argument(
        "--state-store",
        choices=STATE_STORES,
        help="store (default kafka, and zookeeper for releases in ZooKeeper mode)",
    )
    parser.add_argument("--write", action="store_true", help=f"write the rows into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args(argv)
    rows = []
    for release in arguments.releases:
        store = arguments.state_store or ("zookeeper" if release.zookeeper else "kafka")
        rows.append(run(release, store, lambda text: print(text, flush=True)))
        if arguments.write:
            PAGE.write_text(with_rows(PAGE.read_text("utf-8"), rows[-1:]), "utf-8")
    print("\n" + table([row.cells() for row in rows]))
    return 0 if all(None not in astuple(row) and row.clean for row in rows) else 1


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # connections to killed processes break
    sys.exit(main())
