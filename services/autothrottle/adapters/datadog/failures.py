"""Turns failed calls into errors that show no key."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.adapters.datadog.rate_limit import TOO_MANY_REQUESTS
from autothrottle.adapters.datadog.settings import DatadogSettings
from autothrottle.adapters.http.bounded_calls import Call, Failure, first_failure
from autothrottle.core.errors import Unavailable
from autothrottle.core.texts import encodable

_MAX_REASON = 200


def raise_failure(settings: DatadogSettings, calls: Sequence[Call], answers: Sequence[object]) -> None:
    """Raise Unavailable if a call failed; `answers` has the answer or failure of each call, in order."""
    if failed := first_failure(calls, answers):
        raise _error(settings, *failed)


def _error(settings: DatadogSettings, call: Call, failure: Failure) -> Unavailable:
    reason = without_keys(settings, failure.reason)
    if failure.status in (401, 403):
        reason += "; check api-key and app-key, and that they may read metrics and host tags"
    if failure.status == TOO_MANY_REQUESTS:
        reason += "; give a longer interval, or ask Datadog for a higher limit"
    return Unavailable(f"Datadog ({call.name}) {reason}")


def without_keys(settings: DatadogSettings, text: str) -> str:
    """Return a server's text without our keys: it may quote our headers."""
    for key in (settings.api_key, settings.app_key):
        text = text.replace(key, "***") if key else text
    return encodable(text, _MAX_REASON)
