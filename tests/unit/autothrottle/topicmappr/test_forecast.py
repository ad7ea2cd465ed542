"""`metricsfetcher --history` and `topicmappr forecast`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.adapters.storage_history import SCHEMA, append_sample, read_samples
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.command_line import main

GB = 10**9
START = datetime(2026, 9, 1, 6, tzinfo=UTC)
POOLS = """
[pools.orders]
topics = ["orders"]
brokers = [1, 2]
limits = { network_out = 50 }

[instances.large]
brokers = [1, 2]
storage = "1TB"
network_in = "100MB/s"
network_out = "100MB/s"
"""


def sample(day: int, hour: int, used: int) -> tuple[StorageMetrics, Mapping[str, float]]:
    """Two brokers of 1 TB, and a topic with two replicas that produces a thousandth of its size."""
    metrics = StorageMetrics(
        {("orders", 0): used * GB, ("orders", 1): 0},
        {1: (1000 - used) * GB, 2: 900 * GB},
        START + timedelta(days=day, hours=hour),
        storage_total={1: 1000 * GB, 2: 1000 * GB},
    )
    return metrics, {"orders": used * GB / 10_000}


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Four weeks of two samples a day; broker 1 gains 10 GB a day and has 270 GB more at midnight than at noon."""
    for day in range(28):
        append_sample(str(tmp_path), "main", *sample(day, 0, 300 + 10 * day))
        append_sample(str(tmp_path), "main", *sample(day, 6, 30 + 10 * day))
    partitions = tuple(PartitionReplicas("orders", number, (1, 2)) for number in range(2))
    cluster = PlacementCluster({id: PlacementBroker(id) for id in (1, 2)}, partitions)
    (tmp_path / "cluster.json").write_text(format_cluster(cluster))
    (tmp_path / "pools.toml").write_text(POOLS)
    return tmp_path


def test_samples_are_files_by_cluster_and_date(tmp_path: Path) -> None:
    path = append_sample(str(tmp_path), "a/b", *sample(0, 0, 30))
    assert path.relative_to(tmp_path) == Path("cluster=a%2Fb/date=2026-09-01/sample-060000.parquet")
    (read,) = read_samples(str(tmp_path), "a/b")
    assert (read.time, read.sizes, read.rates) == (START, {"orders": 30 * GB}, {"orders": 3e6})
    assert (read.storage_free, read.storage_total) == ({1: 970 * GB, 2: 900 * GB}, {1: 1000 * GB, 2: 1000 * GB})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    append_sample(str(tmp_path), "main", *sample(0, 0, 30)).write_bytes(b"x")
    with pytest.raises(Invalid, match=r"sample-060000\.parquet cannot be read: .* Fix: remove it"):
        list(read_samples(str(tmp_path), "main"))
    with pytest.raises(Missing, match=r"no sample of cluster 'other'.* correct --cluster-name"):
        list(read_samples(str(tmp_path), "other"))


@pytest.mark.parametrize("table", [SCHEMA.empty_table(), pa.table({"price": [1, 2]})], ids=["empty", "foreign"])
def test_a_parquet_file_that_is_no_sample_is_named(table: pa.Table, tmp_path: Path) -> None:
    """A foreign file became the last sample, so the forecast had no broker, and an empty one ended in a traceback."""
    pq.write_table(table, append_sample(str(tmp_path), "main", *sample(0, 0, 30)))
    with pytest.raises(Invalid, match=r"sample-060000\.parquet is not a sample of metricsfetcher\. Fix: remove it"):
        list(read_samples(str(tmp_path), "main"))


