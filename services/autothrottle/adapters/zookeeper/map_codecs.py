"""The stored texts of the audited maps: one `MapCodec` each."""

from __future__ import annotations

import re
from typing import Any

from autothrottle.adapters.state_store.operator_stores import MapCodec
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.codec import decode, encode, text
from autothrottle.core.errors import Invalid
from autothrottle.core.operators import audit
from autothrottle.core.quotas.keys import ClientQuotaEntity, TemporaryQuota, entity_of_path, validate_entity
from autothrottle.core.quotas.yielding import YieldRule, validate_rule
from autothrottle.core.records import CatchUp
from autothrottle.core.request_quotas import (
    RequestQuotaEntity,
    in_order,
    validate_request_quota_entity,
    validate_request_rate,
)

_RATE = re.compile(r"[0-9]{1,9}")


def _parse_catch_up(broker_id: int, value: Any) -> CatchUp:
    """Parse an entry. The broker catches up even if its author or time cannot be read."""
    try:
        return decode(CatchUp, value, broker_id=broker_id)
    except Invalid:
        return CatchUp(broker_id, "unreadable")


CATCH_UPS = MapCodec(audit.CATCH_UPS, "catch_ups", "brokers", lambda name, _: parse_broker_id(name), _parse_catch_up)
"""The stored name of a catch-up is the broker id."""


def _parse_quota_entity(name: str, _value: Any) -> ClientQuotaEntity:
    entity = entity_of_path(text(name))
    if entity is None:
        raise Invalid(f"{name[:80]!r} is not the path of a user, a client id or an IP address")
    return validate_entity(entity)


TEMPORARY_QUOTAS = MapCodec(
    audit.TEMPORARY_QUOTAS,
    "temporary_quotas",
    "quotas",
    _parse_quota_entity,
    lambda entity, value: decode(TemporaryQuota, value, entity=entity),
    name=lambda entity: entity.path,
    ordered=lambda quotas: sorted(quotas.items(), key=lambda item: item[0].order),
)
"""The stored name of a temporary quota is the entity's path."""

YIELD_RULES = MapCodec(
    audit.YIELD_RULES,
    "yield_rules",
    "rules",
    lambda name, _: name,
    lambda name, value: validate_rule(decode(YieldRule, value, name=name), force=True),
)


def _parse_request_quota_entity(_position: str, value: Any) -> RequestQuotaEntity:
    return validate_request_quota_entity(decode(RequestQuotaEntity, value))


def _parse_request_rate(_entity: RequestQuotaEntity, value: Any) -> int:
    rate = text(value["config"]["request_rate"])
    if not _RATE.fullmatch(rate):
        raise Invalid(f"request_rate {rate[:40]!r} is not an integer of at most 9 digits")
    return validate_request_rate(int(rate))


REQUEST_QUOTAS = MapCodec(
    audit.REQUEST_QUOTAS,
    "request_quotas",
    "quotas",
    _parse_request_quota_entity,
    _parse_request_rate,
    lambda entity, rate: {**encode(entity), "config": {"request_rate": str(rate)}},
    ordered=in_order,
    is_list=True,
)
"""The text has Kafka's property name: `{"version":1,"quotas":[{"user":"anna","config":{"request_rate":"100"}}]}`."""
