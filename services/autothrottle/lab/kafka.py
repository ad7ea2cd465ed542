"""A real Kafka cluster in ZooKeeper mode on 127.0.0.1: N brokers, each a process of its own.

`KafkaCluster` starts and ends it, reassigns partitions in both forms, plays the other operator who sets
configs, and says what the brokers themselves report and what their logs hold. It is a test's own pair of
eyes: it shares no code with the adapters that it helps to test.

kafka-python is imported here and in `lab.traffic` only by way of this module, since importing it warns.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.lab.jars import kafka_jars, require_java
from autothrottle.lab.processes import Process, free_ports

with warnings.catch_warnings():
    # It reads its schemas through a function of importlib.resources that is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors
    import kafka.net.inet

__all__ = ["CLIENT", "Broker", "KafkaCluster", "Partition", "PartitionState", "kafka"]

T = TypeVar("T")
Partition = tuple[str, int]
"""Topic and partition number."""

SESSION_SECONDS = 6.0
"""ZooKeeper session of a broker: so long the cluster believes that a killed broker lives."""

CLIENT: Mapping[str, Any] = {"proxy_url": "direct://"}
"""Options for every client of kafka-python; `direct` names `_DirectConnection`."""

REQUEST_SECONDS = 15.0
"""Deadline of one request to the brokers."""

ATTEMPTS = 3
"""So often a question is asked whose broker could not be reached."""

_PROPERTIES: Mapping[str, object] = {
    "broker.id.generation.enable": False,  # ids above 1000 are ours to choose
    "zookeeper.session.timeout.ms": int(SESSION_SECONDS * 1000),
    "zookeeper.connection.timeout.ms": 30_000,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    "auto.create.topics.enable": False,
    "auto.leader.rebalance.enable": False,
    "log.segment.bytes": 16 * 1024 * 1024,
    "log.index.size.max.bytes": 1024 * 1024,
    "log.retention.ms": -1,
    "log.retention.bytes": -1,
    "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "controlled.shutdown.retry.backoff.ms": 500,
}

_LOG4J = """\
log4j.rootLogger=WARN, file
log4j.logger.kafka=INFO
log4j.logger.state.change.logger=WARN
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={path}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
"""

_LOG_DIRECTORY = re.compile(r"^(?P<topic>.+)-(?P<partition>\d+)$")


class _CollectedSocket(socket.socket):
    """A socket that may be left to the garbage collector."""

    def __del__(self) -> None:
        self.close()


class _DirectConnection(kafka.net.inet.KafkaNetSocket):  # type: ignore[misc]
    """A connection without a proxy; kafka-python finds this class by its scheme.

    kafka-python 3.0.12 leaves sockets to the garbage collector when a connection is refused, and when a client is
    closed with something unsent. Python warns of each at some later moment, which is an error in somebody's test.
    """

    SCHEMES = ("direct",)

    def socket(self, family: int, sock_type: int, proto: int) -> socket.socket:
        """Return a new socket."""
        return _CollectedSocket(family, sock_type, proto)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where a partition is, as the controller wrote it in ZooKeeper."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    leader: int
    """Broker id, -1 while there is none."""
    isr: tuple[int, ...]

    @property
    def in_sync(self) -> bool:
        """Whether it has a leader, all replicas are in sync and none is coming or going."""
        settled = not self.adding_replicas and not self.removing_replicas
        return settled and self.leader >= 0 and set(self.isr) >= set(self.replicas)


class Broker:
    """One broker: its process, its port and its directory, which outlives a stop."""

    def __init__(self, broker_id: int, directory: Path, command: Sequence[str], properties: Mapping[str, object]):
        self.broker_id = broker_id
        self.port = free_ports(1)[0]
        self.directory = directory
        self.logs = directory / "logs"
        """One directory for each partition."""
        self.server_log = directory / "server.log"
        """What the broker logs."""
        directory.mkdir(parents=True)
        configuration, log4j = directory / "server.properties", directory / "log4j.properties"
        log4j.write_text(_LOG4J.format(path=self.server_log))
        configuration.write_text("".join(f"{key}={_spelled(value)}\n" for key, value in self._all(properties)))
        self.process = Process(
            f"broker {broker_id}",
            [*command, f"-Dlog4j.configuration=file:{log4j}", "kafka.Kafka", str(configuration)],
            directory / "output.log",
        )

    def _all(self, properties: Mapping[str, object]) -> Iterable[tuple[str, object]]:
        yield "broker.id", self.broker_id
        yield "listeners", f"PLAINTEXT://127.0.0.1:{self.port}"
        yield "log.dirs", self.logs
        yield from properties.items()

    @property
    def listening(self) -> bool:
        """Whether it takes connections; a broker does so a moment after it has registered."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2.0).close()
        except OSError:
            return False
        return True

    def log_end(self, lines: int = 30) -> str:
        """Return the last lines that the broker logged."""
        logged = self.server_log.read_text(errors="replace") if self.server_log.exists() else ""
        return "\n".join(logged.splitlines()[-lines:]) + "\n" + self.process.log_end(lines)


