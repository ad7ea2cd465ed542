"""Follows the state topic, and appends edits to it. The type to know is `StateLog`.

One thread reads all records and applies them. Another one appends the edits of all callers in batches, so that many
callers wait for one request. An edit is sent again until it is acknowledged, which is safe: a second copy has no effect
(`StateEdit.id`). Its caller returns when it is acknowledged and its own process has read it back. Only then is its
effect known, and all earlier edits of other processes have been applied here, too.

No read is answered from a copy that may be old: `synced` appends an empty edit first.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from autothrottle.adapters.concurrency.subscriptions import Subscription, Subscriptions, seconds_left
from autothrottle.adapters.kafka_state.replica import EditResult, StateEdit, StateReplica, Tree
from autothrottle.adapters.kafka_state.replica_repair import ReplicaRepair
from autothrottle.adapters.kafka_state.topic import OutOfLog, Records, Topic
from autothrottle.core.errors import AutothrottleError, Conflict, Incomplete, Invalid, Missing, Unavailable
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS
from autothrottle.core.retries import STATE_TOPIC
from autothrottle.core.texts import capitalized

log = logging.getLogger(__name__)

_READ_SECONDS = 0.5
"""How long a read waits at the broker for new records."""
_ATTEMPT_SECONDS = 2.0
"""Time limit of one request. A frozen broker must not use up the time of the next leader."""
_BATCH_BYTES = 800_000
"""Limit of the records in one request; Kafka refuses batches above 1 MB by default."""
_SNAPSHOT_BYTES = 4_000_000
"""A snapshot follows after this many bytes of records, or after twice its own size if that is more."""
_SNAPSHOT_SECONDS = 60.0
_SETTINGS_SECONDS = 10.0
"""How often the leader reads the settings and the replicas of the topic."""
_END_SECONDS = 1.0
_POLL_SECONDS = 0.05
_RECORD_BYTES = 70
"""Kafka's own bytes of a record that is alone in its batch."""


@dataclass(slots=True)
class _Pending:
    """An edit that its caller waits for."""

    edit: StateEdit
    value: bytes
    deadline: float
    is_acknowledged: bool = False
    result: EditResult | None = None
    error: AutothrottleError | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or (self.is_acknowledged and self.result is not None)


