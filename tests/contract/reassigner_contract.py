"""Contract of every `Reassigner`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import NotLeader
from autothrottle.ports.kafka import Reassigner, Term

TIMEOUT = timedelta(seconds=20)
WANTED: dict[TopicPartition, tuple[int, ...]] = {("t1", 0): (1003, 1002), ("t1", 2): (1004,)}


class ReassignerSubject(Protocol):
    """A reassigner and its cluster: topic t1 has three partitions on 1001 and 1002; 1003 and 1004 are empty."""

    @property
    def reassigner(self) -> Reassigner: ...

    def begin_term(self) -> int:
        """Begin a new term and return its fence."""
        ...

    def started(self) -> Mapping[TopicPartition, Sequence[int]]:
        """Target replicas of the reassignments that Kafka has accepted."""
        ...


class ReassignerContract:
    def test_partitions_are_reassigned_to_the_given_replicas(self, subject: ReassignerSubject) -> None:
        assert subject.reassigner.submit_reassignments(Term(subject.begin_term()), WANTED, TIMEOUT) == {}
        assert {row: tuple(to) for row, to in subject.started().items()} == WANTED

    def test_repeating_a_submission_is_not_an_error(self, subject: ReassignerSubject) -> None:
        fence = subject.begin_term()
        for _ in range(2):
            assert subject.reassigner.submit_reassignments(Term(fence), WANTED, TIMEOUT) == {}
        assert {row: tuple(to) for row, to in subject.started().items()} == WANTED

    def test_submission_after_the_term_raises_not_leader(self, subject: ReassignerSubject) -> None:
        earlier = subject.begin_term()
        subject.begin_term()
        with pytest.raises(NotLeader, match="is over"):
            subject.reassigner.submit_reassignments(Term(earlier), WANTED, TIMEOUT)
        assert subject.started() == {}
