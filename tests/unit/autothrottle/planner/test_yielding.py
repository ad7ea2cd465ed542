"""Clients that yield to a recovery: their quotas step down, follow the room for the recovery, and are restored."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey, ResourceType
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    ClientReading,
    QuotaKey,
    QuotaState,
    TemporaryQuota,
)
from autothrottle.core.quotas.yielding import BYTE_RATES, MAX_LIMITED, QUOTA_WINDOW, READ_CLIENTS_EVERY, YieldRule
from autothrottle.core.records import CatchUp, Cycle, Pause, PauseMode
from autothrottle.planner.uninstall import take_back_everything
from autothrottle.ports.kafka import Term
from tests import builders
from tests.builders import NOON, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, BROKERS, Bench

PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
RULE = YieldRule("backfill", mb(2), None, "backfill-*", mb(20), None, frozenset({PRODUCER}), "anna", NOON)
BACKFILL = ClientQuotaEntity(DEFAULT, "backfill-1")
CUSTOMER = ClientQuotaEntity(DEFAULT, "customer")
WINDOW = QUOTA_WINDOW.total_seconds()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A client whose name matches is a member of a consumer group, and brokers receive up to 70 MB/s."""
    with Bench() as made:
        made.cluster.group_clients = {"backfill-1", "customer"}
        set_clients(made, inbound=70)
        made.yield_rules.put(RULE.name, RULE)
        yield made


def set_clients(bench: Bench, inbound: float) -> None:
    """Measure this traffic from now on, with links of 100 MB/s."""
    end = bench.now() + timedelta(seconds=31)
    loads = [builders.load(b, outbound=mb(1), inbound=mb(inbound), end=end) for b in BROKERS]
    bench.metrics.set_loads(*loads)


def rates(bench: Bench, key: QuotaKey = PRODUCER) -> dict[str, float]:
    """Entity path -> its quota in MB/s."""
    return {
        resource.path: int(keys[key]) / mb(1)
        for resource, keys in bench.cluster.configs.items()
        if resource.type is ResourceType.QUOTA and key in keys
    }


def begin(bench: Bench) -> None:
    """Begin a recovery, and run its first cycle and the two that it requests."""
    bench.begin_reassignment()
    bench.cycle()
    bench.cycle("clients yield to the recovery")
    bench.cycle("more clients yield to the recovery")


def windows(bench: Bench, count: int = 1) -> list[float | None]:
    """Run a cycle at the end of each window; return the backfill's quota after each, in MB/s."""
    seen = []
    for _ in range(count):
        bench.cycle(after=WINDOW)
        seen.append(rates(bench).get(BACKFILL.path))
    return seen


def new_leader(bench: Bench) -> None:
    bench.planner.stop()
    bench.planner = bench.new_planner()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))


def quota_configs(bench: Bench) -> Mapping[ConfigResource, Mapping[str, str]]:
    return {r: dict(keys) for r, keys in bench.cluster.configs.items() if r.type is ResourceType.QUOTA and keys}


