"""The advice that the scorer derives from a log, followed in the simulator under client loads that the log lacks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.policy.registry import policy_of
from autothrottle.core.scoring.estimates import GRID, LoggedRecovery, advice, estimate
from autothrottle.core.scoring.score import Setting
from autothrottle_lab.simulate.recording import Recording
from autothrottle_lab.simulate.virtual_time import VirtualRecovery, VirtualScenario
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep
from tests.builders import limits, mb
from tests.examples import examples
from tests.system.scorer import golden
from tests.unit.autothrottle.core.scoring.logged_recovery import logged_recovery

LOGGED_SEEDS, UNSEEN_SEEDS = (1, 2, 3), range(4, 4 + examples(2, 6))

USUAL = [("dull-adaptive", load, len(LOGGED_SEEDS)) for load in ("mild", "restless")]
"""(present setting, load, number of logged recoveries) that `make test` plays."""

PRESENT = {
    "halved-adaptive": Setting(0.45, 0.1, 1, "adaptive"),
    "dull-adaptive": Setting(0.5, 0.3, 1, "adaptive"),
    "dull-headroom": Setting(0.5, 0.3, 1, "headroom"),
}


def wandering(seed: int, spread: float) -> ClientTraffic:
    """A client load that changes every 20 s by `spread` MB/s in the mean, and returns to 25 MB/s."""
    chance, load, steps = random.Random(seed), 25.0, []
    for number in range(600):
        load = 25 + 0.9 * (load - 25) + chance.gauss(0, spread)
        steps.append(TrafficStep(20.0 * number, 0, mb(min(max(load, 3), 60))))
    return ClientTraffic(tuple(steps))


def spiky(seed: int) -> ClientTraffic:
    """A client load of 15 MB/s that is 65 MB/s for a fifteenth of the time, 15 s each: a minute's mean hides it."""
    chance = random.Random(seed)
    loads = [65 if chance.random() < 1 / 15 else 15 for _ in range(480)]
    return ClientTraffic(tuple(TrafficStep(15.0 * n, 0, mb(load)) for n, load in enumerate(loads)))


def falling(seed: int) -> ClientTraffic:
    """A client load that falls from about 55 MB/s by 6 MB/s every three minutes."""
    highest = random.Random(seed).randint(45, 65)
    return ClientTraffic(tuple(TrafficStep(180.0 * n, 0, mb(max(highest - 6 * n, 5))) for n in range(20)))


LOADS: dict[str, Callable[[int], ClientTraffic]] = {
    "calm": lambda seed: wandering(seed, 1.0),
    "noisy": lambda seed: wandering(seed, 3.0),
    "mild": golden.mild,
    "restless": golden.restless,
    "spiky": spiky,
    "falling": falling,
}
"""Name -> seed -> client load of the new broker, whose link has 100 MB/s."""

SAFE = ("calm", "mild")
"""Loads so even that more than half of the headroom harms no client."""


def scenario(seed: int, load: str, setting: Setting) -> VirtualScenario:
    """A recovery of 49 GB over the inbound link of a new broker with this client load."""
    ratio, threshold = setting.max_ratio, setting.change_threshold
    scenario = golden.scenario(
        1,
        traffic={**golden.QUIET, golden.NEW: LOADS[load](seed)},
        limits=limits(max_tx_ratio=ratio, max_rx_ratio=ratio, change_threshold=threshold),
        step=timedelta(seconds=0.5),
    )
    return replace(scenario, settings=replace(scenario.settings, policy=policy_of(setting.policy)))


@cache
def played(seed: int, load: str, setting: Setting) -> tuple[LoggedRecovery, float, float]:
    """Return a recovery as it is logged, its duration in seconds, and the deferred client bytes in percent."""
    log, of_seed = MemoryDecisions(), scenario(seed, load, setting)
    recording, recovery = Recording(of_seed), VirtualRecovery(of_seed, log)
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
    ("present", "load", "logs"),
    [
        pytest.param(present, load, logs, marks=() if (present, load, logs) in USUAL else pytest.mark.repeat)
        for present in PRESENT
        for load in LOADS
        for logs in (1, len(LOGGED_SEEDS))
    ],
)
def test_following_the_advice_is_faster_and_defers_no_more(present: str, load: str, logs: int) -> None:
    """A restless load moves the throttle in some recoveries, and did not in the logged ones.

    A higher max-rate made the bursts after each change of the throttle larger: clients of another recovery waited for
    0.2 % more of their bytes.
    """
    present_setting = PRESENT[present]
    proposed, _ = advised([played(seed, load, present_setting)[0] for seed in LOGGED_SEEDS[:logs]])
    if proposed == present_setting:
        assert load not in SAFE
        return
    for seed in UNSEEN_SEEDS:
        _, seconds, deferred = played(seed, load, present_setting)
        _, advised_seconds, advised_deferred = played(seed, load, proposed)
        assert advised_seconds < 0.97 * seconds
        assert advised_deferred <= deferred + 0.01


def test_the_gain_under_a_calm_load_is_within_its_interval() -> None:
    present = PRESENT["halved-adaptive"]
    seeds = LOGGED_SEEDS[: examples(2, 3)]
    proposed, (low, high) = advised([played(seed, "calm", present)[0] for seed in seeds])
    before, after = (sum(played(seed, "calm", setting)[1] for seed in seeds) for setting in (present, proposed))
    assert low - 0.01 <= 1 - after / before <= high + 0.01
    assert high - low < 0.1


@pytest.mark.parametrize("present", [Setting(0.9, 0.1, 1, "adaptive"), Setting(0.95, 0.1, 1, "headroom")])
def test_usual_settings_stay(present: Setting) -> None:
    proposed, _ = advised([played(1, "noisy", present)[0]])
    assert proposed == present
