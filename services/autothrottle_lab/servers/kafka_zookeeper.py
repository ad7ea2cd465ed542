"""A real Kafka cluster in ZooKeeper mode: Kafka 3.9 and older."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from autothrottle.core.errors import Conflict
from autothrottle_lab.emulators.kafka import format_reassignment
from autothrottle_lab.servers.kafka import (
    SESSION_SECONDS,
    START_SECONDS,
    KafkaCluster,
    Partition,
    PartitionState,
    java_command,
)

_PROPERTIES: Mapping[str, object] = {
    "broker.id.generation.enable": False,  # allows explicit ids above 1000
    "password.encoder.secret": "lab",  # required for sensitive configs
    "zookeeper.session.timeout.ms": int(SESSION_SECONDS * 1000),
    "zookeeper.connection.timeout.ms": 30_000,
    "controlled.shutdown.retry.backoff.ms": 500,
}


class ZooKeeperModeCluster(KafkaCluster):
    """Brokers that share one ZooKeeper and chroot. Their znodes stay after the end."""

    def __init__(
        self,
        zookeeper_connect: str,
        directory: Path,
        broker_ids: Sequence[int] = (1001, 1002, 1003),
        chroot: str = "",
        version: str = "3.9.2",
        broker_properties: Mapping[str, object] | None = None,
    ) -> None:
        """Prepare the brokers.

        Args:
            zookeeper_connect: connection string without a chroot.
            directory: parent of the brokers' directories.
            broker_ids: ids of the brokers.
            chroot: "" or "/...".
            version: Kafka release.
            broker_properties: broker configs that override the lab's.
        """
        self.zookeeper_connect = zookeeper_connect + chroot
        """Connection string with the chroot, for brokers and tools."""
        properties = {"zookeeper.connect": self.zookeeper_connect, **_PROPERTIES, **(broker_properties or {})}
        command = java_command(version)
        super().__init__(directory, version, command, {b: {"broker.id": b, **properties} for b in broker_ids}, {})
        self._chroot = chroot
        # Without the chroot, because the first broker creates it.
        self._zookeeper = KazooClient(zookeeper_connect, timeout=10.0)

    def start(self, within_seconds: float = START_SECONDS) -> None:
        """Start all brokers at once; return when all are registered and every broker's metadata lists them."""
        self._zookeeper.start(timeout=60)
        super().start(within_seconds)

    def close(self) -> None:
        """Kill all brokers and remove their directories."""
        self._zookeeper.stop()
        self._zookeeper.close()
        super().close()

    def reassign_through_znode(self, replicas: Mapping[Partition, Sequence[int]]) -> None:
        """Start a reassignment as Kafka's old tools did: write the whole plan to `/admin/reassign_partitions`.

        Raises:
            Conflict: an earlier plan in this znode is in progress.
        """
        try:
            self._zookeeper.create(f"{self._chroot}/admin/reassign_partitions", format_reassignment(replicas))
        except NodeExistsError:
            fix = "Fix: wait until `reassigning()` is empty."
            raise Conflict(f"/admin/reassign_partitions is there already. {fix}") from None

    def reassigning(self) -> set[Partition]:
        plan = self._node("/admin/reassign_partitions")
        return super().reassigning() | {(row["topic"], row["partition"]) for row in plan.get("partitions", [])}

    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        if topics is None:
            topics = self._children("/brokers/topics")
        states: dict[Partition, PartitionState] = {}
        for topic in topics:
            node = self._node(f"/brokers/topics/{topic}")
            for number, replicas in node.get("partitions", {}).items():
                state = self._node(f"/brokers/topics/{topic}/partitions/{number}/state")
                states[topic, int(number)] = PartitionState(
                    replicas=tuple(replicas),
                    adding_replicas=tuple(node.get("adding_replicas", {}).get(number, ())),
                    removing_replicas=tuple(node.get("removing_replicas", {}).get(number, ())),
                    leader=state.get("leader", -1),
                    isr=tuple(state.get("isr", ())),
                )
        return states

    def stored_configs(self) -> dict[str, dict[str, str]]:
        """Return every dynamic config of a broker or topic, as its znode has it; empty configs are absent."""
        entities = [f"{kind}/{name}" for kind in ("brokers", "topics") for name in self._children(f"/config/{kind}")]
        stored = {entity: self._node(f"/config/{entity}").get("config", {}) for entity in sorted(entities)}
        return {entity: config for entity, config in stored.items() if config}

    # Internals

    def _node(self, path: str) -> dict[str, Any]:
        """Return the JSON of a znode; {} if it does not exist."""
        try:
            content, _ = self._zookeeper.get(self._chroot + path)
        except NoNodeError:
            return {}
        value: dict[str, Any] = json.loads(content)
        return value

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._zookeeper.get_children(self._chroot + path))
        except NoNodeError:
            return []

    def _is_registered(self, broker_id: int) -> bool:
        return self._zookeeper.exists(f"{self._chroot}/brokers/ids/{broker_id}") is not None
