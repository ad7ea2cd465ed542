"""The client quotas of a cycle: sets those of operators and rules, and restores earlier values.

A quota is owned like a rate: the ledger has the value before ours, and a value that another party sets is not changed
when ours ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey, ReplicaRole, ResourceType
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cycle.decision import Contribution, PurgeQuota, WakeUp
from autothrottle.core.cycle.input import PlannerSettings, StepInput
from autothrottle.core.cycle.throttling import ThrottleDecision
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import KnownSources, unreadable_entries
from autothrottle.core.policy.interface import Limits
from autothrottle.core.quotas.keys import (
    QuotaKey,
    QuotaState,
    TemporaryQuotas,
    entity_of_path,
    format_value,
    parse_value,
)
from autothrottle.core.quotas.yield_state import QuotaControlState, YieldState
from autothrottle.core.quotas.yielding import MAX_LIMITED, QUOTA_WINDOW, YieldRules, YieldTarget
from autothrottle.core.records import Basis, Decision, Outcome, OutcomeStatus
from autothrottle.core.texts import excerpt
from autothrottle.core.throttles.changes import Change, ChangeSet, change_of, recorded_first
from autothrottle.core.throttles.ownership import desired_rate, lost_finding, with_lost_records
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.units import MEGABYTE, BytesPerSecond

DesiredQuotas = Mapping[ConfigResource, Mapping[str, str]]
"""Quota entity -> key -> text of its value."""

_NOTHING: Mapping[str, str] = {}

_SHOWN = 5
"""Number of rules or brokers that a finding names."""

_SETTLED_WINDOWS = 3
"""Windows without a step after which the quotas must show an effect."""

_ROLE = {QuotaKey.PRODUCER_BYTE_RATE: ReplicaRole.FOLLOWER, QuotaKey.CONSUMER_BYTE_RATE: ReplicaRole.LEADER}
"""Key -> the direction of a broker's link that it limits: producers send to brokers as leaders send to followers."""


@dataclass(frozen=True, slots=True)
class YieldDecision:
    """What the rules set in a cycle."""

    state: YieldState
    desired: DesiredQuotas = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    """One sentence each."""
    wake_ups: tuple[WakeUp, ...] = ()


def yielding(previous: YieldState, cycle: StepInput, throttles: ThrottleDecision, state: QuotaState) -> YieldDecision:
    """Return the quotas that the rules set now. Those that are absent are restored.

    Args:
        previous: what the term remembers.
        cycle: with its sources, and the clients if they were read.
        throttles: with the plan and the loads of the cycle.
        state: the quotas of the term's targets, and the ledger.
    """
    rules, clock, is_recovering = cycle.sources.rules, cycle.clock, cycle.is_recovering
    if is_recovering is False or not rules:
        return YieldDecision(YieldState())
    requested = previous.requested(rules)
    yields = previous.with_reading(cycle.observation.clients, clock).with_ledger_resources(state.ledger)
    inputs = _inputs(rules, previous, cycle, throttles, state)
    if is_recovering is None or yields.stepped is None:
        # The first cycle of a recovery or a term does not wait for the clients: its throttles are urgent.
        desired = _desired(yields.targets(rules), frozenset(), inputs).quotas
        if is_recovering is None:
            return YieldDecision(yields, desired)
        loads = {} if desired else client_loads(throttles.plan, throttles.limits)
        begun = replace(yields, stepped=clock, stepped_at=cycle.at, loads_before=loads)
        return YieldDecision(begun, desired, wake_ups=(WakeUp("clients yield to the recovery"),))
    desired_quotas = _desired(yields.targets(rules), frozenset(target.resource for target in requested), inputs)
    yields = replace(yields, operator_keys=inputs.operator_keys)
    if desired_quotas.has_stepped:
        yields = replace(yields, stepped=clock, stepped_at=cycle.at)
    findings = (*_findings(yields, rules, desired_quotas.waiting), *_plug_in_findings(yields, throttles, clock))
    # A first quota that was refused is pending without a step to wait for.
    since = yields.stepped if desired_quotas.is_pending and not inputs.is_step and yields.stepped is not None else clock
    next_step = since + QUOTA_WINDOW.total_seconds()
    fresh_until = None if desired_quotas.is_unread else next_step
    yields = replace(yields, fresh_until=fresh_until, rules=rules, findings=findings)
    return YieldDecision(yields, desired_quotas.quotas, findings, _wake_ups(desired_quotas, next_step - clock))


