"""The offset of a server's clock, from the Date headers of its responses."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from autothrottle.adapters.http.server_clock import ServerClock

NOW = 1_800_000_000.0


def test_offset_is_corrected_once_named_and_forgotten_when_the_clocks_agree_again() -> None:
    server = ServerClock(lambda: NOW)
    server.note({"date": formatdate(NOW - 60, usegmt=True)})
    assert (server.corrected(), server.corrected(), server.now()) == (True, False, NOW - 60)
    (warning,) = server.warnings("Prometheus at x")
    assert warning.startswith("the clock of Prometheus at x differs by -60 s")
    server.note({"date": formatdate(NOW - 1, usegmt=True)})
    assert (server.corrected(), server.now(), server.warnings("x")) == (True, NOW, ())


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}, {"date": "Mon, 32 Jan 2026 00:00:00 GMT"}])
def test_a_response_without_a_valid_date_changes_nothing(headers: dict[str, str]) -> None:
    server = ServerClock(lambda: NOW)
    server.note(headers)
    assert (server.corrected(), server.now()) == (False, NOW)
