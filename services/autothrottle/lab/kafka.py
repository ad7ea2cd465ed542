"""A real Kafka cluster on 127.0.0.1: N brokers, each a process of its own.

`KafkaCluster` is what both kinds have in common: `kafka_zookeeper.ZooKeeperModeCluster` keeps its metadata in
ZooKeeper, `kraft.KraftCluster` with a controller of its own. It starts and ends brokers, reassigns partitions,
plays the other operator who sets configs, and says what the brokers themselves report, what the controller has
written and what the logs hold. It is a test's own pair of eyes: with the adapters that it helps to test it shares
kafka-python and the options of its clients, and no more.
"""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from autothrottle.adapters.kafka_admin.connections import CLIENT
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.lab.kafka_server import Broker

with warnings.catch_warnings():
    # It reads its schemas through a function of importlib.resources that is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors
    import kafka.protocol.admin

__all__ = [
    "CLIENT",
    "DEFAULT",
    "SESSION_SECONDS",
    "START_SECONDS",
    "KafkaCluster",
    "Partition",
    "PartitionState",
    "kafka",
    "wait_until",
]

T = TypeVar("T")
Partition = tuple[str, int]
"""Topic and partition number."""

SESSION_SECONDS = 6.0
"""Session of a broker with ZooKeeper or its controller: so long the cluster believes that a killed broker lives."""

DEFAULT = "<default>"
"""What Kafka calls the dynamic configs that hold for every broker without one of its own."""

START_SECONDS = 300.0
"""How long all brokers may take to start; 6 to 12 s on two cores that are free."""

REQUEST_SECONDS = 15.0
"""Deadline of one request to the brokers."""

ATTEMPTS = 3
"""So often a question is asked whose broker could not be reached."""

_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

