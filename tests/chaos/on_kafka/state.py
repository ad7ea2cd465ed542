"""What the state store says about leadership and the ledger, and when it was written.

The type to know is `StateLog`. The checker compares its history with the requests that the proxies saw.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.cluster.configs import LedgerEntry
from autothrottle_lab.servers.kafka import Partition
from autothrottle_lab.servers.processes import Startable
from autothrottle_lab.servers.zookeeper import ZooKeeperServer


@dataclass(frozen=True, slots=True)
class Claim:
    """The begin of a term."""

    at: float
    """Seconds since the epoch, by the store's clock."""
    term: int
    process: str
    """Name of the leading process."""


@dataclass(frozen=True, slots=True)
class LedgerWrite:
    """A ledger entry written or removed."""

    at: float
    """Seconds since the epoch, by the store's clock."""
    entity: str
    """`brokers/1001` or `topics/t`."""
    entry: LedgerEntry | None
    """None: removed."""
    fence: int
    """The term that wrote it."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat in the log that its process has read back."""

    sent_at: float
    """Seconds since the epoch at which a proxy saw it for the first time."""
    read_at: float
    """Seconds since the epoch at which the proxy forwarded it back to the process."""


@dataclass(frozen=True, slots=True)
class FencedRecord:
    """A record that only the leader may write."""

    fence: int
    process: str
    """The process whose connection carried it; "": unknown."""


@dataclass(slots=True)
class StateHistory:
    """The history of the state store, in commit order."""

    claims: list[Claim] = field(default_factory=list)
    ledger: list[LedgerWrite] = field(default_factory=list)
    heartbeats: dict[str, list[Heartbeat]] = field(default_factory=dict)
    """Process -> its heartbeats in the log; empty: the store has no such records."""
    fenced: list[FencedRecord] = field(default_factory=list)
    """Records with a fence that took effect; empty: the store has no such records."""
    void: int = 0
    """Records of ended terms, or with a check that failed."""

    def current_ledger(self) -> dict[str, LedgerEntry]:
        """Return entity -> its newest ledger entry."""
        newest = {write.entity: write.entry for write in self.ledger}
        return {entity: entry for entity, entry in newest.items() if entry is not None}


class StateLog(Startable):
    """The state store of one run."""

    partition: Partition = ("bulk", 2)
    """The partition whose leader some faults hit; with Kafka, the one that holds the state."""
    missed: Sequence[str] = ()
    """A sentence for each gap in the history."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """The services' options that name the store."""

    @abstractmethod
    def history(self) -> StateHistory:
        """Return the history up to now."""


class ZooKeeperState(StateLog):
    """State in ZooKeeper, which no fault hits."""

    def __init__(self, server: ZooKeeperServer, prefix: str, session_seconds: float) -> None:
        self._server, self._own, self._session_seconds = server, OwnPaths(prefix), session_seconds
        self._client = KazooClient(server.connect)
        self._since = server.last_zxid()

    def start(self) -> None:
        self._client.start(timeout=60)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    @property
    def options(self) -> Mapping[str, str]:
        return {
            "zk-addr": self._server.connect,
            "zk-config-prefix": self._own.prefix,
            "session-timeout": str(self._session_seconds),
        }

    def history(self) -> StateHistory:
        history = StateHistory()
        for transaction in self._server.transactions(self._since):
            at = transaction.time.timestamp()
            versions = {o.path: o.version or 0 for o in transaction.operations if o.kind == "check"}
            fence = versions.get(self._own.term, 0)
            for operation in transaction.operations:
                path, data = operation.path, operation.data
                if operation.kind == "set" and path == self._own.term and data:
                    history.claims.append(Claim(at, operation.version or 0, holder(data.decode())))
                elif operation.kind != "check" and (entity := path.removeprefix(f"{self._own.ledger}/")) != path:
                    if "/" in entity and operation.kind == "delete":
                        history.ledger.append(LedgerWrite(at, entity, None, fence))
                    elif "/" in entity and data:
                        history.ledger.append(LedgerWrite(at, entity, parse_ledger_entry(data), fence))
        return history


def holder(term: str) -> str:
    """Return the name of the process that a term's text names by the address of its socket."""
    address: str = json.loads(term)["address"]
    return address.rpartition("/")[2]
