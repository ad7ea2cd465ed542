"""Cost of measuring the growth of all logs of six brokers, and of sending it to the planner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_common.progress_reader import GROWTH_INTERVAL
from autothrottle.core.cluster.flows import Progress, rate_after_rise
from autothrottle.core.cluster.snapshot import BrokerLogSizes, LogSizes, TopicPartition
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.traffic.log_growth_history import GrowthHistory
from autothrottle.v1.discovery_pb2 import Progress as ProgressMessage
from autothrottle.wire.discovery import progress_from_message, progress_to_messages
from tests.benchmarks.figures import Figures

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKERS = 6
READS = 60
"""Number of reads, together two minutes."""

PARTITIONS = 10
"""Partitions per topic."""


def log_dirs_response(broker_id: int, logs: int, read_number: int) -> bytes:
    """Return an encoded DescribeLogDirs response of a broker on which every tenth log grows."""
    of = kafka.protocol.admin.DescribeLogDirsResponse
    topic = of.DescribeLogDirsResult.DescribeLogDirsTopic
    partition = topic.DescribeLogDirsPartition
    rows = [
        topic(
            name=f"topic-with-a-usual-name-{broker_id}-{number}",
            partitions=[
                partition(
                    partition_index=index,
                    partition_size=10**9 + read_number * 10**6 * (index == 0),
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
    raw = [{b: log_dirs_response(b, logs, read_number) for b in range(BROKERS)} for read_number in range(2)]
    leaders = {row: b for b in range(BROKERS) for row in sizes(raw[0][b], b)}
    history, at = GrowthHistory(), NOON

    def read(read_number: int) -> None:
        nonlocal history
        sizes_by_broker = {b: BrokerLogSizes(at, sizes(encoded, b)) for b, encoded in raw[read_number % 2].items()}
        history = history.observe(LogSizes(sizes_by_broker), {}, leaders)
        assert not any(rate_after_rise(history.brokers[b]) for b in range(BROKERS))

    cpu_seconds = []
    for read_number in range(READS):
        at += GROWTH_INTERVAL
        start = time.process_time()
        read(read_number)
        cpu_seconds.append(time.process_time() - start)
    size = f"{BROKERS} brokers with {logs} logs each"
    seconds = GROWTH_INTERVAL.total_seconds()
    figures.add("growth of all logs: decode and count", size, "CPU s", cpu_seconds[1:])
    figures.add(
        f"growth of all logs: CPU with a read every {seconds:g} s",
        size,
        "% of a core",
        [100 * used / seconds for used in cpu_seconds[1:]],
    )
    figures.add("DescribeLogDirs response of one broker", size, "kB", [len(raw[0][0]) / 1000])
    progress = Progress(growth=history.reported, at=at)
    start, whole = time.process_time(), ProgressMessage()
    for message in progress_to_messages(progress, 1000):
        whole.MergeFrom(message)
    assert progress_from_message(whole) == progress
    figures.add("growth report: encode and decode", size, "CPU s", [time.process_time() - start])
    figures.add("growth report on the wire", size, "kB", [whole.ByteSize() / 1000])
    # Every other read shows that retention has removed the bytes appended since the read before.
    assert history.brokers[0].led == history.brokers[0].received == READS // 2 * 10**6 * logs // PARTITIONS
