"""A model of the state topic and of the processes that share it, in virtual time and without threads.

A history is a pure function of its seed: processes that start, die, stop and wake at any step, records that other
parties append, delete and repeat, logs that lose their tail, and topics that are created again. `Histories` says which
of these happen. The readers and the rules are the product's own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from autothrottle.adapters.kafka_state.reader import StateReader
from autothrottle.adapters.kafka_state.records import CopyHeader, StateEdit
from autothrottle.adapters.kafka_state.topic import LostTail, OutOfLog, Records, TopicRecord
from autothrottle.adapters.kafka_state.tree import EditResult, Effect, Tree

TERM, ELECTION = "/a/term", "/a/election"
PATHS = ("/a/ledger/1", "/a/ledger/2", "/a/pause")
BEAT, LEASE, SESSION = 1.0, 2.0, 3.0
TIME = 1_795_000_000_000


class Event(Enum):
    """What may happen beside the work of the processes."""

    STOP = "a process stops, and wakes later"
    START = "a process starts or dies"
    DELETE = "another party deletes records"
    TAIL = "the log loses its tail"
    TOPIC = "the topic is deleted and created again"
    FOREIGN = "a record of another party"
    OLD_SNAPSHOT = "a foreign record that looks like a snapshot of an older version"
    FAR_SNAPSHOT = "a foreign snapshot with a base far ahead"
    REPEAT = "a late second copy of a record"


ALL_EVENTS = tuple(Event)
_HARMLESS = (Event.STOP, Event.START, Event.FOREIGN)


class Fault(Exception):
    """A history has broken a promise."""


class ModelLog:
    """The partition. The time of a record is unique, so it names one history of the log."""

    def __init__(self, topic: int = 0) -> None:
        self.topic_id, self.start, self.epoch = f"topic-{topic}", 0, 0
        self.records: list[TopicRecord] = []
        self.ever: list[TopicRecord] = []
        """All records that were ever appended, also to earlier topics."""

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def append(self, values: Sequence[bytes], milliseconds: int = TIME) -> None:
        for value in values:
            record = TopicRecord(self.end, milliseconds + len(self.ever), value, self.epoch)
            self.records.append(record)
            self.ever.append(record)

    def delete_before(self, offset: int) -> None:
        offset = min(max(offset, self.start), self.end)
        self.records, self.start = self.records[offset - self.start :], offset

    def truncate(self, end: int) -> None:
        del self.records[max(0, end - self.start) :]
        self.epoch += 1

    def read(self, topic_id: str, offset: int, epoch: int, most: int) -> Records:
        if topic_id != self.topic_id or offset < self.start:
            raise OutOfLog
        index = offset - self.start
        if index > len(self.records) or (index and self.records[index - 1].epoch != epoch != -1):
            raise LostTail
        records = self.records[index : index + most]
        return Records(records, offset + len(records), self.start)


@dataclass(slots=True)
class Written:
    """An edit of a stored node by a process."""

    path: str
    text: str | None
    order: int
    """When it was first appended, as the number of a record."""
    is_acknowledged: bool = False
    is_read_back: bool = False
    last_order: int = -1
    """When a copy was last appended; -1: none was. It may take effect if the log has lost the first one."""


@dataclass(slots=True)
class Process:
    """One process: a candidate that also writes what operators set."""

    name: str
    history: History
    reader: StateReader = field(init=False)
    is_stopped: bool = False
    fence: int = 0
    lease_end: float = 0.0
    led_last: bool = False
    """Whether no later term than its own is known."""
    _next_number: int = 0
    _outbox: list[tuple[list[StateEdit], Sequence[bytes]]] = field(default_factory=list)
    _in_flight: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """Id of a heartbeat or claim that is not read back -> (when it was made, whether it is a claim)."""
    _edits: dict[str, Written] = field(default_factory=dict)
    _silence: dict[str, float] = field(default_factory=dict)
    """Path -> when its last write was read."""
    _ready_time: float = 0.0
    _epoch_time: float = 0.0
    _was_ready: bool = False
    _next_beat: float = 0.0
    _snapshot: tuple[str, int] | None = None
    has_lost_tail: bool = False
    """Whether the log has lost records that it read, and it has not seen that yet."""
    read_texts: set[str] = field(default_factory=set)
    """All texts that its tree ever had."""

    def __post_init__(self) -> None:
        self.reader = StateReader(TERM, self._new_id, lambda path: path in PATHS, audit_records=3)

    def _new_id(self) -> str:
        self._next_number += 1
        return f"{self.name}-{self._next_number}"

    @property
    def path(self) -> str:
        return f"{ELECTION}/{self.name}"

    @property
    def leads(self) -> bool:
        return self.fence > 0 and self.history.now < self.lease_end

    # Steps

    def step(self) -> None:
        """Append what was made in an earlier step, or read; then make what is due."""
        if self._outbox:
            self._send()
            return
        self._read()
        if self.reader.is_ready != self._was_ready:
            self._was_ready, self._ready_time = self.reader.is_ready, self.history.now
            self._silence.clear()
            self._in_flight.clear()
        if not self._outbox and self.reader.is_ready:
            self._work()

    def _send(self) -> None:
        history = self.history
        edits, values = self._outbox.pop(0)
        if edits:
            topic, is_strict = self.reader.replica.topic_id, self.reader.tree.is_strict
            values = [replace(e, topic=topic, is_strict=e.is_strict or is_strict).encoded() for e in edits]
        for edit in edits:
            if (written := self._edits.get(edit.id)) is not None:
                written.last_order = len(history.log.ever)
                if written.order < 0:
                    written.order = len(history.log.ever)
                    history.edits.append(written)
        history.log.append(values, history.milliseconds)
        if history.chance.random() < 0.1 and edits:  # the answer is lost
            self._outbox.insert(0, (edits, values))
            return
        for edit in edits:
            if (written := self._edits.get(edit.id)) is not None:
                written.is_acknowledged = True

    def _read(self) -> None:
        history, reader = self.history, self.reader
        log, replica = history.log, self.reader.replica
        try:
            answer = log.read(replica.topic_id, replica.position, replica.epoch, history.chance.choice((1, 4, 1000)))
        except OutOfLog as error:
            # Nothing shows any more that it read another continuation of the log, or it had never read all of one.
            if (self.has_lost_tail and not isinstance(error, LostTail)) or not reader.has_been_current:
                self.read_texts.clear()
            self.has_lost_tail = False
            reader.begin(log.topic_id, log.start, isinstance(error, LostTail))
            return
        for record in answer.records:
            if record.epoch != reader.replica.epoch:
                self._epoch_time = history.now
            self._meet(reader.read(Records([record], record.offset + 1, answer.start)))
            history.check(self, record)
        if not answer.records:
            self._meet(reader.read(answer))
            self._meet(reader.reach_end())
            if replica.position:
                history.check(self, log.records[-1] if log.records else None)
            if records := reader.lost_records(history.now, 2 * LEASE, led_last=self.led_last):
                self._outbox.append(([], records))

    def _meet(self, results: Sequence[EditResult]) -> None:
        history = self.history
        for result in results:
            edit = result.edit
            self.reader.has_been_current |= edit.id.rpartition("-")[0] == self.name
            if result.effect is not Effect.APPLIED:
                self._in_flight.pop(edit.id, None)
                continue
            self._silence |= dict.fromkeys(edit.texts, history.now)
            self.read_texts.update(text for path, text in edit.texts.items() if text is not None and path in PATHS)
            made, _ = self._in_flight.pop(edit.id, (None, False))
            if made is None:
                pass
            elif TERM in edit.texts:
                self.fence, self.lease_end, self.led_last = result.version, made + LEASE, True
            elif result.fence == self.fence:
                self.lease_end = max(self.lease_end, made + LEASE)
            if result.fence != self.fence:
                self.led_last &= not self.fence
                self.fence = 0
            if edit.id in self._edits:
                self._edits[edit.id].is_read_back = True

    def _work(self) -> None:
        history, tree = self.history, self.reader.tree
        chance = history.chance
        if self.fence and not self.leads:
            self.fence = 0
        if history.is_silent:
            return
        if history.now >= self._next_beat:
            self._next_beat = history.now + BEAT
            replica = self.reader.replica
            digest = (replica.position, tree.digest) if tree.is_strict else None
            self._make(StateEdit(texts={self.path: str(self._next_number)}, digest=digest), is_own=True)
        elif (claim := self._claim(tree)) is not None:
            self._make(claim, is_own=True)
        elif self.leads and not tree.is_strict and history.is_strict:
            self._make(StateEdit(fence=self.fence, is_strict=True))
        elif not history.is_ending and chance.random() < 0.3:
            path = chance.choice(PATHS)
            text = None if tree.node(path) and chance.random() < 0.3 else f"{self.name}:{self._next_number}"
            fence = self.fence if self.leads and chance.random() < 0.5 else 0
            edit = self._make(StateEdit(fence=fence, versions={path: tree.version(path)}, texts={path: text}))
            self._edits[edit.id] = Written(path, text, -1)
        elif self._snapshot is None and self.leads and chance.random() < 0.3:
            self._write_snapshot(tree)
        elif self._snapshot is not None:
            self._finish_snapshot()

    def _make(self, edit: StateEdit, is_own: bool = False) -> StateEdit:
        edit = replace(edit, id=self._new_id(), time=self.history.milliseconds)
        if is_own:
            self._in_flight[edit.id] = self.history.now, TERM in edit.texts
        self._outbox.append(([edit], ()))
        return edit

    def _claim(self, tree: Tree) -> StateEdit | None:
        """The claim of `KafkaElection`: the holder has been silent for the session timeout."""
        node, now = tree.node(TERM), self.history.now
        versions = {TERM: tree.fence}
        if node is None:
            since = self._ready_time
        else:
            holder = f"{ELECTION}/{node.text}"
            if holder == self.path and self.leads:
                return None
            versions[holder] = tree.version(holder)
            since = -SESSION if holder == self.path else self._silence.get(holder, self._ready_time)
        claimed = max((made for made, is_claim in self._in_flight.values() if is_claim), default=-SESSION)
        epoch_time = self._epoch_time
        if since < 0:  # unclean elections are allowed
            was_alone = now - (self.lease_end - LEASE) < SESSION
            epoch_time = -SESSION if was_alone else epoch_time + LEASE - SESSION
        if now - max(since, epoch_time, claimed) < SESSION:
            return None
        return StateEdit(versions=versions, texts={TERM: self.name}, epoch=self.reader.replica.epoch)

    def _write_snapshot(self, tree: Tree) -> None:
        replica = self.reader.replica
        header = CopyHeader(
            self._new_id(),
            replica.position,
            topic=replica.topic_id,
            epoch=replica.epoch,
            last_record=replica.last_record,
        )
        header, parts = tree.parts(header)
        self._snapshot = header.id, replica.position
        self._outbox.append(([], parts))

    def _finish_snapshot(self) -> None:
        assert self._snapshot is not None
        snapshot_id, base = self._snapshot
        replica = self.reader.replica
        if replica.last_snapshot == snapshot_id:
            self.history.log.delete_before(base)
        if replica.last_snapshot == snapshot_id or self.history.chance.random() < 0.2:
            self._snapshot = None


class History:
    """One history, with the promises that it checks."""

    def __init__(
        self, seed: int, events: Sequence[Event] = ALL_EVENTS, is_strict: bool = True, steps: int = 60
    ) -> None:
        self.chance = random.Random(seed)
        self.events, self.is_strict, self._steps = events, is_strict, steps
        self.log, self.now = ModelLog(), 0.0
        self._topics = self._names = 0
        self.processes: list[Process] = []
        self._digests: dict[tuple[str, int], tuple[str, str]] = {}
        """(topic, time of the last record) -> digest and process."""
        self.edits: list[Written] = []
        """All edits of stored nodes that were appended."""
        self.is_ending = self.is_silent = self.has_loss = False
        if is_strict:
            self.log.append([StateEdit(id="p0-1", is_strict=True, topic=self.log.topic_id, time=TIME).encoded()])
        for _ in range(3):
            self._start()
        for process in self.processes:
            process.reader.begin(self.log.topic_id, 0)
            process.reader.read(self.log.read(self.log.topic_id, 0, -1, 1))
            process.reader.has_been_current = True

    @property
    def milliseconds(self) -> int:
        """The time of the records, since 1970. It passes so fast that leader epochs are rare."""
        return TIME + int(self.now * 100_000)

    def _start(self) -> None:
        self._names += 1
        self.processes.append(Process(f"p{self._names}", self))

    # Promises

    def check(self, process: Process, record: TopicRecord | None) -> None:
        """All readers that have read to the same offset of the same log have the same tree."""
        replica = process.reader.replica
        if not replica.is_complete or record is None:
            return
        place, digest = (replica.topic_id, record.time), replica.tree.digest
        first_digest, first_process = self._digests.setdefault(place, (digest, process.name))
        if digest != first_digest:
            raise Fault(f"{process.name} and {first_process} differ at offset {record.offset}")

    def check_leaders(self) -> None:
        leaders = [process.name for process in self.processes if process.leads and not process.is_stopped]
        if len(leaders) > 1:
            raise Fault(f"{leaders} lead")

    def check_end(self) -> None:
        """No acknowledged edit is lost that a living process had read."""
        trees = [process.reader.tree for process in self.processes if process.reader.is_ready]
        if len(trees) < len(self.processes):
            return
        if len({tree.digest for tree in trees}) > 1:
            raise Fault("the trees differ at the end")
        orders = {written.text: max(written.order, written.last_order) for written in self.edits}
        if not self.has_loss:
            self._check_deletions(trees[0])
        for written in self.edits:
            is_promised = written.text is not None and written.is_acknowledged and written.is_read_back
            readers = (process for process in self.processes if process.reader.has_been_current)
            if not is_promised or not any(written.text in process.read_texts for process in readers):
                continue
            node = trees[0].node(written.path)
            later = [w for w in self.edits if w.path == written.path and w.order > written.order]
            if any(w.text is None for w in later):
                continue
            if node is None:
                raise Fault(f"{written.text} of {written.path} is lost")
            if orders[node.text] < written.order:
                raise Fault(f"{node.text} has replaced {written.text} of {written.path}")

    def _check_deletions(self, tree: Tree) -> None:
        """A deleted node does not live again."""
        last_edits = {w.path: w for w in sorted(self.edits, key=lambda written: written.order) if w.is_read_back}
        for path, written in last_edits.items():
            is_last = all(w.order <= written.order or w.path != path for w in self.edits)
            if is_last and written.text is None and tree.node(path) is not None:
                raise Fault(f"{path} lives again after its deletion")

    # Running

    def run(self) -> bool:
        """Play the history; return whether the state could be used at its end.

        It cannot if no process knows the beginning of the log, or if a new topic begins with foreign records.

        Raises:
            Fault: a promise is broken.
        """
        for _ in range(self._steps):
            self.now += self.chance.choice((0.0, 0.1, 0.1, 0.5))
            if self.chance.random() < 0.12 and self.events:
                self._happen(self.chance.choice(self.events))
            running = [process for process in self.processes if not process.is_stopped]
            if running:
                self.chance.choice(running).step()
            self.check_leaders()
        for process in self.processes:
            process.is_stopped = False
        self.is_ending = True
        return self._settle()

    def _settle(self) -> bool:
        for turn in range(80):
            self.now += 0.25
            self.is_silent = turn > 70
            for process in self.processes:
                for _ in range(3):
                    process.step()
                self.check_leaders()
            if self._is_settled():
                self.check_end()
                return True
        if all(not p.reader.is_ready and (p.reader.is_foreign or not p.reader.has_memory) for p in self.processes):
            return False
        raise Fault("the processes do not get ready, although one knows the state")

    def _is_settled(self) -> bool:
        return all(p.reader.is_ready and p.reader.replica.position == self.log.end for p in self.processes)

    def _is_log_strict(self) -> bool:
        """Whether all processes know that the strict rules hold in this topic. Before, faults of old rules remain."""
        replicas = [process.reader.replica for process in self.processes]
        complete_replicas = [r for r in replicas if r.topic_id == self.log.topic_id and r.is_complete]
        return bool(complete_replicas) and all(replica.tree.is_strict for replica in complete_replicas)

    def _happen(self, event: Event) -> None:
        chance, log = self.chance, self.log
        if self.is_strict and event not in _HARMLESS and not self._is_log_strict():
            return
        self.has_loss |= event in (Event.DELETE, Event.TAIL, Event.TOPIC)
        if event is Event.STOP:
            process = chance.choice(self.processes)
            process.is_stopped = not process.is_stopped
        elif event is Event.START:
            if len(self.processes) > 1 and chance.random() < 0.5:
                self.processes.remove(chance.choice(self.processes))
            elif len(self.processes) < 5:
                self._start()
        elif event is Event.DELETE:
            log.delete_before(chance.randint(log.start, log.end))
        elif event is Event.TAIL:
            log.truncate(max(log.start, log.end - chance.randint(1, 4)))
            for process in self.processes:
                replica = process.reader.replica
                process.has_lost_tail |= replica.topic_id == log.topic_id and replica.position > log.end
        elif event is Event.TOPIC:
            self._topics += 1
            ever, self.log = log.ever, ModelLog(self._topics)
            self.log.ever = ever
        elif event is Event.FOREIGN:
            log.append([chance.choice((b"", b"\xff", b"{}", b'{"v":1}', b"x" * 50))])
        elif event is Event.OLD_SNAPSHOT:
            log.append([_snapshot(log.end - chance.randint(0, 2), chance.choice((None, None, log.start, log.end)))])
        elif event is Event.FAR_SNAPSHOT:
            log.append([_snapshot(2**62, chance.choice((None, 2**62)))])
        elif event is Event.REPEAT and log.ever:
            values = [record.value for record in chance.choices(log.ever[-30:], k=chance.randint(1, 2))]
            log.append(values)
            for written in self.edits:
                if any(json.dumps(written.text).encode() in value for value in values):
                    written.last_order = len(log.ever)


def _snapshot(base: int, lost_before: int | None) -> bytes:
    fields = {"v": 1, "id": "x", "base": max(0, base), "lost_before": lost_before, "parts": 1, "last_version": 1}
    return json.dumps({"snapshot": {**fields, "part": 0, "rows": []}}).encode()
