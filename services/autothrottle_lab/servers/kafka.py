"""A real Kafka cluster on 127.0.0.1, one process per broker (`KafkaServer`).

`KafkaCluster` is the base class of `kafka_zookeeper.ZooKeeperModeCluster` and `kafka_kraft.KraftCluster`. It starts and
stops brokers, reassigns partitions, and sets configs as another operator would. It reads configs from the brokers,
metadata from the controller, and sizes from the log directories.

Tests use it to check the product's adapters. It shares only kafka-python and the client options with them.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle_lab.servers.jars import DUMP_SECONDS, class_archive_options, kafka_jars, require_java
from autothrottle_lab.servers.processes import Process, Startable, free_ports, run_command

T = TypeVar("T")
Partition = tuple[str, int]
"""Topic and partition number."""

SESSION_SECONDS = 6.0
"""Session timeout of a broker: for this time the cluster considers a killed broker alive."""

DEFAULT = "<default>"
"""Kafka's entity name for the cluster-wide default of dynamic broker configs."""

START_SECONDS = 300.0
"""Deadline for the start of all brokers. It takes 6 to 12 s on two idle cores."""

REQUEST_SECONDS = 15.0
"""Deadline of one request to the brokers."""

_REASSIGN_TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
"""Main class of `kafka-reassign-partitions.sh` since Kafka 3.7."""
_TOOL_SECONDS = 300.0

ATTEMPTS = 3
"""Attempts of a request whose broker cannot be reached."""

PROPERTIES: Mapping[str, object] = {
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
}
"""Configs of every broker: little memory, few threads, small segments, no automatic rebalancing or retention."""

_LOG4J = """\
log4j.rootLogger=WARN, file
log4j.logger.kafka=INFO
log4j.logger.state.change.logger=WARN
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={path}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
"""

_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