class StateLog:
    """The state of one topic in this process. Thread-safe. It starts at the first use, and connects until it is closed.

    All calls that wait raise Unavailable: the topic cannot be read or written in time. After a call that appends, the
    edit may still take effect later.
    """

    def __init__(
        self,
        topic: Topic,
        name: str,
        term_path: str,
        silence_limit: float,
        audit_records: int = MAX_AUDIT_RECORDS,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            topic: holds the records.
            name: of the topic, for messages.
            term_path: the node whose version is the fence of the newest term.
            silence_limit: > 0, seconds; after them without an answer, the topic counts as unavailable.
            audit_records: number of audit records to keep; the same in all processes.
        """
        self._topic, self.name, self.silence_limit = topic, name, silence_limit
        self.repair = ReplicaRepair(topic, name)
        self._replica = StateReplica(term_path, audit_records)
        self._changed = threading.Condition(threading.RLock())
        """Guards the replica and all pending edits; notified after each read and each answer."""
        self._queue: list[_Pending] = []
        self._pending: dict[str, _Pending] = {}
        self._written: dict[str, float] = {}
        """Path -> when its last write was read, on the monotonic clock."""
        self._watchers: Subscriptions[frozenset[str]] = Subscriptions()
        self._topic_id = self._last_topic_id = ""
        self._log_start = self._bytes_since_snapshot = self._snapshot_bytes = 0
        self._last_contact = self._last_append = self._complete_time = time.monotonic()
        self._settings_time = -_SETTINGS_SECONDS
        """When the leader last read the settings and the replicas of the topic, on the monotonic clock."""
        self._risks: frozenset[str] = frozenset()
        """What the log has said about the settings."""
        self._is_suspect = False
        """Whether records may have been lost since the last snapshot, because the settings were other ones."""
        self._incomplete_time: float | None = None
        """When the end of a log was reached whose beginning is lost, on the monotonic clock; None: it is complete."""
        self._problem = "has not been read yet"
        self._refusal: AutothrottleError | None = None
        """Why Kafka or the topic needs an operator; None: waiting may help."""
        self._process, self._numbers = uuid.uuid4().hex[:16], count()
        self._closed = threading.Event()
        self._start_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.led_last = False
        """Whether this process led when a topic was lost, so that it knows the most of it; set by its candidate."""

    # Using the state

    def append(self, edit: StateEdit, deadline: float) -> EditResult:
        """Append an edit; return its result once it is acknowledged and read back.

        Raises:
            Unavailable: it is unknown whether the edit takes effect.
            Invalid: Kafka refuses it.
        """
        return self.append_all([edit], deadline)[0]

    def _new_id(self) -> str:
        return f"{self._process}-{next(self._numbers)}"

    def append_all(self, edits: Sequence[StateEdit], deadline: float) -> list[EditResult]:
        """Append edits in this order; return their results."""
        named = [replace(edit, id=self._new_id()) for edit in edits]
        pending = [_Pending(edit, edit.encoded(), deadline) for edit in named]
        self._start()
        with self._changed:
            self._queue += pending
            self._pending |= {p.edit.id: p for p in pending}
            self._changed.notify_all()
            try:
                while not all(p.is_done for p in pending) and time.monotonic() < deadline and not self._closed.is_set():
                    self._changed.wait(seconds_left(deadline))
                for p in pending:
                    if p.error is not None:
                        raise p.error
                    if not p.is_done:
                        raise self._unavailable()
                return [p.result for p in pending if p.result is not None]
            finally:
                for p in pending:
                    del self._pending[p.edit.id]

    @contextmanager
    def synced(self, deadline: float) -> Iterator[Tree]:
        """Give the tree with all edits that were acknowledged before the call. Other threads wait meanwhile."""
        self.append(StateEdit(), deadline)
        with self._changed:
            yield self._replica.tree

    @contextmanager
    def current(self) -> Iterator[Tree]:
        """Give the tree as last read. Other threads wait meanwhile."""
        with self._changed:
            yield self._replica.tree

    def silence(self, path: str) -> float:
        """Return the seconds since a write of a node was last read; since the start of the reading if none was."""
        with self._changed:
            return time.monotonic() - self._written.get(path, self._complete_time)

    def living(self, parent: str, seconds: float) -> list[str]:
        """Return the paths of the children of a node that were written within so many seconds."""
        with self._changed:
            paths = [f"{parent}/{name}" for name in self._replica.tree.children(parent)]
            return [path for path in paths if self.silence(path) <= seconds]

    def watch(self, paths: Callable[[str], bool], notify: Callable[[], None]) -> Subscription[frozenset[str]]:
        """Call `notify` after each read that changed one of these paths. It must not block."""
        self._start()
        return self._watchers.add(lambda changed: notify() if any(map(paths, changed)) else None)

    def problem(self) -> str:
        """Return why the state cannot be used; "": it was read within the silence limit."""
        with self._changed:
            age = time.monotonic() - self._last_contact
            if self._replica.is_complete and age <= self.silence_limit:
                return ""
            return f"the state topic {self.name} {self._problem or f'has not been read for {age:.0f} s'}"

    def _unavailable(self) -> Unavailable:
        problem = self.problem() or f"the state topic {self.name} did not confirm a record in time"
        return Unavailable(problem)

    # Threads

    def _start(self) -> None:
        with self._start_lock:
            if not self._threads and not self._closed.is_set():
                for target, name in ((self._follow, "state-reader"), (self._send, "state-writer")):
                    self._threads.append(threading.Thread(target=target, name=name, daemon=True))
                for thread in self._threads:
                    thread.start()

    def close(self) -> None:
        """End the threads; running calls fail. Idempotent."""
        with self._start_lock:
            self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self.repair.close()
        self._topic.close()
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def prepare(self, deadline: float, is_stopping: Callable[[], bool]) -> None:
        """Create the topic if needed, and wait until the state has been read.

        Raises:
            Invalid: Kafka refuses it, or the topic has settings that could lose records; at once.
            Incomplete: the topic lacks its beginning, and no other process has restored it in time.
            Unavailable: it cannot be read in time.
        """
        self._start()
        with self._changed:
            while not self._replica.is_complete:
                is_over = time.monotonic() > deadline or is_stopping()
                if is_over or isinstance(self._refusal, Invalid):
                    raise self._refusal or self._unavailable()
                self._changed.wait(_POLL_SECONDS)
        for risk in self._topic.risks(deadline).values():
            raise Invalid(risk)
        self.append(StateEdit(), deadline)

    # Reading

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                if not self._topic_id:
                    self._begin()
                self._read()
                continue
            except OutOfLog:
                self._topic_id = ""
                continue
            except Missing:
                self._topic_id = ""
                self._create()
            except AutothrottleError as error:
                self._refusal = None if isinstance(error, Unavailable) else error
                self._problem = f"cannot be read: {error}"
                self.repair.soon(time.monotonic() - self._last_contact)
            except Exception:  # a bug must not end the thread: this process would never see a change again
                log.exception("Reading the state topic failed unexpectedly, trying again")
            self._closed.wait(STATE_TOPIC.first)

    def _begin(self) -> None:
        """Find the topic, and start at its first record, or continue."""
        topic_id, start = self._topic.locate(time.monotonic() + _ATTEMPT_SECONDS)
        with self._changed:
            is_new = topic_id != self._last_topic_id
            if is_new and self._last_topic_id:
                log.warning("The state topic %s was deleted and created again", self.name)
            self._replica.begin(start, is_new)
            self._topic_id = self._last_topic_id = topic_id
            self._log_start, self._incomplete_time, self._refusal = start, None, None

    def _create(self) -> None:
        try:
            self._topic.create(time.monotonic() + _ATTEMPT_SECONDS)
            self._refusal = None
            log.info("Created the state topic %s", self.name)
        except AutothrottleError as error:
            self._refusal = None if isinstance(error, Unavailable) else error
            self._problem = f"does not exist and cannot be created: {error}"

    def _read(self) -> None:
        deadline = time.monotonic() + _READ_SECONDS + _ATTEMPT_SECONDS
        started = time.monotonic()
        answer = self._topic.read(self._topic_id, self._replica.position, -1, _READ_SECONDS, deadline)
        with self._changed:
            changed = self._apply(answer)
            self._changed.notify_all()
        if changed:
            self._watchers.publish(changed)
        if not self._replica.is_complete and not answer.records and not answer.throttle_seconds:
            self._complete()
        if not answer.records and time.monotonic() - started < STATE_TOPIC.first:
            # A new leader with records that its followers do not have yet answers at once, again and again.
            self._closed.wait(STATE_TOPIC.first)

    def _apply(self, answer: Records) -> frozenset[str]:
        """Apply records; return the paths that they changed."""
        replica, time_of_answer = self._replica, time.monotonic()
        self._last_contact, self._problem, self._log_start = time_of_answer, "", answer.start
        was_complete, last_tree, last_base = replica.is_complete, replica.tree, replica.snapshot_base
        changed: set[str] = set()
        following = [*(record.offset for record in answer.records[1:]), answer.next_offset]
        for record, next_offset in zip(answer.records, following, strict=False):
            self._bytes_since_snapshot += len(record.value) + _RECORD_BYTES
            for result in replica.accept(*record[:3]):
                if result.version:
                    changed.update(result.edit.texts)
                if (pending := self._pending.get(result.edit.id)) is not None and pending.result is None:
                    pending.result, replica.has_been_current = result, True
            if record.offset in answer.skipped:
                replica.position = next_offset
            if replica.snapshot_base != last_base:
                last_base, self._bytes_since_snapshot = replica.snapshot_base, 0
        self._written |= dict.fromkeys(changed, time_of_answer)
        replica.advance(answer.next_offset)
        if replica.is_complete and (not was_complete or replica.tree is not last_tree):
            self._complete_time, self._refusal = time_of_answer, None
            self._send_again()
            self._written.clear()
            changed.update(path for tree in (last_tree, replica.tree) for path, _ in tree.nodes())
        if replica.lost is not None:
            lost, replica.lost = sum(1 for _ in replica.lost.nodes()), None
            log.error(
                "The state topic %s was lost, and another process began anew without its %d entries. Throttles of the "
                "old ledger count as those of another party. Fix: stop all processes, delete the topic, and restore a "
                "backup with `autothrottle state import`",
                self.name,
                lost,
            )
        return frozenset(changed)

    def _complete(self) -> None:
        """At the end of a log whose beginning is lost: restore it from memory, or say so."""
        replica, time_of_end = self._replica, time.monotonic()
        if self._incomplete_time is None:
            self._incomplete_time = time_of_end
        if not replica.tree.last_version:
            self._problem = (
                f"lacks its beginning: another party deleted the records before offset {replica.start}. Fix: if a "
                "process of autothrottle still runs, it restores them within seconds. Otherwise delete the topic. Then "
                "restore a backup with `autothrottle state import`, or begin without a ledger"
            )
            self._refusal = Incomplete(f"the state topic {self.name} {self._problem}")
            return
        patience = 0.0 if self.led_last else 2 * self.silence_limit
        if time_of_end - self._incomplete_time < patience:
            return
        self._append_parts(replica.tree)
        log.warning(
            "Records of the state topic %s were deleted by another party. Restored %d entries from memory",
            self.name,
            sum(1 for _ in replica.tree.nodes()),
        )
        self._incomplete_time = time.monotonic()

    def _append_parts(self, tree: Tree) -> None:
        """Append a snapshot that replaces what was lost."""
        with self._changed:
            parts = tree.parts(self._new_id(), self._replica.position, self._replica.start)
        for part in parts:
            self._append([part])

    def restore(self, tree: Tree, deadline: float) -> None:
        """Load a tree into a topic without changes; return when it is loaded.

        Raises:
            Conflict: another process has changed something.
            Unavailable: it is unknown whether it was loaded.
        """
        self._append_parts(tree)
        with self.synced(deadline) as loaded:
            if loaded.last_version < tree.last_version:
                raise Conflict(f"another process has changed the topic {self.name} meanwhile. Nothing was loaded")

    # Appending

    def _send(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                batch = self._batch()
                if not batch:
                    self._changed.wait(_READ_SECONDS)
                    continue
            try:
                self._append([p.value for p in batch])
                self._settle(batch)
            except (Missing, Unavailable) as error:  # the reader creates a missing topic
                with self._changed:
                    self._queue[:0] = batch
                log.debug("Appending to the state topic %s failed, trying again: %s", self.name, error)
                self.repair.soon(time.monotonic() - self._last_append)
                self._closed.wait(STATE_TOPIC.first)
            except AutothrottleError as error:
                self._refuse(batch, error)
            except Exception:  # a bug must not end the thread: this process could never change anything again
                log.exception("Appending to the state topic failed unexpectedly, trying again")
                self._closed.wait(STATE_TOPIC.first)

    def _batch(self) -> list[_Pending]:
        """Take the next edits that are still awaited. Nothing is appended before the whole state is known."""
        if not self._replica.is_complete:
            return []
        time_of_batch, size, batch = time.monotonic(), 0, list[_Pending]()
        while self._queue and (not batch or size + len(self._queue[0].value) <= _BATCH_BYTES):
            pending = self._queue.pop(0)
            if pending.deadline > time_of_batch:
                batch.append(pending)
                size += len(pending.value)
        return batch

    def _send_again(self) -> None:
        """Send all edits again that were appended while the state was not known, since they were not read back."""
        for pending in self._pending.values():
            if pending.is_acknowledged and pending.result is None:
                pending.is_acknowledged = False
                self._queue.append(pending)

    def _append(self, values: Sequence[bytes]) -> None:
        self._topic.append(values, time.monotonic() + _ATTEMPT_SECONDS)
        self._last_append = time.monotonic()

    def _settle(self, batch: Sequence[_Pending]) -> None:
        with self._changed:
            for pending in batch:
                pending.is_acknowledged = True
            self._changed.notify_all()

    def _refuse(self, batch: Sequence[_Pending], error: AutothrottleError) -> None:
        """Let a refused edit fail alone: the others of its batch are sent again one by one."""
        for pending in batch:
            try:
                if len(batch) > 1:
                    self._append([pending.value])
                    self._settle([pending])
                    continue
                pending.error = error
            except AutothrottleError as own_error:
                pending.error = own_error
        with self._changed:
            self._changed.notify_all()

    # Settings

    @property
    def is_settings_check_due(self) -> bool:
        """Whether the leader should read the settings and the replicas of the topic."""
        return time.monotonic() - self._settings_time >= _SETTINGS_SECONDS

    def check_settings(self) -> None:
        """Warn once of each setting that could lose records, and look for a missing replica.

        Another party may change the topic at any time.
        """
        self._settings_time = time.monotonic()
        risks = frozenset(self._topic.risks(self._settings_time + _ATTEMPT_SECONDS).values())
        for risk in sorted(risks - self._risks):
            log.warning("%s", capitalized(risk))
        if risks != self._risks:
            self._risks, self._is_suspect = risks, True
        self.repair.soon()

    # Snapshots

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the leader should append a snapshot: the log has grown, or may lack records."""
        with self._changed:
            has_gap = self._log_start > self._replica.snapshot_base
            limit = max(_SNAPSHOT_BYTES, 2 * self._snapshot_bytes)
            return self._replica.is_complete and (has_gap or self._is_suspect or self._bytes_since_snapshot > limit)

    def write_snapshot(self) -> None:
        """Append a snapshot, wait until it is complete, and delete the records before it.

        Raises:
            Unavailable: nothing was deleted.
        """
        with self._changed:
            tree, base = self._replica.tree.copy(), self._replica.position
        parts = tree.parts(self._new_id(), base)
        self._snapshot_bytes = sum(map(len, parts))
        deadline = time.monotonic() + _SNAPSHOT_SECONDS
        for part in parts:
            self._append([part])
        with self._changed:
            while self._replica.snapshot_base < base:
                if time.monotonic() > deadline or self._closed.is_set():
                    raise self._unavailable()
                self._changed.wait(_READ_SECONDS)
            self._is_suspect = False
        self._topic.delete_before(base, deadline)
