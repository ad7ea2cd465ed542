"""One candidate of an election, wherever the terms are stored. The type to know is `Candidate`.

A leader steps down by its own monotonic clock, two thirds of the session timeout after the last time that the store has
confirmed its term. No other process can lead before the whole session timeout has passed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.adapters.zookeeper.codec import own_object
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.codec import text
from autothrottle.core.errors import FIELD_ERRORS, AutothrottleError, Invalid, Unavailable
from autothrottle.core.texts import capitalized
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Leader

log = logging.getLogger(__name__)


class Candidate(ABC):
    """Holds a term, and gives it up; an `Election`. The subclass campaigns in a thread of its own."""

    _store: str
    """Name of the store in messages, within a sentence."""
    _end: str
    """When a candidacy ends whose withdrawal the store does not confirm."""

    def __init__(self, own: OwnPaths, session_timeout: timedelta, leave_seconds: float) -> None:
        """Prepare; `leave_seconds` > 0 is how long `leave` waits at most for the store."""
        self._own, self._leave_seconds = own, leave_seconds
        self._session_seconds = session_timeout.total_seconds()
        self._silence_limit = self._session_seconds * 2 / 3
        self._heartbeat_seconds = self._session_seconds / 6
        self._leaving = threading.Event()
        self._wake = threading.Event()
        self._term_ended = threading.Event()
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._last_contact = 0.0
        self._has_waited = False
        """Whether another candidate led when this one joined."""
        self._led_since = 0.0
        self._rests_until = 0.0
        self._thread: threading.Thread | None = None
        self._address, self._host = "", ""
        self._on_change: Callable[[], None] = lambda: None

    @abstractmethod
    def leader(self) -> Leader | None:
        """Return the last leader, whether or not its term continues; None: there has not been one."""

    @abstractmethod
    def _campaign(self) -> None:
        """Stand for election until `_has_left`."""

    @abstractmethod
    def _rivals(self) -> Collection[str]:
        """Return the other candidates that live now.

        Raises:
            AutothrottleError: the store does not tell them.
        """

    @abstractmethod
    def _withdraw_for_good(self) -> None:
        """Withdraw the candidacy, because it would block other candidates."""

    @abstractmethod
    def _why_over(self, fence: int, deadline: float) -> str:
        """Let the store confirm a term, and return why it is over; "" while it continues.

        Raises:
            Unavailable: the store does not answer by the deadline, on the monotonic clock.
        """

    @property
    def term(self) -> Term | None:
        """The term that this candidate holds; None after two thirds of the session timeout without an answer."""
        lease_end = self._last_contact + self._silence_limit
        term = self._term
        return None if term is None or time.monotonic() > lease_end else replace(term, lease_end=lease_end)

    def join(self, address: str, on_change: Callable[[], None], host: str = "") -> None:
        """Start to campaign in a background thread."""
        self._address, self._host, self._on_change = address, host, on_change
        with self._lock:
            self._leaving.clear()
            self._rests_until = 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._campaign, name="election", daemon=True)
                self._thread.start()

    def resign(self, pause: timedelta) -> bool:
        """Give up the term if another candidate waits."""
        is_new = self._has_waited and time.monotonic() - self._led_since < pause.total_seconds()
        if self.term is None or is_new:
            return False
        try:
            if not self._rivals():
                return False
        except AutothrottleError:
            return False
        self._rests_until = time.monotonic() + pause.total_seconds()
        self._end_term()
        return True

    def leave(self) -> None:
        """Give up the term at once, and withdraw the candidacy as soon as the store answers."""
        with self._lock:
            self._leaving.set()
            thread = self._thread
        self._end_term()
        self._wake.set()
        if thread is not None:
            thread.join(self._leave_seconds)
            if thread.is_alive():
                log.warning("%s does not answer; the candidacy ends when %s", capitalized(self._store), self._end)

    def _has_left(self) -> bool:
        """Whether the campaign is over: this candidate leaves, it has withdrawn, and it has not joined again."""
        if self._leaving.is_set():
            self._withdraw_for_good()
        with self._lock:
            if self._leaving.is_set():
                self._thread = None
            return self._thread is None

    def _term_text(self, name: str) -> str:
        """Return the text of the term's node; `name` is that of our candidate node."""
        return json.dumps({"holder": name, "address": self._address, "host": self._host})

    def _leader_in(self, data: bytes, fence: int, since: datetime) -> Leader:
        """Return the leader that the text of the term's node names. Older versions write no host."""
        try:
            holder = own_object(data, self._own.term)
            return Leader(fence, text(holder["address"]), since, text(holder.get("host", "")))
        except (*FIELD_ERRORS, Invalid):
            return Leader(fence, "", since)

    def _lead(self, fence: int, started: float) -> None:
        """Hold a term that the store has given us while it confirms it; `started` is when we asked for the term."""
        with self._lock:
            if self._leaving.is_set():
                return
            self._last_contact, self._led_since, self._term = started, started, Term(fence)
            self._term_ended.clear()
        try:
            self._on_change()
            self._hold(fence)
        finally:
            self._end_term()  # before the candidacy ends and another can lead

    def _hold(self, fence: int) -> None:
        """Return when the term is over."""
        while True:
            until = self._last_contact + self._silence_limit
            if self._term_ended.wait(max(0.0, min(self._heartbeat_seconds, until - time.monotonic()))):
                return
            request_time = time.monotonic()
            if request_time >= until:
                log.warning("No answer from %s for %.1f s: giving up the term", self._store, self._silence_limit)
                return
            try:
                reason = self._why_over(fence, until)
            except Unavailable:
                continue  # a missing answer does not end the term; the clock decides
            if reason:
                log.warning("Term %d is over: %s", fence, reason)
                return
            self._last_contact = request_time

    def _end_term(self) -> None:
        with self._lock:
            ended, self._term = self._term, None
            self._term_ended.set()
        if ended is not None:
            self._on_change()
