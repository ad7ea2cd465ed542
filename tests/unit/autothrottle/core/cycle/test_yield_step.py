"""Properties of the quotas of clients that yield, over any course of a recovery, with any leaders and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, ResourceType
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.client_quotas import quotas_needed
from autothrottle.core.cycle.decision import CycleResults
from autothrottle.core.cycle.input import ControllerState, CycleObservation, KnownLoads, PlannerSettings
from autothrottle.core.cycle.step import settle, step
from autothrottle.core.operators.sources import Overrides, SourceReadings, adopted
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    ClientReading,
    Name,
    QuotaKey,
    QuotaState,
    entity_of_path,
    fallbacks,
)
from autothrottle.core.quotas.yielding import BYTE_RATES, QUOTA_WINDOW, YieldRule, matches
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.traffic.loads import Loads
from tests import builders
from tests.builders import NOON, mb

SETTINGS = PlannerSettings(builders.limits(), policy=HeadroomPolicy())
MOVING = builders.reassignment("t", {0: (1001, (1001, 1002), (1003,), (1002,))})
WINDOW = QUOTA_WINDOW.total_seconds()

names = st.sampled_from(("backfill-1", "backfill-2", "app"))
users = st.sampled_from(("alice", "bob"))
rates = st.integers(1, 200_000_000)
floors = st.integers(1, 9_000_000)


@st.composite
def rules(draw: st.DrawFn) -> Mapping[str, YieldRule]:
    made = {}
    for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        user, client = draw(st.sampled_from([(None, "backfill-*"), (None, "app"), ("al*", None), ("bob", "b*")]))
        floor = draw(floors)
        at_most = draw(st.sampled_from((None, floor, 10_000_000, 30_000_000)))
        share = None if at_most else draw(st.floats(0.01, 0.5))
        keys = frozenset(draw(st.sets(st.sampled_from(sorted(BYTE_RATES)), min_size=1)))
        made[name] = YieldRule(name, floor, user, client, at_most, share, keys, "anna", NOON)
    return made


@st.composite
def entities(draw: st.DrawFn) -> ClientQuotaEntity:
    user: Name | None = draw(st.none() | st.just(DEFAULT) | users)
    client: Name | None = draw((st.just(DEFAULT) | names) if user is None else (st.none() | st.just(DEFAULT) | names))
    return ClientQuotaEntity(user, client)


configs = st.dictionaries(
    entities(), st.dictionaries(st.sampled_from(sorted(BYTE_RATES)), rates.map(str), min_size=1), max_size=6
)
traffic = st.sampled_from((None, 0, 10, 40, 80, 95, 100, 110))
Event = tuple[int, int | None, bool, bool]
"""(Seconds until the next cycle, measured MB/s in both directions, whether a new leader runs it, whether it fails)."""

rarely = st.integers(0, 9).map(lambda one: one == 7)
courses = st.lists(st.tuples(st.sampled_from((4, 7, 11, 11, 45)), traffic, rarely, rarely), min_size=6, max_size=20)


@dataclass
class World:
    """A cluster with quotas, and one leader after the other."""

    rules: Mapping[str, YieldRule]
    configs: dict[ConfigResource, dict[str, str]]
    ledger: dict[ConfigResource, LedgerEntry] = field(default_factory=dict)
    state: ControllerState = field(default_factory=lambda: ControllerState().begin_term(1))
    seconds: float = 0.0
    snapshot: Snapshot = field(default_factory=lambda: builders.snapshot(MOVING))

    def elect(self) -> None:
        self.state = self.state.begin_term(self.state.term.fence + 1)

    def play(self, event: Event) -> None:
        seconds, inbound, is_new, is_refused = event
        self.seconds += seconds
        if is_new:
            self.elect()
        self.cycle(inbound, is_refused)

    def finish(self) -> None:
        self.snapshot = replace(self.snapshot, reassignments=())

    def cycle(self, inbound: int | None = None, is_refused: bool = False) -> None:
        observation = self.observation(inbound)
        decision = step(SETTINGS, self.state, observation)
        assert decision == step(SETTINGS, self.state, observation), "the same input gives the same output"
        status = OutcomeStatus.REFUSED if is_refused else OutcomeStatus.APPLIED
        outcomes = []
        for change in decision.changes:
            outcomes.append(Outcome(change.resource, status))
            if change.resource.type is ResourceType.QUOTA and not is_refused:
                keys = self.configs.setdefault(change.resource, {})
                for edit in change.edits:
                    assert keys.pop(edit.key, None) == edit.expected
                    keys |= {} if edit.value is None else {edit.key: edit.value}
                self.ledger.pop(change.resource, None)
                self.ledger |= {change.resource: change.ledger} if change.ledger else {}
        self.state, _ = settle(SETTINGS, decision, CycleResults(observation.at, self.seconds, tuple(outcomes)))

    def observation(self, inbound: int | None) -> CycleObservation:
        """What a planner reads: only the quotas that `quotas_needed` names, and those in the ledger."""
        read = SourceReadings(None, Overrides(), {}, {}, self.rules)
        sources, term, at = adopted(self.state.term.sources, read), self.state.term, self.now
        clients = None
        if term.quotas.yields.is_reading_due(sources.latest.rules, self.seconds):
            with_quotas = {entity_of_path(r.path) for r, keys in self.configs.items() if keys}
            of_groups = {ClientQuotaEntity(DEFAULT, "backfill-1"), ClientQuotaEntity(DEFAULT, "app")}
            clients = ClientReading(frozenset(filter(None, with_quotas | of_groups)))
        asked = quotas_needed(term.quotas, term.ledger, sources.latest, self.seconds)
        found = {r: dict(self.configs.get(r, {})) for r in (asked or set()) | self.ledger.keys()}
        loads = Loads()
        if inbound is not None:
            made = (builders.load(b, mb(inbound), mb(inbound), end=at) for b in (1001, 1002, 1003, 1004))
            loads = builders.loads(*made)
        return CycleObservation(
            at=at,
            clock=self.seconds,
            scheduled=True,
            sources=sources,
            snapshot=self.snapshot,
            loads=KnownLoads(loads, self.seconds),
            quotas=None if asked is None else QuotaState(found, dict(self.ledger)),
            clients=clients,
        )

    @property
    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)

    def ours(self) -> dict[tuple[ConfigResource, str], int]:
        """(entity, key) -> our quota of it."""
        return {(r, key): int(self.configs[r][key]) for r, entry in self.ledger.items() for key in entry.keys}


def world(found: Mapping[str, YieldRule], before: Mapping[ClientQuotaEntity, Mapping[str, str]]) -> World:
    return World(found, {entity.resource: dict(keys) for entity, keys in before.items()})


def limit_before(entity: ClientQuotaEntity, key: str, before: Mapping[ConfigResource, Mapping[str, str]]) -> float:
    """The quota that applied to the entity's clients before, as far as it is known; inf: unlimited."""
    ordered = (entity, *fallbacks(entity))
    texts = (before.get(one.resource, {}).get(key) for one in ordered)
    return next((int(text) for text in texts if text is not None), float("inf"))


