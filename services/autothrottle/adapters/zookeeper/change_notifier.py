"""Notifies watchers of changes in ZooKeeper. Its own thread reads after each change, which also renews the watches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.retries import STORED_STATE
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

_BATCH_SECONDS = 0.02
"""Delay before each read, so that one read covers a burst of changes, such as 50 overrides at once."""


class ChangeNotifier:
    """Follows one thing, starting with the first watcher. Thread-safe."""

    def __init__(self, name: str, refresh: Callable[[], bool]) -> None:
        """Prepare; the thread starts with the first watcher.

        Args:
            name: of the followed thing, for the log.
            refresh: reads what changed and returns whether to notify the watchers. After an error it is called again.
        """
        self._name, self._refresh = name, refresh
        self._watchers = Subscriptions[None]()
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def fire(self) -> None:
        """Wake the thread; never blocks."""
        self._dirty.set()

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, on the notifier's thread."""
        watch = self._watchers.add(lambda _: notify())
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"zookeeper-{self._name}", daemon=True)
                self._thread.start()
        self.fire()
        return watch

    def close(self) -> None:
        """End the thread; no notification follows."""
        self._closed.set()
        self.fire()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._dirty.wait()
            if self._closed.wait(_BATCH_SECONDS):
                return
            self._dirty.clear()
            try:
                if self._refresh():
                    self._watchers.publish(None)
                continue
            except AutothrottleError as error:
                log.warning("Cannot read the %s, trying again: %s", self._name, error)
            except Exception:  # a bug must not end the thread: no watcher would hear of later changes
                log.exception("Following the %s failed unexpectedly, trying again", self._name)
            self._closed.wait(STORED_STATE.first)
            self.fire()
