"""Storage from DescribeLogDirs."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

from autothrottle.adapters.kafka_admin.messages import log_dirs
from autothrottle.adapters.kafka_admin.placement import storage_metrics
from autothrottle.adapters.kafka_admin.values import LogDirs

NOW = datetime(2026, 11, 24, tzinfo=UTC)


def directory(total: int, usable: int, cordoned: bool = False, **sizes: int) -> SimpleNamespace:
    topics = [
        SimpleNamespace(
            name=topic, partitions=[SimpleNamespace(partition_index=0, partition_size=size, is_future_key=False)]
        )
        for topic, size in sizes.items()
    ]
    return SimpleNamespace(error_code=0, topics=topics, total_bytes=total, usable_bytes=usable, is_cordoned=cordoned)


def answer(*directories: SimpleNamespace) -> LogDirs:
    return log_dirs(1, SimpleNamespace(error_code=0, results=list(directories)))


def test_directories_of_one_volume_count_once() -> None:
    assert answer(directory(100, 40), directory(100, 40)).usable_bytes == 40
    assert answer(directory(100, 40), directory(100, 39)).usable_bytes == 79


def test_a_cordoned_directory_has_no_free_storage() -> None:
    found = answer(directory(100, 40, cordoned=True, t=5), directory(200, 50))
    assert (found.total_bytes, found.usable_bytes, found.cordoned) == (300, 50, False)


def test_a_broker_is_cordoned_if_all_its_directories_are() -> None:
    found = answer(directory(100, 40, cordoned=True), directory(200, 50, cordoned=True))
    assert (found.usable_bytes, found.cordoned) == (0, True)


def test_kafka_before_3_3_reports_no_free_storage() -> None:
    assert answer(directory(-1, -1, t=5)) == LogDirs({("t", 0): 5}, None, None, False)


def test_a_sample_has_the_largest_replica_and_names_what_is_unknown() -> None:
    found = storage_metrics(
        {1: answer(directory(100, 40, t=5)), 2: answer(directory(-1, -1, t=9))}, NOW, ["broker 3 does not answer"]
    )
    assert found.sizes == {("t", 0): 9}
    assert found.storage_free == {1: 40}
    assert found.problems == ("broker 2 does not report its free storage; it needs Kafka 3.3",)
    assert found.unanswered == ("broker 3 does not answer",)
