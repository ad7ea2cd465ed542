"""The advice that the scorer derives from a log, followed in the simulator under client loads that the log lacks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.scoring.estimates import GRID, POLICIES, LoggedRecovery, advice, estimate
from autothrottle.core.scoring.score import Setting
from autothrottle_lab.simulate.recording import Recording
from autothrottle_lab.simulate.virtual_time import VirtualRecovery, VirtualScenario
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep
from tests.builders import limits, mb
from tests.system.scorer import golden
from tests.unit.autothrottle.core.scoring.logged_recovery import logged_recovery

LOGGED_SEEDS = 1, 2, 3

SPREADS = {"calm": 1.0, "noisy": 3.0}
"""Mean change of the client load in 20 s, MB/s; its mean is 25 MB/s on a link of 100 MB/s."""

PRESENT = {"halved-adaptive": Setting(0.45, 0.1, 1, "adaptive"), "dull-headroom": Setting(0.5, 0.3, 1, "headroom")}


def clients(seed: int, spread: float) -> ClientTraffic:
    """A client load that changes every 20 s and returns to its mean."""
    chance, load, steps = random.Random(seed), 25.0, []
    for number in range(600):
        load = 25 + 0.9 * (load - 25) + chance.gauss(0, spread)
        steps.append(TrafficStep(20.0 * number, 0, mb(min(max(load, 3), 60))))
    return ClientTraffic(tuple(steps))


def scenario(seed: int, spread: float, setting: Setting) -> VirtualScenario:
    """A recovery of 97 GB over the inbound link of a new broker with this client load."""
    ratio, threshold = setting.max_ratio, setting.change_threshold
    scenario = golden.scenario(
        1,
        2 * golden.BUDGET * golden.SECONDS,
        traffic={**golden.QUIET, golden.NEW: clients(seed, spread)},
        limits=limits(max_tx_ratio=ratio, max_rx_ratio=ratio, change_threshold=threshold),
        step=timedelta(seconds=0.5),
    )
    return replace(scenario, settings=replace(scenario.settings, policy=POLICIES[setting.policy]))


@cache
def played(seed: int, spread: float, setting: Setting) -> tuple[LoggedRecovery, float, float]:
    """Return a recovery as it is logged, its duration in seconds, and the deferred client bytes in percent."""
    log, chosen = MemoryDecisions(), scenario(seed, spread, setting)
    recording, recovery = Recording(chosen), VirtualRecovery(chosen, log)
    seconds = recovery.run(watch=recording.watch)
    outcome = recording.outcome(recovery, seconds)
    logged = logged_recovery(log.decisions, log.reassignments, golden.NEW, "follower")
    return logged, seconds, outcome.deferred_percent


def advised(recoveries: Sequence[LoggedRecovery]) -> tuple[Setting, tuple[float, float]]:
    """The proposed setting and the bounds of its gain; the present setting if no change is worth it."""
    present = recoveries[-1].setting
    estimates = {s: [estimate(recovery, s) for recovery in recoveries] for s in dict.fromkeys((*GRID, present))}
    result = advice(recoveries, estimates)
    return result.proposed.setting if result.proposed else present, (result.gain_low, result.gain_high)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("present", "spread", "seeds"),
    [
        pytest.param(PRESENT["halved-adaptive"], SPREADS["calm"], (4,), id="halved-adaptive-calm-4"),
        *(
            pytest.param(setting, spread, range(4, 10), id=f"{name}-{load}", marks=pytest.mark.repeat)
            for name, setting in PRESENT.items()
            for load, spread in SPREADS.items()
        ),
    ],
)
def test_following_the_advice_is_faster_and_defers_no_more(
    present: Setting, spread: float, seeds: Sequence[int]
) -> None:
    proposed, _ = advised([played(seed, spread, present)[0] for seed in LOGGED_SEEDS])
    if proposed == present:
        assert spread == SPREADS["noisy"], "a calm load allows more than half of the headroom"
    for seed in seeds:
        _, seconds, deferred = played(seed, spread, present)
        _, advised_seconds, advised_deferred = played(seed, spread, proposed)
        assert advised_seconds < 0.97 * seconds or proposed == present
        assert advised_deferred <= deferred + 0.01


def test_the_gain_under_a_calm_load_is_within_its_interval() -> None:
    present = PRESENT["halved-adaptive"]
    proposed, (low, high) = advised([played(seed, SPREADS["calm"], present)[0] for seed in LOGGED_SEEDS])
    before, after = (
        sum(played(seed, SPREADS["calm"], setting)[1] for seed in LOGGED_SEEDS) for setting in (present, proposed)
    )
    assert low - 0.01 <= 1 - after / before <= high + 0.01
    assert high - low < 0.1


@pytest.mark.parametrize("present", [Setting(0.9, 0.1, 1, "adaptive"), Setting(0.95, 0.1, 1, "headroom")])
def test_usual_settings_stay(present: Setting) -> None:
    proposed, _ = advised([played(1, SPREADS["noisy"], present)[0]])
    assert proposed == present
