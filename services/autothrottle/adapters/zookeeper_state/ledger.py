"""The ledger in ZooKeeper: what autothrottle wrote, where Kafka's configs are not in ZooKeeper, and client quotas."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.kafka_zookeeper.snapshots import ThrottleConfigs
from autothrottle.adapters.state_store.ledger import quota_resource
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import FenceCheck, term_check, translated_errors
from autothrottle.core.cluster.configs import THROTTLED_TYPES, ConfigResource, LedgerEntry
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.records import Outcome
from autothrottle.core.throttles.changes import Change
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import LedgerCopy


class ZooKeeperLedger:
    """A `Ledger` whose writes carry the fence of a term. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths) -> None:
        self._client, self._own = client, own
        self._last_check: FenceCheck | None = None
        """A fence belongs to one origin, so its check never changes. Each write to Kafka needs it."""
        # The writer only gets changes without edits, so it never touches a config below these paths.
        self._writer = ZooKeeperConfigWriter(client, KafkaPaths(own.prefix), own)

    def read(
        self, resources: Collection[ConfigResource], deadline: float
    ) -> Mapping[ConfigResource, LedgerEntry | Invalid | None]:
        paths = {resource: self._own.ledger_entry(resource) for resource in resources}
        with translated_errors("reading the ledger"):
            return dict(zip(paths, read_entries(self._client, list(paths.values()), deadline), strict=True))

    def write(
        self, fence: int, entries: Mapping[ConfigResource, LedgerEntry | None], deadline: float
    ) -> Mapping[ConfigResource, Outcome]:
        changes = [Change(resource, (), entry) for resource, entry in entries.items()]
        outcomes = self._writer.apply(Term(fence), changes, timedelta(seconds=seconds_left(deadline)))
        return {outcome.resource: outcome for outcome in outcomes}

    def quota_entries(self, deadline: float) -> Mapping[ConfigResource, LedgerEntry | Invalid]:
        parent = self._own.quota_ledger
        with translated_errors("reading the ledger of client quotas"):
            try:
                names = self._client.get_children_async(parent).get(timeout=seconds_left(deadline))
            except NoNodeError:
                return {}
            entries = read_entries(self._client, [f"{parent}/{name}" for name in names], deadline)
        return {
            resource: entry
            for resource, entry in zip(map(quota_resource, names), entries, strict=True)
            if resource is not None and entry is not None
        }

    def check_term(self, fence: int, deadline: float) -> None:
        """Check the term in a transaction with only this check."""
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


class ZooKeeperLedgerReader:
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
