"""Starts and cancels reassignments through Kafka's admin API (KIP-455): KRaft mode, and ZooKeeper mode from 2.4 on.

Kafka knows nothing of our terms: the term is checked in our ZooKeeper right before, and the request ends before our
session can.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.zookeeper.ledger import Ledger
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import Unavailable
from autothrottle.core.topology import TopicPartition

_SHARE_OF_SESSION = 2 / 3
"""A write ends so long after the check of the term began; a leader without contact steps down as early."""


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
        self._kafka, self._ledger = kafka, Ledger(client, own)
        self._longest_write = session_timeout.total_seconds() * _SHARE_OF_SESSION

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        """Let Kafka move partitions; return those that it refused."""
        deadline = time.monotonic() + min(timeout.total_seconds(), self._longest_write)
        self._ledger.check_term(fence, deadline)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable("the check of the term took all of the time: nothing was submitted; try again")
        refused = self._kafka.alter_reassignments(targets, timeout=timedelta(seconds=left))
        return {row: str(error) for row, error in refused.items()}
