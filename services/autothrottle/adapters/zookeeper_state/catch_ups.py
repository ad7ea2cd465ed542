"""Brokers that catch up under a throttle: one node in ZooKeeper for all of them, changed by compare-and-set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper_state.audit import NO_TIME, AuditTrail, committed
from autothrottle.core.control.audit import AuditAction, AuditRecord
from autothrottle.core.control.catch_up import CatchUp
from autothrottle.core.errors import Invalid
from autothrottle.ports.kafka import Watch

_Change = Callable[[Mapping[int, CatchUp]], Mapping[int, CatchUp]]
"""Current catch-ups by broker id -> wanted ones."""


class ZooKeeperCatchUps:
    """A `CatchUpStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
        self._path = own.catch_ups
        self._trail = AuditTrail(client, own, timeout)
        self._timeout = timeout.total_seconds()
        self._node = FollowedNode(client, self._path, "catch-ups", timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        data, _ = self._node.read()
        return {} if data is None else parse_catch_ups(data, self._path)

    def start_catch_up(self, wanted: CatchUp) -> None:
        """Add a catch-up, or replace the broker's current one."""
        record = AuditRecord(0, NO_TIME, wanted.author, AuditAction.START_CATCH_UP, wanted.broker_id)
        self._edit(lambda current: {**current, wanted.broker_id: wanted}, record)

    def remove_catch_up(self, broker_id: int, who: str = "") -> bool:
        """Remove a broker's catch-up; return whether there was one."""
        record = AuditRecord(0, NO_TIME, who, AuditAction.STOP_CATCH_UP, broker_id)
        return self._edit(lambda current: {b: one for b, one in current.items() if b != broker_id}, record)

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        """Remove this catch-up, fenced by the term. A later catch-up of the same broker stays."""
        return self._edit(lambda current: {b: one for b, one in current.items() if one != ended}, fence=fence)

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)

    def _edit(self, change: _Change, record: AuditRecord | None = None, fence: int | None = None) -> bool:
        """Apply a change to the current value; return whether anything changed.

        Args:
            change: maps the current value to the wanted one.
            record: written in the same transaction; None: no audit record.
            fence: the term that must continue; None: the change belongs to no term.
        """

        def attempt() -> bool | None:
            end = self._trail.end() if record else None
            current, version = self._current()
            wanted = change(current)
            if wanted == current:
                return False
            write = self._write(wanted, version, fence)
            if record and end:
                return None if self._trail.commit(write, end, record, fence) is None else True
            return None if committed(write, self._timeout, fence, "nothing was written") is None else True

        with translated_errors("changing the catch-ups"):
            return self._trail.retry(attempt)

    def _current(self) -> tuple[Mapping[int, CatchUp], int | None]:
        try:
            data, stat = self._client.get_async(self._path).get(timeout=self._timeout)
        except NoNodeError:
            return {}, None
        return parse_catch_ups(data, self._path), stat.version

    def _write(self, wanted: Mapping[int, CatchUp], version: int | None, fence: int | None) -> TransactionRequest:
        """Return the write that succeeds if the node still has this version and the term continues."""
        change = self._client.transaction()
        if fence is not None:
            change.check(self._own.term, fence)
        if version is None:
            change.create(self._path, format_catch_ups(wanted))
        else:
            change.set_data(self._path, format_catch_ups(wanted), version)
        return change


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
