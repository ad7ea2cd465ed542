"""What a term remembers of the rules for clients that yield to a recovery. The type to know is `YieldState`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.quotas.keys import ClientQuotaEntity, ClientReading, QuotaKey, entity_of_path
from autothrottle.core.quotas.yielding import MAX_LIMITED, READ_CLIENTS_EVERY, YieldRules, YieldTarget, yield_targets
from autothrottle.core.units import BytesPerSecond


@dataclass(frozen=True, slots=True)
class YieldState:
    """What a term remembers of the rules for clients that yield to a recovery."""

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

    def with_ledger_resources(self, resources: Collection[ConfigResource]) -> YieldState:
        """Return the state with the quota entities of the ledger."""
        ledger_resources = frozenset(resources)
        if ledger_resources == self.ledger_resources:
            return self
        return replace(self, ledger_resources=ledger_resources)._with_known()

    def _with_known(self) -> YieldState:
        in_ledger = (entity_of_path(resource.path) for resource in self.ledger_resources)
        return replace(self, entities=self.reading.entities.union(entity for entity in in_ledger if entity is not None))

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


@dataclass(frozen=True, slots=True)
class QuotaControlState:
    """What a term remembers of client quotas from cycle to cycle."""

    may_own_quotas: bool = True
    """Whether the ledger may have client quotas, so that their state must be read."""
    yields: YieldState = YieldState()

    def with_clock(self, at: datetime) -> QuotaControlState:
        """Return the state after the wall clock was changed; the last step counts as if it had been now."""
        return replace(self, yields=replace(self.yields, stepped_at=self.yields.stepped_at and at))
