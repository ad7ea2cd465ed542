"""Failover: the leading planner is killed, stopped or frozen; another one takes over, and late writes are refused.

The tests check the order of transactions in ZooKeeper's log.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.grpc import PlannerServiceClient
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import (
    INTERVAL_SECONDS,
    RESTLESS,
    SESSION_SECONDS,
    Leader,
    SimulatedRecovery,
    Write,
    seconds_since,
    wait_for,
)

BAD_VERSION = -103
"""ZooKeeper's error code of a failed version check."""

MANY_PARTITIONS = {"orders": [15 * n for n in range(1, 13)], "payments": [15 * n for n in range(1, 10)]}
"""Topic -> sizes in MB. They differ, so that replicas join the ISR, and lists change, throughout the test."""


def first_write(writes: list[Write], leader: Leader) -> Write | None:
    return next((write for write in writes if write.fence == leader.fence), None)


@pytest.mark.measures
@pytest.mark.parametrize("prefix", [pytest.param("", marks=pytest.mark.repeat), "/kafka/cluster"])
def test_another_planner_takes_over_after_sigkill_and_after_sigterm_of_the_leader(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path, prefix: str
) -> None:
    with SimulatedRecovery(fresh_zookeeper, tmp_path, MANY_PARTITIONS, prefix, RESTLESS) as recovery:
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        with recovery.services(planners=3) as services:
            leader = recovery.wait_for_term()
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            figures = []
            for number, most in ((signal.SIGKILL, SESSION_SECONDS + 2), (signal.SIGTERM, 2.0)):
                time.sleep(INTERVAL_SECONDS / 2)
                assert recovery.is_reassigning()
                process, ended = services.planner(leader.address), datetime.now(UTC)
                if number is signal.SIGKILL:
                    process.kill()
                else:
                    process.terminate()
                leader = recovery.wait_for_term(leader.fence)
                cycle = recovery.wait_for_cycle(leader)
                seconds = seconds_since(ended, cycle.end_time)
                assert not cycle.error
                assert seconds <= most, f"{seconds:.1f} s from {number.name} to the next cycle"
                write = wait_for(lambda by=leader: first_write(recovery.writes(start), by), 10, "it writes")  # type: ignore[misc]
                figures.append(f"{number.name}: cycle {seconds:.2f} s, write {seconds_since(ended, write.at):.2f} s")
            assert recovery.is_reassigning()
            recovery.speed_up()
            recovery.wait_until_clean(before)
            recovery.assert_fenced(start, terms=3)
            print(f"\nfailover, prefix {prefix!r}: {'; '.join(figures)}")


