"""Brokers that catch up under a throttle: one node in ZooKeeper for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode
from autothrottle.core.control.audit import AuditAction, AuditRecord
from autothrottle.core.control.catch_up import CatchUp
from autothrottle.core.errors import Invalid
from autothrottle.ports.kafka import Watch


class ZooKeeperCatchUps:
    """A `CatchUpStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._node = AuditedNode(client, own, own.catch_ups, "catch-ups", parse_catch_ups, format_catch_ups, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        return self._node.read()

    def start_catch_up(self, wanted: CatchUp) -> None:
        """Add a catch-up, or replace the broker's current one."""
        record = AuditRecord(0, NO_TIME, wanted.author, AuditAction.START_CATCH_UP, wanted.broker_id)
        self._node.edit(lambda current: {**current, wanted.broker_id: wanted}, record)

    def remove_catch_up(self, broker_id: int, who: str = "") -> bool:
        """Remove a broker's catch-up; return whether there was one."""
        record = AuditRecord(0, NO_TIME, who, AuditAction.STOP_CATCH_UP, broker_id)
        return self._node.edit(lambda current: {b: one for b, one in current.items() if b != broker_id}, record)

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        """Remove this catch-up, fenced by the term. A later catch-up of the same broker stays."""
        return self._node.edit(lambda current: {b: one for b, one in current.items() if one != ended}, fence=fence)

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def parse_catch_ups(data: bytes, path: str) -> dict[int, CatchUp]:
    """Parse the node: broker id -> its catch-up.

    Raises:
        Invalid: the text cannot be parsed.
    """
    try:
        found = {}
        for text, value in json.loads(data)["brokers"].items():
            time = value["time"]
            found[int(text)] = CatchUp(
                int(text), str(value["author"]), None if time is None else datetime.fromisoformat(time).astimezone(UTC)
            )
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise Invalid(f"{path} cannot be parsed; delete the node, then start the catch-ups again") from None
    return found


def format_catch_ups(catch_ups: Mapping[int, CatchUp]) -> bytes:
    """Format catch-ups (broker id -> catch-up) as the node's text."""
    brokers = {
        str(b): {"author": one.author, "time": None if one.time is None else one.time.isoformat()}
        for b, one in sorted(catch_ups.items())
    }
    return compact_json({"version": 1, "brokers": brokers})