def test_a_broker_that_is_down_does_not_change_the_forecast_of_its_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last sample lacks a broker that is down. The limit of its pool was unknown then, and its alert vanished."""
    for day in range(28):
        metrics, rates = sample(day, 0, 300 + 10 * day)
        if day == 27:
            metrics = replace(metrics, storage_free={1: 430 * GB}, storage_total={1: 1000 * GB})
        append_sample(str(tmp_path), "main", metrics, rates)
    cluster = PlacementCluster({1: PlacementBroker(1)}, (PartitionReplicas("orders", 0, (1, 2)),))
    (tmp_path / "cluster.json").write_text(format_cluster(cluster))
    (tmp_path / "pools.toml").write_text(POOLS.partition("[instances")[0])
    files = ("--pools", str(tmp_path / "pools.toml"), "--cluster-file", str(tmp_path / "cluster.json"))
    assert main(("forecast", "--history", str(tmp_path), "--cluster-name", "main", *files, "--json")) == 0
    (pool,) = [row for row in json.loads(capsys.readouterr().out) if "pool" in row]
    assert pool["use"] == pytest.approx(2 * 570 / 1600)


def test_history_of_datadog_has_the_storage_of_topics_in_capitals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Datadog has the topic in lower case, so that its pool seemed to store nothing."""
    for day in range(28):
        append_sample(str(tmp_path), "main", *sample(day, 0, 300 + 10 * day))
    brokers = {id: PlacementBroker(id) for id in (1, 2)}
    cluster = PlacementCluster(brokers, (PartitionReplicas("Orders", 0, (1, 2)),))
    (tmp_path / "cluster.json").write_text(format_cluster(cluster))
    (tmp_path / "pools.toml").write_text(POOLS.partition("[instances")[0].replace('"orders"', '"Orders"'))
    files = ("--pools", str(tmp_path / "pools.toml"), "--cluster-file", str(tmp_path / "cluster.json"))
    assert main(("forecast", "--history", str(tmp_path), "--cluster-name", "main", *files, "--json")) == 0
    (pool,) = [row for row in json.loads(capsys.readouterr().out) if "pool" in row]
    assert pool["use"] == pytest.approx(2 * 570 / 1600)


def test_brokers_and_pools_have_dates(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broker 1 uses 570 GB of 1 TB. It reaches 80 % 23 days later."""
    files = ("--pools", str(history / "pools.toml"), "--cluster-file", str(history / "cluster.json"))
    flags = ("forecast", "--history", str(history), "--cluster-name", "main", *files)
    prom_file = history / "exhaustion.prom"
    assert main((*flags, "--json", "--prom-file", str(prom_file))) == 0
    rows = {(row.get("broker", row.get("pool")), row["resource"]): row for row in json.loads(capsys.readouterr().out)}
    assert abs((datetime.fromisoformat(rows["1", "storage"]["limit_reached"]) - datetime(2026, 10, 21)).days) <= 1
    assert rows["1", "storage"]["use"] == pytest.approx(570 / 800)
    assert rows["2", "storage"]["limit_reached"] is None
    assert rows["orders", "storage"]["use"] == pytest.approx(2 * 570 / 1600)
    assert rows["orders", "network_in"]["use"] == pytest.approx(2 * 57 / 160)
    assert rows["orders", "network_out"]["use"] == pytest.approx(2 * 57 / 100)
    text = prom_file.read_text()
    assert 'autothrottle_pool_exhaustion_seconds{cluster="main",pool="orders",resource="network_out"} 0.0' in text
    assert 'autothrottle_broker_exhaustion_seconds{broker="2",cluster="main",resource="storage"} +Inf' in text
    assert main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["pool", "orders", "network", "out"]
    assert lines[-1].split()[:4] == ["broker", "2", "storage", "12.5%"] and "not within a year" in lines[-1]


def test_the_status_of_pools_has_the_peaks_of_the_last_day(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--pools", str(history / "pools.toml"), "--cluster-file", str(history / "cluster.json"))
    assert main(("pools", "status", *files, "--history", str(history), "--cluster-name", "main")) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.endswith("  network out") and "0.0%, peak 71.2%" in row and "unknown, peak 114.0%" in row


def test_a_short_history_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_sample(str(tmp_path), "main", *sample(0, 0, 30))
    assert main(("forecast", "--history", str(tmp_path), "--cluster-name", "main")) == 0
    assert "1 days are measured, and a trend needs 14" in capsys.readouterr().out
    assert main(("forecast",)) == 1
    assert "history is not given" in capsys.readouterr().err


def test_a_full_disk_leaves_no_part_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, destination: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Unavailable, match=r"cannot be written: .*No space left on device"):
        append_sample(str(tmp_path), "main", StorageMetrics({("t", 0): 1}), {})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
