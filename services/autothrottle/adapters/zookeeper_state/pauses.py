"""The pause in ZooKeeper: one node, which exists while autothrottle is paused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.codec import format_pause, parse_pause
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper_state.audit import NO_TIME, AuditTrail
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.records import AuditAction, Pause
from autothrottle.ports.kafka import Watch


class ZooKeeperPauses:
    """A `PauseStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
        self._trail = AuditTrail(client, own, timeout)
        self._timeout = timeout.total_seconds()
        self._node = FollowedNode(client, own.pause, "pause", timeout)

    def close(self) -> None:
        """Stop following the pause."""
        self._node.close()

    def read_pause(self) -> Pause | None:
        """Return the pause; a node that cannot be parsed counts as a pause that keeps the current throttles."""
        data, zxid = self._node.read()
        return parse_pause(data or b"", self._own.pause) if zxid else None

    def set_pause(self, pause: Pause) -> None:
        """Pause, or replace the current pause."""
        record = StoredAuditRecord(0, NO_TIME, pause.author, AuditAction.PAUSE, pause=pause)

        def attempt() -> int | None:
            end, current = self._trail.end(), self._find()
            change = self._client.transaction()
            if current is None:
                change.create(self._own.pause, format_pause(pause))
            else:
                change.set_data(self._own.pause, format_pause(pause), current.version)
            return self._trail.commit(change, end, record)

        with translated_errors("pausing"):
            self._trail.retry(attempt)

    def remove_pause(self, who: str = "") -> bool:
        """Resume; return whether it was paused."""

        def attempt() -> bool | None:
            end, current = self._trail.end(), self._find()
            if current is None:
                return False
            change = self._client.transaction()
            change.delete(self._own.pause, current.version)
            record = StoredAuditRecord(0, NO_TIME, who, AuditAction.RESUME, pause=current.pause)
            return None if self._trail.commit(change, end, record) is None else True

        with translated_errors("resuming"):
            return self._trail.retry(attempt)

    def _find(self) -> _CurrentPause | None:
        try:
            data, stat = self._client.get_async(self._own.pause).get(timeout=self._timeout)
        except NoNodeError:
            return None
        return _CurrentPause(parse_pause(data or b"", self._own.pause), stat.version)

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


@dataclass(frozen=True, slots=True)
class _CurrentPause:
    """The current pause and the version of its node."""

    pause: Pause
    version: int
