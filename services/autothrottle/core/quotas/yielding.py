"""Rules for clients that yield to a recovery: their validation, and the entities that they limit.

The type to know is `YieldRule`. What a term remembers of its rules is in `yield_state`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import translate
from functools import lru_cache

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.codec import GIVEN, stored
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.quotas.keys import (
    DEFAULT,
    MAX_EXACT,
    ClientQuotaEntity,
    Name,
    QuotaKey,
    fallbacks,
    validate_entity,
)
from autothrottle.core.units import BytesPerSecond, format_megabytes

BYTE_RATES = frozenset({QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE})
"""The keys that a rule can limit."""

MAX_RULES = 100

MAX_PATTERN_BYTES = 1_000
"""Longest pattern in UTF-8, so that all rules fit into one node of ZooKeeper."""

_NAME = re.compile(r"[a-z0-9-]{1,60}")
_WILDCARDS = "*?"


@dataclass(frozen=True, slots=True)
class YieldRule:
    """Limits the clients that match while a reassignment or a catch-up runs.

    A rule has a pattern for users, for client ids, or for both. In a pattern, `*` stands for any characters and `?` for
    one. A rule with client ids only limits the entity of the default user and the client id, which is level 4.
    """

    name: str = field(metadata=GIVEN)
    """1 to 60 lower-case letters, digits and hyphens. Unique among the rules."""
    floor_bytes_per_second: int = field(metadata=stored("floor"))
    """The lowest quota per broker, at least 1."""
    user: str | None = None
    """Pattern for the name of the principal without its type; None: any user."""
    client_id: str | None = None
    """Pattern; None: any client id."""
    at_most_bytes_per_second: int | None = field(default=None, metadata=stored("at_most"))
    """The highest quota per broker, 1 to 2^53; None: it is a share."""
    at_most_share: float | None = None
    """The highest quota as a share of the smallest broker's capacity, above 0 to 1; None: it is a rate."""
    keys: frozenset[QuotaKey] = BYTE_RATES
    """Which of `BYTE_RATES` are limited."""
    author: str = ""
    """Who set it; set by the service, like the next two."""
    time: datetime | None = None
    """When it was set, UTC."""
    sentence: str = field(default="", compare=False, metadata=GIVEN)
    """What it does, in one sentence; only in responses."""

    @property
    def matches_everything(self) -> bool:
        """Whether every client matches."""
        return all(pattern is None or not pattern.strip(_WILDCARDS) for pattern in (self.user, self.client_id))

    def limit(self, smallest_capacity: BytesPerSecond | None) -> BytesPerSecond | None:
        """Return the highest quota in bytes/s per broker, at least the floor; None: it needs an unknown capacity.

        Args:
            smallest_capacity: capacity of the smallest broker's link, bytes/s; None: unknown.
        """
        if self.at_most_bytes_per_second is not None:
            return self.at_most_bytes_per_second
        if self.at_most_share is None or smallest_capacity is None:
            return None
        return max(int(smallest_capacity * self.at_most_share), self.floor_bytes_per_second)


YieldRules = Mapping[str, YieldRule]
"""Name -> rule."""


def with_rule(rules: YieldRules, name: str, rule: YieldRule) -> YieldRules:
    """Return the rules with one added or replaced.

    Raises:
        Conflict: there would be more than 100.
    """
    changed = {**rules, name: rule}
    if len(changed) > MAX_RULES:
        raise Conflict(
            f"there would be {len(changed)} yield rules, more than {MAX_RULES}; remove one, or widen a pattern"
        )
    return changed


