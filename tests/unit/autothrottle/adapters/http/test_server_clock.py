"""The offset of a server's clock, from the Date headers of its responses."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.http.client import ServerClock

NOW = 1_800_000_000.0


def test_offset_is_corrected_once_named_and_forgotten_when_the_clocks_agree_again() -> None:
    server = ServerClock(lambda: NOW)
    server.note({"date": formatdate(NOW - 60, usegmt=True)})
    assert (server.corrected(), server.corrected(), server.now()) == (True, False, NOW - 60)
    (warning,) = server.warnings("Prometheus at x")
    assert warning.startswith("the clock of Prometheus at x differs by -60 s")
    server.note({"date": formatdate(NOW - 1, usegmt=True)})
    assert (server.corrected(), server.now(), server.warnings("x")) == (True, NOW, ())


@pytest.mark.parametrize(
    "headers", [{}, {"date": "yesterday"}, {"date": "Mon, 32 Jan 2026 00:00:00 GMT"}, {"date": "9" * 9999}]
)
def test_a_response_without_a_valid_date_changes_nothing(headers: dict[str, str]) -> None:
    server = ServerClock(lambda: NOW)
    server.note(headers)
    assert (server.corrected(), server.now()) == (False, NOW)


def test_a_date_of_another_year_is_a_finding_and_is_ignored() -> None:
    """A Date header of the year 9999 moved the clock of the source, so that all samples counted as stale.

    The time of a correct response before it stays in use.
    """
    server = ServerClock(lambda: NOW)
    server.note({"date": formatdate(NOW - 60, usegmt=True)})
    assert server.corrected()
    for date in (
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        formatdate(NOW + 3_700, usegmt=True),
    ):
        server.note({"date": date})
        assert (server.corrected(), server.now()) == (False, NOW - 60)
        assert "It is ignored, because it differs by more than 3600 s" in server.warnings("Prometheus at x")[0]
    server.note({"date": formatdate(NOW, usegmt=True)})
    assert (server.corrected(), server.warnings("x")) == (True, ())


@given(st.text() | st.sampled_from(["Mon, 01 Jan 0001 00:00:00 -2359", "Mon, 01 Jan 2026 99999999999:0:0 +99999999"]))
def test_any_date_header_leaves_the_clock_usable(date: str) -> None:
    server = ServerClock(lambda: NOW)
    server.note({"date": date})
    server.corrected()
    assert abs(server.now() - NOW) <= 3600
