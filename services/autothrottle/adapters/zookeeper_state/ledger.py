"""The ledger alone, for a backend whose configs are not in ZooKeeper: fenced batches, and a bare check of the term."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.term import FenceCheck, term_check
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.errors import Invalid
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
        requested = list(resources)
        with translated_errors("reading the ledger"):
            nodes = read_nodes(self._client, [self._own.ledger_entry(r) for r in requested], deadline)
        return {r: self._entry(r, node) for r, node in zip(requested, nodes, strict=True)}

    def _entry(self, resource: ConfigResource, node: Node | None) -> LedgerEntry | Invalid | None:
        if node is None:
            return None
        try:
            return parse_ledger_entry(node[0] or b"")
        except Invalid as error:
            return Invalid(f"{self._own.ledger_entry(resource)}: {error}")

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
