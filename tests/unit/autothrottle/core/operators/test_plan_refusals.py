"""Why partitions of a plan are refused before anything is submitted."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, TopicPartition
from autothrottle.core.errors import AutothrottleError, Conflict, Invalid, Missing
from autothrottle.core.operators.plan_refusals import (
    PlanCluster,
    RefusalKind,
    refusal_error,
    refusals,
    without_refused,
)
from autothrottle.core.operators.submission import Targets
from autothrottle.core.records import Allowances
from tests import builders

GB = 10**9
BROKERS = (1, 2, 3, 4, 5, 6)
RACKS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}


def placed(*replicas: int, isr: tuple[int, ...] | None = None, leader: int | None = None) -> Assignment:
    return Assignment(replicas, replicas[0] if leader is None else leader, replicas if isr is None else isr)


def cluster(
    assignments: dict[TopicPartition, Assignment],
    down: tuple[int, ...] = (),
    cordoned: tuple[int, ...] = (),
    free: dict[int, int] | None = None,
    sizes: dict[TopicPartition, int] | None = None,
    minimum: int | None = None,
    racks: dict[int, str] = RACKS,
) -> PlanCluster:
    """Return a cluster; as in Kafka, nothing is known of the racks of brokers that are down."""
    live = frozenset(BROKERS) - frozenset(down)
    snapshot = replace(builders.snapshot(brokers=live), assignments=assignments)
    known_racks = {b: rack for b, rack in racks.items() if b in live}
    return PlanCluster(
        snapshot, known_racks, frozenset(cordoned), free or {}, sizes or {}, {"t": minimum} if minimum else {}
    )


ONE = ("t", 0)
RUNNING = Assignment((4, 2, 3, 1), 1, (1, 2, 3), (4,), (1,))


@pytest.mark.parametrize(
    ("state", "target", "lines"),
    [
        (
            cluster({ONE: placed(1, 2, 3)}, minimum=2),
            (1,),
            [
                "t-0 would have 1 replica instead of 3, below min.insync.replicas=2, so that producers with acks=all "
                "fail; to submit it nevertheless: --allow-fewer-replicas"
            ],
        ),
        (
            cluster({ONE: placed(1, 2, 3)}, minimum=2),
            (1, 2),
            ["t-0 would have 2 replicas instead of 3; to submit it nevertheless: --allow-fewer-replicas"],
        ),
        (
            cluster({ONE: placed(1, 2, 3, isr=(1, 2))}, minimum=2, down=(3,)),
            (1, 3),
            [
                "t-0 would have 2 replicas instead of 3 with [3] down, below min.insync.replicas=2, so that producers "
                "with acks=all fail; to submit it nevertheless: --allow-fewer-replicas"
            ],
        ),
        (
            cluster({ONE: placed(1, 2, 3)}),
            (1, 4, 2),
            ["t-0 would be in 2 racks instead of 3; to submit it nevertheless: --allow-fewer-racks"],
        ),
        (
            cluster({ONE: placed(1, 2, 3)}),
            (1, 4),
            [
                "t-0 would have 2 replicas instead of 3; to submit it nevertheless: --allow-fewer-replicas",
                "t-0 would be in 1 rack instead of 2; to submit it nevertheless: --allow-fewer-racks",
            ],
        ),
        (
            cluster({ONE: placed(1, 2)}, cordoned=(4, 1)),
            (1, 4),
            [
                "t-0 would be in 1 rack instead of 2; to submit it nevertheless: --allow-fewer-racks",
                "broker 4, a target replica of t-0, is cordoned; to submit it nevertheless: --allow-cordoned",
            ],
        ),
        (
            cluster({ONE: placed(1, 2)}, free={4: GB}, sizes={ONE: 2 * GB}, racks={}),
            (4, 2),
            [
                "the plan copies 2.00 GB to broker 4, which has room for 1.00 GB: t-0 does not fit; to submit it "
                "nevertheless: --allow-full"
            ],
        ),
        (
            cluster({ONE: placed(1, 2)}, down=(4, 5)),
            (4, 5),
            [
                "broker 4, a target replica of t-0, is unknown or down; the registered brokers are [1, 2, 3, 6]; start "
                "the broker, or name another",
                "broker 5, a target replica of t-0, is unknown or down; the registered brokers are [1, 2, 3, 6]; start "
                "the broker, or name another",
            ],
        ),
        (
            cluster({ONE: placed(1, 2, isr=(1,), leader=-1)}, down=(1,)),
            (3, 2),
            ["t-0 has no live replica to copy from (in sync: [1]); start one of these brokers first"],
        ),
        (
            cluster({ONE: placed(1, 2, isr=(), leader=-1)}),  # KIP-966: the last ISR member was fenced
            (3, 2),
            ["t-0 has no live replica to copy from (in sync: none); start one of these brokers first"],
        ),
        (
            cluster({ONE: placed(1, 2, 3, isr=(1, 2))}, down=(3,)),
            (3,),
            [
                "t-0 would keep only replicas that are down, [3]; start one of these brokers first",
                "t-0 would have 1 replica instead of 3 with [3] down, below min.insync.replicas=1, so that producers "
                "with acks=all fail; to submit it nevertheless: --allow-fewer-replicas",
            ],
        ),
        (cluster({}), (1,), ["t-0 does not exist; give a partition's name"]),
        (
            cluster({ONE: RUNNING}),
            (5, 2, 3),
            ["t-0 is already being reassigned to [4, 2, 3]; wait until it is done, or cancel it first"],
        ),
    ],
)
def test_reasons_name_the_value_and_the_way_out(state: PlanCluster, target: tuple[int, ...], lines: list[str]) -> None:
    assert [refusal.reason for refusal in refusals(state, {ONE: target})] == lines


@pytest.mark.parametrize(
    ("state", "target"),
    [
        (cluster({ONE: placed(1, 2, 3)}), (4, 5, 6)),
        (cluster({ONE: placed(1, 2, 3, isr=(1, 2))}, down=(3,)), (1, 5, 3)),  # a dead replica stays
        (cluster({ONE: placed(1, 2, 3, isr=(2, 3))}, down=(1,)), (4, 2, 3)),  # and another one is replaced
        (cluster({ONE: placed(1, 2, 3, isr=(2, 3), leader=-1)}, down=(2,)), (4, 2, 3)),  # 3 will lead
        (cluster({ONE: placed(1, 2)}, cordoned=(1, 2), minimum=3), (2, 1)),  # only the order changes
        (cluster({ONE: placed(1, 2, isr=(1,), leader=-1)}, down=(1, 2)), (2, 1)),
        (cluster({ONE: placed(1, 2, 3)}, cordoned=(4,), minimum=5), (1, 2, 3)),  # already there
        (cluster({ONE: RUNNING}, cordoned=(4,), down=(4,)), (4, 2, 3)),  # already moves there
        (cluster({ONE: placed(1)}), (1, 4, 2)),  # more replicas
        (cluster({ONE: placed(1, 4)}), (4, 1)),  # as few racks as now
        (cluster({ONE: placed(1, 2)}, racks={}), (1, 4)),  # without racks
        (cluster({ONE: placed(1, 2)}, racks={1: "a", 2: "b"}), (1, 4)),  # the rack of 4 is unknown
        (cluster({ONE: placed(1, 2)}, free={4: GB}, sizes={ONE: GB}), (4, 2)),  # it just fits
        (cluster({ONE: placed(1, 2)}, free={4: 0}), (4, 2)),  # its size is unknown
    ],
)
def test_plans_that_take_nothing_away_are_not_refused(state: PlanCluster, target: tuple[int, ...]) -> None:
    assert refusals(state, {ONE: target}) == ()


def test_a_rack_of_a_dead_replica_that_stays_is_counted_on_both_sides() -> None:
    """The dead replica counted as a rack of the target alone, which hid that the plan gives up the rack of another."""
    state = cluster({ONE: placed(1, 2, 3, isr=(1, 2))}, down=(3,))
    assert [refusal.kind for refusal in refusals(state, {ONE: (1, 4, 3)})] == [RefusalKind.FEWER_RACKS]


def test_partitions_that_share_a_reason_share_a_line() -> None:
    rows = {("t", number): placed(1, 2, 3) for number in range(8)}
    targets: Targets = {**dict.fromkeys(rows, (1, 2)), ("t", 7): (4, 2, 3)}
    (refusal,) = refusals(cluster(rows), targets)
    assert refusal.reason.startswith("t-0, t-1, t-2 and 4 more would have 2 replicas instead of 3; ")
    assert refusal.partitions == tuple(list(rows)[:7])
    assert refusal.allowed_by == "allow_fewer_replicas"


def test_partitions_behind_those_that_fit_are_refused() -> None:
    rows = {("t", number): placed(1, 2) for number in range(4)}
    sizes = {("t", 0): 3 * GB, ("t", 1): 2 * GB, ("t", 2): GB, ("t", 3): GB}
    targets: Targets = dict.fromkeys(rows, (4, 2))
    (refusal,) = refusals(cluster(rows, free={4: 5 * GB}, sizes=sizes), targets)
    assert refusal.partitions == (("t", 2), ("t", 3))
    assert "copies 7.00 GB to broker 4, which has room for 5.00 GB: t-2, t-3 do not fit" in refusal.reason


def test_bytes_that_running_reassignments_still_copy_take_room() -> None:
    """Two plans, one after the other, each fitted into the same free bytes. Together they filled the disk."""
    state = cluster({ONE: placed(1, 2)}, free={4: 5 * GB}, sizes={ONE: 2 * GB})
    noon = builders.NOON
    progress = FlowProgress(0, 0, 4 * GB, noon, noon - timedelta(minutes=1))
    running = replace(state, snapshot=replace(state.snapshot, progress=Progress(flows={Flow(3, 4): progress})))
    assert refusals(state, {ONE: (4, 2)}) == ()
    assert "room for 1.00 GB" in refusals(running, {ONE: (4, 2)})[0].reason


def test_names_of_topics_cannot_forge_a_line() -> None:
    (refusal,) = refusals(cluster({}), {("t\nforged", 0): (1,)})
    assert refusal.reason == "t\\nforged-0 does not exist; give a partition's name"


@pytest.mark.parametrize("option", [kind.option for kind in RefusalKind if kind.option])
def test_each_option_allows_its_kind_alone(option: str) -> None:
    rows = {ONE: placed(1, 2, 3), ("t", 1): placed(1, 2), ("t", 2): placed(2, 3)}
    state = cluster(rows, cordoned=(5,), free={4: 0}, sizes=dict.fromkeys(rows, GB))
    targets: Targets = {ONE: (1,), ("t", 1): (1, 4), ("t", 2): (5, 3)}
    kinds = {refusal.kind for refusal in refusals(state, targets)}
    assert {kind.option for kind in kinds} == {kind.option for kind in RefusalKind if kind.option}
    allowed = {refusal.kind for refusal in refusals(state, targets, Allowances(**{option: True}))}
    assert {kind.option for kind in kinds - allowed} == {option}


def test_an_error_has_the_kind_of_the_first_reason_and_the_way_to_skip() -> None:
    rows = {ONE: placed(1, 2, 3), ("t", 1): placed(1, 2), ("t", 2): placed(1, 2)}
    refused = refusals(cluster(rows, down=(6,)), {ONE: (1,), ("t", 1): (6, 2), ("t", 2): (3, 2)})
    error = refusal_error(refused, others=1)
    assert isinstance(error, Invalid)
    first, *lines, last = str(error).split("\n")
    assert first == "2 partitions are refused:"
    assert lines == [refusal.reason for refusal in refused]
    assert last == "to leave refused partitions out and submit the 1 other partition: --skip-refused"
    many = refusals(cluster({ONE: placed(1)}, down=tuple(range(7, 90))), {ONE: tuple(range(7, 90))})
    assert len(many) == 83 and str(refusal_error(many, 0)).endswith("\nand 71 more reasons")
    assert len(str(refusal_error(many, 0)).encode()) < 4_000, "as long as an error on the wire may be"


brokers = st.sampled_from(BROKERS)
replica_lists = st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple)
rows = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 3))


@st.composite
def clusters(draw: st.DrawFn) -> PlanCluster:
    """Partitions of two topics, some of them in reassignment, on brokers of which some are down, cordoned or full."""
    assignments: dict[TopicPartition, Assignment] = {}
    for row, held, target, in_sync in draw(
        st.lists(st.tuples(rows, replica_lists, st.none() | replica_lists, st.sets(brokers)))
    ):
        adding = tuple(b for b in target or () if b not in held)
        removing = tuple(b for b in held if target and b not in target)
        isr = tuple(b for b in held if b in in_sync)
        assignments[row] = Assignment((*(target or held), *removing), isr[0] if isr else -1, isr, adding, removing)
    sizes = {row: draw(st.integers(0, 3)) for row in assignments}
    free = draw(st.dictionaries(brokers, st.integers(0, 5)))
    down, cordoned = draw(st.sets(brokers)), draw(st.sets(brokers))
    racks = draw(st.dictionaries(brokers, st.sampled_from(["", "a", "b", "c"])))
    return cluster(assignments, tuple(down), tuple(cordoned), free, sizes, draw(st.integers(1, 3)), racks)


allowances = st.builds(Allowances, **{field.name: st.booleans() for field in fields(Allowances)})
plans = st.dictionaries(rows, replica_lists, min_size=1)


@given(clusters(), plans, allowances)
def test_what_is_left_after_the_refusals_is_not_refused(state: PlanCluster, plan: Targets, allowed: Allowances) -> None:
    refused = refusals(state, plan, allowed)
    accepted = without_refused(plan, refused)
    assert refusals(state, accepted, allowed) == ()
    assert {row for refusal in refused for row in refusal.partitions} | accepted.keys() == plan.keys()
    assert all(refusal.allowed_by == "" or not getattr(allowed, refusal.allowed_by) for refusal in refused)


@given(clusters(), plans)
def test_an_accepted_plan_takes_nothing_away(state: PlanCluster, plan: Targets) -> None:
    accepted = without_refused(plan, refusals(state, plan))
    live = state.snapshot.brokers
    for row, target in accepted.items():
        assignment = state.snapshot.assignments[row]
        if assignment.moves:
            assert assignment.target == target
            continue
        adding = {*target} - {*assignment.replicas}
        assert len(target) >= len(assignment.replicas)
        assert adding <= live and adding.isdisjoint(state.cordoned)
        assert not adding or not live.isdisjoint(assignment.isr)
        if all(state.racks.get(b) for b in (*target, *assignment.replicas)):
            racks_of = [{state.racks[b] for b in brokers} for brokers in (assignment.replicas, target)]
            assert len(racks_of[1]) >= len(racks_of[0])
    for broker_id, free in state.storage_free.items():
        copied = sum(
            state.sizes[row]
            for row, target in accepted.items()
            if broker_id in target
            and broker_id not in state.snapshot.assignments[row].replicas
            and not state.snapshot.assignments[row].moves
        )
        assert copied <= free


@given(clusters(), plans)
def test_every_refusal_becomes_an_error_that_says_why(state: PlanCluster, plan: Targets) -> None:
    if refused := refusals(state, plan):
        error: AutothrottleError = refusal_error(refused, 0)
        assert isinstance(error, Missing | Invalid | Conflict)
        assert all(refusal.reason in str(error) for refusal in refused[:10])


def test_a_snapshot_alone_judges_what_nothing_allows() -> None:
    snapshot: Snapshot = replace(builders.snapshot(brokers=BROKERS), assignments={ONE: placed(1, 2)})
    assert refusals(PlanCluster(snapshot), {ONE: (4, 5)}) == ()
