"""The entities that yield rules limit, and what a term remembers of them.

The types to know are `YieldTarget` and `YieldState`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.quotas.entities import DEFAULT, ClientQuotaEntity, ClientReading, Name, entity_of_path
from autothrottle.core.quotas.keys import QuotaKey
from autothrottle.core.quotas.precedence import fallbacks
from autothrottle.core.quotas.yielding import YieldRule, YieldRules, is_exact, matches
from autothrottle.core.units import BytesPerSecond


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


QUOTA_WINDOW = timedelta(seconds=11)
"""Shortest time between two steps of a quota: Kafka measures a client's rate over `quota.window.num` times
`quota.window.size.seconds`, which is 11 s by default. A client that was slowed before shows the effect only then."""

READ_CLIENTS_EVERY = timedelta(seconds=60)
"""Time between two readings of the known clients, also after a failed one: it queries every consumer group."""

MAX_LIMITED = 1_000
"""Most entities that rules limit at once."""


@dataclass(frozen=True, slots=True)
class YieldState:
    """The rules' part of a term."""

    stepped: float | None = None
    """Monotonic time of the last step, or of the first cycle that saw the recovery; None: no recovery runs."""
    stepped_at: datetime | None = None
    """The same moment, UTC."""
    reading: ClientReading = ClientReading()  # noqa: RUF009 (frozen)
    """The known clients as last read in this recovery."""
    read_at: float | None = None
    """Monotonic time of the last attempt to read them; None: none yet."""
    error: str = ""
    """Why the last attempt failed; empty if it succeeded."""
    ledger_resources: frozenset[ConfigResource] = frozenset()
    """The quota entities in the ledger as of the last cycle."""
    entities: frozenset[ClientQuotaEntity] = frozenset()
    """The entities of the reading and of the ledger."""
    fresh_until: float | None = None
    """Monotonic time until which the last reading of the quotas is enough; None: they must be read."""
    rules: YieldRules = field(default_factory=dict)
    """The rules for which they were read."""
    operator_keys: frozenset[tuple[ConfigResource, QuotaKey]] = frozenset()
    """The keys of temporary quotas in the last cycle."""
    findings: tuple[str, ...] = ()
    """Those of the last decision; cycles that do not read the quotas repeat them."""
    loads_before: Mapping[LinkSide, BytesPerSecond] = field(default_factory=dict)
    """(broker id, role) -> client load before the quotas, bytes/s; empty: unknown."""

    def is_reading_due(self, rules: YieldRules | None, clock: float) -> bool:
        """Return whether a cycle reads the known clients: during a recovery, if there are rules."""
        if self.stepped is None or not rules:
            return False
        return self.read_at is None or clock - self.read_at >= READ_CLIENTS_EVERY.total_seconds()

    def are_quotas_fresh(self, rules: YieldRules | None, clock: float) -> bool:
        """Return whether a cycle need not read the quotas of 1,000 clients: nothing is due, and no rule has changed.

        A broker that catches up causes a cycle every two seconds.
        """
        is_fresh = self.fresh_until is not None and clock < self.fresh_until and self.rules == rules
        return is_fresh and not self.is_reading_due(rules, clock)

    def with_reading(self, reading: ClientReading | AutothrottleError | None, clock: float) -> YieldState:
        """Return the state after the known clients were read; None: they were not."""
        if reading is None:
            return self
        if isinstance(reading, AutothrottleError):
            return replace(self, read_at=clock, error=str(reading))
        if reading.entities == self.reading.entities:
            return replace(self, reading=replace(reading, entities=self.reading.entities), read_at=clock, error="")
        return replace(self, reading=reading, read_at=clock, error="")._with_known()

    def with_ours(self, resources: Collection[ConfigResource]) -> YieldState:
        """Return the state with the quota entities of the ledger."""
        ledger_resources = frozenset(resources)
        return (
            self
            if ledger_resources == self.ledger_resources
            else replace(self, ledger_resources=ledger_resources)._with_known()
        )

    def _with_known(self) -> YieldState:
        return replace(self, entities=self.reading.entities | _entities(self.ledger_resources))

    def requested(self, rules: YieldRules | None) -> tuple[YieldTarget, ...]:
        """Return the entities whose quotas a cycle reads for the rules; none before a recovery was seen."""
        return self.targets(rules) if self.stepped is not None and rules else ()

    def targets(self, rules: YieldRules) -> tuple[YieldTarget, ...]:
        """Return the entities that the rules limit.

        If there are too many, those that are limited already stay, and clients that are found later are left out.
        """
        matched = self.matched(rules)
        if len(matched) <= MAX_LIMITED:
            return matched
        return tuple(sorted(matched, key=lambda target: target.resource not in self.ledger_resources)[:MAX_LIMITED])

    def matched(self, rules: YieldRules) -> tuple[YieldTarget, ...]:
        """Return all entities that match."""
        are_known = self.read_at is not None and not self.error
        return yield_targets(tuple(rules[name] for name in sorted(rules)), self.entities, are_known)


def _entities(resources: Collection[ConfigResource]) -> frozenset[ClientQuotaEntity]:
    return frozenset(entity for resource in resources if (entity := entity_of_path(resource.path)) is not None)
