"""The pause in ZooKeeper: one node, which is there while it is paused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.audit import NO_TIME, AuditTrail
from autothrottle.adapters.zookeeper.codec import format_pause, parse_pause
from autothrottle.adapters.zookeeper.follower import Follower
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.audit import AuditAction, AuditRecord
from autothrottle.core.pause import Pause
from autothrottle.ports.cluster import Watch


class ZooKeeperPauses:
    """A `PauseStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
        self._trail = AuditTrail(client, own, timeout)
        self._timeout = timeout.total_seconds()
        self._lock = threading.Lock()
        self._follower = Follower("pause", self._catch_up)
        self._told: tuple[bytes | None, int] = (None, 0)
        self._mirror = ZnodeMirror(client, self._follower.fire)
        self._mirror.track([(Part.DATA, own.pause)])

    def close(self) -> None:
        """Stop following the pause."""
        self._follower.close()
        self._mirror.close()

    def read_pause(self) -> Pause | None:
        """Return the pause; a node that cannot be parsed is one that keeps what stands."""
        with self._lock, translated_errors("reading the pause"):
            self._mirror.catch_up(self._timeout)
            self._read_changed()
            # A node may stand and hold nothing at all: zkCli makes such ones.
            stands, data = self._mirror.written_by(self._own.pause) > 0, self._mirror.data(self._own.pause)
        return parse_pause(data or b"", self._own.pause) if stands else None

    def set_pause(self, pause: Pause) -> None:
        """Pause, in place of a pause that stands."""
        record = AuditRecord(0, NO_TIME, pause.author, AuditAction.PAUSE, pause=pause)

        def attempt() -> int | None:
            end, standing = self._trail.end(), self._find()
            change = self._client.transaction()
            if standing is None:
                change.create(self._own.pause, format_pause(pause))
            else:
                change.set_data(self._own.pause, format_pause(pause), standing.version)
            return self._trail.commit(change, end, record)

        with translated_errors("pausing"):
            self._trail.retried(attempt)

    def remove_pause(self, who: str = "") -> bool:
        """Resume; False when it was not paused."""

        def attempt() -> bool | None:
            end, standing = self._trail.end(), self._find()
            if standing is None:
                return False
            change = self._client.transaction()
            change.delete(self._own.pause, standing.version)
            record = AuditRecord(0, NO_TIME, who, AuditAction.RESUME, pause=standing.pause)
            return None if self._trail.commit(change, end, record) is None else True

        with translated_errors("resuming"):
            return self._trail.retried(attempt)

    def _find(self) -> _Standing | None:
        try:
            data, stat = self._client.get_async(self._own.pause).get(timeout=self._timeout)
        except NoNodeError:
            return None
        return _Standing(parse_pause(data or b"", self._own.pause), stat.version)

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change."""
        return self._follower.watch(notify)

    def _catch_up(self) -> bool:
        with self._lock, translated_errors("reading the pause"):
            self._read_changed()
            standing = self._mirror.data(self._own.pause), self._mirror.written_by(self._own.pause)
        told, self._told = self._told, standing
        return standing != told

    def _read_changed(self) -> None:
        while self._mirror.read_changed(self._timeout):
            pass


@dataclass(frozen=True, slots=True)
class _Standing:
    """The pause that stands, and the version of its node."""

    pause: Pause
    version: int
