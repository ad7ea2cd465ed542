"""What an ensemble that is away for a minute costs: until the leader knows, and until all goes on when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autothrottle.lab.zookeeper import ZooKeeperServer
from tests.benchmarks.figures import Figures
from tests.system.test_ensemble_outages import LONG, SESSION_SECONDS, STEP_DOWN_SECONDS, freeze, thaw, warded

OUTAGE_SECONDS = 60.0
SIZE = f"3 servers, session {SESSION_SECONDS:g} s, away for {OUTAGE_SECONDS:g} s"

Act = Callable[[list[ZooKeeperServer]], None]


def kill_most(servers: list[ZooKeeperServer]) -> None:
    for server in servers[:2]:
        server.kill()


def start_most(servers: list[ZooKeeperServer]) -> None:
    for server in servers[:2]:
        server.start(LONG)


@pytest.mark.parametrize(
    ("what", "begin", "end"),
    [("all servers frozen", freeze, thaw), ("two of three servers killed", kill_most, start_most)],
    ids=["frozen", "without a quorum"],
)
def test_an_ensemble_that_is_away_for_a_minute(
    figures: Figures, tmp_path: Path, what: str, begin: Act, end: Act
) -> None:
    with warded(tmp_path) as ward:
        recovery, servers = ward.recovery, ward.ensemble.servers
        recovery.wait_for_term(within_seconds=LONG)
        before, start = recovery.configs(), ward.ensemble.last_zxid()
        recovery.start_move()
        ended: list[float] = []

        def over() -> None:
            end(servers)
            ended.append(time.monotonic())

        took = ward.outage(lambda: begin(servers), over, OUTAGE_SECONDS)
        went_on = time.monotonic() - ended[0]
        ward.cancel(before)
        recovery.assert_fenced(start, terms=2)
    figures.add(f"{what}: until the leader gave up its term (limit {STEP_DOWN_SECONDS:g} s)", SIZE, "s", [took])
    figures.add(f"{what}: from its end until a new term cycles and all lists are exact", SIZE, "s", [went_on])