def test_a_client_is_slowed_in_steps_and_released_afterwards(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench.begin_reassignment()
    bench.cycle()
    assert rates(bench) == {}, "the first cycle of a recovery throttles, and reads no clients"
    bench.cycle("clients yield to the recovery")
    bench.cycle("more clients yield to the recovery")
    assert rates(bench) == {BACKFILL.path: 70}
    bench.cycle("something", after=5)
    assert rates(bench) == {BACKFILL.path: 70}
    assert windows(bench, 4) == [35, 20, 20, 20]
    bench.cluster.finish("t1")
    bench.cycle("the reassignment ended")
    bench.cycle("clients no longer yield")
    assert rates(bench) == {} and bench.cluster.ledger == {}
    assert [line for line in caplog.messages if "uota of" in line] == [
        "Quota of users/<default>/clients/backfill-1 set: producer_byte_rate 70000000",
        "Quota of users/<default>/clients/backfill-1 set: producer_byte_rate 35000000",
        "Quota of users/<default>/clients/backfill-1 set: producer_byte_rate 20000000",
        "Quota of users/<default>/clients/backfill-1 restored: producer_byte_rate not set",
    ]


def requested_cycles(bench: Bench, seconds: int) -> list[float | None]:
    """Run the cycles that the planner requests in this time; return the backfill's quota after each, in MB/s."""
    seen = []
    for _ in range(seconds):
        bench.seconds += 1
        while (trigger := bench.planner._triggers.poll()) is not None:
            bench.planner.run_cycle(bench.term, trigger)
            seen.append(rates(bench).get(BACKFILL.path))
    return seen


def test_the_planner_requests_the_cycles_of_the_steps(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    start, changes = bench.seconds, list[tuple[float, float | None]]()
    for _ in range(50):
        for rate in requested_cycles(bench, 1):
            if rate is not None and (not changes or changes[-1][1] != rate):
                changes.append((bench.seconds - start, rate))
    assert changes == [(1, 70), (11, 35), (22, 20)]


def test_a_first_quota_that_is_refused_does_not_request_a_cycle_every_second(bench: Bench) -> None:
    """A missing right on one entity once made the planner run a cycle every second, without end."""
    bench.cluster.refused[BACKFILL.resource] = "not authorized"
    bench.begin_reassignment()
    bench.cycle()
    assert len(requested_cycles(bench, 60)) <= 12


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.parametrize("temporary", [30, 1])
def test_a_temporary_quota_that_ends_hands_over_to_the_rule(bench: Bench, is_removed: bool, temporary: float) -> None:
    """The end once released the client for a cycle, or held it at the floor while no headroom was measured."""
    wanted = TemporaryQuota(BACKFILL, {PRODUCER: mb(temporary)}, "anna", NOON, bench.now() + timedelta(seconds=120))
    bench.temporary_quotas.put(wanted.entity, wanted)
    begin(bench)
    assert windows(bench, 3) == [temporary] * 3
    if is_removed:
        bench.temporary_quotas.remove(BACKFILL)
    seen = requested_cycles(bench, 60)
    assert set(seen) <= {temporary, 20} and seen[-1] == 20
    assert seen[0] == 20 or not is_removed, "a removed quota ends at once"


def test_a_removed_temporary_quota_of_another_client_ends_at_once_during_a_recovery(bench: Bench) -> None:
    """The planner once took its last reading of the quotas as new enough, and restored the quota much later."""
    alice = ClientQuotaEntity("alice")
    wanted = TemporaryQuota(alice, {PRODUCER: mb(1)}, "anna", NOON, NOON + timedelta(hours=1))
    bench.temporary_quotas.put(wanted.entity, wanted)
    begin(bench)
    windows(bench, 3)
    assert rates(bench)[alice.path] == 1
    bench.temporary_quotas.remove(alice)
    requested_cycles(bench, 2)
    assert alice.path not in rates(bench)


def test_a_clock_that_is_set_back_does_not_stop_the_steps(bench: Bench) -> None:
    """After that, every measurement once seemed to be older than the last step, for an hour."""
    begin(bench)
    windows(bench, 3)
    bench.clock_change = timedelta(hours=-1)
    windows(bench)
    bench.seconds += 30
    set_clients(bench, 100)
    assert windows(bench) == [10]


def test_quotas_follow_the_room_that_clients_leave(bench: Bench) -> None:
    begin(bench)
    assert windows(bench, 3) == [35, 20, 20], "the measurement is older than the steps"
    steps = []
    for inbound in (100, 100, 100, 100, 100, 5, 5, 5):
        bench.seconds += 30
        set_clients(bench, inbound)
        steps += windows(bench)
    assert steps == [10, 5, 2.5, 2, 2, 2.5, 3.125, 3.90625]


def test_one_measurement_moves_a_quota_once(bench: Bench) -> None:
    begin(bench)
    windows(bench, 2)
    bench.seconds += 30
    set_clients(bench, 100)
    assert windows(bench, 4) == [10, 10, 10, 10]


def test_a_quota_of_the_operator_is_lowered_but_never_raised(bench: Bench) -> None:
    high, low, defaults = (ClientQuotaEntity(DEFAULT, f"backfill-{name}") for name in ("high", "low", "default"))
    bench.cluster.configs[high.resource] = {PRODUCER: "50000000", CONSUMER: "9"}
    bench.cluster.configs[low.resource] = {PRODUCER: "5000000"}
    bench.cluster.configs[ClientQuotaEntity(client_id="backfill-default").resource] = {PRODUCER: "8000000"}
    before = quota_configs(bench)
    begin(bench)
    windows(bench, 4)
    assert {path: rate for path, rate in rates(bench).items() if "users" in path} == {
        BACKFILL.path: 20,
        high.path: 20,
        low.path: 5,
    }, "level 7 limits the third client, and level 4 would raise that"
    assert defaults.resource not in bench.cluster.ledger and low.resource not in bench.cluster.ledger
    assert bench.cluster.configs[high.resource][CONSUMER] == "9"
    bench.cluster.finish("t1")
    bench.cycle()
    assert quota_configs(bench) == before


def test_a_quota_of_the_operator_is_halved_first_and_not_cut(bench: Bench) -> None:
    bench.cluster.configs[BACKFILL.resource] = {PRODUCER: "60000000"}
    begin(bench)
    assert rates(bench) == {BACKFILL.path: 60}
    assert windows(bench, 3) == [30, 20, 20]


def test_users_with_own_quotas_of_the_client_id_yield_too(bench: Bench) -> None:
    own, other = ClientQuotaEntity("alice", "backfill-1"), ClientQuotaEntity("bob", "backfill-1")
    bench.cluster.configs[own.resource] = {PRODUCER: "90000000"}
    bench.cluster.configs[other.resource] = {CONSUMER: "90000000"}
    begin(bench)
    windows(bench, 4)
    assert rates(bench) == {BACKFILL.path: 20, own.path: 20}
    assert other.resource not in bench.cluster.ledger


def test_customers_are_in_no_change(bench: Bench) -> None:
    others = [
        CUSTOMER,
        ClientQuotaEntity(DEFAULT),
        ClientQuotaEntity(client_id=DEFAULT),
        ClientQuotaEntity("alice"),
        ClientQuotaEntity(DEFAULT, DEFAULT),
    ]
    for entity in others:
        bench.cluster.configs[entity.resource] = {PRODUCER: "77000000"}
    begin(bench)
    windows(bench, 3)
    bench.cluster.finish("t1")
    bench.cycle()
    touched = {c.resource for c in bench.cluster.writes if c.resource.type is ResourceType.QUOTA}
    assert touched == {BACKFILL.resource}


def test_a_killed_leader_is_continued_without_a_jump(bench: Bench) -> None:
    begin(bench)
    assert windows(bench) == [35]
    new_leader(bench)
    bench.cycle("elected")
    bench.cycle("clients yield to the recovery")
    assert rates(bench) == {BACKFILL.path: 35}
    bench.cycle("something", after=WINDOW - 2)
    assert rates(bench) == {BACKFILL.path: 35}, "the first step comes a window after the first cycle of the term"
    assert windows(bench) == [20]
    bench.cluster.finish("t1")
    new_leader(bench)
    bench.cycle()
    assert rates(bench) == {} and bench.cluster.ledger == {}


def test_a_new_leader_keeps_quotas_while_it_cannot_read_the_clients(bench: Bench) -> None:
    begin(bench)
    windows(bench, 2)
    new_leader(bench)
    bench.cluster.group_clients = set()
    assert windows(bench, 3) == [20, 20, 20]


def test_a_client_that_leaves_its_group_stays_limited(bench: Bench) -> None:
    begin(bench)
    bench.cluster.group_clients = set()
    bench.cycle(after=READ_CLIENTS_EVERY.total_seconds() + 1)
    assert BACKFILL.path in rates(bench)


def test_a_client_that_is_found_later_yields_from_the_next_cycle(bench: Bench) -> None:
    begin(bench)
    windows(bench, 3)
    bench.cluster.group_clients |= {"backfill-2"}
    bench.cycle(after=READ_CLIENTS_EVERY.total_seconds())
    bench.cycle("more clients yield to the recovery")
    assert rates(bench)[ClientQuotaEntity(DEFAULT, "backfill-2").path] == 70
    windows(bench, 2)
    assert rates(bench)[ClientQuotaEntity(DEFAULT, "backfill-2").path] == 20


def test_names_without_wildcards_need_no_reading(bench: Bench) -> None:
    bench.yield_rules.put(RULE.name, replace(RULE, client_id="unseen"))
    begin(bench)
    windows(bench, 3)
    assert rates(bench) == {ClientQuotaEntity(DEFAULT, "unseen").path: 20}


def test_removed_and_changed_rules_take_effect_in_the_next_cycle(bench: Bench) -> None:
    begin(bench)
    windows(bench, 3)
    bench.yield_rules.put(RULE.name, replace(RULE, at_most_bytes_per_second=mb(8)))
    assert windows(bench, 3) == [10, 8, 8]
    bench.yield_rules.remove("backfill")
    bench.cycle("a yield rule changed")
    assert rates(bench) == {} and BACKFILL.resource not in bench.cluster.ledger


def test_the_lower_of_two_rules_counts_with_its_floor(bench: Bench) -> None:
    bench.yield_rules.put(
        "all",
        replace(RULE, name="all", client_id="*ill-1", at_most_bytes_per_second=mb(12), floor_bytes_per_second=mb(11)),
    )
    begin(bench)
    assert windows(bench, 4) == [35, 17.5, 12, 12]
    bench.seconds += 30
    set_clients(bench, 90)
    assert windows(bench) == [11]


def test_a_share_of_the_capacity_waits_for_metrics(bench: Bench) -> None:
    bench.yield_rules.put(RULE.name, replace(RULE, at_most_bytes_per_second=None, at_most_share=0.1))
    loads, bench.metrics.loads = bench.metrics.loads, builders.loads()
    begin(bench)
    record = bench.cycle()
    assert rates(bench) == {}
    assert any("yield rule backfill waits for metrics" in finding for finding in record.findings)
    bench.metrics.loads = loads
    bench.cycle()
    assert windows(bench, 4) == [35, 17.5, 10, 10]


def test_without_metrics_the_limit_is_set_and_kept(bench: Bench) -> None:
    bench.metrics.unavailable(True)
    begin(bench)
    assert rates(bench) == {BACKFILL.path: 20}
    assert windows(bench, 3) == [20, 20, 20]


def test_keys_of_a_temporary_quota_are_left_alone(bench: Bench) -> None:
    temporary = TemporaryQuota(BACKFILL, {PRODUCER: mb(60)}, "anna", NOON, NOON + timedelta(hours=1))
    bench.yield_rules.put(RULE.name, replace(RULE, keys=BYTE_RATES))
    bench.temporary_quotas.put(temporary.entity, temporary)
    begin(bench)
    windows(bench, 3)
    assert rates(bench) == {BACKFILL.path: 60} and rates(bench, CONSUMER) == {BACKFILL.path: 20}
    bench.temporary_quotas.remove(BACKFILL)
    assert windows(bench, 3) == [30, 20, 20]
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.cluster.ledger == {} and quota_configs(bench) == {}


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_changes_no_quota(bench: Bench, mode: PauseMode) -> None:
    begin(bench)
    windows(bench)
    bench.pauses.set_pause(Pause(mode))
    assert windows(bench, 3) == [35, 35, 35]
    bench.cluster.finish("t1")
    bench.cycle()
    assert rates(bench) == {BACKFILL.path: 35}
    bench.pauses.remove_pause()
    bench.cycle("resumed")
    assert rates(bench) == {}


def test_shadow_mode_writes_no_quota() -> None:
    with Bench(shadow=True) as bench:
        bench.cluster.group_clients = {"backfill-1"}
        bench.yield_rules.put(RULE.name, RULE)
        begin(bench)
        assert windows(bench, 3) == [None, None, None] and bench.cluster.writes == []


def test_quotas_stay_while_it_is_unknown_whether_a_recovery_runs(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1003)})
    bench.cluster.leave_isr("t1", 0, 1003)
    bench.catch_ups.put(1003, CatchUp(1003))
    bench.cycle()
    bench.cycle("clients yield to the recovery")
    bench.cycle("more clients yield to the recovery")
    assert windows(bench) == [35]
    new_leader(bench)
    bench.catch_ups.unavailable(True)
    assert windows(bench, 3) == [35, 35, 35]
    bench.catch_ups.unavailable(False)
    bench.cluster.join_isr("t1", 0, 1003)
    bench.cycle()
    bench.cycle()
    assert rates(bench) == {} and bench.cluster.ledger == {}


