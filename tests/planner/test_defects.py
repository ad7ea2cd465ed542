"""Defects of the original that only a whole planner shows; each test tells what went wrong there.

What a pure function shows already is in tests/core, what a library did is with its adapter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.memory import MemoryCluster, MemoryMembers, MemoryMembership
from autothrottle.adapters.rpc import PlannerClient
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.servicer import AdminServicer
from autothrottle.core.changes import Change, Outcome, OutcomeStatus
from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    ResourceType,
)
from autothrottle.core.plan import Reason
from autothrottle.core.topology import Problem
from autothrottle.lab.processes import free_ports, scratch_directory
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2_grpc
from tests import builders
from tests.builders import eventually, mb
from tests.planner.bench import BROKERS, FOLLOWER, LEADER, Bench

MOVE = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
TOPIC = ConfigResource.topic("t1")


# The lists were written by the first cycle that saw a topic. When that one failed (a broker without metrics was
# enough), the topic was known from then on and its lists were never written: rates stood, and throttled nothing.
@pytest.mark.parametrize("fault", ["the cluster is away", "the lists are refused"])
def test_d4_lists_come_although_the_first_cycle_failed(bench: Bench, fault: str) -> None:
    bench.cycle()
    bench.begin_move()
    bench.cluster.unavailable(fault == "the cluster is away")
    bench.cluster.refuse(TOPIC, "not now" if fault == "the lists are refused" else "")
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == (None, None)
    bench.cluster.unavailable(False)
    bench.cluster.refuse(TOPIC, "")
    bench.cycle("trying again")
    assert (bench.rates(), bench.lists()) == (MOVE, EXACT)


# Partitions that were added to a known topic, a new destination and a new leader changed no list: they moved
# unthrottled until the whole topic was done.
def test_d5_lists_follow_the_move_from_cycle_to_cycle(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
    bench.cluster.start_reassignment("t1", {0: (1001, 1003)})
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == EXACT
    bench.cluster.start_reassignment("t1", {1: (1002, 1004)})
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == ("0:1001,0:1002,1:1001,1:1002", "0:1003,1:1004")
    bench.cluster.leave_isr("t1", 0, 1001)
    bench.cluster.move_leader("t1", 0, 1002)
    bench.cycle("the leader of t1-0 changed")
    assert bench.lists() == ("0:1002,1:1001,1:1002", "0:1003,1:1004")
    assert set(bench.rates()) == {(1002, "leader"), (1003, "follower"), (1004, "follower")}


# The previous rate was what the process had last written itself. After a restart there was none, so that every
# rate was written anew, whatever the threshold, and measured as if nothing had been throttled.
def test_d10_after_a_restart_what_stands_is_the_previous_rate(bench: Bench) -> None:
    bench.begin_move()
    bench.cycle()
    written = len(bench.cluster.writes)
    bench.planner.stop()
    bench.planner = bench.another_planner()
    bench.measure(1001, tx=95)  # replication at 72, clients at 23: 5 % less than what stands
    bench.measure(1003, rx=91)  # replication at 81, clients at 10: just as it stands
    record = bench.cycle()
    assert [(d.reason, d.standing, d.headroom) for d in record.decisions] == [
        (Reason.UNCHANGED, mb(72), mb(69.3)),
        (Reason.UNCHANGED, mb(81), mb(81)),
    ]
    assert (bench.rates(), len(bench.cluster.writes)) == (MOVE, written)


# Lists of an override and of a reassignment were written by two paths, each over the other's; the last one won,
# and what the loser had written before stayed for ever.
def test_d11_a_move_and_an_override_share_a_list_and_part_again(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1004, 1002)})
    bench.overrides.set_override(1004, mb(50), autoremove=False)
    bench.cycle("an override changed")
    assert bench.lists() == (None, "1:1004")
    bench.cluster.start_reassignment("t1", {0: (1001, 1003)})
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == ("0:1001,0:1002", "0:1003,1:1004")
    bench.cluster.finish("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.lists() == (None, "1:1004")
    bench.overrides.remove_override(1004)
    bench.cycle("an override changed")
    assert bench.is_clean()


# The clean-up ran when a counter was exactly the configured number. If that one cycle failed, the counter went
# past it, and the throttles that somebody had forgotten stayed until the next restart.
@pytest.mark.parametrize("fault", ["the cluster is away", "the write is refused"])
def test_d20_a_clean_up_that_failed_is_made_up_by_the_next_cycle(fault: str) -> None:
    with Bench(cleanup_after=2, cleanup_foreign=True) as bench:
        forgotten = ConfigResource.broker(1004)
        bench.cluster.set_config_as_user(forgotten, LEADER_RATE, "1000")
        bench.cycle()
        bench.cycle()
        bench.cluster.unavailable(fault == "the cluster is away")
        bench.cluster.refuse(forgotten, "not now" if fault == "the write is refused" else "")
        bench.cycle()
        bench.cycle()
        assert bench.cluster.configs[forgotten] == {LEADER_RATE: "1000"}
        bench.cluster.unavailable(False)
        bench.cluster.refuse(forgotten, "")
        bench.cycle("trying again")
        if fault == "the cluster is away":
            bench.cycle()  # the interval that could not be seen to be idle does not count
        assert bench.is_clean()


# A move begun with Kafka's own tool was not seen at all, and with `--throttle` its rates and lists were taken for
# left-overs: they were removed in mid-move, and the rest went at link speed.
def test_d23_throttles_of_kafkas_tool_are_taken_over_by_a_planner_that_starts_in_mid_move(bench: Bench) -> None:
    bench.begin_move()
    for broker_id in (1001, 1002, 1003):
        for key in (LEADER_RATE, FOLLOWER_RATE):
            bench.cluster.set_config_as_user(ConfigResource.broker(broker_id), key, "40000000")
    bench.cluster.set_config_as_user(TOPIC, LEADER_REPLICAS, "0:1001,0:1002")
    bench.cluster.set_config_as_user(TOPIC, FOLLOWER_REPLICAS, "0:1003")
    bench.metrics.unavailable(True)
    for _ in range(2):
        bench.cycle()
        assert bench.rate(1001, LEADER) is not None and bench.rate(1003, FOLLOWER) is not None
        assert bench.lists() == EXACT
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()


class ChunkedCluster(MemoryCluster):
    """Remembers what stood after each call of `apply`."""

    calls: list[tuple[dict[ConfigResource, dict[str, str]], int]]

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        outcomes = super().apply(fence, changes, timeout)
        self.calls.append(({r: dict(c) for r, c in self.configs.items()}, len(self.writes)))
        return outcomes


# First the rates of all brokers were written, a second for four of them, then the lists of all topics. Until a
# topic's list stood its rates throttled nothing: with five brokers 25 to 70 % of the bytes had moved by then.
def test_d26_rates_and_lists_go_in_the_first_batch_together() -> None:
    with Bench() as bench:
        cluster = ChunkedCluster(bench.electorate, BROKERS)
        cluster.calls = []
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.another_planner()
        topics = [f"t{number}" for number in range(20)]
        for topic in topics:
            bench.begin_move(topic, partitions=3)
        bench.cycle("a reassignment started")
        (standing, count), *later = cluster.calls
        assert later == []
        assert count == len(cluster.writes) == 2 + len(topics)
        throttled = [
            entry.partition(":")[2]
            for topic in topics
            for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
            for entry in standing[ConfigResource.topic(topic)][key].split(",")
        ]
        with_rates = {r.name for r, config in standing.items() if r.type is ResourceType.BROKER and config}
        assert with_rates == {"1001", "1003"}
        assert with_rates <= set(throttled), "no rate stands without its list"
        assert bench.rates() == MOVE


# The minimum was a floor under every rate: a broker whose clients needed the whole link was over its capacity for as
# long as the move took, and nothing but an end of the move could help it.
def test_d25_a_broker_over_its_capacity_is_paused_and_goes_on_when_its_clients_leave_room() -> None:
    with Bench(limits=builders.limits(pause_over_capacity=True)) as bench:
        bench.begin_move()
        bench.cycle()
        assert bench.rates() == MOVE
        bench.measure(1003, rx=100)
        paused = bench.cycle()
        assert bench.rate(1003, FOLLOWER) == 0.0 and bench.rate(1001, LEADER) == 72.0
        assert {d.broker_id: d.reason for d in paused.decisions}[1003] is Reason.OVER_CAPACITY
        written = len(bench.cluster.writes)
        bench.cycle()
        assert len(bench.cluster.writes) == written, "a pause that stands is not written again"
        bench.measure(1003, rx=95)
        bench.cycle()
        bench.rise()
        assert bench.rate(1003, FOLLOWER) == 4.5, "below the minimum of 10"
        bench.measure(1003, rx=10)
        bench.cycle()
        bench.rise()
        assert bench.rates() == MOVE
        bench.cluster.finish("t1")
        bench.cycle()
        assert bench.is_clean()


# While a cycle waited for Datadog, or slept a quarter of a second after each of its writes, POST /throttle waited
# for it: 15 s with 60 brokers, more than 30 s with 1,000.
def test_d28_the_api_answers_at_once_while_the_metrics_source_hangs(tmp_path: Path) -> None:
    with Bench(real_time=True) as bench:
        planner_address = f"unix:{tmp_path}/planner.sock"
        add_planner = planner_pb2_grpc.add_PlannerServiceServicer_to_server
        planner = ServiceServer(
            "planner",
            [(add_planner, PlannerServicer(bench.planner), "autothrottle.v1.PlannerService")],
            planner_address,
        )
        client = PlannerClient([planner_address])
        servicer = AdminServicer(
            bench.overrides,
            client,
            bench.cluster,
            bench.cluster,
            MemoryMembership(MemoryMembers()),
            bench.pauses,
            Estimator(bench.cluster, bench.cluster, bench.metrics, bench.overrides, builders.limits()),
            bench.catch_ups,
        )
        add_admin = admin_pb2_grpc.add_AdminServiceServicer_to_server
        admin = ServiceServer("admin", [(add_admin, servicer, "autothrottle.v1.AdminService")])
        bench.metrics.reading_gate.clear()
        bench.begin_move()
        with planner, admin, grpc.insecure_channel(admin.address) as channel:
            bench.planner.start(planner_address)
            assert bench.metrics.hangs.wait(60)
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            stub.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=60)  # connects
            override = admin_pb2.Override(broker_id=1003, rate_bytes_per_second=mb(50))
            setting = fastest(lambda: stub.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=60))
            asking = fastest(lambda: stub.RequestCycle(admin_pb2.RequestCycleRequest(), timeout=60))
            looking = fastest(lambda: stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=60))
            assert bench.planner.state().last_cycle is None, "the cycle still hangs"
            assert max(setting, asking, looking) < 5, "the cycle hangs for half a minute"
            bench.metrics.reading_gate.set()
            eventually(lambda: bench.rate(1003, FOLLOWER) == 50.0)
        client.close()


def fastest(call: Callable[[], object]) -> float:
    """The time of the fastest of five calls, seconds: the machine may be busy, a lock would hold them all."""
    times = []
    for _ in range(5):
        started = time.monotonic()
        call()
        times.append(time.monotonic() - started)
    return min(times)


# With a comma list of servers the program ended at once with status 1: the list was taken for one host name.
def test_d29_a_comma_list_of_zookeeper_servers_works_also_while_one_of_them_is_down() -> None:
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        (nobody,) = free_ports(1)
        configuration = parse(["--zk-addr", f"127.0.0.1:{nobody},{server.connect}"], {})
        hosts = configuration.zookeeper.connect_string
        assert hosts == f"127.0.0.1:{nobody},{server.connect}"
        client = connect(hosts, timedelta(seconds=6), timedelta(seconds=15))
        try:
            assert "zookeeper" in client.get_children("/")
        finally:
            disconnect(client)


# A broker kept its rate after its last partition had gone elsewhere, until the whole reassignment was over; and
# partitions that had arrived stayed in the lists, where their healthy replication was slowed down.
def test_d30_a_leader_that_left_the_move_and_a_partition_that_arrived_are_free_at_once(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1004, 1002)})
    bench.cluster.start_reassignment("t1", {0: (1001, 1003), 1: (1004, 1003)})
    bench.cycle()
    assert set(bench.rates()) == {(1001, "leader"), (1003, "follower"), (1004, "leader")}
    bench.cluster.join_isr("t1", 1, 1003)
    bench.cycle("broker 1003 joined the ISR of t1-1")
    assert (bench.rates(), bench.lists()) == (MOVE, EXACT)


# `config: null`, or half a JSON, in one config node was either a panic of the whole program, or overwritten with
# what the program knew of it, which was nothing: the user's other keys were gone.
def test_d31_an_unreadable_config_is_refused_by_name_and_taken_up_again_when_it_is_mended(bench: Bench) -> None:
    broken = ConfigResource.broker(1003)
    reason = "holds no object under `config`; mend it"
    bench.cluster.configs[broken] = {"log.retention.ms": "5"}
    bench.cluster.unreadable_configs[broken] = Problem("/config/brokers/1003", reason)
    bench.begin_move()
    record = bench.cycle()
    assert (broken, f"/config/brokers/1003: {reason}") in [
        (o.resource, o.reason) for o in record.outcomes if o.status is OutcomeStatus.REFUSED
    ]
    assert bench.cluster.configs[broken] == {"log.retention.ms": "5"}
    assert (bench.rates(), bench.lists()) == ({(1001, "leader"): 72.0}, EXACT)
    bench.cluster.unreadable_configs.clear()
    bench.cycle("trying again")
    assert bench.rates() == MOVE
    assert bench.cluster.configs[broken] == {"log.retention.ms": "5", FOLLOWER_RATE: str(mb(81))}


# An override by less than the change threshold was not written, nor was the fail-safe: 10.5 MB/s stayed where the
# operator had asked for 10.
def test_d8_an_override_and_the_fail_safe_are_written_however_small_the_difference() -> None:
    with Bench(limits=builders.limits(min_rate=mb(71.5), failure_threshold=0)) as bench:
        bench.begin_move()
        bench.cycle()
        bench.overrides.set_override(1001, mb(72.1), autoremove=False)
        bench.cycle("an override changed")
        assert bench.rate(1001, LEADER) == 72.1
        bench.overrides.remove_override(1001)
        bench.metrics.unavailable(True)
        bench.cycle()
        assert bench.rate(1001, LEADER) == 71.5


# An override and the fail-safe wrote both rates on every participant; when they ended, the other role's stayed.
def test_d27_only_the_roles_that_a_broker_holds_are_written_and_nothing_stays(bench: Bench) -> None:
    bench.overrides.set_override(None, mb(30), autoremove=False)
    bench.begin_move()
    bench.cycle()
    assert set(bench.rates()) == set(MOVE)
    bench.overrides.remove_override(None)
    bench.metrics.unavailable(True)
    for _ in range(3):
        bench.cycle()
    assert set(bench.rates()) == set(MOVE)
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()
