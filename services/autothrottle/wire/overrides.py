"""Overrides and their audit records to messages and back.

The marks of removal stay inside; operators see a version of the store as an etag.
"""

from __future__ import annotations

from collections.abc import Iterable

from autothrottle.core.audit import AuditAction, AuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.core.overrides import (
    Override,
    Overrides,
    format_etag,
    parse_etag,
    validate_broker_id,
    validate_rate,
    whose,
)
from autothrottle.v1 import admin_pb2
from autothrottle.wire.pauses import pause_to_message
from autothrottle.wire.times import time_from_message, time_to_message

_ACTIONS = {
    AuditAction.SET: admin_pb2.AuditRecord.ACTION_SET,
    AuditAction.REMOVE: admin_pb2.AuditRecord.ACTION_REMOVE,
    AuditAction.PURGE: admin_pb2.AuditRecord.ACTION_PURGE,
    AuditAction.PAUSE: admin_pb2.AuditRecord.ACTION_PAUSE,
    AuditAction.RESUME: admin_pb2.AuditRecord.ACTION_RESUME,
}


def override_to_message(broker_id: int | None, override: Override) -> admin_pb2.Override:
    """Return an override as a message; broker id None is the cluster's."""
    return admin_pb2.Override(
        broker_id=broker_id,
        rate_bytes_per_second=override.rate,
        autoremove=override.autoremove,
        expire_time=None if override.expire_time is None else time_to_message(override.expire_time),
        etag=format_etag(override.version),
    )


def override_from_message(message: admin_pb2.Override) -> tuple[int | None, Override]:
    """Return the (broker id, override) that a message holds; None is the cluster's.

    Raises:
        Invalid: when the broker id, the rate, the expire time or the etag is out of range.
    """
    broker_id = validate_broker_id(message.broker_id) if message.HasField("broker_id") else None
    try:
        expire_time = time_from_message(message.expire_time) if message.HasField("expire_time") else None
    except (ValueError, OverflowError) as error:
        raise Invalid(f"expire_time is no time: {error}; give one in UTC, before the year 10000") from error
    rate, version = validate_rate(message.rate_bytes_per_second), parse_etag(message.etag)
    return broker_id, Override(rate, message.autoremove, version, expire_time)


def overrides_to_messages(overrides: Overrides) -> list[admin_pb2.Override]:
    """Return the overrides that act as messages, the cluster's first, then the brokers' by id."""
    cluster = [] if overrides.cluster is None else [(None, overrides.cluster)]
    return [
        override_to_message(broker_id, override)
        for broker_id, override in [*cluster, *sorted(overrides.brokers.items())]
        if override.rate > 0
    ]


def overrides_to_list(overrides: Overrides) -> admin_pb2.ListOverridesResponse:
    """Return all overrides as the answer to a list request; those that cannot be read become warnings."""
    unreadable = [f"the override of {whose(b)} cannot be read: {reason}" for b, reason in overrides.unreadable.items()]
    return admin_pb2.ListOverridesResponse(
        overrides=overrides_to_messages(overrides), warnings=[*unreadable, *overrides.warnings]
    )


def overrides_from_messages(messages: list[admin_pb2.Override]) -> Overrides:
    """Return the overrides that messages hold.

    Raises:
        Invalid: when a broker id or a rate is out of range.
    """
    found = dict(map(override_from_message, messages))
    cluster = found.pop(None, None)
    return Overrides(cluster=cluster, brokers={b: o for b, o in found.items() if b is not None})


def audit_to_list(records: Iterable[AuditRecord]) -> admin_pb2.ListAuditRecordsResponse:
    """Return audit records as the answer to a list request."""
    return admin_pb2.ListAuditRecordsResponse(records=map(_record_to_message, records))


def _record_to_message(record: AuditRecord) -> admin_pb2.AuditRecord:
    broker_id, before, after = record.broker_id, record.before, record.after
    return admin_pb2.AuditRecord(
        number=record.number,
        time=time_to_message(record.time),
        who=record.who,
        action=_ACTIONS[record.action],
        broker_id=broker_id,
        before=None if before is None else override_to_message(broker_id, before),
        after=None if after is None else override_to_message(broker_id, after),
        reason=record.reason,
        pause=None if record.pause is None else pause_to_message(record.pause),
    )
