"""The schedule: its text format, and when its windows are active."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import Schedule, ScheduleWindow, parse_schedule
from tests import builders

OFFICE = parse_schedule("09:00-17:00=50,22:00-06:00=95")


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, 21, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("time", "ratio"),
    [
        (at(8, 59), None),
        (at(9), 0.5),
        (at(16, 59), 0.5),
        (at(17), None),
        (at(22), 0.95),
        (at(0), 0.95),
        (at(5, 59), 0.95),
        (at(6), None),
    ],
)
def test_window_includes_its_start_excludes_its_end_and_may_span_midnight(time: datetime, ratio: float | None) -> None:
    window = OFFICE.window(time)
    assert (window and window.max_ratio) == ratio


def test_active_window_replaces_both_shares() -> None:
    limits = builders.limits(max_tx_ratio=0.9, max_rx_ratio=0.7)
    window = OFFICE.window(at(12))
    assert window is not None
    inside = window.limits(limits)
    assert (inside.max_tx_ratio, inside.max_rx_ratio, inside.min_rate) == (0.5, 0.5, limits.min_rate)


def test_hours_follow_the_time_zone_in_summer_and_winter() -> None:
    berlin = parse_schedule("09:00-17:00=50@Europe/Berlin")
    assert berlin.zone == ZoneInfo("Europe/Berlin")
    assert berlin.window(at(8)) and not berlin.window(at(7, 59)), "winter: an hour ahead of UTC"
    july = datetime(2026, 7, 1, 7, 0, tzinfo=UTC)
    assert berlin.window(july) and not berlin.window(july - timedelta(minutes=1)), "summer: two hours"


def test_next_change_is_the_next_edge() -> None:
    assert OFFICE.next_change(at(8)) == at(9)
    assert OFFICE.next_change(at(9)) == at(17)
    assert OFFICE.next_change(at(23)) == at(6) + timedelta(days=1)
    assert Schedule().next_change(at(8)) is None


def test_day_may_end_at_24_and_empty_text_is_no_schedule() -> None:
    assert parse_schedule("00:00-24:00=30").windows == (ScheduleWindow(0, 1440, 0.3),)
    assert parse_schedule("22:00-00:00=30").windows == (ScheduleWindow(1320, 1440, 0.3),)
    assert parse_schedule("  ") == Schedule()
    assert parse_schedule("9:00-10:00=12.5@utc") == Schedule((ScheduleWindow(540, 600, 0.125),), UTC)
    assert parse_schedule(" 9:00-10:00=12.5 @ utc ") == parse_schedule("9:00-10:00=12.5@utc")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9-17=50", "'9-17=50' is not a window"),
        ("09:00-17:00", "is not a window"),
        ("09:00-17:00=50,", "'' is not a window"),
        ("09:60-17:00=50", "is not a window"),
        ("25:00-26:00=50", "is not a window"),
        ("24:00-01:00=50", "must start in 00:00..23:59"),
        ("09:00-24:30=50", "end at another time, at most 24:00"),
        ("09:00-09:00=50", "end at another time"),
        ("09:00-17:00=0", "0 % of '09:00-17:00=0' is outside of (0, 100]"),
        ("09:00-17:00=100.1", "outside of (0, 100]"),
        ("09:00-17:00=50,16:00-18:00=40", "16:00 is in two windows"),
        ("22:00-06:00=50,05:59-07:00=40", "05:59 is in two windows"),
        ("09:00-17:00=50@Mars/Olympus", "'Mars/Olympus' is not a time zone"),
        ("09:00-17:00=50@../../etc/passwd", "is not a time zone"),
        ("09:00-17:00=50@", "'' is not a time zone"),
    ],
)
def test_malformed_schedule_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_schedule(text)
    assert message in str(caught.value)


minutes = st.integers(0, 1439)


@given(minutes, minutes, st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_share_is_constant_between_two_changes(start: int, end: int, now: datetime) -> None:
    if start == end:
        return
    schedule = Schedule((ScheduleWindow(start, end or 1440, 0.5),))
    change = schedule.next_change(now)
    assert change is not None and now < change <= now + timedelta(days=1)
    assert schedule.window(change - timedelta(microseconds=1)) == schedule.window(now)
    assert schedule.window(change) != schedule.window(now)
