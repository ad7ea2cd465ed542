"""The ledger: what autothrottle wrote, for Kafka backends whose configs are not in ZooKeeper and for client quotas.

`Ledger` writes fenced batches and checks the term; `LedgerReader` keeps a cached copy. `Fence` admits writes to Kafka.
`LedgeredQuotas` reads the client quotas that autothrottle wrote, together with their current values from Kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from urllib.parse import unquote

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.concurrency.subscriptions import seconds_left, time_left
from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.kafka_zookeeper.snapshots import ThrottleConfigs
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import FenceCheck, term_check, translated_errors
from autothrottle.core.cluster.configs import THROTTLED_TYPES, ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.quotas.keys import ClientReading, QuotaState, entity_of_path
from autothrottle.core.records import Outcome
from autothrottle.core.throttles.changes import Change
from autothrottle.ports.kafka import QuotaReading, Term

QuotaTexts = Mapping[ConfigResource, Mapping[str, str] | Invalid]
"""Resource -> key -> text of its quota, or why they cannot be read; absent: no quota is set."""

_UNKNOWN_GROUPS = ClientReading(
    warnings=("clients without quotas of their own are unknown: in ZooKeeper mode set --bootstrap-servers",)
)


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


_SHARE_OF_SESSION = 2 / 3
"""Maximum time from the start of the term check to the end of the write, as a share of the session timeout.

A leader without contact to ZooKeeper steps down after the same time.
"""

_LEASE_ENDED = (
    "the leader's lease ended before it was written: the leader had no contact to ZooKeeper, or the cycle took longer "
    "than the lease; the next cycle retries it"
)


class Fence:
    """Admits only writes of the newest term, for a Kafka that does not know our terms, as far as that is possible.

    Right before each write, the term is checked in our ZooKeeper. Each write ends before our session can expire, and
    before the leader's lease ends.
    """

    def __init__(self, terms: Ledger, session_timeout: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; `session_timeout` > 0 belongs to the session that holds the term."""
        self._terms, self._clock = terms, clock
        self.longest_write = session_timeout.total_seconds() * _SHARE_OF_SESSION
        """Seconds."""

    def admit(self, term: Term, deadline: float, too_late: str) -> float:
        """Check the term; return the time by which the write must be complete. No other leader can exist before it.

        Our own check alone does not ensure that: a leader without contact to ZooKeeper may lose its session right
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
        fetch_group_clients: Callable[[timedelta], ClientReading] = lambda _: _UNKNOWN_GROUPS,
    ) -> None:
        """Prepare.

        Args:
            client: session with the ledger.
            own: where the ledger is.
            quotas: current values from Kafka.
            fetch_group_clients: reads the members of groups and the brokers' plug-ins; by default, no broker can be
                queried.
        """
        self._client, self._own = client, own
        self._quotas, self._fetch_group_clients = quotas, fetch_group_clients

    def fetch_quota_state(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        """Return the quotas of these resources and of all in the ledger. The ledger is read first."""
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading the ledger of client quotas"):
            entries = self._entries(deadline)
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

    def _entries(self, deadline: float) -> Mapping[ConfigResource, LedgerEntry | Invalid]:
        parent = self._own.quota_ledger
        try:
            names = self._client.get_children_async(parent).get(timeout=seconds_left(deadline))
        except NoNodeError:
            return {}
        resources = [ConfigResource(unquote(name)) for name in names]
        entries = read_entries(self._client, [f"{parent}/{name}" for name in names], deadline)
        return {
            resource: entry
            for resource, entry in zip(resources, entries, strict=True)
            if entry is not None and entity_of_path(resource.path) is not None  # otherwise it is not a node of ours
        }
