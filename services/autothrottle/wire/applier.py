"""Conversion of config changes, their outcomes and the ledger to and from messages of the applier."""

from __future__ import annotations

import re

from autothrottle.core.cluster.configs import THROTTLE_KEYS, ConfigResource
from autothrottle.core.cluster.ledger import LedgerEntry, LedgerKey
from autothrottle.core.cluster.snapshot import TOPIC_NAME
from autothrottle.core.control.changes import Change, Edit, Outcome, OutcomeStatus
from autothrottle.core.control.ownership import ForeignThrottle
from autothrottle.core.errors import Invalid
from autothrottle.v1 import applier_pb2, types_pb2
from autothrottle.wire.common import enum_numbers

# Kafka's rule for topic names; broker ids are int32.
_RESOURCE = re.compile(rf"brokers/(0|[1-9][0-9]{{0,9}})|topics/{TOPIC_NAME}")

_STATUS = enum_numbers(OutcomeStatus, types_pb2.Outcome.Status.Value, "STATUS")
_STATUS_FROM_NUMBER = {number: status for status, number in _STATUS.items()}


def change_to_message(change: Change) -> applier_pb2.Change:
    return applier_pb2.Change(
        resource=change.resource.path,
        edits=[applier_pb2.Edit(key=e.key, expected=e.expected, value=e.value) for e in change.edits],
        ledger=None if change.ledger is None else ledger_to_message(change.ledger),
    )


def change_from_message(message: applier_pb2.Change) -> Change:
    """Convert a message to a change.

    Raises:
        Invalid: it changes something other than throttle keys of a broker or a topic.
    """
    ledger = ledger_from_message(message.ledger) if message.HasField("ledger") else None
    for key in [edit.key for edit in message.edits] + list(ledger.keys if ledger else ()):
        _validate_key(key)
    return Change(
        resource=resource_from_path(message.resource),
        edits=tuple(_edit(edit) for edit in message.edits),
        ledger=ledger,
    )


def _edit(message: applier_pb2.Edit) -> Edit:
    return Edit(
        key=message.key,
        expected=message.expected if message.HasField("expected") else None,
        value=message.value if message.HasField("value") else None,
    )


def resource_from_path(path: str) -> ConfigResource:
    """Convert the path of a config resource.

    Raises:
        Invalid: it is not the path of a broker or a topic.
    """
    if not _RESOURCE.fullmatch(path):
        raise Invalid(f"resource {path!r} is neither `brokers/<id>` nor `topics/<name>`; give one of these")
    return ConfigResource(path)


def _validate_key(key: str) -> None:
    if key not in THROTTLE_KEYS:
        raise Invalid(f"config key {key!r} is not a throttle key; give one of {', '.join(sorted(THROTTLE_KEYS))}")


def ledger_to_message(entry: LedgerEntry) -> types_pb2.LedgerEntry:
    keys = {
        name: types_pb2.LedgerKey(
            before=key.before, written=key.written, owned=sorted(key.part or ()), intent=key.intent, target=key.target
        )
        for name, key in entry.keys.items()
    }
    return types_pb2.LedgerEntry(keys=keys, term=entry.term, cycle=entry.cycle)


def ledger_from_message(message: types_pb2.LedgerEntry) -> LedgerEntry:
    keys = {
        name: LedgerKey(
            before=key.before if key.HasField("before") else None,
            written=key.written if key.HasField("written") else None,
            part=frozenset(key.owned) or None,
            intent=key.intent if key.HasField("intent") else None,
            target=key.target if key.HasField("target") else None,
        )
        for name, key in message.keys.items()
    }
    return LedgerEntry(keys, message.term, message.cycle)


def outcome_to_message(outcome: Outcome) -> types_pb2.Outcome:
    return types_pb2.Outcome(resource=outcome.resource.path, status=_STATUS[outcome.status], reason=outcome.reason)


def outcome_from_message(message: types_pb2.Outcome) -> Outcome:
    """Convert a message to an outcome.

    Raises:
        Invalid: its status is unknown to this version.
    """
    status = _STATUS_FROM_NUMBER.get(message.status)
    if status is None:
        raise Invalid(f"status {message.status} of {message.resource} is unknown; update this program")
    return Outcome(ConfigResource(message.resource), status, message.reason)


def foreign_to_message(foreign: ForeignThrottle) -> types_pb2.ForeignThrottle:
    return types_pb2.ForeignThrottle(resource=foreign.resource.path, key=foreign.key, value=foreign.value)


def foreign_from_message(message: types_pb2.ForeignThrottle) -> ForeignThrottle:
    return ForeignThrottle(ConfigResource(message.resource), message.key, message.value)
