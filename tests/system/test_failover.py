"""Two planners of which the leader is killed, stopped or frozen: the other goes on, and no late write lands.

What is asserted is the order of transactions in ZooKeeper's own log.
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

from autothrottle.adapters.grpc import PlannerClient
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
"""ZooKeeper's code of a check that failed."""

MANY_PARTITIONS = {"orders": [15 * n for n in range(1, 13)], "payments": [15 * n for n in range(1, 10)]}
"""Of many sizes, so that they join the ISR, and lists change, all along."""


def first_write(writes: list[Write], leader: Leader) -> Write | None:
    return next((write for write in writes if write.fence == leader.fence), None)


@pytest.mark.alone
@pytest.mark.parametrize("prefix", [pytest.param("", marks=pytest.mark.repeat), "/kafka/cluster"])
def test_another_planner_continues_after_the_leader_is_killed_and_after_it_is_stopped(
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
                seconds = seconds_since(ended, cycle.end)
                assert not cycle.error
                assert seconds <= most, f"{seconds:.1f} s from {number.name} to the next cycle"
                write = wait_for(lambda by=leader: first_write(recovery.writes(start), by), 10, "it writes")  # type: ignore[misc]
                figures.append(f"{number.name}: cycle {seconds:.2f} s, write {seconds_since(ended, write.at):.2f} s")
            assert recovery.is_reassigning()
            recovery.speed_up()
            recovery.wait_until_clean(before)
            recovery.assert_fenced(start, terms=3)
            print(f"\nfailover, prefix {prefix!r}: {'; '.join(figures)}")


@pytest.mark.alone
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
            assert seconds_since(frozen, cycle.end) <= SESSION_SECONDS + 2
            time.sleep(SESSION_SECONDS)
            planner.thaw()
            time.sleep(INTERVAL_SECONDS)
            assert recovery.leader() == new
            # The applier, in the middle of the same recovery, with something to be written meanwhile.
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
            print(f"\nfrozen leader: next cycle {seconds_since(frozen, cycle.end):.2f} s after SIGSTOP")


@dataclass(frozen=True, slots=True)
class Pair:
    """A planner, and the applier that it alone uses."""

    planner: Process
    applier: Process
    address: str
    """Of the planner."""


def started(deployment: Deployment, stack: ExitStack, service: str, name: str, **options: str) -> tuple[Process, str]:
    """Start one service; return it and its address."""
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
            # A session that outlasts the freeze: what refuses the late write is the fence and nothing else.
            applier, address = started(deployment, stack, "applier", f"applier-{number}", zk_session_timeout="40")
            peers = {"discovery_addr": discovery, "metrics_addr": metrics, "applier_addr": address}
            planner, at = started(deployment, stack, "planner", f"planner-{number}", **peers)
            found.append(Pair(planner, applier, at))
        yield found


def wait_until_it_waits_for_its_applier(leader: Leader) -> None:
    """Return once a cycle has begun and not ended for longer than an interval: its writes are on the way."""
    planner = PlannerClient((leader.address,))

    def waits() -> bool | None:
        last = planner.state(timedelta(seconds=5)).last_cycle
        return (last is not None and seconds_since(last.end) > INTERVAL_SECONDS + 0.5) or None

    try:
        wait_for(waits, 15, "the leader waits for its applier")
    finally:
        planner.close()


def test_write_decided_before_the_end_of_the_term_is_refused_after_it(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """The leader sleeps between plan and commit, another leads, and then the commit arrives."""
    sizes = {"orders": [300] * 3, "later": [1_200] * 3}
    with SimulatedRecovery(fresh_zookeeper, tmp_path, sizes) as recovery:
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()
        with pairs(recovery.deployment()) as found:
            old = recovery.wait_for_term()
            recovery.start_reassignment("orders")
            recovery.wait_until_throttled("orders")
            first = next(pair for pair in found if pair.address == old.address)
            writers = {write.session_id for write in recovery.writes(start)}
            first.applier.freeze()
            recovery.start_reassignment("later")
            wait_until_it_waits_for_its_applier(old)
            first.planner.freeze()
            assert "later" not in recovery.lists()
            new = recovery.wait_for_term(old.fence)
            recovery.wait_until_throttled("later")
            woken = fresh_zookeeper.last_zxid()
            assert first_write(recovery.writes(start), new)
            first.applier.thaw()

            def refused() -> bool | None:
                late = [t for t in fresh_zookeeper.transactions(woken, refused=True) if t.session_id in writers]
                return any(t.kind == "multi" and t.error == BAD_VERSION for t in late) or None

            wait_for(refused, 10, "the write of the old term is refused by ZooKeeper")
            first.planner.thaw()
            wait_for(lambda: f"term {old.fence} is over" in first.planner.log.read_text() or None, 10, "it knows")
            assert recovery.leader() == new
            assert [w for w in recovery.writes(woken) if w.fence == old.fence] == []
            recovery.cancel_reassignment("later")
            recovery.speed_up()
            recovery.wait_until_clean(before)
            recovery.assert_fenced(start, terms=2)