@dataclass(frozen=True)
class _Inputs:
    """What the quotas of all entities depend on."""

    state: QuotaState
    loads: Loads
    operator_keys: frozenset[tuple[ConfigResource, QuotaKey]]
    """Keys that an operator has set for a time, which rules leave alone."""
    released: frozenset[tuple[ConfigResource, QuotaKey]]
    """Those of the last cycle that are no longer set."""
    limits: Mapping[str, BytesPerSecond | None]
    """Rule -> its limit; None: it is a share of an unknown capacity."""
    is_step: bool
    """Whether a window has passed since the last step."""
    direction: Direction

    @cached_property
    def used(self) -> Mapping[QuotaKey, BytesPerSecond | None]:
        """Key -> the most that a client can use now; None: unknown."""
        return {key: most_used(self.loads, role) for key, role in _ROLE.items()}


def _inputs(
    rules: YieldRules, yields: YieldState, cycle: StepInput, throttles: ThrottleDecision, state: QuotaState
) -> _Inputs:
    has_share, clock = any(rule.at_most_bytes_per_second is None for rule in rules.values()), cycle.clock
    capacity = smallest_capacity(throttles.loads) if has_share else None
    temporary = [
        (e.resource, quota) for e, quota in (cycle.sources.quotas or {}).items() if not quota.end(cycle.at, True)
    ]
    operator_keys = frozenset((resource, key) for resource, quota in temporary for key in quota.values)
    return _Inputs(
        state=state,
        loads=throttles.loads,
        operator_keys=operator_keys,
        released=yields.operator_keys - operator_keys,
        limits={name: rule.limit(capacity) for name, rule in rules.items()},
        is_step=yields.stepped is not None and clock - yields.stepped >= QUOTA_WINDOW.total_seconds(),
        direction=direction(throttles.plan, throttles.loads, throttles.limits, yields.stepped_at or cycle.at),
    )


