"""Elects the one planner that decides, and fences its term.

Candidates are ephemeral nodes in a sequence; the first leads. kazoo's own recipe waits without end while ZooKeeper is
silent, lets its pauses grow to a minute and may leave a candidate behind that nobody speaks for; here every wait is
bounded, and whatever stands under our name is removed before we stand anew.

The winner raises the version of the term node in a transaction that also checks its own candidate node; that version is
the fence, and every later write checks it. A leader steps down by its own clock: while ZooKeeper is frozen
kazoo stays suspended and never says that the session is lost, and a process that was stopped does not see time pass.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.ports.leadership import Leader, Term

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_LEAVE_SECONDS = 3.0
"""What `leave` waits at most for a ZooKeeper that does not answer."""

_SEQUENCE_DIGITS = 10


class ZooKeeperElection:
    """One candidate; an `Election`. The session is its own: another's load must not delay its heartbeat."""

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        self._client, self._own = client, own
        self._patience = session_timeout.total_seconds() * 2 / 3
        self._beat = session_timeout.total_seconds() / 6
        self._name = f"{uuid.uuid4().hex}-"
        self._candidate = ""
        self._leaving = threading.Event()
        self._stirred = threading.Event()
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._last_contact = 0.0
        self._thread: threading.Thread | None = None
        self._address = ""
        self._on_change: Callable[[], None] = lambda: None

    @property
    def term(self) -> Term | None:
        """The term that this candidate holds; None once ZooKeeper was silent for two thirds of the session."""
        if time.monotonic() - self._last_contact > self._patience:
            return None
        return self._term

    def leader(self) -> Leader | None:
        """Return who led last."""
        with translated_errors("reading who leads"):
            try:
                data, stat = self._client.get_async(self._own.term).get(timeout=self._patience)
            except NoNodeError:
                return None
        if not stat.version:
            return None
        since = datetime.fromtimestamp(stat.last_modified, UTC)
        try:
            return Leader(stat.version, str(json.loads(data)["address"]), since)
        except (ValueError, KeyError, TypeError):
            return Leader(stat.version, "", since)

    def join(self, address: str, on_change: Callable[[], None]) -> None:
        """Stand for election from now on."""
        self._address, self._on_change = address, on_change
        self._thread = threading.Thread(target=self._campaign, name="election", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Give up the term at once, and the candidacy as soon as ZooKeeper answers."""
        self._leaving.set()
        self._over()
        self._stirred.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)
            if self._thread.is_alive():
                log.warning("ZooKeeper does not answer: the candidacy ends with the session")

    # Standing.

    def _campaign(self) -> None:
        self._client.add_listener(self._stir)
        while not self._leaving.is_set():
            try:
                self._withdraw()
                self._stand()
            except (KazooException, KazooTimeoutError) as error:
                log.warning("the election is interrupted: %s %s", type(error).__name__, error)
            self._leaving.wait(_RETRY_SECONDS)
        self._client.remove_listener(self._stir)
        self._withdraw_for_good()

    def _stir(self, _what: object) -> None:
        """Look again: the connection or the candidate before us changed."""
        self._stirred.set()

    def _stand(self) -> None:
        """Become a candidate, wait for our turn and lead; return when the candidacy or the term is over."""
        path = f"{self._own.election}/{self._name}"
        created = self._client.create_async(path, b"", ephemeral=True, sequence=True, makepath=True)
        self._candidate = self._answer(created).rpartition("/")[2]
        while not self._leaving.is_set():
            self._stirred.clear()
            queue = sorted(self._answer(self._client.get_children_async(self._own.election)), key=_sequence)
            if self._candidate not in queue:
                return  # it went with an earlier session
            place = queue.index(self._candidate)
            if place == 0:
                return self._lead()
            before_us = f"{self._own.election}/{queue[place - 1]}"
            if self._answer(self._client.exists_async(before_us, watch=self._stir)) is not None:
                self._stirred.wait(self._patience)

    def _withdraw(self) -> None:
        """Remove every node of our name, also one whose creation was never confirmed: we would wait behind it."""
        self._answer(self._client.sync_async(self._own.election))
        with suppress(NoNodeError):
            for name in self._answer(self._client.get_children_async(self._own.election)):
                if name.startswith(self._name):
                    with suppress(NoNodeError):
                        self._answer(self._client.delete_async(f"{self._own.election}/{name}"))

    def _withdraw_for_good(self) -> None:
        """Remove our candidacy, however long ZooKeeper is silent: others would wait behind it."""
        while True:
            try:
                return self._withdraw()
            except ConnectionClosedError:
                return  # it went with the session
            except (KazooException, KazooTimeoutError):
                time.sleep(_RETRY_SECONDS)

    def _answer(self, result: Any) -> Any:
        return result.get(timeout=self._patience)

    # Leading.

    def _lead(self) -> None:
        """Begin a term, and hold it for as long as ZooKeeper confirms it."""
        started = time.monotonic()
        fence = self._begin_term()
        if fence is None:
            return
        with self._lock:
            if self._leaving.is_set():
                return
            self._last_contact, self._term = started, Term(fence)
        try:
            self._on_change()
            self._hold(fence)
        finally:
            self._over()  # before the candidacy ends and another can lead

    def _hold(self, fence: int) -> None:
        """Return when the term is over."""
        while True:
            until = self._last_contact + self._patience
            if self._leaving.wait(max(0.0, min(self._beat, until - time.monotonic()))):
                return
            asked = time.monotonic()
            if asked >= until:
                log.warning("no word from ZooKeeper for %.1f s: the term is given up", self._patience)
                return
            try:
                end = self._end_of(fence, until - asked)
            except (KazooException, KazooTimeoutError):
                continue  # not answered is not an end; the clock decides
            if end:
                log.warning("term %d is over: %s", fence, end)
                return
            self._last_contact = asked

    def _end_of(self, fence: int, timeout: float) -> str:
        """Why a term is over; "" while it is not."""
        term = self._client.get_async(self._own.term)
        candidate = self._client.exists_async(self._candidate_path())
        version = term.get(timeout=timeout)[1].version
        if version != fence:
            return f"term {version} began"
        return "" if candidate.get(timeout=timeout) else "the candidacy ended with the session"

    def _candidate_path(self) -> str:
        return f"{self._own.election}/{self._candidate}"

    def _begin_term(self) -> int | None:
        """Raise the term's version while our candidacy stands; None when it does not."""
        with suppress(NodeExistsError):
            self._answer(self._client.create_async(self._own.term, b"", makepath=True))
        version = self._answer(self._client.get_async(self._own.term))[1].version
        holder = {"holder": self._candidate, "address": self._address}
        transaction = self._client.transaction()
        transaction.check(self._candidate_path(), 0)
        transaction.set_data(self._own.term, json.dumps(holder).encode(), version)
        results = self._answer(transaction.commit_async())
        if any(isinstance(result, Exception) for result in results):
            log.warning("the term could not begin: %s", results)
            return None
        return int(results[1].version)

    def _over(self) -> None:
        with self._lock:
            ended, self._term = self._term, None
        if ended is not None:
            self._on_change()


def _sequence(name: str) -> str:
    return name[-_SEQUENCE_DIGITS:]
