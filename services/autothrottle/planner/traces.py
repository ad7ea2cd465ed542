"""What the trace of a cycle says of it: the attributes of the root, and every change below `apply`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from autothrottle.core.changes import Change, Outcome
from autothrottle.core.configs import ConfigResource
from autothrottle.core.cycle import CycleRecord
from autothrottle.ports.tracing import Attribute, Span, Tracer

MOST_CHANGE_SPANS = 50
"""Beyond so many changes each is an event instead: a trace of a thousand spans can be read by nobody."""


def describe_cycle(span: Span, record: CycleRecord, scheduled: bool) -> None:
    """Say what a cycle was and what it did."""
    span.describe(
        {
            "term": record.term,
            "number": record.number,
            "reason": record.reason,
            "scheduled": scheduled,
            "topics": len(record.topics),
            "sentence": record.sentence,
            "error": record.error,
            **({} if record.bytes_left is None else {"bytes_left": record.bytes_left}),
            **_eta(record),
        }
    )
    if record.error:
        span.fail(record.error)


def _eta(record: CycleRecord) -> Mapping[str, Attribute]:
    """When the move is over, and the interval of that; what is unknown is left out."""
    times = {"eta": record.eta, "eta_low": record.eta_low, "eta_high": record.eta_high}
    found: dict[str, Attribute] = {name: time.isoformat() for name, time in times.items() if time is not None}
    return found | {"eta_is_static": record.eta_is_static} if found else {}


@contextmanager
def applying(tracer: Tracer, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> Iterator[None]:
    """Trace the writing as `apply`, and what became of every change.

    Args:
        tracer: what makes spans.
        changes: what is written; it may grow until the end.
        outcomes: what became of it; grows until the end. A change without one is `unknown`.
    """
    with tracer.span("apply") as span:
        try:
            yield
        finally:
            if span.recording:
                _describe_changes(span, changes, outcomes)


def _describe_changes(span: Span, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
    edited = {change.resource: [edit.key for edit in change.edits if edit.writes] for change in changes}
    known = {outcome.resource: outcome for outcome in outcomes}
    resources = list(edited | known)
    span.describe({"changes": len(resources)})
    tell = span.part if len(resources) <= MOST_CHANGE_SPANS else span.event
    for resource in resources:
        tell("change", _change(resource, edited.get(resource, []), known.get(resource)))


def _change(resource: ConfigResource, keys: Sequence[str], outcome: Outcome | None) -> Mapping[str, Attribute]:
    described: dict[str, Attribute] = {
        "resource": str(resource),
        "keys": keys,
        "outcome": outcome.status.value if outcome else "unknown",
    }
    return described | {"reason": outcome.reason} if outcome and outcome.reason else described
