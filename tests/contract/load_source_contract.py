"""Contract of every `LoadSource`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from autothrottle.core.traffic.loads import Capacity
from autothrottle.ports.telemetry import LoadSource
from tests.builders import eventually

TIMEOUT = timedelta(seconds=30)

RATES = {1: (3_000_000, 1_000_000), 2: (5_000_000, 2_000_000)}
"""Broker id -> bytes/s sent and received."""

LINK = Capacity(100_000_000, 100_000_000)


@dataclass(frozen=True, slots=True)
class LoadSubject:
    """A source with the loads `RATES`, and capacity `LINK` of each link."""

    source: LoadSource
    lose: Callable[[int], None]
    """Ends the metrics of one broker."""
    exact_within: float
    """Relative error of a rate that the source's own measurement explains."""


def are_exact(subject: LoadSubject) -> bool:
    """Whether all loads cover 2 s and have the right rates. On a busy machine, the delay of a request disturbs some."""
    loads = subject.source.fetch_loads(TIMEOUT).brokers
    return loads.keys() == RATES.keys() and all(
        found.end - found.start >= timedelta(seconds=2) and abs(found.rate / rate - 1) <= subject.exact_within
        for broker_id, load in loads.items()
        for found, rate in zip((load.outbound, load.inbound), RATES[broker_id], strict=True)
    )


class LoadSourceContract:
    def test_load_of_each_broker_has_its_rates_and_their_interval(self, subject: LoadSubject) -> None:
        eventually(lambda: are_exact(subject))
        loads = subject.source.fetch_loads(TIMEOUT)
        now = datetime.now(UTC)
        for broker_id in RATES:
            load = loads.brokers[broker_id]
            assert load.capacity == LINK
            for found in (load.outbound, load.inbound):
                assert found.start < found.end <= now + timedelta(seconds=1)
        assert loads.problems == {}

    def test_broker_without_metrics_is_a_named_problem_and_the_others_continue(self, subject: LoadSubject) -> None:
        eventually(lambda: {*subject.source.fetch_loads(TIMEOUT).brokers} == {*RATES})
        subject.lose(2)
        eventually(lambda: 2 in subject.source.fetch_loads(TIMEOUT).problems, 60)
        loads = subject.source.fetch_loads(TIMEOUT)
        assert {*loads.brokers} == {1}
        assert "broker 2" in loads.problems[2]
