"""Properties of the adaptive policy for arbitrary measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, LogGrowth, Progress
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.policy.adaptive import AdaptivePolicy, Work, needs
from autothrottle.core.policy.interface import PolicyObservation
from autothrottle.core.throttles.plan import plan
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.traffic.replication import ThrottleHistory
from tests import builders
from tests.builders import NOON, mb
from tests.examples import examples
from tests.unit.autothrottle.core.policy.simulated_world import FOLLOWER, LEADER

BROKERS = (1, 2, 3, 4, 5)
LIMITS = builders.limits(min_rate=mb(1))
INTERVAL = timedelta(seconds=30)
in_megabytes = st.integers(0, 250)


@dataclass(frozen=True)
class Moment:
    """The input of one cycle, by broker and flow, in MB and MB/s."""

    used: Mapping[LinkSide, int]
    copied: Mapping[Flow, int]
    produced: Mapping[Flow, int]
    logs: Mapping[int, tuple[int, int]]
    hidden: frozenset[int]
    current: Mapping[LinkSide, int]


@dataclass(frozen=True)
class Story:
    """Some cycles of one reassignment."""

    capacities: Mapping[int, int]
    flows: Mapping[Flow, int]
    """Flow -> bytes left, MB."""
    moments: tuple[Moment, ...]
    has_progress: bool

    def renamed(self, names: Mapping[int, int]) -> Story:
        """The same story with renumbered brokers."""

        def flow(old: Flow) -> Flow:
            return Flow(names[old.leader], names[old.follower])

        return Story(
            {names[b]: capacity for b, capacity in self.capacities.items()},
            {flow(f): left for f, left in self.flows.items()},
            tuple(
                Moment(
                    {(names[b], role): rate for (b, role), rate in moment.used.items()},
                    {flow(f): count for f, count in moment.copied.items()},
                    {flow(f): count for f, count in moment.produced.items()},
                    {names[b]: counts for b, counts in moment.logs.items()},
                    frozenset(names[b] for b in moment.hidden),
                    {(names[b], role): rate for (b, role), rate in moment.current.items()},
                )
                for moment in self.moments
            ),
            self.has_progress,
        )


@st.composite
def stories(draw: st.DrawFn) -> Story:
    pairs = [Flow(a, b) for a in BROKERS for b in BROKERS if a != b]
    flows = draw(st.dictionaries(st.sampled_from(pairs), st.integers(0, 10**6), min_size=1, max_size=6))
    sides = [(b, role) for b in BROKERS for role in (LEADER, FOLLOWER)]
    moments = []
    copied, produced = dict.fromkeys(flows, 0), dict.fromkeys(flows, 0)
    logs = dict.fromkeys(BROKERS, (0, 0))
    for _ in range(draw(st.integers(1, 6))):
        copied = {f: count + draw(st.integers(0, 5_000)) for f, count in copied.items()}
        produced = {f: count + draw(st.integers(0, 300)) for f, count in produced.items()}
        logs = {b: (led + draw(in_megabytes) * 30, all_ + draw(in_megabytes) * 30) for b, (led, all_) in logs.items()}
        moments.append(
            Moment(
                used={side: draw(in_megabytes) for side in sides},
                copied=copied,
                produced=produced,
                logs=logs if draw(st.booleans()) else {},
                hidden=draw(st.frozensets(st.sampled_from(BROKERS), max_size=2)),
                current=draw(st.dictionaries(st.sampled_from(sides), in_megabytes)),
            )
        )
    capacities = {b: draw(st.integers(5, 200)) for b in BROKERS}
    return Story(capacities, flows, tuple(moments), draw(st.booleans()))


def decided(story: Story) -> tuple[dict[LinkSide, int], AdaptivePolicy]:
    """The rates after the last cycle of a story, and the policy that gave them."""
    policy, history = AdaptivePolicy(), ThrottleHistory()
    for number, moment in enumerate(story.moments):
        now = NOON + number * INTERVAL
        snapshot = _snapshot(story, moment, number)
        loads = _loads(story, moment, number)
        history = history.observe(now, {side: mb(rate) for side, rate in moment.current.items()})
        logs = {b: LogGrowth(mb(led), mb(all_), now, NOON) for b, (led, all_) in moment.logs.items()}
        policy = policy.observe(PolicyObservation(now, snapshot, loads, logs))
    found = plan(snapshot, loads, LIMITS, history=history, policy=policy)
    return {(d.broker_id, d.role): d.rate_bytes_per_second for d in found.decisions}, policy


def _snapshot(story: Story, moment: Moment, number: int) -> Snapshot:
    now = NOON + number * INTERVAL
    rows = {n: (f.leader, (f.leader, 90, 91), (f.follower,), ()) for n, f in enumerate(sorted(story.flows))}
    throttles: dict[str, dict[str, str]] = {}
    for (broker_id, role), rate in moment.current.items():
        throttles.setdefault(ConfigResource.broker(broker_id).path, {})[role.rate_key] = str(mb(rate))
    counts = {
        f: FlowProgress(mb(moment.copied[f]), mb(moment.produced[f]), mb(left), now, NOON)
        for f, left in story.flows.items()
    }
    return builders.snapshot(
        builders.reassignment("t", rows),
        brokers=story.capacities,
        throttles=throttles,
        progress=Progress(counts, at=now) if story.has_progress else None,
    )


def _loads(story: Story, moment: Moment, number: int) -> Loads:
    end = NOON + number * INTERVAL - INTERVAL
    start = end - 2 * INTERVAL

    def used(broker_id: int, side: LinkSide) -> Utilization:
        return Utilization(mb(moment.used[side]), start, end)

    return Loads(
        {
            b: BrokerLoad(b, Capacity(mb(c), mb(c)), used(b, (b, LEADER)), used(b, (b, FOLLOWER)))
            for b, c in story.capacities.items()
            if b not in moment.hidden
        }
    )


@settings(max_examples=examples(15, 120), deadline=None)
@given(story=stories())
def test_no_rate_is_negative_or_above_the_capacity_plus_the_in_sync_share(story: Story) -> None:
    rates, policy = decided(story)
    current = {side: mb(rate) for side, rate in story.moments[-1].current.items()}
    for side, rate in rates.items():
        assert rate >= 0
        # Two followers of every partition are in sync.
        in_sync = 2 * policy.experience.produced(side) if side[1] is LEADER else 0
        allowed = max(mb(story.capacities[side[0]]), LIMITS.min_rate)
        unchanged = side in current and rate == current[side]
        assert rate - in_sync <= allowed * 1.000001 or unchanged


@settings(max_examples=examples(15, 120), deadline=None)
@given(story=stories())
def test_broker_without_flows_is_never_changed(story: Story) -> None:
    rates, _ = decided(story)
    assert set(rates) == {(f.leader, LEADER) for f in story.flows} | {(f.follower, FOLLOWER) for f in story.flows}


@settings(max_examples=examples(15, 120), deadline=None)
@given(story=stories(), names=st.permutations(BROKERS))
def test_renumbering_the_brokers_changes_nothing(story: Story, names: list[int]) -> None:
    renaming = dict(zip(BROKERS, names, strict=True))
    rates, _ = decided(story)
    renamed, _ = decided(story.renamed(renaming))
    assert renamed.keys() == {(renaming[b], role) for b, role in rates}
    for (broker_id, role), rate in rates.items():
        # Sums in another order differ in their last bits.
        assert abs(renamed[renaming[broker_id], role] - rate) <= 1 + rate * 1e-9


works = st.builds(Work, st.floats(0, 1e12), st.floats(0, 1e9), st.floats(0, 1e8), st.floats(0, 1e9))


def makespan(sides: Iterable[Work]) -> float:
    """Duration of a reassignment, which is that of its slowest link side, seconds."""
    return max(work.seconds for work in sides)


@given(sides=st.lists(works, min_size=1, max_size=8), which=st.integers(0, 7), more=st.floats(0, 1e9))
def test_more_headroom_never_makes_a_reassignment_longer(sides: list[Work], which: int, more: float) -> None:
    one = sides[which % len(sides)]
    roomier = [*sides]
    roomier[which % len(sides)] = Work(one.bytes_left, one.headroom + more, one.produced, one.least)
    assert makespan(roomier) <= makespan(sides)


@given(
    left=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(4, 7)), st.floats(1, 1e9), min_size=1),
    headrooms=st.lists(st.floats(1e3, 1e8), min_size=8, max_size=8),
)
def test_needed_rates_finish_every_flow_within_the_whole_duration(
    left: dict[tuple[int, int], float], headrooms: list[float]
) -> None:
    flows = [(Flow(*pair), size) for pair, size in left.items()]
    sides: dict[LinkSide, Work] = {}
    for flow, _ in flows:
        for side in ((flow.leader, LEADER), (flow.follower, FOLLOWER)):
            total = sum(size for f, size in flows if side[0] in f)
            sides[side] = Work(total, headrooms[side[0]])
    whole = makespan(sides.values())
    for side, need in needs(flows, sides).items():
        assert need * whole >= sides[side].bytes_left * (1 - 1e-9)
        assert need <= sides[side].headroom * (1 + 1e-9)
