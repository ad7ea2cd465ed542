"""What stands in files that somebody may renew while we run: certificates, tokens."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from autothrottle.core.errors import Invalid

log = logging.getLogger(__name__)

T = TypeVar("T")


class Renewed(Generic[T]):
    """What some files say, read again when one of them has changed. Threads may share it.

    Files that are wrong later are passed over, and what they said before stays in use: of two that belong together, one
    may be new already and the other not yet.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], T]) -> None:
        """Read for the first time.

        Args:
            paths: the files that are looked at.
            read: returns what they say; raises Invalid when they are wrong.

        Raises:
            Invalid: when they are wrong now.
        """
        self._paths, self._read = tuple(paths), read
        self._lock = threading.Lock()
        self._stamps = self._looked_at()
        self._value, self._generation = read(), 1

    def current(self) -> tuple[T, int]:
        """Return what the files say, and how often that has changed, counted from 1."""
        with self._lock:
            stamps = self._looked_at()
            if stamps != self._stamps:
                self._stamps = stamps
                self._renew()
            return self._value, self._generation

    def _renew(self) -> None:
        try:
            found = self._read()
        except Invalid as error:
            log.warning("%s. What stood there before stays in use", error)
            return
        if found != self._value:
            self._value, self._generation = found, self._generation + 1
            log.info("Read again: %s", ", ".join(self._paths))

    def _looked_at(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file does; None: it is away, perhaps for a moment."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
