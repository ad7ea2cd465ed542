"""The settings of brokers and topics, read in the background whenever others take part, so that no cycle waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta

from autothrottle.core.errors import AutothrottleError
from autothrottle.core.fetching import ClusterSettings
from autothrottle.ports.fetch_settings import FetchSettingsSource

log = logging.getLogger(__name__)

TIMEOUT = timedelta(seconds=5)

RETRY_SECONDS = 60.0
"""After a reading that failed, and until settings that were read are read again by the next who asks."""

_CLOSE_SECONDS = 6.0


class SettingsReader:
    """Reads settings in a thread of its own when somebody wants those of others. Thread-safe."""

    def __init__(self, source: FetchSettingsSource, read: Callable[[], None]) -> None:
        """Prepare; `read` is called after every reading, from another thread, and must not block."""
        self._source, self._read = source, read
        self._changed = threading.Condition()
        self._wanted: tuple[frozenset[int], frozenset[str]] = (frozenset(), frozenset())
        self._asked = self._wanted
        self._due = self._closed = False
        self._at = -RETRY_SECONDS
        self._failure = ""
        self._settings = ClusterSettings()
        self._thread: threading.Thread | None = None

    @property
    def settings(self) -> ClusterSettings:
        """What was read last."""
        return self._settings

    @property
    def known(self) -> bool:
        """Whether what is wanted has been asked for."""
        with self._changed:
            return not self._due and self._asked == self._wanted

    def want(self, broker_ids: Collection[int], topics: Collection[str]) -> None:
        """Say whose settings count from now on. Returns at once."""
        with self._changed:
            self._wanted = frozenset(broker_ids), frozenset(topics)
            others = not (self._wanted[0] <= self._asked[0] and self._wanted[1] <= self._asked[1])
            old = time.monotonic() - self._at >= RETRY_SECONDS
            if any(self._wanted) and (others or old) and not self._due:
                self._due = True
                self._changed.notify_all()
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="settings", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Stop; a reading in hand is waited for. Idempotent."""
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
                self._asked, self._at, self._due = wanted, time.monotonic(), False
                self._settings = _with(found, self._settings, *wanted)
            self._read()

    def _fetch(self, broker_ids: Collection[int], topics: Collection[str]) -> ClusterSettings:
        try:
            found = self._source.fetch_settings(broker_ids, topics, TIMEOUT)
        except AutothrottleError as error:
            if not self._failure:
                log.info("Fetch sizes, quota windows and min.insync.replicas are as before or by default: %s", error)
            self._failure = str(error)
            return ClusterSettings()
        except Exception:  # a bug must not end the thread: whoever wants settings would wait for ever
            log.exception("the reading of settings failed unexpectedly")
            return ClusterSettings()
        self._failure = ""
        return found


def _with(
    found: ClusterSettings, before: ClusterSettings, broker_ids: Collection[int], topics: Collection[str]
) -> ClusterSettings:
    """What was found; of those who did not tell theirs this time what they told before.

    A partition that is below its min.insync.replicas would be held back again by one answer that is late.
    """
    return ClusterSettings(
        {b: one for b, one in {**before.brokers, **found.brokers}.items() if b in broker_ids},
        {t: least for t, least in {**before.min_in_sync_replicas, **found.min_in_sync_replicas}.items() if t in topics},
    )
