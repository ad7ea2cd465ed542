"""Detects edits of our throttles by other parties, by comparison with the ledger, so that a cycle starts at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    REPLICAS_KEYS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import Snapshot, TopicReassignment
from autothrottle.core.errors import Invalid

Needed = Mapping[ConfigResource, tuple[str, ...]]
"""Resource -> the throttle keys that reassignments need there."""

Edits = Mapping[tuple[ConfigResource, str], str | None]
"""(resource, key) -> the current value, which is not ours; None: the key is not set."""


def needed_lists(reassignments: Iterable[TopicReassignment]) -> Needed:
    """Return the lists that throttle reassignments. A fully replicated topic needs none: its lists get removed."""
    return {ConfigResource.topic(r.topic): REPLICAS_KEYS for r in reassignments if any(row[3] for row in r.rows())}


def needed_rates(reassignments: Iterable[TopicReassignment]) -> Needed:
    """Return the rates that throttle reassignments, for the roles of each broker."""
    roles = Snapshot(version=1, reassignments=tuple(reassignments)).participants
    return {
        ConfigResource.broker(b): tuple(role.rate_key for role in roles_of_broker)
        for b, roles_of_broker in roles.items()
    }


def edits(
    needed: Needed,
    current: Mapping[ConfigResource, Mapping[str, str]],
    ledger: Mapping[ConfigResource, LedgerEntry],
) -> Edits:
    """Return the current values that differ from our written or intended ones.

    Args:
        needed: the keys to compare; we may be removing others ourselves.
        current: resource -> its throttle configs; a resource that is absent was not read.
        ledger: our entries, read after `current`, because each of our writes is recorded there first.
    """
    foreign = {}
    for resource, keys in needed.items():
        entry = ledger.get(resource)
        if entry is None or resource not in current:
            continue
        for key in keys:
            value, ledger_key = current[resource].get(key), entry.keys.get(key)
            if ledger_key is not None and not _is_ours(key, value, ledger_key):
                foreign[resource, key] = value
    return foreign


def _is_ours(key: str, current: str | None, ledger_key: LedgerKey) -> bool:
    if ledger_key.is_ours(current):
        return True
    if key in RATE_KEYS or current is None:
        return False
    try:
        present, written = parse_replicas(current), parse_replicas(ledger_key.written or "")
        if ledger_key.intent is None:
            return present == written
        # A list is edited entry by entry, so the entries common to both versions never disappear.
        intended = parse_replicas(ledger_key.intent)
    except Invalid:
        return False
    return written & intended <= present <= written | intended