@pytest.mark.measures
def test_leader_and_applier_frozen_beyond_their_session_write_nothing_late(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    sizes = {**MANY_PARTITIONS, "later": [500] * 3}
    with SimulatedRecovery(fresh_zookeeper, tmp_path, sizes, "", RESTLESS) as recovery:
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        with recovery.services() as services:
            old = recovery.wait_for_term()
            recovery.start_reassignment("orders", "payments")
            recovery.wait_until_throttled("orders", "payments")
            planner, frozen = services.planner(old.address), datetime.now(UTC)
            planner.freeze()
            new = recovery.wait_for_term(old.fence)
            cycle = recovery.wait_for_cycle(new)
            assert seconds_since(frozen, cycle.end_time) <= SESSION_SECONDS + 2
            time.sleep(SESSION_SECONDS)
            planner.thaw()
            time.sleep(INTERVAL_SECONDS)
            assert recovery.leader() == new
            # Freeze the applier during the same reassignment, and start another one that needs throttles.
            assert recovery.is_reassigning()
            services.processes["applier"].freeze()
            recovery.start_reassignment("later")
            time.sleep(1.5 * SESSION_SECONDS)
            assert "later" not in recovery.lists()
            services.processes["applier"].thaw()
            recovery.wait_until_throttled("later")
            recovery.cancel_reassignment("later")
            recovery.speed_up()
            recovery.wait_until_clean(before)
            recovery.assert_fenced(start, terms=2)
            assert all(process.running for process in services.processes.values())
            print(f"\nfrozen leader: next cycle {seconds_since(frozen, cycle.end_time):.2f} s after SIGSTOP")


@dataclass(frozen=True, slots=True)
class Pair:
    """A planner and its own applier."""

    planner: Process
    applier: Process
    address: str
    """Address of the planner."""


def started(deployment: Deployment, stack: ExitStack, service: str, name: str, **options: str) -> tuple[Process, str]:
    """Start one service; return its process and address."""
    given = {option.replace("_", "-"): value for option, value in options.items()}
    process = stack.enter_context(deployment.process(service, name, given))

    def address() -> str | None:
        lines = [line for line in process.log.read_text().splitlines() if " listens on " in line]
        return lines[-1].rpartition(" ")[2] if lines else None

    return process, wait_for(address, 30, f"{name} listens")


@contextmanager
def pairs(deployment: Deployment) -> Iterator[list[Pair]]:
    with ExitStack() as stack:
        _, discovery = started(deployment, stack, "discovery", "discovery")
        _, metrics = started(deployment, stack, "metrics", "metrics")
        found = []
        for number in (1, 2):
            # The applier's session outlasts the freeze, so that only the fence can refuse the late write.
            applier, address = started(deployment, stack, "applier", f"applier-{number}", session_timeout="40")
            peers = {"discovery_addr": discovery, "metrics_addr": metrics, "applier_addr": address}
            planner, planner_address = started(deployment, stack, "planner", f"planner-{number}", **peers)
            found.append(Pair(planner, applier, planner_address))
        yield found


def wait_until_leader_waits_for_its_applier(leader: Leader) -> None:
    """Wait until the last cycle ended so long ago that the current one must be waiting for its writes.

    With 0.5 s above the interval, a planner on a busy machine froze before it had sent a write.
    """
    planner = PlannerServiceClient((leader.address,))

    def waits() -> bool | None:
        last = planner.state(timedelta(seconds=5)).last_cycle
        return (last is not None and seconds_since(last.end_time) > 2 * INTERVAL_SECONDS) or None

    try:
        wait_for(waits, 15, "the leader waits for its applier")
    finally:
        planner.close()


def test_write_decided_before_the_end_of_the_term_is_refused_after_it(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """The leader freezes between plan and commit, another planner takes over, and then the commit arrives."""
    sizes = {"orders": [300] * 3, "later": [1_200] * 3}
    with SimulatedRecovery(fresh_zookeeper, tmp_path, sizes) as recovery:
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        with pairs(recovery.deployment()) as found:
            old = recovery.wait_for_term()
            recovery.start_reassignment("orders")
            recovery.wait_until_throttled("orders")
            first = next(pair for pair in found if pair.address == old.address)
            # Otherwise the leader could wait for the response to these writes and never send the late ones.
            wait_for(lambda: "changes written" in first.planner.log.read_text() or None, 10, "the cycle ends")
            writers = {write.session_id for write in recovery.writes(start)}
            first.applier.freeze()
            recovery.start_reassignment("later")
            wait_until_leader_waits_for_its_applier(old)
            first.planner.freeze()
            assert "later" not in recovery.lists()
            new = recovery.wait_for_term(old.fence)
            recovery.wait_until_throttled("later")
            thawed_at = fresh_zookeeper.last_zxid()
            assert first_write(recovery.writes(start), new)
            first.applier.thaw()

            def refused() -> bool | None:
                late = [t for t in fresh_zookeeper.transactions(thawed_at, refused=True) if t.session_id in writers]
                return any(t.kind == "multi" and t.error == BAD_VERSION for t in late) or None

            wait_for(refused, 10, "ZooKeeper refuses the write of the old term")
            first.planner.thaw()
            over = f"term {old.fence} is over"
            wait_for(lambda: over in first.planner.log.read_text() or None, 10, "the old leader logs its end")
            assert recovery.leader() == new
            assert [w for w in recovery.writes(thawed_at) if w.fence == old.fence] == []
            recovery.cancel_reassignment("later")
            recovery.speed_up()
            recovery.wait_until_clean(before)
            recovery.assert_fenced(start, terms=2)
