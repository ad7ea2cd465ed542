"""Conversion of config changes, their outcomes and the ledger to and from messages of the applier."""

from __future__ import annotations

import re

from autothrottle.core.cluster.configs import THROTTLE_KEYS, ConfigResource, ResourceType
from autothrottle.core.cluster.ledger import LedgerEntry, LedgerKey
from autothrottle.core.cluster.snapshot import TOPIC_NAME
from autothrottle.core.control.changes import Change, Edit, Outcome
from autothrottle.core.control.overrides import validate_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.entities import entity_of_path, validate_entity
from autothrottle.core.quotas.keys import QuotaKey
from autothrottle.v1 import applier_pb2, types_pb2
from autothrottle.wire.common import SAME_NAMES

# Kafka's rule for topic names; `validate_broker_id` checks the range of ids.
_WRITABLE_KEYS = THROTTLE_KEYS | set(QuotaKey)
_RESOURCE = re.compile(rf"brokers/(0|[1-9][0-9]{{0,9}})|topics/{TOPIC_NAME}")


def change_to_message(change: Change) -> applier_pb2.Change:
    return applier_pb2.Change(
        resource=change.resource.path,
        edits=[SAME_NAMES.to_message(applier_pb2.Edit, edit) for edit in change.edits],
        ledger=None if change.ledger is None else ledger_to_message(change.ledger),
    )


def change_from_message(message: applier_pb2.Change) -> Change:
    """Convert a message to a change.

    Raises:
        Invalid: it changes something other than throttle keys of a broker or a topic, or quotas.
    """
    ledger = ledger_from_message(message.ledger) if message.HasField("ledger") else None
    for key in [edit.key for edit in message.edits] + list(ledger.keys if ledger else ()):
        _validate_key(key)
    return Change(
        resource=resource_from_path(message.resource),
        edits=tuple(SAME_NAMES.from_message(Edit, edit) for edit in message.edits),
        ledger=ledger,
    )


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


def _validate_key(key: str) -> None:
    if key not in _WRITABLE_KEYS:
        raise Invalid(
            f"config key {key!r} is not a throttle key and not a quota; give one of {', '.join(sorted(_WRITABLE_KEYS))}"
        )


def ledger_to_message(entry: LedgerEntry) -> types_pb2.LedgerEntry:
    keys = {
        name: SAME_NAMES.to_message(types_pb2.LedgerKey, key, owned=sorted(key.part or ()))
        for name, key in entry.keys.items()
    }
    return types_pb2.LedgerEntry(keys=keys, term=entry.term, cycle=entry.cycle)


def ledger_from_message(message: types_pb2.LedgerEntry) -> LedgerEntry:
    keys = {
        name: SAME_NAMES.from_message(LedgerKey, key, part=frozenset(key.owned) or None)
        for name, key in message.keys.items()
    }
    return LedgerEntry(keys, message.term, message.cycle)


def outcome_to_message(outcome: Outcome) -> types_pb2.Outcome:
    return SAME_NAMES.to_message(types_pb2.Outcome, outcome)


def outcome_from_message(message: types_pb2.Outcome) -> Outcome:
    """Convert a message to an outcome.

    Raises:
        Invalid: its status is unknown to this version.
    """
    try:
        return SAME_NAMES.from_message(Outcome, message)
    except KeyError:
        raise Invalid(f"status {message.status} of {message.resource} is unknown; update this program") from None
