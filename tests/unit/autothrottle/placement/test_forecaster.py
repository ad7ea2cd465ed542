"""The hourly forecast of the placement service."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.memory import MemoryPlacementCluster
from autothrottle.core.capacity.forecasts import HistorySample
from autothrottle.core.errors import Incomplete, Missing, Unavailable
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.placement.forecaster import LimitForecaster
from autothrottle.runtime.pools_file import FollowedPools
from tests.builders import eventually

GB = 10**9
START = datetime(2026, 9, 1, 12, tzinfo=UTC)
POOLS = """
[pools.orders]
topics = ["orders"]
brokers = [1, 2]

[pools.logs]
topics = ["logs"]
brokers = [3]
"""
CLUSTER = PlacementCluster(
    {id: PlacementBroker(id) for id in (1, 2, 3)},
    (PartitionReplicas("logs", 0, (3,)), PartitionReplicas("orders", 0, (1, 2))),
)


def history() -> Iterator[HistorySample]:
    """Four weeks; `orders` gains 10 GB a day, and `logs` stays at 10 GB."""
    for day in range(28):
        used = 300 + 10 * day
        yield HistorySample(
            START + timedelta(days=day),
            {"orders": used * GB, "logs": 10 * GB},
            {},
            {1: (1000 - used) * GB, 2: (1000 - used) * GB, 3: 990 * GB},
            dict.fromkeys((1, 2, 3), 1000 * GB),
        )


@pytest.fixture
def pools(tmp_path: Path) -> FollowedPools:
    (tmp_path / "pools.toml").write_text(POOLS)
    return FollowedPools(str(tmp_path / "pools.toml"))


def test_the_time_until_a_limit_is_exported_and_becomes_shorter(pools: FollowedPools) -> None:
    """`orders` uses 570 GB of 800 GB on the last day, so its limit is 23 days away."""
    now = START + timedelta(days=27)
    forecaster = LimitForecaster(history, MemoryPlacementCluster(CLUSTER), pools, lambda: now)
    assert list(forecaster.samples()) == []
    forecaster.compute()
    days = {sample.labels: sample.value / 86_400 for sample in forecaster.samples()}
    assert days == {("orders", "storage"): pytest.approx(22.5, abs=1), ("logs", "storage"): math.inf}
    now += timedelta(days=2)
    assert next(forecaster.samples()).value / 86_400 == pytest.approx(days["orders", "storage"] - 2)


def test_a_failure_keeps_the_last_forecasts(pools: FollowedPools) -> None:
    cluster = MemoryPlacementCluster(CLUSTER)
    forecaster = LimitForecaster(history, cluster, pools)
    cluster.unavailable(True)
    with pytest.raises(Unavailable):
        forecaster.compute()
    with pytest.raises(Unavailable, match="the cluster does not answer"):
        forecaster.last()
    cluster.unavailable(False)
    forecaster.compute()
    last = forecaster.last()
    cluster.unavailable(True)
    with pytest.raises(Unavailable):
        forecaster.compute()
    assert forecaster.last() is last


def test_a_part_of_the_cluster_makes_no_forecast(pools: FollowedPools) -> None:
    cluster = MemoryPlacementCluster(replace(CLUSTER, problems=("topic 'odd' cannot be read",)))
    with pytest.raises(Incomplete, match="topic 'odd' cannot be read"):
        LimitForecaster(history, cluster, pools).compute()


def test_without_pools_only_brokers_have_forecasts() -> None:
    forecaster = LimitForecaster(history, MemoryPlacementCluster(CLUSTER), None)
    forecaster.compute()
    assert [(forecast.broker_id, forecast.pool) for forecast in forecaster.last().forecasts] == [
        (1, ""),
        (2, ""),
        (3, ""),
    ]


def test_the_thread_repeats_after_an_error_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    def absent() -> Iterator[HistorySample]:
        raise Missing("history 'x' has no sample")

    forecaster = LimitForecaster(absent, MemoryPlacementCluster(CLUSTER), None)
    forecaster.start()
    eventually(lambda: caplog.messages)
    forecaster.close()
    assert caplog.messages == ["Forecast failed; it is repeated: history 'x' has no sample"]
