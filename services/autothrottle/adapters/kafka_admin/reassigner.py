"""Starts and cancels reassignments through Kafka's admin API (KIP-455): KRaft mode, and ZooKeeper mode from 2.4 on."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.fence import Fence
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.ledger import Ledger
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.ports.kafka import Term

_TOO_LATE = "checking the term took all the time: nothing was submitted; try again"


class AdminReassigner:
    """A `Reassigner` on Kafka's admin API; the term is in our own ZooKeeper. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        """Prepare; this reads and writes nothing.

        Args:
            kafka: executes the reassignments.
            client: the session that holds the term.
            own: path of the term.
            session_timeout: of that session, > 0.
        """
        self._kafka, self._fence = kafka, Fence(Ledger(client, own), session_timeout)

    def submit_reassignments(
        self, term: Term, targets: Mapping[TopicPartition, tuple[int, ...]], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        return self._alter(term, targets, timeout)

    def cancel_reassignments(
        self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        return self._alter(term, dict.fromkeys(partitions), timeout)

    def _alter(
        self, term: Term, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        until = self._fence.admit(term, time.monotonic() + timeout.total_seconds(), _TOO_LATE)
        refused = self._kafka.alter_reassignments(targets, until=until)
        return {row: str(error) for row, error in refused.items()}