@given(found=rules(), before=configs, course=courses)
def test_quotas_stay_within_their_bounds_and_step_once_per_window(
    found: Mapping[str, YieldRule], before: Mapping[ClientQuotaEntity, Mapping[str, str]], course: Sequence[Event]
) -> None:
    made, lowered, last = (
        world(found, before),
        dict[tuple[ConfigResource, str], float](),
        dict[tuple[ConfigResource, str], int](),
    )
    started = {resource: dict(keys) for resource, keys in made.configs.items()}
    for event in course:
        made.play(event)
        current = made.ours()
        for where, rate in current.items():
            resource, key = where
            entity = entity_of_path(resource.path)
            assert entity is not None and any(covers(rule, entity) for rule in found.values())
            most = limit_before(entity, key, started)
            assert rate < most
            assert rate >= min(rule.floor_bytes_per_second for rule in found.values() if QuotaKey(key) in rule.keys)
            if rate < last.get(where, 0):
                assert rate >= last[where] // 2, "also by a new leader"
                assert made.seconds - lowered.get(where, -WINDOW) >= WINDOW, "also by a new leader"
                lowered[where] = made.seconds
        last = current


@given(found=rules(), before=configs, course=courses, is_new=st.booleans())
def test_everything_is_as_before_after_the_recovery(
    found: Mapping[str, YieldRule],
    before: Mapping[ClientQuotaEntity, Mapping[str, str]],
    course: Sequence[Event],
    is_new: bool,
) -> None:
    made = world(found, before)
    started = {resource: dict(keys) for resource, keys in made.configs.items()}
    for event in course:
        made.play(event)
    made.finish()
    if is_new:
        made.elect()
    made.cycle()
    made.cycle()
    assert {r: keys for r, keys in made.configs.items() if keys} == started and made.ledger == {}


def covers(rule: YieldRule, entity: ClientQuotaEntity) -> bool:
    """Whether every client of the entity matches the rule."""
    user = rule.user is None or (isinstance(entity.user, str) and matches(rule.user, entity.user))
    client = rule.client_id is None or (isinstance(entity.client_id, str) and matches(rule.client_id, entity.client_id))
    return user and client


@given(found=rules(), before=configs, inbound=traffic)
def test_constant_input_does_not_oscillate(
    found: Mapping[str, YieldRule], before: Mapping[ClientQuotaEntity, Mapping[str, str]], inbound: int | None
) -> None:
    made, seen = world(found, before), []
    made.cycle(inbound)
    for _ in range(20):
        made.seconds += 45
        made.cycle(inbound)
        seen.append(made.ours())
    for where in {where for one in seen for where in one}:
        values = [one[where] for one in seen if where in one]
        turns = [b > a for a, b in pairwise(values) if a != b]
        assert turns == sorted(turns) or turns == sorted(turns, reverse=True)
