"""What exports of traces and of metrics share: the log of their outages, instead of the library's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_LIBRARY, _SILENCE = logging.getLogger("opentelemetry"), logging.NullHandler()
_lock = threading.Lock()
_silenced = 0


def silence_library() -> None:
    """Silence the library's log until as many calls of `restore_library_log`; `OutageLog` reports what matters."""
    global _silenced
    with _lock:
        _silenced += 1
        _LIBRARY.addHandler(_SILENCE)
        _LIBRARY.propagate = False


def restore_library_log() -> None:
    """Undo one call of `silence_library`."""
    global _silenced
    with _lock:
        _silenced -= 1
        if not _silenced:
            _LIBRARY.removeHandler(_SILENCE)
            _LIBRARY.propagate = True


@dataclass(slots=True)
class OutageLog:
    """Logs when exports start to fail and when they succeed again; the library would log every attempt."""

    what: str
    """`Traces` or `Metrics`."""
    lost: str
    variable: str
    """Name of the variable that turns these exports off."""
    _failing: bool = False

    def succeeds(self, export: Callable[[], bool]) -> bool:
        """Export, and return whether that succeeded. No error of the exporter leaves this method."""
        try:
            ok, why = export(), "the collector does not answer or refuses them"
        except Exception as error:  # A faulty collector must cost nothing but what it should receive.
            ok, why = False, f"{type(error).__name__}: {error}"
        if not ok and not self._failing:
            logger.warning(
                "%s cannot be exported and %s (%s). "
                "Fix: check OTEL_EXPORTER_OTLP_ENDPOINT and the collector, or set %s=none.",
                self.what,
                self.lost,
                why,
                self.variable,
            )
        elif self._failing and ok:
            logger.info("%s are exported again", self.what)
        self._failing = not ok
        return ok
