"""A cached copy of the ledger, for a backend whose snapshots of Kafka do not come from ZooKeeper."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry, resource_of
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import ConfigResource, ResourceType
from autothrottle.core.cluster.ledger import LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid, Unavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """All ledger entries at one moment."""

    entries: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """Resource -> its entry. An unreadable entry keeps its last known value; absent: we own nothing there."""
    unreadable: Mapping[ConfigResource, Problem] = field(default_factory=dict)
    """Resource -> why its entry cannot be read."""


class LedgerReader:
    """Reads the ledger and fetches only entries that changed. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths) -> None:
        self._roots = {f"{own.ledger}/{kind.value}": kind for kind in ResourceType}
        self._mirror = ZnodeMirror(client)
        self._mirror.track((Part.CHILDREN, root) for root in self._roots)
        self._lock = threading.Lock()
        self._names: dict[str, frozenset[str]] = {}
        self._entries: dict[ConfigResource, LedgerEntry] = {}
        self._unreadable: dict[ConfigResource, Problem] = {}

    def close(self) -> None:
        """Stop following the ledger."""
        self._mirror.close()

    def read(self, timeout: timedelta) -> LedgerCopy:
        """Return the ledger, including every write completed before the call.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        if not self._lock.acquire(timeout=timeout.total_seconds()):
            raise Unavailable(f"the ledger is still being read after {timeout.total_seconds():g} s")
        try:
            with translated_errors("reading the ledger"):
                self._mirror.sync(seconds_left(deadline))
                while read := self._mirror.read_changed(seconds_left(deadline)):
                    for part, path in read:
                        if part is Part.CHILDREN:
                            self._absorb_names(path)
                        else:
                            self._absorb_entry(path)
            return LedgerCopy(dict(self._entries), dict(self._unreadable))
        finally:
            self._lock.release()

    def _absorb_names(self, root: str) -> None:
        names = frozenset(self._mirror.children(root))
        gone = [f"{root}/{name}" for name in self._names.get(root, frozenset()) - names]
        self._names[root] = names
        self._mirror.track((Part.DATA, f"{root}/{name}") for name in names)
        self._mirror.forget((Part.DATA, path) for path in gone)
        for path in gone:
            self._absorb_entry(path)

    def _absorb_entry(self, path: str) -> None:
        root, _, name = path.rpartition("/")
        resource, data = resource_of(self._roots[root], name), self._mirror.data(path)
        if resource is None:
            return
        self._unreadable.pop(resource, None)
        if data is None:
            self._entries.pop(resource, None)
            return
        try:
            self._entries[resource] = parse_ledger_entry(data)
        except Invalid as error:
            log.warning("%s: %s", path, error)
            self._unreadable[resource] = Problem(path, str(error))
