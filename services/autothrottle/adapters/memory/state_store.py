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
from autothrottle.adapters.state_store.nodes import Node, NodeEdit, StoredNode
from autothrottle.adapters.state_store.operator_stores import MapCodec, NodeAuditedMap, NodeOverrides, NodePauses
from autothrottle.adapters.zookeeper.codec import format_override
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.members import Member, ordered
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, AuditReading, StoredAuditRecord
from autothrottle.core.operators.sources import Overrides, StoredOverride
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

    def add(self, record: StoredAuditRecord, version: int = 0) -> None:
        """Store a record with the next number, the current time, and the version of the override that it names."""
        after = record.after and replace(record.after, version=version)
        with self._lock:
            self._number += 1
            self._records.append(replace(record, number=self._number, time=datetime.now(UTC), after=after))

    def newest(self, limit: int) -> tuple[StoredAuditRecord, ...]:
        """Return at most `limit` records, newest first."""
        with self._lock:
            return tuple(reversed(self._records))[:limit]


class MemoryNodes(Outages):
    """The nodes of one store in memory and their audit records: a `NodeStore`, its `Trail` and its `FollowedNodes`."""

    own = OwnPaths()

    def __init__(self, name: str, electorate: MemoryElectorate | None, audit: MemoryAudit | None) -> None:
        """Create no node.

        Args:
            name: describes the content in messages.
            electorate: its terms fence changes; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self._outage = f"the {name} cannot be read or written; try again"
        self.electorate, self.audit = electorate or MemoryElectorate(), audit or MemoryAudit()
        self.published: Mapping[str, Node] = {}
        self._version = 0
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def trail(self) -> MemoryNodes:
        return self

    def followed(self, path: str, name: str, with_children: bool = False) -> MemoryNodes:
        return self

    def edit(
        self, path: str, plan: Callable[[StoredNode | None], NodeEdit | None], doing: str, fence: int | None = None
    ) -> int:
        with self._available():
            if fence is not None:
                self.electorate.check(fence)
            nodes = dict(self.published)
            data, version, _ = nodes.pop(path, (None, 0, 0))
            change = plan(StoredNode(data, 0, version) if path in self.published else None)
            if change is None:
                return 0
            self._version = version = self._version + 1
            if change.data is not None:
                nodes[path] = change.data, version, 0
            self.published = nodes
            if change.record is not None:
                self.audit.add(change.record, version)
        self._watches.publish(None)
        return version

    def append(self, record: StoredAuditRecord) -> None:
        self._raise_if_down()
        self.audit.add(record)

    def newest(self, limit: int) -> AuditReading:
        self._raise_if_down()
        return AuditReading(self.audit.newest(limit))

    def read(self) -> Mapping[str, Node]:
        with self._available():
            return self.published

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def close(self) -> None:
        """Do nothing: no thread follows the nodes."""


class MemoryStore:
    """A store whose nodes are in memory."""

    nodes: MemoryNodes

    @property
    def audit(self) -> MemoryAudit:
        """The audit records of its changes."""
        return self.nodes.audit

    def unavailable(self, down: bool) -> None:
        """Set whether calls raise Unavailable."""
        self.nodes.unavailable(down)


K = TypeVar("K")
V = TypeVar("V")


class MemoryAuditedMap(MemoryStore, NodeAuditedMap[K, V]):
    """A map in memory (an `AuditedMap`)."""

    def __init__(
        self, codec: MapCodec[K, V], electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None
    ) -> None:
        """Create an empty map with the electorate and the audit records of `MemoryNodes`."""
        self.nodes = MemoryNodes(codec.kind.name, electorate, audit)
        super().__init__(self.nodes, codec)


class MemoryOverrides(MemoryStore, NodeOverrides):
    """Overrides in memory (an `OverrideStore`)."""

    def __init__(self, electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None) -> None:
        """Create an empty store with the electorate and the audit records of `MemoryNodes`."""
        self.nodes = MemoryNodes("overrides", electorate, audit)
        super().__init__(self.nodes)
        self.unreadable: dict[int | None, str] = {}
        """Settable: broker id (None: the cluster) -> why its override cannot be read."""

    def read_overrides(self) -> Overrides:
        overrides = super().read_overrides()
        brokers = {b: override for b, override in overrides.brokers.items() if b not in self.unreadable}
        cluster = None if None in self.unreadable else overrides.cluster
        # A removed cluster override leaves a node with rate 0.
        return Overrides(cluster if cluster and cluster.rate > 0 else None, brokers, dict(self.unreadable))

    def mark_for_removal(self, broker_id: int | None) -> None:
        """Set the rate 0, as the original program marks an override for removal."""
        mark = NodeEdit(format_override(StoredOverride(0)), None)
        self.nodes.edit(self.nodes.own.override(broker_id), lambda _: mark, "marking an override")


class MemoryPauses(MemoryStore, NodePauses):
    """The pause in memory (a `PauseStore`)."""

    def __init__(self, audit: MemoryAudit | None = None) -> None:
        """Create a store that is not paused; `audit` stores its audit records, None: a new one."""
        self.nodes = MemoryNodes("pause", None, audit)
        super().__init__(self.nodes)
