"""Loads from the growth of logs, read in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.kafka_common import log_loads
from autothrottle.adapters.kafka_common.log_loads import LogLoads
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.snapshot import LogSizes, TopicPartition
from autothrottle.core.errors import Unavailable, Unready
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Capacity
from autothrottle.ports.kafka import PartitionsOfBrokers
from tests.builders import AT_ONCE, Stopwatch, eventually, mb

LINK = Capacity(mb(100), mb(100))
TIMEOUT = timedelta(seconds=20)


class Source(MemoryCluster):
    """A cluster whose clock advances 2 s per read, while producers send 10 MB/s to a partition with a follower."""

    def __init__(self) -> None:
        super().__init__(brokers=(1, 2))
        self.add_topic("t", {0: (1, 2)})
        self.time = datetime.now(UTC)
        self._clock = lambda: self.time
        self.reads = 0
        self.hidden: frozenset[str] = frozenset()
        """Topics that we may not describe."""
        self.alter: Callable[[LogSizes], LogSizes] = lambda sizes: sizes
        """Changes the answers of the brokers."""

    def fetch_log_sizes(self, partitions: PartitionsOfBrokers, timeout: timedelta) -> LogSizes:
        assert partitions == dict.fromkeys(self.brokers)
        self.time += timedelta(seconds=2)
        for broker_id in (1, 2):
            self.grow(broker_id, "t", 0, 2 * mb(10))
        self.reads += 1
        return self.alter(super().fetch_log_sizes(partitions, timeout))

    def fetch_leaders(self, topics: object, timeout: timedelta) -> Mapping[TopicPartition, int]:
        return {("t", 0): 1} if "t" not in self.hidden else {}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_loads, "_FIRST_INTERVAL", 0.01)
    monkeypatch.setattr(log_loads, "_SHORTEST_INTERVAL", 0.01)
    monkeypatch.setattr(log_loads, "_LONGEST_INTERVAL", 0.01)


@contextmanager
def loads_of(source: Source, limits: CapacityLimits = CapacityLimits(default=LINK)) -> Iterator[LogLoads]:  # noqa: B008
    found = LogLoads(source, limits, 1.5, timedelta(seconds=60), clock=lambda: source.time)
    try:
        yield found
    finally:
        found.close()


def test_the_first_request_waits_for_two_samples() -> None:
    with loads_of(source := Source()) as loads:
        first = loads.fetch_loads(TIMEOUT)
        assert {b: (one.outbound.rate, one.inbound.rate, one.capacity) for b, one in first.brokers.items()} == {
            1: (mb(25), mb(10), LINK),
            2: (0, mb(10), LINK),
        }
    assert source.reads >= 2


def test_a_broker_that_never_answered_is_a_problem_of_its_own() -> None:
    source = Source()
    source.brokers.add(3)
    with loads_of(source) as loads:
        found = loads.fetch_loads(TIMEOUT)
    assert found.brokers.keys() == {1, 2}
    assert found.problems == {3: "the sizes of its logs are unknown: broker 3 does not answer"}
    assert found.warnings == (
        "the log sizes of 1 brokers (3) were never read, so the outbound load of the leaders of their replicas lacks "
        "the bytes sent to them. Fix: see the problems of these brokers",
    )


def test_a_broker_that_falls_silent_loses_its_load_when_it_is_too_old() -> None:
    with loads_of(source := Source()) as loads:
        loads.fetch_loads(TIMEOUT)
        source.alter = lambda sizes: _without(sizes, 2)
        eventually(lambda: loads.fetch_loads(TIMEOUT).problems)
        found = loads.fetch_loads(TIMEOUT)
    assert found.brokers.keys() == {1}
    assert found.problems == {2: "the sizes of its logs are unknown: broker 2 does not answer"}


def test_a_negative_size_at_one_broker_is_its_problem_and_the_other_keeps_its_load() -> None:
    """A size of one broker that cannot be true counts as no answer. It changed the load of the leaders before."""
    source = Source()
    source.alter = lambda sizes: _negative(sizes, 2)
    with loads_of(source) as loads:
        found = loads.fetch_loads(TIMEOUT)
    assert found.brokers.keys() == {1}
    assert found.problems[2].startswith("the sizes of its logs are unknown: broker 2 reports -1 bytes for t 0")


def _negative(sizes: LogSizes, broker_id: int) -> LogSizes:
    logs = sizes.brokers[broker_id]
    return LogSizes({**sizes.brokers, broker_id: replace(logs, sizes={**logs.sizes, ("t", 0): -1})})


def _without(sizes: LogSizes, broker_id: int) -> LogSizes:
    left = {b: logs for b, logs in sizes.brokers.items() if b != broker_id}
    return LogSizes(left, {broker_id: f"broker {broker_id} does not answer"})


def test_a_broker_without_a_capacity_is_a_problem_with_its_fix() -> None:
    with loads_of(Source(), CapacityLimits({1: LINK})) as loads:
        found = loads.fetch_loads(TIMEOUT)
    assert found.brokers.keys() == {1}
    assert "broker 2 has no known capacity" in found.problems[2]
    assert "--default-capacity" in found.problems[2]


def test_topics_that_cannot_be_described_are_named() -> None:
    source = Source()
    source.hidden = frozenset({"t"})
    with loads_of(source) as loads:
        (warning,) = loads.fetch_loads(TIMEOUT).warnings
    assert warning.startswith("the leaders of 1 topics (t) are unknown")
    assert warning.endswith("allow Describe on all topics")


def test_a_cluster_that_does_not_answer_is_unavailable_at_once_with_the_reason() -> None:
    source = Source()
    source.unavailable(True)
    with loads_of(source) as loads:
        stopwatch = Stopwatch()
        with pytest.raises(Unavailable, match="log sizes of the brokers cannot be read: the cluster does not answer"):
            loads.fetch_loads(TIMEOUT)
        assert stopwatch.seconds < AT_ONCE
        source.unavailable(False)
        eventually(lambda: _answers(loads))


def _answers(loads: LogLoads) -> bool:
    try:
        return bool(loads.fetch_loads(TIMEOUT).brokers)
    except Unavailable:
        return False


def test_reading_ends_when_no_planner_requests_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_loads, "_USED_SECONDS", 0.0)
    with loads_of(source := Source()) as loads:
        assert source.reads == 0
        with pytest.raises(Unready, match="have no two samples yet"):
            loads.fetch_loads(timedelta(milliseconds=1))


def test_close_ends_a_waiting_request() -> None:
    source = Source()
    source.brokers.clear()
    loads = LogLoads(source, CapacityLimits(), 1, timedelta(seconds=60))
    loads.close()
    with pytest.raises(Unavailable):
        loads.fetch_loads(TIMEOUT)


def test_a_request_reads_sizes_that_are_too_old_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window of 120 s, sizes are read every 10 s, so a request got loads from before the copies that began."""
    monkeypatch.setattr(log_loads, "_SHORTEST_INTERVAL", 3600.0)
    monkeypatch.setattr(log_loads, "_LONGEST_INTERVAL", 3600.0)
    monkeypatch.setattr(log_loads, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(log_loads, "_PATIENCE_SECONDS", 20.0)
    with loads_of(source := Source()) as loads:
        loads.fetch_loads(TIMEOUT)
        reads = source.reads
        loads.fetch_loads(TIMEOUT)
        assert source.reads == reads + 1
