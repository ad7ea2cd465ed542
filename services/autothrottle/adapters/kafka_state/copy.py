"""Copies the state out of the topic, and into an empty one."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.tree import AuditEntry, StoredText, Tree
from autothrottle.adapters.state_store.state_copy import AuditText, StateCopy, is_copied, refuse_filled
from autothrottle.adapters.zookeeper.paths import OwnPaths

_TIMEOUT = timedelta(seconds=30)


def export_state(log: StateLog, own: OwnPaths) -> StateCopy:
    """Return the state at one position of the log."""
    with log.synced(time.monotonic() + _TIMEOUT.total_seconds()) as tree:
        nodes = {path.removeprefix(f"{own.root}/"): n.text for path, n in tree.nodes() if is_copied(own, path)}
        audit, fence = list(tree.audit), tree.fence
    records = [AuditText(datetime.fromtimestamp(e.time / 1000, UTC), e.version, e.text) for e in audit]
    return StateCopy(fence, nodes, records)


def import_state(log: StateLog, own: OwnPaths, copy: StateCopy) -> None:
    """Load a copy into an empty topic: all of it, or nothing.

    Raises:
        Conflict: the topic has state, or a planner runs.
        Unavailable: Kafka does not answer; it is unknown whether the copy was loaded.
    """
    with log.synced(time.monotonic() + _TIMEOUT.total_seconds()) as tree:
        entries = sum(is_copied(own, path) for path, _ in tree.nodes()) + len(tree.audit) + bool(tree.fence)
        candidates = len(tree.children(own.election))
    fix = "delete it, or give another state-topic"
    refuse_filled(f"topic {log.name}", entries, candidates, fix)
    milliseconds = time.time_ns() // 1_000_000
    tree = Tree(own.term)
    tree.last_version = max(milliseconds * 1000, copy.fence)
    for path, text in copy.nodes.items():
        tree.last_version += 1
        tree.put(f"{own.root}/{path}", StoredText(text, tree.last_version, milliseconds))
    for number, record in enumerate(copy.audit, start=1):
        written = int(record.time.timestamp() * 1000)
        tree.add_audit(AuditEntry(number, written, record.version, f"import-{number}", record.text))
    log.restore(tree, time.monotonic() + _TIMEOUT.total_seconds())
