"""What the replicas of autothrottle share, in memory: election, members, overrides, pause, audited maps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.core.cluster.configs import validate_broker_id
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.members import Member, ordered
from autothrottle.core.operators.audit import (
    MAX_AUDIT_RECORDS,
    AuditReading,
    MapChange,
    MapEdits,
    MapKind,
    StoredAuditRecord,
    unwritten_record,
)
from autothrottle.core.operators.sources import Overrides, StoredMap, StoredOverride, check_version, validate_rate
from autothrottle.core.records import AuditAction, Pause
from autothrottle.ports.kafka import Term, Watch
from autothrottle.ports.state_store import Leader


class Outages:
    """A fake that can be made unavailable."""

    _outage: str
    """Message of the error during an outage."""
    _down = False
    _lock: AbstractContextManager[bool]
    """Only of fakes that use `_available`."""

    def unavailable(self, down: bool) -> None:
        """Set whether calls raise Unavailable: all calls, unless the class says which."""
        self._down = down

    def _raise_if_down(self) -> None:
        if self._down:
            raise Unavailable(self._outage)

    @contextmanager
    def _available(self) -> Iterator[None]:
        """Hold the lock, or raise Unavailable during an outage."""
        with self._lock:
            self._raise_if_down()
            yield


class MemoryElectorate(Outages):
    """The state that all candidates share: who leads, and the fence that every write is checked against.

    During an outage only `leader` fails, and terms continue.
    """

    _outage = "the election does not answer; try again"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._candidates: list[MemoryElection] = []
        self._resting: list[MemoryElection] = []
        """Candidates that have resigned, in that order."""
        self._leader: Leader | None = None
        self._terms = 0
        """Number of terms, also of those before `wipe`."""

    @property
    def fence(self) -> int:
        """The fence of the newest term; 0 before the first term."""
        return self._leader.fence if self._leader else 0

    def wipe(self) -> None:
        """Delete the store: the leader's session and all terms end, and a candidate leads in an empty store."""
        self._leader = None
        self.depose()

    def check(self, fence: int) -> None:
        """Check that a term is the newest one.

        Raises:
            NotLeader: the term is over.
        """
        if fence != self.fence:
            address = self._leader.address if self._leader else ""
            raise NotLeader(f"term {fence} is over, the newest is {self.fence}; do not write any more", address)

    def begin_term(self, address: str = "") -> int:
        """Begin a term that no candidate holds, as if another planner led; return its fence."""
        with self._lock:
            losers = [c for c in self._candidates if c.term]
            self._leader = Leader(self._next_fence(), address, datetime.now(UTC))
            for loser in losers:
                loser.term = None
        _notify(losers)
        return self.fence

    def depose(self) -> None:
        """End the leader's session: it becomes the last candidate, and the next one leads."""
        with self._lock:
            leaders = [c for c in self._candidates if c.term]
            for leader in leaders:
                leader.term = None
                self._candidates.remove(leader)
                self._candidates.append(leader)
        _notify(leaders)
        self._elect()

    def _next_fence(self) -> int:
        self._terms += 1
        return self._terms

    def _read(self) -> Leader | None:
        self._raise_if_down()
        return self._leader

    def _elect(self) -> None:
        with self._lock:
            if not self._candidates and self._resting:
                self._candidates.append(self._resting.pop(0))
            if not self._candidates or any(c.term for c in self._candidates):
                return
            winner = self._candidates[0]
            winner.led_since = time.monotonic()
            self._leader = Leader(self._next_fence(), winner.address, datetime.now(UTC), winner.host)
            winner.term = Term(self.fence)
        _notify([winner])

    def _add(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate not in self._candidates:
                candidate.has_waited = bool(self._candidates)
                self._candidates.append(candidate)
        self._elect()

    def _resign(self, candidate: MemoryElection, pause: timedelta) -> bool:
        with self._lock:
            is_new = candidate.has_waited and time.monotonic() - candidate.led_since < pause.total_seconds()
            if candidate.term is None or is_new or len(self._candidates) < 2:
                return False
            candidate.term = None
            self._candidates.remove(candidate)
            self._resting.append(candidate)
        timer = threading.Timer(pause.total_seconds(), self._end_rest, (candidate,))
        timer.daemon = True
        timer.start()
        _notify([candidate])
        self._elect()
        return True

    def _end_rest(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate not in self._resting:
                return
            self._resting.remove(candidate)
        self._add(candidate)

    def _remove(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate in self._candidates:
                self._candidates.remove(candidate)
            if candidate in self._resting:
                self._resting.remove(candidate)
            led, candidate.term = candidate.term is not None, None
        if led:
            _notify([candidate])
        self._elect()


def _notify(candidates: Iterable[MemoryElection]) -> None:
    for candidate in candidates:
        candidate.on_change()


class MemoryElection:
    """One candidate of an electorate (an `Election`); the first to join leads."""

    def __init__(self, electorate: MemoryElectorate) -> None:
        self._electorate = electorate
        self.term: Term | None = None
        self.address, self.host = "", ""
        self.on_change: Callable[[], None] = lambda: None
        self.has_waited = False
        """Whether another candidate led or waited when it joined."""
        self.led_since = 0.0

    def leader(self) -> Leader | None:
        return self._electorate._read()

    def join(self, address: str, on_change: Callable[[], None], host: str = "") -> None:
        self.address, self.host, self.on_change = address, host, on_change
        self._electorate._add(self)

    def resign(self, pause: timedelta) -> bool:
        return self._electorate._resign(self, pause)

    def leave(self) -> None:
        self._electorate._remove(self)


class MemoryMembers(Outages):
    """The list of members that all processes share. During an outage, joining and leaving still work."""

    _outage = "the members cannot be read; try again"

    def __init__(self) -> None:
        self.joined: list[Member] = []

    def read(self) -> tuple[Member, ...]:
        self._raise_if_down()
        return ordered(self.joined)


class MemoryMembership:
    """One process's view of the list (a `Membership`), without a session that could expire."""

    def __init__(self, shared: MemoryMembers) -> None:
        self._shared = shared
        self._member: Member | None = None

    def join(self, member: Member) -> None:
        self._member = member
        self._shared.joined.append(member)

    def leave(self) -> None:
        left, self._member = self._member, None
        if left is not None:
            self._shared.joined.remove(left)

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        return self._shared.read()

    def problem(self) -> str:
        try:
            self._shared.read()
        except Unavailable as error:
            return str(error)
        return "" if self._member in self._shared.joined else "this process is not registered as a member"


class MemoryAudit:
    """The audit records that overrides and the pause share."""

    def __init__(self) -> None:
        self._records: deque[StoredAuditRecord] = deque(maxlen=MAX_AUDIT_RECORDS)
        self._number = 0
        self._lock = threading.Lock()

    def add(self, record: StoredAuditRecord) -> None:
        """Store a record with the next number and the current time."""
        with self._lock:
            self._number += 1
            self._records.append(replace(record, number=self._number, time=datetime.now(UTC)))

    def newest(self, limit: int) -> tuple[StoredAuditRecord, ...]:
        """Return at most `limit` records, newest first."""
        with self._lock:
            return tuple(reversed(self._records))[:limit]


K = TypeVar("K")
V = TypeVar("V")


class MemoryAuditedMap(Outages, MapEdits[K, V]):
    """A map in memory (an `AuditedMap`)."""

    def __init__(
        self, kind: MapKind[K, V], electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None
    ) -> None:
        """Create an empty map.

        Args:
            kind: what it holds.
            electorate: its terms fence `purge`; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self.audit = audit or MemoryAudit()
        self._kind, self._electorate = kind, electorate or MemoryElectorate()
        self._outage = f"the {kind.name} cannot be read or written; try again"
        self._entries: Mapping[K, V] = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[Mapping[K, V]] = Subscriptions()

    def read(self) -> StoredMap[K, V]:
        self._raise_if_down()
        return StoredMap(self._entries)

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def follow(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        if self._entries:
            notify(self._entries)
        return self._watches.add(notify)

    def _edit(self, change: MapChange[K, V], record: StoredAuditRecord | None, fence: int | None = None) -> bool:
        if fence is not None:
            self._electorate.check(fence)
        with self._available():
            entries, self._entries = self._entries, change(self._entries)
            is_changed = entries != self._entries
            if is_changed and record is not None:
                self.audit.add(record)
        if is_changed:
            self._watches.publish(self._entries)
        return is_changed


class MemoryOverrides(Outages):
    """Overrides in memory (an `OverrideStore`)."""

    _outage = "the overrides cannot be read or written; try again"

    def __init__(self, electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None) -> None:
        """Create an empty store.

        Args:
            electorate: its terms fence `purge_override`; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self.electorate = electorate or MemoryElectorate()
        self.unreadable: dict[int | None, str] = {}
        """Settable: broker id (None: the cluster) -> why its override cannot be read."""
        self._overrides: dict[int | None, StoredOverride] = {}
        self.audit = audit or MemoryAudit()
        self._version = 0
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def mark_for_removal(self, broker_id: int | None) -> None:
        """Set the rate 0, as the original program marks an override for removal."""
        self._set(broker_id, StoredOverride(0), "the original")

    def read_overrides(self) -> Overrides:
        with self._available():
            readable = {b: o for b, o in self._overrides.items() if b not in self.unreadable}
            cluster = readable.pop(None, None)
            brokers = {b: o for b, o in readable.items() if b is not None}
            return Overrides(cluster, brokers, dict(self.unreadable))

    def set_override(self, broker_id: int | None, override: StoredOverride, *, who: str = "") -> StoredOverride:
        if broker_id is not None:
            validate_broker_id(broker_id)
        validate_rate(override.rate)
        return self._set(broker_id, override, who)

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        with self._available():
            current = self._overrides.get(broker_id)
            if current is None:
                return False
            check_version(broker_id, version, current.version)
            self._replace(broker_id, None, who, AuditAction.REMOVE)
        self._watches.publish(None)
        return True

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        with self._available():
            self.electorate.check(fence)
            current = self._overrides.get(broker_id)
            if current is None or current.version != version:
                return False
            self._replace(broker_id, None, f"planner, term {fence}", AuditAction.PURGE, reason)
        self._watches.publish(None)
        return True

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        self._raise_if_down()
        self.audit.add(unwritten_record(who, action, result=result))

    def read_audit_records(self, limit: int) -> AuditReading:
        self._raise_if_down()
        return AuditReading(self.audit.newest(limit))

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _set(self, broker_id: int | None, override: StoredOverride, who: str) -> StoredOverride:
        with self._available():
            current = self._overrides.get(broker_id)
            check_version(broker_id, override.version, current.version if current else 0)
            stored = replace(override, version=self._version + 1)
            self._replace(broker_id, stored, who, AuditAction.SET)
        self._watches.publish(None)
        return stored

    def _replace(
        self, broker_id: int | None, after: StoredOverride | None, who: str, action: AuditAction, reason: str = ""
    ) -> None:
        self._version += 1
        before = self._overrides.pop(broker_id, None)
        if before is not None and before.rate == 0:
            before = None
        if after is not None:
            self._overrides[broker_id] = after
        self.audit.add(unwritten_record(who, action, broker_id, before, after, reason))


class MemoryPauses(Outages):
    """The pause in memory (a `PauseStore`)."""

    _outage = "the pause cannot be read or written; try again"

    def __init__(self, audit: MemoryAudit | None = None) -> None:
        """Create a store that is not paused; `audit` stores its audit records, None: a new one."""
        self.audit = audit or MemoryAudit()
        self._pause: Pause | None = None
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def read_pause(self) -> Pause | None:
        self._raise_if_down()
        return self._pause

    def set_pause(self, pause: Pause) -> None:
        self._swap(pause, unwritten_record(pause.author, AuditAction.PAUSE, pause=pause))

    def remove_pause(self, who: str = "") -> bool:
        return self._swap(None, unwritten_record(who, AuditAction.RESUME)) is not None

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _swap(self, pause: Pause | None, record: StoredAuditRecord) -> Pause | None:
        with self._available():
            before, self._pause = self._pause, pause
            if pause or before:
                self.audit.add(replace(record, pause=pause or before))
        if before != pause:
            self._watches.publish(None)
        return before
