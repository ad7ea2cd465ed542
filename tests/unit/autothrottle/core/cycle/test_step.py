"""Properties of `step` and `settle` alone, without a planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, ResourceType, format_replicas, parse_replicas
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, SnapshotRequest, TopicReassignment
from autothrottle.core.cycle.decision import CycleDecision, CycleResults
from autothrottle.core.cycle.input import (
    ControllerState,
    CycleObservation,
    KnownLoads,
    PlannerSettings,
    partitions_with_isr,
)
from autothrottle.core.cycle.step import settle, step
from autothrottle.core.errors import Unavailable
from autothrottle.core.operators.sources import KnownSources, Overrides, SourceReadings, StoredOverride, adopted
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.records import CatchUp, Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import with_changes
from autothrottle.core.traffic.loads import Loads
from tests import builders
from tests.builders import NOON, mb

BROKERS = (1, 2, 3, 4, 5)
START = ControllerState().begin_term(7)

brokers = st.sampled_from(BROKERS)
policies = st.sampled_from((HeadroomPolicy(), AdaptivePolicy()))
loads = st.dictionaries(brokers, st.tuples(st.integers(0, 110), st.integers(0, 110)))
overrides = st.builds(
    lambda cluster, by_broker: Overrides(cluster, by_broker),
    st.none() | st.builds(StoredOverride, st.integers(1, 200).map(mb), st.booleans(), st.just(1)),
    st.dictionaries(brokers, st.builds(StoredOverride, st.integers(1, 200).map(mb), st.just(False), st.just(1))),
)


@st.composite
def reassignments(draw: st.DrawFn, topic: str) -> TopicReassignment:
    """A topic whose partitions are copied to one or two other brokers each."""
    rows = [draw(st.permutations(BROKERS)) for _ in range(draw(st.integers(1, 4)))]
    return TopicReassignment(
        topic=topic,
        partitions=tuple(range(len(rows))),
        leaders=tuple(row[0] for row in rows),
        isr=tuple(tuple(row[: draw(st.integers(1, 2))]) for row in rows),
        adding_replicas=tuple(tuple(row[3 : draw(st.integers(4, 5))]) for row in rows),
        removing_replicas=tuple((row[2],) for row in rows),
    )


@st.composite
def observations(draw: st.DrawFn) -> CycleObservation:
    """A first cycle with any reassignments, loads and overrides."""
    topics = draw(st.sets(st.sampled_from(("a", "b", "c"))))
    acting = draw(overrides)
    held = {b: {"q": (b,)} for b in acting.active_brokers}
    snapshot = Snapshot(1, frozenset(BROKERS), tuple(draw(reassignments(t)) for t in sorted(topics)), replicas=held)
    found = (builders.load(b, outbound=mb(o), inbound=mb(i)) for b, (o, i) in sorted(draw(loads).items()))
    return CycleObservation(
        at=NOON,
        clock=100.0,
        scheduled=True,
        sources=adopted(KnownSources(), SourceReadings(None, acting, {})),
        snapshot=snapshot,
        loads=KnownLoads(builders.loads(*found), 100.0),
    )


def carried_out(settings: PlannerSettings, decision: CycleDecision) -> tuple[ControllerState, Snapshot]:
    """Return the state and the cluster after all changes of a decision were applied."""
    outcomes = tuple(Outcome(change.resource, OutcomeStatus.APPLIED) for change in decision.changes)
    state, _ = settle(settings, decision, CycleResults(decision.at, 100.0, outcomes))
    return state, with_changes(decision.view.snapshot, decision.changes)


@given(observation=observations(), policy=policies)
def test_a_repeated_observation_writes_nothing(observation: CycleObservation, policy: AdaptivePolicy) -> None:
    settings = PlannerSettings(builders.limits(), policy=policy)
    state, after = carried_out(settings, step(settings, START, observation))
    again = step(settings, state, replace(observation, snapshot=after, loads=None))
    assert again.changes == () and again.error is None


@given(observation=observations(), policy=policies, order=st.permutations(BROKERS))
def test_permuted_brokers_get_the_same_throttles(
    observation: CycleObservation, policy: AdaptivePolicy, order: list[int]
) -> None:
    settings = PlannerSettings(builders.limits(), policy=policy)
    names = dict(zip(BROKERS, order, strict=True))
    _, after = carried_out(settings, step(settings, START, observation))
    _, renamed = carried_out(settings, step(settings, START, with_names(observation, names)))
    assert renamed.throttles == throttles_with_names(after, names)


def with_names(observation: CycleObservation, names: Mapping[int, int]) -> CycleObservation:
    """Return the same observation with other broker ids."""
    snapshot, sources = observation.snapshot, observation.sources
    overrides = sources.latest.overrides
    assert isinstance(snapshot, Snapshot) and overrides is not None and observation.loads

    def renamed(column: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(names[b] for b in row) for row in column)

    moves = tuple(
        replace(
            one,
            leaders=tuple(names[b] for b in one.leaders),
            isr=renamed(one.isr),
            adding_replicas=renamed(one.adding_replicas),
            removing_replicas=renamed(one.removing_replicas),
        )
        for one in snapshot.reassignments
    )
    held = {names[b]: topics for b, topics in snapshot.replicas.items()}
    by_broker = {names[b]: one for b, one in overrides.brokers.items()}
    read = Loads({names[b]: replace(one, broker_id=names[b]) for b, one in observation.loads.loads.brokers.items()})
    return replace(
        observation,
        snapshot=replace(snapshot, reassignments=moves, replicas=held),
        sources=replace(sources, latest=replace(sources.latest, overrides=replace(overrides, brokers=by_broker))),
        loads=replace(observation.loads, loads=read),
    )


def throttles_with_names(snapshot: Snapshot, names: Mapping[int, int]) -> Mapping[ConfigResource, Mapping[str, str]]:
    """Return the throttles of a cluster with other broker ids."""

    def entry(text: str) -> str:
        partition, _, broker_id = text.partition(":")
        return f"{partition}:{names[int(broker_id)]}"

    return {
        ConfigResource.broker(names[resource.broker_id]) if resource.type is ResourceType.BROKER else resource: keys
        if resource.type is ResourceType.BROKER
        else {key: format_replicas(frozenset(map(entry, parse_replicas(text)))) for key, text in keys.items()}
        for resource, keys in snapshot.throttles.items()
    }


@given(observation=observations())
def test_an_unreadable_cluster_changes_nothing_and_keeps_what_was_read(observation: CycleObservation) -> None:
    settings = PlannerSettings(builders.limits())
    decision = step(settings, START, replace(observation, snapshot=Unavailable("the cluster does not answer")))
    results = CycleResults(NOON, 100.0, error=decision.error, are_written=False)
    state, _ = settle(settings, decision, results)
    assert (decision.changes, decision.actions) == ((), ())
    assert (state.term.troubles, state.term.cycles) == (1, 1)
    assert (state.term.loads, state.term.sources.overrides) == (observation.loads, observation.sources.latest.overrides)


@given(observation=observations(), policy=policies, minutes=st.integers(1, 60))
def test_a_step_depends_on_its_input_alone(observation: CycleObservation, policy: AdaptivePolicy, minutes: int) -> None:
    settings = PlannerSettings(builders.limits(), policy=policy)
    first = step(settings, START, observation)
    state, _ = carried_out(settings, first)
    later = replace(observation, at=NOON + timedelta(minutes=minutes), clock=100.0 + 60 * minutes, loads=None)
    step(settings, state, later)
    assert step(settings, START, observation) == first


def test_more_overrides_than_a_request_can_hold_leave_the_rest_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides on brokers with more than 100,000 partitions made discovery refuse the request of every cycle."""
    monkeypatch.setattr("autothrottle.core.cycle.input.MAX_ISR_PARTITIONS", 3)
    snapshot = replace(
        builders.snapshot(builders.reassignment("t", {0: (1, [1], [2, 3], [])})),
        replicas={2: {"a": (0, 1), "b": (0, 1)}, 3: {"c": (5, 6)}},
    )
    request = SnapshotRequest(replicas_of=(2, 3), partitions=(), catching_up=(3,))
    assert partitions_with_isr(request, snapshot) == {("c", 5), ("c", 6), ("a", 0)}


