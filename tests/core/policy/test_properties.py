"""What holds for the adaptive policy whatever is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.configs import ConfigResource
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.growth import LogGrowth
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.loads import BrokerLoad, Capacity, Loads, Port, Utilization
from autothrottle.core.plan import plan
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Observation
from autothrottle.core.policy.pace import Work, needs
from autothrottle.core.topology import Snapshot
from tests import builders
from tests.builders import NOON, mb
from tests.core.policy.world import FOLLOWER, LEADER

BROKERS = (1, 2, 3, 4, 5)
LIMITS = builders.limits(min_rate=mb(1))
INTERVAL = timedelta(seconds=30)
in_megabytes = st.integers(0, 250)


@dataclass(frozen=True)
class Moment:
    """What one cycle sees, by broker and flow, MB and MB/s."""

    used: Mapping[Port, int]
    landed: Mapping[Flow, int]
    grown: Mapping[Flow, int]
    logs: Mapping[int, tuple[int, int]]
    hidden: frozenset[int]
    standing: Mapping[Port, int]


@dataclass(frozen=True)
class Story:
    """Some cycles of one move."""

    capacities: Mapping[int, int]
    flows: Mapping[Flow, int]
    """Flow -> bytes left, MB."""
    moments: tuple[Moment, ...]
    has_progress: bool

    def renamed(self, names: Mapping[int, int]) -> Story:
        """The same story of brokers with other ids."""

        def flow(old: Flow) -> Flow:
            return Flow(names[old.leader], names[old.follower])

        return Story(
            {names[b]: capacity for b, capacity in self.capacities.items()},
            {flow(f): left for f, left in self.flows.items()},
            tuple(
                Moment(
                    {(names[b], role): rate for (b, role), rate in moment.used.items()},
                    {flow(f): count for f, count in moment.landed.items()},
                    {flow(f): count for f, count in moment.grown.items()},
                    {names[b]: counts for b, counts in moment.logs.items()},
                    frozenset(names[b] for b in moment.hidden),
                    {(names[b], role): rate for (b, role), rate in moment.standing.items()},
                )
                for moment in self.moments
            ),
            self.has_progress,
        )


@st.composite
def stories(draw: st.DrawFn) -> Story:
    pairs = [Flow(a, b) for a in BROKERS for b in BROKERS if a != b]
    flows = draw(st.dictionaries(st.sampled_from(pairs), st.integers(0, 10**6), min_size=1, max_size=6))
    ports = [(b, role) for b in BROKERS for role in (LEADER, FOLLOWER)]
    moments = []
    landed, grown = dict.fromkeys(flows, 0), dict.fromkeys(flows, 0)
    logs = dict.fromkeys(BROKERS, (0, 0))
    for _ in range(draw(st.integers(1, 6))):
        landed = {f: count + draw(st.integers(0, 5_000)) for f, count in landed.items()}
        grown = {f: count + draw(st.integers(0, 300)) for f, count in grown.items()}
        logs = {b: (led + draw(in_megabytes) * 30, all_ + draw(in_megabytes) * 30) for b, (led, all_) in logs.items()}
        moments.append(
            Moment(
                used={port: draw(in_megabytes) for port in ports},
                landed=landed,
                grown=grown,
                logs=logs if draw(st.booleans()) else {},
                hidden=draw(st.frozensets(st.sampled_from(BROKERS), max_size=2)),
                standing=draw(st.dictionaries(st.sampled_from(ports), in_megabytes)),
            )
        )
    capacities = {b: draw(st.integers(5, 200)) for b in BROKERS}
    return Story(capacities, flows, tuple(moments), draw(st.booleans()))


def decided(story: Story) -> tuple[dict[Port, int], AdaptivePolicy]:
    """The rates after the last cycle of a story, and the policy that gave them."""
    policy, history = AdaptivePolicy(), ThrottleHistory()
    for number, moment in enumerate(story.moments):
        now = NOON + number * INTERVAL
        snapshot = _snapshot(story, moment, number)
        loads = _loads(story, moment, number)
        history = history.observe(now, {port: mb(rate) for port, rate in moment.standing.items()})
        logs = {b: LogGrowth(mb(led), mb(all_), now, NOON) for b, (led, all_) in moment.logs.items()}
        policy = policy.observe(Observation(now, snapshot, loads, logs))
    found = plan(snapshot, loads, LIMITS, history=history, policy=policy)
    return {(d.broker_id, d.role): d.rate for d in found.decisions}, policy


def _snapshot(story: Story, moment: Moment, number: int) -> Snapshot:
    now = NOON + number * INTERVAL
    rows = {n: (f.leader, (f.leader, 90, 91), (f.follower,), ()) for n, f in enumerate(sorted(story.flows))}
    throttles: dict[str, dict[str, str]] = {}
    for (broker_id, role), rate in moment.standing.items():
        throttles.setdefault(ConfigResource.broker(broker_id).path, {})[role.rate_key] = str(mb(rate))
    counts = {
        f: FlowProgress(mb(moment.landed[f]), mb(moment.grown[f]), mb(left), now, NOON)
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

    def used(broker_id: int, port: Port) -> Utilization:
        return Utilization(mb(moment.used[port]), start, end)

    return Loads(
        {
            b: BrokerLoad(b, Capacity(mb(c), mb(c)), used(b, (b, LEADER)), used(b, (b, FOLLOWER)))
            for b, c in story.capacities.items()
            if b not in moment.hidden
        }
    )


@settings(max_examples=60, deadline=None)
@given(story=stories())
def test_no_rate_is_negative_and_without_the_in_sync_share_none_is_above_the_capacity(story: Story) -> None:
    rates, policy = decided(story)
    standing = {port: mb(rate) for port, rate in story.moments[-1].standing.items()}
    for port, rate in rates.items():
        assert rate >= 0
        # Two followers of every partition are in sync.
        in_sync = 2 * policy.experience.grown(port) if port[1] is LEADER else 0
        allowed = max(mb(story.capacities[port[0]]), LIMITS.min_rate)
        unchanged = port in standing and rate == standing[port]
        assert rate - in_sync <= allowed * 1.000001 or unchanged


@settings(max_examples=60, deadline=None)
@given(story=stories())
def test_a_broker_that_is_in_no_flow_is_never_touched(story: Story) -> None:
    rates, _ = decided(story)
    assert set(rates) == {(f.leader, LEADER) for f in story.flows} | {(f.follower, FOLLOWER) for f in story.flows}


@settings(max_examples=60, deadline=None)
@given(story=stories(), names=st.permutations(BROKERS))
def test_other_ids_of_the_brokers_change_nothing(story: Story, names: list[int]) -> None:
    renaming = dict(zip(BROKERS, names, strict=True))
    rates, _ = decided(story)
    renamed, _ = decided(story.renamed(renaming))
    assert renamed.keys() == {(renaming[b], role) for b, role in rates}
    for (broker_id, role), rate in rates.items():
        # Sums in another order differ in their last bits.
        assert abs(renamed[renaming[broker_id], role] - rate) <= 1 + rate * 1e-9


works = st.builds(Work, st.floats(0, 1e12), st.floats(0, 1e9), st.floats(0, 1e8), st.floats(0, 1e9))


def makespan(ports: Iterable[Work]) -> float:
    """A move takes as long as its slowest port, seconds."""
    return max(work.seconds for work in ports)


@given(ports=st.lists(works, min_size=1, max_size=8), which=st.integers(0, 7), more=st.floats(0, 1e9))
def test_more_headroom_never_makes_a_move_longer(ports: list[Work], which: int, more: float) -> None:
    one = ports[which % len(ports)]
    roomier = [*ports]
    roomier[which % len(ports)] = Work(one.left, one.headroom + more, one.grown, one.least)
    assert makespan(roomier) <= makespan(ports)


@given(
    left=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(4, 7)), st.floats(1, 1e9), min_size=1),
    headrooms=st.lists(st.floats(1e3, 1e8), min_size=8, max_size=8),
)
def test_needs_carry_every_flow_within_the_time_of_the_whole_move(
    left: dict[tuple[int, int], float], headrooms: list[float]
) -> None:
    flows = [(Flow(*pair), size) for pair, size in left.items()]
    ports: dict[Port, Work] = {}
    for flow, _ in flows:
        for port in ((flow.leader, LEADER), (flow.follower, FOLLOWER)):
            total = sum(size for f, size in flows if port[0] in f)
            ports[port] = Work(total, headrooms[port[0]])
    whole = makespan(ports.values())
    for port, need in needs(flows, ports).items():
        assert need * whole >= ports[port].left * (1 - 1e-9)
        assert need <= ports[port].headroom * (1 + 1e-9)
