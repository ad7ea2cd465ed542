"""Stops, restarts and uninstallation: throttles and ledger stay consistent whenever services end."""

from __future__ import annotations

import json
import os
import random
import time
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.session import origin_path, read_origin
from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import (
    CAPACITY,
    NEW,
    RESTLESS,
    SimulatedRecovery,
    broken_sessions,
    seconds_since,
    tree,
    wait_for,
)

SEED = 3
STEADY_SECONDS = 6
"""Seconds without a write after which the rates count as settled."""
FOREIGN = {
    "brokers/1001": {FOLLOWER_RATE: "31000000", "log.cleaner.threads": "2"},
    f"brokers/{NEW}": {LEADER_RATE: "32000000", FOLLOWER_RATE: "33000000"},
    "brokers/1007": {FOLLOWER_RATE: "34000000"},
    "topics/orders": {"retention.ms": "86400000"},
    "topics/sessions": {FOLLOWER_REPLICAS: "0:1002", "retention.ms": "3600000"},
}
"""Foreign configs: rates inside and outside the reassignment, a list, and keys that are not throttles."""


def ended(process: Process, within_seconds: float = 30.0) -> int:
    """Run a process to its end, and return its exit status."""
    with process:
        return process.wait(within_seconds)


@pytest.mark.repeat  # tests/chaos/test_chaos.py kills and stops services at any moment in each run of `make test`
@pytest.mark.parametrize(("stops", "kills"), [(2, 1), (10, 3)], ids=["3 ends", "13 ends"])
def test_services_ended_at_any_moment_leave_throttles_and_ledger_consistent(
    stops: int, kills: int, fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    # `bulk` is never finished, however slow the machine is. Replicas of the other topics join the ISR throughout.
    sizes = {"orders": [20 * n for n in range(1, 13)], "payments": [20 * n for n in range(1, 10)], "bulk": [30_000] * 3}
    chance = random.Random(SEED)
    rounds = ["SIGTERM"] * stops + ["SIGKILL"] * kills
    chance.shuffle(rounds)
    with SimulatedRecovery(fresh_zookeeper, tmp_path, sizes, "", RESTLESS) as recovery:
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        longest = 0.0
        for number, how in enumerate(rounds):
            with recovery.services() as services:
                if not number:
                    recovery.start_reassignment()
                time.sleep(chance.uniform(0.0, 1.2))
                stopped = time.monotonic()
                if how == "SIGTERM":
                    assert services.stop() == [0] * len(services.processes)
                    longest = max(longest, time.monotonic() - stopped)
                else:
                    for process in services.processes.values():
                        process.kill()
                assert recovery.ledger_mismatches() == [], f"after {how} {number}"
                assert "Traceback" not in services.log()
        assert recovery.is_reassigning()
        assert recovery.configs() != before
        assert longest < 10
        stops = len({write.fence for write in recovery.writes(start)})
        with recovery.services():
            recovery.wait_until_throttled("bulk", within_seconds=20)
            recovery.cancel_reassignment("bulk")
            recovery.speed_up()
            recovery.wait_until_clean(before)
        writes = recovery.assert_fenced(start, terms=(stops + kills) // 3)  # some rounds end before a write
        print(f"\n{stops} terms in {len(rounds)} rounds, {len(writes)} writes; stopping took at most {longest:.2f} s")


def test_services_start_again_after_a_stop_and_find_each_other(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with (
        SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [9_000] * 3}) as recovery,
        recovery.services() as services,
    ):
        recovery.wait_for_term()
        before = dict(services.addresses)
        assert services.stop() == [0] * len(services.processes)
        last = recovery.leader().fence  # another planner may have led while all were stopping
        services.start()
        leader = recovery.wait_for_term(last)
        assert services.addresses.keys() == before.keys() and services.addresses != before
        assert not recovery.wait_for_cycle(leader).error
        assert services.stop() == [0] * len(services.processes)


def test_admin_service_runs_at_lower_priority_than_the_others(fresh_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """50 concurrent calls by operators made cycles a fifth longer on two busy CPUs. A lower priority prevents that."""
    with (
        SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [9_000] * 3}) as recovery,
        recovery.services() as services,
    ):
        recovery.wait_for_term()
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        pids = {name: process.pid for name, process in services.processes.items()}
        lowered = {name for name, pid in pids.items() if os.getpriority(os.PRIO_PROCESS, pid) > ours}
        # Each process has its own session here, and Linux's autogroup scheduling applies priorities per session.
        groups = {name: Path(f"/proc/{pid}/autogroup") for name, pid in pids.items()}
        nice = {name for name, group in groups.items() if group.exists() and group.read_text().split()[-1] == "15"}
    assert lowered == {"admin"}
    assert nice == {"admin"} or not groups["admin"].exists()


