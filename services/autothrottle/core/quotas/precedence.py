"""Which quota applies to a client: Kafka's eight levels of users and client ids, and two of IP addresses.

Source: `DefaultQuotaCallback` in Kafka's ClientQuotaManager, and KIP-55.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.quotas.entities import DEFAULT, ClientQuotaEntity, Name
from autothrottle.core.quotas.keys import CLIENT_KEYS, IP_KEYS, QuotaKey, QuotaValues

ClientQuotas = Mapping[ClientQuotaEntity, QuotaValues]
"""Entity -> its quotas."""


@dataclass(frozen=True, slots=True)
class DecidingQuota:
    """The quota that applies to a client for one key, and the level that decides it."""

    key: QuotaKey
    value: float
    """In the key's unit."""
    entity: ClientQuotaEntity
    """The entity whose quota it is."""
    level: int
    """1 (a user and a client id) to 8 (the default client id); 1 and 2 for an IP address and its default."""


def levels(user: Name, client_id: Name) -> tuple[ClientQuotaEntity, ...]:
    """Return the entities whose quota may apply to a client, in Kafka's order; the first one with the key decides.

    Args:
        user: name of the principal; `ANONYMOUS` without authentication.
        client_id: the client id; may be empty.
    """
    users: tuple[Name, ...] = (user, DEFAULT)
    clients: tuple[Name, ...] = (client_id, DEFAULT)
    of_users = (
        entity
        for one in users
        for entity in (*(ClientQuotaEntity(one, client) for client in clients), ClientQuotaEntity(one))
    )
    return (*of_users, *(ClientQuotaEntity(client_id=client) for client in clients))


def fallbacks(entity: ClientQuotaEntity) -> tuple[ClientQuotaEntity, ...]:
    """Return the entities whose quota can apply while this entity has none, in Kafka's order.

    For a user, entities with the name of a client id are absent: Kafka does not know the client ids of a user.

    >>> [str(one) for one in fallbacks(ClientQuotaEntity(DEFAULT, "app"))][:3]
    ['default user, default client-id', 'default user', 'client-id "app"']
    """
    ordered = list(dict.fromkeys(levels(entity.user or DEFAULT, entity.client_id or DEFAULT)))
    return tuple(ordered[ordered.index(entity) + 1 :])


def levels_of_ip(ip: str) -> tuple[ClientQuotaEntity, ...]:
    """Return the entities whose quota may apply to connections from an address, in Kafka's order."""
    return ClientQuotaEntity(ip=ip), ClientQuotaEntity(ip=DEFAULT)


def effective_quotas(quotas: ClientQuotas, user: str, client_id: str) -> tuple[DecidingQuota, ...]:
    """Return the quotas that apply to a client, by key; a key without a quota is unlimited and absent.

    Each key is decided on its own: a producer rate on a level does not hide a consumer rate on a lower one.
    """
    return _effective(quotas, levels(user, client_id), CLIENT_KEYS)


def effective_quotas_of_ip(quotas: ClientQuotas, ip: str) -> tuple[DecidingQuota, ...]:
    """Return the quotas that apply to connections from an address."""
    return _effective(quotas, levels_of_ip(ip), IP_KEYS)


def _effective(
    quotas: ClientQuotas, ordered: tuple[ClientQuotaEntity, ...], keys: frozenset[QuotaKey]
) -> tuple[DecidingQuota, ...]:
    found: dict[QuotaKey, DecidingQuota] = {}
    for level, entity in enumerate(ordered, start=1):
        for key, value in quotas.get(entity, {}).items():
            if key in keys:
                found.setdefault(key, DecidingQuota(key, value, entity, level))
    return tuple(found[key] for key in QuotaKey if key in found)
