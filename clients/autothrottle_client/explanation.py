"""Why a broker's throttles have their rates, in words and numbers, for the page and `throttlectl explain`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.records import Basis, Cycle, Decision, PauseMode, Reason, Throttle
from autothrottle.core.texts import capitalized
from autothrottle_client.model import ClusterState
from autothrottle_client.overview import (
    client_load,
    failure_sentences,
    override_effect_in,
    reason_words,
    rise_of,
    unwritten_words,
    why_undecided,
)
from autothrottle_client.tables import catch_up_words, override_words
from autothrottle_client.texts import about_rate, duration

_MEASURED_BY = {
    Basis.GROWTH: "measured, then updated to the time of the cycle by the growth of logs",
    Basis.COUNTED: "the measured traffic without the replication that log sizes show",
    Basis.GUESSED: "the measured traffic without the throttle, since the replication was not counted",
    Basis.STATIC: "not used by the static policy",
    Basis.UNKNOWN: "measured in a way that is unknown to this version",
}
_BY_THROTTLE = "the measured traffic without the throttle of that time"


def explanation(state: ClusterState, broker_id: int) -> tuple[str, ...]:
    """Return why the throttles of a broker have their rates, one sentence per line.

    Args:
        state: the state of the cluster.
        broker_id: the broker; an unknown one has a line that says so.
    """
    return tuple(_lines(state, broker_id))


def _lines(state: ClusterState, broker_id: int) -> Iterator[str]:
    cycle = state.last_cycle
    yield from _pause(state)
    if cycle is None:
        yield "No cycle has run yet, so nothing is decided."
    elif cycle.error:
        yield f"The last cycle failed, and the throttles stay as they are: {cycle.error}."
    for finding in cycle.findings if cycle else ():
        if finding.startswith(f"broker {broker_id} "):
            yield f"{capitalized(finding)}."
    decisions = [decision for decision in cycle.decisions if decision.broker_id == broker_id] if cycle else []
    throttled = {throttle_broker_id for throttle_broker_id, _ in state.current_throttles}
    if cycle is not None and not decisions and not cycle.error and broker_id not in throttled:
        yield _without_decision(cycle, broker_id)
    throttles = dict(state.current_throttles)
    if cycle is not None:
        for decision in decisions:
            yield from _decision(cycle, decision, throttles.pop((broker_id, decision.role), None))
    for throttle in throttles.values():
        if throttle.broker_id == broker_id:
            rate = about_rate(throttle.rate_bytes_per_second)
            yield f"Broker {broker_id} [{throttle.role.value}] has a throttle of {rate}: {why_undecided(state)}."
    yield from (f"{sentence}." for sentence in failure_sentences({broker_id: state.failures.get(broker_id, 0)}))
    for catch_up in state.catch_ups:
        if catch_up.broker_id == broker_id:
            yield f"Catch-up under a throttle: {catch_up_words(catch_up)}."
    yield from _overrides(state, broker_id)
    if cycle is not None:
        yield from _outcomes(cycle, broker_id)
    yield from _what_would_change_it(state, decisions, broker_id)


def _pause(state: ClusterState) -> Iterator[str]:
    if state.pause is None:
        return
    effect = "restored to the earlier values" if state.pause.mode is PauseMode.CLEAR else "kept as they are"
    yield f"The planner is paused, so throttles are {effect}: {state.pause}."


def _without_decision(cycle: Cycle, broker_id: int) -> str:
    if not cycle.topics:
        return f"Broker {broker_id} has no throttle: nothing is in reassignment."
    return f"The last cycle decided nothing for broker {broker_id}: it neither sends nor receives a reassignment."


def _decision(cycle: Cycle, decision: Decision, throttle: Throttle | None) -> Iterator[str]:
    role = f"Broker {decision.broker_id} [{decision.role.value}]"
    verb = "send" if decision.role is ReplicaRole.LEADER else "receive"
    rise = rise_of(throttle)
    may = f"{role} has no throttle in Kafka"
    if throttle is not None:
        may = f"{role} may {verb} {about_rate(throttle.rate_bytes_per_second)} of replication"
    may += f" now, {rise}" if rise else ""
    unwritten = unwritten_words(cycle, decision, throttle)
    yield f"{may}{unwritten and f'; {unwritten}'}: {reason_words(decision)}."
    current = decision.current_rate_bytes_per_second
    if cycle.pause is None and current != decision.rate_bytes_per_second:
        had = "no throttle" if current is None else f"a throttle of {about_rate(current)}"
        yield f"{role} had {had} before the cycle."
    yield from _load(role, decision)
    proposed = decision.headroom_bytes_per_second
    if proposed is not None and proposed != decision.rate_bytes_per_second:
        yield f"{role}: the policy alone gives {about_rate(proposed)}."


def _load(role: str, decision: Decision) -> Iterator[str]:
    capacity, clients = decision.capacity_bytes_per_second, client_load(decision)
    if capacity is None or clients is None:
        yield f"{role}: capacity and client load are unknown, because its metrics are not usable."
        return
    yield f"{role}: the link has a capacity of {about_rate(capacity)}, and clients use {about_rate(clients)}."
    if decision.utilization_bytes_per_second is not None:
        yield f"{role}: the measured traffic is {about_rate(decision.utilization_bytes_per_second)}, with replication."
    basis = _BY_THROTTLE if decision.basis is None else _MEASURED_BY[decision.basis]
    age = decision.client_age_seconds
    old = "" if age is None else f"; the measurement ended {duration(timedelta(seconds=age))} before the cycle"
    yield f"{role}: the client load is {basis}{'; it is current' if age == 0 else old}."
    free = max(capacity - clients, 0)
    yield f"{role}: clients leave {about_rate(free)} free."


def _overrides(state: ClusterState, broker_id: int) -> Iterator[str]:
    has_own = any(override.broker_id == broker_id for override in state.overrides)
    for override in state.overrides:
        effect = override_effect_in(state, override)
        acts = f"; {effect}" if effect else ""
        if override.broker_id == broker_id:
            yield f"Override of broker {broker_id}: {override_words(override)}{acts}."
        elif override.broker_id is None:
            ending = "; the broker's own override beats it" if has_own else acts
            yield f"Override of the cluster: {override_words(override)}{ending}."


def _outcomes(cycle: Cycle, broker_id: int) -> Iterator[str]:
    resource = f"brokers/{broker_id}"
    for outcome in cycle.outcomes:
        if str(outcome.resource) == resource and outcome.reason:
            yield f"The last change of the broker was refused: {outcome.reason}."
    for throttle in cycle.foreign_throttles:
        if str(throttle.resource) == resource:
            yield f"Others have set {throttle.key}={throttle.value}."
    if cycle.shadow:
        yield "The planner runs in shadow mode: it decides rates and writes none."


def _what_would_change_it(state: ClusterState, decisions: list[Decision], broker_id: int) -> Iterator[str]:
    reasons = {decision.reason for decision in decisions}
    changes = []
    if state.pause is not None:
        changes.append("resume the planner (throttlectl resume)")
    if Reason.BROKER_OVERRIDE in reasons:
        changes.append(f"remove the override (throttlectl remove --broker {broker_id})")
    if Reason.CLUSTER_OVERRIDE in reasons:
        changes.append("remove the override of the cluster (throttlectl remove)")
    if reasons & {Reason.KEPT, Reason.MINIMUM}:
        changes.append("make its metrics readable")
    if reasons & {Reason.HEADROOM, Reason.UNCHANGED, Reason.OVER_CAPACITY, Reason.STARVATION, Reason.FINISH_BY}:
        changes.append("another client load or another amount of bytes left changes the policy's rate")
    if decisions and Reason.BROKER_OVERRIDE not in reasons:
        changes.append(f"set a fixed rate (throttlectl set RATE --broker {broker_id})")
    if changes:
        yield f"What would change it: {'; '.join(changes)}."
