"""The effect of a pause: our throttles are released, foreign ones stay, and stale lists are detected."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_REPLICAS, ConfigResource
from autothrottle.core.cluster.snapshot import Problem, Snapshot
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.records import Pause, PauseMode
from autothrottle.core.throttles.changes import release_of_ours, stale_lists
from tests import builders

REASSIGNMENT = builders.reassignment("t1", {0: (1001, (1001, 1002), (1003,), (1002,))})
LISTS = {LEADER_REPLICAS: "0:1001,0:1002", FOLLOWER_REPLICAS: "0:1003"}
OURS = builders.ledger_entry(
    leader_replication_throttled_replicas=LISTS[LEADER_REPLICAS],
    follower_replication_throttled_replicas=LISTS[FOLLOWER_REPLICAS],
)


def listed(*moving: str) -> Snapshot:
    """A cluster with our lists for t1's reassignment, and reassignments of these topics."""
    reassignments = [builders.reassignment(topic, {0: (1001, (1001, 1002), (1003,), (1002,))}) for topic in moving]
    return builders.snapshot(*reassignments, throttles={"topics/t1": LISTS}, ledger={"topics/t1": OURS})


@pytest.mark.parametrize(
    ("pause", "text"),
    [
        (Pause(PauseMode.KEEP), "keep"),
        (
            Pause(PauseMode.CLEAR, "10.0.0.9:5000", datetime(2026, 11, 2, 12, 0, 1, tzinfo=UTC), "link is full"),
            "clear, since 2026-11-02T12:00:01Z, by 10.0.0.9: link is full",
        ),
    ],
)
def test_pause_text_names_author_time_and_reason(pause: Pause, text: str) -> None:
    assert str(pause) == text


def test_release_restores_earlier_values_even_during_a_reassignment() -> None:
    rate = builders.ledger_entry(before="7", follower_replication_throttled_rate="5")
    current = builders.snapshot(
        REASSIGNMENT,
        throttles={"brokers/1003": {FOLLOWER_RATE: "5"}, "topics/t1": LISTS},
        ledger={"brokers/1003": rate, "topics/t1": OURS},
    )
    found = {
        (c.resource, e.key): e.value for c in release_of_ours(current, builders.NOON, term=1).changes for e in c.edits
    }
    assert found == {
        (ConfigResource.broker(1003), FOLLOWER_RATE): "7",
        (ConfigResource.topic("t1"), LEADER_REPLICAS): None,
        (ConfigResource.topic("t1"), FOLLOWER_REPLICAS): None,
    }


def test_throttles_of_kafkas_tool_are_not_released() -> None:
    current = builders.snapshot(REASSIGNMENT, throttles={"brokers/1003": {FOLLOWER_RATE: "5"}, "topics/t1": LISTS})
    assert release_of_ours(current, builders.NOON, term=1).changes == ()


@pytest.mark.parametrize(
    ("moving", "stale"),
    [(("t1",), ()), ((), ("t1",)), (("t1", "t2"), ("t2",)), (("t2",), ("t1", "t2"))],
)
def test_lists_that_do_not_match_the_reassignments_are_stale(moving: tuple[str, ...], stale: tuple[str, ...]) -> None:
    assert stale_lists(listed(*moving), Overrides()) == stale


def test_entries_of_an_overridden_broker_are_not_stale() -> None:
    ours = builders.ledger_entry(follower_replication_throttled_replicas="0:1003")
    current = builders.snapshot(
        throttles={"topics/t1": {FOLLOWER_REPLICAS: "0:1003"}},
        ledger={"topics/t1": ours},
        replicas={1003: {"t1": (0,)}},
    )
    assert stale_lists(current, Overrides(brokers={1003: StoredOverride(5)})) == ()
    assert stale_lists(current, Overrides()) == ("t1",)


def test_entries_of_an_override_are_not_stale_while_its_broker_takes_part_in_a_reassignment() -> None:
    current = listed("t1")
    recovering = replace(current, replicas={1003: {"t1": (0,), "t2": (5,)}})
    overrides = Overrides(brokers={1003: StoredOverride(5)})
    assert stale_lists(recovering, overrides) == ("t2",), "its replica of t2 is not listed yet"
    entries = builders.ledger_entry(follower_replication_throttled_replicas="5:1003")
    t2 = ConfigResource.topic("t2")
    listed_too = replace(
        recovering,
        throttles={**current.throttles, t2: {FOLLOWER_REPLICAS: "5:1003"}},
        ledger={**current.ledger, t2: entries},
    )
    assert stale_lists(listed_too, overrides) == ()
    assert stale_lists(listed_too, Overrides()) == ("t2",)


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
