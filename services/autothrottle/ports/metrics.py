"""The metrics source: loads of brokers, and where events are posted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from autothrottle.core.loads import Loads


class LoadSource(Protocol):
    """Where loads come from."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        """Return the newest complete load of every broker that the source knows.

        One broker's missing or unusable data is a problem of that broker alone, never an error.

        Raises:
            Unavailable: when the source does not answer within `timeout`, or answers with an error.
        """
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """Something that operators want to see on their dashboards."""

    title: str
    """Without the program's name; the sink puts `[kafka-autothrottle]` in front."""
    text: str
    tags: Sequence[str] = ()
    """`name:value` tags beside the configured ones."""


class EventSink(Protocol):
    """Where events go."""

    def post_event(self, event: Event, timeout: timedelta) -> None:
        """Post one event.

        Raises:
            Unavailable: when it could not be posted within `timeout`; it may be tried again.
        """
        ...
