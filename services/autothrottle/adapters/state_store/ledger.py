"""The ledger as the adapters of Kafka use it, wherever it is stored.

`Fence` admits writes to a Kafka that does not know our terms. `LedgeredQuotas` reads the client quotas that
autothrottle wrote, together with their current values from Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Protocol
from urllib.parse import unquote

from autothrottle.adapters.concurrency.subscriptions import time_left
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.quotas.keys import ClientReading, QuotaState, entity_of_path
from autothrottle.ports.kafka import QuotaReading, Term
from autothrottle.ports.state_store import Ledger, Terms

QuotaTexts = Mapping[ConfigResource, Mapping[str, str] | Invalid]
"""Resource -> key -> text of its quota, or why they cannot be read; absent: no quota is set."""

_UNKNOWN_GROUPS = ClientReading(
    warnings=("clients without quotas of their own are unknown: in ZooKeeper mode set --bootstrap-servers",)
)


def quota_resource(name: str) -> ConfigResource | None:
    """Return the resource of a node in the ledger of client quotas; None: the node is not ours."""
    resource = ConfigResource(unquote(name))
    return None if entity_of_path(resource.path) is None else resource


_SHARE_OF_SESSION = 2 / 3
"""Maximum time from the start of the term check to the end of the write, as a share of the session timeout.

A leader without contact to the state store steps down after the same time.
"""

_LEASE_ENDED = (
    "the leader's lease ended before it was written: the leader had no contact to the state store, or the cycle took "
    "longer than the lease; the next cycle retries it"
)


class Fence:
    """Admits only writes of the newest term, for a Kafka that does not know our terms, as far as that is possible.

    Right before each write, the term is checked in our state store. Each write ends before our session can expire, and
    before the leader's lease ends.
    """

    def __init__(self, terms: Terms, session_timeout: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; `session_timeout` > 0 belongs to the session that holds the term."""
        self._terms, self._clock = terms, clock
        self.longest_write = session_timeout.total_seconds() * _SHARE_OF_SESSION
        """Seconds."""

    def admit(self, term: Term, deadline: float, too_late: str) -> float:
        """Check the term; return the time by which the write must be complete. No other leader can exist before it.

        Our own check alone does not ensure that: a leader without contact to the state store may lose its session right
        after it. Only its lease counts from the leader's last contact.

        The result is a time and not a duration, because a process that is stopped before its write must not get the
        full duration again.

        Args:
            term: the term that decided the write.
            deadline: on the monotonic clock, like the result.
            too_late: error message for the case that the check takes all the time.

        Raises:
            NotLeader: the term is over.
            Unavailable: the term cannot be checked, no time is left, or the lease has ended.
        """
        now = self._clock()
        deadline = min(deadline, now + self.longest_write, term.lease_end)
        if now < deadline:
            self._terms.check_term(term.fence, deadline)
        if (now := self._clock()) >= term.lease_end:
            raise Unavailable(_LEASE_ENDED)
        if now >= deadline:
            raise Unavailable(too_late)
        return deadline


class QuotaReader(Protocol):
    """Reads client quotas where Kafka keeps them."""

    def fetch_quotas(self, timeout: timedelta) -> QuotaReading:
        """Return the quotas of all entities."""
        ...

    def fetch_texts(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaTexts:
        """Return the quotas of these resources."""
        ...


class LedgeredQuotas:
    """A `QuotaSource`: the ledger is in our state store, the values wherever Kafka keeps them. Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        quotas: QuotaReader,
        fetch_group_clients: Callable[[timedelta], ClientReading] = lambda _: _UNKNOWN_GROUPS,
    ) -> None:
        """Prepare.

        Args:
            ledger: what autothrottle wrote.
            quotas: current values from Kafka.
            fetch_group_clients: reads the members of groups and the brokers' plug-ins; by default, no broker can be
                queried.
        """
        self._ledger, self._quotas, self._fetch_group_clients = ledger, quotas, fetch_group_clients

    def fetch_quota_state(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        """Return the quotas of these resources and of all in the ledger. The ledger is read first."""
        deadline = time.monotonic() + timeout.total_seconds()
        entries = self._ledger.quota_entries(deadline)
        requested = {*resources, *entries}
        texts = self._quotas.fetch_texts(requested, time_left(deadline)) if requested else {}
        unreadable = [item for values in (entries, texts) for item in values.items() if isinstance(item[1], Invalid)]
        return QuotaState(
            {r: quotas for r, quotas in texts.items() if not isinstance(quotas, Invalid)},
            {r: entry for r, entry in entries.items() if not isinstance(entry, Invalid)},
            {resource: str(error) for resource, error in unreadable},
        )

    def fetch_clients(self, timeout: timedelta) -> ClientReading:
        """Return the entities with quotas, and the clients in groups if brokers can be queried."""
        deadline = time.monotonic() + timeout.total_seconds()
        quotas = self._quotas.fetch_quotas(timeout)
        groups = self._fetch_group_clients(time_left(deadline))
        return ClientReading(
            groups.entities.union(quotas.quotas), groups.plug_ins, (*quotas.problems, *groups.warnings)
        )
