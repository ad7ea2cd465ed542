"""What it costs discovery to read how fast all logs of six brokers grow, and the planner to be told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from autothrottle.adapters.growth import INTERVAL
from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.flows import Progress
from autothrottle.core.growth import risen
from autothrottle.core.growth_history import GrowthHistory
from autothrottle.core.progress import BrokerLogSizes, LogSizes
from autothrottle.core.topology import TopicPartition
from autothrottle.v1.discovery_pb2 import Progress as ProgressMessage
from autothrottle.wire.progress import progress_from_message, progress_to_messages
from tests.benchmarks.figures import Figures

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKERS = 6
READINGS = 60
"""Two minutes."""

PARTITIONS = 10
"""Of a topic."""


def answer(broker_id: int, logs: int, reading: int) -> bytes:
    """What a broker says, every tenth of whose logs grow."""
    of = kafka.protocol.admin.DescribeLogDirsResponse
    topic = of.DescribeLogDirsResult.DescribeLogDirsTopic
    partition = topic.DescribeLogDirsPartition
    rows = [
        topic(
            name=f"topic-with-a-usual-name-{broker_id}-{number}",
            partitions=[
                partition(
                    partition_index=index,
                    partition_size=10**9 + reading * 10**6 * (index == 0),
                    offset_lag=0,
                    is_future_key=False,
                )
                for index in range(PARTITIONS)
            ],
        )
        for number in range(logs // PARTITIONS)
    ]
    result = of.DescribeLogDirsResult(error_code=0, log_dir="/data", topics=rows, total_bytes=1, usable_bytes=1)
    encoded: bytes = of(throttle_time_ms=0, error_code=0, results=[result]).encode(version=4)
    return encoded


def sizes(raw: bytes, broker_id: int) -> Mapping[TopicPartition, int]:
    found = messages.log_sizes(broker_id, kafka.protocol.admin.DescribeLogDirsResponse.decode(raw, version=4))
    assert not isinstance(found, AutothrottleError)
    return found


@pytest.mark.usefixtures("collected_rarely")
@pytest.mark.parametrize("logs", [500, 4_000])
def test_growth_of_all_logs(logs: int, figures: Figures) -> None:
    raw = [{b: answer(b, logs, reading) for b in range(BROKERS)} for reading in range(2)]
    leaders = {row: b for b in range(BROKERS) for row in sizes(raw[0][b], b)}
    history, at = GrowthHistory(), NOON

    def read(reading: int) -> None:
        nonlocal history
        answers = {b: BrokerLogSizes(at, sizes(encoded, b)) for b, encoded in raw[reading % 2].items()}
        history = history.observe(LogSizes(answers), {}, leaders)
        assert not any(risen(history.brokers[b]) for b in range(BROKERS))

    spent = []
    for reading in range(READINGS):
        at += INTERVAL
        start = time.process_time()
        read(reading)
        spent.append(time.process_time() - start)
    size = f"{BROKERS} brokers of {logs} logs"
    seconds = INTERVAL.total_seconds()
    figures.add("growth of all logs, read and counted", size, "CPU s", spent[1:])
    figures.add(f"the same every {seconds:g} s", size, "% of a core", [100 * one / seconds for one in spent[1:]])
    figures.add("a broker's answer", size, "kB", [len(raw[0][0]) / 1000])
    told = Progress(growth=history.told, at=at)
    start, whole = time.process_time(), ProgressMessage()
    for message in progress_to_messages(told, 1000):
        whole.MergeFrom(message)
    assert progress_from_message(whole) == told
    figures.add("growth told to the planner", size, "CPU s", [time.process_time() - start])
    figures.add("growth on the wire", size, "kB", [whole.ByteSize() / 1000])
    # Retention takes away in every other reading what came in between.
    assert history.brokers[0].led == history.brokers[0].received == READINGS // 2 * 10**6 * logs // PARTITIONS
