"""Starts reassignments through ZooKeeper, as Kafka's old tools did, in a transaction that checks the term.

Kafka takes one list at a time, in `/admin/reassign_partitions`, and cancels nothing there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.deadlines import seconds_left
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.errors import Conflict, Invalid, NotLeader, Unavailable
from autothrottle.core.topology import TopicPartition

MAX_LIST_BYTES = 1_000_000
"""What ZooKeeper takes in one request, less what stands around the list."""

_LOST = (KazooException, KazooTimeoutError)

_RETRY_SECONDS = 0.05


class ZooKeeperReassigner:
    """A `Reassigner` on `/admin/reassign_partitions`. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths, own: OwnPaths) -> None:
        self._client, self._path, self._term = client, kafka.reassign_partitions, own.term

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        """Let Kafka move partitions; it refuses none by itself here."""
        deadline = time.monotonic() + timeout.total_seconds()
        started = {row: to for row, to in targets.items() if to is not None}
        if len(started) < len(targets):
            raise Invalid(
                "a reassignment cannot be cancelled through ZooKeeper: it needs Kafka's admin API. Fix: "
                "kafka-reassign-partitions.sh --bootstrap-server ... --cancel, or --kafka-backend admin"
            )
        self._create(fence, _formatted(started), deadline)
        return {}

    def _create(self, fence: int, data: bytes, deadline: float) -> None:
        transaction = self._client.transaction()
        transaction.check(self._term, fence)
        transaction.create(self._path, data)
        try:
            term_check, created = transaction.commit_async().get(timeout=seconds_left(deadline))
        except _LOST as error:
            self._read_back(data, deadline, error)
            return
        if isinstance(term_check, BadVersionError | NoNodeError):
            raise NotLeader(f"term {fence} is over; nothing was submitted")
        if isinstance(created, NodeExistsError):
            self._demand_ours(data, deadline)
        elif isinstance(created, Exception):
            raise Unavailable(
                f"ZooKeeper refuses to create {self._path}: {created!r}; see whether this is Kafka's tree"
            )

    def _demand_ours(self, data: bytes, deadline: float) -> None:
        """Accept the list that stands if it is this very one: the answer of the first attempt was lost."""
        try:
            standing = self._standing(deadline)
        except _LOST:
            standing = None
        if standing != data:
            raise Conflict(
                f"a reassignment that was started through ZooKeeper is under way ({self._path}), and Kafka takes one "
                "at a time there; wait until it is over"
            )

    def _read_back(self, data: bytes, deadline: float, error: Exception) -> None:
        """Find out what became of a list whose answer was lost, as soon as ZooKeeper answers again."""
        while time.monotonic() < deadline:
            try:
                if self._standing(deadline) == data:
                    return
                break  # it was never there, or Kafka is through with it already
            except _LOST:
                time.sleep(_RETRY_SECONDS)
        raise Unavailable("the connection to ZooKeeper was lost: it is unknown whether it was submitted") from error

    def _standing(self, deadline: float) -> bytes | None:
        # What was on its way is carried out before the sync, or never.
        self._client.sync_async("/").get(timeout=seconds_left(deadline))
        try:
            data: bytes = self._client.get_async(self._path).get(timeout=seconds_left(deadline))[0]
        except NoNodeError:
            return None
        return data


def _formatted(targets: Mapping[TopicPartition, tuple[int, ...]]) -> bytes:
    rows = [{"topic": t, "partition": p, "replicas": list(to)} for (t, p), to in targets.items()]
    data = json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")).encode()
    if len(data) > MAX_LIST_BYTES:
        fitting = len(rows) * MAX_LIST_BYTES // len(data)
        raise Invalid(
            f"{len(rows)} partitions are {len(data)} bytes, more than ZooKeeper takes at once ({MAX_LIST_BYTES}); "
            f"submit at most about {fitting} partitions at a time"
        )
    return data