def test_restart_during_a_reassignment_rewrites_nothing(fresh_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    # The links have exactly the configured capacity, so that no burst before the first throttle affects later
    # measurements. The leaders' headroom is 25 % above their first rate, and metrics of 4 s contain pauses and bursts
    # of Kafka's 11 s quota. Therefore the high change threshold allows only large changes.
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [9_000] * 3}, link=CAPACITY) as recovery:
        steady = partial(recovery.services, metrics_window="4", change_threshold="90")
        before = recovery.configs()
        with steady() as services:
            recovery.wait_for_term()
            time.sleep(STEADY_SECONDS)  # until the load is known; the first rates would be low otherwise
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            wait_until_settled(recovery)
            mark, current = fresh_zookeeper.last_zxid(), recovery.configs()
            assert services.stop() == [0] * len(services.processes)
            last = recovery.leader().fence  # another planner may have led while all were stopping
        with steady():
            second = recovery.wait_for_term(last)
            cycle = recovery.wait_for_cycle(second, 4)
            assert recovery.is_throttled("orders")
            assert [path for write in recovery.writes(mark) for path in write.paths] == []
            assert recovery.configs() == current
            assert not cycle.error
            recovery.cancel_reassignment("orders")
            recovery.wait_until_clean(before)


def wait_until_settled(recovery: SimulatedRecovery) -> None:
    """Wait until several scheduled cycles have written nothing."""

    def settled() -> bool | None:
        return seconds_since(recovery.writes()[-1].at) > STEADY_SECONDS or None

    wait_for(settled, 40, "cycles write nothing under a steady load")


def test_uninstall_restores_all_configs_and_is_refused_while_a_planner_runs(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    # The reassignment takes 100 s without a throttle. So it still runs when the services return on a busy machine.
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [10_000] * 3}) as recovery:
        for entity, config in FOREIGN.items():
            recovery.set_config(entity, config)
        before = recovery.configs()
        override = {"rate": 50, "autoremove": False}
        recovery.client.create(f"{recovery.own.overrides}/{NEW}", json.dumps(override).encode(), makepath=True)
        uninstall = recovery.deployment().process("uninstall", "uninstall", {})
        with recovery.services() as services:
            leader = recovery.wait_for_term()
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            throttled = recovery.ledger().keys()
            assert ended(uninstall) == 1
            assert uninstall.log_end(1).endswith("A planner is still running; stop all planners, then run this again")
            assert recovery.ledger().keys() == throttled
            assert recovery.is_throttled()
            assert recovery.leader() == leader
            for process in services.processes.values():
                process.kill()
        assert ended(uninstall) == 0, uninstall.log_end()
        assert recovery.is_reassigning()
        assert recovery.configs() == before
        origin = origin_path(recovery.own, read_origin(recovery.client, recovery.own, 10.0))
        own = [recovery.own.overrides, f"{recovery.own.overrides}/{NEW}", recovery.own.term, origin]
        assert sorted(tree(recovery.client, recovery.own.root)) == own
        assert json.loads(recovery.client.get(own[1])[0]) == override
        # The services can return during the reassignment. After its end, uninstall removes everything.
        with recovery.services() as services:
            recovery.wait_until_throttled()
            recovery.client.delete(own[1])
            recovery.cancel_reassignment("orders")
            recovery.wait_until_clean(before)
            assert services.stop() == [0] * len(services.processes)
        assert ended(uninstall) == 0, uninstall.log_end()
        assert recovery.configs() == before
        left = [path for path in tree(recovery.client, recovery.own.root) if not path.startswith(recovery.own.audit)]
        assert sorted(left) == [recovery.own.overrides, recovery.own.term, origin]


