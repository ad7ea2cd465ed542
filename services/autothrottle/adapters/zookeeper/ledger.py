"""The ledger by itself, for a Kafka whose configs are elsewhere: fenced batches, and the term's check alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError

from autothrottle.adapters.deadlines import seconds_left
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.changes import Change, Outcome
from autothrottle.core.configs import ConfigResource
from autothrottle.core.errors import Invalid, NotLeader
from autothrottle.core.ledger import LedgerEntry


class Ledger:
    """What we wrote to each config resource, and the fence of whoever writes there. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths) -> None:
        self._client, self._own = client, own
        # Changes without edits: there is no config of Kafka's below our own root, and none is written.
        self._writer = ZooKeeperConfigWriter(client, KafkaPaths(own.prefix), own)

    def read(
        self, resources: Collection[ConfigResource], deadline: float
    ) -> Mapping[ConfigResource, LedgerEntry | Invalid | None]:
        """Return the entries; None: there is none; an error: it cannot be read.

        Args:
            resources: whose entries.
            deadline: on the monotonic clock.

        Raises:
            Unavailable: when ZooKeeper does not answer in time.
        """
        asked = list(resources)
        with translated_errors("reading the ledger"):
            nodes = read_nodes(self._client, [self._own.ledger_entry(r) for r in asked], deadline)
        return {r: self._entry(r, node) for r, node in zip(asked, nodes, strict=True)}

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
        """Write entries, None removes one; return what became of each.

        Raises:
            NotLeader: when the term is over; nothing of the rest was written.
            Unavailable: when nothing could be tried.
        """
        changes = [Change(resource, (), entry) for resource, entry in entries.items()]
        outcomes = self._writer.apply(fence, changes, timedelta(seconds=seconds_left(deadline)))
        return {outcome.resource: outcome for outcome in outcomes}

    def check_term(self, fence: int, deadline: float) -> None:
        """Return while a term is the newest one: a transaction that holds only that check, since a read may be stale.

        Raises:
            NotLeader: when it is over.
            Unavailable: when ZooKeeper does not answer in time.
        """
        with translated_errors("checking the term"):
            transaction = self._client.transaction()
            transaction.check(self._own.term, fence)
            (result,) = transaction.commit_async().get(timeout=seconds_left(deadline))
            if isinstance(result, BadVersionError | NoNodeError):
                raise NotLeader(f"term {fence} is over; nothing more was written")
            if isinstance(result, Exception):
                raise result
