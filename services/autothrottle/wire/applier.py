"""Conversion of config changes, their outcomes and the ledger to and from messages of the applier."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autothrottle.core.cluster.configs import (
    THROTTLE_KEYS,
    TOPIC_NAME,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ResourceType,
    is_released_intent,
    validate_broker_id,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.keys import QuotaKey, entity_of_path, validate_entity
from autothrottle.core.throttles.changes import Change
from autothrottle.v1 import applier_pb2, types_pb2
from autothrottle.wire.common import SAME_NAMES

_WRITABLE_KEYS = THROTTLE_KEYS | set(QuotaKey)
MAX_REQUEST_BYTES = 64 * 1024 * 1024
"""Largest request that the applier accepts."""

PART_BYTES = 4_000_000
"""Size of one of the requests into which the changes of a large cluster are divided: below gRPC's own limit of 4 MiB.

Parsing it takes the applier some milliseconds; a request of 64 MB would delay its heartbeats."""

_CHANGE_OVERHEAD = 6
"""Most bytes that precede a change in a request: its tag and its length."""

_REQUEST_OVERHEAD = 100
"""Most bytes of the other fields of a request."""

_TOO_LARGE = (
    f"the change has {{}} bytes, more than the applier's limit of {MAX_REQUEST_BYTES}, and is not written. "
    "Fix: reassign fewer partitions of the topic at once"
)

# `validate_broker_id` checks the range of ids.
_RESOURCE = re.compile(rf"brokers/(0|[1-9][0-9]{{0,9}})|topics/{TOPIC_NAME}")


def change_to_message(change: Change) -> applier_pb2.Change:
    ledger = None if change.ledger is None else ledger_to_message(change.ledger)
    return SAME_NAMES.to_message(applier_pb2.Change, change, ledger=ledger)


@dataclass(frozen=True, slots=True)
class ChangePart:
    """Changes that are sent in one request, or one change that cannot be sent."""

    positions: tuple[int, ...]
    """Index of each change in the whole sequence."""
    messages: tuple[applier_pb2.Change, ...] = ()
    refusal: str = ""
    """Why the only change of the part cannot be sent; "": it can."""


def change_parts(changes: Sequence[Change], part_bytes: int = PART_BYTES) -> Iterator[ChangePart]:
    """Divide changes into parts, so that every request stays below the applier's limit.

    All rates come first, because a list has no effect before the rates of its brokers. The first part is filled up with
    lists, those of the largest reassignments first.
    """
    positions: list[int] = []
    messages: list[applier_pb2.Change] = []
    part_size = 0
    for position in sorted(range(len(changes)), key=lambda index: _urgency(changes[index])):
        try:
            message = change_to_message(changes[position])
        except ValueError as error:  # for example a text that is not valid Unicode
            yield ChangePart((position,), refusal=f"the change cannot be sent, and nothing is written: {error}")
            continue
        if (size := message.ByteSize() + _CHANGE_OVERHEAD) > MAX_REQUEST_BYTES - _REQUEST_OVERHEAD:
            yield ChangePart((position,), refusal=_TOO_LARGE.format(size))
            continue
        if messages and part_size + size > part_bytes:
            yield ChangePart(tuple(positions), tuple(messages))
            positions, messages, part_size = [], [], 0
        positions.append(position)
        messages.append(message)
        part_size += size
    if messages:
        yield ChangePart(tuple(positions), tuple(messages))


def _urgency(change: Change) -> int:
    """Sort key: rates first, then lists, the longest first, then quotas; equal ones keep their order."""
    if change.resource.type is not ResourceType.TOPIC:
        return -sys.maxsize if change.resource.type is ResourceType.BROKER else sys.maxsize
    return -sum(max(len(edit.value or ""), len(edit.expected or "")) for edit in change.edits)


def change_from_message(message: applier_pb2.Change) -> Change:
    """Convert a message to a change.

    Raises:
        Invalid: it changes something other than throttle keys of a broker or a topic, or quotas.
    """
    ledger = ledger_from_message(message.ledger) if message.HasField("ledger") else None
    for key in [edit.key for edit in message.edits] + list(ledger.keys if ledger else ()):
        if key not in _WRITABLE_KEYS:
            keys = ", ".join(sorted(_WRITABLE_KEYS))
            raise Invalid(f"config key {key!r} is not a throttle key and not a quota; give one of {keys}")
    return SAME_NAMES.from_message(Change, message, resource=resource_from_path(message.resource), ledger=ledger)


def resource_from_path(path: str) -> ConfigResource:
    """Convert the path of a config resource.

    Raises:
        Invalid: it is not the path of a broker, a topic or a quota entity.
    """
    if not _RESOURCE.fullmatch(path):
        entity = entity_of_path(path)
        if entity is None:
            raise Invalid(
                f"resource {path!r} is neither `brokers/<id>` nor `topics/<name>` nor a quota entity; give one of these"
            )
        return validate_entity(entity).resource
    resource = ConfigResource(path)
    if resource.type is ResourceType.BROKER:
        validate_broker_id(resource.broker_id)
    return resource


def ledger_to_message(entry: LedgerEntry) -> types_pb2.LedgerEntry:
    keys = {
        name: SAME_NAMES.to_message(types_pb2.LedgerKey, key, intent=intent, owned=sorted(part or ()))
        for name, key in entry.keys.items()
        for intent, part in (key.stored(name),)
    }
    return types_pb2.LedgerEntry(keys=keys, term=entry.term, cycle=entry.cycle)


def ledger_from_message(message: types_pb2.LedgerEntry, current: Mapping[str, str] | None = None) -> LedgerEntry:
    """Convert a message to a ledger entry.

    Args:
        message: the entry.
        current: key -> its current value. A written value that is equal is the same object, to save memory.
    """
    keys = {}
    for name, key in message.keys.items():
        given = {"part": frozenset(key.owned) or None}
        if is_released_intent(key.intent, key.late):
            given = {"part": None, "intent": None}
        record = SAME_NAMES.from_message(LedgerKey, key, **given)
        value = (current or {}).get(name)
        keys[name] = replace(record, written=value) if value is not None and record.written == value else record
    return LedgerEntry(keys, message.term, message.cycle)
