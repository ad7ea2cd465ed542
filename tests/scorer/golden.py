"""Golden logs: what the real planner decided in simulated clusters, with answers that are known beforehand.

Every cluster has a new broker whose inbound link is the slowest port: 100 MB/s, of which clients use 10, so that 0.9 of
what they leave is 81 MB/s. Each played on a date of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from autothrottle.adapters.decision_log import DecisionLog, LogLimits
from autothrottle.core.client_traffic import ClientTraffic, TrafficStep
from autothrottle.core.limits import Limits
from autothrottle.lab.virtual import BEGIN, VirtualRecovery, VirtualScenario
from tests.builders import limits, mb

LEADERS = (1001, 1002, 1003)
NEW = 1006
BUDGET = mb(81)
SECONDS = 600
"""What a move takes at best."""

CLIENTS = ClientTraffic.constant(mb(20), mb(10))
QUIET = {**dict.fromkeys(LEADERS, CLIENTS), NEW: ClientTraffic.constant(0, mb(10))}
FALLING = ClientTraffic(tuple(TrafficStep(180.0 * n, 0, mb(70 - 6 * n)) for n in range(11)))
"""Clients that leave: every three minutes 6 MB/s less."""


def restless(seed: int) -> ClientTraffic:
    """Clients that use another 10 to 45 MB/s every two minutes."""
    chance = random.Random(seed)
    return ClientTraffic(tuple(TrafficStep(120.0 * n, 0, mb(chance.randint(10, 45))) for n in range(30)))


def ratio(share: float) -> Limits:
    """Limits with this share of the headroom."""
    return limits(max_tx_ratio=share, max_rx_ratio=share)


def scenario(
    day: int,
    amount: float = BUDGET * SECONDS,
    traffic: Mapping[int, ClientTraffic] = QUIET,
    **changes: object,
) -> VirtualScenario:
    """A move of so many bytes on a day of November."""
    plain = VirtualScenario.replacement(traffic, [amount / 3] * 3)
    return replace(plain, **{"limits": ratio(0.9), "begin": BEGIN.replace(day=day), **changes})  # type: ignore[arg-type]


DULL = limits(max_tx_ratio=0.5, max_rx_ratio=0.5, change_threshold=0.3)
HOUR = (timedelta(minutes=5), timedelta(minutes=65))
BACK = timedelta(seconds=-90)

SCENARIOS = {
    "perfect": scenario(1),
    "seventy": scenario(2, limits=ratio(0.7)),
    "halved": scenario(3, limits=ratio(0.45)),
    "overridden": scenario(4),
    "blind": scenario(5, BUDGET * SECONDS * 2, blind=HOUR),
    "sensitive": scenario(6, traffic={**QUIET, NEW: FALLING}),
    "dull": scenario(6, traffic={**QUIET, NEW: FALLING}, limits=limits(change_threshold=0.6)),
    "restless": scenario(6, traffic={**QUIET, NEW: restless(1)}, limits=DULL),
    "handed-over": scenario(7, failover=(timedelta(minutes=7), BACK)),
}


def write(directory: Path) -> dict[str, float]:
    """Play all scenarios and log them; return cluster -> the seconds that its move took."""
    took = {}
    for name, of_cluster in SCENARIOS.items():
        took[name] = play(directory, name, of_cluster)
    return took


def play(directory: Path, name: str, of_cluster: VirtualScenario) -> float:
    """Play one scenario and log it; return the seconds that the move took."""
    with DecisionLog(str(directory), limits=LogLimits(patience=timedelta(minutes=3))) as log:
        recovery = VirtualRecovery(of_cluster, log, name)
        if name == "overridden":
            recovery.overrides.set_override(None, BUDGET // 2, autoremove=False)
        return recovery.run()
