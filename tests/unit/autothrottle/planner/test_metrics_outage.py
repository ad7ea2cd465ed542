"""A metrics source that is away for an hour: nothing piles up, and rates follow the load soon after its return."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.cycle.input import KnownLoads
from autothrottle.core.records import Pause, PauseMode
from autothrottle.core.retries import METRICS, Retry
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.calls import LoadsProbe
from tests import builders
from tests.builders import NOON, eventually
from tests.resources import resident_bytes, usage
from tests.unit.autothrottle.planner.bench import ADDRESS, BROKERS, FOLLOWER, Bench

MEGABYTE = 2**20
SOON = Retry("the metrics", "tests", first=0.01)


@pytest.mark.parametrize("hours", [1, pytest.param(10, marks=pytest.mark.repeat)])
@pytest.mark.usefixtures("info_lines")
def test_hours_without_metrics_leave_nothing_behind(hours: int, caplog: pytest.LogCaptureFixture) -> None:
    """The warning is logged once, and each later cycle of an outage logs no more than one with metrics."""

    def lines_of(cycles: int) -> list[logging.LogRecord]:
        before = len(caplog.records)
        for _ in range(cycles):
            bench.cycle()
        return caplog.records[before:]

    with Bench() as bench:
        bench.begin_reassignment(partitions=10)
        lines_of(9)
        usual = len(lines_of(1))
        bench.metrics.unavailable(True)
        lines_of(10)
        before, begin = usage(), resident_bytes()
        lines = lines_of(hours * 60)
        assert usage() == before
        assert resident_bytes() - begin < 16 * MEGABYTE
        assert len(lines) == usual * hours * 60
        assert [line for line in lines if line.levelno > logging.INFO] == []
        assert bench.rate(1003, FOLLOWER) == 10.0
        warnings = [line for line in caplog.records if line.message.startswith("Metrics cannot be read")]
        assert len(warnings) == 1
        bench.metrics.unavailable(False)
        lines_of(1)
        bench.finish_ramps()
        assert (bench.rate(1003, FOLLOWER) or 0) > 80


def last_reason(bench: Bench) -> str:
    cycle = bench.planner.state().last_cycle
    return cycle.reason if cycle else ""


@pytest.mark.parametrize("kind", ["no answer", "no load"])
def test_return_of_the_metrics_source_starts_a_cycle_at_any_interval(kind: str) -> None:
    """With `--interval 180`, rates stayed at the minimum for up to three minutes after the return of the source."""
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.planner._probe._retry = SOON
        if kind == "no answer":
            bench.metrics.unavailable(True)
        for broker_id in BROKERS if kind == "no load" else ():
            bench.metrics.lose(broker_id, f"broker {broker_id} has no sample")
        bench.begin_reassignment()
        bench.planner.start(ADDRESS)
        eventually(lambda: bench.rate(1003, FOLLOWER) == 10.0)
        bench.metrics.unavailable(False)
        for broker_id in BROKERS:
            bench.set_load(broker_id)
        eventually(lambda: (bench.rate(1003, FOLLOWER) or 0) > 10)
        eventually(lambda: last_reason(bench) == "the metrics source answers again")


def test_source_is_not_asked_during_a_pause() -> None:
    """A source that was away at the start of a pause was asked for the whole pause, also when nothing moved."""
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.metrics.unavailable(True)
        bench.begin_reassignment()
        bench.planner.start(ADDRESS)
        eventually(lambda: bench.planner._probe._is_needed)
        bench.pauses.set_pause(Pause(PauseMode.KEEP, "alice", NOON))
        eventually(lambda: not bench.planner._probe._is_needed)


def test_source_that_answers_without_any_load_is_asked_less_and_less_often() -> None:
    """With tags that name no broker, requests every 5 s used up most of what Datadog allows an organization."""
    source = MemoryMetrics(builders.load(1, 1, 1))
    probe = LoadsProbe(source, lambda: None)

    def waits(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            assert not probe._has_load()
            seconds.append(METRICS.wait(max(probe._empty_answers, 1)))
        return seconds

    source.unavailable(True)
    assert waits(3) == [5, 5, 5], "an outage"
    source.unavailable(False)
    source.lose(1, "broker 1 has no sample")
    assert waits(6) == [5, 10, 20, 40, 60, 60]
    source.unavailable(True)
    assert waits(1) == [5]


def test_source_that_is_no_longer_needed_is_not_asked() -> None:
    """After the end of all moves, a source that is away is asked by scheduled cycles alone."""
    source, returns = MemoryMetrics(builders.load(1, 1, 1)), threading.Event()
    probe = LoadsProbe(source, returns.set, SOON)
    probe.follow(True)
    assert returns.wait(60)
    assert (probe.take_return(), probe.take_return()) == (True, False)
    probe.follow(False)
    probe.close()
    probe.follow(True)
    assert not any(thread.name == "metrics-probe" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("loads", "are_lost"),
    [
        (KnownLoads(error="metrics cannot be read"), True),
        (KnownLoads(Loads(problems={1: "broker 1 has no sample"})), True),
        (KnownLoads(Loads({1: builders.load(1, 1, 1)}, {2: "broker 2 has no sample"})), False),
        (KnownLoads(), False),
    ],
)
def test_source_without_any_load_is_lost(loads: KnownLoads, are_lost: bool) -> None:
    assert loads.are_lost is are_lost
