"""Overrides in ZooKeeper, in the same nodes and format as the original program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import format_override, parse_override
from autothrottle.adapters.zookeeper.followed_node import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper_state.audit import AuditTrail, NodeEdit, StoredNode
from autothrottle.core.cluster.broker_ids import broker_id_of, validate_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, AuditReading, StoredAuditRecord, unwritten_record
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
        self._own = own
        self._trail = AuditTrail(client, own, timeout, records_kept)
        self._node = FollowedNode(client, own.overrides, "overrides", timeout, with_children=True)

    def close(self) -> None:
        """Stop following the overrides."""
        self._node.close()

    def read_overrides(self) -> Overrides:
        """Return all overrides."""
        overrides: dict[int | None, StoredOverride] = {}
        unreadable: dict[int | None, str] = {}
        warnings = []
        for path, (data, version, _) in self._node.read().items():
            name = path.removeprefix(self._own.overrides)[1:]
            broker_id = broker_id_of(name)
            if name and broker_id is None:
                warnings.append(f"{path}: {name!r} is not a broker id; ignoring the node, remove it")
                continue
            try:
                if override := parse_override(data or b"", version):
                    overrides[broker_id] = override
            except Invalid as error:
                unreadable[broker_id] = f"{path}: {error}"
        brokers = {b: override for b, override in overrides.items() if b is not None}
        return Overrides(overrides.get(None), brokers, unreadable, tuple(warnings))

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
        override = StoredOverride(validate_rate(rate), autoremove, expire_time=expire_time)

        def replacement(node: StoredNode | None) -> NodeEdit:
            check_version(broker_id, version, node.zxid if node else 0)
            record = unwritten_record(who, AuditAction.SET, broker_id, _override_in(node), override)
            return NodeEdit(format_override(override), record)

        with translated_errors("setting an override"):
            return replace(override, version=self._trail.edit(self._own.override(broker_id), replacement))

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        """Remove an override. The cluster override's node stays as parent, with rate 0 as the original marks it."""

        def removal(node: StoredNode | None) -> NodeEdit | None:
            if node is None or (broker_id is None and not _holds_override(node)):
                return None
            check_version(broker_id, version, node.zxid)
            return _removal(broker_id, unwritten_record(who, AuditAction.REMOVE, broker_id, _override_in(node)))

        with translated_errors("removing an override"):
            return self._trail.edit(self._own.override(broker_id), removal) > 0

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override, fenced by the term."""
        who = f"planner, term {fence}"

        def purge(node: StoredNode | None) -> NodeEdit | None:
            if node is None or node.zxid != version:
                return None
            override = _override_in(node)
            return _removal(broker_id, unwritten_record(who, AuditAction.PURGE, broker_id, override, reason=reason))

        with translated_errors("purging an override"):
            return self._trail.edit(self._own.override(broker_id), purge, fence) > 0

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        """Record an action that changes no state in the stores."""
        record = unwritten_record(who, action, result=result)
        with translated_errors("writing an audit record"):
            self._trail.append(record)

    def read_audit_records(self, limit: int) -> AuditReading:
        with translated_errors("reading the audit records"):
            return self._trail.newest(limit)

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def _removal(broker_id: int | None, record: StoredAuditRecord) -> NodeEdit:
    return NodeEdit(format_override(StoredOverride(0)) if broker_id is None else None, record)


def _override_in(node: StoredNode | None) -> StoredOverride | None:
    """Return the override in a node; None: none is set, or it cannot be parsed."""
    with suppress(Invalid):
        override = node and parse_override(node.data or b"", node.zxid)
        return override if override and override.rate > 0 else None
    return None


def _holds_override(node: StoredNode) -> bool:
    """Whether a node holds an override, readable or not."""
    try:
        override = parse_override(node.data or b"", node.zxid)
    except Invalid:
        return True
    return override is not None and override.rate > 0
