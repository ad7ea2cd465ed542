"""Paced mirror jobs between two topics of a real Kafka."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka import TopicPartition

from autothrottle_client.control_plane import ControlPlaneRateLimiter
from autothrottle_client.kafka_pacing import PacedConsumer
from autothrottle_client.pacing import Pacer
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster, wait_until
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, free_ports
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.paced_job import PacedJob

MB = 1_000_000
RECORD_BYTES, SMALL_RECORD_BYTES = 50_000, 10_000
SIZE, LIMIT = 200 * MB, 10 * MB


class Mirror:
    """Copies records between two topics with one partition; a context manager."""

    def __init__(self, cluster: KafkaCluster, source: str, copy: str, pacer: Pacer, records_per_poll: int) -> None:
        servers = cluster.bootstrap_servers.split(",")
        self._source, self._copy = TopicPartition(source, 0), copy
        self._consumer: Any = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=records_per_poll,
        )
        self._producer: Any = kafka.KafkaProducer(
            bootstrap_servers=servers, acks=1, linger_ms=5, batch_size=256_000, enable_idempotence=False
        )
        self._consumer.assign([self._source])
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

    def move_endlessly(self) -> int:
        """Copy the records of one poll; begin again at the end of the source."""
        if not (size := self.move()):
            self._consumer.seek_to_beginning(self._source)
        return size

    def flush(self) -> None:
        """Wait until all copies are written."""
        self._producer.flush(timeout=60)


@pytest.mark.repeat
@pytest.mark.measures
@pytest.mark.timeout(600)
def test_a_mirror_of_200_mb_keeps_10_mb_per_second(each_cluster: KafkaCluster) -> None:
    source, copy = "mirrored", "mirrored-copy"
    each_cluster.create_topic(source, {0: [1001]})
    each_cluster.create_topic(copy, {0: [1002]})
    fill(each_cluster, source, SIZE, RECORD_BYTES)
    limits = {"rate.limiters": "ByteRateLimiter", "byte.rate.limit": LIMIT}
    with Pacer(limits) as pacer, Mirror(each_cluster, source, copy, pacer, 10) as mirror:
        begin, moved = time.monotonic(), 0
        while moved < SIZE:
            moved += mirror.move()
        pacer.pause()
        metrics = dict(pacer.metrics())
        mirror.flush()
        seconds = time.monotonic() - begin
    sizes = each_cluster.log_bytes(1002)[(copy, 0)]
    for topic in (source, copy):
        each_cluster.delete_topic(topic)
    print(f"\n{moved / MB:.0f} MB in {seconds:.2f} s: {moved / seconds / MB:.3f} MB/s; {metrics}")
    assert sizes >= SIZE, "the copy is complete"
    assert abs(moved / seconds / LIMIT - 1) <= 0.03


LOW, HIGH = 1 * MB, 5 * MB
MOVED_MB, CAPACITY_MB = 60, 12


def run_command(zookeeper: ZooKeeperServer, cluster: KraftCluster, port: int) -> list[str]:
    """Return the command of all services on a port. With its interval, only events start cycles."""
    flags = {
        "zk-addr": zookeeper.connect,
        "zk-config-prefix": "autothrottle-paced",
        "kafka-backend": "admin",
        "bootstrap-servers": cluster.bootstrap_servers,
        "metrics-source": "kafka",
        "capacity": f"{CAPACITY_MB}MB/s",
        "interval": "60",
        "metrics-window": "6",
        "min-rate": "1",
        "api-listen": "127.0.0.1:0",
        "grpc-listen": f"127.0.0.1:{port}",
    }
    return [sys.executable, "-m", "autothrottle", "run", *(f"--{name}={value}" for name, value in flags.items())]


@pytest.mark.repeat
@pytest.mark.measures
@pytest.mark.timeout(600)
def test_a_mirror_yields_to_a_recovery_also_when_the_service_restarts(
    zookeeper: ZooKeeperServer, kraft_cluster: KraftCluster, tmp_path: Path
) -> None:
    source, copy, moving = "paced", "paced-copy", "paced-moving"
    for topic, replicas in ((source, [1001]), (copy, [1002]), (moving, [1003])):
        kraft_cluster.create_topic(topic, {0: replicas})
    fill(kraft_cluster, source, 20 * MB, SMALL_RECORD_BYTES)
    fill(kraft_cluster, moving, MOVED_MB * MB, SMALL_RECORD_BYTES)
    (port,) = free_ports(1)
    limits = {
        "rate.limiters": "ControlPlaneRateLimiter",
        "control.plane.addresses": f"127.0.0.1:{port}",
        "byte.rate.limit": HIGH,
        "recovering.byte.rate.limit": LOW,
    }
    command = run_command(zookeeper, kraft_cluster, port)
    with Pacer(limits) as pacer, Mirror(kraft_cluster, source, copy, pacer, 5) as mirror:
        (limiter,) = pacer._limiters._limiters
        assert isinstance(limiter, ControlPlaneRateLimiter)
        with PacedJob(mirror.move_endlessly) as job:
            with Process("first", command, tmp_path / "first.log"):
                wait_until(lambda: limiter.limit == HIGH, 120, "the first cycle arrives")
                time.sleep(2)
                started = time.monotonic()
                kraft_cluster.reassign_through_bootstrap({(moving, 0): [1004]})
                slower = job.seconds_until(started, lambda rate: rate <= 1.2 * LOW)
            wait_until(lambda: not limiter.following, 20, "the limiter notices the stop")
            with Process("second", command, tmp_path / "second.log"):
                wait_until(lambda: limiter.following, 120, "the limiter follows again")
                assert kraft_cluster.reassigning()
                wait_until(lambda: not kraft_cluster.reassigning(), 120, "the recovery ends")
                ended = time.monotonic()
                yielded = job.rate(started + slower, ended)
                faster = job.seconds_until(ended, lambda rate: rate >= 0.8 * HIGH)
                kraft_cluster.wait_until_reassigned()
                wait_until(lambda: not kraft_cluster.stored_configs().get("brokers/1004"), 30, "throttles are removed")
    for topic in (source, copy, moving):
        kraft_cluster.delete_topic(topic)
    print(f"\nslower {slower:.2f} s after the start, faster {faster:.2f} s after the end of a recovery")
    print(f"{yielded / MB:.2f} MB/s meanwhile")
    assert slower <= 2.0
    assert faster <= 2.0
    assert yielded <= 1.1 * LOW
