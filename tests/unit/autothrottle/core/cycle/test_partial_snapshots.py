"""A snapshot whose partitions are still being read: the cycle removes and raises nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ResourceType, parse_replicas
from autothrottle.core.cluster.flows import FlowProgress, Progress
from autothrottle.core.cluster.snapshot import Problem, Snapshot
from autothrottle.core.cycle.decision import CycleDecision, PurgeOverride
from autothrottle.core.cycle.input import CycleObservation, PlannerSettings
from autothrottle.core.cycle.requests import NOTHING_LEFT
from autothrottle.core.cycle.step import step
from autothrottle.core.operators.sources import KnownSources, Overrides, SourceReadings, adopted
from autothrottle.core.policy.adaptive import AdaptivePolicy
from tests import builders
from tests.builders import NOON, mb
from tests.unit.autothrottle.core.cycle.test_step import START, carried_out, observations, policies

TOPICS = "/brokers/topics"
SOURCES = adopted(KnownSources(), SourceReadings(None, Overrides(), {}))
topics = st.sets(st.sampled_from(("a", "b", "c")))


def snapshot_of(observation: CycleObservation) -> Snapshot:
    assert isinstance(observation.snapshot, Snapshot)
    return observation.snapshot


def without(snapshot: Snapshot, unread: Collection[str]) -> Snapshot:
    """The snapshot while these topics are still being read."""
    reassignments = tuple(r for r in snapshot.reassignments if r.topic not in unread)
    missing = sum(len(r.partitions) for r in snapshot.reassignments if r.topic in unread)
    return replace(snapshot, reassignments=reassignments).with_unread(TOPICS, missing + 1)


def with_progress(snapshot: Snapshot, bytes_left: int) -> Snapshot:
    """The snapshot with counts of the flows in it."""
    at = NOON + timedelta(seconds=55)
    count = FlowProgress(mb(100), mb(10), bytes_left, at, NOON)
    return replace(snapshot, progress=Progress(dict.fromkeys(snapshot.flows, count), at=at))


def decisions(
    first: CycleObservation,
    second: CycleObservation,
    policy: AdaptivePolicy,
    unread: Collection[str],
    bytes_left: int | None,
) -> tuple[Snapshot, CycleDecision, CycleDecision]:
    """Carry out the first cycle; return the cluster before the second, and decisions on a part and the whole of it."""
    settings = PlannerSettings(builders.limits(), policy=policy)
    state, cluster = carried_out(settings, step(settings, START, first))
    whole = replace(snapshot_of(second), version=2, throttles=cluster.throttles, ledger=cluster.ledger)
    partial = without(whole, unread)
    if bytes_left is not None:
        progress = with_progress(partial, bytes_left).progress
        whole, partial = replace(whole, progress=progress), replace(partial, progress=progress)
    at = NOON + timedelta(seconds=60)
    observed = replace(second, at=at, clock=160.0, sources=first.sources)
    of_part, of_whole = (step(settings, state, replace(observed, snapshot=s)) for s in (partial, whole))
    return whole, of_part, of_whole


@given(observations(), observations(), policies, topics, st.none() | st.integers(0, mb(10_000)))
def test_a_partial_snapshot_removes_nothing(
    first: CycleObservation,
    second: CycleObservation,
    policy: AdaptivePolicy,
    unread: set[str],
    bytes_left: int | None,
) -> None:
    cluster, decision, _ = decisions(first, second, policy, unread, bytes_left)
    for change in decision.changes:
        current = cluster.throttles.get(change.resource, {})
        for edit in change.edits:
            assert edit.value is not None
            if change.resource.type is ResourceType.TOPIC:
                assert parse_replicas(current.get(edit.key, "")) <= parse_replicas(edit.value)
    assert not any(isinstance(a, PurgeOverride) and a.reason == NOTHING_LEFT for a in decision.actions)


@given(observations(), observations(), policies, topics, st.none() | st.integers(0, mb(10_000)))
def test_a_partial_snapshot_raises_no_rate_and_sets_none_above_that_of_the_whole(
    first: CycleObservation,
    second: CycleObservation,
    policy: AdaptivePolicy,
    unread: set[str],
    bytes_left: int | None,
) -> None:
    cluster, decision, of_whole = decisions(first, second, policy, unread, bytes_left)
    rates = {(d.broker_id, d.role): d.rate_bytes_per_second for d in of_whole.plan.decisions}
    for decided in decision.plan.decisions:
        previous = cluster.previous_rates.get((decided.broker_id, decided.role))
        if not decided.reason.is_override:
            assert previous is None or decided.rate_bytes_per_second <= previous
        assert decided.rate_bytes_per_second <= max(rates[decided.broker_id, decided.role], previous or 0)


@given(observations(), observations(), policies, topics)
def test_the_cycle_after_a_partial_snapshot_ends_as_without_one(
    first: CycleObservation, second: CycleObservation, policy: AdaptivePolicy, unread: set[str]
) -> None:
    """The lists are the same to the byte, and so are the rates of all brokers without an earlier one."""
    settings = PlannerSettings(builders.limits(), policy=policy)
    state, before = carried_out(settings, step(settings, START, replace(first, snapshot=Snapshot(1))))
    whole = replace(snapshot_of(second), version=2, throttles=before.throttles, ledger=before.ledger)
    later = replace(second, at=NOON + timedelta(seconds=60), clock=160.0, sources=first.sources, loads=None)
    _, expected = carried_out(settings, step(settings, state, replace(later, snapshot=whole)))
    state, part = carried_out(settings, step(settings, state, replace(later, snapshot=without(whole, unread))))
    rest = replace(whole, throttles=part.throttles, ledger=part.ledger)
    _, reached = carried_out(settings, step(settings, state, replace(later, snapshot=rest)))
    assert reached.throttles == expected.throttles


def test_only_the_cycle_after_an_idle_one_accepts_a_partial_snapshot() -> None:
    settings = PlannerSettings(builders.limits())
    idle = Snapshot(1, frozenset({1, 2}))
    moving = replace(idle, reassignments=(builders.reassignment("a", {0: (1, (1,), (2,), ())}),))
    observation = CycleObservation(NOON, 100.0, True, SOURCES, idle)

    def accepts(snapshot: Snapshot) -> bool:
        return step(settings, START, replace(observation, snapshot=snapshot)).state.term.accepts_partial

    assert not START.term.accepts_partial and accepts(idle)
    assert not accepts(moving) and not accepts(without(moving, {"a"}))
    assert not accepts(replace(idle, problems=(Problem("/brokers/topics/b", "it cannot be parsed", "b"),)))


def test_the_cycle_after_a_removal_accepts_no_partial_snapshot() -> None:
    """A reassignment ended and the next one began while its throttles were removed.

    Discovery handed out a part that it had read before the removal. So the cycle kept rates that were gone, or was
    refused because of them.
    """
    settings = PlannerSettings(builders.limits())
    idle = Snapshot(1, frozenset({1, 2}))
    moving = replace(idle, reassignments=(builders.reassignment("a", {0: (1, (1,), (2,), ())}),))
    observation = CycleObservation(NOON, 100.0, True, SOURCES, moving)
    state, throttled = carried_out(settings, step(settings, START, observation))
    removal = step(settings, state, replace(observation, snapshot=replace(throttled, reassignments=())))
    assert removal.changes and not removal.state.term.accepts_partial
    state, unthrottled = carried_out(settings, removal)
    following = step(settings, state, replace(observation, snapshot=unthrottled))
    assert not following.changes and following.state.term.accepts_partial


def test_a_partial_snapshot_is_one_finding() -> None:
    observation = CycleObservation(NOON, 100.0, True, SOURCES, Snapshot(1, frozenset({1})).with_unread(TOPICS, 900_000))
    decision = step(PlannerSettings(builders.limits()), START, observation)
    assert [finding.partition(";")[0] for finding in decision.findings if TOPICS in finding] == [
        f"{TOPICS}: 900000 more partitions in reassignment are still being read"
    ]
