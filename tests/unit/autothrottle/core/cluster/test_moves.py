"""How reassignments ended, from the replicas that Kafka holds afterwards."""

from __future__ import annotations

import pytest

from autothrottle.core.cluster.moves import MoveHistory, MoveOutcome
from autothrottle.core.cluster.snapshot import Assignment, Problem, Snapshot, TopicReassignment

ROW = ("t1", 0)
DONE, CANCELLED, CHANGED, DELETED = MoveOutcome


def moving(adding: tuple[int, ...], removing: tuple[int, ...]) -> Snapshot:
    """A snapshot in which the partition moves."""
    return Snapshot(1, reassignments=(TopicReassignment("t1", (0,), (1,), ((1, 2),), (adding,), (removing,)),))


def ended(*replicas: int, isr: tuple[int, ...] | None = None) -> Snapshot:
    """A snapshot in which the partition has these replicas and does not move; without replicas it does not exist."""
    assignment = Assignment(replicas, replicas[0] if replicas else -1, replicas if isr is None else isr)
    return Snapshot(2, assignments={ROW: assignment} if replicas else {})


def outcomes(*snapshots: Snapshot, seconds: float = 1.0) -> list[MoveOutcome | None]:
    """The outcome after each snapshot, `seconds` apart; None: none yet."""
    history, outcomes_of_row = MoveHistory(), []
    for number, snapshot in enumerate(snapshots):
        history, ended_moves = history.observe(snapshot, history.ended(snapshot), number * seconds)
        outcomes_of_row.append(ended_moves.get(ROW))
    return outcomes_of_row


@pytest.mark.parametrize(
    ("replicas", "outcome"),
    [((3, 4), DONE), ((1, 2), CANCELLED), ((2, 1), CANCELLED), ((1, 3), CHANGED), ((5, 6), CHANGED), ((), DELETED)],
)
def test_the_replicas_at_the_end_decide(replicas: tuple[int, ...], outcome: MoveOutcome) -> None:
    assert outcomes(moving((3, 4), (1, 2)), ended(*replicas)) == [None, outcome]


def test_a_replica_that_neither_end_adds_or_removes_is_in_both() -> None:
    assert outcomes(moving((3,), (2,)), ended(2, 4)) == [None, CHANGED]
    assert outcomes(moving((3,), (2,)), ended(3, 4)) == [None, CHANGED]


def test_replicas_that_are_only_added_are_done_or_cancelled() -> None:
    assert outcomes(moving((3,), ()), ended(1, 2, 3)) == [None, DONE]
    assert outcomes(moving((3,), ()), ended(1, 2)) == [None, CANCELLED]


def test_a_target_that_another_tool_changed_counts() -> None:
    first, second = moving((3,), (2,)), moving((4,), (2, 3))
    assert outcomes(first, second, ended(1, 4)) == [None, None, DONE]
    assert outcomes(first, second, ended(1, 2)) == [None, None, CANCELLED]
    assert outcomes(first, second, ended(1, 3)) == [None, None, CHANGED]


def test_the_original_replicas_as_a_new_target_cancel() -> None:
    assert outcomes(moving((3,), (2,)), moving((), (3,)), ended(1, 2)) == [None, None, CANCELLED]


def test_a_broker_that_still_shows_the_replicas_from_before_the_end_is_read_again() -> None:
    """Metadata comes from any broker, which may learn of the end later than the controller's list."""
    before, during = moving((3,), (2,)), ended(1, 3, 2)
    assert outcomes(before, during, ended(1, 3)) == [None, None, DONE]
    assert outcomes(before, during, ended(1, 2)) == [None, None, CANCELLED]
    not_yet_cancelled = ended(1, 2, 3, isr=(1, 2))
    assert outcomes(moving((3,), ()), not_yet_cancelled, ended(1, 2)) == [None, None, CANCELLED]


def test_replicas_that_stay_for_ten_seconds_decide_in_any_case() -> None:
    out_of_sync = ended(1, 3, isr=(1,))
    assert outcomes(moving((3,), (2,)), out_of_sync, out_of_sync, seconds=10) == [None, None, DONE]
    both = ended(1, 2, 3)
    assert outcomes(moving((3,), (2,)), both, both, seconds=10) == [None, None, CHANGED]


def test_a_partition_that_moves_again_before_its_outcome_is_known_keeps_its_original_replicas() -> None:
    again = moving((3,), (2,))
    assert outcomes(again, ended(1, 3, 2), again, ended(1, 2)) == [None, None, None, CANCELLED]


def test_an_unreadable_topic_is_not_taken_for_a_deleted_one() -> None:
    unreadable = Snapshot(2, problems=(Problem("topics/t1", "it cannot be read", "t1"),))
    assert outcomes(moving((3,), (2,)), unreadable, ended(1, 3)) == [None, None, DONE]


def test_a_partial_snapshot_ends_nothing() -> None:
    partial = Snapshot.empty().with_unread("topics", 3)
    assert outcomes(moving((3,), (2,)), partial, moving((3,), (2,)), ended(1, 3)) == [None, None, None, DONE]
