"""Conversion of overrides, audit records, catch-ups, members, estimates and request quotas to and from messages."""

from __future__ import annotations

from autothrottle.core.cluster.configs import validate_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.forecast.eta import Goal
from autothrottle.core.operators.audit import AuditReading, StoredAuditRecord
from autothrottle.core.operators.sources import (
    Overrides,
    StoredOverride,
    format_etag,
    override_owner,
    parse_etag,
    unreadable_entries,
    validate_rate,
)
from autothrottle.core.request_quotas import RequestQuotaEntity, RequestRates, in_order, validate_request_quota_entity
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import SAME_NAMES, expire_time_from_message


def override_to_message(broker_id: int | None, override: StoredOverride) -> admin_pb2.Override:
    """Convert an override; broker id None means the cluster override."""
    return SAME_NAMES.to_message(
        admin_pb2.Override,
        override,
        broker_id=broker_id,
        rate_bytes_per_second=override.rate,
        etag=format_etag(override.version),
    )


def override_from_message(message: admin_pb2.Override) -> tuple[int | None, StoredOverride]:
    """Convert a message to (broker id, override); None means the cluster override.

    Raises:
        Invalid: the broker id, the rate, the expire time or the etag is out of range.
    """
    broker_id = validate_broker_id(message.broker_id) if message.HasField("broker_id") else None
    rate, version = validate_rate(message.rate_bytes_per_second), parse_etag(message.etag)
    return broker_id, StoredOverride(rate, message.autoremove, version, expire_time_from_message(message))


def overrides_to_messages(overrides: Overrides) -> list[admin_pb2.Override]:
    """Convert the active overrides: the cluster override first, then the broker overrides by id."""
    cluster = [] if overrides.cluster is None else [(None, overrides.cluster)]
    return [
        override_to_message(broker_id, override)
        for broker_id, override in [*cluster, *sorted(overrides.brokers.items())]
        if override.rate > 0
    ]


def overrides_to_list(overrides: Overrides) -> admin_pb2.ListOverridesResponse:
    """Return the response to a list request; unreadable overrides become warnings."""
    return admin_pb2.ListOverridesResponse(
        overrides=overrides_to_messages(overrides), warnings=override_warnings(overrides)
    )


def override_warnings(overrides: Overrides) -> list[str]:
    """Return one sentence for each override that cannot be read, and for each node that is ignored."""
    unreadable = [
        f"the override of {override_owner(b)} cannot be read: {reason}" for b, reason in overrides.unreadable.items()
    ]
    return [*unreadable, *overrides.warnings]


def audit_to_list(reading: AuditReading) -> admin_pb2.ListAuditRecordsResponse:
    """Return the response to a list request."""
    return admin_pb2.ListAuditRecordsResponse(
        records=map(_record_to_message, reading.records), warnings=reading.problems
    )


def _record_to_message(record: StoredAuditRecord) -> admin_pb2.AuditRecord:
    broker_id, old_override, new_override = record.broker_id, record.before, record.after
    return SAME_NAMES.to_message(
        admin_pb2.AuditRecord,
        record,
        before=None if old_override is None else override_to_message(broker_id, old_override),
        after=None if new_override is None else override_to_message(broker_id, new_override),
    )


def request_quotas_to_list(rates: RequestRates) -> admin_pb2.ListRequestQuotasResponse:
    """Return the response to a list request."""
    return admin_pb2.ListRequestQuotasResponse(
        quotas=[SAME_NAMES.to_message(admin_pb2.RequestQuota, who, request_rate=rate) for who, rate in in_order(rates)],
        warnings=unreadable_entries(rates).values(),
    )


def request_quota_entity_from_message(
    message: admin_pb2.RequestQuota | admin_pb2.RemoveRequestQuotaRequest,
) -> RequestQuotaEntity:
    """Convert the user and the client id of a message.

    Raises:
        Invalid: both are absent, or a name is not valid.
    """
    return validate_request_quota_entity(SAME_NAMES.from_message(RequestQuotaEntity, message))


def goal_from_message(request: admin_pb2.EstimateReassignmentRequest) -> Goal:
    """Return the operator's goal for an estimate.

    Raises:
        Invalid: `max_ratio` or `within` is out of range.
    """
    try:
        within = request.within.ToTimedelta() if request.HasField("within") else None
    except (ValueError, OverflowError) as error:
        raise Invalid(f"within is not a valid duration: {error}; give 1 s to 365 days") from error
    return Goal(max_ratio=request.max_ratio or None, within=within)
