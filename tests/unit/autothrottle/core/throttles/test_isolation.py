"""One resource with a hostile value changes no decision about another resource."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autothrottle.adapters.zookeeper.codec import parse_config, parse_ledger_entry, parse_override
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    ResourceType,
    limiting_rate,
    parse_replicas,
)
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Problem, Snapshot, TopicReassignment
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.input import ControllerState, CycleObservation, KnownLoads, PlannerSettings
from autothrottle.core.cycle.step import step
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import KnownSources, Overrides, SourceReadings, StoredOverride, adopted
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.records import Decision
from autothrottle.core.throttles.changes import Change
from autothrottle.core.throttles.plan import Hold, hold
from tests import builders
from tests.builders import NOON, mb
from tests.unit.autothrottle.core.cycle.test_step import BROKERS, START, carried_out, observations, policies

HOSTILE_NUMBERS = ("9" * 5000, "-7", str(2**40), str(2**63), str(2**70), "7_7", "\u0667", "nan", "1e400", "", " ", "x")
HOSTILE_TEXTS = ("\ud800", "\x00", "*,*", "0:1:2", "9" * 5000 + ":1", f"0:{2**31}", "-1:2", *HOSTILE_NUMBERS)
HOSTILE_JSON: tuple[object, ...] = (None, 5, True, [], {}, 2**70, -1, float("nan"), *HOSTILE_TEXTS)

hostile = st.sampled_from(HOSTILE_JSON)
kinds = st.sampled_from(("config", "ledger", "override", "load"))


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def second_cycle(observation: CycleObservation, settings: PlannerSettings) -> tuple[ControllerState, CycleObservation]:
    """Carry out a first cycle; return the state after it, and the observation of the next one at a higher load."""
    state, after = carried_out(settings, step(settings, START, observation))
    assert observation.loads is not None
    at = NOON + timedelta(seconds=60)
    doubled = {
        b: builders.load(b, 2 * load.outbound.rate, 2 * load.inbound.rate, end=at)
        for b, load in observation.loads.loads.brokers.items()
    }
    loads = KnownLoads(builders.loads(*doubled.values()), 160.0)
    return state, replace(observation, at=at, clock=160.0, snapshot=after, loads=loads)


def snapshot_of(observation: CycleObservation) -> Snapshot:
    assert isinstance(observation.snapshot, Snapshot)
    return observation.snapshot


def unreadable_config(observation: CycleObservation, resource: ConfigResource) -> CycleObservation:
    """The same observation with an unreadable config or ledger entry, whose last known value applies."""
    problem = {resource: Problem(f"/config/{resource}", "it cannot be parsed")}
    return replace(observation, snapshot=replace(snapshot_of(observation), unreadable_configs=problem))


def hostile_config(observation: CycleObservation, resource: ConfigResource, value: object) -> CycleObservation:
    is_broker = resource.type is ResourceType.BROKER
    keys = (LEADER_RATE, FOLLOWER_RATE) if is_broker else (LEADER_REPLICAS, FOLLOWER_REPLICAS)
    try:
        config = parse_config(encoded({"config": dict.fromkeys(keys, value)}))
    except Invalid:
        return unreadable_config(observation, resource)
    assume(not any(is_broker and limiting_rate(text) is not None for text in config.values()))
    snapshot = snapshot_of(observation)
    return replace(observation, snapshot=replace(snapshot, throttles={**snapshot.throttles, resource: config}))


def hostile_ledger(observation: CycleObservation, resource: ConfigResource, value: object) -> CycleObservation:
    key = LEADER_RATE if resource.type is ResourceType.BROKER else LEADER_REPLICAS
    record = {"before": "5", "written": None, "intent": value}
    try:
        entry = parse_ledger_entry(encoded({"keys": {key: record}, "term": 7, "cycle": value}))
    except Invalid:
        return unreadable_config(observation, resource)
    snapshot = snapshot_of(observation)
    return replace(observation, snapshot=replace(snapshot, ledger={**snapshot.ledger, resource: entry}))


def unreadable_override(observation: CycleObservation, broker_id: int) -> CycleObservation:
    overrides = observation.sources.latest.overrides
    assert overrides is not None
    brokers = {b: override for b, override in overrides.brokers.items() if b != broker_id}
    without = replace(overrides, brokers=brokers, unreadable={broker_id: "it cannot be parsed"})
    return replace(observation, sources=adopted(KnownSources(), SourceReadings(None, without, {})))


def hostile_override(observation: CycleObservation, broker_id: int, value: object) -> CycleObservation:
    try:
        override = parse_override(encoded({"rate": value, "rate_bytes_per_second": value}), 1)
    except Invalid:
        return unreadable_override(observation, broker_id)
    assume(override is None)
    return observation


def without_load(observation: CycleObservation, broker_id: int) -> CycleObservation:
    assert observation.loads is not None
    loads = observation.loads.loads
    brokers = {b: load for b, load in loads.brokers.items() if b != broker_id}
    unread = replace(loads, brokers=brokers, problems={broker_id: "the sample is not a number"})
    return replace(observation, loads=replace(observation.loads, loads=unread))


Key = ConfigResource | LinkSide


def decided(decision: CycleDecision, broker_ids: frozenset[int], topics: frozenset[str]) -> Mapping[Key, object]:
    """The rates and changes of these brokers and topics, to the byte."""
    resources = {ConfigResource.broker(b) for b in broker_ids} | {ConfigResource.topic(t) for t in topics}
    changes: dict[Key, Change | Decision] = {c.resource: c for c in decision.changes if c.resource in resources}
    rates: dict[Key, Change | Decision] = {
        (d.broker_id, d.role): d for d in decision.plan.decisions if d.broker_id in broker_ids
    }
    return {**changes, **rates}


def partners(reassignments: tuple[TopicReassignment, ...], resource: ConfigResource) -> frozenset[int]:
    """The brokers that share a flow with a broker, or that take part in a topic's reassignment."""
    found: set[int] = set()
    for topic in reassignments:
        rows = zip(topic.leaders, topic.isr, topic.adding_replicas, strict=True)
        for leader, isr, adding in rows:
            members = {leader, *isr, *adding}
            if resource == ConfigResource.topic(topic.topic) or resource in map(ConfigResource.broker, members):
                found |= members
    return frozenset(found)


