"""Describes a cycle in its trace: the attributes of the root span, and each change below `apply`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.records import Cycle, Outcome
from autothrottle.core.throttles.changes import Change
from autothrottle.ports.telemetry import Attribute, Span, Tracer

MAX_CHANGE_SPANS = 50
"""With more changes each one is an event instead of a span: a trace of a thousand spans is unreadable."""


def describe_cycle(span: Span, record: Cycle, scheduled: bool, cluster: str) -> None:
    """Add the cycle's attributes to its root span."""
    span.describe(
        {
            "cluster": cluster,
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


def _eta(record: Cycle) -> Mapping[str, Attribute]:
    """The ETA and its interval, without unknown values."""
    times = {"eta": record.eta, "eta_low": record.eta_low, "eta_high": record.eta_high}
    found: dict[str, Attribute] = {name: time.isoformat() for name, time in times.items() if time is not None}
    return found | {"eta_is_static": record.eta_is_static} if found else {}


@contextmanager
def applying(tracer: Tracer, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> Iterator[None]:
    """Trace the body as span `apply`, with each change and its outcome.

    Args:
        tracer: creates the spans.
        changes: the changes to write; the body may extend it.
        outcomes: their outcomes; the body extends it. A change without an outcome is `unknown`.
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
    add = span.child if len(resources) <= MAX_CHANGE_SPANS else span.event
    for resource in resources:
        add("change", _change(resource, edited.get(resource, []), known.get(resource)))


def _change(resource: ConfigResource, keys: Sequence[str], outcome: Outcome | None) -> Mapping[str, Attribute]:
    described: dict[str, Attribute] = {
        "resource": str(resource),
        "keys": keys,
        "outcome": outcome.status.value if outcome else "unknown",
    }
    return described | {"reason": outcome.reason} if outcome and outcome.reason else described