_LOG_DIRECTORY = re.compile(r"^(?P<topic>.+)-(?P<partition>\d+)$")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where a partition is, as the controller wrote it."""

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


class KafkaCluster(ABC):
    """Brokers that know one another; a context manager that starts and ends them.

    All methods may be called from any thread. Ended brokers are killed, and what the cluster wrote into `directory`
    is removed.
    """

    def __init__(self, directory: Path, version: str, brokers: Iterable[Broker]) -> None:
        self.directory = directory
        self.version = version
        """Of Kafka: `4.3.1`."""
        self.brokers = {broker.broker_id: broker for broker in brokers}
        self.start_seconds = 0.0
        """How long the last `start` of all brokers took."""
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    def __enter__(self) -> Self:
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
        return ",".join(broker.address for broker in self.brokers.values())

    def start(self, within_seconds: float = START_SECONDS) -> None:
        """Start all brokers at once and return when every one is registered and known to the others."""
        began = time.monotonic()
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
        for broker in self.brokers.values():
            broker.process.kill()
        for broker in self.brokers.values():
            broker.close()

    def start_broker(self, broker_id: int, within_seconds: float = 120.0) -> None:
        """Start a broker that has ended, with its data, and return when the others know it.

        After a kill this waits first until its session is over.
        """
        broker = self.brokers[broker_id]
        if broker.process.running:
            return
        wait_until(lambda: not self._is_registered(broker_id), within_seconds, f"broker {broker_id} is forgotten")
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
        """Delete a topic and return when the controller knows no more of it."""
        self._ask(lambda admin: admin.delete_topics([name]))
        wait_until(lambda: not self._is_topic(name), within_seconds, f"topic {name} is deleted")

    def reassign_through_bootstrap(self, replicas: Mapping[Partition, Sequence[int] | None]) -> None:
        """Start a reassignment through the controller (KIP-455); None cancels that of a partition.

        Raises:
            Invalid: the controller refuses one of the partitions; the others have been started.
        """
        wanted = {kafka.TopicPartition(*p): None if to is None else list(to) for p, to in replicas.items()}
        told = self._ask(lambda admin: admin.alter_partition_reassignments(wanted))
        if refused := {f"{p.topic}-{p.partition}": why.__name__ for p, why in told.items() if why}:
            raise Invalid(f"The controller refuses to reassign {refused}.")

    def wait_until_reassigned(self, within_seconds: float = 60.0) -> None:
        """Return when nothing is being reassigned."""
        wait_until(lambda: not self.reassigning(), within_seconds, "the reassignment is done")

    def wait_until_in_sync(self, topics: Iterable[str], within_seconds: float = 60.0) -> None:
        """Return when every partition of the topics has a leader and all its replicas are in sync."""
        names = list(topics)

        def in_sync() -> bool:
            states = self.partitions(names)
            return {topic for topic, _ in states} == set(names) and all(state.in_sync for state in states.values())

        wait_until(in_sync, within_seconds, f"{names} are in sync")

    @abstractmethod
    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        """Return the state of all partitions, of all topics by default, as the controller wrote it."""

    def reassigning(self) -> set[Partition]:
        """Return the partitions under reassignment, however it was started, also those not begun yet."""
        return {p for p, state in self.partitions().items() if state.adding_replicas or state.removing_replicas}

    # Configs

    @abstractmethod
    def stored_configs(self) -> dict[str, dict[str, str]]:
        """Return every dynamic config as the controller keeps it: byte for byte, sensitive values too.

        Keys are `brokers/1001`, `brokers/<default>` and `topics/t`; an entity without any config is not there.
        """

    def described_configs(self, broker_id: int) -> dict[str, str]:
        """Return the dynamic configs of a broker as that broker itself reports them; {} when it has none."""
        return self._described(kafka.admin.ConfigResourceType.BROKER, str(broker_id), "DYNAMIC_BROKER_CONFIG")

    def described_topic_configs(self, topic: str) -> dict[str, str]:
        """Return the configs that are set on a topic as a broker reports them; {} when none is."""
        return self._described(kafka.admin.ConfigResourceType.TOPIC, topic, "DYNAMIC_TOPIC_CONFIG")

    def set_configs_as_a_user(
        self,
        configs: Mapping[str, str | None],
        *,
        broker_id: int | None = None,
        topic: str | None = None,
        default: bool = False,
    ) -> None:
        """Set dynamic configs as any other operator would; None deletes a key.

        They are those of one broker, of one topic, or with `default` those of every broker without its own.

        Raises:
            Invalid: not exactly one of `broker_id`, `topic` and `default` is given, or Kafka refuses.
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
        # The client's own method refuses `<default>`, whose name is empty.
        told = self._ask(lambda admin: admin._manager.run(admin._manager.send, request, broker_id))
        if refused := [answer.error_message for answer in told.responses if answer.error_code]:
            raise Invalid(f"Kafka refuses {dict(configs)}: {refused}")

    def described_sources(self, broker_id: int) -> dict[str, tuple[str | None, str]]:
        """Return every config of a broker as that broker reports it: key -> (value, source in force).

        A source is DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, STATIC_BROKER_CONFIG or DEFAULT_CONFIG; the
        value of a sensitive config is None.
        """
        entries = self._entries(kafka.admin.ConfigResourceType.BROKER, str(broker_id), "all")
        return {key: (entry["value"], entry["config_source"]) for key, entry in entries.items()}

    def _described(self, kind: Any, name: str, source: str) -> dict[str, str]:
        entries = self._entries(kind, name, "modified")
        return {key: entry["value"] for key, entry in entries.items() if entry["config_source"] == source}

    def _entries(self, kind: Any, name: str, config_filter: str) -> dict[str, dict[str, Any]]:
        resource = kafka.admin.ConfigResource(kind, name)
        told = self._ask(lambda admin: admin.describe_configs([resource], config_filter=config_filter))
        entries: dict[str, dict[str, Any]] = told.get(kind.name.lower(), {}).get(name, {})
        return entries

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

    @abstractmethod
    def _is_registered(self, broker_id: int) -> bool:
        """Whether the controller believes that a broker lives."""

    @abstractmethod
    def _is_topic(self, name: str) -> bool:
        """Whether there is anything of a topic."""

    def _wait_until_serving(self, broker: Broker, within_seconds: float) -> None:
        # A broker takes connections a moment after it has registered.
        broker.wait_until(lambda: self._is_registered(broker.broker_id) and broker.listening, within_seconds)

    def _wait_until_known(self, within_seconds: float) -> None:
        running = {broker_id for broker_id, broker in self.brokers.items() if broker.process.running}

        def known() -> bool:
            for broker_id in running:
                if not self.brokers[broker_id].process.running:
                    raise TimeoutError(f"broker {broker_id} has ended.\n{self.brokers[broker_id].log_end()}")
            try:
                told = self._ask(lambda admin: admin.describe_cluster())
            except Unavailable:
                return False
            return {broker["broker_id"] for broker in told["brokers"] if not broker.get("is_fenced")} >= running

        wait_until(known, within_seconds, f"the brokers {sorted(running)} know one another")

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
                    unconnected = (
                        kafka.errors.KafkaConnectionError,
                        kafka.errors.NodeNotReadyError,
                        kafka.errors.UnknownBrokerIdError,  # one that was just started
                    )
                    if attempt == ATTEMPTS or not isinstance(error, unconnected):
                        problem = f"The brokers {self.bootstrap_servers} answer {error!r}."
                        raise Unavailable(problem) from error
                time.sleep(0.3)
        raise AssertionError("unreachable")

    def _new_admin(self) -> Any:
        running = [broker.address for broker in self.brokers.values() if broker.process.running]
        if not running:
            raise Unavailable("All brokers of the cluster have ended. Fix: start one.")
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


def wait_until(true: Callable[[], bool], within_seconds: float, what: str) -> None:
    """Return once it is true.

    Raises:
        TimeoutError: it is not in time; says what was waited for.
    """
    deadline = time.monotonic() + within_seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"After {within_seconds:.0f} s it is still not so that {what}.")
        time.sleep(0.05)
