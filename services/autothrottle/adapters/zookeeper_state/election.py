"""Elects the leading planner and fences its term.

Candidates are sequential ephemeral nodes; the first one leads. This replaces kazoo's own recipe, which waits forever
while ZooKeeper is silent, lets its retry delay grow to a minute, and may leave an abandoned candidate behind. Here
every wait is bounded, and a candidate deletes all nodes with its name before it creates a new one.

The winner raises the version of the term node in a transaction that also checks its own candidate node. That version
and the origin of the store are the fence, which every later write checks (`zookeeper.term`). A leader steps down by its
own monotonic clock, for two reasons: while ZooKeeper is frozen, kazoo stays suspended and never reports a lost session;
and a stopped process gets no events.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.codec import own_object, text
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import new_origin, origin_path, read_origin, translated_errors
from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.retries import ELECTION
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Leader

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 3.0
"""How long `leave` waits at most for ZooKeeper to answer."""

_REST_POLL_SECONDS = 1.0

_SEQUENCE_DIGITS = 10


class ZooKeeperElection:
    """One candidate; an `Election`. It needs a ZooKeeper session of its own, so that other load cannot delay pings."""

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        self._client, self._own = client, own
        self._silence_limit = session_timeout.total_seconds() * 2 / 3
        self._heartbeat_seconds = session_timeout.total_seconds() / 6
        self._name = f"{uuid.uuid4().hex}-"
        self._candidate = ""
        self._leaving = threading.Event()
        self._wake = threading.Event()
        self._term_ended = threading.Event()
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._last_contact = 0.0
        self._has_waited = False
        """Whether another candidate was before this one."""
        self._led_since = 0.0
        self._rests_until = 0.0
        self._thread: threading.Thread | None = None
        self._address, self._host = "", ""
        self._on_change: Callable[[], None] = lambda: None

    @property
    def term(self) -> Term | None:
        """The term that this candidate holds; None after two thirds of the session timeout without an answer."""
        lease_end = self._last_contact + self._silence_limit
        term = self._term
        return None if term is None or time.monotonic() > lease_end else replace(term, lease_end=lease_end)

    def leader(self) -> Leader | None:
        """Return the last leader, whether or not its term continues; None: there has not been one."""
        with translated_errors("reading who leads"):
            try:
                data, stat = self._client.get_async(self._own.term).get(timeout=self._silence_limit)
                fence = read_origin(self._client, self._own, self._silence_limit) + stat.version
            except NoNodeError:
                return None
        if not stat.version:
            return None
        since = datetime.fromtimestamp(stat.last_modified, UTC)
        try:
            holder = own_object(data or b"", self._own.term)
            # Older versions write no host.
            return Leader(fence, text(holder["address"]), since, text(holder.get("host", "")))
        except (*FIELD_ERRORS, Invalid):
            return Leader(fence, "", since)

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
            if not self._others():
                return False
        except (KazooException, KazooTimeoutError):
            return False
        self._rests_until = time.monotonic() + pause.total_seconds()
        self._end_term()
        return True

    def leave(self) -> None:
        """Give up the term at once, and withdraw the candidacy as soon as ZooKeeper answers."""
        with self._lock:
            self._leaving.set()
            thread = self._thread
        self._end_term()
        self._wake.set()
        if thread is not None:
            thread.join(_LEAVE_SECONDS)
            if thread.is_alive():
                log.warning("ZooKeeper does not answer; the candidacy ends when the session expires")

    # Campaigning.

    def _campaign(self) -> None:
        self._client.add_listener(self._wake_up)
        while not self._has_left():
            rests = False
            try:
                self._withdraw()
                if not (rests := time.monotonic() < self._rests_until and bool(self._others())):
                    self._run_candidacy()
            except (KazooException, KazooTimeoutError) as error:
                log.warning("Election interrupted, trying again: %s %s", type(error).__name__, error)
            except Exception:  # a bug must not end the thread: this planner would never lead again
                log.exception("Election failed unexpectedly, trying again")
            self._leaving.wait(_REST_POLL_SECONDS if rests else ELECTION.first)
        self._client.remove_listener(self._wake_up)

    def _has_left(self) -> bool:
        """Whether the campaign is over: this candidate leaves, its nodes are deleted, and it has not joined again."""
        if self._leaving.is_set():
            self._withdraw_for_good()
        with self._lock:
            if self._leaving.is_set():
                self._thread = None
            return self._thread is None

    def _wake_up(self, _what: object) -> None:
        """Wake the campaign: the connection or the candidate before us changed."""
        self._wake.set()

    def _run_candidacy(self) -> None:
        """Become a candidate, wait for our turn and lead; return when the candidacy or the term is over."""
        path = f"{self._own.election}/{self._name}"
        self._has_waited = False
        created = self._client.create_async(path, b"", ephemeral=True, sequence=True, makepath=True)
        self._candidate = self._answer(created).rpartition("/")[2]
        while not self._leaving.is_set():
            self._wake.clear()
            queue = sorted(self._answer(self._client.get_children_async(self._own.election)), key=_sequence)
            if self._candidate not in queue:
                return  # our node disappeared with an earlier session
            place = queue.index(self._candidate)
            if place == 0:
                return self._lead()
            self._has_waited = True
            before_us = f"{self._own.election}/{queue[place - 1]}"
            if self._answer(self._client.exists_async(before_us, watch=self._wake_up)) is not None:
                self._wake.wait(self._silence_limit)

    def _withdraw(self) -> None:
        """Delete every node with our name. One whose creation was never confirmed would block us as a predecessor."""
        self._answer(self._client.sync_async(self._own.election))
        with suppress(NoNodeError):
            for name in self._answer(self._client.get_children_async(self._own.election)):
                if name.startswith(self._name):
                    with suppress(NoNodeError):
                        self._answer(self._client.delete_async(f"{self._own.election}/{name}"))

    def _withdraw_for_good(self) -> None:
        """Delete our candidate nodes, retrying until ZooKeeper answers, because they would block other candidates."""
        while self._leaving.is_set():
            try:
                return self._withdraw()
            except ConnectionClosedError:
                return  # the session ended, and the node with it
            except (KazooException, KazooTimeoutError):
                time.sleep(ELECTION.first)

    def _others(self) -> list[str]:
        """The nodes of other candidates."""
        names = self._answer(self._client.get_children_async(self._own.election))
        return [name for name in names if not name.startswith(self._name)]

    def _answer(self, result: Any) -> Any:
        return result.get(timeout=self._silence_limit)

    # Leading.

    def _lead(self) -> None:
        """Begin a term, and hold it while ZooKeeper confirms it."""
        started = time.monotonic()
        fence = self._begin_term()
        if fence is None:
            return
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
                log.warning("No answer from ZooKeeper for %.1f s: giving up the term", self._silence_limit)
                return
            try:
                end = self._why_over(fence, until - request_time)
            except NoNodeError:
                end = "the term node was deleted"
            except (KazooException, KazooTimeoutError):
                continue  # a missing answer does not end the term; the clock decides
            if end:
                log.warning("Term %d is over: %s", fence, end)
                return
            self._last_contact = request_time

    def _why_over(self, fence: int, timeout: float) -> str:
        """Why the term is over; "" while it continues."""
        term = self._client.get_async(self._own.term)
        candidate = self._client.exists_async(self._candidate_path())
        newest = read_origin(self._client, self._own, timeout) + term.get(timeout=timeout)[1].version
        if newest != fence:
            return f"term {newest} has begun"
        return "" if candidate.get(timeout=timeout) else "the candidacy ended with the session"

    def _candidate_path(self) -> str:
        return f"{self._own.election}/{self._candidate}"

    def _begin_term(self) -> int | None:
        """Raise the version of the term node if our candidate node exists; return the term's fence, or None."""
        with suppress(NodeExistsError):
            self._answer(self._client.create_async(self._own.term, b"", makepath=True))
        stat = self._answer(self._client.get_async(self._own.term))[1]
        known_origin = read_origin(self._client, self._own, self._silence_limit)
        origin = known_origin or new_origin(stat.ctime)
        holder = {"holder": self._candidate, "address": self._address, "host": self._host}
        transaction = self._client.transaction()
        transaction.check(self._candidate_path(), 0)
        if known_origin:
            transaction.check(origin_path(self._own, origin), -1)
        else:
            transaction.create(origin_path(self._own, origin))
        transaction.set_data(self._own.term, json.dumps(holder).encode(), stat.version)
        results = self._answer(transaction.commit_async())
        if any(isinstance(result, Exception) for result in results):
            log.warning("Cannot begin a term, trying again: %s", results)
            return None
        return origin + int(results[-1].version)

    def _end_term(self) -> None:
        with self._lock:
            ended, self._term = self._term, None
            self._term_ended.set()
        if ended is not None:
            self._on_change()


def _sequence(name: str) -> str:
    return name[-_SEQUENCE_DIGITS:]
