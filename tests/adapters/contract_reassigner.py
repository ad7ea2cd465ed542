"""What every `Reassigner` keeps to; inherit and give the fixture `subject`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.errors import NotLeader
from autothrottle.core.topology import TopicPartition
from autothrottle.ports.cluster import Reassigner

TIMEOUT = timedelta(seconds=20)
WANTED: dict[TopicPartition, tuple[int, ...] | None] = {("t1", 0): (1003, 1002), ("t1", 2): (1004,)}


class ReassignerSubject(Protocol):
    """A reassigner, and its cluster: topic t1 with three partitions on 1001 and 1002; 1003 and 1004 hold nothing."""

    @property
    def reassigner(self) -> Reassigner: ...

    def begin_term(self) -> int:
        """Begin a new term, return its fence."""
        ...

    def started(self) -> Mapping[TopicPartition, Sequence[int]]:
        """What Kafka has been told to move."""
        ...


class ReassignerContract:
    def test_partitions_move_to_the_replicas_given(self, subject: ReassignerSubject) -> None:
        assert subject.reassigner.alter_reassignments(subject.begin_term(), WANTED, TIMEOUT) == {}
        assert {row: tuple(to) for row, to in subject.started().items()} == WANTED

    def test_to_repeat_it_is_no_error(self, subject: ReassignerSubject) -> None:
        fence = subject.begin_term()
        for _ in range(2):
            assert subject.reassigner.alter_reassignments(fence, WANTED, TIMEOUT) == {}
        assert {row: tuple(to) for row, to in subject.started().items()} == WANTED

    def test_nothing_moves_after_the_term(self, subject: ReassignerSubject) -> None:
        earlier = subject.begin_term()
        subject.begin_term()
        with pytest.raises(NotLeader, match="is over"):
            subject.reassigner.alter_reassignments(earlier, WANTED, TIMEOUT)
        assert subject.started() == {}
