"""Overrides in ZooKeeper, in the same nodes and format as the original program."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.change_notifier import ChangeNotifier
from autothrottle.adapters.zookeeper.codec import format_override, parse_override
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.term import term_check
from autothrottle.adapters.zookeeper_state.audit import OVERRIDE_STAYS, AuditTrail, TrailEnd
from autothrottle.core.cluster.broker_ids import broker_id_of, validate_broker_id
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, AuditReading, unwritten_record
from autothrottle.core.operators.overrides import Overrides, StoredOverride, check_version, validate_rate
from autothrottle.core.records import AuditAction
from autothrottle.core.units import BytesPerSecond
from autothrottle.ports.kafka import Watch


class ZooKeeperOverrides:
    """An `OverrideStore`. Thread-safe.

    The version of an override is the transaction id of its last write, because a node's own version restarts at 0 when
    the node is deleted and created again. Each change and its audit record are one transaction.
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
        self._notifier = ChangeNotifier("overrides", self._refresh)
        self._fired = False
        self._mirror = ZnodeMirror(client, self._fire)
        self._mirror.track([(Part.DATA, own.overrides), (Part.CHILDREN, own.overrides)])
        self._tickets = itertools.count(1)
        self._newest_ticket = self._served = 0
        self._last = Overrides()

    def close(self) -> None:
        """Stop following the overrides."""
        self._notifier.close()
        self._mirror.close()

    def read_overrides(self) -> Overrides:
        """Return all overrides.

        Concurrent callers share reads: one caller reads for all callers that were waiting when its read began.
        """
        self._newest_ticket = ticket = next(self._tickets)
        with self._lock:
            if ticket > self._served:
                # Callers with tickets up to this one asked before this read begins.
                newest = self._newest_ticket
                with translated_errors("reading overrides"):
                    self._read_changed()
                    self._last = self._parsed()
                self._served = newest
            return self._last

    def _read_changed(self) -> bool:
        changed = False
        self._mirror.sync(self._timeout)
        while self._mirror.read_changed(self._timeout):
            changed = True
            self._mirror.track_children(self._own.overrides)
        return changed

    def _path(self, name: str) -> str:
        return f"{self._own.overrides}/{name}"

    def _parsed(self) -> Overrides:
        unreadable: dict[int | None, str] = {}
        warnings = []
        cluster = self._parse(None, self._own.overrides, unreadable)
        brokers = {}
        for name in self._mirror.children(self._own.overrides):
            broker_id = broker_id_of(name)
            if broker_id is None:
                warnings.append(f"{self._path(name)}: {name!r} is not a broker id; ignoring the node, remove it")
                continue
            override = self._parse(broker_id, self._path(name), unreadable)
            if override is not None:
                brokers[broker_id] = override
        return Overrides(cluster, brokers, unreadable, tuple(warnings))

    def _parse(self, broker_id: int | None, path: str, unreadable: dict[int | None, str]) -> StoredOverride | None:
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
    ) -> StoredOverride:
        """Set an override: create it or replace the current one. `version` != 0: replace only that version."""
        if broker_id is not None:
            validate_broker_id(broker_id)
        path = self._own.override(broker_id)
        wanted = StoredOverride(validate_rate(rate), autoremove, expire_time=expire_time)

        def attempt() -> int | None:
            found = self._find(path)
            check_version(broker_id, version, found.version)
            change = self._client.transaction()
            if found.node_version is None:
                change.create(path, format_override(wanted))
            else:
                change.set_data(path, format_override(wanted), found.node_version)
            record = unwritten_record(who, AuditAction.SET, broker_id, found.override, wanted)
            done = self._trail.commit(change, found.end, record)
            if done is None:  # another client was faster, or the first override has no parent node yet
                self._client.ensure_path_async(self._own.overrides).get(timeout=self._timeout)
            return done

        with translated_errors("setting an override"):
            return replace(wanted, version=self._trail.retry(attempt))

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        """Remove an override. The cluster override's node stays as parent, with rate 0 as the original marks it."""
        path = self._own.override(broker_id)

        def attempt() -> bool | None:
            found = self._find(path)
            if found.node_version is None or (broker_id is None and not found.is_set):
                return False
            check_version(broker_id, version, found.version)
            record = unwritten_record(who, AuditAction.REMOVE, broker_id, found.override)
            done = self._trail.commit(self._removal(broker_id, found), found.end, record)
            return None if done is None else True

        with translated_errors("removing an override"):
            return self._trail.retry(attempt)

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override, fenced by the term."""
        path = self._own.override(broker_id)
        who = f"planner, term {fence}"

        def attempt() -> bool | None:
            found = self._find(path)
            check = term_check(self._client, self._own, fence, self._timeout, OVERRIDE_STAYS)
            change = check.begin(self._client)
            if found.node_version is None or found.version != version:
                check.require(change.commit_async().get(timeout=self._timeout), OVERRIDE_STAYS)
                return False
            record = unwritten_record(who, AuditAction.PURGE, broker_id, found.override, reason=reason)
            done = self._trail.commit(self._removal(broker_id, found, change), found.end, record, check)
            return None if done is None else True

        with translated_errors("purging an override"):
            return self._trail.retry(attempt)

    def _find(self, path: str) -> _CurrentOverride:
        """Read the current value at a path, and what a change must be compared with."""
        end = self._trail.end()
        try:
            data, stat = self._client.get_async(path).get(timeout=self._timeout)
        except NoNodeError:
            return _CurrentOverride(end)
        return _CurrentOverride(end, stat.version, int(stat.mzxid), *_current(data, int(stat.mzxid)))

    def _removal(
        self, broker_id: int | None, found: _CurrentOverride, change: TransactionRequest | None = None
    ) -> TransactionRequest:
        change, path = change or self._client.transaction(), self._own.override(broker_id)
        if broker_id is None:
            change.set_data(path, format_override(StoredOverride(0)), found.node_version)
        else:
            change.delete(path, found.node_version)
        return change

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        """Record an action that changes no state in the stores."""
        record = unwritten_record(who, action, result=result)
        with translated_errors("writing an audit record"):
            self._trail.retry(lambda: self._trail.commit(self._client.transaction(), self._trail.end(), record))

    def read_audit_records(self, limit: int) -> AuditReading:
        with translated_errors("reading the audit records"):
            return self._trail.newest(limit)

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        return self._notifier.watch(notify)

    def _refresh(self) -> bool:
        fired, self._fired = self._fired, False
        try:
            with self._lock, translated_errors("reading overrides"):
                return self._read_changed() or fired
        except AutothrottleError:
            self._fired = True  # reported once it can be read
            raise

    def _fire(self) -> None:
        self._fired = True
        self._notifier.fire()


@dataclass(frozen=True, slots=True)
class _CurrentOverride:
    """The current state of one override, with the versions that a change checks."""

    end: TrailEnd
    node_version: int | None = None
    """Version of the override's node; None: the node does not exist."""
    version: int = 0
    """Version of the override itself."""
    is_set: bool = False
    """Whether the node holds an override, readable or not."""
    override: StoredOverride | None = None
    """None: no override is set, or it cannot be parsed."""


def _current(data: bytes, version: int) -> tuple[bool, StoredOverride | None]:
    """Whether a node's content is an override, and the override if it can be parsed."""
    try:
        override = parse_override(data, version)
    except Invalid:
        return True, None
    is_set = override is not None and override.rate > 0
    return is_set, override if is_set else None
