"""The ledger alone, for a backend whose configs are not in ZooKeeper.

`Ledger` writes fenced batches and checks the term; `LedgerReader` keeps a cached copy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.kafka_zookeeper.throttle_configs import ThrottleConfigs
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.term import FenceCheck, term_check
from autothrottle.core.cluster.configs import THROTTLED_TYPES, ConfigResource
from autothrottle.core.cluster.ledger import LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.records import Outcome
from autothrottle.core.throttles.changes import Change
from autothrottle.ports.kafka import Term


class Ledger:
    """Reads and writes ledger entries under the fence of a term. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths) -> None:
        self._client, self._own = client, own
        self._last_check: FenceCheck | None = None
        """A fence belongs to one origin, so its check never changes. Each write to Kafka needs it."""
        # The writer only gets changes without edits, so it never touches a config below these paths.
        self._writer = ZooKeeperConfigWriter(client, KafkaPaths(own.prefix), own)

    def read(
        self, resources: Collection[ConfigResource], deadline: float
    ) -> Mapping[ConfigResource, LedgerEntry | Invalid | None]:
        """Return the entries by resource. None: the entry does not exist; an error: it cannot be parsed.

        Args:
            resources: config resources to look up.
            deadline: on the monotonic clock.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        paths = {resource: self._own.ledger_entry(resource) for resource in resources}
        with translated_errors("reading the ledger"):
            return dict(zip(paths, read_entries(self._client, list(paths.values()), deadline), strict=True))

    def write(
        self, fence: int, entries: Mapping[ConfigResource, LedgerEntry | None], deadline: float
    ) -> Mapping[ConfigResource, Outcome]:
        """Write entries (None: delete the entry) and return the outcome of each.

        Raises:
            NotLeader: the term is over; the remaining entries were not written.
            Unavailable: no entry was tried.
        """
        changes = [Change(resource, (), entry) for resource, entry in entries.items()]
        outcomes = self._writer.apply(Term(fence), changes, timedelta(seconds=seconds_left(deadline)))
        return {outcome.resource: outcome for outcome in outcomes}

    def check_term(self, fence: int, deadline: float) -> None:
        """Check that the term is the newest one, in a transaction with only this check, since a read may be stale.

        Raises:
            NotLeader: the term is over.
            Unavailable: ZooKeeper does not answer in time.
        """
        with translated_errors("checking the term"):
            consequence = "nothing more was written"
            check = self._last_check
            if check is None or check.fence != fence:
                check = term_check(self._client, self._own, fence, seconds_left(deadline), consequence)
                self._last_check = check
            results = check.begin(self._client).commit_async().get(timeout=seconds_left(deadline))
            check.require(results, consequence)
            for error in (result for result in results if isinstance(result, Exception)):
                raise error


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
                while keys := self._mirror.read_changed(seconds_left(deadline)):
                    for part, path in keys:
                        for changed in self._mirror.track_children(path) if part is Part.CHILDREN else [path]:
                            self._nodes.absorb(changed)
            return LedgerCopy(dict(self._nodes.ledger), dict(self._nodes.unreadable()))
        finally:
            self._lock.release()


def read_entries(client: KazooClient, paths: Sequence[str], deadline: float) -> list[LedgerEntry | Invalid | None]:
    """Return the entry at each path. None: it does not exist; an error: it cannot be parsed.

    Args:
        client: connected.
        paths: of the entries.
        deadline: on the monotonic clock.
    """
    return [_entry(path, node) for path, node in zip(paths, read_nodes(client, paths, deadline), strict=True)]


def _entry(path: str, node: Node | None) -> LedgerEntry | Invalid | None:
    try:
        return None if node is None else parse_ledger_entry(node[0] or b"")
    except Invalid as error:
        return Invalid(f"{path}: {error}")