@given(observations(), policies, kinds, hostile, st.integers(0, 20))
def test_a_hostile_resource_changes_no_decision_about_another(
    observation: CycleObservation, policy: AdaptivePolicy, kind: str, value: object, choice: int
) -> None:
    settings = PlannerSettings(builders.limits(), policy=policy)
    state, clean = second_cycle(observation, settings)
    resources = sorted({*snapshot_of(clean).throttles, *map(ConfigResource.broker, BROKERS)})
    if kind in ("override", "load"):
        resources = [ConfigResource.broker(b) for b in BROKERS]
    resource = resources[choice % len(resources)]
    poisoned, unreadable = {
        "config": lambda: (hostile_config(clean, resource, value), unreadable_config(clean, resource)),
        "ledger": lambda: (hostile_ledger(clean, resource, value), unreadable_config(clean, resource)),
        "override": lambda: (
            hostile_override(clean, resource.broker_id, value),
            unreadable_override(clean, resource.broker_id),
        ),
        "load": lambda: (without_load(clean, resource.broker_id),) * 2,
    }[kind]()
    decisions = [step(settings, state, observed) for observed in (poisoned, unreadable, clean)]
    assert all(decision.error is None for decision in decisions)
    brokers = frozenset(BROKERS) - ({resource.broker_id} if resource.type is ResourceType.BROKER else set())
    topics = frozenset("abcq") - {resource.name}
    hostile_result, unreadable_result, clean_result = decisions
    assert decided(hostile_result, brokers, topics) == decided(unreadable_result, brokers, topics)
    apart = brokers - partners(snapshot_of(clean).reassignments, resource)
    assert decided(hostile_result, apart, frozenset()) == decided(clean_result, apart, frozenset())


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("parse", [parse_replicas, limiting_rate])
def test_hostile_texts_are_refused_and_do_not_fail(parse: Callable[[str], object], text: str) -> None:
    """A list entry of 5,000 digits on one topic failed every cycle: `int` refuses more than 4,300 digits."""
    try:
        parse(text)
    except Invalid as error:
        assert len(str(error)) < 200


