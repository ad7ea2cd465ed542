"""Defects of the original that need a whole planner; the comment above each test describes the defect.

Tests of defects in pure functions are in core, and those in libraries are with their adapter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.grpc.services import PlannerServiceClient
from autothrottle.adapters.memory import MemoryAuditedMap, MemoryCluster, MemoryMembers, MemoryMembership
from autothrottle.adapters.zookeeper.map_codecs import REQUEST_QUOTAS
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.servicer import AdminServicer
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    ResourceType,
)
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Outcome, OutcomeStatus, Reason
from autothrottle.core.throttles.changes import Change
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.ports.kafka import Term
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2_grpc
from tests import builders
from tests.builders import AT_ONCE, eventually, mb
from tests.unit.autothrottle.planner.bench import BROKERS, FOLLOWER, LEADER, Bench

RATES = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
TOPIC = ConfigResource.topic("t1")


@pytest.mark.parametrize("fault", ["the cluster is unavailable", "the lists are refused"])
def test_lists_are_written_after_a_failed_first_cycle(bench: Bench, fault: str) -> None:
    """D4: the original writes a topic's lists only in the first cycle that sees the topic.

    If that cycle fails, for example because a broker lacks metrics, the lists are never written, and the rates throttle
    nothing.
    """
    bench.cycle()
    bench.begin_reassignment()
    bench.cluster.unavailable(fault == "the cluster is unavailable")
    bench.cluster.refused[TOPIC] = "not now" if fault == "the lists are refused" else ""
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == (None, None)
    bench.cluster.unavailable(False)
    bench.cluster.refused[TOPIC] = ""
    bench.cycle("retrying after a failure")
    assert (bench.rates(), bench.lists()) == (RATES, EXACT)


def test_lists_follow_the_reassignment_from_cycle_to_cycle(bench: Bench) -> None:
    """Defect D5 of the original.

    The original does not update the lists of a known topic for more partitions, a new adding replica or a new leader.
    Those replicas copied unthrottled until the whole topic was done.
    """
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
    bench.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == EXACT
    bench.cluster.submit_reassignment("t1", {1: (1002, 1004)})
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == ("0:1001,0:1002,1:1001,1:1002", "0:1003,1:1004")
    bench.cluster.leave_isr("t1", 0, 1001)
    bench.cluster.move_leader("t1", 0, 1002)
    bench.cycle("the leader of t1-0 changed")
    assert bench.lists() == ("0:1002,1:1001,1:1002", "0:1003,1:1004")
    assert set(bench.rates()) == {(1002, "leader"), (1003, "follower"), (1004, "follower")}


def test_after_a_restart_the_current_throttle_is_the_previous_rate(bench: Bench) -> None:
    """D10: the original's previous rate is the last one that the process wrote.

    After a restart it had none: it wrote every rate again, regardless of the threshold, and measured the load as if
    nothing was throttled.
    """
    bench.begin_reassignment()
    bench.cycle()
    written = len(bench.cluster.writes)
    bench.planner.stop()
    bench.planner = bench.new_planner()
    bench.set_load(1001, outbound=95)  # replication 72, clients 23: headroom 5 % below the current throttle
    bench.set_load(1003, inbound=91)  # replication 81, clients 10: headroom equal to the current throttle
    record = bench.cycle()
    assert [(d.reason, d.current_rate_bytes_per_second, d.headroom_bytes_per_second) for d in record.decisions] == [
        (Reason.UNCHANGED, mb(72), mb(69.3)),
        (Reason.UNCHANGED, mb(81), mb(81)),
    ]
    assert (bench.rates(), len(bench.cluster.writes)) == (RATES, written)


def test_a_reassignment_and_an_override_share_a_list(bench: Bench) -> None:
    """D11: the original writes the lists of overrides and of reassignments by two code paths that overwrite each other.

    The entries of the path that lost stayed for ever.
    """
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1004, 1002)})
    bench.overrides.set_override(1004, StoredOverride(mb(50)))
    bench.cycle("an override changed")
    assert bench.lists() == (None, "1:1004")
    bench.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    bench.cycle("a reassignment of [t1] started")
    assert bench.lists() == ("0:1001,0:1002", "0:1003,1:1004")
    bench.cluster.finish("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.lists() == (None, "1:1004")
    bench.overrides.remove_override(1004)
    bench.cycle("an override changed")
    assert bench.is_clean()


@pytest.mark.parametrize("fault", ["the cluster is unavailable", "the write is refused"])
def test_a_failed_cleanup_is_retried_by_the_next_cycle(fault: str) -> None:
    """D20: the original cleans up when a counter equals the configured number.

    If that cycle failed, the counter passed the number, and forgotten throttles stayed until the next restart.
    """
    with Bench(cleanup_after=2, cleanup_foreign=True) as bench:
        forgotten = ConfigResource.broker(1004)
        bench.cluster.set_config_as_user(forgotten, LEADER_RATE, "1000")
        bench.cycle()
        bench.cycle()
        bench.cluster.unavailable(fault == "the cluster is unavailable")
        bench.cluster.refused[forgotten] = "not now" if fault == "the write is refused" else ""
        bench.cycle()
        bench.cycle()
        assert bench.cluster.configs[forgotten] == {LEADER_RATE: "1000"}
        bench.cluster.unavailable(False)
        bench.cluster.refused[forgotten] = ""
        bench.cycle("retrying after a failure")
        if fault == "the cluster is unavailable":
            bench.cycle()  # the interval of the failed read does not count as idle
        assert bench.is_clean()


def test_a_planner_that_starts_during_a_reassignment_takes_over_the_throttles_of_kafkas_tool(bench: Bench) -> None:
    """D23: the original did not see reassignments started with Kafka's own tool.

    It took the throttles of `--throttle` for forgotten ones and removed them during the reassignment, which continued
    at link speed.
    """
    bench.begin_reassignment()
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
    """Records the configs and the number of writes after each call of `apply`."""

    calls: list[tuple[dict[ConfigResource, dict[str, str]], int]]

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        outcomes = super().apply(term, changes, timeout)
        self.calls.append(({r: dict(c) for r, c in self.configs.items()}, len(self.writes)))
        return outcomes


def test_rates_and_lists_are_written_in_one_batch() -> None:
    """D26: the original writes the rates of all brokers, four per second, and then the lists of all topics.

    Rates without lists throttle nothing: with five brokers, 25 to 70 % of the bytes were copied by then.
    """
    with Bench() as bench:
        cluster = ChunkedCluster(bench.electorate, BROKERS)
        cluster.calls = []
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.new_planner()
        topics = [f"t{number}" for number in range(20)]
        for topic in topics:
            bench.begin_reassignment(topic, partitions=3)
        bench.cycle("a reassignment started")
        (current, count), *later = cluster.calls
        assert later == []
        assert count == len(cluster.writes) == 2 + len(topics)
        throttled = [
            entry.partition(":")[2]
            for topic in topics
            for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
            for entry in current[ConfigResource.topic(topic)][key].split(",")
        ]
        with_rates = {r.name for r, config in current.items() if r.type is ResourceType.BROKER and config}
        assert with_rates == {"1001", "1003"}
        assert with_rates <= set(throttled), "no rate is written without its list"
        assert bench.rates() == RATES


def test_replication_of_a_broker_over_its_capacity_pauses_until_it_has_headroom() -> None:
    """D25: in the original the minimum rate is a floor.

    A broker whose clients needed the whole link stayed over its capacity until the reassignment ended.
    """
    with Bench(limits=builders.limits(pause_over_capacity=True)) as bench:
        bench.begin_reassignment()
        bench.cycle()
        assert bench.rates() == RATES
        bench.set_load(1003, inbound=100)
        paused = bench.cycle()
        assert bench.rate(1003, FOLLOWER) == 0.0 and bench.rate(1001, LEADER) == 72.0
        assert {d.broker_id: d.reason for d in paused.decisions}[1003] is Reason.OVER_CAPACITY
        written = len(bench.cluster.writes)
        bench.cycle()
        assert len(bench.cluster.writes) == written, "a rate of 0 is not written again"
        bench.set_load(1003, inbound=95)
        bench.cycle()
        bench.finish_ramps()
        assert bench.rate(1003, FOLLOWER) == 4.5, "below the minimum of 10"
        bench.set_load(1003, inbound=10)
        bench.cycle()
        bench.finish_ramps()
        assert bench.rates() == RATES
        bench.cluster.finish("t1")
        bench.cycle()
        assert bench.is_clean()


def test_the_api_answers_at_once_while_the_metrics_source_hangs(tmp_path: Path) -> None:
    """D28: in the original POST /throttle waits while a cycle waits for Datadog or sleeps 0.25 s after each write.

    It took 15 s with 60 brokers and more than 30 s with 1,000.
    """
    with Bench(real_time=True) as bench:
        planner_address = f"unix:{tmp_path}/planner.sock"
        add_planner = planner_pb2_grpc.add_PlannerServiceServicer_to_server
        planner = ServiceServer(
            "planner",
            [(add_planner, PlannerServicer(bench.planner), "autothrottle.v1.PlannerService")],
            planner_address,
        )
        client = PlannerServiceClient([planner_address])
        servicer = AdminServicer(
            bench.overrides,
            client,
            bench.cluster,
            bench.cluster,
            MemoryMembership(MemoryMembers()),
            bench.pauses,
            Estimator(bench.cluster, bench.cluster, bench.cluster, bench.metrics, bench.overrides, builders.limits()),
            bench.catch_ups,
            MemoryAuditedMap(REQUEST_QUOTAS),
            builders.plan_check(bench.cluster),
        )
        add_admin = admin_pb2_grpc.add_AdminServiceServicer_to_server
        admin = ServiceServer("admin", [(add_admin, servicer, "autothrottle.v1.AdminService")])
        bench.metrics.read_gate.clear()
        bench.begin_reassignment()
        with planner, admin, grpc.insecure_channel(admin.address) as channel:
            bench.planner.start(planner_address)
            assert bench.metrics.hangs.wait(60)
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            stub.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=60)  # connects
            override = admin_pb2.Override(broker_id=1003, rate_bytes_per_second=mb(50))
            set_seconds = fastest(lambda: stub.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=60))
            request_seconds = fastest(lambda: stub.RequestCycle(admin_pb2.RequestCycleRequest(), timeout=60))
            state_seconds = fastest(lambda: stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=60))
            assert bench.planner.state().last_cycle is None, "the cycle still hangs"
            assert max(set_seconds, request_seconds, state_seconds) < AT_ONCE, "the cycle hangs for half a minute"
            bench.metrics.read_gate.set()
            eventually(lambda: bench.rate(1003, FOLLOWER) == 50.0)
        client.close()


def fastest(call: Callable[[], object]) -> float:
    """The time of the fastest of five calls, in seconds. A lock would delay all five, a busy machine only some."""
    times = []
    for _ in range(5):
        started = time.monotonic()
        call()
        times.append(time.monotonic() - started)
    return min(times)


def test_a_leader_and_a_partition_that_are_done_are_unthrottled_at_once(bench: Bench) -> None:
    """D30: in the original a broker keeps its rate after its last partition is done, until all reassignments end.

    Completed partitions stayed in the lists, which throttled their normal replication.
    """
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1004, 1002)})
    bench.cluster.submit_reassignment("t1", {0: (1001, 1003), 1: (1004, 1003)})
    bench.cycle()
    assert set(bench.rates()) == {(1001, "leader"), (1003, "follower"), (1004, "leader")}
    bench.cluster.join_isr("t1", 1, 1003)
    bench.cycle("broker 1003 joined the ISR of t1-1")
    assert (bench.rates(), bench.lists()) == (RATES, EXACT)


def test_an_unreadable_config_is_reported_as_refused_and_written_once_it_is_fixed(bench: Bench) -> None:
    """Defect D31 of the original.

    A config node with `config: null` or truncated JSON made the original panic, or it overwrote the node and lost the
    user's other keys.
    """
    broken = ConfigResource.broker(1003)
    reason = "has no object under `config`; fix it"
    bench.cluster.configs[broken] = {"log.retention.ms": "5"}
    bench.cluster.unreadable_configs[broken] = Problem("/config/brokers/1003", reason)
    bench.begin_reassignment()
    record = bench.cycle()
    assert (broken, f"/config/brokers/1003: {reason}") in [
        (o.resource, o.reason) for o in record.outcomes if o.status is OutcomeStatus.REFUSED
    ]
    assert bench.cluster.configs[broken] == {"log.retention.ms": "5"}
    assert (bench.rates(), bench.lists()) == ({(1001, "leader"): 72.0}, EXACT)
    bench.cluster.unreadable_configs.clear()
    bench.cycle("retrying after a failure")
    assert bench.rates() == RATES
    assert bench.cluster.configs[broken] == {"log.retention.ms": "5", FOLLOWER_RATE: str(mb(81))}


def test_overrides_and_the_fail_safe_ignore_the_change_threshold() -> None:
    """Defect D8 of the original.

    The original does not write an override or the fail-safe rate below the change threshold: 10.5 MB/s stayed when the
    operator set 10.
    """
    with Bench(limits=builders.limits(min_rate=mb(71.5), failure_threshold=0)) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.overrides.set_override(1001, StoredOverride(mb(72.1)))
        bench.cycle("an override changed")
        assert bench.rate(1001, LEADER) == 72.1
        bench.overrides.remove_override(1001)
        bench.metrics.unavailable(True)
        bench.cycle()
        assert bench.rate(1001, LEADER) == 71.5


def test_only_the_roles_of_a_broker_are_throttled_and_all_are_removed(bench: Bench) -> None:
    """D27: overrides and the fail-safe of the original write both rates on every participant.

    When they ended, the rate of the unused role stayed.
    """
    bench.overrides.set_override(None, StoredOverride(mb(30)))
    bench.begin_reassignment()
    bench.cycle()
    assert set(bench.rates()) == set(RATES)
    bench.overrides.remove_override(None)
    bench.metrics.unavailable(True)
    for _ in range(3):
        bench.cycle()
    assert set(bench.rates()) == set(RATES)
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()