# The topic of our own state.


@given(observation=observations(), policy=policies, topic=st.sampled_from(("a", "q")))
def test_own_state_changes_no_decision(observation: CycleObservation, policy: AdaptivePolicy, topic: str) -> None:
    """Overrides put it into the throttled lists. A lagging replica then stayed out of the ISR, and no record committed.

    It was hidden where the cluster is described, so that its reassignment could not be submitted.
    """
    settings = PlannerSettings(builders.limits(), policy=policy, state_topic=topic)
    snapshot = observation.snapshot
    assert isinstance(snapshot, Snapshot)
    decision = step(settings, START, observation)
    absent = step(settings, START, replace(observation, snapshot=snapshot.without_topic(topic)))
    assert (decision.plan, decision.changes, decision.actions) == (absent.plan, absent.changes, absent.actions)
    assert ConfigResource.topic(topic) not in {change.resource for change in decision.changes}
    assert decision.view.to_report.topics == snapshot.topics


def test_own_state_is_not_throttled_while_its_broker_catches_up() -> None:
    settings = PlannerSettings(builders.limits(), state_topic="state")
    lagging = Assignment((1, 2), 1, (1,))
    snapshot = Snapshot(
        1,
        frozenset(BROKERS),
        replicas={2: {"state": (0,), "t": (0,)}},
        assignments={("state", 0): lagging, ("t", 0): lagging},
    )
    catch_up = CatchUp(2, "anna", NOON)
    sources = adopted(KnownSources(), SourceReadings(None, Overrides(), {2: catch_up}))
    observation = CycleObservation(NOON, 100.0, True, sources, snapshot, loads=KnownLoads(Loads(), 100.0))
    decision = step(settings, START, observation)
    assert {change.resource.name for change in decision.changes} >= {"t"}
    assert ConfigResource.topic("state") not in {change.resource for change in decision.changes}


def test_a_link_side_that_copies_own_state_is_not_judged_by_its_throttle() -> None:
    """Own state is copied without a throttle. What it copied could count as a throttle that is not in force."""
    settings = PlannerSettings(builders.limits(), state_topic="state")
    moving = builders.reassignment("t", {0: (1, (1,), (2,), ()), 1: (4, (4,), (5,), ())})
    state = builders.reassignment("state", {0: (1, (1,), (3,), ())})
    observation = CycleObservation(
        NOON,
        100.0,
        True,
        adopted(KnownSources(), SourceReadings(None, Overrides(), {})),
        builders.snapshot(moving),
        loads=KnownLoads(builders.loads(*map(builders.load, BROKERS)), 100.0),
    )
    term, throttled = carried_out(settings, step(settings, START, observation))
    snapshot = replace(throttled, reassignments=(state, moving))
    decision = step(settings, term, replace(observation, snapshot=snapshot, loads=None))
    leader, follower = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
    assert {*decision.state.term.throttles.effect.since} == {(2, follower), (4, leader), (5, follower)}
