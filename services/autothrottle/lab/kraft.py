"""A real Kafka cluster without ZooKeeper: KRaft, with one controller that is a process of its own."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.lab.kafka import SESSION_SECONDS, START_SECONDS, KafkaCluster, Partition, PartitionState
from autothrottle.lab.kafka_server import HERE, PROPERTIES, Broker, KafkaServer, Place, java_command
from autothrottle.lab.metadata_log import MetadataLog, MetadataRecord
from autothrottle.lab.processes import free_ports

CONTROLLER_ID = 9000
"""Node id of the controller, which shares its numbers with the brokers."""

_FORMAT_SECONDS = 300.0

_PROPERTIES: Mapping[str, object] = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "broker.heartbeat.interval.ms": 1000,
    "broker.session.timeout.ms": int(SESSION_SECONDS * 1000),
    "initial.broker.registration.timeout.ms": 300_000,
    # One segment and no snapshot, so that the log tells everything from the beginning.
    "metadata.log.max.snapshot.interval.ms": 0,
    "metadata.log.max.record.bytes.between.snapshots": 2**40,
}


class KraftCluster(KafkaCluster):
    """One controller and brokers that register with it."""

    def __init__(
        self,
        directory: Path,
        broker_ids: Sequence[int] = (1001, 1002, 1003),
        version: str = "4.3.1",
        broker_properties: Mapping[str, object] | None = None,
        heap_megabytes: int = 256,
        places: Mapping[int, Place] | None = None,
    ) -> None:
        """Prepare the controller and the brokers; `broker_properties` beat the lab's own on the brokers.

        Args:
            places: broker id, or `CONTROLLER_ID` -> where it runs; those left out run on 127.0.0.1.

        Raises:
            Invalid: a broker has the controller's id.
        """
        if CONTROLLER_ID in broker_ids:
            raise Invalid(f"Broker id {CONTROLLER_ID} is the controller's. Fix: choose another one.")
        command = java_command(version, heap_megabytes)
        port, *ports = free_ports(1 + len(broker_ids))
        given = {broker_id: (places or {}).get(broker_id, HERE) for broker_id in (CONTROLLER_ID, *broker_ids)}
        controller = given[CONTROLLER_ID]
        voter = f"{CONTROLLER_ID}@{controller.host}:{port}"
        self._cluster_id = _kafka_uuid()
        common = {**PROPERTIES, **_PROPERTIES, "controller.quorum.voters": voter}
        self.controller = _controller(directory / "controller", port, command, common, controller)
        """Its `process` may be frozen and killed."""
        brokers = [
            Broker(
                broker_id,
                directory / f"broker-{broker_id}",
                port,
                command,
                {"node.id": broker_id, "process.roles": "broker", **common, **(broker_properties or {})},
                given[broker_id],
            )
            for broker_id, port in zip(broker_ids, ports, strict=True)
        ]
        super().__init__(directory, version, brokers)
        self.metadata = MetadataLog(self.controller.logs / "__cluster_metadata-0")
        """What the controller has written."""

    @property
    def bootstrap_controllers(self) -> str:
        """The controller, `host:port`, for admin clients that talk to it directly (KIP-919)."""
        return self.controller.address

    def start(self, within_seconds: float = START_SECONDS) -> None:
        """Start the controller and all brokers; return when every broker is registered and known to the others."""
        began = time.monotonic()
        for broker in self.brokers.values():
            _mark(broker.logs, broker.broker_id, self._cluster_id)
            broker.process.start()  # it waits for the controller
        self._format()
        self.controller.process.start()
        self.controller.wait_until(lambda: self.controller.listening, within_seconds)
        super().start(within_seconds)
        self.start_seconds = time.monotonic() - began

    def close(self) -> None:
        """Kill all brokers and the controller, and remove their directories."""
        super().close()
        self.controller.close()

    def metadata_records(self, after_offset: int = -1) -> list[MetadataRecord]:
        """Return what the controller wrote after an offset, in the order in which it became true."""
        return self.metadata.records(after_offset)

    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        """Return the state of all partitions, of all topics by default, as the controller wrote it."""
        states = self.metadata.partitions()
        names = {topic for topic, _ in states} if topics is None else set(topics)
        return {partition: state for partition, state in states.items() if partition[0] in names}

    def stored_configs(self) -> dict[str, dict[str, str]]:
        """Return every dynamic config of a broker or topic, as the controller's log has it."""
        return self.metadata.configs()

    def _is_registered(self, broker_id: int) -> bool:
        return broker_id in self.metadata.brokers()

    def _is_topic(self, name: str) -> bool:
        return any(topic == name for topic, _ in self.metadata.partitions())

    def _format(self) -> None:
        """Make the controller's log directory, with the release's own level of features in it."""
        if (self.controller.logs / "meta.properties").exists():
            return
        arguments = ["format", f"--cluster-id={self._cluster_id}", "--config", str(self.controller.configuration)]
        done = subprocess.run(
            [*self.controller.command, "kafka.tools.StorageTool", *arguments],
            capture_output=True,
            text=True,
            timeout=_FORMAT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise Unavailable(f"{self.controller.logs} could not be formatted: {done.stdout}{done.stderr}")


def _controller(
    directory: Path, port: int, command: Sequence[str], common: Mapping[str, object], place: Place
) -> KafkaServer:
    own = {"node.id": CONTROLLER_ID, "process.roles": "controller", "listeners": f"CONTROLLER://{place.host}:{port}"}
    return KafkaServer("the controller", directory, port, command, {**own, **common}, place)


def _mark(logs: Path, node_id: int, cluster_id: str) -> None:
    """Make a broker's log directory as `StorageTool format` does, without another Java for it."""
    logs.mkdir(exist_ok=True)
    properties = {"version": 1, "node.id": node_id, "cluster.id": cluster_id, "directory.id": _kafka_uuid()}
    marked = logs / "meta.properties"
    if not marked.exists():
        marked.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def _kafka_uuid() -> str:
    """Return a new id as Kafka writes them, which never begins with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
