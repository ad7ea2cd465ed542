"""Elects the one planner that decides, by kazoo's election, and fences its term.

The winner raises the version of the term node in a transaction that also checks its own candidate node; that version is
the fence, and every later write checks it. A leader steps down by its own clock: while ZooKeeper is frozen
kazoo stays suspended and never says that the session is lost, and a process that was stopped does not see time pass.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import CancelledError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.ports.leadership import Leader, Term

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2


class ZooKeeperElection:
    """One candidate; an `Election`. The session is its own: another's load must not delay its heartbeat."""

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        self._client, self._own = client, own
        self._patience = session_timeout.total_seconds() * 2 / 3
        self._beat = session_timeout.total_seconds() / 6
        self._leaving = threading.Event()
        self._term: Term | None = None
        self._last_contact = 0.0
        self._thread: threading.Thread | None = None
        self._election = client.Election(own.election)
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
        try:
            return Leader(stat.version, str(json.loads(data)["address"])) if stat.version else None
        except (ValueError, KeyError, TypeError):
            return Leader(stat.version, "")

    def join(self, address: str, on_change: Callable[[], None]) -> None:
        """Stand for election from now on."""
        self._address, self._on_change = address, on_change
        self._thread = threading.Thread(target=self._campaign, name="election", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Give up the term and the candidacy at once."""
        self._leaving.set()
        while self._thread is not None and self._thread.is_alive():
            self._election.cancel()  # again and again: the campaign may just have begun anew
            self._thread.join(0.1)

    def _campaign(self) -> None:
        while not self._leaving.is_set():
            self._election = self._client.Election(self._own.election, self._address)
            try:
                self._election.run(self._lead)
            except (KazooException, KazooTimeoutError, CancelledError) as error:
                log.warning("the election is interrupted: %s %s", type(error).__name__, error)
            finally:
                self._over()
                self._withdraw()
            self._leaving.wait(_RETRY_SECONDS)

    def _lead(self) -> None:
        """Begin a term, and hold it for as long as ZooKeeper confirms it."""
        started = time.monotonic()
        fence = self._begin_term()
        if fence is None:
            return
        self._last_contact, self._term = started, Term(fence)
        self._on_change()
        while not self._leaving.wait(self._beat):
            asked = time.monotonic()
            left = self._last_contact + self._patience - asked
            if left <= 0:
                log.warning("no word from ZooKeeper for %.1f s: the term is given up", self._patience)
                return
            try:
                _, stat = self._client.get_async(self._own.term).get(timeout=left)
            except (KazooException, KazooTimeoutError):
                self._leaving.wait(min(_RETRY_SECONDS, left))
                continue
            if stat.version != fence:
                log.warning("term %d is over: term %d began", fence, stat.version)
                return
            if self._election.lock.node is None or not self._is_candidate(left):
                log.warning("term %d is over: the candidacy ended with the session", fence)
                return
            self._last_contact = asked

    def _candidate_path(self) -> str:
        return f"{self._own.election}/{self._election.lock.node}"

    def _is_candidate(self, timeout: float) -> bool:
        try:
            return self._client.exists_async(self._candidate_path()).get(timeout=timeout) is not None
        except (KazooException, KazooTimeoutError):
            return True  # not answered is not a no; the clock decides

    def _begin_term(self) -> int | None:
        """Raise the term's version while our candidacy stands; None when it does not."""
        with suppress(NodeExistsError):
            self._client.create(self._own.term, b"", makepath=True)
        version = self._client.get(self._own.term)[1].version
        holder = {"holder": self._election.lock.node, "address": self._address}
        transaction = self._client.transaction()
        transaction.check(self._candidate_path(), 0)
        transaction.set_data(self._own.term, json.dumps(holder).encode(), version)
        results = transaction.commit_async().get(timeout=self._patience)
        if any(isinstance(result, Exception) for result in results):
            log.warning("the term could not begin: %s", results)
            return None
        return int(results[1].version)

    def _withdraw(self) -> None:
        """Remove what an interrupted election left of our candidacy: we would wait behind ourselves for ever."""
        try:
            for name in self._client.get_children(self._own.election):
                if name.startswith(self._election.lock.prefix):
                    self._client.delete(f"{self._own.election}/{name}")
        except NoNodeError:
            pass
        except (KazooException, KazooTimeoutError) as error:
            log.warning("the candidacy could not be withdrawn: %s %s", type(error).__name__, error)

    def _over(self) -> None:
        if self._term is not None:
            self._term = None
            self._on_change()