_LOG_DIRECTORY = re.compile(r"^(?P<topic>.+)-(?P<partition>\d+)$")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition, as the controller wrote it."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    leader: int
    """Broker id; -1: no leader."""
    isr: tuple[int, ...]

    @property
    def in_sync(self) -> bool:
        """Whether it has a leader, all replicas are in sync, and no reassignment is in progress."""
        settled = not self.adding_replicas and not self.removing_replicas
        return settled and self.leader >= 0 and set(self.isr) >= set(self.replicas)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs."""

    host: str = "127.0.0.1"
    """The address that it listens on and advertises."""
    command_prefix: tuple[str, ...] = ()
    """Words before its command, such as `ip netns exec NAME`; the prefix program must exec the command."""


LOCAL = Place()


class KafkaServer(Process):
    """One Kafka process and its directory. The directory survives a stop."""

    def __init__(
        self,
        name: str,
        directory: Path,
        port: int,
        command: Sequence[str],
        properties: Mapping[str, object],
        place: Place = LOCAL,
        listener: str = "PLAINTEXT",
    ) -> None:
        self.port = port
        self.host = place.host
        self.directory = directory
        self.logs = directory / "logs"
        """Log directory, with one subdirectory per partition."""
        directory.mkdir(parents=True)
        configuration, log4j = directory / "server.properties", directory / "log4j.properties"
        server_log = directory / "server.log"
        log4j.write_text(_LOG4J.format(path=server_log))
        given = {"listeners": f"{listener}://{place.host}:{port}", "log.dirs": self.logs, **properties}
        configuration.write_text("".join(f"{key}={_property_value(value)}\n" for key, value in given.items()))
        self.command = [*command, f"-Dlog4j.configuration=file:{log4j}"]
        """Java command without the main class."""
        self.configuration = configuration
        """Path of `server.properties`."""
        command = [*place.command_prefix, *self.command, "kafka.Kafka", str(configuration)]
        super().__init__(name, command, directory / "output.log", own_log=server_log)

    def close(self) -> None:
        """Kill the process and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def address(self) -> str:
        """Address, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        try:
            socket.create_connection((self.host, self.port), timeout=2.0).close()
        except OSError:
            return False
        return True


class KafkaCluster(Startable):
    """The brokers of one cluster.

    All methods are thread-safe. The end removes the cluster's files in `directory`.
    """

    def __init__(
        self,
        directory: Path,
        version: str,
        command: Sequence[str],
        properties: Mapping[int, Mapping[str, object]],
        places: Mapping[int, Place],
    ) -> None:
        """Prepare the brokers.

        Args:
            directory: parent of their directories.
            version: Kafka release, for example `4.3.1`.
            command: their Java command, without the main class.
            properties: broker id -> its configs besides `PROPERTIES`.
            places: broker id -> where it runs; default: 127.0.0.1.
        """
        self.directory, self.version = directory, version
        ports = free_ports(len(properties))
        self.brokers = {
            broker_id: KafkaServer(
                f"broker {broker_id}",
                directory / f"broker-{broker_id}",
                port,
                command,
                {**PROPERTIES, **own},
                places.get(broker_id, LOCAL),
            )
            for (broker_id, own), port in zip(properties.items(), ports, strict=True)
        }
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    # Brokers

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, running or not: `host:port,host:port`."""
        return ",".join(broker.address for broker in self.brokers.values())

    def start(self, within_seconds: float = START_SECONDS) -> None:
        """Start all brokers at once; return when all are registered and every broker's metadata lists them."""
        for broker in self.brokers.values():
            broker.start()
        for broker_id in self.brokers:
            self._wait_until_serving(broker_id, within_seconds)
        self._wait_until_known(within_seconds)

    def close(self) -> None:
        """Kill all brokers and remove their directories."""
        with self._admin_lock:
            self._close_admin()
        for broker in self.brokers.values():
            broker.kill()
        for broker in self.brokers.values():
            broker.close()

    def start_broker(self, broker_id: int, within_seconds: float = 120.0) -> None:
        """Start a stopped broker with its old data; return when the brokers' metadata lists it.

        After a kill it first waits for the end of the broker's session.
        """
        broker = self.brokers[broker_id]
        if broker.running:
            return
        wait_until(lambda: not self._is_registered(broker_id), within_seconds, f"broker {broker_id} is unregistered")
        broker.start()
        self._wait_until_serving(broker_id, within_seconds)
        self._wait_until_known(within_seconds)

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker by a controlled shutdown, which first moves its leaderships to other brokers."""
        self.brokers[broker_id].stop(grace_seconds=60.0)

    def kill_broker(self, broker_id: int) -> None:
        """Kill a broker by SIGKILL: for `SESSION_SECONDS` the cluster still considers it alive."""
        self.brokers[broker_id].kill()

    # Topics and reassignments

    def create_topic(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic with these replicas, the leader first; return when all are in sync and all brokers know it."""
        assignments = {partition: list(replicas) for partition, replicas in assignment.items()}
        self._create(name, {"assignments": assignments, "configs": dict(configs or {})})

    def create_topic_anywhere(self, name: str, partitions: int, replication_factor: int) -> None:
        """Create a topic whose replicas the controller places; return when `create_topic` would."""
        self._create(name, {"num_partitions": partitions, "replication_factor": replication_factor})

    def _create(self, name: str, topic: Mapping[str, Any]) -> None:
        self._call_admin(lambda admin: admin.create_topics({name: topic}))
        wait_until(lambda: all(self._knows(broker_id, name) for broker_id in self._running()), 60.0, f"{name} is known")
        self.wait_until_in_sync([name])

    def delete_topic(self, name: str) -> None:
        """Delete a topic; return when the controller has removed it and no broker knows it."""
        self._call_admin(lambda admin: admin.delete_topics([name]))
        wait_until(lambda: not self.partitions([name]), 60.0, f"topic {name} is deleted")
        wait_until(lambda: not any(self._knows(b, name) for b in self._running()), 60.0, f"{name} is forgotten")

    def reassign_through_bootstrap(self, replicas: Mapping[Partition, Sequence[int] | None]) -> None:
        """Start a reassignment through the controller (KIP-455); None as target cancels that of a partition.

        Raises:
            Invalid: the controller refuses some partitions; the reassignment of the others has started.
        """
        targets = {kafka.TopicPartition(*p): None if to is None else list(to) for p, to in replicas.items()}
        results = self._call_admin(lambda admin: admin.alter_partition_reassignments(targets))
        if refused := {f"{p.topic}-{p.partition}": error.__name__ for p, error in results.items() if error}:
            raise Invalid(f"The controller refuses to reassign {refused}.")

    def reassign_through_tool(self, replicas: Mapping[Partition, Sequence[int]], *options: str) -> str:
        """Start a reassignment with the release's own `kafka-reassign-partitions.sh --execute`; return its output.

        Raises:
            Invalid: the tool fails; the message has its output.
        """
        rows = [
            {"topic": topic, "partition": number, "replicas": list(to), "log_dirs": ["any"] * len(to)}
            for (topic, number), to in replicas.items()
        ]
        plan = self.directory / f"plan-{uuid.uuid4().hex}.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        command = [*java_command(self.version, 128), _REASSIGN_TOOL, "--bootstrap-server", self.bootstrap_servers]
        command += ["--reassignment-json-file", str(plan), "--execute", *options]
        try:
            status, output = run_command(command, _TOOL_SECONDS)
        finally:
            plan.unlink()
        if status != 0:
            raise Invalid(f"The reassignment tool of Kafka {self.version} ended with {status}: {output}")
        return output

    def wait_until_reassigned(self, within_seconds: float = 60.0) -> None:
        """Return when no reassignment is in progress."""
        wait_until(lambda: not self.reassigning(), within_seconds, "the reassignment is done")

    def wait_until_in_sync(self, topics: Iterable[str], within_seconds: float = 60.0) -> None:
        """Return when every partition of the topics has a leader, and all its replicas are in sync."""
        names = list(topics)

        def in_sync() -> bool:
            states = self.partitions(names)
            return {topic for topic, _ in states} == set(names) and all(state.in_sync for state in states.values())

        wait_until(in_sync, within_seconds, f"{names} are in sync")

    @abstractmethod
    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        """Return the state of all partitions, of all topics by default, as the controller wrote it."""

    def reassigning(self) -> set[Partition]:
        """Return the partitions under reassignment, including those that the controller has not started yet."""
        return {p for p, state in self.partitions().items() if state.adding_replicas or state.removing_replicas}

    # Configs

    @abstractmethod
    def stored_configs(self) -> dict[str, dict[str, str]]:
        """Return every dynamic config exactly as the controller stores it, including sensitive values.

        Keys are `brokers/1001`, `brokers/<default>` and `topics/t`; entities without configs are absent.
        """

    def described_configs(self, broker_id: int) -> dict[str, str]:
        """Return the dynamic configs of a broker as that broker reports them."""
        return self._described(kafka.admin.ConfigResourceType.BROKER, str(broker_id), "DYNAMIC_BROKER_CONFIG")

    def described_topic_configs(self, topic: str) -> dict[str, str]:
        """Return the dynamic configs of a topic as a broker reports them."""
        return self._described(kafka.admin.ConfigResourceType.TOPIC, topic, "DYNAMIC_TOPIC_CONFIG")

    def set_configs_as_a_user(
        self,
        configs: Mapping[str, str | None],
        *,
        broker_id: int | None = None,
        topic: str | None = None,
        default: bool = False,
    ) -> None:
        """Set dynamic configs as another operator would; None deletes a key.

        Args:
            configs: key -> new value.
            broker_id: set configs of this broker.
            topic: set configs of this topic.
            default: set the cluster-wide default of broker configs.

        Raises:
            Invalid: not exactly one of `broker_id`, `topic` and `default` is given, or Kafka refuses the configs.
        """
        if [broker_id is not None, topic is not None, default].count(True) != 1:
            given = f"broker_id={broker_id}, topic={topic} and default={default}"
            raise Invalid(f"Got {given}. Fix: give exactly one of them.")
        kind = kafka.admin.ConfigResourceType.TOPIC if topic else kafka.admin.ConfigResourceType.BROKER
        name = topic or ("" if default else str(broker_id))
        entries = [(key, _DELETE if value is None else _SET, value) for key, value in configs.items()]
        request = kafka.protocol.admin.IncrementalAlterConfigsRequest(
            resources=[(kind, name, entries)], validate_only=False
        )
        # The client's own method refuses `<default>`, whose name on the wire is empty.
        response = self._call_admin(lambda admin: admin._manager.run(admin._manager.send, request, broker_id))
        if refused := [result.error_message for result in response.responses if result.error_code]:
            raise Invalid(f"Kafka refuses {dict(configs)}: {refused}")

    def described_sources(self, broker_id: int) -> dict[str, tuple[str | None, str]]:
        """Return every config of a broker as that broker reports it: key -> (effective value, its source).

        A source is DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, STATIC_BROKER_CONFIG or DEFAULT_CONFIG. The
        value of a sensitive config is None.
        """
        entries = self._entries(kafka.admin.ConfigResourceType.BROKER, str(broker_id), "all")
        return {key: (entry["value"], entry["config_source"]) for key, entry in entries.items()}

    def _described(self, kind: Any, name: str, source: str) -> dict[str, str]:
        entries = self._entries(kind, name, "modified")
        return {key: entry["value"] for key, entry in entries.items() if entry["config_source"] == source}

    def _entries(self, kind: Any, name: str, config_filter: str) -> dict[str, dict[str, Any]]:
        resource = kafka.admin.ConfigResource(kind, name)
        described = self._call_admin(lambda admin: admin.describe_configs([resource], config_filter=config_filter))
        entries: dict[str, dict[str, Any]] = described.get(kind.name.lower(), {}).get(name, {})
        return entries

    # Log directories

    def log_bytes(self, broker_id: int) -> dict[Partition, int]:
        """Return partition -> size of its log on a broker, the sum of its segment files.

        It works for stopped brokers, too. It skips replicas under deletion.
        """
        bytes_of_logs: dict[Partition, int] = {}
        with suppress(FileNotFoundError), os.scandir(self.brokers[broker_id].logs) as directories:
            for entry in directories:
                if named := _LOG_DIRECTORY.match(entry.name):
                    bytes_of_logs[named["topic"], int(named["partition"])] = _bytes_of_segments(entry.path)
        return bytes_of_logs

    # Internals

    @abstractmethod
    def _is_registered(self, broker_id: int) -> bool:
        """Whether the broker is registered with the controller."""

    def _running(self) -> set[int]:
        return {broker_id for broker_id, broker in self.brokers.items() if broker.running}

    def _knows(self, broker_id: int, topic: str) -> bool:
        """Whether the metadata of a broker contains the topic. It follows the controller with a delay."""
        request = kafka.protocol.metadata.MetadataRequest(
            topics=[kafka.protocol.metadata.MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=False,
        )
        response = self._call_admin(lambda admin: admin._manager.run(admin._manager.send, request, broker_id))
        return not response.topics[0].error_code

    def _wait_until_serving(self, broker_id: int, within_seconds: float) -> None:
        # A broker accepts connections a moment after its registration.
        broker = self.brokers[broker_id]
        broker.wait_until(lambda: self._is_registered(broker_id) and broker.listening, within_seconds)

    def _wait_until_known(self, within_seconds: float) -> None:
        running = self._running()

        def all_registered() -> bool:
            for broker_id in running:
                if not self.brokers[broker_id].running:
                    raise TimeoutError(f"broker {broker_id} has ended.\n{self.brokers[broker_id].log_end()}")
            try:
                cluster = self._call_admin(lambda admin: admin.describe_cluster())
            except Unavailable:
                return False
            return {broker["broker_id"] for broker in cluster["brokers"] if not broker.get("is_fenced")} >= running

        wait_until(all_registered, within_seconds, f"all brokers of {sorted(running)} are in the cluster metadata")

    def _call_admin(self, request: Callable[[Any], T]) -> T:
        """Return the result of a request to the admin client.

        After an error the next request gets a new client, because an old one keeps using brokers that are down.
        Connection errors are retried, because the client picks any broker that it knows of.
        """
        with self._admin_lock:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._admin = self._admin or self._new_admin()
                    return request(self._admin)
                except kafka.errors.KafkaError as error:
                    self._close_admin()
                    unconnected = (
                        kafka.errors.KafkaConnectionError,
                        kafka.errors.NodeNotReadyError,
                        kafka.errors.UnknownBrokerIdError,  # the broker has just started
                    )
                    if attempt == ATTEMPTS or not isinstance(error, unconnected):
                        problem = f"A request to the brokers {self.bootstrap_servers} failed: {error!r}."
                        raise Unavailable(problem) from error
                time.sleep(0.3)
        raise AssertionError("unreachable")

    def _new_admin(self) -> Any:
        running = [broker.address for broker in self.brokers.values() if broker.running]
        if not running:
            raise Unavailable("No broker of the cluster is running. Fix: start one.")
        return kafka.KafkaAdminClient(
            bootstrap_servers=running,
            bootstrap_timeout_ms=int(REQUEST_SECONDS * 1000),
            request_timeout_ms=int(REQUEST_SECONDS * 1000),
            **CLIENT,
        )

    def _close_admin(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def java_command(version: str, heap_megabytes: int = 256) -> list[str]:
    """Return a Java command with the jars of a Kafka release; append a main class to run it.

    Raises:
        Missing: Java is missing or too old.
        Unavailable: the download of the jars failed.
    """
    java, jars = str(require_java()), kafka_jars(version)
    memory = ("-Xms64m", f"-Xmx{heap_megabytes}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    command = [java, *memory, "-Djava.awt.headless=true", "-cp", f"{jars}/*"]
    return [*command, *class_archive_options(jars.with_name(f"{jars.name}.jsa"), partial(_run_once, command))]


def _run_once(command: Sequence[str], options: Sequence[str], directory: Path) -> None:
    """Start a broker that is its own controller with these Java options, and stop it."""
    broker, controller = free_ports(2)
    properties = {
        **PROPERTIES,
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    server = KafkaServer("Kafka", directory / "broker", broker, [*command, *options], properties)
    format_broker(server.logs, 1, new_kafka_uuid())
    with server:
        server.wait_until(lambda: "Kafka Server started" in server.log_end(), 120.0)
        server.terminate()
        server.wait(DUMP_SECONDS)


def format_broker(logs: Path, node_id: int, cluster_id: str) -> None:
    """Format a broker's log directory like `StorageTool format`, without starting Java."""
    logs.mkdir(exist_ok=True)
    properties = {"version": 1, "node.id": node_id, "cluster.id": cluster_id, "directory.id": new_kafka_uuid()}
    path = logs / "meta.properties"
    if not path.exists():
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def new_kafka_uuid() -> str:
    """Return a new id in Kafka's encoding, which never begins with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _property_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bytes_of_segments(directory: str) -> int:
    total = 0
    with suppress(FileNotFoundError), os.scandir(directory) as files:  # deleted during the scan
        for file in files:
            if file.name.endswith(".log"):
                total += file.stat().st_size
    return total


def wait_until(true: Callable[[], bool], within_seconds: float, what: str) -> None:
    """Return once `true` returns true.

    Args:
        true: the condition.
        within_seconds: deadline.
        what: the condition as a clause, for the error message.

    Raises:
        TimeoutError: the condition is still false at the deadline.
    """
    deadline = time.monotonic() + within_seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Timed out after {within_seconds:.0f} s waiting until {what}.")
        time.sleep(0.05)
