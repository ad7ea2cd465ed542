"""The client quotas that autothrottle wrote, from the ledger, together with their current values from Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Protocol
from urllib.parse import unquote

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.concurrency.deadlines import seconds_left, time_left
from autothrottle.adapters.zookeeper.bulk import read_nodes
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.entities import ClientReading, QuotaState, entity_of_path
from autothrottle.ports.kafka import QuotaReading

QuotaTexts = Mapping[ConfigResource, Mapping[str, str] | Invalid]
"""Resource -> key -> text of its quota, or why they cannot be read; absent: no quota is set."""


_GROUPS_UNKNOWN = "clients without quotas of their own are unknown: in ZooKeeper mode set --bootstrap-servers"


class QuotaReader(Protocol):
    """Reads client quotas where Kafka keeps them."""

    def fetch_quotas(self, timeout: timedelta) -> QuotaReading:
        """Return the quotas of all entities."""
        ...

    def fetch_texts(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaTexts:
        """Return the quotas of these resources."""
        ...


class LedgeredQuotas:
    """A `QuotaSource`: the ledger is in our ZooKeeper, the values wherever Kafka keeps them. Thread-safe."""

    def __init__(
        self,
        client: KazooClient,
        own: OwnPaths,
        quotas: QuotaReader,
        fetch_group_clients: Callable[[timedelta], ClientReading] | None = None,
    ) -> None:
        """Prepare.

        Args:
            client: session with the ledger.
            own: where the ledger is.
            quotas: current values from Kafka.
            fetch_group_clients: reads the members of groups and the brokers' plug-ins; None: no broker can be queried.
        """
        self._client, self._own = client, own
        self._quotas, self._fetch_group_clients = quotas, fetch_group_clients

    def fetch_quota_state(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        """Return the quotas of these resources and of all in the ledger. The ledger is read first."""
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading the ledger of client quotas"):
            entries = self._entries(deadline)
        wanted = {*resources, *entries}
        texts = self._quotas.fetch_texts(wanted, time_left(deadline)) if wanted else {}
        problems = {r: str(one) for found in (entries, texts) for r, one in found.items() if isinstance(one, Invalid)}
        return QuotaState(
            {r: one for r, one in texts.items() if not isinstance(one, Invalid)},
            {r: one for r, one in entries.items() if not isinstance(one, Invalid)},
            problems,
        )

    def fetch_clients(self, timeout: timedelta) -> ClientReading:
        """Return the entities with quotas, and the clients in groups if brokers can be queried."""
        deadline = time.monotonic() + timeout.total_seconds()
        quotas = self._quotas.fetch_quotas(timeout)
        groups = (
            self._fetch_group_clients(time_left(deadline))
            if self._fetch_group_clients
            else ClientReading(warnings=(_GROUPS_UNKNOWN,))
        )
        return ClientReading(
            groups.entities.union(quotas.quotas), groups.plug_ins, (*quotas.problems, *groups.warnings)
        )

    def _entries(self, deadline: float) -> Mapping[ConfigResource, LedgerEntry | Invalid]:
        parent = self._own.quota_ledger
        try:
            names = self._client.get_children_async(parent).get(timeout=seconds_left(deadline))
        except NoNodeError:
            return {}
        nodes = read_nodes(self._client, [f"{parent}/{name}" for name in names], deadline)
        found: dict[ConfigResource, LedgerEntry | Invalid] = {}
        for name, node in zip(names, nodes, strict=True):
            resource = ConfigResource(unquote(name))
            if node is None or entity_of_path(resource.path) is None:
                continue  # not a node of ours
            try:
                found[resource] = parse_ledger_entry(node[0] or b"")
            except Invalid as error:
                found[resource] = Invalid(f"{parent}/{name}: {error}")
        return found
