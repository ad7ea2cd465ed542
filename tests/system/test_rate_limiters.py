"""A bulk job yields to a recovery of a simulated cluster, while `autothrottle run` stops and starts again."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from autothrottle.rate_limiters import RecordBatch
from autothrottle_client.control_plane import ControlPlaneRateLimiter
from autothrottle_client.pacing import Pacer
from autothrottle_lab.servers.processes import free_ports
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.paced_job import PacedJob
from tests.system.simulated_recovery import SimulatedRecovery, wait_for

LOW, HIGH = 1_000_000, 10_000_000
"""Bytes/s of the job during a recovery and otherwise."""
BATCH = RecordBatch([b""], size_bytes=50_000)
LIMIT_SECONDS = 2.0


@pytest.mark.measures
def test_a_job_yields_to_a_recovery_also_when_the_service_restarts(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autothrottle_client.control_plane")
    (port,) = free_ports(1)
    limits = {
        "rate.limiters": "ControlPlaneRateLimiter",
        "control.plane.addresses": f"127.0.0.1:{port}",
        "byte.rate.limit": HIGH,
        "recovering.byte.rate.limit": LOW,
    }
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"orders": [600] * 3}) as recovery, Pacer(limits) as pacer:
        (limiter,) = pacer._limiters._limiters
        assert isinstance(limiter, ControlPlaneRateLimiter)

        def move() -> int:
            pacer.pause()
            pacer.accumulate(BATCH)
            return BATCH.size_bytes

        # With this interval, only events start cycles.
        deployment = recovery.deployment(interval="120")
        listen = {"grpc-listen": f"127.0.0.1:{port}", "api-listen": "127.0.0.1:0"}
        with deployment.process("run", "first", listen) as first, PacedJob(move) as job:
            wait_for(lambda: limiter.limit == HIGH or None, 60, "the first cycle arrives")
            started = time.monotonic()
            recovery.start_reassignment()
            slower = job.seconds_until(started, lambda rate: rate <= 1.2 * LOW)
            first.terminate()
            first.wait(30)
            wait_for(lambda: not limiter.following or None, 20, "the limiter notices the stop")
            warned = [one.message for one in caplog.records if one.levelno == logging.WARNING][-1]
            assert warned.endswith("It stays 1MB/s until admin and the planner answer")
            time.sleep(1.0)
            unreachable = job.rate(time.monotonic() - 1.0, time.monotonic())
            with deployment.process("run", "second", listen):
                wait_for(lambda: limiter.following or None, 60, "the limiter follows again")
                assert recovery.is_reassigning()
                recovery.speed_up()
                wait_for(lambda: not recovery.is_reassigning() or None, 60, "the recovery ends")
                ended = time.monotonic()
                faster = job.seconds_until(ended, lambda rate: rate >= 0.8 * HIGH)
                restarted = job.rate(ended - 1.0, ended)
    print(f"\nslower {slower:.2f} s after the start, faster {faster:.2f} s after the end of a recovery")
    print(f"MB/s: service down {unreachable / 1e6:.2f}, before the end {restarted / 1e6:.2f}")
    assert slower <= LIMIT_SECONDS
    assert faster <= LIMIT_SECONDS
    assert unreachable <= 1.1 * LOW + BATCH.size_bytes
    assert restarted <= 1.1 * LOW + BATCH.size_bytes