def test_rules_that_were_never_read_restore_nothing(bench: Bench) -> None:
    begin(bench)
    windows(bench)
    new_leader(bench)
    bench.yield_rules.unavailable(True)
    record = bench.cycle()
    assert rates(bench) == {BACKFILL.path: 35}
    assert any("the yield rules cannot be read; no quota changes until they can" in one for one in record.findings)


def test_uninstalling_restores_the_quotas(bench: Bench) -> None:
    bench.cluster.configs[BACKFILL.resource] = {PRODUCER: "60000000"}
    begin(bench)
    windows(bench, 2)
    take_back_everything(bench.term, bench.cluster, bench.cluster, bench.cluster)
    assert rates(bench) == {BACKFILL.path: 60} and bench.cluster.ledger == {}


def test_uninstalling_waits_for_writes_that_may_still_arrive(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing restores a late value after the end of the process that uninstalls."""
    monkeypatch.setattr("autothrottle.core.throttles.changes.LATE_WRITES", timedelta(seconds=0.2))
    unconfirmed = LedgerEntry({PRODUCER: LedgerKey(None, None, intent="35000000")}, 1)
    bench.cluster.ledger[BACKFILL.resource] = unconfirmed

    def sleep(seconds: float) -> None:
        bench.cluster.configs.setdefault(BACKFILL.resource, {})[PRODUCER] = "35000000"
        time.sleep(seconds)

    take_back_everything(bench.term, bench.cluster, bench.cluster, bench.cluster, sleep)
    assert rates(bench) == {} and bench.cluster.ledger == {}


def test_too_many_clients_are_named_and_the_limited_ones_stay(bench: Bench) -> None:
    bench.cluster.group_clients = {f"backfill-{n:04}" for n in range(MAX_LIMITED)}
    begin(bench)
    first = rates(bench).keys()
    assert len(first) == MAX_LIMITED
    bench.cluster.group_clients |= {f"backfill-!{n}" for n in range(3)}
    record = bench.cycle(after=READ_CLIENTS_EVERY.total_seconds())
    assert rates(bench).keys() == first
    assert any(
        finding.startswith("yield rules backfill match too many clients: 3 of them are not limited")
        for finding in record.findings
    )


def test_quotas_are_read_once_per_window_also_while_a_broker_catches_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(bench)
    windows(bench, 3)
    reads, fetch = list[float](), MemoryCluster.fetch_quota_state

    def counted(cluster: MemoryCluster, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        reads.append(bench.seconds)
        return fetch(cluster, resources, timeout)

    monkeypatch.setattr(MemoryCluster, "fetch_quota_state", counted)
    for _ in range(33):
        bench.cycle("a broker catches up")
    assert len(reads) == 3
    bench.cluster.finish("t1")
    while (trigger := bench.planner._triggers.poll()) is not None:
        bench.planner.run_cycle(bench.term, trigger)
    assert rates(bench) == {}, "the end requests the cycle that restores"


def test_a_refused_quota_is_tried_again_in_the_next_cycle(bench: Bench) -> None:
    begin(bench)
    assert windows(bench) == [35]
    bench.cluster.refused[BACKFILL.resource] = "the controller is busy"
    assert windows(bench) == [35]
    bench.cluster.refused.clear()
    assert windows(bench) == [20]
    bench.cluster.set_config_as_user(BACKFILL.resource, PRODUCER, "900")
    assert windows(bench) == [20], "another party's edit is repaired"


def plug_in_findings(record: Cycle) -> list[str]:
    return [finding for finding in record.findings if "plug-in" in finding]


@pytest.mark.parametrize(("now", "is_ineffective"), [(100, True), (50, False)])
def test_plug_ins_are_reported_and_checked_for_an_effect(bench: Bench, now: float, is_ineffective: bool) -> None:
    bench.cluster.plug_ins = {1002: "io.strimzi.StaticQuotaCallback"}
    bench.yield_rules.put(RULE.name, replace(RULE, floor_bytes_per_second=mb(20)))
    begin(bench)
    assert plug_in_findings(bench.cycle(after=1)) == [
        "brokers 1002 use the plug-in io.strimzi.StaticQuotaCallback for client quotas "
        "(client.quota.callback.class); Kafka's quotas may have no effect there"
    ]
    assert windows(bench, 3) == [35, 20, 20]
    set_clients(bench, now)
    assert len(plug_in_findings(bench.cycle(after=WINDOW))) == 1, "the last step is not three windows ago"
    found = plug_in_findings(bench.cycle(after=WINDOW))
    assert len(found) == 1 + is_ineffective
    assert not is_ineffective or found[1].startswith(
        "the plug-in io.strimzi.StaticQuotaCallback seems to ignore Kafka's quotas: clients had 71 MB/s"
    )


def test_clients_are_read_beside_the_cluster_and_only_when_due(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, fetch = list[str](), MemoryCluster.fetch_clients

    def counted(cluster: MemoryCluster, timeout: timedelta) -> ClientReading:
        threads.append(threading.current_thread().name)
        return fetch(cluster, timeout)

    monkeypatch.setattr(MemoryCluster, "fetch_clients", counted)
    bench.cycle()
    begin(bench)
    windows(bench, 4)
    assert len(threads) == 1 and threads[0] != threading.current_thread().name
    windows(bench, 2)
    assert len(threads) == 2
    bench.cluster.finish("t1")
    for _ in range(3):
        bench.cycle()
    assert len(threads) == 3, "the cycle that sees the end still reads them"


def test_clients_are_read_once_a_minute_also_while_cycles_follow_each_other_closely(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading of the groups that came due between two readings of the quotas was once repeated in every cycle."""
    read, fetch = list[float](), MemoryCluster.fetch_clients

    def counted(cluster: MemoryCluster, timeout: timedelta) -> ClientReading:
        read.append(bench.seconds)
        return fetch(cluster, timeout)

    monkeypatch.setattr(MemoryCluster, "fetch_clients", counted)
    begin(bench)
    for _ in range(79):
        bench.cycle("a broker catches up", after=2.3)
    assert len(read) == 3
