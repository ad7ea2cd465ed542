"""Client quotas as messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from autothrottle.core.cluster.configs import ConfigResource, ResourceType
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import validate_expire_time
from autothrottle.core.quotas.keys import (
    ClientQuotaEntity,
    ClientQuotas,
    ClientReading,
    DecidingQuota,
    QuotaEdits,
    QuotaKey,
    QuotaState,
    QuotaValues,
    TemporaryQuota,
    TemporaryQuotas,
    entity_of_path,
    name_or_default,
    parse_key,
    quota_etag,
    validate_entity,
)
from autothrottle.core.quotas.yielding import BYTE_RATES, YieldRule, rule_sentence
from autothrottle.messages import Conversion, Converter
from autothrottle.v1 import discovery_pb2, quotas_pb2
from autothrottle.wire.applier import ledger_from_message, ledger_to_message, resource_from_path
from autothrottle.wire.common import SAME_NAMES, expire_time_from_message


def entity_from_message(message: quotas_pb2.QuotaEntity) -> ClientQuotaEntity:
    """Convert and validate an entity.

    Raises:
        Invalid: a part is given as a name and as the default, or the entity is not valid.
    """
    parts = []
    for part in ("user", "client_id", "ip"):
        name = getattr(message, part) if message.HasField(part) else None
        parts.append(name_or_default(part.replace("_", "-"), name, getattr(message, f"default_{part}")))
    return validate_entity(ClientQuotaEntity(*parts))


def entity_to_message(entity: ClientQuotaEntity) -> quotas_pb2.QuotaEntity:
    message = quotas_pb2.QuotaEntity()
    for kind, name in entity.parts.items():
        part = kind.replace("-", "_")
        setattr(message, *((part, name) if isinstance(name, str) else (f"default_{part}", True)))
    return message


def values_from_message(message: quotas_pb2.QuotaValues) -> QuotaEdits:
    """Return the quotas that are given; the fields of the message have the names of Kafka's keys."""
    given = {field.name: value for field, value in message.ListFields()}
    return {key: given[key] for key in QuotaKey if key in given}


def values_to_message(values: QuotaValues) -> quotas_pb2.QuotaValues:
    message = quotas_pb2.QuotaValues()
    for key, value in values.items():
        setattr(message, key, int(value) if key.is_integer else value)
    return message


def keys_from_names(names: Iterable[str]) -> tuple[QuotaKey, ...]:
    """Return the keys of a request.

    Raises:
        Invalid: a name is not a key.
    """
    return tuple(parse_key(name) for name in names)


def quota_to_message(
    entity: ClientQuotaEntity, values: QuotaValues, temporary: TemporaryQuota | None = None
) -> quotas_pb2.Quota:
    return SAME_NAMES.to_message(
        quotas_pb2.Quota,
        temporary,
        entity=entity_to_message(entity),
        values=values_to_message(values),
        etag=quota_etag(values),
    )


def quotas_to_messages(quotas: ClientQuotas, temporary: TemporaryQuotas) -> list[quotas_pb2.Quota]:
    """Return one message for each entity with quotas, or with temporary ones that the planner has not set yet."""
    ordered = sorted({*quotas, *temporary}, key=lambda entity: entity.order)
    return [quota_to_message(entity, quotas.get(entity, {}), temporary.get(entity)) for entity in ordered]


def temporary_from_message(
    message: quotas_pb2.Quota, entity: ClientQuotaEntity, values: QuotaValues, author: str, now: datetime
) -> TemporaryQuota | None:
    """Return the temporary quota of a request; None: the quota is permanent.

    Raises:
        Invalid: the expire time is not a time after `now`.
    """
    expire_time = expire_time_from_message(message)
    if expire_time is None and not message.until_recovered:
        return None
    if expire_time is not None:
        validate_expire_time(expire_time, now)
    return TemporaryQuota(entity, values, author, now, expire_time, message.until_recovered)


def effective_to_message(quota: DecidingQuota) -> quotas_pb2.EffectiveQuota:
    return _EFFECTIVE.to_message(quotas_pb2.EffectiveQuota, quota, unit=quota.key.unit)


def rule_from_message(message: quotas_pb2.YieldRule, author: str, now: datetime) -> YieldRule:
    """Convert a rule that `author` sets now; `validate_rule` checks it.

    Raises:
        Invalid: a key does not exist.
    """
    keys = frozenset(keys_from_names(message.keys)) or BYTE_RATES
    return SAME_NAMES.from_message(YieldRule, message, keys=keys, author=author, time=now)


def rule_to_message(rule: YieldRule) -> quotas_pb2.YieldRule:
    return SAME_NAMES.to_message(quotas_pb2.YieldRule, rule, sentence=rule_sentence(rule))


MAX_RESOURCES = 10_000
"""Largest number of entities in a request for their state."""


def resources_from_paths(paths: Collection[str]) -> frozenset[ConfigResource]:
    """Convert the paths of quota entities.

    Raises:
        Invalid: there are too many, or a path is not that of a quota entity.
    """
    if len(paths) > MAX_RESOURCES:
        raise Invalid(f"{len(paths)} quota entities are named; name at most {MAX_RESOURCES} at a time")
    resources = frozenset(map(resource_from_path, paths))
    for resource in resources:
        if resource.type is not ResourceType.QUOTA:
            raise Invalid(f"{resource} has no client quotas; give a user, a client id, both, or an IP address")
    return resources


def quota_state_to_message(state: QuotaState) -> discovery_pb2.GetQuotaStateResponse:
    resources = state.configs.keys() | state.ledger.keys() | state.unreadable.keys()
    return discovery_pb2.GetQuotaStateResponse(
        configs=[
            discovery_pb2.QuotaConfig(
                resource=resource.path,
                values=state.configs.get(resource, {}),
                ledger=ledger_to_message(state.ledger[resource]) if resource in state.ledger else None,
                problem=state.unreadable.get(resource, ""),
            )
            for resource in sorted(resources)
        ]
    )


def quota_state_from_message(message: discovery_pb2.GetQuotaStateResponse) -> QuotaState:
    configs = {ConfigResource(config.resource): config for config in message.configs}
    return QuotaState(
        {resource: dict(config.values) for resource, config in configs.items()},
        {name: ledger_from_message(config.ledger) for name, config in configs.items() if config.HasField("ledger")},
        {resource: config.problem for resource, config in configs.items() if config.problem},
    )


def clients_to_message(reading: ClientReading) -> discovery_pb2.GetClientsResponse:
    return discovery_pb2.GetClientsResponse(
        entities=sorted(entity.path for entity in reading.entities),
        plug_ins=reading.plug_ins,
        warnings=reading.warnings,
    )


def clients_from_message(message: discovery_pb2.GetClientsResponse) -> ClientReading:
    """Convert a response; entities of kinds that this version does not know are absent."""
    entities = frozenset(filter(None, map(entity_of_path, message.entities)))
    return ClientReading(entities, dict(message.plug_ins), tuple(message.warnings))


_EFFECTIVE = Conversion(
    converters={
        ClientQuotaEntity: Converter(entity_to_message, entity_from_message),
        QuotaKey: Converter(str, QuotaKey),
    }
)