@dataclass(slots=True)
class _Desired:
    """The quotas of all entities, collected one by one."""

    quotas: dict[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    has_stepped: bool = False
    is_pending: bool = False
    """Whether a quota steps at the end of the window."""
    is_unread: bool = False
    """Whether the quotas of an entity were not read, so that it waits for the next cycle."""
    waiting: set[str] = field(default_factory=set)
    """Rules that wait for the capacity of the brokers."""


def _desired(targets: Iterable[YieldTarget], resources_read: Collection[ConfigResource], inputs: _Inputs) -> _Desired:
    """Return the quotas of the entities. One whose quotas were not read keeps the values in the ledger."""
    desired = _Desired()
    for target in targets:
        is_read = target.resource in resources_read
        keys = (key for key in target.keys if (target.resource, key) not in inputs.operator_keys)
        quotas = {key: _quota(target, key, is_read, inputs, desired) for key in keys}
        values = {str(key): format_value(key, value) for key, value in quotas.items() if value is not None}
        if values:
            desired.quotas[target.resource] = values
    return desired


def _quota(
    target: YieldTarget, key: QuotaKey, is_read: bool, inputs: _Inputs, desired: _Desired
) -> BytesPerSecond | None:
    """Return the quota to write, below the one before. None: write none, and restore the one before."""
    configs, entry = inputs.state.configs, inputs.state.ledger.get(target.resource)
    config = configs.get(target.resource, _NOTHING)
    current, ledger_key = config.get(key), entry.records(config).get(key) if entry else None
    if ledger_key is None and not is_read:
        desired.is_unread = True
        return None
    original, written = (current, None) if ledger_key is None else (ledger_key.before, _written(ledger_key, current))
    rules = [
        match.rule for match in target.rules if key in match.rule.keys and not (match.only_own and original is None)
    ]
    limits = [(limit, rule.floor_bytes_per_second) for rule in rules if (limit := inputs.limits[rule.name]) is not None]
    if len(limits) < len(rules):
        desired.waiting.update(rule.name for rule in rules if inputs.limits[rule.name] is None)
    if not is_read or not limits:
        return written if rules else None
    ceiling, (limit, floor) = _ceiling(target, key, original, configs), min(limits)
    top = limit if ceiling is None else min(limit, ceiling)
    if written is not None and (target.resource, key) in inputs.released:
        written = max(written, top)  # an operator's lower quota must not hold the client down after its end
    value, may_step = (written, True) if written is not None else _start(limit, ceiling, inputs.used[key])
    following = _next(value, top, min(floor, top), inputs.direction)
    if following != value and may_step and inputs.is_step:
        value, desired.has_stepped = following, True
        desired.is_pending |= value > top
    else:
        desired.is_pending |= following != value
    value = max(value, floor)
    return value if ceiling is None or value < ceiling else None


def _start(
    limit: BytesPerSecond, ceiling: BytesPerSecond | None, used: BytesPerSecond | None
) -> tuple[BytesPerSecond, bool]:
    """Return the first quota, and whether it is in force already, so that it can be halved.

    Args:
        limit: the limit of the rule.
        ceiling: the quota before; None: unlimited.
        used: the most that a client can use now; None: unknown.
    """
    if used is None:
        return (limit, False) if ceiling is None else (ceiling, True)
    most = max(used, limit)
    return (most, False) if ceiling is None or most < ceiling else (ceiling, True)


def _next(value: BytesPerSecond, top: BytesPerSecond, floor: BytesPerSecond, direction: Direction) -> BytesPerSecond:
    """Return the quota after one step: half of it, or a quarter more.

    >>> _next(70, 20, 5, Direction.KEEP), _next(20, 20, 5, Direction.DOWN), _next(10, 20, 5, Direction.UP)
    (35, 10, 12)
    """
    half = (value + 1) // 2
    if value > top:
        return max(half, top)
    if direction is Direction.DOWN:
        return max(half, floor)
    return min(value + max(value // 4, 1), top) if direction is Direction.UP else value


def _written(ledger_key: LedgerKey, current: str | None) -> BytesPerSecond | None:
    """Return the value that we wrote last, also if another party has changed it; None: we wrote none."""
    return _rate(current if ledger_key.is_ours(current) else ledger_key.written)


def _ceiling(target: YieldTarget, key: QuotaKey, original: str | None, configs: DesiredQuotas) -> BytesPerSecond | None:
    """Return the quota that applies without ours, bytes/s; None: unlimited."""
    if (rate := _rate(original)) is not None:
        return rate
    for resource in target.fallbacks:
        if resource in configs and (rate := _rate(configs[resource].get(key))) is not None:
            return rate
    return None


def _rate(text: str | None) -> BytesPerSecond | None:
    """Return the rate of a quota, bytes/s; None: it is not set, or another party set a text that Kafka ignores."""
    try:
        return None if text is None else int(parse_value(QuotaKey.PRODUCER_BYTE_RATE, text))
    except Invalid:
        return None


def _wake_ups(desired: _Desired, seconds_to_step: float) -> tuple[WakeUp, ...]:
    wake_ups = [WakeUp("more clients yield to the recovery")] if desired.is_unread else []
    if desired.is_pending:
        wake_ups.append(WakeUp("the next step of clients that yield", timedelta(seconds=max(seconds_to_step, 0))))
    return tuple(wake_ups)


def _findings(yields: YieldState, rules: YieldRules, waiting: Collection[str]) -> tuple[str, ...]:
    findings = [
        f"yield rule {name} waits for metrics: its limit is a share of an unknown capacity" for name in sorted(waiting)
    ]
    if yields.error:
        findings.append(
            f"the clients cannot be read; yield rules limit only clients that are already known: {yields.error}"
        )
    findings += yields.reading.warnings
    matched = yields.matched(rules)
    if len(matched) > MAX_LIMITED:
        limited = frozenset(yields.targets(rules))
        left_out = [target for target in matched if target not in limited]
        names = excerpt(sorted({match.rule.name for target in left_out for match in target.rules}), _SHOWN)
        findings.append(
            f"yield rules {names} match too many clients: {len(left_out)} of them are not limited, since rules "
            f"limit at most {MAX_LIMITED}; give patterns that match fewer"
        )
    return tuple(findings)


def _plug_in_findings(yields: YieldState, throttles: ThrottleDecision, clock: float) -> tuple[str, ...]:
    """Report plug-ins for quotas (KIP-257), and whether the client load fell once the quotas stayed for some time."""
    plug_ins = yields.reading.plug_ins
    if not plug_ins or yields.stepped is None or yields.stepped_at is None:
        return ()
    names = excerpt(sorted(set(plug_ins.values())), _SHOWN)
    findings = [
        f"brokers {excerpt(sorted(plug_ins), _SHOWN)} use the plug-in {names} for client quotas "
        "(client.quota.callback.class); Kafka's quotas may have no effect there"
    ]
    if clock - yields.stepped >= _SETTLED_WINDOWS * QUOTA_WINDOW.total_seconds():
        loads = measured_since(throttles.plan, throttles.loads, throttles.limits, yields.stepped_at)
        if (unchanged := unchanged_load(yields.loads_before, loads)) is not None:
            old_load, new_load = (f"{load / MEGABYTE:.0f}" for load in unchanged)
            findings.append(
                f"the plug-in {names} seems to ignore Kafka's quotas: clients had {old_load} MB/s on the brokers of "
                f"the recovery before their quotas, and have {new_load} MB/s now; limit these clients in the plug-in"
            )
    return tuple(findings)


TARGET_ROOM = 0.5
"""Share of a link that clients should leave to the recovery. With less, clients yield more."""

ENOUGH_ROOM = 1.5 * TARGET_ROOM
"""With more room than this, clients get more. Between the two their quotas stay, so that they do not oscillate: a raise
by a quarter after a halving cannot take more than the room that the halving made."""

LEAST_FALL = 0.1
"""Smallest fall of the client load, as a share of it, that shows an effect of the quotas."""


class Direction(Enum):
    """Which way the quotas below their limits move."""

    DOWN = "down"
    KEEP = "keep"
    UP = "up"


def direction(plan: Plan, loads: Loads, limits: Limits | None, since: datetime) -> Direction:
    """Return which way the quotas move; KEEP without a measurement of only the time after the last step.

    Args:
        plan: the plan of the cycle.
        loads: the loads that the plan is based on.
        limits: the operator's limits that the plan is based on; None: no rates were decided.
        since: time of the last step, UTC.
    """
    clients = measured_since(plan, loads, limits, since)
    room = min((1 - load / loads.brokers[b].capacity.of(role) for (b, role), load in clients.items()), default=None)
    if room is None or TARGET_ROOM <= room <= ENOUGH_ROOM:
        return Direction.KEEP
    return Direction.DOWN if room < TARGET_ROOM else Direction.UP


def measured_since(
    plan: Plan, loads: Loads, limits: Limits | None, since: datetime
) -> Mapping[LinkSide, BytesPerSecond]:
    """Return the result of `client_loads`; empty if one of its measurements began before this time."""
    found = client_loads(plan, limits)
    is_new = all(b in loads.brokers and loads.brokers[b].of(role).start >= since for b, role in found)
    return found if is_new else {}


def client_loads(plan: Plan, limits: Limits | None) -> Mapping[LinkSide, BytesPerSecond]:
    """Return (broker id, role) -> client load, bytes/s, for the link sides of the recovery whose load is measured."""
    found = ((d, _client_load(d, limits)) for d in plan.decisions) if limits is not None else ()
    return {(d.broker_id, d.role): load for d, load in found if load is not None}


def _client_load(decision: Decision, limits: Limits | None) -> BytesPerSecond | None:
    if decision.client_bytes_per_second is not None or limits is None:
        return decision.client_bytes_per_second
    capacity, headroom = decision.capacity_bytes_per_second, decision.headroom_bytes_per_second
    if headroom is None or capacity is None or decision.basis is Basis.STATIC:
        return None
    # The original's formula: the headroom is the operator's share of what clients leave.
    return max(capacity - int(headroom / limits.max_ratio[decision.role]), 0)


def unchanged_load(
    before: Mapping[LinkSide, BytesPerSecond], now: Mapping[LinkSide, BytesPerSecond]
) -> tuple[BytesPerSecond, BytesPerSecond] | None:
    """Return the client load before and now on the same link sides, if it has not fallen; None: it has, or is unknown.

    Args:
        before: when the recovery began.
        now: after the quotas have stayed for some windows.
    """
    sides = before.keys() & now.keys()
    first, last = sum(before[side] for side in sides), sum(now[side] for side in sides)
    return (first, last) if first > 0 and last > (1 - LEAST_FALL) * first else None


def most_used(loads: Loads, role: ReplicaRole) -> BytesPerSecond | None:
    """Return the highest traffic of any broker in one direction, bytes/s: no client can use more; None: unknown."""
    return max((load.of(role).rate for load in loads.brokers.values()), default=None)


def smallest_capacity(loads: Loads) -> BytesPerSecond | None:
    """Return the capacity of the smallest link side of any broker, bytes/s; None: unknown."""
    return min((load.capacity.of(role) for load in loads.brokers.values() for role in ReplicaRole), default=None)


def quota_changes(
    temporary: TemporaryQuotas,
    state: QuotaState,
    at: datetime,
    is_recovering: bool | None,
    term: int,
    cycle: int,
    yielding: DesiredQuotas | None = None,
    hold: bool = False,
) -> ChangeSet:
    """Return the edits that set the quotas in force, and restore all others that are in the ledger.

    Args:
        temporary: all temporary quotas.
        state: the current quotas of their entities, and the ledger.
        at: UTC.
        is_recovering: whether a reassignment or a catch-up runs; None: unknown.
        term: the term that writes, for the ledger.
        cycle: the cycle that writes, for the ledger.
        yielding: the quotas of clients that yield to a recovery; a temporary quota beats them. None: no client does.
        hold: whether nothing may be restored, because an unreadable rule may need it.
    """
    in_force = {
        entity.resource: {str(key): format_value(key, value) for key, value in quota.values.items()}
        for entity, quota in temporary.items()
        if not quota.end(at, is_recovering)
    }
    yielded = yielding or {}
    desired = {**yielded, **{r: {**yielded.get(r, {}), **values} for r, values in in_force.items()}}
    changes: list[Change] = []
    refused: list[Outcome] = []
    findings: list[str] = []
    for resource in sorted(
        desired.keys() | state.ledger.keys() | state.unreadable.keys(), key=lambda resource: resource.path
    ):
        if problem := state.unreadable.get(resource):
            refused.append(Outcome(resource, OutcomeStatus.REFUSED, problem))
            continue
        current, entry = state.configs.get(resource, {}), state.ledger.get(resource)
        ledger_keys, values = entry.keys if entry else {}, desired.get(resource, {})
        if ledger_keys and _is_in_force(values, current, ledger_keys):
            continue
        records = entry.records(current) if entry else {}
        keys = {
            key: desired_rate(values.get(key), current.get(key), records.get(key), hold=hold)
            for key in sorted({*values, *ledger_keys})
        }
        findings += [f"{resource}, {key}: {quota.finding}" for key, quota in keys.items() if quota.finding]
        change = change_of(resource, keys, current, entry, at, term, cycle)
        changes += [change] if change is not None else []
    return ChangeSet(tuple(changes), tuple(refused), tuple(findings))


def _is_in_force(values: Mapping[str, str], current: Mapping[str, str], ledger_keys: Mapping[str, LedgerKey]) -> bool:
    """Return whether all keys are as we wrote them: the usual case, detected without deciding each key."""
    return values.keys() == ledger_keys.keys() and all(
        current.get(key) == text == record.written and record.intent is None and not record.late
        for key, text in values.items()
        for record in (ledger_keys[key],)
    )


Ledger = Mapping[ConfigResource, LedgerEntry]


def quotas_needed(
    state: QuotaControlState, ledger: Ledger, sources: KnownSources, clock: float
) -> frozenset[ConfigResource] | None:
    """Return the quota entities whose state a cycle needs, beside those in the ledger; None: it needs no quotas.

    Args:
        state: what the term remembers.
        ledger: of throttles and quotas.
        sources: those that apply in the cycle.
        clock: monotonic time in seconds.
    """
    if sources.quotas is None or sources.rules is None or sources.pause is not None:
        return None
    if not sources.quotas and state.yields.are_quotas_fresh(sources.rules, clock):
        return None
    targets = state.yields.requested(sources.rules)
    if not (sources.quotas or targets or state.may_own_quotas):
        return None
    resources = {entity.resource for entity in sources.quotas}
    resources |= {resource for resource in ledger if resource.type is ResourceType.QUOTA}
    return frozenset(resources.union(*((target.resource, *target.fallbacks) for target in targets)))


def control_quotas(
    settings: PlannerSettings, state: QuotaControlState, cycle: StepInput, throttles: ThrottleDecision
) -> tuple[QuotaControlState, Ledger, Contribution]:
    """Return the changes of client quotas, the end of those that are over, and cycles for the next expiry and step.

    Nothing changes while paused, and until the quotas and their state can be read. The second value is the ledger with
    the quotas as read.
    """
    sources, reading = cycle.sources, cycle.observation.quotas
    if sources.quotas is None or sources.rules is None or sources.pause is not None:
        return state, cycle.ledger, Contribution()
    if reading is None:
        is_due = quotas_needed(state, cycle.ledger, sources, cycle.clock) is not None
        if is_due or state.yields.are_quotas_fresh(sources.rules, cycle.clock):
            return _without_reading(settings, state, cycle)
        if not (state.may_own_quotas or sources.rules or unreadable_entries(sources.quotas)):
            return QuotaControlState(may_own_quotas=False), cycle.ledger, Contribution()
        reading = QuotaState()
    if not isinstance(reading, QuotaState):
        yields = state.yields.with_reading(cycle.observation.clients, cycle.clock)
        finding = f"client quotas cannot be read: {reading}"
        return replace(state, yields=yields), cycle.ledger, Contribution(findings=(finding,))
    return _controlled(settings, state, cycle, throttles, reading, sources.quotas, sources.rules)


def _controlled(
    settings: PlannerSettings,
    state: QuotaControlState,
    cycle: StepInput,
    throttles: ThrottleDecision,
    reading: QuotaState,
    temporary: TemporaryQuotas,
    rules: YieldRules,
) -> tuple[QuotaControlState, Ledger, Contribution]:
    entries = {resource: entry for resource, entry in cycle.ledger.items() if resource.type is ResourceType.QUOTA}
    ledger, lost = with_lost_records(reading.ledger, entries, reading.configs, reading.unreadable)
    unreadable = {**reading.unreadable, **_unreadable_quotas(temporary)}
    current = replace(reading, ledger=ledger, unreadable=unreadable)
    hold = not unreadable_entries(rules).keys() <= rules.keys()
    yields = yielding(state.yields, cycle, throttles, current)
    change_set = quota_changes(
        temporary, current, cycle.at, cycle.is_recovering, cycle.fence, cycle.number, yields.desired, hold
    )
    wake_ups = (*_expiries(temporary, cycle), *(() if settings.shadow else yields.wake_ups))
    contribution = Contribution(
        changes=recorded_first(change_set.changes, ledger, lost),
        refused=change_set.refused,
        actions=() if settings.shadow else _purges(temporary, cycle),
        findings=(*map(lost_finding, sorted(lost)), *change_set.findings, *yields.findings),
        wake_ups=wake_ups,
    )
    throttle_entries = {r: entry for r, entry in cycle.ledger.items() if r.type is not ResourceType.QUOTA}
    return _next_state(current, change_set, temporary, yields), {**throttle_entries, **ledger}, contribution


def _next_state(
    reading: QuotaState, change_set: ChangeSet, temporary: TemporaryQuotas, yields: YieldDecision
) -> QuotaControlState:
    may_own_quotas = bool(reading.ledger or reading.unreadable or change_set.changes)
    # A change may be refused, and a temporary quota may be removed, so the next cycle reads the quotas again.
    is_stale = bool(change_set.changes or temporary)
    return QuotaControlState(may_own_quotas, replace(yields.state, fresh_until=None) if is_stale else yields.state)


def _expiries(temporary: TemporaryQuotas, cycle: StepInput) -> tuple[WakeUp, ...]:
    """Return the cycle for the next expiry of a quota in force."""
    times = [
        quota.expire_time
        for quota in temporary.values()
        if quota.expire_time is not None and not quota.end(cycle.at, cycle.is_recovering)
    ]
    return (WakeUp("a client quota expires", min(times) - cycle.at),) if times else ()


def _purges(temporary: TemporaryQuotas, cycle: StepInput) -> tuple[PurgeQuota, ...]:
    ends = ((e, quota, quota.end(cycle.at, cycle.is_recovering)) for e, quota in temporary.items())
    return tuple(PurgeQuota(quota, reason, frozenset({e.resource})) for e, quota, reason in ends if reason)


def _without_reading(
    settings: PlannerSettings, state: QuotaControlState, cycle: StepInput
) -> tuple[QuotaControlState, Ledger, Contribution]:
    """Change no quota; at the end of a recovery, request a cycle that reads and restores them."""
    if cycle.is_recovering is not False or state.yields.stepped is None:
        return state, cycle.ledger, Contribution(findings=state.yields.findings)
    wake_ups = () if settings.shadow else (WakeUp("clients no longer yield"),)
    due = replace(state, yields=replace(state.yields, fresh_until=None))
    return due, cycle.ledger, Contribution(wake_ups=wake_ups)


def _unreadable_quotas(quotas: TemporaryQuotas) -> dict[ConfigResource, str]:
    """The entities whose temporary quota cannot be read and has no last known value, and why."""
    return {
        entity.resource: problem
        for path, problem in unreadable_entries(quotas).items()
        if (entity := entity_of_path(path)) is not None and entity not in quotas
    }
