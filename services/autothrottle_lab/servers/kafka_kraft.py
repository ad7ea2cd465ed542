"""A real Kafka cluster in KRaft mode, with one controller in its own process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from autothrottle.core.errors import Invalid, Unavailable
from autothrottle_lab.observation.metadata_log import MetadataLog
from autothrottle_lab.servers.kafka import (
    LOCAL,
    PROPERTIES,
    SESSION_SECONDS,
    START_SECONDS,
    KafkaCluster,
    KafkaServer,
    Partition,
    PartitionState,
    Place,
    format_broker,
    java_command,
    new_kafka_uuid,
)
from autothrottle_lab.servers.processes import free_ports, run_command

CONTROLLER_ID = 9000
"""Node id of the controller; controllers and brokers share one range of ids."""

_FORMAT_SECONDS = 300.0

_PROPERTIES: Mapping[str, object] = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "broker.heartbeat.interval.ms": 1000,
    "broker.session.timeout.ms": int(SESSION_SECONDS * 1000),
    "initial.broker.registration.timeout.ms": 300_000,
    # One segment and no snapshot, so that the log contains the whole history.
    "metadata.log.max.snapshot.interval.ms": 0,
    "metadata.log.max.record.bytes.between.snapshots": 2**40,
}


class KraftCluster(KafkaCluster):
    """One controller and its brokers."""

    def __init__(
        self,
        directory: Path,
        broker_ids: Sequence[int] = (1001, 1002, 1003),
        version: str = "4.3.1",
        broker_properties: Mapping[str, object] | None = None,
        heap_megabytes: int = 256,
        places: Mapping[int, Place] | None = None,
        racks: Mapping[int, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """Prepare the controller and the brokers.

        Args:
            directory: parent of their directories.
            broker_ids: node ids of the brokers.
            version: Kafka release.
            broker_properties: broker configs that override the lab's.
            heap_megabytes: Java heap of each process.
            places: broker id or `CONTROLLER_ID` -> where it runs; default: 127.0.0.1.
            racks: broker id -> `broker.rack`; default: none.
            java_options: more options of Java, of each process.

        Raises:
            Invalid: a broker has the controller's id.
        """
        if CONTROLLER_ID in broker_ids:
            raise Invalid(f"Broker id {CONTROLLER_ID} is the controller's. Fix: choose another one.")
        command, places = [*java_command(version, heap_megabytes), *java_options], places or {}
        (port,), place = free_ports(1), places.get(CONTROLLER_ID, LOCAL)
        self._cluster_id = new_kafka_uuid()
        common = {**_PROPERTIES, "controller.quorum.voters": f"{CONTROLLER_ID}@{place.host}:{port}"}
        self.controller = KafkaServer(
            "the controller",
            directory / "controller",
            port,
            command,
            {"node.id": CONTROLLER_ID, "process.roles": "controller", **PROPERTIES, **common},
            place,
            listener="CONTROLLER",
        )
        """Tests may freeze or kill it."""
        properties: dict[int, dict[str, object]] = {
            broker_id: {"node.id": broker_id, "process.roles": "broker", **common, **(broker_properties or {})}
            for broker_id in broker_ids
        }
        for broker_id, rack in (racks or {}).items():
            properties[broker_id]["broker.rack"] = rack
        super().__init__(directory, version, command, properties, places)
        self.metadata = MetadataLog(self.controller.logs / "__cluster_metadata-0")
        """The metadata log of the controller."""

    @property
    def bootstrap_controllers(self) -> str:
        """Address of the controller, `host:port`, for admin clients that connect to it directly (KIP-919)."""
        return self.controller.address

    def start(self, within_seconds: float = START_SECONDS) -> None:
        """Start the controller and all brokers; return when every broker's metadata lists all of them."""
        self._format()
        self.controller.start()
        self.controller.wait_until(lambda: self.controller.listening, within_seconds)
        # The brokers start after it: without a controller they poll in a busy loop, which doubles their CPU time.
        for broker_id, broker in self.brokers.items():
            format_broker(broker.logs, broker_id, self._cluster_id)
            broker.start()
        super().start(within_seconds)

    def close(self) -> None:
        """Kill the brokers and the controller, and remove their directories."""
        super().close()
        self.controller.close()

    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        """Return the state of all partitions, of all topics by default, as the controller wrote it."""
        states = self.metadata.partitions()
        names = {topic for topic, _ in states} if topics is None else set(topics)
        return {partition: state for partition, state in states.items() if partition[0] in names}

    def stored_configs(self) -> dict[str, dict[str, str]]:
        return self.metadata.configs()

    def _is_registered(self, broker_id: int) -> bool:
        return broker_id in self.metadata.brokers()

    def _format(self) -> None:
        """Format the controller's log directory with the release's default feature level."""
        if (self.controller.logs / "meta.properties").exists():
            return
        arguments = ["format", f"--cluster-id={self._cluster_id}", "--config", str(self.controller.configuration)]
        command = [*self.controller.command, "kafka.tools.StorageTool", *arguments]
        status, output = run_command(command, _FORMAT_SECONDS)
        if status != 0:
            raise Unavailable(f"formatting {self.controller.logs} failed: {output}")
