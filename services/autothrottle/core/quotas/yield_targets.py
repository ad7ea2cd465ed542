"""The entities that yield rules limit, among the names that Kafka knows. The type to know is `YieldTarget`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.quotas.entities import DEFAULT, ClientQuotaEntity, Name
from autothrottle.core.quotas.keys import QuotaKey, fallbacks
from autothrottle.core.quotas.yielding import YieldRule, is_exact, matches


@dataclass(frozen=True, slots=True)
class MatchingRule:
    """A rule that matches an entity."""

    rule: YieldRule
    only_own: bool = False
    """Limit only keys that the entity has itself; for the other keys, a lower level decides."""


@dataclass(frozen=True, slots=True)
class YieldTarget:
    """An entity that yields to a recovery."""

    entity: ClientQuotaEntity
    resource: ConfigResource
    rules: tuple[MatchingRule, ...]
    """By name; never empty."""
    fallbacks: tuple[ConfigResource, ...]
    """Where its quota can come from while it has none, in Kafka's order."""
    keys: tuple[QuotaKey, ...]
    """The keys that a rule limits."""


@lru_cache(maxsize=8)
def yield_targets(
    rules: tuple[YieldRule, ...], entities: frozenset[ClientQuotaEntity], all_quotas_are_known: bool = False
) -> tuple[YieldTarget, ...]:
    """Return the entities that the rules limit, by the name of their first rule and then by entity.

    A rule limits entities of which every client matches: never an entity of a default user alone, of a default client
    id alone, or of an IP address.

    Args:
        rules: by name. A rule with a name, without wildcards, also limits a name that Kafka does not know.
        entities: the entities that Kafka knows.
        all_quotas_are_known: whether every entity with quotas is among them, so that the others need not be read.
    """
    users = frozenset(entity.user for entity in entities if isinstance(entity.user, str))
    clients = frozenset(entity.client_id for entity in entities if isinstance(entity.client_id, str))
    rules_of_entities: dict[ClientQuotaEntity, list[MatchingRule]] = {}
    for rule in rules:
        for entity, only_own in sorted(_matching(rule, entities, users, clients), key=lambda item: item[0].order):
            rules_of_entities.setdefault(entity, []).append(MatchingRule(rule, only_own))
    with_quotas = entities if all_quotas_are_known else None
    return tuple(_target(entity, tuple(matching), with_quotas) for entity, matching in rules_of_entities.items())


def _target(
    entity: ClientQuotaEntity, rules: tuple[MatchingRule, ...], with_quotas: frozenset[ClientQuotaEntity] | None
) -> YieldTarget:
    below = tuple(fallback.resource for fallback in fallbacks(entity) if with_quotas is None or fallback in with_quotas)
    keys = frozenset[QuotaKey]().union(*(fallback.rule.keys for fallback in rules))
    ordered = tuple(key for key in QuotaKey if key in keys)
    return YieldTarget(entity, entity.resource, rules, below, ordered)


def _matching(
    rule: YieldRule, entities: frozenset[ClientQuotaEntity], users: frozenset[str], clients: frozenset[str]
) -> Iterator[tuple[ClientQuotaEntity, bool]]:
    """Return the entities that a rule limits, each once, and whether only keys with an own value are limited."""
    pairs = (entity for entity in entities if isinstance(entity.user, str) and entity.client_id is not None)
    if rule.user is None:
        # Level 4 decides for every user without own quotas. A quota of a user and this client id beats it.
        of_clients = _names(rule.client_id or "*", clients)
        yield from ((ClientQuotaEntity(DEFAULT, client), False) for client in of_clients)
        yield from ((pair, True) for pair in pairs if pair.client_id in of_clients)
    elif rule.client_id is None:
        of_users = _names(rule.user, users)
        yield from ((ClientQuotaEntity(user), False) for user in of_users)
        yield from ((pair, True) for pair in pairs if pair.user in of_users)
    else:
        of_users, of_clients = _names(rule.user, users), _names(rule.client_id, clients)
        matching = {pair for pair in pairs if pair.user in of_users and pair.client_id in of_clients}
        if is_exact(rule.user) or is_exact(rule.client_id):
            matching |= {ClientQuotaEntity(user, client) for user in of_users for client in of_clients}
        yield from ((pair, False) for pair in matching)


def _names(pattern: str, names: frozenset[str]) -> frozenset[Name]:
    return frozenset({pattern}) if is_exact(pattern) else frozenset(name for name in names if matches(pattern, name))
