"""Effect of a 60 s ensemble outage: time until the leader steps down, and time to recover after the outage."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.figures import Figures
from tests.system.test_ensemble_outages import LONG, SESSION_SECONDS, STEP_DOWN_SECONDS, ensemble_recovery, freeze, thaw

OUTAGE_SECONDS = 60.0
SIZE = f"3 servers, session {SESSION_SECONDS:g} s, outage of {OUTAGE_SECONDS:g} s"

Act = Callable[[list[ZooKeeperServer]], None]


def kill_majority(servers: list[ZooKeeperServer]) -> None:
    for server in servers[:2]:
        server.kill()


def start_majority(servers: list[ZooKeeperServer]) -> None:
    for server in servers[:2]:
        server.start(LONG)


@pytest.mark.parametrize(
    ("outage", "begin", "end"),
    [("all servers frozen", freeze, thaw), ("two of three servers killed", kill_majority, start_majority)],
    ids=["frozen", "without a quorum"],
)
def test_step_down_and_recovery_after_an_ensemble_outage(
    figures: Figures, tmp_path: Path, outage: str, begin: Act, end: Act
) -> None:
    with ensemble_recovery(tmp_path) as subject:
        recovery, servers = subject.recovery, subject.ensemble.servers
        recovery.wait_for_term(within_seconds=LONG)
        before, start = recovery.configs(), subject.ensemble.last_zxid()
        recovery.start_reassignment()
        ended: list[float] = []

        def end_outage() -> None:
            end(servers)
            ended.append(time.monotonic())

        step_down_seconds = subject.outage(lambda: begin(servers), end_outage, OUTAGE_SECONDS)
        recovery_seconds = time.monotonic() - ended[0]
        subject.cancel(before)
        recovery.assert_fenced(start, terms=2)
    figures.add(
        f"{outage}: until the leader steps down (limit {STEP_DOWN_SECONDS:g} s)", SIZE, "s", [step_down_seconds]
    )
    figures.add(f"{outage}: from the end of the outage to a new term with exact lists", SIZE, "s", [recovery_seconds])
