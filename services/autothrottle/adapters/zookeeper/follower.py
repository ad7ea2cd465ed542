"""Tells whoever watches that something in ZooKeeper changed, from a thread that reads it, so that its watches stand."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.cluster import Watch

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5

_GATHER_SECONDS = 0.02
"""So long it waits for more of what comes in numbers, 50 overrides at once, instead of reading after each."""


class Follower:
    """Follows one thing from the first watch on. Thread-safe."""

    def __init__(self, name: str, catch_up: Callable[[], bool]) -> None:
        """Prepare; no thread runs yet.

        Args:
            name: of what is followed, for the log.
            catch_up: reads what changed and returns whether it is to be told; AutothrottleError: try again.
        """
        self._name, self._catch_up = name, catch_up
        self._watchers = Subscriptions[None]()
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def fire(self) -> None:
        """Let it look; this never blocks."""
        self._dirty.set()

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, from the follower's thread."""
        watch = self._watchers.add(lambda _: notify())
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"zookeeper-{self._name}", daemon=True)
                self._thread.start()
        self.fire()
        return watch

    def close(self) -> None:
        """End the thread; nothing is told afterwards."""
        self._closed.set()
        self.fire()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._dirty.wait()
            if self._closed.wait(_GATHER_SECONDS):
                return
            self._dirty.clear()
            try:
                changed = self._catch_up()
            except AutothrottleError as error:
                log.warning("the %s cannot be followed: %s", self._name, error)
                self._closed.wait(_RETRY_SECONDS)
                self.fire()
                continue
            if changed:
                self._watchers.publish(None)