def test_uninstall_with_a_wrong_prefix_changes_nothing_and_keeps_the_ledger(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Without the services' --zk-prefix, uninstall did not find Kafka's znodes and saw a cluster without throttles.

    It deleted the ledger and reported success, and the throttles stayed forever. A planner with such options, or with
    the ZooKeeper backend for a Kafka in KRaft mode, did the same.
    """
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [1_000] * 3}) as recovery:
        before = recovery.configs()
        with recovery.services() as services:
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            for process in services.processes.values():
                process.kill()
        throttled = recovery.ledger().keys()
        wrong = recovery.deployment().process("uninstall", "wrong-prefix", {"zk-prefix": "/no-kafka"})
        assert ended(wrong) == 1, wrong.log_end()
        assert "/no-kafka/brokers/ids does not exist in ZooKeeper, so Kafka is not there" in wrong.log_end(1)
        assert recovery.ledger().keys() == throttled
        assert recovery.is_throttled()
        assert ended(recovery.deployment().process("uninstall", "uninstall", {})) == 0
        assert recovery.configs() == before


def test_idle_start_changes_nothing_and_foreign_configs_survive_a_recovery(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [100, 150, 200]}) as recovery:
        for entity, config in FOREIGN.items():
            recovery.set_config(entity, config)
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        with recovery.services() as services:
            leader = recovery.wait_for_term()
            recovery.wait_for_cycle(leader, 3)
            started = list(fresh_zookeeper.transactions(start))
            touched = [o.path for t in started for o in t.operations]
            assert [path for path in touched if path.startswith(recovery.paths.configs)] == []
            # 4 of each planner and of admin, 2 of discovery and of applier, 1 of metrics. A busy machine may lose some.
            # Each store had a session of its own, 31 in all, and a process then took more than 4.5 s to end its ten.
            assert sum(t.kind == "open_session" for t in started) <= 17 + 4
            reports = [
                line for line in services.log().splitlines() if "Foreign throttles, not set by autothrottle" in line
            ]
            assert len(reports) == 1
            assert all(entity in reports[0] for entity in FOREIGN if entity != "topics/orders")
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            assert recovery.rate() != 33_000_000
            others = ("brokers/1007", "topics/sessions")
            assert {entity: recovery.configs()[entity] for entity in others} == {e: FOREIGN[e] for e in others}
            assert recovery.rate(1001) == 31_000_000
            recovery.speed_up()
            recovery.wait_until_clean(before)
            assert services.stop() == [0] * len(services.processes)
        assert recovery.configs() == before


# Lists of more than a megabyte. The topics exist only as znodes, because simulating them would be too slow.

LARGE_TOPICS = [f"large-{n:02}" for n in range(40)]
LARGE_PARTITIONS = 1_000


def write_large_topics(client: KazooClient, recovery: SimulatedRecovery) -> None:
    """Create the large topics, each in one transaction; single writes would take a minute."""
    state = {"controller_epoch": 1, "leader": 1001, "version": 1, "leader_epoch": 0, "isr": [1001, 1002]}
    content = json.dumps(state).encode()
    for topic in LARGE_TOPICS:
        transaction = client.transaction()
        transaction.create(recovery.paths.topic(topic), large_topic(moving=False))
        transaction.create(f"{recovery.paths.topic(topic)}/partitions")
        for partition in range(LARGE_PARTITIONS):
            transaction.create(f"{recovery.paths.topic(topic)}/partitions/{partition}")
            transaction.create(recovery.paths.state(topic, partition), content)
        assert not any(isinstance(result, Exception) for result in transaction.commit())


def large_topic(moving: bool) -> bytes:
    """Return a topic's znode; with `moving`, all partitions are being reassigned from broker 1000 to 1004 (KIP-455)."""
    replicas = [NEW, 1001, 1002, 1000] if moving else [1000, 1001, 1002]
    document = {
        "version": 3,
        "partitions": {str(p): replicas for p in range(LARGE_PARTITIONS)},
        "adding_replicas": {str(p): [NEW] for p in range(LARGE_PARTITIONS) if moving},
        "removing_replicas": {str(p): [1000] for p in range(LARGE_PARTITIONS) if moving},
    }
    return json.dumps(document).encode()


def test_lists_of_more_than_a_megabyte_do_not_suspend_the_sessions(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [100] * 3}) as recovery:
        write_large_topics(recovery.client, recovery)
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        leaders = frozenset(f"{p}:{b}" for p in range(LARGE_PARTITIONS) for b in (1001, 1002))
        followers = frozenset(f"{p}:{NEW}" for p in range(LARGE_PARTITIONS))
        with recovery.services(session_timeout="6") as services:
            recovery.wait_for_cycle(recovery.wait_for_term(within_seconds=40))
            started = time.monotonic()
            for topic in LARGE_TOPICS:
                recovery.client.set(recovery.paths.topic(topic), large_topic(moving=True))
            complete = dict.fromkeys(LARGE_TOPICS, (leaders, followers))
            wait_for(lambda: recovery.lists() == complete or None, 60, "lists are complete")
            seconds = time.monotonic() - started
            listed = sum(len(value) for config in recovery.configs().values() for value in config.values())
            for topic in LARGE_TOPICS:
                recovery.client.set(recovery.paths.topic(topic), large_topic(moving=False))
            recovery.wait_until_clean(before)
            writes = recovery.assert_fenced(start, terms=1)
            assert len({w.fence for w in writes}) == 1
            assert broken_sessions(services.log()) == []
            assert services.stop() == [0] * len(services.processes)
        print(
            f"\n{len(LARGE_TOPICS)} lists complete {seconds:.1f} s after the start, in {len(writes)} writes; {listed} B"
        )
