"""What somebody else did to throttles of ours, told from the ledger: an event for the next cycle to start at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autothrottle.core.configs import RATE_KEYS, REPLICAS_KEYS, ConfigResource, parse_replicas
from autothrottle.core.errors import Invalid
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.topology import Snapshot, TopicReassignment, participants

Needed = Mapping[ConfigResource, tuple[str, ...]]
"""Resource -> the throttle keys that a move needs there."""

Edits = Mapping[tuple[ConfigResource, str], str | None]
"""Resource and key -> what stands there instead of ours; None: nothing does."""


def needed_lists(moving: Iterable[TopicReassignment]) -> Needed:
    """Return the lists that keep a move throttled; those of a topic that has arrived are on their way out."""
    return {ConfigResource.topic(r.topic): REPLICAS_KEYS for r in moving if any(row[3] for row in r.rows())}


def needed_rates(moving: Iterable[TopicReassignment]) -> Needed:
    """Return the rates that keep a move throttled, of the roles that each broker holds."""
    roles = participants(Snapshot(version=1, reassignments=tuple(moving)))
    return {ConfigResource.broker(b): tuple(role.rate_key for role in held) for b, held in roles.items()}


def edits(
    needed: Needed,
    standing: Mapping[ConfigResource, Mapping[str, str]],
    ledger: Mapping[ConfigResource, LedgerEntry],
) -> Edits:
    """Return what stands otherwise than we wrote it, or were about to.

    Args:
        needed: the keys to compare; others may be on their way out by our own hand.
        standing: resource -> its throttle keys; a resource that is not here was not read.
        ledger: what we wrote, read after `standing`: every write of ours is announced there before it is made.
    """
    found = {}
    for resource, keys in needed.items():
        entry = ledger.get(resource)
        if entry is None or resource not in standing:
            continue
        for key in keys:
            value, ours = standing[resource].get(key), entry.keys.get(key)
            if ours is not None and not _is_ours(key, value, ours):
                found[resource, key] = value
    return found


def _is_ours(key: str, standing: str | None, ours: LedgerKey) -> bool:
    if ours.is_ours(standing):
        return True
    if key in RATE_KEYS or standing is None:
        return False
    try:
        present, written = parse_replicas(standing), parse_replicas(ours.written or "")
        if ours.intent is None:
            return present == written
        # A list is changed entry by entry: what is common to before and after stands all the time.
        intended = parse_replicas(ours.intent)
    except Invalid:
        return False
    return written & intended <= present <= written | intended
