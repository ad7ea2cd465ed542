"""Evaluation of a reassignment over shaped links (`make bench-links`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.links.layout import (
    BESIDE,
    FOLLOWER,
    LINKS,
    PARTITIONS,
    READ_BROKER,
    RING,
    SECOND_FOLLOWER,
    RunPlan,
    beside,
    bound,
    client_rates,
    link_rates,
    ring,
    simulated,
)
from tests.benchmarks.links.shaped_links import Count
from tests.benchmarks.links.tally import (
    ALL,
    ON_FOLLOWER,
    REASSIGNED,
    Run,
    Sample,
    Waits,
    at_finishes,
    carried_rates,
    claims,
    copy_rates,
    full_share,
    lines,
    rate_next_to_full_follower,
    source_lines,
    waits,
)

INBOUND = (1005, "rx")
MB = 1_000_000


def sample(at: float, total: float) -> Sample:
    """A sample with `total` bytes received so far, all of them copied."""
    return Sample(at, {INBOUND: Count(at, round(total))}, round(total))


def samples(*megabytes: float) -> list[Sample]:
    """One sample per second, for these amounts of received MB per second."""
    totals = [sum(megabytes[:n]) * MB for n in range(len(megabytes) + 1)]
    return [sample(float(at), total) for at, total in enumerate(totals)]


def run(
    policy: str = "adaptive",
    p99: float = 0.3,
    most: float = 0.9,
    full: float = 0.05,
    makespan: float = 100,
    second: str = "none",
    received: tuple[int, ...] = (4 * MB,),
) -> Run:
    quiet = dict.fromkeys((ALL, ON_FOLLOWER, REASSIGNED), Waits(1000, 0.01, 0.1, 0.2))
    moving = dict.fromkeys((ALL, ON_FOLLOWER, REASSIGNED), Waits(1000, 0.02, p99, most))
    throttles, carried = [(0.0, 4 * MB)], [9 * MB]
    evaluated = (makespan, 90.0, 95.0, quiet, moving, 0.4, full, full, 1.5, 0, 2.0, throttles, received, carried, [0.1])
    return Run(policy, 0.9, 1, second, *evaluated)


def plan(policy: str, ratio: float = 0.9, second: str = "none") -> RunPlan:
    return RunPlan(policy, ratio, 1, 10, 10, 10, 15.0, second=second)


def test_a_link_is_full_from_98_percent_of_its_rate() -> None:
    assert full_share(samples(9.7, 9.8, 10.0, 1.0), {INBOUND: 10.0 * MB}) == 0.5


def test_carried_rates_has_the_rate_of_each_second() -> None:
    assert carried_rates(samples(4.0, 6.0, 9.5), INBOUND) == [4.0 * MB, 6.0 * MB, 9.5 * MB]


def test_each_count_is_divided_by_its_own_interval() -> None:
    """The sampler may be delayed between links. With one timestamp for all counts, evenly used links looked full."""
    held_up = [
        Sample(float(at), {INBOUND: Count(at + late, round((at + late) * 9.5 * MB))}, 0)
        for at, late in enumerate((0.0, 0.05, 0.0))
    ]
    assert full_share(held_up, {INBOUND: 10.0 * MB}) == 0.0
    assert carried_rates(held_up, INBOUND) == pytest.approx([9.5 * MB, 9.5 * MB])


def test_a_late_sample_does_not_raise_the_rate() -> None:
    late = [sample(0.0, 0), sample(2.0, 10 * MB)]
    assert full_share(late, {INBOUND: 10.0 * MB}) == 0.0
    assert copy_rates(late) == [5.0 * MB]


def test_samples_closer_than_a_second_are_merged() -> None:
    hurried = [sample(at, at * MB) for at in (0.0, 0.2, 1.0, 1.1, 2.0)]
    assert copy_rates(hurried) == [MB, MB]


def test_at_finishes_only_counts_records_due_around_a_finish() -> None:
    waited = [(8.0, 9.0), (9.5, 0.5), (13.0, 0.7), (15.0, 5.0)]
    assert at_finishes(waited, [10.0]) == 0.7
    assert at_finishes(waited, []) == 0.0


def test_source_lines_show_the_throttles_of_each_source() -> None:
    throttled = replace(
        run(), source="scrape", deferred=0.015, throttles=[(-1.0, None), (0.4, 4 * MB), (10.2, 4_500_000)]
    )
    start = "4.0 MB/s at 0.4 s | 4.0 at 0, 4.5 at 10 | 1.50 % | 0.90"
    assert source_lines([throttled])[2] == f"| scrape | {start} |  |  | 100.0 | 1.11 |"
    wrong = replace(throttled, source="kafka", fanout_factor=0.5, deferred_reads=0.25, longest_read=3.0)
    assert source_lines([wrong])[2] == f"| kafka, 0.5 x fan-out | {start} | 25.00 % | 3.00 | 100.0 | 1.11 |"
    assert "| none |" in source_lines([replace(run(), throttles=[(0.0, None)])])[2]


@given(st.lists(st.floats(0, 100), min_size=1))
def test_at_least_99_percent_of_waits_do_not_exceed_the_p99(waited: list[float]) -> None:
    found = waits(waited)
    assert sum(one <= found.p99 for one in waited) >= 0.99 * len(waited)
    assert found.p50 <= found.p99 <= found.most == max(waited)


def test_waits_of_no_records_are_zero() -> None:
    assert waits([]) == Waits(0, 0.0, 0.0, 0.0)


def test_clients_use_half_of_every_inbound_link() -> None:
    received = dict.fromkeys(LINKS, 0.0)
    for replicas, rate in [*((r, 2.1875) for r in ring().values()), *((r, 0.625) for r in beside().values())]:
        for broker_id in replicas:
            received[broker_id] += rate * MB
    assert received == {broker_id: rate / 2 for broker_id, rate in LINKS.items()}


def test_consumers_make_the_outbound_link_of_the_only_leader_the_bottleneck() -> None:
    """Replication to the followers of steady partitions takes 5 MB/s of that link, as on every leader."""
    read = replace(plan("adaptive"), fanout_factor=0.5)
    assert {replicas[0] for replicas in read.replicas_before().values()} == {READ_BROKER}
    rates = {RING: 2.1875 * MB, BESIDE: 0.625 * MB}
    consumed = sum(count * rates[topic] for (topic, _), count in read.consumers.items())
    assert read.consumer_fanout == 0.5 * consumed / (5 * MB)
    clients = {**dict.fromkeys(link_rates(), 5.0 * MB), (READ_BROKER, "tx"): 5 * MB + consumed}
    sizes = dict.fromkeys(range(PARTITIONS), 21 * MB)
    assert bound(read, sizes, clients) == pytest.approx(16 * 21 / (0.9 * (15 - consumed / MB) - 0.2))


def test_bound_is_limited_by_the_follower_at_the_given_ratio() -> None:
    clients = dict.fromkeys(link_rates(), 5.0 * MB)
    sizes = dict.fromkeys(range(PARTITIONS), 21 * MB)
    # 5 MB/s of headroom. Producers append 0.2 MB/s to the reassigned partitions.
    assert bound(plan("adaptive"), sizes, clients) == pytest.approx(16 * 21 / (4.5 - 0.2))
    assert bound(plan("adaptive", ratio=0.6), sizes, clients) == pytest.approx(16 * 21 / (3.0 - 0.2))


def test_second_follower_gets_a_quarter_of_the_partitions_and_has_no_replica_before() -> None:
    assert plan("adaptive").partitions_added_to(FOLLOWER) == list(range(PARTITIONS))
    two = plan("adaptive", second="full")
    assert len(two.partitions_added_to(SECOND_FOLLOWER)) == PARTITIONS / 4
    assert not any(SECOND_FOLLOWER in replicas for replicas in two.replicas_before().values())


def test_rate_next_to_full_follower_is_relative_to_the_rate_next_to_an_open_one() -> None:
    first = (0, 9 * MB, 9 * MB)
    runs = [run(second="open", received=(*first, 4 * MB, 4 * MB, 1)), run(second="full", received=(*first, 3 * MB, 1))]
    assert rate_next_to_full_follower(runs) == {("adaptive", 0.9): 0.75}
    assert rate_next_to_full_follower(runs[:1]) == {}


def test_simulator_runs_the_same_reassignment() -> None:
    clients = {direction: 0.5 * rate for direction, rate in link_rates().items()}
    sizes = dict.fromkeys(range(PARTITIONS), 5 * MB)
    policies = ("none", "static", "headroom", "adaptive")
    none, static, headroom, adaptive = [simulated(plan(policy), sizes, clients) for policy in policies]
    lower_bound = bound(plan("adaptive"), sizes, clients)
    assert none < 0.8 * lower_bound
    assert (static, adaptive) == pytest.approx((lower_bound, lower_bound), rel=0.05)
    # Its first rate takes all traffic for copies, since no load is known from before this short reassignment.
    assert none < headroom < lower_bound


def test_simulated_follower_with_a_full_link_does_not_slow_the_other_one() -> None:
    """Rates of the leaders were once lowered near the end. They sent nothing until their meters had drained."""
    sizes = dict.fromkeys(range(PARTITIONS), 5 * MB)
    seconds = []
    for share in (0.5, 0.95):
        clients = {direction: 0.5 * rate for direction, rate in link_rates().items()}
        clients[SECOND_FOLLOWER, "rx"] = share * LINKS[SECOND_FOLLOWER]
        seconds.append(simulated(plan("adaptive", second="full"), sizes, clients))
    assert seconds[1] <= seconds[0] / 0.95 + 1, "durations have a resolution of one second"


def test_client_rates_are_means_over_the_quiet_time() -> None:
    assert client_rates(samples(4.0, 6.0)) == {INBOUND: 5.0 * MB}


def test_a_claim_is_met_if_every_run_meets_it() -> None:
    met = {claim["claim"]: claim["met"] for claim in claims([run(), run(p99=0.7, makespan=103.0)])}
    assert list(met.values()) == [True, False, True, True, True]
    assert claims([run("static")]) == []


def test_table_has_a_cell_in_every_column() -> None:
    heads, row = lines([run()])
    assert heads.startswith("policy    ratio  run  second  makespan s  / bound")
    assert row.split()[:6] == ["adaptive", "0.9", "1", "none", "100.0", "1.11"]
