"""Starts reassignments through ZooKeeper, as Kafka's old tools do, in a transaction that checks the term.

Kafka accepts one list at a time in `/admin/reassign_partitions` and offers no way to cancel it there.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import ANSWER_LOST, read_after_outage, term_check, translated_errors
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.core.operators.submission import Targets
from autothrottle.ports.kafka import Refusals, Term

MAX_LIST_BYTES = 1_000_000
"""ZooKeeper's limit for one request, less the overhead around the list."""

_NOTHING = "nothing was submitted"


class ZooKeeperReassigner:
    """A `Reassigner` on `/admin/reassign_partitions`. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths, own: OwnPaths) -> None:
        self._client, self._path, self._own = client, kafka.reassign_partitions, own

    def submit_reassignments(self, term: Term, targets: Targets, timeout: timedelta) -> Refusals:
        """Submit reassignments. Kafka refuses none here, so the result is always empty."""
        self._create(term.fence, _formatted(targets), time.monotonic() + timeout.total_seconds())
        return {}

    def cancel_reassignments(self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta) -> Refusals:
        raise Invalid(
            "a reassignment cannot be cancelled through ZooKeeper, only through the admin API. Fix: "
            "kafka-reassign-partitions.sh --bootstrap-server ... --cancel, or --kafka-backend admin"
        )

    def _create(self, fence: int, data: bytes, deadline: float) -> None:
        with translated_errors("checking the term"):
            check = term_check(self._client, self._own, fence, seconds_left(deadline), _NOTHING)
        transaction = check.begin(self._client)
        transaction.create(self._path, data)
        try:
            results = transaction.commit_async().get(timeout=seconds_left(deadline))
        except ANSWER_LOST as error:
            # If the list is not there, it was never written, or Kafka has already processed it.
            if self._is_listed(data, deadline):
                return
            raise Unavailable("lost the connection to ZooKeeper: it is unknown whether it was submitted") from error
        (created,) = check.require(results, _NOTHING)
        # An existing list that equals ours is that of a first attempt, whose answer was lost.
        if isinstance(created, NodeExistsError) and not self._is_listed(data, deadline):
            raise Conflict(
                f"a reassignment that was started through ZooKeeper is in progress ({self._path}), and Kafka accepts "
                "only one at a time there; wait until it is complete"
            )
        if isinstance(created, Exception) and not isinstance(created, NodeExistsError):
            raise Unavailable(
                f"ZooKeeper refuses to create {self._path}: {created!r}; check that zk-prefix is Kafka's chroot"
            )

    def _is_listed(self, data: bytes, deadline: float) -> bool:
        """Whether the list of reassignments is this one, as soon as ZooKeeper answers again."""
        return bool(read_after_outage(self._client, lambda: self._current(deadline) == data, deadline))

    def _current(self, deadline: float) -> bytes | None:
        try:
            data: bytes = self._client.get_async(self._path).get(timeout=seconds_left(deadline))[0]
        except NoNodeError:
            return None
        return data


def _formatted(targets: Targets) -> bytes:
    rows = [{"topic": t, "partition": p, "replicas": list(to)} for (t, p), to in targets.items()]
    data = compact_json({"version": 1, "partitions": rows})
    if len(data) > MAX_LIST_BYTES:
        fitting = len(rows) * MAX_LIST_BYTES // len(data)
        raise Invalid(
            f"{len(rows)} partitions are {len(data)} bytes, more than ZooKeeper accepts at once "
            f"({MAX_LIST_BYTES}); submit at most about {fitting} partitions at a time"
        )
    return data
