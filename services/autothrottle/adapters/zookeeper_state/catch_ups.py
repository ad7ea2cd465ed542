"""Brokers that catch up under a throttle: one node in ZooKeeper for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import FIELD_ERRORS, optional_time, text
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode, MapCodec
from autothrottle.core.cluster.snapshot import parse_broker_id
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.records import AuditAction, CatchUp
from autothrottle.ports.kafka import Watch


class ZooKeeperCatchUps:
    """A `CatchUpStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._node = AuditedNode(client, own, own.catch_ups, "catch-ups", CATCH_UPS, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        return self._node.read()

    def start_catch_up(self, wanted: CatchUp) -> None:
        """Add a catch-up, or replace the broker's current one."""
        record = StoredAuditRecord(0, NO_TIME, wanted.author, AuditAction.START_CATCH_UP, wanted.broker_id)
        self._node.edit(lambda current: {**current, wanted.broker_id: wanted}, record)

    def remove_catch_up(self, broker_id: int, who: str = "") -> bool:
        """Remove a broker's catch-up; return whether there was one."""
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.STOP_CATCH_UP, broker_id)
        return self._node.edit(lambda current: {b: one for b, one in current.items() if b != broker_id}, record)

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        """Remove this catch-up, fenced by the term. A later catch-up of the same broker stays."""
        return self._node.edit(lambda current: {b: one for b, one in current.items() if one != ended}, fence=fence)

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def _parse(name: str, value: Any) -> tuple[int, CatchUp]:
    """Parse an entry. The broker catches up even if its author or time cannot be read."""
    broker_id = parse_broker_id(name)
    try:
        return broker_id, CatchUp(broker_id, text(value["author"]), optional_time(value["time"]))
    except FIELD_ERRORS:
        return broker_id, CatchUp(broker_id, "unreadable")


def _format(catch_ups: Mapping[int, CatchUp]) -> Mapping[str, Any]:
    return {
        str(broker_id): {"author": entry.author, "time": None if entry.time is None else entry.time.isoformat()}
        for broker_id, entry in sorted(catch_ups.items())
    }


CATCH_UPS = MapCodec("brokers", _parse, _format)
"""Broker id -> its catch-up."""