TOPIC_LISTS = {"topics/bad": {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}}
BAD_TOPIC = (Problem("/brokers/topics/bad", "it cannot be parsed", "bad"),)


@pytest.mark.parametrize(
    ("throttles", "problems", "expected"),
    [
        (TOPIC_LISTS, BAD_TOPIC, Hold(brokers=frozenset({1, 2}), topics=frozenset({"bad"}))),
        ({}, BAD_TOPIC, Hold(topics=frozenset({"bad"}))),
        ({"topics/bad": {LEADER_REPLICAS: "*"}}, BAD_TOPIC, Hold(everything=True)),
        ({"topics/bad": {LEADER_REPLICAS: "x"}}, BAD_TOPIC, Hold(everything=True)),
        ({}, (Problem("/admin/reassign_partitions", "it cannot be parsed"),), Hold(everything=True)),
    ],
)
def test_an_unreadable_topic_keeps_only_what_it_may_need(
    throttles: Mapping[str, Mapping[str, str]], problems: tuple[Problem, ...], expected: Hold
) -> None:
    """One unreadable topic kept the throttles of all brokers after the end of their reassignments."""
    snapshot = replace(builders.snapshot(throttles=throttles), problems=problems)
    assert hold(snapshot, Overrides(), keep_throttles=False) == expected


def test_throttles_of_a_finished_reassignment_go_while_another_topic_is_unreadable() -> None:
    settings = PlannerSettings(builders.limits(), policy=HeadroomPolicy())
    moving = (
        builders.reassignment("good", {0: (1, (1,), (2,), ())}),
        builders.reassignment("bad", {0: (3, (3,), (4,), ())}),
    )
    observation = CycleObservation(
        at=NOON,
        clock=100.0,
        scheduled=True,
        sources=adopted(KnownSources(), SourceReadings(None, Overrides(), {})),
        snapshot=builders.snapshot(*moving, brokers=BROKERS),
        loads=KnownLoads(builders.loads(*map(builders.load, BROKERS)), 100.0),
    )
    state, after = carried_out(settings, step(settings, START, observation))
    ended = replace(after, reassignments=(), problems=BAD_TOPIC)
    _, after = carried_out(settings, step(settings, state, replace(observation, snapshot=ended)))
    assert sorted(map(str, after.throttles)) == ["brokers/3", "brokers/4", "topics/bad"]


def test_a_broker_with_an_unreadable_override_keeps_its_rates_and_entries_alone() -> None:
    settings = PlannerSettings(builders.limits(), policy=HeadroomPolicy())
    replicas = {1: {"t": (0,)}, 2: {"t": (1,)}}
    overrides = Overrides(None, {1: StoredOverride(mb(5), False, 1), 2: StoredOverride(mb(5), False, 1)})
    observation = CycleObservation(
        at=NOON,
        clock=100.0,
        scheduled=True,
        sources=adopted(KnownSources(), SourceReadings(None, overrides, {})),
        snapshot=replace(builders.snapshot(brokers=BROKERS), replicas=replicas),
    )
    _, after = carried_out(settings, step(settings, START, observation))
    assert after.throttles[ConfigResource.topic("t")] == {FOLLOWER_REPLICAS: "0:1,1:2"}
    unread = adopted(
        KnownSources(), SourceReadings(None, Overrides(unreadable={1: "/overrides/1: it cannot be parsed"}), {})
    )
    _, after = carried_out(settings, step(settings, START, replace(observation, snapshot=after, sources=unread)))
    assert after.throttles[ConfigResource.topic("t")] == {FOLLOWER_REPLICAS: "0:1"}
    assert ConfigResource.broker(1) in after.throttles and ConfigResource.broker(2) not in after.throttles
