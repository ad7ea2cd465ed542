"""Datadog's rate limits."""

from __future__ import annotations

import pytest

from autothrottle.adapters.datadog.client import TOO_MANY_REQUESTS, RateLimit
from autothrottle.adapters.http.client import Failure


def test_the_name_of_a_rate_limit_cannot_send_terminal_escapes() -> None:
    """The name comes from a header. The message with it went to the log and to an operator's terminal as it was."""
    limit = RateLimit()
    limit.note(TOO_MANY_REQUESTS, {"x-ratelimit-name": "\x1b[2J", "retry-after": "5"})
    with pytest.raises(Failure) as caught:
        limit.check()
    assert caught.value.reason.isprintable() and r"\x1b[2J" in caught.value.reason
