"""How a move over shaped links is judged (`make bench-links`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.lab.links import Count
from tests.benchmarks.links.layout import (
    DESTINATION,
    LINKS,
    MOVED_PARTITIONS,
    SECOND,
    Plan,
    beside,
    bound,
    client_rates,
    rates_of_links,
    ring,
    simulated,
)
from tests.benchmarks.links.tally import (
    ALL,
    DESTINATIONS,
    MOVING,
    Run,
    Sample,
    Waits,
    at_finishes,
    beside_a_full_one,
    carried_rates,
    claims,
    full_share,
    landing_rates,
    lines,
    waits,
)

PORT = (1005, "rx")
MB = 1_000_000


def sample(at: float, total: float) -> Sample:
    """The port has carried so many bytes, and all of them have landed."""
    return Sample(at, {PORT: Count(at, round(total))}, round(total))


def samples(*megabytes: float) -> list[Sample]:
    """One sample a second; what the port carried in each second."""
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
    quiet = dict.fromkeys((ALL, DESTINATIONS, MOVING), Waits(1000, 0.01, 0.1, 0.2))
    moving = dict.fromkeys((ALL, DESTINATIONS, MOVING), Waits(1000, 0.02, p99, most))
    throttles, carried = [(0.0, 4 * MB)], [9 * MB]
    judged = (makespan, 90.0, 95.0, quiet, moving, 0.4, full, full, 1.5, 0, 2.0, throttles, received, carried, [0.1])
    return Run(policy, 0.9, 1, second, *judged)


def plan(policy: str, ratio: float = 0.9, second: str = "none") -> Plan:
    return Plan(policy, ratio, 1, 10, 10, 10, 15.0, second=second)


def test_a_second_is_full_from_98_percent_of_the_rate_on() -> None:
    assert full_share(samples(9.7, 9.8, 10.0, 1.0), {PORT: 10.0 * MB}) == 0.5


def test_what_a_link_carries_is_told_second_by_second() -> None:
    assert carried_rates(samples(4.0, 6.0, 9.5), PORT) == [4.0 * MB, 6.0 * MB, 9.5 * MB]


def test_a_port_is_full_by_the_moments_of_its_own_counts() -> None:
    """Who looks may be held up between the ports: by one moment for all of them even links were full by turns."""
    held_up = [
        Sample(float(at), {PORT: Count(at + late, round((at + late) * 9.5 * MB))}, 0)
        for at, late in enumerate((0.0, 0.05, 0.0))
    ]
    assert full_share(held_up, {PORT: 10.0 * MB}) == 0.0
    assert carried_rates(held_up, PORT) == pytest.approx([9.5 * MB, 9.5 * MB])


def test_a_late_sample_makes_a_longer_second_and_no_faster_one() -> None:
    late = [sample(0.0, 0), sample(2.0, 10 * MB)]
    assert full_share(late, {PORT: 10.0 * MB}) == 0.0
    assert landing_rates(late) == [5.0 * MB]


def test_samples_that_follow_too_soon_are_put_together() -> None:
    hurried = [sample(at, at * MB) for at in (0.0, 0.2, 1.0, 1.1, 2.0)]
    assert landing_rates(hurried) == [MB, MB]


def test_only_what_was_due_around_a_finish_counts_for_it() -> None:
    waited = [(8.0, 9.0), (9.5, 0.5), (13.0, 0.7), (15.0, 5.0)]
    assert at_finishes(waited, [10.0]) == 0.7
    assert at_finishes(waited, []) == 0.0


@given(st.lists(st.floats(0, 100), min_size=1))
def test_at_least_99_percent_wait_no_longer_than_the_p99(waited: list[float]) -> None:
    found = waits(waited)
    assert sum(one <= found.p99 for one in waited) >= 0.99 * len(waited)
    assert found.p50 <= found.p99 <= found.most == max(waited)


def test_nobody_waited_where_nothing_was_produced() -> None:
    assert waits([]) == Waits(0, 0.0, 0.0, 0.0)


def test_clients_take_half_of_every_links_receiving_direction() -> None:
    received = dict.fromkeys(LINKS, 0.0)
    for replicas, rate in [*((r, 2.1875) for r in ring().values()), *((r, 0.625) for r in beside().values())]:
        for broker_id in replicas:
            received[broker_id] += rate * MB
    assert received == {broker_id: rate / 2 for broker_id, rate in LINKS.items()}


def test_the_bound_is_what_the_destination_needs_at_that_ratio() -> None:
    clients = dict.fromkeys(rates_of_links(), 5.0 * MB)
    sizes = dict.fromkeys(range(MOVED_PARTITIONS), 21 * MB)
    # 5 MB/s of headroom, of which 0.2 MB/s are what is produced to the moving partitions meanwhile.
    assert bound(plan("adaptive"), sizes, clients) == pytest.approx(16 * 21 / (4.5 - 0.2))
    assert bound(plan("adaptive", ratio=0.6), sizes, clients) == pytest.approx(16 * 21 / (3.0 - 0.2))


def test_a_second_destination_has_a_quarter_of_the_partitions_and_no_replica_before() -> None:
    assert plan("adaptive").moved_to(DESTINATION) == list(range(MOVED_PARTITIONS))
    two = plan("adaptive", second="full")
    assert len(two.moved_to(SECOND)) == MOVED_PARTITIONS / 4
    assert not any(SECOND in replicas for replicas in two.before_the_move().values())


def test_what_a_destination_gets_beside_a_full_one_is_by_what_it_gets_beside_an_open_one() -> None:
    first = (0, 9 * MB, 9 * MB)
    runs = [run(second="open", received=(*first, 4 * MB, 4 * MB, 1)), run(second="full", received=(*first, 3 * MB, 1))]
    assert beside_a_full_one(runs) == {("adaptive", 0.9): 0.75}
    assert beside_a_full_one(runs[:1]) == {}


def test_the_simulator_plays_the_same_move() -> None:
    clients = {port: 0.5 * rate for port, rate in rates_of_links().items()}
    sizes = dict.fromkeys(range(MOVED_PARTITIONS), 5 * MB)
    policies = ("none", "static", "headroom", "adaptive")
    none, *throttled = [simulated(plan(policy), sizes, clients) for policy in policies]
    least = bound(plan("adaptive"), sizes, clients)
    assert none < 0.8 * least
    assert throttled == pytest.approx([least] * 3, rel=0.05)


def test_in_the_simulator_a_destination_that_clients_fill_does_not_slow_the_other_one() -> None:
    """Its leaders' rates were once lowered when little was left: nothing went out until their meters had drained."""
    sizes = dict.fromkeys(range(MOVED_PARTITIONS), 5 * MB)
    took = []
    for share in (0.5, 0.95):
        clients = {port: 0.5 * rate for port, rate in rates_of_links().items()}
        clients[SECOND, "rx"] = share * LINKS[SECOND]
        took.append(simulated(plan("adaptive", second="full"), sizes, clients))
    assert took[1] <= took[0] / 0.95 + 1, "it is told to a second"


def test_client_rates_are_means_of_the_quiet_time() -> None:
    assert client_rates(samples(4.0, 6.0)) == {PORT: 5.0 * MB}


def test_a_claim_is_met_when_every_run_meets_it() -> None:
    met = {claim["claim"]: claim["met"] for claim in claims([run(), run(p99=0.7, makespan=103.0)])}
    assert list(met.values()) == [True, False, True, True, True]
    assert claims([run("static")]) == []


def test_the_table_has_a_cell_in_every_column() -> None:
    heads, row = lines([run()])
    assert heads.startswith("policy    ratio  run  second  makespan s  / bound")
    assert row.split()[:6] == ["adaptive", "0.9", "1", "none", "100.0", "1.11"]
