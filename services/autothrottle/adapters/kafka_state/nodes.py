"""Nodes of the state in Kafka, as the stores of operators' settings use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.tree import Effect, Tree
from autothrottle.adapters.state_store.nodes import FollowedNodes, Node, NodeEdit, NodeFollower, StoredNode, Trail
from autothrottle.adapters.zookeeper.codec import format_audit_record, parse_audit_record
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import Invalid, NotLeader, Unavailable
from autothrottle.core.operators.audit import AuditReading, StoredAuditRecord


class KafkaTrail:
    """A `Trail`. Thread-safe."""

    def __init__(self, state: StateLog, own: OwnPaths, timeout: timedelta) -> None:
        self._state, self._own, self._timeout = state, own, timeout.total_seconds()

    def edit(
        self, path: str, plan: Callable[[StoredNode | None], NodeEdit | None], doing: str, fence: int | None = None
    ) -> int:
        """Change a node and write the audit record in one record; return the new version."""
        deadline = time.monotonic() + self._timeout
        with self._state.synced(deadline) as tree:
            node = _node(tree, path)
            self._check(fence, tree.fence)
        while (change := plan(node)) is not None:
            text = None if change.data is None else change.data.decode()
            audit = "" if change.record is None else format_audit_record(change.record).decode()
            versions = {path: node.version if node else 0}
            edit = StateEdit(fence=fence or 0, versions=versions, texts={path: text}, audit=audit)
            result = self._state.append(edit, deadline)
            if result.effect is Effect.APPLIED:
                return result.version
            self._check(fence, result.fence)
            with self._state.current() as tree:
                node = _node(tree, path)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{path} kept changing for {self._timeout:g} s while {doing}; nothing was written, try again"
                )
        return 0

    def append(self, record: StoredAuditRecord) -> None:
        """Write a record of an action that changes no node."""
        edit = StateEdit(audit=format_audit_record(record).decode())
        self._state.append(edit, time.monotonic() + self._timeout)

    def newest(self, limit: int) -> AuditReading:
        """Return the newest records, newest first, and which of them cannot be read."""
        with self._state.synced(time.monotonic() + self._timeout) as tree:
            entries = list(tree.audit)[-limit:]
        records: list[StoredAuditRecord] = []
        problems: list[str] = []
        for entry in reversed(entries):
            written = datetime.fromtimestamp(entry.time / 1000, UTC)
            try:
                records.append(parse_audit_record(entry.text.encode(), entry.number, written, entry.version))
            except Invalid as error:
                problems.append(f"{self._own.audit_record}{entry.number}: {error}")
        return AuditReading(tuple(records), tuple(problems))

    @staticmethod
    def _check(fence: int | None, newest: int) -> None:
        if fence is not None and fence != newest:
            raise NotLeader(f"term {fence} is over; nothing was written")


def _node(tree: Tree, path: str) -> StoredNode | None:
    node = tree.node(path)
    return None if node is None else StoredNode(node.text.encode(), 0, node.version)


class KafkaNodes(NodeFollower):
    """Follows a node, or a node and its children (`FollowedNodes`). Thread-safe."""

    def __init__(self, state: StateLog, path: str, name: str, timeout: timedelta, with_children: bool = False) -> None:
        """Start to follow; `name` describes the content in messages."""
        super().__init__(name, f"state-{name}")
        self._state, self._path, self._with_children = state, path, with_children
        self._timeout = timeout.total_seconds()
        self._subscription = state.watch(self._is_followed, self._dirty.set)

    def close(self) -> None:
        """Stop following; no notification follows."""
        self._subscription.close()
        super().close()

    def read(self) -> Mapping[str, Node]:
        """Return path -> node for all that exist."""
        with self._state.synced(time.monotonic() + self._timeout) as tree:
            return self._nodes(tree)

    def _is_followed(self, path: str) -> bool:
        return path == self._path or (self._with_children and path.rpartition("/")[0] == self._path)

    def _current(self) -> Mapping[str, Node]:
        with self._state.current() as tree:
            return self._nodes(tree)

    def _nodes(self, tree: Tree) -> Mapping[str, Node]:
        paths = [self._path]
        if self._with_children:
            paths += [f"{self._path}/{name}" for name in tree.children(self._path)]
        nodes = ((path, tree.node(path)) for path in paths)
        return {path: (node.text.encode(), node.version, 0) for path, node in nodes if node is not None}


@dataclass(frozen=True, slots=True)
class KafkaNodeStore:
    """The nodes in the log of the state (a `NodeStore`)."""

    state: StateLog
    own: OwnPaths
    timeout: timedelta = timedelta(seconds=5)
    """For each operation."""

    def trail(self) -> Trail:
        return KafkaTrail(self.state, self.own, self.timeout)

    def followed(self, path: str, name: str, with_children: bool = False) -> FollowedNodes:
        return KafkaNodes(self.state, path, name, self.timeout, with_children)
