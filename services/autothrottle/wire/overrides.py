"""Overrides to messages and back.

The store's versions and the marks of removal stay inside: operators see neither.
"""

from __future__ import annotations

from autothrottle.core.overrides import Override, Overrides, validate_broker_id, validate_rate
from autothrottle.v1 import admin_pb2


def override_to_message(broker_id: int | None, override: Override) -> admin_pb2.Override:
    """Return an override as a message; broker id None is the cluster's."""
    return admin_pb2.Override(broker_id=broker_id, rate_bytes_per_second=override.rate, autoremove=override.autoremove)


def override_from_message(message: admin_pb2.Override) -> tuple[int | None, Override]:
    """Return the (broker id, override) that a message holds; None is the cluster's.

    Raises:
        Invalid: when the broker id or the rate is out of range.
    """
    broker_id = validate_broker_id(message.broker_id) if message.HasField("broker_id") else None
    return broker_id, Override(validate_rate(message.rate_bytes_per_second), message.autoremove)


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
    unreadable = [
        f"the override of {'the cluster' if b is None else f'broker {b}'} cannot be read: {reason}"
        for b, reason in overrides.unreadable.items()
    ]
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
