"""What a pause means for what stands: ours goes back whole, others' stays, and stale lists are known."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from autothrottle.core.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_REPLICAS, ConfigResource
from autothrottle.core.overrides import Override, Overrides
from autothrottle.core.pause import Pause, PauseMode, stale_lists, taken_back
from autothrottle.core.topology import Problem, Snapshot
from tests import builders

MOVE = builders.reassignment("t1", {0: (1001, (1001, 1002), (1003,), (1002,))})
LISTS = {LEADER_REPLICAS: "0:1001,0:1002", FOLLOWER_REPLICAS: "0:1003"}
OURS = builders.ledger_entry(
    leader_replication_throttled_replicas=LISTS[LEADER_REPLICAS],
    follower_replication_throttled_replicas=LISTS[FOLLOWER_REPLICAS],
)


def listed(*moving: str) -> Snapshot:
    """The lists of t1's move stand and are ours; these topics move."""
    moves = [builders.reassignment(topic, {0: (1001, (1001, 1002), (1003,), (1002,))}) for topic in moving]
    return builders.snapshot(*moves, throttles={"topics/t1": LISTS}, ledger={"topics/t1": OURS})


@pytest.mark.parametrize(
    ("pause", "text"),
    [
        (Pause(PauseMode.KEEP), "keep"),
        (
            Pause(PauseMode.CLEAR, "10.0.0.9:5000", datetime(2026, 11, 2, 12, 0, 1, tzinfo=UTC), "link is full"),
            "clear, since 2026-11-02T12:00:01Z, by 10.0.0.9:5000: link is full",
        ),
    ],
)
def test_a_pause_tells_who_when_and_why(pause: Pause, text: str) -> None:
    assert str(pause) == text


def test_what_is_ours_goes_back_to_what_stood_before_though_it_moves() -> None:
    rate = builders.ledger_entry(before="7", follower_replication_throttled_rate="5")
    standing = builders.snapshot(
        MOVE,
        throttles={"brokers/1003": {FOLLOWER_RATE: "5"}, "topics/t1": LISTS},
        ledger={"brokers/1003": rate, "topics/t1": OURS},
    )
    found = {(c.resource, e.key): e.value for c in taken_back(standing, term=1).changes for e in c.edits}
    assert found == {
        (ConfigResource.broker(1003), FOLLOWER_RATE): "7",
        (ConfigResource.topic("t1"), LEADER_REPLICAS): None,
        (ConfigResource.topic("t1"), FOLLOWER_REPLICAS): None,
    }


def test_what_kafkas_own_tool_has_set_for_the_move_is_not_taken_back() -> None:
    standing = builders.snapshot(MOVE, throttles={"brokers/1003": {FOLLOWER_RATE: "5"}, "topics/t1": LISTS})
    assert taken_back(standing, term=1).changes == ()


@pytest.mark.parametrize(
    ("moving", "stale"),
    [(("t1",), ()), ((), ("t1",)), (("t1", "t2"), ("t2",)), (("t2",), ("t1", "t2"))],
)
def test_lists_are_stale_where_they_are_not_those_of_what_moves(
    moving: tuple[str, ...], stale: tuple[str, ...]
) -> None:
    assert stale_lists(listed(*moving), Overrides()) == stale


def test_the_entries_of_an_overridden_broker_are_not_stale() -> None:
    ours = builders.ledger_entry(follower_replication_throttled_replicas="0:1003")
    standing = builders.snapshot(
        throttles={"topics/t1": {FOLLOWER_REPLICAS: "0:1003"}},
        ledger={"topics/t1": ours},
        replicas={1003: {"t1": (0,)}},
    )
    assert stale_lists(standing, Overrides(brokers={1003: Override(5)})) == ()
    assert stale_lists(standing, Overrides()) == ("t1",)


def test_lists_that_would_stay_anyway_are_not_stale() -> None:
    unknown = Snapshot(
        version=1,
        brokers=frozenset({1001}),
        reassignments=(),
        throttles=listed().throttles,
        ledger=listed().ledger,
        problems=(Problem("/brokers/topics/t1", "is no JSON"),),
    )
    assert stale_lists(unknown, Overrides()) == ()
    assert stale_lists(listed(), Overrides(), keep_throttles=True) == ()
