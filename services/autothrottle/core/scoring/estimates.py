"""Estimates of other policies and settings: the slowest link side of a logged recovery, in a closed loop.

The real policy decides in every cycle, on a measurement that contains the replication under its own earlier rates. The
client load is that of the log. What is assumed:

- Only the slowest link side is simulated, since it determines the duration; its peers copy as fast as it does.
- Replication uses the same share of its throttle as in the log. Where it used less than `_LIMITED` of the throttle,
  something else limited it, and it is never faster than it was then.
- A policy knows the client load as late as its metrics were, without the growth of logs. So estimates of deferred bytes
  are rather too high.
- A log contains only some of the possible courses of the client load. So the bytes that replication displaces are the
  larger of two: those under the logged course, and the mean over the logged loads in any order, as if a policy knew
  nothing of the load to come.
- A change of a throttle lets bursts through, which displace clients, see `_burst`.

So estimates compare settings. They cannot show the harm of loads that the log does not contain. Advice therefore also
considers loads outside the logged ones, in any order, see `load_ranges`.

The types to know are `LoggedRecovery`, `SettingEstimate` and `Advice`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, LinkSide, Progress
from autothrottle.core.cluster.snapshot import Snapshot, TopicReassignment
from autothrottle.core.policy.interface import Limits, LinkSideInput, Policy, PolicyInput, PolicyObservation
from autothrottle.core.policy.registry import POLICIES, is_installed, policy_class
from autothrottle.core.records import Reason
from autothrottle.core.scoring.score import OVERRIDES, Setting
from autothrottle.core.throttles.plan import is_small_change
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.traffic.replication import THROTTLE_WINDOW, ThrottleHistory

MOST_STRETCHES = 1000
"""Longer recoveries are resampled to so many stretches; see `resampled` for the error."""

MOST_RECOVERIES = 20
"""Number of recoveries that a report estimates, the slowest first."""

TOLERATED_DEFERRAL = 0.000001
"""Share of client bytes that a proposed setting may displace beyond the present one, in the logged recoveries."""

HIGHEST_DEFERRAL = 0.0001
"""The same share at the upper bound of its interval: 0.01 points."""

WORTH = 0.02
"""Smallest gain, as a share of the duration, for which a change is worth its risk."""

_AS_FAST = 1.01
"""Estimates within this factor of the fastest count as equal; then the fewest writes decide."""

_LIMITED = 0.9
"""Share of the throttle below which something else limits replication."""

_RESAMPLES = 1000
"""Number of times that recoveries are drawn for an interval."""

_CONFIDENCE = 0.95

_LOADS = 32
"""Number of quantiles that stand for the distribution of the client load."""

_UNSEEN = 0.1
"""Probability that another load lies farther outside the logged loads than `load_ranges` assumes."""

_DEVIATIONS = 1.64
"""Number of standard deviations up to a one-sided bound of 95 %."""

_SHORTEST_LOAD_SECONDS = 2.0
"""Client loads of a shorter time do not count."""

_BURST_SHARE = 1.0
"""Part of the bytes of a burst that displace clients, as a multiple of the clients' share of the link."""

_WINDOW_SECONDS = THROTTLE_WINDOW.total_seconds()

_BLOCK = 25
"""Number of neighbouring stretches of a resampled recovery that stay together."""

_MARK_SECONDS = 30.0
_REMEMBERED_SECONDS = 480.0
"""How long a policy knows marks, as from discovery."""
_PRIMED_SECONDS = 600.0
"""How long before the recovery the policy observes the idle link."""

_USUAL_AGES = 90.0, 30.0
"""`LoggedStretch.metric_ages` if the log lacks them."""

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_LEADER, _FOLLOWER = 1, 2


