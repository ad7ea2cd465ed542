"""Where it is kept which brokers catch up under throttle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from autothrottle.core.catch_up import CatchUp
from autothrottle.ports.cluster import Watch


class CatchUpStore(Protocol):
    """Where it is kept, shared by everybody; it outlives every leader."""

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        """Return broker id -> its catch-up.

        Raises:
            Unavailable: when that cannot be read.
            Invalid: when what stands there cannot be parsed; names the node and the fix.
        """
        ...

    def start_catch_up(self, wanted: CatchUp) -> None:
        """Add one, in place of one that stands. Idempotent.

        Raises:
            Unavailable: when the store does not answer.
        """
        ...

    def remove_catch_up(self, broker_id: int) -> bool:
        """Remove one; False when there was none. Idempotent.

        Raises:
            Unavailable: when the store does not answer.
        """
        ...

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        """Remove one that is over, and no later one of the same broker, on behalf of a term; False: it is not there.

        Raises:
            NotLeader: when the term is over; nothing was done.
            Unavailable: when the store does not answer.
        """
        ...

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, from another thread; it must not block."""
        ...
