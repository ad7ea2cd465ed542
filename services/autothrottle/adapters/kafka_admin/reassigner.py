"""Starts and cancels reassignments through Kafka's admin API (KIP-455): KRaft mode, and ZooKeeper mode from 2.4 on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.fence import Fence
from autothrottle.adapters.zookeeper.ledger import Ledger
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.topology import TopicPartition

_TOO_LATE = "the check of the term took all of the time: nothing was submitted; try again"


class AdminReassigner:
    """A `Reassigner` on Kafka's admin API; the term is in our own ZooKeeper. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        """Prepare; nothing is read or written.

        Args:
            kafka: who moves partitions.
            client: the session that holds the term.
            own: where the term is.
            session_timeout: of that session, > 0.
        """
        self._kafka, self._fence = kafka, Fence(Ledger(client, own), session_timeout)

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        """Let Kafka move partitions; return those that it refused."""
        until = self._fence.passed(fence, time.monotonic() + timeout.total_seconds(), _TOO_LATE)
        refused = self._kafka.alter_reassignments(targets, until=until)
        return {row: str(error) for row, error in refused.items()}
