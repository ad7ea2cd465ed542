"""Client quotas as messages."""

from __future__ import annotations

from collections.abc import Iterable

from autothrottle.core.quotas.entities import QuotaEntity, name_or_default, validate_entity
from autothrottle.core.quotas.keys import QuotaEdits, QuotaKey, QuotaValues, parse_key, quota_etag
from autothrottle.core.quotas.precedence import ClientQuotas, EffectiveQuota
from autothrottle.messages import Conversion, Converter
from autothrottle.v1 import quotas_pb2


def entity_from_message(message: quotas_pb2.QuotaEntity) -> QuotaEntity:
    """Convert and validate an entity.

    Raises:
        Invalid: a part is given as a name and as the default, or the entity is not valid.
    """
    return validate_entity(
        QuotaEntity(
            name_or_default("user", message.user if message.HasField("user") else None, message.default_user),
            name_or_default(
                "client-id", message.client_id if message.HasField("client_id") else None, message.default_client_id
            ),
            name_or_default("ip", message.ip if message.HasField("ip") else None, message.default_ip),
        )
    )


def entity_to_message(entity: QuotaEntity) -> quotas_pb2.QuotaEntity:
    found = quotas_pb2.QuotaEntity()
    for kind, name in entity.parts.items():
        part = kind.replace("-", "_")
        setattr(found, *((part, name) if isinstance(name, str) else (f"default_{part}", True)))
    return found


def values_from_message(message: quotas_pb2.QuotaValues) -> QuotaEdits:
    """Return the quotas that are given; the fields of the message have the names of Kafka's keys."""
    given = {field.name: value for field, value in message.ListFields()}
    return {key: given[key] for key in QuotaKey if key in given}


def values_to_message(values: QuotaValues) -> quotas_pb2.QuotaValues:
    found = quotas_pb2.QuotaValues()
    for key, value in values.items():
        setattr(found, key, int(value) if key.is_integer else value)
    return found


def keys_from_names(names: Iterable[str]) -> tuple[QuotaKey, ...]:
    """Return the keys of a request.

    Raises:
        Invalid: a name is not a key.
    """
    return tuple(parse_key(name) for name in names)


def quota_to_message(entity: QuotaEntity, values: QuotaValues) -> quotas_pb2.Quota:
    return quotas_pb2.Quota(entity=entity_to_message(entity), values=values_to_message(values), etag=quota_etag(values))


def quotas_to_messages(quotas: ClientQuotas) -> list[quotas_pb2.Quota]:
    return [quota_to_message(entity, quotas[entity]) for entity in sorted(quotas, key=lambda one: one.order)]


def effective_to_message(quota: EffectiveQuota) -> quotas_pb2.EffectiveQuota:
    return _EFFECTIVE.to_message(quotas_pb2.EffectiveQuota, quota, unit=quota.key.unit)


_EFFECTIVE = Conversion(
    converters={QuotaEntity: Converter(entity_to_message, entity_from_message), QuotaKey: Converter(str, QuotaKey)}
)
