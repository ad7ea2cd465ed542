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

import logging
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.state_store.candidate import Candidate
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import (
    NOT_ADMITTED,
    new_origin,
    origin_path,
    read_origin,
    translated_errors,
)
from autothrottle.core.retries import ELECTION
from autothrottle.ports.state_store import Leader

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 3.0
"""How long `leave` waits at most for ZooKeeper to answer."""

_REST_POLL_SECONDS = 1.0

_DENIAL_LOG_SECONDS = 60.0

_SEQUENCE_DIGITS = 10


class ZooKeeperElection(Candidate):
    """One candidate. It needs a ZooKeeper session of its own, so that other load cannot delay pings."""

    _store, _end = "ZooKeeper", "the session expires"

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        super().__init__(own, session_timeout, _LEAVE_SECONDS)
        self._client = client
        self._name = f"{uuid.uuid4().hex}-"
        self._candidate = ""
        self._next_denial_log = 0.0

    def leader(self) -> Leader | None:
        with translated_errors("reading who leads"):
            try:
                data, stat = self._client.get_async(self._own.term).get(timeout=self._silence_limit)
                fence = read_origin(self._client, self._own, self._silence_limit) + stat.version
            except NoNodeError:
                return None
        if not stat.version:
            return None
        return self._leader_in(data or b"", fence, datetime.fromtimestamp(stat.last_modified, UTC))

    # Campaigning.

    def _campaign(self) -> None:
        self._client.add_listener(self._wake_up)
        while not self._has_left():
            rests = False
            try:
                self._withdraw()
                if not (rests := time.monotonic() < self._rests_until and bool(self._others())):
                    self._run_candidacy()
            except NoAuthError:
                self._log_denial()
                rests = True
            except (KazooException, KazooTimeoutError) as error:
                log.warning("Election interrupted, trying again: %s %s", type(error).__name__, error)
            except Exception:  # a bug must not end the thread: this planner would never lead again
                log.exception("Election failed unexpectedly, trying again")
            self._leaving.wait(_REST_POLL_SECONDS if rests else ELECTION.first)
        self._client.remove_listener(self._wake_up)

    def _log_denial(self) -> None:
        if time.monotonic() >= self._next_denial_log:
            self._next_denial_log = time.monotonic() + _DENIAL_LOG_SECONDS
            log.error("ZooKeeper denies this planner the election, so that it cannot lead: %s", NOT_ADMITTED)

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
                return self._claim()
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
        """Delete our candidate nodes, retrying until ZooKeeper answers."""
        while self._leaving.is_set():
            try:
                return self._withdraw()
            except (ConnectionClosedError, NoAuthError):
                return  # the node ends with the session
            except (KazooException, KazooTimeoutError):
                time.sleep(ELECTION.first)

    def _rivals(self) -> list[str]:
        with translated_errors("reading the candidates"):
            return self._others()

    def _others(self) -> list[str]:
        """The nodes of other candidates."""
        names = self._answer(self._client.get_children_async(self._own.election))
        return [name for name in names if not name.startswith(self._name)]

    def _answer(self, result: Any) -> Any:
        return result.get(timeout=self._silence_limit)

    # Leading.

    def _claim(self) -> None:
        """Begin a term, and hold it."""
        started = time.monotonic()
        fence = self._begin_term()
        if fence is not None:
            self._lead(fence, started)

    def _why_over(self, fence: int, deadline: float) -> str:
        with translated_errors("confirming the term"):
            try:
                term = self._client.get_async(self._own.term)
                candidate = self._client.exists_async(self._candidate_path())
                origin = read_origin(self._client, self._own, seconds_left(deadline))
                newest = origin + term.get(timeout=seconds_left(deadline))[1].version
                if newest != fence:
                    return f"term {newest} has begun"
                is_registered = candidate.get(timeout=seconds_left(deadline))
                return "" if is_registered else "the candidacy ended with the session"
            except NoNodeError:
                return "the term node was deleted"

    def _candidate_path(self) -> str:
        return f"{self._own.election}/{self._candidate}"

    def _begin_term(self) -> int | None:
        """Raise the version of the term node if our candidate node exists; return the term's fence, or None."""
        with suppress(NodeExistsError):
            self._answer(self._client.create_async(self._own.term, b"", makepath=True))
        stat = self._answer(self._client.get_async(self._own.term))[1]
        known_origin = read_origin(self._client, self._own, self._silence_limit)
        origin = known_origin or new_origin(stat.ctime)
        transaction = self._client.transaction()
        transaction.check(self._candidate_path(), 0)
        if known_origin:
            transaction.check(origin_path(self._own, origin), -1)
        else:
            transaction.create(origin_path(self._own, origin))
        transaction.set_data(self._own.term, self._term_text(self._candidate).encode(), stat.version)
        results = self._answer(transaction.commit_async())
        if denials := [result for result in results if isinstance(result, NoAuthError)]:
            raise denials[0]
        if any(isinstance(result, Exception) for result in results):
            log.warning("Cannot begin a term, trying again: %s", results)
            return None
        return origin + int(results[-1].version)


def _sequence(name: str) -> str:
    return name[-_SEQUENCE_DIGITS:]