class KafkaCluster:
    """Brokers that share one ZooKeeper (and chroot); a context manager that starts and ends them.

    All methods may be called from any thread. Ended brokers are killed,
    and what the cluster wrote into `directory` is removed; what it wrote into ZooKeeper goes with that.
    """

    def __init__(
        self,
        zookeeper_connect: str,
        directory: Path,
        broker_ids: Sequence[int] = (1001, 1002, 1003),
        chroot: str = "",
        version: str = "3.9.2",
        broker_properties: Mapping[str, object] | None = None,
        heap_megabytes: int = 256,
    ) -> None:
        """Prepare the brokers; `broker_properties` beat the lab's own; `chroot`: "" or "/..."."""
        self.zookeeper_connect = zookeeper_connect + chroot
        """Connection string with the chroot, as brokers and tools take it."""
        self.directory = directory
        properties = {"zookeeper.connect": self.zookeeper_connect, **_PROPERTIES, **(broker_properties or {})}
        command = _java(kafka_jars(version), heap_megabytes)
        self.brokers = {
            broker_id: Broker(broker_id, directory / f"broker-{broker_id}", command, properties)
            for broker_id in broker_ids
        }
        self.start_seconds = 0.0
        """How long the last `start` of all brokers took."""
        self._chroot = chroot
        # Without the chroot, which the first broker makes.
        self._zookeeper = KazooClient(zookeeper_connect, timeout=10.0)
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    def __enter__(self) -> KafkaCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Brokers

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, running or not: `host:port,host:port`."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def start(self, within_seconds: float = 120.0) -> None:
        """Start all brokers at once and return when every one is registered and known to the others."""
        began = time.monotonic()
        self._zookeeper.start(timeout=15)
        for broker in self.brokers.values():
            broker.process.start()
        for broker in self.brokers.values():
            self._wait_until_serving(broker, within_seconds)
        self._wait_until_known(within_seconds)
        self.start_seconds = time.monotonic() - began

    def close(self) -> None:
        """Kill all brokers and remove their directories."""
        with self._admin_lock:
            self._close_admin()
        self._zookeeper.stop()
        self._zookeeper.close()
        for broker in self.brokers.values():
            broker.process.kill()
        for broker in self.brokers.values():
            shutil.rmtree(broker.directory, ignore_errors=True)

    def start_broker(self, broker_id: int, within_seconds: float = 60.0) -> None:
        """Start a broker that has ended, with its data, and return when the others know it.

        After a kill this waits first until ZooKeeper has forgotten its session.
        """
        broker = self.brokers[broker_id]
        if broker.process.running:
            return
        _wait_until(lambda: not self._registered(broker_id), within_seconds, f"broker {broker_id} is forgotten")
        broker.process.start()
        self._wait_until_serving(broker, within_seconds)
        self._wait_until_known(within_seconds)

    def stop_broker(self, broker_id: int) -> None:
        """End a broker by a controlled shutdown, which moves leadership away first."""
        self.brokers[broker_id].process.stop(grace_seconds=60.0)

    def kill_broker(self, broker_id: int) -> None:
        """End a broker by SIGKILL: for some seconds the cluster still believes that it lives."""
        self.brokers[broker_id].process.kill()

    # Topics and reassignments

    def create_topic(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic with exactly these replicas, the leader first, and return when all are in sync."""
        wanted = {
            "assignments": {partition: list(replicas) for partition, replicas in assignment.items()},
            "configs": dict(configs or {}),
        }
        self._ask(lambda admin: admin.create_topics({name: wanted}, wait_for_metadata=True))
        self.wait_until_in_sync([name])

    def delete_topic(self, name: str, within_seconds: float = 60.0) -> None:
        """Delete a topic and return when its node is gone."""
        self._ask(lambda admin: admin.delete_topics([name]))
        path = f"/brokers/topics/{name}"
        _wait_until(lambda: not self._exists(path), within_seconds, f"topic {name} is deleted")

    def reassign_through_znode(self, replicas: Mapping[Partition, Sequence[int]]) -> None:
        """Start a reassignment as Kafka's old tools did: the whole plan in `/admin/reassign_partitions`.

        Raises:
            Conflict: one that was started like that is under way.
        """
        rows = [{"topic": t, "partition": p, "replicas": list(to)} for (t, p), to in replicas.items()]
        plan = json.dumps({"version": 1, "partitions": rows}).encode()
        try:
            self._zookeeper.create(f"{self._chroot}/admin/reassign_partitions", plan)
        except NodeExistsError:
            fix = "Fix: wait until `reassigning()` is empty."
            raise Conflict(f"/admin/reassign_partitions is there already. {fix}") from None

    def reassign_through_bootstrap(self, replicas: Mapping[Partition, Sequence[int] | None]) -> None:
        """Start a reassignment through the controller (KIP-455); None cancels that of a partition.

        Raises:
            Invalid: the controller refuses one of the partitions; the others have been started.
        """
        wanted = {kafka.TopicPartition(*p): None if to is None else list(to) for p, to in replicas.items()}
        told = self._ask(lambda admin: admin.alter_partition_reassignments(wanted))
        if refused := {f"{p.topic}-{p.partition}": why.__name__ for p, why in told.items() if why}:
            raise Invalid(f"The controller refuses to reassign {refused}.")

    def reassigning(self) -> set[Partition]:
        """Return the partitions under reassignment, however it was started, also those not begun yet."""
        moving = {p for p, state in self.partitions().items() if state.adding_replicas or state.removing_replicas}
        plan = self._read("/admin/reassign_partitions")
        return moving | {(row["topic"], row["partition"]) for row in plan.get("partitions", [])}

    def wait_until_reassigned(self, within_seconds: float = 60.0) -> None:
        """Return when nothing is being reassigned."""
        _wait_until(lambda: not self.reassigning(), within_seconds, "the reassignment is done")

    def wait_until_in_sync(self, topics: Iterable[str], within_seconds: float = 60.0) -> None:
        """Return when every partition of the topics has a leader and all its replicas are in sync."""
        names = list(topics)

        def in_sync() -> bool:
            states = self.partitions(names)
            return {topic for topic, _ in states} == set(names) and all(state.in_sync for state in states.values())

        _wait_until(in_sync, within_seconds, f"{names} are in sync")

    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        """Return the state of all partitions, of all topics by default, as the controller wrote it."""
        if topics is None:
            topics = self._children("/brokers/topics")
        found: dict[Partition, PartitionState] = {}
        for topic in topics:
            node = self._read(f"/brokers/topics/{topic}")
            for number, replicas in node.get("partitions", {}).items():
                state = self._read(f"/brokers/topics/{topic}/partitions/{number}/state")
                found[topic, int(number)] = PartitionState(
                    replicas=tuple(replicas),
                    adding_replicas=tuple(node.get("adding_replicas", {}).get(number, ())),
                    removing_replicas=tuple(node.get("removing_replicas", {}).get(number, ())),
                    leader=state.get("leader", -1),
                    isr=tuple(state.get("isr", ())),
                )
        return found

    # Configs

    def described_configs(self, broker_id: int) -> dict[str, str]:
        """Return the dynamic configs of a broker as that broker itself reports them; {} when it has none."""
        return self._described(kafka.admin.ConfigResourceType.BROKER, str(broker_id), "DYNAMIC_BROKER_CONFIG")

    def described_topic_configs(self, topic: str) -> dict[str, str]:
        """Return the configs that are set on a topic as a broker reports them; {} when none is."""
        return self._described(kafka.admin.ConfigResourceType.TOPIC, topic, "DYNAMIC_TOPIC_CONFIG")

    def set_configs_as_a_user(
        self, configs: Mapping[str, str | None], *, broker_id: int | None = None, topic: str | None = None
    ) -> None:
        """Set dynamic configs of one broker or one topic as any other operator would; None deletes a key.

        Raises:
            Invalid: not exactly one of `broker_id` and `topic` is given, or Kafka refuses.
        """
        if (broker_id is None) == (topic is None):
            raise Invalid(f"Got broker_id={broker_id} and topic={topic}. Fix: give exactly one of them.")
        kind = kafka.admin.ConfigResourceType.TOPIC if topic else kafka.admin.ConfigResourceType.BROKER
        changes = {key: ("DELETE", None) if value is None else ("SET", value) for key, value in configs.items()}
        resource = kafka.admin.ConfigResource(kind, topic or str(broker_id), changes)
        # Without raise_on_unknown=False the client refuses the throttles: "Unrecognized configs".
        told = self._ask(lambda admin: admin.alter_configs([resource], raise_on_unknown=False, incremental=True))
        if refused := {name: why for of in told.values() for name, why in of.items() if why != "OK"}:
            raise Invalid(f"Kafka refuses {dict(configs)}: {refused}")

    def _described(self, kind: Any, name: str, source: str) -> dict[str, str]:
        resource = kafka.admin.ConfigResource(kind, name)
        told = self._ask(lambda admin: admin.describe_configs([resource]))
        entries = told.get(kind.name.lower(), {}).get(name, {})
        return {key: entry["value"] for key, entry in entries.items() if entry["config_source"] == source}

    # What the logs hold

    def log_bytes(self, broker_id: int) -> dict[Partition, int]:
        """Return the bytes of every partition's log on a broker, read from the sizes of its files.

        Also works on a broker that is down. Replicas that are being deleted do not count.
        """
        found: dict[Partition, int] = {}
        try:
            with os.scandir(self.brokers[broker_id].logs) as directories:
                for entry in directories:
                    if named := _LOG_DIRECTORY.match(entry.name):
                        found[named["topic"], int(named["partition"])] = _bytes_of_segments(entry.path)
        except FileNotFoundError:
            return {}
        return found

    # Behind it

    def _read(self, path: str) -> dict[str, Any]:
        """Return the JSON of a node, {} when it is not there."""
        try:
            content, _ = self._zookeeper.get(self._chroot + path)
        except NoNodeError:
            return {}
        read: dict[str, Any] = json.loads(content)
        return read

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._zookeeper.get_children(self._chroot + path))
        except NoNodeError:
            return []

    def _registered(self, broker_id: int) -> bool:
        return self._exists(f"/brokers/ids/{broker_id}")

    def _exists(self, path: str) -> bool:
        return self._zookeeper.exists(self._chroot + path) is not None

    def _wait_until_serving(self, broker: Broker, within_seconds: float) -> None:
        def serving() -> bool:
            return self._registered(broker.broker_id) and broker.listening

        try:
            broker.process.wait_until(serving, within_seconds, poll_seconds=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{broker.log_end()}") from None

    def _wait_until_known(self, within_seconds: float) -> None:
        running = {broker_id for broker_id, broker in self.brokers.items() if broker.process.running}

        def known() -> bool:
            try:
                told = self._ask(lambda admin: admin.describe_cluster())
            except Unavailable:
                return False
            return {broker["broker_id"] for broker in told["brokers"]} >= running

        _wait_until(known, within_seconds, f"the brokers {sorted(running)} know one another")

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Return the answer of the admin client.

        After an error the next question gets a new client, since an old one holds on to brokers that are
        down; a connection that could not be made is tried again, since the client picks any broker that it
        has heard of.
        """
        with self._admin_lock:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._admin = self._admin or self._new_admin()
                    return question(self._admin)
                except kafka.errors.KafkaError as error:
                    self._close_admin()
                    unconnected = (kafka.errors.KafkaConnectionError, kafka.errors.NodeNotReadyError)
                    if attempt == ATTEMPTS or not isinstance(error, unconnected):
                        problem = f"The brokers {self.bootstrap_servers} answer {error!r}."
                        raise Unavailable(problem) from error
                time.sleep(0.3)
        raise AssertionError("unreachable")

    def _new_admin(self) -> Any:
        running = [broker.port for broker in self.brokers.values() if broker.process.running]
        if not running:
            raise Unavailable("All brokers of the cluster have ended. Fix: start one.")
        return kafka.KafkaAdminClient(
            bootstrap_servers=[f"127.0.0.1:{port}" for port in running],
            bootstrap_timeout_ms=int(REQUEST_SECONDS * 1000),
            request_timeout_ms=int(REQUEST_SECONDS * 1000),
            **CLIENT,
        )

    def _close_admin(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def _java(jars: Path, heap_megabytes: int) -> list[str]:
    return [
        *(
            str(require_java()),
            "-Xms64m",
            f"-Xmx{heap_megabytes}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
        ),
        *("-Djava.awt.headless=true", "-cp", f"{jars}/*"),
    ]


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bytes_of_segments(directory: str) -> int:
    total = 0
    try:
        with os.scandir(directory) as files:
            for file in files:
                if file.name.endswith(".log"):
                    total += file.stat().st_size
    except FileNotFoundError:  # deleted while we looked
        pass
    return total


def _wait_until(true: Callable[[], bool], within_seconds: float, what: str) -> None:
    deadline = time.monotonic() + within_seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"After {within_seconds:.0f} s it is still not so that {what}.")
        time.sleep(0.05)
