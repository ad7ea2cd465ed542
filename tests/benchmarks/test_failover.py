"""Failover time: from the end of the leader process to the first applied cycle of the next leader."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.figures import Figures
from tests.system.simulated_recovery import RESTLESS, Leader, SimulatedRecovery, Write, seconds_since, wait_for

ROUNDS = 7
SESSION_SECONDS = 6
LIMIT_SECONDS = 120
SIZES = {"orders": [60_000] * 12, "payments": [60_000] * 9}
"""Topic -> size of each partition in bytes. The reassignments take longer than the benchmark."""


def first_write(recovery: SimulatedRecovery, leader: Leader) -> Write | None:
    return next((write for write in recovery.writes() if write.fence == leader.fence), None)


def test_failover_of_small_cluster(figures: Figures, tmp_path: Path) -> None:
    options = {"session_timeout": str(SESSION_SECONDS), "change_threshold": "0"}
    cycles: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
    writes: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
    with (
        scratch_directory() as directory,
        ZooKeeperServer(directory) as zookeeper,
        SimulatedRecovery(zookeeper, tmp_path, SIZES, traffic=RESTLESS) as recovery,
        recovery.services(planners=2, **options) as services,
    ):
        leader = recovery.wait_for_term(within_seconds=LIMIT_SECONDS)
        recovery.start_reassignment()
        recovery.wait_until_throttled(within_seconds=LIMIT_SECONDS)
        for sent in [signal.SIGKILL, signal.SIGTERM] * ROUNDS:
            recovery.wait_for_cycle(leader, 3, within_seconds=LIMIT_SECONDS)
            process, ended = services.planner(leader.address), datetime.now(UTC)
            if sent is signal.SIGKILL:
                process.kill()
            else:
                process.terminate()
            leader = recovery.wait_for_term(leader.fence, LIMIT_SECONDS)
            cycle = recovery.wait_for_cycle(leader, within_seconds=LIMIT_SECONDS)
            assert (cycle.number, cycle.error) == (1, "")
            cycles[sent].append(seconds_since(ended, cycle.end_time))
            write = wait_for(partial(first_write, recovery, leader), LIMIT_SECONDS, "the new leader writes a throttle")
            writes[sent].append(seconds_since(ended, write.at))
            process.wait(LIMIT_SECONDS)
            services.start()
        assert recovery.is_reassigning()
    size = "4 brokers, 21 partitions in reassignment"
    for sent, name in (
        (signal.SIGKILL, f"SIGKILL of the leader (session timeout {SESSION_SECONDS} s)"),
        (signal.SIGTERM, "SIGTERM of the leader"),
    ):
        figures.add(f"{name} to the end of the next applied cycle", size, "s", cycles[sent])
        figures.add(f"{name} to the next write in ZooKeeper", size, "s", writes[sent])
