"""A topic for commands that only look: nothing is created, and no record is appended. The type is `UnwrittenTopic`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autothrottle.adapters.kafka_state.topic import Records, ReplicaChange, Topic, TopicRecord
from autothrottle.core.errors import Missing

_ABSENT = "absent"
_END_BYTES = 1_000_000
"""A read with fewer bytes has reached the end of the log: a full one has several times more."""
_POLL_SECONDS = 0.05


class UnwrittenTopic:
    """A `Topic` whose appends come back to this process alone, after all records of the real topic.

    A topic that does not exist is an empty one.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._own: list[bytes] = []

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        with self._lock:
            self._own += values

    def read(self, topic_id: str, offset: int, epoch: int, wait: float, deadline: float) -> Records:
        if topic_id == _ABSENT:
            time.sleep(_POLL_SECONDS)
            answer = Records((), offset, 0)
        else:
            answer = self._topic.read(topic_id, offset, epoch, min(wait, _POLL_SECONDS), deadline)
        if sum(len(record.value) for record in answer.records) >= _END_BYTES or answer.throttle_seconds:
            return answer
        with self._lock:
            own, self._own = self._own, []
        milliseconds = time.time_ns() // 1_000_000
        # They take no place in the log, so that the next read does not miss a record of it.
        last_epoch = answer.records[-1].epoch if answer.records else epoch
        echoes = (TopicRecord(answer.next_offset - 1, milliseconds, value, last_epoch) for value in own)
        return replace(answer, records=[*answer.records, *echoes])

    def locate(self, deadline: float) -> tuple[str, int]:
        try:
            return self._topic.locate(deadline)
        except Missing:
            return _ABSENT, 0

    def create(self, deadline: float) -> None:
        """Nothing: `locate` does not miss the topic."""

    def risks(self, deadline: float) -> Mapping[str, str]:
        """Return none: who looks reports them."""
        return {}

    def fetch_repair(self, deadline: float, is_stuck: bool) -> ReplicaChange | None:
        """Return None: who looks repairs nothing."""
        return None

    def change_replicas(self, change: ReplicaChange, deadline: float) -> Sequence[int]:
        """Nothing."""
        return change.replicas

    def delete_before(self, offset: int, deadline: float) -> None:
        """Nothing."""

    def close(self) -> None:
        self._topic.close()
