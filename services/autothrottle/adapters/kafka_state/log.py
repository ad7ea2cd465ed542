"""Follows the state topic, and appends edits to it. The type to know is `StateLog`.

One thread reads all records and applies them. Another one appends the edits of all callers in batches, so that many
callers wait for one request. An edit is sent again until it is acknowledged, which is safe: a second copy has no effect
(`StateEdit.id`). Its caller returns when it is acknowledged and its own process has read it back. Only then is its
effect known, and all earlier edits of other processes have been applied here, too.

No read is answered from a copy that may be old: `synced` appends an empty edit first.

Each heartbeat has the digest of its author's tree. If it is not that of our tree, this process writes nothing until it
has read the log again. If its own tree changes, it stops leading. Otherwise it goes on, and names the other process.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from autothrottle.adapters.concurrency.subscriptions import Subscription, Subscriptions, seconds_left
from autothrottle.adapters.kafka_state.reader import LogLoss, StateReader
from autothrottle.adapters.kafka_state.records import CopyHeader, StateEdit, author
from autothrottle.adapters.kafka_state.replica_repair import ReplicaRepair
from autothrottle.adapters.kafka_state.topic import UNCLEAN_ELECTIONS, LostTail, OutOfLog, Records, Topic
from autothrottle.adapters.kafka_state.tree import EditResult, Tree
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
_REREAD_SECONDS = 60.0
"""Least time between two readings of the whole log because a process has another tree."""
_FOREIGN_RECORDS = 10_000
"""A topic whose first records are that many of other programs, and none of ours, is not ours."""
_OUTAGE_SECONDS = 1.0
"""How long an operation waits for a topic that has not answered for the silence limit."""
_REPORT_SECONDS = 60.0
"""Least time between two lines about records of other parties, and between two tracebacks."""


@dataclass(slots=True)
class _Pending:
    """An edit that its caller waits for."""

    edit: StateEdit
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
        is_kept: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            topic: holds the records.
            name: of the topic, for messages.
            term_path: the node whose version is the fence of the newest term.
            silence_limit: > 0, seconds; after them without an answer, the topic counts as unavailable.
            audit_records: number of audit records to keep; the same in all processes.
            is_kept: whether the node of a path is written again after its loss. Heartbeats need not be.
        """
        self._topic, self.name, self.silence_limit = topic, name, silence_limit
        self.repair = ReplicaRepair(topic, name)
        self._process, self._numbers = uuid.uuid4().hex[:16], count()
        self._new_reader = partial(StateReader, term_path, self._new_copy_id, is_kept, audit_records)
        self._reader = self._new_reader()
        self._changed = threading.Condition(threading.RLock())
        """Guards the replica and all pending edits; notified after each read and each answer."""
        self._queue: list[_Pending] = []
        self._pending: dict[str, _Pending] = {}
        self._written: dict[str, float] = {}
        """Path -> when its last write was read, on the monotonic clock."""
        self._watchers: Subscriptions[frozenset[str]] = Subscriptions()
        self._known_tree, self._is_interrupted = self._reader.tree, True
        """The tree that the watchers know, and whether it may be out of date."""
        self._is_located = False
        """Whether the topic was found since the last error that questions it."""
        self._is_tail_lost = False
        self._log_start = self._bytes_since_snapshot = self._snapshot_bytes = 0
        self._last_contact = self._last_append = self._complete_time = time.monotonic()
        self._settings_time = -_SETTINGS_SECONDS
        """When the leader last read the settings and the replicas of the topic, on the monotonic clock."""
        self._risks: frozenset[str] = frozenset()
        """What the log has said about the settings."""
        self.may_lose_tail = False
        """Whether another party allows Kafka to elect a leader of the partition that lacks its newest records."""
        self._is_suspect = False
        """Whether records may have been lost since the last snapshot, because the settings were other ones."""
        self._epoch_time = self._last_contact
        """When Kafka last elected a leader of the partition, as far as it is known here, on the monotonic clock."""
        self._authors: dict[str, str] = {}
        """Path -> the process that wrote it last; "": one that does not know the strict rules."""
        self._is_in_doubt = False
        """Whether another process has another tree, and the log has not been read again since."""
        self._next_reread = self._next_report = self._last_contact
        self._reported_records = 0
        self._next_traces: dict[str, float] = {}
        """Work -> when the traceback of its next failure is logged, on the monotonic clock."""
        self.differing: dict[str, str] = {}
        """Process whose tree differs from ours, although ours is that of the log -> a node that it writes."""
        self.resets = 0
        """How often this process has replaced its tree by another one of the same log. Then its term is over."""
        self._problem = "has not been read yet"
        self._refusal: AutothrottleError | None = None
        """Why Kafka or the topic needs an operator; None: waiting may help."""
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

    def _new_copy_id(self) -> str:
        """Return an id for a record that may overtake the edits of this process, and be overtaken."""
        return f"{self._process}c-{next(self._numbers)}"

    def append_all(self, edits: Sequence[StateEdit], deadline: float) -> list[EditResult]:
        """Append edits in this order; return their results."""
        self._start()
        milliseconds = time.time_ns() // 1_000_000
        with self._changed:  # ids grow in the order of the queue, since a smaller one would count as a second copy
            pending = [_Pending(replace(e, id=self._new_id(), time=e.time or milliseconds), deadline) for e in edits]
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
                    self._pending.pop(p.edit.id, None)

    @property
    def epoch(self) -> int:
        """Leader epoch of the last record that was read; -1: none was."""
        with self._changed:
            return self._reader.replica.epoch

    @property
    def epoch_seconds(self) -> float:
        """Time since Kafka last elected a leader of the partition, as far as it is known here, in seconds."""
        return time.monotonic() - self._epoch_time

    @contextmanager
    def synced(self, deadline: float) -> Iterator[Tree]:
        """Give the tree with all edits that were acknowledged before the call. Other threads wait meanwhile.

        While the topic does not answer at all, this fails after a second: a caller should get the reason in time.
        """
        self._start()
        with self._changed:
            if not self._changed.wait_for(self._answers, min(_OUTAGE_SECONDS, max(0.0, deadline - time.monotonic()))):
                raise self._unavailable()
        self.append(StateEdit(), deadline)
        with self._changed:
            yield self._reader.tree

    @contextmanager
    def current(self) -> Iterator[Tree]:
        """Give the tree as last read. Other threads wait meanwhile."""
        with self._changed:
            yield self._reader.tree

    def silence(self, path: str) -> float:
        """Return the seconds since a write of a node was last read; since the start of the reading if none was.

        A new leader of the partition may lack the newest write. So the silence begins anew with it.
        """
        with self._changed:
            return time.monotonic() - max(self._written.get(path, self._complete_time), self._epoch_time)

    def living(self, parent: str, seconds: float) -> list[str]:
        """Return the paths of the children of a node that were written within so many seconds."""
        with self._changed:
            paths = [f"{parent}/{name}" for name in self._reader.tree.children(parent)]
            return [path for path in paths if self.silence(path) <= seconds]

    def differing_nodes(self, seconds: float) -> Mapping[str, Mapping[str, str]]:
        """Return process -> path -> text of its nodes, for each process that differs from this one and still lives.

        Args:
            seconds: how long ago its last heartbeat may have been read.
        """
        if not self.differing:  # usually, and without waiting for the reader
            return {}
        nodes: dict[str, dict[str, str]] = {}
        with self._changed:
            for path, process in self._authors.items():
                node = self._reader.tree.node(path)
                if process in self.differing and node is not None and self.silence(path) <= seconds:
                    nodes.setdefault(process, {})[path] = node.text
        return nodes

    @property
    def losses(self) -> Mapping[LogLoss, int]:
        """As `StateReader.losses`."""
        return self._reader.losses

    def watch(self, paths: Callable[[str], bool], notify: Callable[[], None]) -> Subscription[frozenset[str]]:
        """Call `notify` after each read that changed one of these paths. It must not block."""
        self._start()
        return self._watchers.add(lambda changed: notify() if any(map(paths, changed)) else None)

    def problem(self) -> str:
        """Return why the state cannot be used; "": it was read within the silence limit."""
        with self._changed:
            age = self._contact_age
            if self._reader.is_ready and age <= self.silence_limit:
                return ""
            return f"the state topic {self.name} {self._problem or f'has not been read for {age:.0f} s'}"

    @property
    def _contact_age(self) -> float:
        """Seconds since the topic last answered a read; since the start if it did not."""
        return time.monotonic() - self._last_contact

    def _answers(self) -> bool:
        return self._contact_age <= self.silence_limit or self._closed.is_set()

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
            while not self._reader.is_ready:
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
                if not self._is_located:
                    self._begin()
                if self._read():
                    continue
            except OutOfLog as error:
                self._is_located, self._is_tail_lost = False, isinstance(error, LostTail)
                if self._is_tail_lost:
                    log.error("The state topic %s lost its newest records. They are restored from memory", self.name)
            except Missing:
                self._is_located = False
                self._create()
            except AutothrottleError as error:
                self._refusal = None if isinstance(error, Unavailable) else error
                self._problem = f"cannot be read: {error}"
                self.repair.soon(self._contact_age)
            except Exception:  # a bug must not end the thread: this process would never see a change again
                self._report_defect("Reading the state topic")
            self._closed.wait(STATE_TOPIC.first)

    def _report_defect(self, work: str) -> None:
        """Log the present exception with its traceback, at most once a minute and kind of work."""
        if time.monotonic() >= self._next_traces.get(work, 0.0):
            self._next_traces[work] = time.monotonic() + _REPORT_SECONDS
            log.exception("%s failed unexpectedly, trying again", work)

    def _begin(self) -> None:
        """Find the topic, and start at its first record, or continue."""
        topic_id, start = self._topic.locate(time.monotonic() + _ATTEMPT_SECONDS)
        with self._changed:
            last_topic_id = self._reader.replica.topic_id
            if last_topic_id not in ("", topic_id):
                log.warning("The state topic %s was deleted and created again", self.name)
            self._reader.begin(topic_id, start, self._is_tail_lost)
            self._is_located, self._is_tail_lost, self._refusal = True, False, None
            self._log_start = start

    def _create(self) -> None:
        try:
            self._topic.create(time.monotonic() + _ATTEMPT_SECONDS)
            self._refusal = None
            log.info("Created the state topic %s", self.name)
        except AutothrottleError as error:
            self._refusal = None if isinstance(error, Unavailable) else error
            self._problem = f"does not exist and cannot be created: {error}"

    def _read(self) -> bool:
        """Read once; return whether the next read may follow at once."""
        started, replica = time.monotonic(), self._reader.replica
        deadline = started + _READ_SECONDS + _ATTEMPT_SECONDS
        answer = self._topic.read(replica.topic_id, replica.position, replica.epoch, _READ_SECONDS, deadline)
        with self._changed:
            changed = self._apply(answer)
            self._changed.notify_all()
        if changed:
            self._watchers.publish(changed)
        if self._reader.is_foreign and (not answer.records or replica.foreign_records > _FOREIGN_RECORDS):
            self._refuse_topic()
            return False
        if answer.is_end:
            self._reach_end()
        if answer.records:
            return True
        # A new leader with records that its followers do not have yet answers at once, again and again.
        return time.monotonic() - started >= STATE_TOPIC.first

    def _apply(self, answer: Records) -> frozenset[str]:
        """Apply records; return the paths that they changed."""
        reader, time_of_answer = self._reader, time.monotonic()
        self._last_contact, self._problem, self._log_start = time_of_answer, "", answer.start
        last_base, was_strict, last_epoch = reader.replica.snapshot_base, reader.tree.is_strict, reader.replica.epoch
        results = reader.read(answer)
        if answer.is_end:
            results += reader.reach_end()
        changed: set[str] = set()
        for result in results:
            if result.version:
                changed.update(result.edit.texts)
                process = author(result.edit.id) if result.edit.topic else ""
                self._authors |= dict.fromkeys(result.edit.texts, process)
            if (pending := self._pending.get(result.edit.id)) is not None and pending.result is None:
                pending.result, reader.has_been_current = result, True
        self._bytes_since_snapshot += sum(len(record.value) + _RECORD_BYTES for record in answer.records)
        replica = reader.replica
        if replica.snapshot_base != last_base:
            self._bytes_since_snapshot = 0
        if last_epoch not in (-1, replica.epoch):
            self._epoch_time = time_of_answer
        self._written |= dict.fromkeys(changed, time_of_answer)
        if reader.is_ready and (self._is_interrupted or reader.tree is not self._known_tree):
            self._complete_time, self._refusal = time_of_answer, None
            self._send_again()
            self._written.clear()
            changed.update(path for tree in (self._known_tree, reader.tree) for path, _ in tree.nodes())
            self._known_tree = reader.tree
        self._is_interrupted = not reader.is_ready
        if reader.tree.is_strict and not was_strict and replica.snapshot_base == last_base:
            self._is_suspect = True  # the marker was read: a snapshot keeps older versions from reading on
        self._report(answer)
        return frozenset(changed)

    def _report(self, answer: Records) -> None:
        """Say once what was skipped in the topic."""
        replica, time_of_report = self._reader.replica, time.monotonic()
        for offset, reason in answer.skipped.items():
            log.warning("The record at offset %d of the state topic %s %s. It is void", offset, self.name, reason)
        if replica.foreign_records > self._reported_records and time_of_report >= self._next_report:
            self._reported_records, self._next_report = replica.foreign_records, time_of_report + _REPORT_SECONDS
            log.warning(
                "The state topic %s has %d records that are not autothrottle's, the last one at offset %d. They are "
                "void, and the next snapshot deletes them. Fix: deny others to write to it, see docs/security.md",
                self.name,
                replica.foreign_records,
                replica.last_foreign_offset,
            )
        elif replica.foreign_records < self._reported_records:
            self._reported_records = 0  # another reading of the log
        if replica.differing and replica.differing.keys() - self.differing.keys():
            self._is_in_doubt = self._is_in_doubt or time_of_report >= self._next_reread
        self.differing = {process: path for process, path in self.differing.items() if process in replica.differing}

    def _reach_end(self) -> None:
        """At the end of the log: restore what is lost, and settle a doubt."""
        reader, replica = self._reader, self._reader.replica
        if self._is_in_doubt:
            self._read_again()
        with self._changed:
            records = reader.lost_records(time.monotonic(), 2 * self.silence_limit, self.led_last)
        if records:
            self._append_all(records)
            if reader.restored_entries:
                log.warning(
                    "Records of the state topic %s were lost. Restored %d entries from memory",
                    self.name,
                    reader.restored_entries,
                )
                reader.restored_entries = 0
        elif not replica.is_complete:
            self._problem = (
                f"lacks its beginning: the records before offset {replica.start} are deleted or damaged. Fix: if a "
                "process of autothrottle still runs, it restores deleted records within seconds. Damaged ones need "
                "kafka-delete-records.sh up to this offset first. Otherwise delete the topic. Then "
                "restore a backup with `autothrottle state import`, or begin without a ledger"
            )
            self._refusal = Incomplete(f"the state topic {self.name} {self._problem}")

    def _refuse_topic(self) -> None:
        self._problem = (
            "has records of another program, and none of autothrottle's at its beginning. Nothing was written or "
            "deleted. Fix: choose another name with --state-topic. If it is a copy of autothrottle's topic in another "
            "cluster, use `autothrottle state import`"
        )
        self._refusal = Invalid(f"the topic {self.name} {self._problem}")
        self._closed.wait(_READ_SECONDS)

    def _read_again(self) -> None:
        """Read the whole log once more, because another process has another tree."""
        replica = self._reader.replica
        self._next_reread = time.monotonic() + _REREAD_SECONDS
        topic_id, start = self._topic.locate(time.monotonic() + _ATTEMPT_SECONDS)
        reading = self._new_reader()
        reading.begin(topic_id, start)
        check = reading.replica
        while check.position < replica.position and topic_id == replica.topic_id and not self._closed.is_set():
            deadline = time.monotonic() + _READ_SECONDS + _ATTEMPT_SECONDS
            answer = self._topic.read(topic_id, check.position, check.epoch, _READ_SECONDS, deadline)
            records = [record for record in answer.records if record.offset < replica.position]
            reading.read(replace(answer, records=records, next_offset=min(answer.next_offset, replica.position)))
            if reading.replica is not check or (answer.is_end and not answer.records):
                break
        with self._changed:
            self._is_in_doubt = False
            if check.is_complete and check.position == replica.position and check.tree.digest != replica.tree.digest:
                log.error(
                    "The state of this process was not that of the state topic %s. The state of the topic replaces it, "
                    "and this process stops leading",
                    self.name,
                )
                check.digests = {}
                self._reader.adopt(check)
                self.resets += 1
                self.led_last = False
                return
            self.differing = dict(replica.differing)
            log.error(
                "Processes of autothrottle disagree about the state topic %s. The state of this process is that of the "
                "topic. These processes have another one: %s. Fix: restart them",
                self.name,
                ", ".join(f"{process} ({path})" for process, path in sorted(self.differing.items())),
            )

    def restore(self, tree: Tree, deadline: float) -> None:
        """Load a tree into a topic without changes; return when it is loaded.

        Raises:
            Conflict: another process has changed something.
            Unavailable: it is unknown whether it was loaded.
        """
        while True:
            with self.synced(deadline) as loaded:
                if loaded.last_version >= tree.last_version:
                    return
                if loaded.fence or len(loaded.audit):
                    raise Conflict(f"another process has changed the topic {self.name} meanwhile. Nothing was loaded")
                records = self._reader.restore(tree)
            self._append_all(records)

    # Appending

    def _send(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                batch = self._batch()
                if not batch:
                    self._changed.wait(_READ_SECONDS)
                    continue
            try:
                self._append([self._encoded(p) for p in batch])
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
                self._report_defect("Appending to the state topic")
                self._closed.wait(STATE_TOPIC.first)

    def _batch(self) -> list[_Pending]:
        """Take the next edits that are still awaited. Nothing is appended before the whole state is known."""
        if not self._reader.is_ready or self._is_in_doubt:
            return []
        time_of_batch, size, batch = time.monotonic(), 0, list[_Pending]()
        while self._queue and (not batch or size + self._queue[0].edit.size <= _BATCH_BYTES):
            pending = self._queue.pop(0)
            if pending.deadline > time_of_batch:
                batch.append(pending)
                size += pending.edit.size
        return batch

    def _encoded(self, pending: _Pending) -> bytes:
        """Return the record of an edit for the present topic. Heartbeats have the digest of the tree."""
        with self._changed:
            replica, edit = self._reader.replica, pending.edit
            is_strict = replica.tree.is_strict
            digest = (replica.position, replica.tree.digest) if is_strict and not edit.is_change else None
            is_strict = is_strict or edit.is_strict
            return replace(edit, topic=replica.topic_id, digest=digest, is_strict=is_strict).encoded()

    def _send_again(self) -> None:
        """Send all edits again that were appended while the state was not known, since they were not read back."""
        lost = [p for p in self._pending.values() if p.is_acknowledged and p.result is None]
        for pending in lost:
            pending.is_acknowledged = False
        self._queue[:0] = lost  # their ids are smaller

    def _append_all(self, records: Sequence[bytes]) -> None:
        """Append records of any size, in as few requests as Kafka accepts."""
        batch: list[bytes] = []
        for record in records:
            if batch and sum(map(len, batch)) + len(record) > _BATCH_BYTES:
                self._append(batch)
                batch = []
            batch.append(record)
        if batch:
            self._append(batch)

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
                    self._append([self._encoded(pending)])
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
        settings = self._topic.risks(self._settings_time + _ATTEMPT_SECONDS)
        self.may_lose_tail = UNCLEAN_ELECTIONS in settings
        risks = frozenset(settings.values())
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
            replica = self._reader.replica
            has_gap = self._log_start > replica.snapshot_base
            limit = max(_SNAPSHOT_BYTES, 2 * self._snapshot_bytes)
            return self._reader.is_ready and (has_gap or self._is_suspect or self._bytes_since_snapshot > limit)

    def write_snapshot(self) -> None:
        """Append a snapshot, wait until it is complete, and delete the records before it.

        Raises:
            Unavailable: nothing was deleted.
        """
        with self._changed:
            replica = self._reader.replica
            base, epoch = replica.position, replica.epoch
            if not self._reader.is_ready or epoch < 0:
                raise self._unavailable()
            header = CopyHeader(
                self._new_copy_id(), base, topic=replica.topic_id, epoch=epoch, last_record=replica.last_record
            )
            header, parts = replica.tree.parts(header)
        self._snapshot_bytes = sum(map(len, parts))
        deadline = time.monotonic() + _SNAPSHOT_SECONDS
        self._append_all(parts)
        with self._changed:
            while self._reader.replica.last_snapshot != header.id:
                if self._reader.replica.epoch != epoch:
                    raise Unavailable(f"another broker leads the state topic {self.name} now")
                if time.monotonic() > deadline or self._closed.is_set():
                    raise self._unavailable()
                self._changed.wait(_READ_SECONDS)
            self._is_suspect = False
        self._topic.delete_before(base, deadline)

    # The strict rules

    def is_marker_due(self, parents: Sequence[str], seconds: float) -> bool:
        """Whether the strict rules can begin: each process knows them that was alive within so many seconds.

        Args:
            parents: the nodes whose children are the heartbeats of processes.
            seconds: > 0.
        """
        with self._changed:
            if self._reader.tree.is_strict or time.monotonic() - self._complete_time < seconds:
                return False
            paths = [path for parent in parents for path in self.living(parent, seconds)]
            return all(self._authors.get(path) for path in paths)

    def mark_strict(self, fence: int, deadline: float) -> None:
        """Let the strict rules of `replica` begin."""
        self.append(StateEdit(fence=fence, is_strict=True), deadline)
