"""The pause in ZooKeeper: one node, which is there while it is paused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from autothrottle.adapters.zookeeper.follower import Follower
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.ports.cluster import Watch


class ZooKeeperPauses:
    """A `PauseStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
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
            data = self._mirror.data(self._own.pause)
        return None if data is None else parse_pause(data, self._own.pause)

    def set_pause(self, pause: Pause) -> None:
        """Pause, in place of a pause that stands."""
        data = format_pause(pause)
        with translated_errors("pausing"):
            while True:
                try:
                    self._client.create(self._own.pause, data, makepath=True)
                    return
                except NodeExistsError:
                    pass
                try:
                    self._client.set(self._own.pause, data)
                    return
                except NoNodeError:  # resumed in between
                    continue

    def remove_pause(self) -> bool:
        """Resume; False when it was not paused."""
        with translated_errors("resuming"):
            try:
                self._client.delete(self._own.pause)
            except NoNodeError:
                return False
        return True

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


def parse_pause(data: bytes, path: str) -> Pause:
    """Return the pause that a node holds.

    Whoever made a node that cannot be parsed meant to pause: it counts as one that keeps what stands, and says so.
    """
    try:
        value = json.loads(data)
        author, reason, time = value["author"], value["reason"], value["time"]
        if not isinstance(author, str) or not isinstance(reason, str):
            raise TypeError("a field is of another kind")
        return Pause(PauseMode(value["mode"]), author, None if time is None else _time(time), reason)
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return Pause(PauseMode.KEEP, reason=f"{path} cannot be read; pause again, or resume")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no zone")
    return time.astimezone(UTC)


def format_pause(pause: Pause) -> bytes:
    """Return the text of a pause."""
    value = {
        "version": 1,
        "mode": pause.mode.value,
        "author": pause.author,
        "time": None if pause.time is None else pause.time.isoformat(),
        "reason": pause.reason,
    }
    return json.dumps(value, separators=(",", ":")).encode()
