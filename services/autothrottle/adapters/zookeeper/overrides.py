"""Overrides in ZooKeeper, in the nodes and the format that the original program reads and writes too."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.codec import broker_id_of, format_override, parse_override
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.errors import AutothrottleError, Invalid, NotLeader
from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.overrides import Override, Overrides, validate_broker_id, validate_rate
from autothrottle.ports.cluster import Watch

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class ZooKeeperOverrides:
    """An `OverrideStore`. Thread-safe.

    The version of an override is the transaction that wrote it: the version of the node itself starts again when a
    node is removed and made anew.
    """

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
        self._timeout = timeout.total_seconds()
        self._lock = threading.Lock()
        self._watchers = Subscriptions[None]()
        self._dirty = threading.Event()
        self._closed = threading.Event()
        self._follower: threading.Thread | None = None
        self._fired = False
        self._mirror = ZnodeMirror(client, self._fire)
        self._mirror.track([(Part.DATA, own.overrides), (Part.CHILDREN, own.overrides)])
        self._children: frozenset[str] = frozenset()

    def close(self) -> None:
        """Stop following the overrides."""
        self._closed.set()
        self._dirty.set()
        if self._follower is not None:
            self._follower.join()
        self._mirror.close()

    def read_overrides(self) -> Overrides:
        """Return all overrides."""
        with self._lock, translated_errors("reading overrides"):
            self._read_changed()
            return self._parsed()

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

    def set_override(self, broker_id: int | None, rate: BytesPerSecond, autoremove: bool) -> Override:
        """Set an override, in place of one that stands."""
        if broker_id is not None:
            validate_broker_id(broker_id)
        path, override = self._own.override(broker_id), Override(validate_rate(rate), autoremove)
        with translated_errors("setting an override"):
            self._client.ensure_path(self._own.overrides)
            try:
                version = int(self._client.set(path, format_override(override)).mzxid)
            except NoNodeError:
                version = self._created(path, override)
        return Override(rate, autoremove, version)

    def _created(self, path: str, override: Override) -> int:
        try:
            _, stat = self._client.create(path, format_override(override), include_data=True)
        except NodeExistsError:
            stat = self._client.set(path, format_override(override))
        return int(stat.mzxid)

    def remove_override(self, broker_id: int | None) -> bool:
        """Remove an override; the cluster's node stays, marked as the original marks it, for its children."""
        path = self._own.override(broker_id)
        with translated_errors("removing an override"):
            try:
                data, stat = self._client.get(path)
                if broker_id is None:
                    standing = _standing(data)
                    if standing:
                        self._client.set(path, format_override(Override(0)), stat.version)
                    return standing
                self._client.delete(path)
            except NoNodeError:
                return False
            except BadVersionError:
                return self.remove_override(broker_id)
        return True

    def purge_override(self, fence: int, broker_id: int | None, version: int) -> bool:
        """Remove one version of an override on behalf of a term."""
        path = self._own.override(broker_id)
        transaction = self._client.transaction()
        transaction.check(self._own.term, fence)
        with translated_errors("purging an override"):
            stat = self._client.exists_async(path).get(timeout=self._timeout)
            if stat is not None and stat.mzxid == version:
                if broker_id is None:
                    transaction.set_data(path, format_override(Override(0)), stat.version)
                else:
                    transaction.delete(path, stat.version)
            term_check, *results = transaction.commit_async().get(timeout=self._timeout)
        if isinstance(term_check, BadVersionError | NoNodeError):
            raise NotLeader(f"term {fence} is over; the override stays")
        return bool(results) and not isinstance(results[0], Exception)

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change of any override."""
        watch = self._watchers.add(lambda _: notify())
        with self._lock:
            if self._follower is None:
                self._follower = threading.Thread(target=self._follow, name="zookeeper-overrides", daemon=True)
                self._follower.start()
        self._dirty.set()
        return watch

    def _follow(self) -> None:
        """Read what changed, so that its watches stand again, and tell."""
        while True:
            self._dirty.wait()
            self._dirty.clear()
            if self._closed.is_set():
                return
            fired, self._fired = self._fired, False
            try:
                with self._lock, translated_errors("reading overrides"):
                    changed = self._read_changed()
            except AutothrottleError as error:
                log.warning("the overrides cannot be followed: %s", error)
                self._closed.wait(_RETRY_SECONDS)
                self._fire()
                continue
            if fired or changed:
                self._watchers.publish(None)

    def _fire(self) -> None:
        self._fired = True
        self._dirty.set()


def _standing(data: bytes) -> bool:
    """Whether a node's content is an override, readable or not."""
    try:
        override = parse_override(data, 0)
    except Invalid:
        return True
    return override is not None and override.rate > 0
