"""Elects the leading planner in the state topic, and fences its term.

A candidate writes its node again and again: its heartbeat. A claim is an edit of the term's node that expects the last
known version of that node, and the last known version of the leader's own node. So of several claims only the first is
valid, and none is valid if the leader has written a heartbeat that the claimant had not yet read. The version of the
claim is the fence of the term, which every later edit of the term names (`replica.StateEdit.fence`).

A candidate claims when it has read no heartbeat of the leader for the session timeout, by its own monotonic clock. A
leader steps down two thirds of the session timeout after it sent the last heartbeat that it has read back. It sent that
heartbeat before any other process could read it. So it has stepped down before another can claim, if their clocks
run at the same speed within a third.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.tree import EditResult, Effect, Tree
from autothrottle.adapters.state_store.candidate import Candidate
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.codec import integer, text
from autothrottle.core.errors import FIELD_ERRORS, AutothrottleError, Unavailable
from autothrottle.core.retries import ELECTION
from autothrottle.ports.state_store import Leader

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 1.0
"""How long `leave` waits at most for Kafka to confirm it."""


class KafkaElection(Candidate):
    """One candidate."""

    _store, _end = "the state topic", "it expires"

    def __init__(self, state: StateLog, own: OwnPaths, session_timeout: timedelta, repairs: bool = True) -> None:
        """Prepare; `repairs`: whether this process repairs the replicas of the topic, once it has joined."""
        super().__init__(own, session_timeout, _LEAVE_SECONDS + session_timeout.total_seconds() / 6)
        self._state = state
        self._turn_seconds = self._session_seconds / 3
        """How long a candidate lets each one go first that has waited longer."""
        self._name = uuid.uuid4().hex
        self._path = f"{own.election}/{self._name}"
        self._joined = 0
        """Version of the first heartbeat of this candidacy; 0: none is written yet."""
        self._refusal = ""
        """The last refusal that was logged."""
        self._resets = 0
        """How often the log had replaced its tree when the term began (`StateLog.resets`)."""
        self._upkeep: threading.Thread | None = None
        self._repairs = repairs

    def leader(self) -> Leader | None:
        with self._state.synced(time.monotonic() + self._silence_limit) as tree:
            node = tree.node(self._own.term)
        if node is None:
            return None
        return self._leader_in(node.text.encode(), node.version, datetime.fromtimestamp(node.time / 1000, UTC))

    # Campaigning.

    def _campaign(self) -> None:
        if self._repairs:
            self._state.repair.turn = self._repair_turn
        watch = self._state.watch(self._is_ours, self._wake.set)
        while not self._has_left():
            self._wake.clear()
            try:
                if time.monotonic() < self._rests_until and self._others():
                    self._wake.wait(self._heartbeat_seconds)
                else:
                    self._run_candidacy()
            except Unavailable as error:
                log.debug("The election is interrupted, trying again: %s", error)
                self._leaving.wait(ELECTION.first)
            except AutothrottleError as error:
                self._report_refusal(str(error))
                self._leaving.wait(self._heartbeat_seconds)
            except Exception:  # a bug must not end the thread: this planner would never lead again
                log.exception("The election failed unexpectedly, trying again")
                self._leaving.wait(ELECTION.first)
        watch.close()

    def _report_refusal(self, refusal: str) -> None:
        """Say once why Kafka refuses our records, and which settings of the topic may be the reason."""
        if refusal != self._refusal:
            self._refusal = refusal
            log.warning("The election is interrupted, trying again: %s", refusal)
            self._check_settings()

    def _is_ours(self, path: str) -> bool:
        """Whether a path belongs to the election."""
        return path == self._own.term or path.rpartition("/")[0] == self._own.election

    def _run_candidacy(self) -> None:
        """Write heartbeats, claim a term as soon as no other candidate leads, and hold it."""
        self._has_waited, self._joined = False, 0
        next_beat = 0.0
        while not self._leaving.is_set():
            started = time.monotonic()
            if started >= next_beat:
                beat = self._beat(started + self._silence_limit)
                if not self._joined:
                    self._joined = beat.version
                    self._beat(started + self._silence_limit)
                next_beat = started + self._heartbeat_seconds
            self._wake.clear()
            claim, patience = self._claim()
            if claim is None:
                self._wake.wait(max(0.01, min(next_beat - time.monotonic(), patience)))
                continue
            started = time.monotonic()
            result = self._state.append(claim, started + self._silence_limit)
            if result.effect is Effect.APPLIED:
                self._refusal, self._state.led_last, self._resets = "", True, self._state.resets
                self._lead(result.version, started)
                if self._rests_until > time.monotonic():
                    self._withdraw()
                return

    def _beat(self, deadline: float) -> EditResult:
        """Write a heartbeat. It says when this candidacy began: the version of its first heartbeat."""
        return self._state.append(StateEdit(texts={self._path: json.dumps({"joined": self._joined})}), deadline)

    def _claim(self) -> tuple[StateEdit | None, float]:
        """Return the edit that begins a term for us; None: another candidate may lead, for so many seconds at least."""
        with self._state.current() as tree:
            holder = self._holder_path(tree)
            versions = {self._own.term: tree.fence}
            if holder:
                versions[holder] = tree.version(holder)
        if not holder:  # a leader that restores a lost topic goes first
            patience = self._silence_limit - self._state.silence(self._own.term)
        elif holder == self._path:
            # After the session timeout, another term may have begun in records that an unclean election has lost.
            may_be_led = self._state.may_lose_tail and time.monotonic() - self._last_contact >= self._session_seconds
            patience = self._silence_limit - self._state.epoch_seconds if may_be_led else 0.0
        elif not versions[holder]:
            patience = self._rank() * self._turn_seconds - self._state.silence(holder)
        else:
            patience = self._session_seconds + self._rank() * self._turn_seconds - self._state.silence(holder)
        if holder and holder != self._path:
            self._state.led_last = False
        if patience > 0:
            self._has_waited = bool(holder)
            return None, patience
        # A new leader of the partition may lack the newest heartbeat, so a claim from before its election is void.
        texts = {self._own.term: self._term_text(self._name)}
        return StateEdit(versions=versions, texts=texts, epoch=self._state.epoch), 0.0

    def _rank(self) -> int:
        """The number of candidates that wait longer than this one. They may claim first."""
        with self._state.current() as tree:
            nodes = {path: node.text for path in self._others() if (node := tree.node(path)) is not None}
        return sum(0 < _joined(node) < self._joined for node in nodes.values())

    def _repair_turn(self) -> int:
        """The number of candidates that repair the topic before this one: the last leader, then the others by name.

        Those count that lived when the topic was last written. Without a heartbeat of its own, this one is the last.
        """
        with self._state.current() as tree:
            holder = self._holder_path(tree)
            paths = [f"{self._own.election}/{name}" for name in tree.children(self._own.election)]
        silences = {path: self._state.silence(path) for path in paths}
        limit = min(silences.values(), default=0.0) + self._session_seconds
        living = [path for path in paths if silences[path] <= limit]
        order = sorted(living, key=lambda path: (path != holder, path))
        return order.index(self._path) if self._path in order else len(order)

    def _holder_path(self, tree: Tree) -> str:
        """Return the node of the candidate that holds the newest term; "": there has been no term."""
        node = tree.node(self._own.term)
        if node is None:
            return ""
        try:
            return f"{self._own.election}/{text(json.loads(node.text)['holder'])}"
        except FIELD_ERRORS:
            return f"{self._own.election}/unknown"

    def _rivals(self) -> list[str]:
        self._beat(time.monotonic() + self._silence_limit)  # so that all candidates are known here
        return self._others()

    def _others(self) -> list[str]:
        """The nodes of other candidates that live."""
        return [path for path in self._state.living(self._own.election, self._session_seconds) if path != self._path]

    def _withdraw_for_good(self) -> None:
        with suppress(AutothrottleError):
            self._withdraw()

    def _withdraw(self) -> None:
        """Delete our node, so that others can claim at once."""
        self._state.append(StateEdit(texts={self._path: None}), time.monotonic() + _LEAVE_SECONDS)

    # Leading.

    def _why_over(self, fence: int, deadline: float) -> str:
        newest = self._beat(deadline).fence
        if newest != fence:
            self._state.led_last = False
            return f"term {newest} has begun"
        if self._state.resets != self._resets:
            return "another reading of the state topic has replaced the state of this process"
        is_due = self._state.is_snapshot_due or self._state.is_settings_check_due or self._is_marker_due()
        if is_due and (self._upkeep is None or not self._upkeep.is_alive()):
            self._upkeep = threading.Thread(target=self._maintain, args=(fence,), name="state-upkeep", daemon=True)
            self._upkeep.start()
        return ""

    def _is_marker_due(self) -> bool:
        return self._state.is_marker_due((self._own.election, self._own.members), 2 * self._session_seconds)

    def _maintain(self, fence: int) -> None:
        """Check the topic's settings, begin the strict rules once all processes know them, and keep the topic small."""
        if self._state.is_settings_check_due:
            self._check_settings()
        if self._is_marker_due():
            with suppress(AutothrottleError):  # the next heartbeat tries again
                self._state.mark_strict(fence, time.monotonic() + self._silence_limit)
        if self._state.is_snapshot_due:
            self._keep_small()

    def _check_settings(self) -> None:
        """Look whether another party has changed the topic so that it could lose records."""
        try:
            self._state.check_settings()
        except AutothrottleError as error:
            log.debug("The settings of the state topic cannot be read, trying again: %s", error)

    def _keep_small(self) -> None:
        """Append a snapshot, and remove the nodes of processes that died."""
        try:
            for path, version in self._expired():
                deadline = time.monotonic() + self._silence_limit
                self._state.append(StateEdit(versions={path: version}, texts={path: None}), deadline)
            self._state.write_snapshot()
        except AutothrottleError as error:
            level = logging.DEBUG if self._leaving.is_set() else logging.WARNING  # then the next leader does it
            log.log(level, "The state topic keeps its old records for now: %s", error)

    def _expired(self) -> Iterator[tuple[str, int]]:
        with self._state.current() as tree:
            parents = (self._own.election, self._own.members)
            nodes = [(f"{p}/{name}", node.version) for p in parents for name, node in tree.children(p).items()]
        for path, version in nodes:
            if self._state.silence(path) > 10 * self._session_seconds:
                yield path, version


def _joined(node: str) -> int:
    """Return when the candidacy of a node began; 0: unknown."""
    try:
        return integer(json.loads(node)["joined"])
    except FIELD_ERRORS:
        return 0