@dataclass(frozen=True, slots=True)
class LoggedStretch:
    """The slowest link side from one decision to the next; rates are bytes/s. A row of the table `timeline`."""

    seconds: float
    """Duration, >= 0."""
    capacity: float
    """> 0."""
    client: float
    """Actual mean client load, >= 0."""
    forecast: float | None
    """Client load in the interval of the metric; None: no metrics."""
    decided: float
    applied: float | None
    """Throttle in force; None: none."""
    achieved: float
    """Mean replication."""
    min_rate: float
    """The floor."""
    reason: str
    """A `Reason`."""
    metric_ages: tuple[float, float] | None = None
    """Age of the start and of the end of the metric's interval at the decision, seconds; None: unknown."""

    @property
    def is_overridden(self) -> bool:
        return self.reason in OVERRIDES

    @property
    def ceiling(self) -> float:
        """The highest replication rate: limited by something else than the throttle, if it was then."""
        throttle = self.decided if self.applied is None else self.applied
        return self.achieved if self.achieved < _LIMITED * throttle else math.inf


@dataclass(frozen=True, slots=True)
class LoggedRecovery:
    """One recovery as far as its slowest link side shows it."""

    cluster: str
    recovery_id: str
    is_outbound: bool
    """Whether the link side is the outbound one of a leader."""
    duration: float
    """Seconds."""
    amount: float
    """Bytes to copy over the link side, without growth."""
    growth: float
    """Produce rate to these partitions, bytes/s."""
    setting: Setting
    """The setting at its end."""
    interval_seconds: float | None
    """Time between two scheduled cycles; None: unknown."""
    stretches: Sequence[LoggedStretch]
    """In order, at least one; they cover the recovery."""
    scale: float = 1.0
    """Factor of the estimates, see `resampled`."""

    @property
    def capacity(self) -> float:
        """The largest capacity, bytes/s."""
        return max(stretch.capacity for stretch in self.stretches)

    @property
    def client_bytes(self) -> float:
        """Client bytes in the logged time."""
        return sum(stretch.client * stretch.seconds for stretch in self.stretches)

    @property
    def metric_seconds(self) -> float:
        """Median length of a metric's interval."""
        lengths = sorted(start - end for start, end in (s.metric_ages for s in self.stretches if s.metric_ages))
        return lengths[len(lengths) // 2] if lengths else _USUAL_AGES[0] - _USUAL_AGES[1]

    @property
    def use(self) -> float:
        """Share of the throttle that replication used where nothing else limited it, in [0, 1]."""
        pairs = [
            (s.seconds, s.decided if s.applied is None else s.applied, s.achieved)
            for s in self.stretches[1:]
            if s.ceiling == math.inf
        ]
        allowed = sum(seconds * throttle for seconds, throttle, _ in pairs)
        return min(sum(seconds * achieved for seconds, _, achieved in pairs) / allowed, 1.0) if allowed else 1.0

    @property
    def client_loads(self) -> Sequence[float]:
        """Quantiles of the client load over time, bytes/s, ascending; the last one is the highest load."""
        ordered = sorted((stretch.client, stretch.seconds) for stretch in self.stretches)
        whole, passed, loads = sum(seconds for _, seconds in ordered), 0.0, list[float]()
        for client, seconds in ordered:
            passed += seconds
            loads += [client] * (round(_LOADS * passed / whole) - len(loads) if whole else 0)
        return [*loads[: _LOADS - 1], ordered[-1][0]]


@dataclass(frozen=True, slots=True)
class SettingEstimate:
    """The estimated result of a setting for one recovery."""

    seconds: float
    """Time until everything is copied; inf: never."""
    deferred_bytes: float
    """Client bytes that replication displaces until then."""
    client_bytes: float
    """Client bytes in the logged time, whatever the setting."""
    writes: int
    """Number of throttle changes."""


def resampled(recovery: LoggedRecovery, most: int = MOST_STRETCHES) -> LoggedRecovery:
    """Return the recovery with at most about `most` stretches: blocks of neighbours, evenly spread over its time.

    The amount is reduced to the same share, and estimates are scaled back. In a test with 5,000 stretches of noisy load
    and 1,000 of them in blocks, durations differ by less than 3 %.
    """
    count = len(recovery.stretches)
    if count <= most:
        return recovery
    blocks = max(most // _BLOCK, 1)
    starts = [number * (count - _BLOCK) // max(blocks - 1, 1) for number in range(blocks)]
    chosen = [stretch for start in starts for stretch in recovery.stretches[start : start + _BLOCK]]
    whole = sum(stretch.seconds for stretch in recovery.stretches)
    scale = whole / sum(stretch.seconds for stretch in chosen)
    return replace(recovery, stretches=chosen, amount=recovery.amount / scale, scale=scale * recovery.scale)


def estimate(recovery: LoggedRecovery, setting: Setting) -> SettingEstimate:
    """Return the estimated result of a setting; pure, about 0.1 ms for each stretch.

    Overrides stay as logged. Without metrics the rate stays if the logged decision kept it; otherwise it is the floor.
    """
    loop = _Loop(recovery, setting)
    for number, stretch in enumerate(recovery.stretches):
        if number % setting.every == 0 or stretch.is_overridden or loop.rate is None:
            loop.decide(stretch)
        if loop.copy(stretch, stretch.seconds):
            break
    else:
        loop.finish(recovery.stretches[-1])
    scale = recovery.scale
    return SettingEstimate(
        scale * loop.seconds, scale * loop.deferred, scale * recovery.client_bytes, round(scale * loop.writes)
    )


def _policy(name: str) -> Policy | None:
    """Return the policy of a name; None: it decides as logged, since it is not installed or its rate is fixed."""
    policy = policy_class(name) if is_installed(name) else None
    return policy.new(0) if policy is not None and policy.follows_load else None


class _Loop:
    """The policy, the throttle and the replication of one link side; mutable, since it has thousands of steps."""

    def __init__(self, recovery: LoggedRecovery, setting: Setting) -> None:
        self._recovery, self._setting = recovery, setting
        role = ReplicaRole.LEADER if recovery.is_outbound else ReplicaRole.FOLLOWER
        self._side: LinkSide = (_LEADER if recovery.is_outbound else _FOLLOWER, role)
        self._reassignments = Snapshot(
            1, reassignments=(TopicReassignment("t", (0,), (_LEADER,), ((_LEADER,),), ((_FOLLOWER,),), ((),)),)
        ).reassignments
        self._policy = _policy(setting.policy)
        self._loads_in_any_order, self._bytes_left = recovery.client_loads, recovery.amount
        self._use = recovery.use
        self._marks: list[tuple[float, float]] = [(0.0, 0.0)]
        """(seconds, bytes copied), ascending; the last one is now. They cover the intervals of all metrics."""
        ages = [stretch.metric_ages[0] for stretch in recovery.stretches if stretch.metric_ages]
        self._kept_seconds = max([_REMEMBERED_SECONDS, *ages])
        self.seconds = self.deferred = 0.0
        self.writes = 0
        self.rate: int | None = None
        first = next((s.forecast for s in recovery.stretches if s.forecast is not None), 0.0)
        primed = _time(-_PRIMED_SECONDS)
        idle_loads = {self._side: (Utilization(round(first), primed, primed),)}
        self._history = ThrottleHistory(idle_loads=idle_loads).observe(primed, {})
        if self._policy is not None and recovery.stretches[0].forecast is not None:
            loads = self._loads(recovery.stretches[0], -_PRIMED_SECONDS)
            self._policy = self._policy.observe(PolicyObservation(_time(-_PRIMED_SECONDS), Snapshot(1), loads))

    def decide(self, stretch: LoggedStretch) -> None:
        """Set the rate of a stretch at its start."""
        rate = self._decided(stretch)
        if rate != self.rate:
            if self.rate is not None:  # before the first throttle, replication had the whole link
                self.deferred += _burst(abs(rate - self.rate), stretch)
            self.rate, self.writes = rate, self.writes + 1
        # The first observation is before the write, as in a cycle: until then it was unthrottled.
        self._history = self._history.observe(_time(self.seconds), {self._side: rate}, (self._side,))

    def _decided(self, stretch: LoggedStretch) -> int:
        if stretch.is_overridden or self._policy is None:
            return round(stretch.decided)
        if stretch.forecast is None:
            is_kept = stretch.reason == Reason.KEPT.value and self.rate is not None
            return self.rate if is_kept and self.rate is not None else round(stretch.min_rate)
        now, loads = _time(self.seconds), self._loads(stretch, self.seconds)
        snapshot = self._snapshot(now)
        self._policy = self._policy.observe(PolicyObservation(now, snapshot, loads))
        load = loads.traffic[self._side]
        side_input = LinkSideInput(self._side, load, loads.capacities[self._side], self.rate, self.rate)
        floor, ratio = round(stretch.min_rate), self._setting.max_ratio
        limits = Limits(floor, ratio, ratio, self._setting.change_threshold, 1, pause_over_capacity=floor == 0)
        policy_input = PolicyInput(snapshot, {self._side: side_input}, limits, self._history)
        proposed = self._policy.propose(policy_input)[self._side].rate
        is_unchanged = is_small_change(self.rate, proposed, self._setting.change_threshold)
        return self.rate if is_unchanged and self.rate is not None else proposed

    def _loads(self, stretch: LoggedStretch, at: float) -> Loads:
        """Return the load as a metric shows it: the logged client load, and the simulated replication."""
        oldest, newest = stretch.metric_ages or _USUAL_AGES
        start, end = at - oldest, at - newest
        replication = (self._copied(end) - self._copied(start)) / (end - start)
        used = Utilization(round((stretch.forecast or 0.0) + replication), _time(start), _time(end))
        capacity = max(round(stretch.capacity), 1)
        broker_id = self._side[0]
        return Loads({broker_id: BrokerLoad(broker_id, Capacity(capacity, capacity), used, used)})

    def _copied(self, at: float) -> float:
        """Return the bytes copied up to a time, which is not after now."""
        marks = self._marks
        if at <= marks[0][0]:
            return marks[0][1]
        for number in range(len(marks) - 1, 0, -1):
            (start, copied_at_start), (end, copied) = marks[number - 1], marks[number]
            if at >= start:
                share = min((at - start) / (end - start), 1.0) if end > start else 1.0
                return copied_at_start + share * (copied - copied_at_start)
        return marks[0][1]

    def _snapshot(self, now: datetime) -> Snapshot:
        *earlier, (_, copied) = self._marks
        oldest = self.seconds - _REMEMBERED_SECONDS
        first = next((number for number in range(len(earlier) - 1, -1, -1) if earlier[number][0] <= oldest), 0)
        marks = tuple([CopiedMark(_time(at), round(count)) for at, count in earlier[first:]])
        count = FlowProgress(round(copied), 0, max(round(self._bytes_left), 0), now, _BEGIN, marks)
        return Snapshot(
            1, reassignments=self._reassignments, progress=Progress({Flow(_LEADER, _FOLLOWER): count}, at=now)
        )

    def copy(self, stretch: LoggedStretch, seconds: float) -> bool:
        """Replicate for some seconds; return whether everything is copied, at which time the seconds end."""
        assert self.rate is not None
        carried = min(self._use * self.rate, stretch.capacity, stretch.ceiling)
        free = carried - self._recovery.growth
        is_done = self._bytes_left <= 0 or (free > 0 and free * seconds >= self._bytes_left)
        if is_done:
            seconds = max(self._bytes_left, 0.0) / free if self._bytes_left > 0 else 0.0
        self.deferred += seconds * self._excess(stretch, carried)
        self._bytes_left -= free * seconds
        self._remember(seconds, carried)
        return is_done

    def _excess(self, stretch: LoggedStretch, carried: float) -> float:
        """Return the client rate that does not fit beside replication, bytes/s."""
        room = stretch.capacity - carried
        loads = self._loads_in_any_order
        in_any_order = sum([load - room for load in loads if load > room]) / len(loads)
        return max(stretch.client - room, in_any_order, 0.0)

    def _remember(self, seconds: float, carried: float) -> None:
        """Add marks, as counts of more than a minute apart say nothing about a metric's interval."""
        parts = max(math.ceil(min(seconds, _REMEMBERED_SECONDS) / _MARK_SECONDS), 1)
        start, copied = self._marks[-1]
        self.seconds += seconds
        first = max(self.seconds - parts * _MARK_SECONDS, start)
        step = (self.seconds - first) / parts
        for part in range(1, parts + 1):
            at = self.seconds if part == parts else first + part * step
            if at > self._marks[-1][0]:
                self._marks.append((at, copied + carried * (at - start)))
        oldest = self.seconds - self._kept_seconds
        while len(self._marks) > 2 and self._marks[1][0] < oldest:
            self._marks.pop(0)

    def finish(self, last: LoggedStretch) -> None:
        """Copy the rest under the last rate and the last load."""
        assert self.rate is not None
        carried = min(self._use * self.rate, last.capacity, last.ceiling)
        free = carried - self._recovery.growth
        seconds = self._bytes_left / free if free > 0 else math.inf
        excess = self._excess(last, carried)
        self.deferred += excess * seconds if excess else 0.0
        self.seconds += seconds


def _time(seconds: float) -> datetime:
    return _BEGIN + timedelta(seconds=seconds)


def _burst(changed: float, stretch: LoggedStretch) -> float:
    """Return the client bytes that a change of the throttle displaces.

    After a raise by d, a broker lets a quota window of d through at link speed, see `throttles.changes.RampState`.
    After a lowering by d, it stops until the window has drained. Then it lets the earlier rate through again in bursts,
    for most of a minute.
    """
    return _BURST_SHARE * _WINDOW_SECONDS * changed * min(stretch.client / stretch.capacity, 1.0)


# The settings to estimate, and the advice.

_RATIOS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 0.95)
_THRESHOLDS = (0.05, 0.1, 0.2, 0.3)

GRID = tuple(
    Setting(ratio, threshold, 1, policy)
    for policy in sorted(name for name, policy in POLICIES.items() if policy.follows_load)
    for ratio in _RATIOS
    for threshold in _THRESHOLDS
)
"""The settings of the grid; with the logged settings at most 100. A longer interval is never faster."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """The estimates of one setting for several recoveries, in the same order for each setting."""

    setting: Setting
    estimates: Sequence[SettingEstimate]

    @property
    def seconds(self) -> float:
        return sum(estimate.seconds for estimate in self.estimates)

    @property
    def deferred_share(self) -> float:
        """Displaced bytes as a share of all client bytes of the logged time."""
        clients = sum(estimate.client_bytes for estimate in self.estimates)
        deferred = sum(estimate.deferred_bytes for estimate in self.estimates)
        return deferred / clients if clients else 0.0

    @property
    def writes(self) -> int:
        return sum(estimate.writes for estimate in self.estimates)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One option to change."""

    option: str
    """Option of the planner: `policy`, `max-rate`, `change-threshold` or `interval`."""
    present: str | float
    """Shares are in percent, as in the option; the interval is in seconds."""
    proposed: str | float


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change for one cluster, and what that gains."""

    cluster: str
    changes: tuple[SettingChange, ...] = ()
    """Only the options that change; empty: no change is worth it."""
    gain: float = 0.0
    """Share of the present duration that is saved, in [0, 1]."""
    gain_low: float = 0.0
    """Lower bound of the gain: recoveries are drawn again, and the model errs as much as on the present setting."""
    gain_high: float = 0.0
    seconds_saved: float = 0.0
    """Over all recoveries, of their real duration."""
    recoveries: int = 0
    """Number of recoveries that were estimated."""
    present: Estimated | None = None
    proposed: Estimated | None = None
    """None: no change is worth it."""

    @property
    def sentence(self) -> str:
        """The advice for an operator, in one sentence."""
        if not self.changes:
            return f"No change is worth it: {self.recoveries} recoveries would not be faster without harm to clients."
        changes = ", ".join(f"--{c.option} from {_text(c.present)} to {_text(c.proposed)}" for c in self.changes)
        return (
            f"Change {changes}: recoveries are {100 * self.gain:.0f} % shorter, between {100 * self.gain_low:.0f} and "
            f"{100 * self.gain_high:.0f} %."
        )


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def advice(
    recoveries: Sequence[LoggedRecovery], estimates: Mapping[Setting, Sequence[SettingEstimate]], seed: int = 0
) -> Advice:
    """Return the advice for the recoveries of one cluster.

    The fastest setting wins whose gain is at least `WORTH` even at the lower bound, and that harms clients no more than
    the present one. It may displace `TOLERATED_DEFERRAL` more in these recoveries, and `HIGHEST_DEFERRAL` more at the
    upper bound. It must be safe with the loads of other recoveries, see `is_as_safe`. Of settings within 1 % of the
    fastest, the one with the fewest changed options wins, then the one with the fewest writes.

    Args:
        recoveries: of one cluster, at least one.
        estimates: setting -> its estimate for each recovery, in the same order; contains each logged setting.
        seed: of the drawing.
    """
    cluster, count = recoveries[0].cluster, len(recoveries)
    present_setting = recoveries[-1].setting
    present = Estimated(
        present_setting, [estimates[recovery.setting][number] for number, recovery in enumerate(recoveries)]
    )
    nothing = Advice(cluster, recoveries=count, present=present)
    if not 0 < present.seconds < math.inf:
        return nothing
    allowed, ranges = present.deferred_share + TOLERATED_DEFERRAL, load_ranges(recoveries)
    draws = _draws(count, seed)
    candidates = [
        candidate
        for candidate in (Estimated(setting, of_recoveries) for setting, of_recoveries in estimates.items())
        if candidate.setting != present_setting
        and candidate.seconds < present.seconds
        and candidate.deferred_share <= allowed
        and all(
            is_as_safe(recovery, candidate.setting, present_setting, loads)
            for recovery, loads in zip(recoveries, ranges, strict=True)
        )
        and _highest_deferral(draws, present, candidate) <= HIGHEST_DEFERRAL
    ]
    if not candidates:
        return nothing
    longest = min(candidate.seconds for candidate in candidates) * _AS_FAST
    best = min(
        (candidate for candidate in candidates if candidate.seconds <= longest),
        key=lambda c: (
            _differences(present_setting, c.setting),
            c.writes,
            c.seconds,
            abs(c.setting.max_ratio - present_setting.max_ratio),
        ),
    )
    gain = 1 - best.seconds / present.seconds
    low, high = _interval(recoveries, draws, present, best)
    if low < WORTH:
        return nothing
    return Advice(
        cluster,
        _changes(recoveries[-1], best.setting),
        gain,
        low,
        high,
        gain * sum(recovery.duration for recovery in recoveries),
        count,
        present,
        best,
    )


@dataclass(frozen=True, slots=True)
class LoadRange:
    """The client loads that a recovery may meet, bytes/s."""

    lowest: float
    highest: float


def load_ranges(recoveries: Sequence[LoggedRecovery]) -> Sequence[LoadRange]:
    """Return for each recovery the client loads that others like it may meet.

    A log shows less than the whole range, for two reasons:

    - A metric is a mean over an interval of T seconds, which hides shorter loads. The correlation of two neighbouring
      means is taken as that of a load with correlation time t, `exp(-T / t)`. Then loads deviate from their mean by
      `(2 * (x - 1 + exp(-x)) / x**2) ** -0.5` times as much as the means, with `x = T / t`.
    - A log contains only some of all loads. For n + 1 independent loads of a uniform distribution, the end of the
      distribution is at most `p ** (-1 / n) - 1` ranges outside them, except with probability p.
    """
    variations = [_Variation.of(recovery) for recovery in recoveries]
    hidden = _hidden(variations, max(recovery.metric_seconds for recovery in recoveries))
    changes = max(sum(variation.changes for variation in variations), _FEWEST)
    widest = max(variation.highest - variation.lowest for variation in variations)
    unseen = hidden * widest * (_UNSEEN ** (-1 / changes) - 1)
    return [
        LoadRange(
            max(variation.mean - hidden * (variation.mean - variation.lowest) - unseen, 0.0),
            variation.mean + hidden * (variation.highest - variation.mean) + unseen,
        )
        for variation in variations
    ]


def _hidden(variations: Sequence[_Variation], seconds: float) -> float:
    """Return by how much loads deviate more from their mean than metrics of so many seconds, as a factor."""
    pairs, variance = sum(v.pairs for v in variations), sum(v.variance * v.pairs for v in variations)
    correlation = 1 - sum(v.squares for v in variations) / (2 * variance) if variance else 1.0
    # The lower bound: of n independent means, the correlation of neighbours has a standard deviation of n ** -0.5.
    correlation -= _DEVIATIONS * max(pairs, 1) ** -0.5
    most = seconds / _SHORTEST_LOAD_SECONDS
    x = max(min(-math.log(correlation), most) if correlation > 0 else most, 0.001)
    return float((2 * (x - 1 + math.exp(-x)) / x**2) ** -0.5)


_FEWEST = 0.1
"""From fewer independent changes of the load, nothing follows for other loads."""


@dataclass(frozen=True, slots=True)
class _Variation:
    """How the logged client load of one recovery varies."""

    mean: float
    lowest: float
    highest: float
    variance: float
    squares: float
    """Sum of the squared differences of neighbouring means."""
    pairs: int
    """Number of neighbouring means."""

    @property
    def changes(self) -> float:
        """Number of changes to an independent load: two such loads differ by `2 * variance` in the mean square."""
        return self.squares / (2 * self.variance) if self.variance else 0.0

    @staticmethod
    def of(recovery: LoggedRecovery) -> _Variation:
        stretches, loads = recovery.stretches, recovery.client_loads
        whole = sum(stretch.seconds for stretch in stretches) or 1.0
        mean = sum(stretch.client * stretch.seconds for stretch in stretches) / whole
        variance = sum(_square(stretch.client - mean) * stretch.seconds for stretch in stretches) / whole
        if loads[-1] - loads[0] <= _EQUAL * loads[-1]:
            return _Variation(loads[0], loads[0], loads[-1], 0.0, 0.0, 0)
        means = _apart(stretches, recovery.metric_seconds)
        squares = sum(_square(later - earlier) for earlier, later in pairwise(means))
        return _Variation(mean, loads[0], loads[-1], variance, squares, len(means) - 1)


def _square(number: float) -> float:
    return number * number  # ** raises OverflowError


def _apart(stretches: Sequence[LoggedStretch], seconds: float) -> Sequence[float]:
    """Return the loads of stretches that begin about so many seconds apart: the metrics of others have common parts."""
    loads, at, due = list[float](), 0.0, 0.0
    for stretch in stretches:
        if at >= due:
            loads.append(stretch.client)
            due = at + 0.9 * seconds
        at += stretch.seconds
    return loads


_EQUAL = 1e-6
"""Relative difference up to which loads are equal."""


def is_as_safe(recovery: LoggedRecovery, setting: Setting, present: Setting, loads: LoadRange) -> bool:
    """Return whether a setting harms clients no more than the present one, in any order of the loads."""
    change = _largest_change(recovery, setting, loads)
    return (
        overlap(recovery, setting, loads) <= overlap(recovery, present, loads)
        and change <= _largest_change(recovery, present, loads)
        and (not change or setting.change_threshold >= present.change_threshold)
    )


def overlap(recovery: LoggedRecovery, setting: Setting, loads: LoadRange) -> float:
    """Return by how much the link is too small for the highest load beside the rate decided at the lowest, bytes/s.

    A change threshold or late metrics may keep that rate, so this can happen in another recovery even if it did not in
    this one. Replication counts as using the whole rate, since it may use more of another rate than of the logged one.
    """
    return max(_rate(recovery, setting, loads.lowest) + loads.highest - recovery.capacity, 0.0)


def _largest_change(recovery: LoggedRecovery, setting: Setting, loads: LoadRange) -> float:
    """Return the largest change of the rate, bytes/s; 0: all changes are below the threshold.

    The bursts after a change grow with the rate. Whether a recovery has changes depends on the order of its loads: a
    rate that is decided at a middle load may stay.
    """
    lowest, highest = _rate(recovery, setting, loads.highest), _rate(recovery, setting, loads.lowest)
    change = highest - lowest
    return change if change >= setting.change_threshold * lowest else 0.0


def _rate(recovery: LoggedRecovery, setting: Setting, load: float) -> float:
    """Return the rate that a setting decides at a load, bytes/s; the highest logged one under another policy."""
    if _policy(setting.policy) is None:
        return max(stretch.decided for stretch in recovery.stretches)
    floor = max(stretch.min_rate for stretch in recovery.stretches)
    return max(setting.max_ratio * (recovery.capacity - load), floor)


def _differences(setting: Setting, other: Setting) -> int:
    return sum(getattr(setting, field.name) != getattr(other, field.name) for field in fields(Setting))


def _changes(recovery: LoggedRecovery, proposed: Setting) -> tuple[SettingChange, ...]:
    present, interval = recovery.setting, recovery.interval_seconds or 0.0
    changes = (
        SettingChange("policy", present.policy, proposed.policy),
        SettingChange("max-rate", round(100 * present.max_ratio, 6), round(100 * proposed.max_ratio, 6)),
        SettingChange(
            "change-threshold", round(100 * present.change_threshold, 6), round(100 * proposed.change_threshold, 6)
        ),
        SettingChange("interval", interval * present.every, interval * proposed.every),
    )
    return tuple(change for change in changes if change.present != change.proposed)


def _draws(count: int, seed: int) -> Sequence[Sequence[int]]:
    """Return recoveries drawn with replacement, by number. A single recovery says nothing about the spread."""
    chance = random.Random(seed)
    return [chance.choices(range(count), k=count) for _ in range(_RESAMPLES if count > 1 else 1)]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper bound of `_CONFIDENCE`."""
    ordered, outside = sorted(values), (1 - _CONFIDENCE) / 2
    return ordered[int(outside * len(ordered))], ordered[min(int((1 - outside) * len(ordered)), len(ordered) - 1)]


def _highest_deferral(draws: Sequence[Sequence[int]], present: Estimated, proposed: Estimated) -> float:
    """Return the upper bound of the share of client bytes that is displaced beyond the present one."""
    pairs = zip(present.estimates, proposed.estimates, strict=True)
    more = [then.deferred_bytes - today.deferred_bytes for today, then in pairs]
    if max(more) <= 0:
        return 0.0
    clients = [estimate.client_bytes for estimate in present.estimates]
    return _bounds([sum([more[n] for n in drawn]) / max(sum([clients[n] for n in drawn]), 1.0) for drawn in draws])[1]


def _interval(
    recoveries: Sequence[LoggedRecovery], draws: Sequence[Sequence[int]], present: Estimated, proposed: Estimated
) -> tuple[float, float]:
    """Return the bounds of the gain.

    The bounds are wider by the error of the model on the present setting, whose durations are known.
    """
    today = [estimate.seconds for estimate in present.estimates]
    then = [estimate.seconds for estimate in proposed.estimates]
    low, high = _bounds([1 - sum([then[n] for n in drawn]) / sum([today[n] for n in drawn]) for drawn in draws])
    actual = sum(recovery.duration for recovery in recoveries)
    error = abs(present.seconds - actual) / max(present.seconds, actual)
    return low - error * (1 - low), min(high + error * (1 - high), 1.0)
