"""Estimates of settings on one link side, and the advice that follows from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.records import Reason
from autothrottle.core.scoring.estimates import (
    GRID,
    MOST_STRETCHES,
    Advice,
    LoggedRecovery,
    LoggedStretch,
    SettingChange,
    SettingEstimate,
    advice,
    estimate,
    load_ranges,
    resampled,
)
from autothrottle.core.scoring.score import Setting
from tests.builders import mb
from tests.examples import examples

HALVED = Setting(0.45, 0.1, 1, "adaptive")
USUAL = Setting(0.9, 0.1, 1, "adaptive")


def recovery(
    loads: Sequence[float], setting: Setting = HALVED, seconds: float = 60.0, recovery_id: str = "r", **changes: object
) -> LoggedRecovery:
    """A recovery over an inbound link of 100 MB/s with these client loads in MB/s, as its own setting decides it."""
    forecasts = [loads[0], *loads[:-1]]
    rates = [setting.max_ratio * (100 - forecast) for forecast in forecasts]
    stretches = [
        LoggedStretch(seconds, mb(100), mb(load), mb(forecast), mb(rate), mb(rate), mb(rate), mb(10), "headroom")
        for load, forecast, rate in zip(loads, forecasts, rates, strict=True)
    ]
    amount = sum(stretch.achieved * seconds for stretch in stretches)
    logged = LoggedRecovery("c", recovery_id, False, seconds * len(loads), amount, 0.0, setting, 60.0, stretches)
    return replace(logged, **changes)  # type: ignore[arg-type]


def advised(recoveries: Sequence[LoggedRecovery], equal: int = 1) -> Advice:
    """The advice for some recoveries by the whole grid; the first `equal` ones differ only in their ids."""
    tried = dict.fromkeys((*GRID, *(recovery.setting for recovery in recoveries)))
    estimates = {
        setting: [estimate(recoveries[0], setting)] * equal + [estimate(each, setting) for each in recoveries[equal:]]
        for setting in tried
    }
    return advice(recoveries, estimates)


def test_the_grid_has_at_most_100_settings() -> None:
    assert len(GRID) < 100
    assert len(set(GRID)) == len(GRID)


@pytest.mark.parametrize("policy", ["adaptive", "headroom"])
def test_the_logged_setting_takes_as_long_as_logged(policy: str) -> None:
    logged = recovery([20.0] * 20, Setting(0.9, 0.1, 1, policy))
    result = estimate(logged, logged.setting)
    assert result.seconds == pytest.approx(logged.duration, rel=0.01)
    assert (result.deferred_bytes, result.writes) == (0.0, 1)


@pytest.mark.parametrize("policy", ["adaptive", "headroom"])
def test_twice_the_share_takes_half_as_long(policy: str) -> None:
    logged = recovery([20.0] * 20)
    assert estimate(logged, Setting(0.9, 0.1, 1, policy)).seconds == pytest.approx(logged.duration / 2, rel=0.01)


def test_a_rate_above_the_headroom_displaces_the_excess() -> None:
    """The load rises by 60 MB/s, which the policy sees a cycle later: 72 and 80 MB/s do not fit into 100."""
    logged = recovery([20.0] * 5 + [80.0] * 5, USUAL)
    result = estimate(logged, replace(USUAL, policy="headroom"))
    assert result.deferred_bytes >= 52e6 * 60
    assert result.client_bytes == mb(50) * 600


def test_a_lowered_throttle_displaces_clients_in_bursts() -> None:
    """After a change from 45 to 30 MB/s, 45 MB/s come again in bursts, though they fit beside 40 MB/s of clients."""
    logged = recovery([10.0] * 5 + [40.0] * 5, Setting(0.5, 0.3, 1, "headroom"))
    result = estimate(logged, logged.setting)
    assert result.writes == 2
    assert result.deferred_bytes == pytest.approx(11 * mb(15) * 0.4, rel=0.01)


@pytest.mark.parametrize("policy", ["adaptive", "headroom"])
@pytest.mark.parametrize("age", [0.0, 600.0])
def test_the_logged_setting_takes_as_long_as_logged_with_metrics_of_any_age(policy: str, age: float) -> None:
    logged = recovery([20.0] * 40, Setting(0.9, 0.1, 1, policy))
    stretches = [replace(stretch, metric_ages=(age + 60, age)) for stretch in logged.stretches]
    result = estimate(replace(logged, stretches=stretches), logged.setting)
    assert result.seconds == pytest.approx(logged.duration, rel=0.01)


def test_overrides_and_missing_metrics_stay_as_logged() -> None:
    logged = recovery([20.0] * 3)
    override = replace(logged.stretches[0], reason=Reason.CLUSTER_OVERRIDE.value, decided=mb(5))
    blind = replace(logged.stretches[0], forecast=None, reason=Reason.MINIMUM.value)
    slow = replace(logged, stretches=[override, blind, blind], amount=(mb(5) + mb(10) * 2) * 60.0)
    for setting in (HALVED, USUAL):
        assert estimate(slow, setting).seconds == pytest.approx(180, rel=0.01)


def test_something_else_that_limited_replication_limits_it_again() -> None:
    logged = recovery([20.0] * 10)
    limited = [replace(stretch, achieved=mb(10)) for stretch in logged.stretches]
    slow = replace(logged, stretches=limited, amount=mb(10) * 600.0)
    assert estimate(slow, USUAL).seconds == pytest.approx(600)


def test_a_static_rate_is_as_logged() -> None:
    logged = recovery([20.0] * 10, Setting(0.9, 0.1, 1, "static"))
    assert estimate(logged, logged.setting).seconds == pytest.approx(600)


def test_a_resampled_recovery_has_about_the_same_estimate() -> None:
    chance, load, loads = random.Random(3), 25.0, []
    for _ in range(examples(1500, 3000)):
        load = min(max(25 + 0.9 * (load - 25) + chance.gauss(0, 3), 3), 60)
        loads.append(load)
    logged = recovery(loads, USUAL)
    short = resampled(logged)
    assert len(short.stretches) <= MOST_STRETCHES
    whole, part = estimate(logged, HALVED), estimate(short, HALVED)
    assert part.seconds == pytest.approx(whole.seconds, rel=0.03)
    assert part.client_bytes == pytest.approx(whole.client_bytes, rel=0.05)


def test_a_halved_share_is_found_with_its_gain() -> None:
    chance = random.Random(1)
    recoveries = [recovery([chance.uniform(15, 25)] * 20, recovery_id=str(number)) for number in range(6)]
    result = advised(recoveries)
    assert result.changes == (SettingChange("max-rate", 45.0, 95.0),)
    actual = 1 - 0.45 / 0.95
    assert result.gain_low - 0.01 <= actual <= result.gain_high + 0.01
    assert result.gain == pytest.approx(actual, abs=0.02)
    assert result.seconds_saved == pytest.approx(actual * 6 * 1200, rel=0.05)
    assert result.sentence.startswith("Change --max-rate from 45 to 95: recoveries are 53 % shorter")


def test_no_change_is_worth_it_if_a_faster_setting_harms_clients() -> None:
    chance = random.Random(2)
    jumping = [chance.choice([5.0, 60.0]) for _ in range(40)]
    result = advised([recovery(jumping, replace(HALVED, max_ratio=0.5))])
    assert (result.changes, result.proposed) == ((), None)
    assert result.sentence.startswith("No change is worth it")


def test_no_change_is_worth_a_gain_of_less_than_two_percent() -> None:
    logged = recovery([20.0] * 20, Setting(0.95, 0.1, 1, "adaptive"))
    assert advised([logged]).changes == ()


def test_a_gain_that_only_one_recovery_has_is_uncertain() -> None:
    """Nine recoveries are limited elsewhere, one by its share: drawn again, that one is often missing."""
    limited = recovery([20.0] * 20)
    stuck = replace(limited, stretches=[replace(s, achieved=mb(10)) for s in limited.stretches], amount=mb(10) * 1200.0)
    recoveries = [replace(stuck, recovery_id=str(number)) for number in range(9)] + [limited]
    assert advised(recoveries, equal=9).changes == ()


def test_no_share_is_raised_if_another_order_of_the_loads_changes_the_rate() -> None:
    """The rate of 40 MB/s stays at each load from 5 to 40 MB/s, within a change threshold of 30 %.

    In a recovery that begins with 5 or 40 MB/s it would change, and the bursts of a change grow with the share.
    """
    dull = Setting(0.5, 0.3, 1, "adaptive")
    loads = [20.0, *(20.0, 39.0, 8.0, 30.0) * 10]
    logged = recovery(loads, dull)
    stretches = [replace(stretch, decided=mb(40), applied=mb(40), achieved=mb(40)) for stretch in logged.stretches]
    logged = replace(logged, stretches=stretches, amount=mb(40) * logged.duration)
    assert estimate(logged, dull).writes == estimate(logged, replace(dull, max_ratio=0.55)).writes == 1
    assert advised([logged]).changes == ()


def test_a_share_is_raised_beside_loads_that_never_change_the_rate() -> None:
    dull = Setting(0.5, 0.3, 1, "adaptive")
    chance = random.Random(4)
    loads = [chance.uniform(18, 22) for _ in range(20) for _ in range(4)]
    assert advised([recovery(loads, dull)]).gain > 0.3


def test_replication_may_use_more_of_another_rate_than_of_the_logged_one() -> None:
    """It used 90 % of its throttle. Beside 25 MB/s of clients, all of 0.9 * (100 - 15) MB/s does not fit."""
    chance = random.Random(7)
    dull = Setting(0.5, 0.3, 1, "adaptive")
    logged = recovery([load for load in (chance.uniform(15, 25) for _ in range(30)) for _ in range(4)], dull)
    stretches = [replace(stretch, achieved=0.9 * stretch.decided) for stretch in logged.stretches]
    assert logged.use == 1 and replace(logged, stretches=stretches).use == pytest.approx(0.9)
    (change,) = advised([replace(logged, stretches=stretches, amount=0.9 * logged.amount)]).changes
    assert (change.option, change.proposed) == ("max-rate", 80)


def test_load_ranges_are_wider_after_few_loads() -> None:
    """Ten loads of a uniform distribution leave more unseen than forty; each stays for five samples."""
    chance = random.Random(5)
    few, many = ([load for load in (chance.uniform(20, 40) for _ in range(n)) for _ in range(5)] for n in (10, 40))
    ((of_few,), (of_many,)) = (load_ranges([recovery(loads, USUAL)]) for loads in (few, many))
    assert (of_few.highest - max(few) * 1e6) > 2 * (of_many.highest - max(many) * 1e6) > 0
    assert of_many.lowest < mb(20) and of_many.highest > mb(40)


def test_load_ranges_contain_loads_that_the_mean_of_a_metric_hides() -> None:
    """Means that differ from minute to minute come from shorter loads, which are farther from their mean."""
    chance = random.Random(6)
    means = [chance.uniform(26, 34) for _ in range(100)]
    (short,) = load_ranges([recovery(means, USUAL)])
    (long,) = load_ranges([recovery([mean for mean in means for _ in range(5)], USUAL)])
    assert short.highest - short.lowest > 2 * mb(8)
    assert long.highest - long.lowest < 1.3 * mb(8)


@settings(max_examples=examples(100, 5000), deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), min_size=1, max_size=3),
    st.one_of(st.floats(1e-6, 7200), st.just(0.0)),
)
def test_load_ranges_contain_the_logged_loads(loads: list[list[float]], metric_seconds: float) -> None:
    ages = (metric_seconds, 0.0) if metric_seconds else None
    recoveries = [recovery(of_recovery, USUAL) for of_recovery in loads]
    recoveries = [replace(r, stretches=[replace(s, metric_ages=ages) for s in r.stretches]) for r in recoveries]
    for logged, of_recovery in zip(recoveries, load_ranges(recoveries), strict=True):
        clients = [stretch.client for stretch in logged.stretches]
        tolerance = 1 + 1e-9 * max(clients)
        assert 0 <= of_recovery.lowest <= min(clients) + tolerance
        assert of_recovery.highest >= max(clients) - tolerance


def test_equal_loads_have_an_exact_range() -> None:
    (loads,) = load_ranges([recovery([20.0] * 3, USUAL)])
    assert (loads.lowest, loads.highest) == (mb(20), mb(20))


def test_no_change_is_worth_more_deferral_in_a_few_recoveries() -> None:
    """One of ten recoveries defers 0.05 points more, others less. Drawn again, their sum is often above 0.01 points."""
    recoveries = [recovery([20.0] * 20, recovery_id=str(number)) for number in range(10)]
    today = [SettingEstimate(1200, 1e6 if number else 0, 2.4e10, 3) for number in range(10)]
    worse = [SettingEstimate(600, 0 if number else 8e6, 2.4e10, 3) for number in range(10)]
    rare = [SettingEstimate(600, 0 if number else 1.2e7, 2.4e10, 3) for number in range(10)]
    assert advice(recoveries, {HALVED: today, USUAL: worse}).proposed is not None
    assert sum(each.deferred_bytes for each in rare) <= sum(each.deferred_bytes for each in today) + 3e6
    assert advice(recoveries, {HALVED: today, USUAL: rare}).proposed is None


@settings(max_examples=examples(30, 1000), deadline=None)
@given(
    st.lists(st.floats(0, 99), min_size=1, max_size=12),
    st.sampled_from(GRID),
    st.floats(0.1, 600),
    st.booleans(),
)
def test_estimates_are_finite_or_never_and_not_negative(
    loads: list[float], setting: Setting, seconds: float, is_outbound: bool
) -> None:
    result = estimate(recovery(loads, seconds=seconds, is_outbound=is_outbound), setting)
    assert result.seconds > 0
    assert result.deferred_bytes >= 0
    assert 1 <= result.writes <= len(loads)


def test_equal_input_gives_equal_advice() -> None:
    estimates = {
        HALVED: [SettingEstimate(100, 0, 1e9, 3), SettingEstimate(200, 0, 1e9, 3)],
        USUAL: [SettingEstimate(50, 0, 1e9, 3), SettingEstimate(110, 0, 1e9, 3)],
    }
    recoveries = [replace(recovery([20.0]), duration=seconds) for seconds in (100.0, 200.0)]
    assert advice(recoveries, estimates) == advice(recoveries, estimates)
