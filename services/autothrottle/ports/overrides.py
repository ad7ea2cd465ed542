"""Where overrides are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.overrides import Override, Overrides
from autothrottle.ports.cluster import Watch


class OverrideStore(Protocol):
    """Where overrides are kept, shared by everybody; `broker_id` None is the cluster's."""

    def read_overrides(self) -> Overrides:
        """Return all overrides.

        Raises:
            Unavailable: when they cannot be read at all; a single unreadable one is a value in the result.
        """
        ...

    def set_override(self, broker_id: int | None, rate: BytesPerSecond, autoremove: bool) -> Override:
        """Set an override, in place of one that stands. Idempotent.

        Raises:
            Invalid: when the broker id or the rate is out of range.
            Unavailable: when the store does not answer.
        """
        ...

    def remove_override(self, broker_id: int | None) -> bool:
        """Remove an override; False when there was none. Idempotent."""
        ...

    def purge_override(self, fence: int, broker_id: int | None, version: int) -> bool:
        """Remove one version of an override on behalf of a term; False when a later version stands.

        Raises:
            NotLeader: when the term is over.
        """
        ...

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change of any override, from another thread; it must not block."""
        ...
