"""Where the pause is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autothrottle.core.pause import Pause
from autothrottle.ports.cluster import Watch


class PauseStore(Protocol):
    """Where the pause is kept, shared by everybody; it outlives every leader.

    Every change is kept with its audit record, among those of the overrides.
    """

    def read_pause(self) -> Pause | None:
        """Return the pause; None: it is not paused.

        Raises:
            Unavailable: when it cannot be read.
            Invalid: when what stands there is no pause; names the node and the fix.
        """
        ...

    def set_pause(self, pause: Pause) -> None:
        """Pause, in place of a pause that stands; its author is who the audit record names. Idempotent.

        Raises:
            Unavailable: when the store does not answer.
        """
        ...

    def remove_pause(self, who: str = "") -> bool:
        """Resume; False when it was not paused. Idempotent.

        Args:
            who: for the audit record.

        Raises:
            Unavailable: when the store does not answer.
        """
        ...

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, from another thread; it must not block."""
        ...
