"""The stored texts of the audited maps: one `MapCodec` each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autothrottle.adapters.state_store.operator_stores import MapCodec
from autothrottle.adapters.zookeeper.codec import (
    INT64,
    integer,
    number,
    optional_text,
    optional_time,
    text,
    time_of,
)
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.operators import audit
from autothrottle.core.quotas.keys import (
    ClientQuotaEntity,
    TemporaryQuota,
    TemporaryQuotas,
    entity_of_path,
    format_value,
    parse_key,
    parse_value,
    validate_entity,
)
from autothrottle.core.quotas.yielding import YieldRule, YieldRules, validate_rule
from autothrottle.core.records import CatchUp
from autothrottle.core.request_quotas import (
    RequestQuotaEntity,
    RequestRates,
    in_order,
    validate_request_quota_entity,
    validate_request_rate,
)

_RATE = re.compile(r"[0-9]{1,9}")


def _parse_catch_up(broker_id: int, value: Any) -> CatchUp:
    """Parse an entry. The broker catches up even if its author or time cannot be read."""
    try:
        return CatchUp(broker_id, text(value["author"]), optional_time(value["time"]))
    except FIELD_ERRORS:
        return CatchUp(broker_id, "unreadable")


def _format_catch_ups(catch_ups: Mapping[int, CatchUp]) -> Mapping[str, Any]:
    return {
        str(broker_id): {"author": entry.author, "time": None if entry.time is None else entry.time.isoformat()}
        for broker_id, entry in sorted(catch_ups.items())
    }


CATCH_UPS = MapCodec(
    audit.CATCH_UPS,
    "catch_ups",
    "brokers",
    lambda name, _: parse_broker_id(name),
    _parse_catch_up,
    _format_catch_ups,
)
"""The stored name of a catch-up is the broker id."""


def _parse_quota_entity(name: str, _value: Any) -> ClientQuotaEntity:
    entity = entity_of_path(text(name))
    if entity is None:
        raise Invalid(f"{name[:80]!r} is not the path of a user, a client id or an IP address")
    return validate_entity(entity)


def _parse_temporary_quota(entity: ClientQuotaEntity, value: Any) -> TemporaryQuota:
    keys = {parse_key(key): setting for key, setting in value["values"].items()}
    return TemporaryQuota(
        entity=entity,
        values={key: parse_value(key, text(setting)) for key, setting in keys.items()},
        author=text(value["author"]),
        time=time_of(value["time"]),
        expire_time=optional_time(value["expire_time"]),
        until_recovered=bool(value["until_recovered"]),
    )


def _format_temporary_quotas(quotas: TemporaryQuotas) -> Mapping[str, Any]:
    return {
        entity.path: {
            "values": {str(key): format_value(key, value) for key, value in quota.values.items()},
            "author": quota.author,
            "time": quota.time.isoformat(),
            "expire_time": None if quota.expire_time is None else quota.expire_time.isoformat(),
            "until_recovered": quota.until_recovered,
        }
        for entity, quota in sorted(quotas.items(), key=lambda item: item[0].order)
    }


TEMPORARY_QUOTAS = MapCodec(
    audit.TEMPORARY_QUOTAS,
    "temporary_quotas",
    "quotas",
    _parse_quota_entity,
    _parse_temporary_quota,
    _format_temporary_quotas,
)
"""The stored name of a temporary quota is the entity's path."""


def _parse_rule(name: str, value: Mapping[str, Any]) -> YieldRule:
    """Parse a rule. Fields of newer versions are ignored."""
    at_most, share = value["at_most"], value["at_most_share"]
    rule = YieldRule(
        name=name,
        user=optional_text(value["user"]),
        client_id=optional_text(value["client_id"]),
        at_most_bytes_per_second=None if at_most is None else integer(at_most, INT64),
        at_most_share=None if share is None else number(share),
        floor_bytes_per_second=integer(value["floor"], INT64),
        keys=frozenset(map(parse_key, value["keys"])),
        author=text(value["author"]),
        time=time_of(value["time"]),
    )
    return validate_rule(rule, force=True)


def _format_rules(rules: YieldRules) -> Mapping[str, Any]:
    return {
        name: {
            "user": rule.user,
            "client_id": rule.client_id,
            "at_most": rule.at_most_bytes_per_second,
            "at_most_share": rule.at_most_share,
            "floor": rule.floor_bytes_per_second,
            "keys": sorted(rule.keys),
            "author": rule.author,
            "time": None if rule.time is None else rule.time.isoformat(),
        }
        for name, rule in sorted(rules.items())
    }


YIELD_RULES = MapCodec(audit.YIELD_RULES, "yield_rules", "rules", lambda name, _: name, _parse_rule, _format_rules)


def _parse_request_quota_entity(_position: str, value: Any) -> RequestQuotaEntity:
    entity = RequestQuotaEntity(optional_text(value.get("user")), optional_text(value.get("client_id")))
    return validate_request_quota_entity(entity)


def _parse_request_rate(_entity: RequestQuotaEntity, value: Any) -> int:
    rate = text(value["config"]["request_rate"])
    if not _RATE.fullmatch(rate):
        raise Invalid(f"request_rate {rate[:40]!r} is not an integer of at most 9 digits")
    return validate_request_rate(int(rate))


def _format_request_quotas(rates: RequestRates) -> Mapping[str, Any]:
    return {
        str(entity): {
            **({} if entity.user is None else {"user": entity.user}),
            **({} if entity.client_id is None else {"client_id": entity.client_id}),
            "config": {"request_rate": str(rate)},
        }
        for entity, rate in in_order(rates)
    }


REQUEST_QUOTAS = MapCodec(
    audit.REQUEST_QUOTAS,
    "request_quotas",
    "quotas",
    _parse_request_quota_entity,
    _parse_request_rate,
    _format_request_quotas,
    is_list=True,
)
"""The text has Kafka's property name: `{"version":1,"quotas":[{"user":"anna","config":{"request_rate":"100"}}]}`."""
