"""A real Prometheus scrapes the services during a reassignment on real Kafka 4: every query returns data."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from autothrottle.adapters.storage_history import append_sample
from autothrottle.core.exported_metrics import (
    CERTIFICATE_EXPIRY,
    CREDENTIALS_OK,
    QUOTA_RATE,
    STATE_DIFFERENCES,
    STATE_LOSSES,
)
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle_client import AdminClient
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, free_ports
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.monitoring import RULES, alert_queries, dashboard_queries, selectors
from tests.system.recovery_watch import admin_backend_options

MB = 1_000_000
CLUSTER, TOPIC, POOLED = "metered", "metered", "pooled"
SIZE = 40 * MB
"""Each of two partitions takes more than 20 s at the throttle of 1.8 MB/s: 90 % of what clients leave of 4 MB/s."""

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None, reason="needs Debian's package prometheus"
)


@contextmanager
def datadog_with_steady_load() -> Iterator[DatadogEmulator]:
    """Every broker sends and receives 2 MB/s, from a minute ago on."""
    with DatadogEmulator() as emulator:
        now = time.time()
        for broker_id in range(1001, 1006):
            emulator.add_host(f"host-{broker_id}", broker_id, "lab")
            for second in range(-60, 600):
                emulator.record(broker_id, now + second, (second + 60) * 2.0 * MB, (second + 60) * 2.0 * MB)
        yield emulator


@contextmanager
def moving(cluster: KafkaCluster) -> Iterator[None]:
    """Move two partitions to broker 1004; cancel it in the end."""
    cluster.create_topic(TOPIC, {0: [1001], 1: [1002]})
    try:
        fill(cluster, TOPIC, SIZE, record_bytes=20_000)
        cluster.reassign_through_bootstrap({(TOPIC, 0): [1004], (TOPIC, 1): [1004]})
        yield
    finally:
        cluster.reassign_through_bootstrap({row: None for row in cluster.reassigning()})
        cluster.delete_topic(TOPIC)


def address(process: Process, label: str) -> str:
    """The address in a log line of a process."""
    process.wait_until(lambda: re.search(rf"{label}: \S+", process.log.read_text()) is not None, 120.0)
    return re.findall(rf"{label}: (\S+)", process.log.read_text())[-1]  # type: ignore[no-any-return]


class Prometheus:
    """A real server that scrapes every second and evaluates the alert rules."""

    def __init__(self, directory: Path, targets: Sequence[str]) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "autothrottle", "static_configs": [{"targets": [*targets]}]}],
        }
        configuration = directory / "prometheus.yml"
        configuration.write_text(json.dumps(settings))  # JSON is YAML
        command = [
            "prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.process = Process("prometheus", command, directory / "prometheus.log")

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer; None: the server does not answer yet."""
        try:
            with urlopen(f"{self._url}/api/v1/{path}?{urlencode(query)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def has_data(self, query: str) -> bool:
        """Whether a query returns at least one series."""
        return bool((self.get("query", query=query) or {}).get("result"))


def filled_in(query: str) -> str:
    """A query of the dashboard with the values of its variables."""
    return (
        query.replace("$cluster", CLUSTER)
        .replace("$broker", ".*")
        .replace("$pool", ".+")
        .replace("$__rate_interval", "10s")
    )


def pooled(cluster: KafkaCluster, directory: Path) -> dict[str, str]:
    """The options of a process with a pool of all brokers, whose history covers 20 days."""
    cluster.create_topic(POOLED, {0: [1001]})
    brokers, start = range(1001, 1006), datetime.now(UTC) - timedelta(days=20)
    (directory / "pools.toml").write_text(f'[pools.all]\ntopics = ["{POOLED}"]\nbrokers = {[*brokers]}\n')
    for day in range(20):
        metrics = StorageMetrics(
            {(POOLED, 0): (10 + day) * MB},
            dict.fromkeys(brokers, 900 * MB),
            start + timedelta(days=day),
            storage_total=dict.fromkeys(brokers, 1000 * MB),
        )
        append_sample(str(directory / "history"), CLUSTER, metrics, {POOLED: 1e3})
    return {"pools": str(directory / "pools.toml"), "history": str(directory / "history")}


def text(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def test_every_query_returns_data_during_a_reassignment_and_promtool_accepts_the_text(
    kraft_cluster: KraftCluster, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    options = {
        **admin_backend_options(kraft_cluster),
        "zk-config-prefix": "autothrottle-metered",
        "interval": "2",
        "metrics-window": "12",
        "cap-map": '{"lab":4}',
        "min-rate": "1",
        "cluster-name": CLUSTER,
    }
    with ExitStack() as stack:
        datadog = stack.enter_context(datadog_with_steady_load())
        deployment = Deployment(zookeeper.connect, datadog.url, tmp_path, options)
        pools = pooled(kraft_cluster, tmp_path)
        stack.callback(kraft_cluster.delete_topic, POOLED)
        log = {"api-listen": "127.0.0.1:0", "decisions": str(tmp_path / "decisions"), **pools}
        run = stack.enter_context(deployment.process("run", "run", log))
        leader = address(run, "Admin API")
        # A second planner, which waits for the leadership.
        second = stack.enter_context(deployment.process("planner", "planner", {"metrics-listen": "127.0.0.1:0"}))
        waiting = address(second, "Metrics of planner")
        prometheus = Prometheus(tmp_path, [leader, waiting])
        stack.enter_context(prometheus.process)
        # A request quota has series once it is set and used.
        with AdminClient(address(run, "gRPC API")) as admin, moving(kraft_cluster):
            admin.set_request_quota(1_000, user="anonymous")
            queries = {filled_in(query) for query in dashboard_queries()}
            queries |= {selector for query in alert_queries().values() for selector in selectors(query)}
            # The rates in the brokers' quotas come from exporters; Datadog has none. Nor has this deployment files of
            # credentials, or its state in Kafka.
            absent = (QUOTA_RATE, CREDENTIALS_OK, CERTIFICATE_EXPIRY, STATE_DIFFERENCES, STATE_LOSSES)
            queries = {query for query in queries if not any(metric.name in query for metric in absent)}
            eventually(
                lambda: admin.list_request_quotas() and not [q for q in queries if not prometheus.has_data(q)], 120.0
            )
            scraped = text(leader)
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=scraped, capture_output=True, text=True, timeout=60
            )
            assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        # The series of brokers end with the reassignment.
        eventually(lambda: "broker_id" not in text(leader))
        assert "autothrottle_leader{" in text(waiting) and "autothrottle_term" not in text(waiting)
        (group,) = prometheus.get("rules")["groups"]
        assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(alert_queries(), "ok")
