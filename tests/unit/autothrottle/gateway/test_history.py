"""The hour of rates that the gateway keeps for the page."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from autothrottle.gateway import history
from autothrottle.gateway.history import LinkHistory
from autothrottle_client import ReplicaRole
from autothrottle_client.overview import LinkSideOverview
from tests.builders import NOON, mb

STEP = timedelta(seconds=10)
POINTS = 360


def side(throttle: int | None, broker: int = 1006, capacity: int | None = mb(100)) -> LinkSideOverview:
    return LinkSideOverview(broker, ReplicaRole.FOLLOWER, capacity, mb(10), None, throttle, None, "")


def throttles(link_history: LinkHistory, now: datetime, broker: int = 1006) -> list[int | None]:
    series: list[int | None] = link_history.document(broker, now)["follower"]["throttle"]
    assert len(series) == POINTS
    return series


def test_points_are_in_order_of_time_and_unknown_ones_are_null() -> None:
    link_history = LinkHistory()
    link_history.add(NOON - 3 * STEP, [side(mb(1))])
    link_history.add(NOON - STEP, [side(mb(2))])
    document = link_history.document(1006, NOON)
    assert document["follower"]["throttle"][-4:] == [mb(1), None, mb(2), None]
    assert document["follower"]["replication"] == [None] * POINTS
    assert document["leader"]["throttle"] == [None] * POINTS
    assert (document["seconds"], document["from"]) == (10, "2026-11-02T11:00:10Z")


def test_the_last_value_of_a_step_counts() -> None:
    link_history = LinkHistory()
    for megabytes in range(10):
        link_history.add(NOON + timedelta(seconds=megabytes), [side(mb(megabytes))])
    assert throttles(link_history, NOON)[-2:] == [None, mb(9)]


def test_the_history_covers_an_hour() -> None:
    link_history = LinkHistory()
    for step in range(2 * POINTS):
        link_history.add(NOON + step * STEP, [side(mb(step))])
    assert throttles(link_history, NOON + (2 * POINTS - 1) * STEP) == [mb(POINTS + step) for step in range(POINTS)]


def test_a_gap_has_no_points_of_the_hour_before() -> None:
    """The points of a ring stay until they are overwritten. After a gap, those of an hour ago appeared again."""
    link_history = LinkHistory()
    for step in range(POINTS):
        link_history.add(NOON + step * STEP, [side(mb(1))])
    link_history.add(NOON + (POINTS + 99) * STEP, [side(mb(2))])
    series = throttles(link_history, NOON + (POINTS + 99) * STEP)
    assert series == [mb(1)] * (POINTS - 100) + [None] * 99 + [mb(2)]
    assert throttles(link_history, NOON + 3 * POINTS * STEP) == [None] * POINTS


def test_a_clock_that_is_set_back_changes_no_point() -> None:
    link_history = LinkHistory()
    link_history.add(NOON, [side(mb(1))])
    link_history.add(NOON - timedelta(hours=2), [side(mb(2))])
    assert throttles(link_history, NOON - timedelta(hours=2)) == [None] * (POINTS - 1) + [mb(1)]


def test_huge_and_negative_rates_stay_in_range() -> None:
    link_history = LinkHistory()
    link_history.add(NOON, [side(2**63 - 1, capacity=-5)])
    document = link_history.document(1006, NOON)["follower"]
    assert (document["throttle"][-1], document["capacity"][-1]) == ((2**31 - 1) * 1000, 0)


def test_the_number_of_link_sides_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_SIDES", 3)
    link_history = LinkHistory()
    link_history.add(NOON, [side(mb(1), broker) for broker in (1, 2, 3)])
    link_history.add(NOON + STEP, [side(mb(1), broker) for broker in (1, 3, 4)])
    later = NOON + STEP
    assert [throttles(link_history, later, broker)[-2] for broker in (1, 2, 3)] == [mb(1), None, mb(1)]
    assert throttles(link_history, later, 4)[-1] == mb(1)
