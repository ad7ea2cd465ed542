"""The brokers that catch up under throttle, in ZooKeeper: one node for all of them, each change in one transaction."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from autothrottle.adapters.zookeeper.follower import Follower
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.catch_up import CatchUp
from autothrottle.core.errors import Invalid, NotLeader, Unavailable
from autothrottle.ports.cluster import Watch

_ATTEMPTS = 20


class ZooKeeperCatchUps:
    """A `CatchUpStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
        self._path = own.catch_ups
        self._timeout = timeout.total_seconds()
        self._lock = threading.Lock()
        self._follower = Follower("catch-ups", self._catch_up)
        self._told: tuple[bytes | None, int] = (None, 0)
        self._mirror = ZnodeMirror(client, self._follower.fire)
        self._mirror.track([(Part.DATA, self._path)])

    def close(self) -> None:
        """Stop following them."""
        self._follower.close()
        self._mirror.close()

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        """Return broker id -> its catch-up."""
        with self._lock, translated_errors("reading the catch-ups"):
            self._mirror.catch_up(self._timeout)
            self._read_changed()
            data = self._mirror.data(self._path)
        return {} if data is None else parse_catch_ups(data, self._path)

    def start_catch_up(self, wanted: CatchUp) -> None:
        """Add one, in place of one that stands."""
        self._edit(lambda standing: {**standing, wanted.broker_id: wanted})

    def remove_catch_up(self, broker_id: int) -> bool:
        """Remove one; False when there was none."""
        return self._edit(lambda standing: {b: one for b, one in standing.items() if b != broker_id})

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        """Remove one that is over, and no later one of the same broker, on behalf of a term."""
        return self._edit(lambda standing: {b: one for b, one in standing.items() if one != ended}, fence)

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change."""
        return self._follower.watch(notify)

    def _edit(self, change: Callable[[Mapping[int, CatchUp]], Mapping[int, CatchUp]], fence: int | None = None) -> bool:
        """Change what stands, whoever else does; whether anything was changed."""
        with translated_errors("changing the catch-ups"):
            for _ in range(_ATTEMPTS):
                standing, version = self._standing()
                wanted = change(standing)
                if wanted == standing:
                    return False
                if self._write(format_catch_ups(wanted), version, fence):
                    return True
        raise Unavailable("the catch-ups are changed by others all the time; try again")

    def _standing(self) -> tuple[Mapping[int, CatchUp], int | None]:
        try:
            data, stat = self._client.get_async(self._path).get(timeout=self._timeout)
        except NoNodeError:
            return {}, None
        return parse_catch_ups(data, self._path), stat.version

    def _write(self, data: bytes, version: int | None, fence: int | None) -> bool:
        """Write, if what was read stands still and the term goes on; whether it was done."""
        if version is None:
            self._client.ensure_path(self._own.root)
        change = self._client.transaction()
        if fence is not None:
            change.check(self._own.term, fence)
        if version is None:
            change.create(self._path, data)
        else:
            change.set_data(self._path, data, version)
        results = change.commit_async().get(timeout=self._timeout)
        if fence is not None and isinstance(results[0], BadVersionError | NoNodeError):
            raise NotLeader(f"term {fence} is over: nothing was written")
        if isinstance(results[-1], BadVersionError | NoNodeError | NodeExistsError):
            return False
        for result in results:
            if isinstance(result, Exception):
                raise result
        return True

    def _catch_up(self) -> bool:
        with self._lock, translated_errors("reading the catch-ups"):
            self._read_changed()
            standing = self._mirror.data(self._path), self._mirror.written_by(self._path)
        told, self._told = self._told, standing
        return standing != told

    def _read_changed(self) -> None:
        while self._mirror.read_changed(self._timeout):
            pass


def parse_catch_ups(data: bytes, path: str) -> dict[int, CatchUp]:
    """Return the catch-ups that a node holds.

    Raises:
        Invalid: when it cannot be parsed.
    """
    try:
        found = {}
        for text, value in json.loads(data)["brokers"].items():
            time = value["time"]
            found[int(text)] = CatchUp(
                int(text), str(value["author"]), None if time is None else datetime.fromisoformat(time).astimezone(UTC)
            )
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise Invalid(f"{path} cannot be read; delete the node, then ask for the catch-ups again") from None
    return found


def format_catch_ups(catch_ups: Mapping[int, CatchUp]) -> bytes:
    """Return the text of catch-ups."""
    brokers = {
        str(b): {"author": one.author, "time": None if one.time is None else one.time.isoformat()}
        for b, one in sorted(catch_ups.items())
    }
    return json.dumps({"version": 1, "brokers": brokers}, separators=(",", ":")).encode()
