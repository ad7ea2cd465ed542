"""A cached copy of the ledger, for a backend whose snapshots of Kafka do not come from ZooKeeper."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.kafka_zookeeper.throttle_configs import ThrottleConfigs
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import THROTTLED_TYPES, ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Unavailable


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
        self._mirror = ZnodeMirror(client)
        self._mirror.track((Part.CHILDREN, f"{own.ledger}/{kind.value}") for kind in THROTTLED_TYPES)
        # Only the ledger is mirrored, so no config below these paths is ever read.
        self._nodes = ThrottleConfigs(KafkaPaths(own.prefix), own, self._mirror, ParsedNodes(self._mirror))
        self._lock = threading.Lock()

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
                        for changed in self._mirror.track_children(path) if part is Part.CHILDREN else [path]:
                            self._nodes.absorb(changed)
            return LedgerCopy(dict(self._nodes.ledger), dict(self._nodes.unreadable()))
        finally:
            self._lock.release()
