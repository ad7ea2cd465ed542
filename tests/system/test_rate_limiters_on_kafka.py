"""A paced mirror job between two topics of a real Kafka."""

from __future__ import annotations

import time
from typing import Any

import kafka
import pytest
from kafka import TopicPartition

from autothrottle_client.kafka_pacing import PacedConsumer
from autothrottle_client.pacing import Pacer
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from tests.server_fixtures import repeat_on_zookeeper

MB = 1_000_000
RECORD_BYTES = 10_000
SIZE, LIMIT = 200 * MB, 10 * MB


class Mirror:
    """Copies records between two topics with one partition; a context manager."""

    def __init__(self, cluster: KafkaCluster, source: str, copy: str, pacer: Pacer) -> None:
        servers = cluster.bootstrap_servers.split(",")
        self._copy = copy
        self._consumer: Any = kafka.KafkaConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=50
        )
        self._producer: Any = kafka.KafkaProducer(bootstrap_servers=servers, acks=1, linger_ms=5)
        self._consumer.assign([TopicPartition(source, 0)])
        self._paced = PacedConsumer(self._consumer, pacer)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close(timeout=30)
        self._consumer.close()

    def move(self) -> int:
        """Copy the records of one poll; return their bytes."""
        size = 0
        for records in self._paced.poll(timeout_ms=500).values():
            for record in records:
                self._producer.send(self._copy, record.value)
                size += len(record.value)
        return size

    def flush(self) -> None:
        """Wait until all copies are written."""
        self._producer.flush(timeout=60)


@pytest.mark.repeat
@pytest.mark.alone
@repeat_on_zookeeper
@pytest.mark.timeout(600)
def test_a_mirror_of_200_mb_keeps_10_mb_per_second(each_cluster: KafkaCluster) -> None:
    source, copy = "mirrored", "mirrored-copy"
    each_cluster.create_topic(source, {0: [1001]})
    each_cluster.create_topic(copy, {0: [1002]})
    fill(each_cluster, source, SIZE, RECORD_BYTES)
    limits = {"rate.limiters": "ByteRateLimiter", "byte.rate.limit": LIMIT}
    with Pacer(limits) as pacer, Mirror(each_cluster, source, copy, pacer) as mirror:
        begin, moved = time.monotonic(), 0
        while moved < SIZE:
            moved += mirror.move()
        pacer.pause()
        mirror.flush()
        seconds = time.monotonic() - begin
        metrics = dict(pacer.metrics())
    sizes = each_cluster.log_bytes(1002)[(copy, 0)]
    for topic in (source, copy):
        each_cluster.delete_topic(topic)
    print(f"\n{moved / MB:.0f} MB in {seconds:.2f} s: {moved / seconds / MB:.3f} MB/s; {metrics}")
    assert sizes >= SIZE, "the copy is complete"
    assert abs(moved / seconds / LIMIT - 1) <= 0.03
