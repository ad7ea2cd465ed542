"""Golden logs: decisions of the real planner in simulated clusters, with known scores.

Every cluster has a new broker whose inbound link is the slowest: 100 MB/s, of which clients use 10 MB/s, so that 0.9
of the rest is 81 MB/s. Most scenarios have a date of their own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.policy.interface import Limits
from autothrottle.core.traffic.loads import Capacity
from autothrottle_lab.simulate.virtual_time import (
    BEGIN,
    SETTINGS,
    VirtualBroker,
    VirtualReassignment,
    VirtualRecovery,
    VirtualScenario,
)
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep
from tests.builders import limits, mb

LEADERS = (1001, 1002, 1003)
FAILED, NEW = 1, 1006
BUDGET = mb(81)
SECONDS = 600
"""Duration of a reassignment at best."""

CLIENTS = ClientTraffic.constant(mb(20), mb(10))
QUIET = {**dict.fromkeys(LEADERS, CLIENTS), NEW: ClientTraffic.constant(0, mb(10))}
FALLING = ClientTraffic(tuple(TrafficStep(180.0 * n, 0, mb(70 - 6 * n)) for n in range(11)))
"""Client load that falls by 6 MB/s every three minutes."""


def restless(seed: int) -> ClientTraffic:
    """Return a client load that changes to another 10 to 45 MB/s every two minutes."""
    chance = random.Random(seed)
    return ClientTraffic(tuple(TrafficStep(120.0 * n, 0, mb(chance.randint(10, 45))) for n in range(30)))


def mild(seed: int) -> ClientTraffic:
    """Return a client load that changes to another 15 to 25 MB/s every two minutes."""
    chance = random.Random(seed)
    return ClientTraffic(tuple(TrafficStep(120.0 * n, 0, mb(chance.randint(15, 25))) for n in range(60)))


def ratio(share: float) -> Limits:
    """Return limits with this share of the headroom."""
    return limits(max_tx_ratio=share, max_rx_ratio=share)


def scenario(
    day: int,
    amount: float = BUDGET * SECONDS,
    traffic: Mapping[int, ClientTraffic] = QUIET,
    limits: Limits = SETTINGS.limits,
    **changes: object,
) -> VirtualScenario:
    """Return a reassignment of this many bytes on a day of November."""
    plain = VirtualScenario(
        {broker_id: VirtualBroker(Capacity(mb(100), mb(100)), clients) for broker_id, clients in traffic.items()},
        [
            VirtualReassignment("moving", partition, amount / 3, (leader, FAILED), (leader, NEW))
            for partition, leader in enumerate(LEADERS)
        ],
    )
    defaults = {"settings": replace(SETTINGS, limits=limits), "begin": BEGIN.replace(day=day)}
    return replace(plain, **(defaults | changes))  # type: ignore[arg-type]


DULL = limits(max_tx_ratio=0.5, max_rx_ratio=0.5, change_threshold=0.3)
OUTAGE = (timedelta(minutes=5), timedelta(minutes=45))
BACK = timedelta(seconds=-90)

SCENARIOS = {
    "perfect": scenario(1),
    "seventy": scenario(2, limits=ratio(0.7)),
    "halved": scenario(3, limits=ratio(0.45)),
    "overridden": scenario(4),
    "blind": scenario(5, BUDGET * SECONDS * 2, metrics_outage=OUTAGE),
    "sensitive": scenario(6, traffic={**QUIET, NEW: FALLING}),
    "dull": scenario(6, traffic={**QUIET, NEW: FALLING}, limits=limits(change_threshold=0.6)),
    "restless": scenario(6, traffic={**QUIET, NEW: restless(1)}, limits=DULL),
    "mild": scenario(6, traffic={**QUIET, NEW: mild(1)}, limits=DULL),
    "handed-over": scenario(7, failover=(timedelta(minutes=7), BACK)),
}


def write(directory: Path) -> dict[str, float]:
    """Simulate and log all scenarios; return cluster -> duration of its reassignment in seconds."""
    took = {}
    for name, of_cluster in SCENARIOS.items():
        took[name] = play(directory, name, of_cluster)
    return took


def play(directory: Path, name: str, of_cluster: VirtualScenario) -> float:
    """Simulate and log one scenario; return the duration of the reassignment in seconds."""
    with closing(DecisionLog(str(directory), limits=LogLimits(patience=timedelta(minutes=3)))) as log:
        recovery = VirtualRecovery(of_cluster, log, name)
        if name == "overridden":
            recovery.overrides.set_override(None, StoredOverride(BUDGET // 2))
        return recovery.run()
