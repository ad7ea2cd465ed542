"""The metrics service logs which network devices count."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.metrics import MetricsServicer
from autothrottle.v1 import metrics_pb2


class CallContext:
    """A call without a deadline of its own."""

    def time_remaining(self) -> float:
        return timedelta(seconds=1).total_seconds()


def test_devices_that_count_are_logged_once_for_each_broker(caplog: pytest.LogCaptureFixture) -> None:
    """An operator could not see which devices count, so that a load that is twice too high had no explanation."""
    caplog.set_level("INFO")
    source = MemoryMetrics()
    service = MetricsServicer(source, None)
    for devices in ("eth0",), ("eth0",), ("eth0", "eth1"):
        source.loads = replace(source.loads, devices={1: devices, 2: ("eth0",)})
        service.GetLoads(metrics_pb2.GetLoadsRequest(), CallContext())  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "Network devices of broker 1 that count: eth0; --net-devices changes them",
        "Network devices of broker 2 that count: eth0; --net-devices changes them",
        "Network devices of broker 1 that count: eth0, eth1; --net-devices changes them",
    ]