def is_exact(pattern: str) -> bool:
    """Return whether a pattern is a name, without wildcards."""
    return not any(one in pattern for one in _WILDCARDS)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern as a whole; upper and lower case differ.

    >>> matches("backfill-*", "backfill-1"), matches("app-?", "app-10"), matches("[ab]", "a")
    (True, False, False)
    """
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=4 * MAX_RULES)
def _compiled(pattern: str) -> re.Pattern[str]:
    # `translate` gives brackets a meaning, which these patterns do not have. Its expressions do not backtrack.
    return re.compile(translate(pattern.replace("[", "[[]")))


def validate_rule(rule: YieldRule, force: bool = False) -> YieldRule:
    """Return the rule.

    Args:
        rule: the rule to check.
        force: whether the caller confirms a rule that matches every client.

    Raises:
        Invalid: the name, a pattern, a limit, the floor or the keys are wrong, or the rule matches every client.
    """
    if not _NAME.fullmatch(rule.name):
        raise Invalid(
            f"rule name {rule.name[:80]!r} is invalid; give 1 to 60 lower-case letters, digits and hyphens, "
            "for example backfill"
        )
    for kind, pattern in (("user", rule.user), ("client-id", rule.client_id)):
        if pattern is not None:
            _validate_pattern(rule.name, kind, pattern)
    _validate_limit(rule)
    if not rule.keys or not rule.keys <= BYTE_RATES:
        given = ", ".join(sorted(rule.keys)) or "no key"
        raise Invalid(f"rule {rule.name} limits {given}; give at least one of {', '.join(sorted(BYTE_RATES))}")
    if rule.matches_everything and not force:
        raise Invalid(
            f"rule {rule.name} matches every client; give a pattern like backfill-* for the client ids or the users, "
            "or confirm the rule with --force (the field force of the request)"
        )
    return rule


def _validate_pattern(rule: str, kind: str, pattern: str) -> None:
    size = len(pattern.encode(errors="replace"))
    if not 0 < size <= MAX_PATTERN_BYTES:
        raise Invalid(
            f"the {kind} pattern {pattern[:40]!r} of rule {rule} has {size} bytes; give 1 to {MAX_PATTERN_BYTES} bytes"
        )
    if not pattern.isprintable():
        raise Invalid(
            f"the {kind} pattern {pattern[:40]!r} of rule {rule} has a character that cannot be printed; give ? for it"
        )
    if is_exact(pattern):
        validate_entity(ClientQuotaEntity(pattern) if kind == "user" else ClientQuotaEntity(client_id=pattern))


def _validate_limit(rule: YieldRule) -> None:
    rate, share = rule.at_most_bytes_per_second, rule.at_most_share
    if (rate is None) == (share is None):
        given = "no limit" if rate is None else "a rate and a share of the capacity"
        raise Invalid(f"rule {rule.name} has {given}; give either a rate or a share of the capacity")
    if rate is not None and not 0 < rate <= MAX_EXACT:
        raise Invalid(f"the limit {rate} bytes/s of rule {rule.name} is outside of 1 to {MAX_EXACT} bytes/s per broker")
    if share is not None and not 0 < share <= 1:
        raise Invalid(
            f"the limit {share:g} of rule {rule.name} is not a share of the capacity; give a number above 0 to 1, "
            "for example 0.1 for 10 %"
        )
    highest = MAX_EXACT if rate is None else rate
    floor = rule.floor_bytes_per_second
    if not 0 < floor <= highest:
        raise Invalid(
            f"the floor {floor} bytes/s of rule {rule.name} is outside of 1 to {highest} bytes/s; "
            "give a floor that is not above the limit"
        )


def rule_sentence(rule: YieldRule) -> str:
    """Return what a rule does, for logs, lists and the audit.

    >>> rule_sentence(YieldRule("one", 1_000_000, client_id="backfill-*", at_most_bytes_per_second=20_000_000))
    'while recovering: client-id "backfill-*" may use at most 20 MB/s per broker, at least 1 MB/s'
    """
    patterns = {"user": rule.user, "client-id": rule.client_id}
    who = ", ".join(f'{kind} "{pattern}"' for kind, pattern in patterns.items() if pattern is not None)
    if rule.at_most_bytes_per_second is not None:
        limit = f"{format_megabytes(rule.at_most_bytes_per_second)} MB/s per broker"
    else:
        limit = f"{100 * (rule.at_most_share or 0):g} % of the smallest broker's capacity"
    verb = "use" if len(rule.keys) > 1 else "send" if QuotaKey.PRODUCER_BYTE_RATE in rule.keys else "receive"
    floor = format_megabytes(rule.floor_bytes_per_second)
    return f"while recovering: {who or 'every client'} may {verb} at most {limit}, at least {floor} MB/s"


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
