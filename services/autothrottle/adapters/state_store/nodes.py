"""A store of nodes, as the stores of operators' settings see it. The types to know are `Trail` and `FollowedNodes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from autothrottle.core.operators.audit import AuditReading, StoredAuditRecord
from autothrottle.ports.kafka import Watch

Node = tuple[bytes | None, int, int]
"""(data, version of the last write, the store's own number). A plain tuple, because the garbage collector stops
tracking those; 100,000 tracked objects double the time of a read."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node before a change."""

    data: bytes | None
    number: int
    """The store's own number. In ZooKeeper, the node's version, which restarts at 0 when the node is created again."""
    version: int
    """Identifies its last write; a later write of the same path has a larger one."""


@dataclass(frozen=True, slots=True)
class NodeEdit:
    """A change of one node."""

    data: bytes | None
    """The new data; None: the node is deleted."""
    record: StoredAuditRecord | None
    """The audit record; None: the change is not recorded."""


class Trail(Protocol):
    """Changes nodes together with their audit records, and reads the newest records."""

    def edit(
        self, path: str, plan: Callable[[StoredNode | None], NodeEdit | None], doing: str, fence: int | None = None
    ) -> int:
        """Change a node and write the audit record, both or neither; return the new version.

        Args:
            path: of the node.
            plan: returns the change of the current node, or None if there is nothing to change. It is called again if
                another process was faster. The argument None means that the node does not exist.
            doing: what the caller does, for error messages.
            fence: the term that must continue; None: the change belongs to no term.

        Returns:
            The version; 0: there was nothing to change.

        Raises:
            NotLeader: the term is over.
            Unavailable: the store does not answer, or other processes kept changing the node.
        """

    def append(self, record: StoredAuditRecord) -> None:
        """Write a record of an action that changes no node."""

    def newest(self, limit: int) -> AuditReading:
        """Return the newest records, newest first, and which of them cannot be read."""


class FollowedNodes(Protocol):
    """Reads a node, or a node and its children, and notifies watchers of their changes."""

    @property
    def published(self) -> Mapping[str, Node]:
        """What was read when the watchers were last notified."""

    def read(self) -> Mapping[str, Node]:
        """Return path -> node for all that exist.

        Raises:
            Unavailable: the store does not answer in time.
        """

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, on a thread of the store."""

    def close(self) -> None:
        """Stop following; no notification follows."""
