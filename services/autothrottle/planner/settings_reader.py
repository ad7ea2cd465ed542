"""Reads broker and topic settings in the background when the participants change, so that no cycle waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta

from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.control.cycle_observation import SettingsReading
from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.kafka import FetchSettingsSource

log = logging.getLogger(__name__)

TIMEOUT = timedelta(seconds=5)

RETRY_SECONDS = 60.0
"""Minimum time between two reads of the same settings, also after a failed read."""

_CLOSE_SECONDS = 6.0


class SettingsReader:
    """Reads settings in its own thread when the wanted brokers or topics change. Thread-safe."""

    def __init__(self, source: FetchSettingsSource, on_read: Callable[[], None]) -> None:
        """`on_read` is called after every read, from another thread, and must not block."""
        self._source, self._on_read = source, on_read
        self._changed = threading.Condition()
        self._wanted: tuple[frozenset[int], frozenset[str]] = (frozenset(), frozenset())
        self._requested = self._wanted
        self._due = self._closed = False
        self._at = -RETRY_SECONDS
        self._failure = ""
        self._settings = ClusterSettings()
        self._thread: threading.Thread | None = None

    @property
    def reading(self) -> SettingsReading:
        """The settings as last read, and which of them were read, successfully or not."""
        with self._changed:
            return SettingsReading(self._settings, None if self._due else self._requested)

    def want(self, broker_ids: Collection[int], topics: Collection[str]) -> None:
        """Set the brokers and topics whose settings to read. Does not block."""
        with self._changed:
            self._wanted = frozenset(broker_ids), frozenset(topics)
            is_new = not (self._wanted[0] <= self._requested[0] and self._wanted[1] <= self._requested[1])
            is_old = time.monotonic() - self._at >= RETRY_SECONDS
            if any(self._wanted) and (is_new or is_old) and not self._due:
                self._due = True
                self._changed.notify_all()
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="settings", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Stop the thread; waits up to 6 s for a read in progress. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if self._closed:
                    return
                wanted = self._wanted
            found = self._fetch(*wanted)
            with self._changed:
                self._requested, self._at, self._due = wanted, time.monotonic(), False
                self._settings = _merged(found, self._settings, *wanted)
            try:
                self._on_read()
            except Exception:  # a bug must not end the thread: no settings would be read any more
                log.exception("handling settings failed unexpectedly")

    def _fetch(self, broker_ids: Collection[int], topics: Collection[str]) -> ClusterSettings:
        try:
            found = self._source.fetch_settings(broker_ids, topics, TIMEOUT)
        except AutothrottleError as error:
            if not self._failure:
                log.info(
                    "Broker and topic settings cannot be read; using the last known or default fetch sizes, quota "
                    "windows and min.insync.replicas: %s",
                    error,
                )
            self._failure = str(error)
            return ClusterSettings()
        except Exception:  # a bug must not end the thread: `known` would stay False for ever
            log.exception("reading settings failed unexpectedly")
            return ClusterSettings()
        self._failure = ""
        return found


def _merged(
    found: ClusterSettings, before: ClusterSettings, broker_ids: Collection[int], topics: Collection[str]
) -> ClusterSettings:
    """The new settings, completed by earlier ones for brokers and topics that did not answer this time.

    Otherwise one late answer would throttle a partition again that is below its min.insync.replicas.
    """
    return ClusterSettings(
        {b: one for b, one in {**before.brokers, **found.brokers}.items() if b in broker_ids},
        {t: least for t, least in {**before.min_in_sync_replicas, **found.min_in_sync_replicas}.items() if t in topics},
    )
