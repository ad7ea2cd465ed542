"""Overrides in ZooKeeper, in the nodes and the format that the original program reads and writes too."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.audit import NO_TIME, AuditTrail, TrailEnd, demand_term
from autothrottle.adapters.zookeeper.codec import broker_id_of, format_override, parse_override
from autothrottle.adapters.zookeeper.follower import Follower
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.audit import MAX_AUDIT_RECORDS, AuditAction, AuditRecord
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.overrides import Override, Overrides, demand_version, validate_broker_id, validate_rate
from autothrottle.ports.cluster import Watch


class ZooKeeperOverrides:
    """An `OverrideStore`. Thread-safe.

    The version of an override is the transaction that wrote it: the version of the node itself starts again when a
    node is removed and made anew. Each change is one transaction with its audit record.
    """

    def __init__(
        self,
        client: KazooClient,
        own: OwnPaths,
        timeout: timedelta = timedelta(seconds=5),
        records_kept: int = MAX_AUDIT_RECORDS,
    ) -> None:
        self._client, self._own = client, own
        self._trail = AuditTrail(client, own, timeout, records_kept)
        self._timeout = timeout.total_seconds()
        self._lock = threading.Lock()
        self._follower = Follower("overrides", self._catch_up)
        self._fired = False
        self._mirror = ZnodeMirror(client, self._fire)
        self._mirror.track([(Part.DATA, own.overrides), (Part.CHILDREN, own.overrides)])
        self._children: frozenset[str] = frozenset()
        self._tickets = itertools.count(1)
        self._newest_ticket = self._served = 0
        self._last = Overrides()

    def close(self) -> None:
        """Stop following the overrides."""
        self._follower.close()
        self._mirror.close()

    def read_overrides(self) -> Overrides:
        """Return all overrides.

        Of many that ask at once only the first reads for itself, and the next one for all that came meanwhile.
        """
        self._newest_ticket = ticket = next(self._tickets)
        with self._lock:
            if ticket > self._served:
                # Whoever has a ticket by now has asked before this reading begins.
                newest = self._newest_ticket
                with translated_errors("reading overrides"):
                    self._read_changed()
                    self._last = self._parsed()
                self._served = newest
            return self._last

    def _read_changed(self) -> bool:
        """Read what changed; return whether anything did."""
        changed = False
        self._mirror.catch_up(self._timeout)
        while self._mirror.read_changed(self._timeout):
            changed = True
            self._track_children()
        return changed

    def _track_children(self) -> None:
        names = frozenset(self._mirror.children(self._own.overrides))
        known, self._children = self._children, names
        self._mirror.track((Part.DATA, self._path(name)) for name in names)
        self._mirror.forget((Part.DATA, self._path(name)) for name in known - names)

    def _path(self, name: str) -> str:
        return f"{self._own.overrides}/{name}"

    def _parsed(self) -> Overrides:
        unreadable: dict[int | None, str] = {}
        warnings = []
        cluster = self._parse(None, self._own.overrides, unreadable)
        brokers = {}
        for name in sorted(self._children):
            broker_id = broker_id_of(name)
            if not broker_id:
                warnings.append(f"{self._path(name)}: {name!r} is no broker id > 0; the node is ignored, remove it")
                continue
            override = self._parse(broker_id, self._path(name), unreadable)
            if override is not None:
                brokers[broker_id] = override
        return Overrides(cluster, brokers, unreadable, tuple(warnings))

    def _parse(self, broker_id: int | None, path: str, unreadable: dict[int | None, str]) -> Override | None:
        data = self._mirror.data(path)
        if data is None:
            return None
        try:
            return parse_override(data, self._mirror.written_by(path))
        except Invalid as error:
            unreadable[broker_id] = f"{path}: {error}"
            return None

    def set_override(
        self,
        broker_id: int | None,
        rate: BytesPerSecond,
        autoremove: bool,
        expire_time: datetime | None = None,
        *,
        version: int = 0,
        who: str = "",
    ) -> Override:
        """Set an override, in place of one that stands, or of one version of it only."""
        if broker_id is not None:
            validate_broker_id(broker_id)
        path = self._own.override(broker_id)
        wanted = Override(validate_rate(rate), autoremove, expire_time=expire_time)

        def attempt() -> int | None:
            found = self._find(path)
            demand_version(broker_id, version, found.version)
            change = self._client.transaction()
            if found.node_version is None:
                change.create(path, format_override(wanted))
            else:
                change.set_data(path, format_override(wanted), found.node_version)
            done = self._commit(change, found, _Deed(who, AuditAction.SET, broker_id, wanted))
            if done is None:  # somebody was faster, or the first override has no parent yet
                self._client.ensure_path_async(self._own.overrides).get(timeout=self._timeout)
            return done

        with translated_errors("setting an override"):
            return replace(wanted, version=self._trail.retried(attempt))

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        """Remove an override; the cluster's node stays, marked as the original marks it, for its children."""
        path = self._own.override(broker_id)

        def attempt() -> bool | None:
            found = self._find(path)
            if found.node_version is None or (broker_id is None and not found.is_set):
                return False
            demand_version(broker_id, version, found.version)
            done = self._commit(self._removal(broker_id, found), found, _Deed(who, AuditAction.REMOVE, broker_id))
            return None if done is None else True

        with translated_errors("removing an override"):
            return self._trail.retried(attempt)

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override on behalf of a term."""
        path = self._own.override(broker_id)
        deed = _Deed(f"planner, term {fence}", AuditAction.PURGE, broker_id, reason=reason)

        def attempt() -> bool | None:
            found = self._find(path)
            change = self._client.transaction()
            change.check(self._own.term, fence)
            if found.node_version is None or found.version != version:
                demand_term(fence, change.commit_async().get(timeout=self._timeout))
                return False
            done = self._commit(self._removal(broker_id, found, change), found, deed, fence)
            return None if done is None else True

        with translated_errors("purging an override"):
            return self._trail.retried(attempt)

    def _find(self, path: str) -> _Found:
        """What stands at a path, and what a change of it must be compared with."""
        end = self._trail.end()
        try:
            data, stat = self._client.get_async(path).get(timeout=self._timeout)
        except NoNodeError:
            return _Found(end)
        return _Found(end, stat.version, int(stat.mzxid), *_standing(data, int(stat.mzxid)))

    def _removal(
        self, broker_id: int | None, found: _Found, change: TransactionRequest | None = None
    ) -> TransactionRequest:
        change, path = change or self._client.transaction(), self._own.override(broker_id)
        if broker_id is None:
            change.set_data(path, format_override(Override(0)), found.node_version)
        else:
            change.delete(path, found.node_version)
        return change

    def _commit(self, change: TransactionRequest, found: _Found, deed: _Deed, fence: int | None = None) -> int | None:
        return self._trail.commit(change, found.end, deed.record(found.override), fence)

    def read_audit_records(self, limit: int) -> tuple[AuditRecord, ...]:
        """Return the newest records, the newest first; one that cannot be read is left out, and logged."""
        with translated_errors("reading the audit records"):
            return self._trail.newest(limit)

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change of any override."""
        return self._follower.watch(notify)

    def _catch_up(self) -> bool:
        fired, self._fired = self._fired, False
        try:
            with self._lock, translated_errors("reading overrides"):
                return self._read_changed() or fired
        except AutothrottleError:
            self._fired = True  # it is told when it can be read
            raise

    def _fire(self) -> None:
        self._fired = True
        self._follower.fire()


@dataclass(frozen=True, slots=True)
class _Found:
    """What stands, and what a change of it is compared with."""

    end: TrailEnd
    node_version: int | None = None
    """The override's node's; None: there is none."""
    version: int = 0
    """The override's."""
    is_set: bool = False
    """Whether it is an override, readable or not."""
    override: Override | None = None
    """None: none stands, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Deed:
    """Who does what to an override."""

    who: str
    action: AuditAction
    broker_id: int | None
    after: Override | None = None
    reason: str = ""

    def record(self, before: Override | None) -> AuditRecord:
        """Return what is written of it; number and time come from the node."""
        return AuditRecord(0, NO_TIME, self.who, self.action, self.broker_id, before, self.after, self.reason)


def _standing(data: bytes, version: int) -> tuple[bool, Override | None]:
    """Whether a node's content is an override, and which one if it can be read."""
    try:
        override = parse_override(data, version)
    except Invalid:
        return True, None
    is_set = override is not None and override.rate > 0
    return is_set, override if is_set else None
