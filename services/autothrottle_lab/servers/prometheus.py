"""A real Prometheus and real node_exporters, from Debian's packages `prometheus` and `prometheus-node-exporter`.

The type to know is `PrometheusServer`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from autothrottle_lab.servers.processes import Process, free_ports

PROMETHEUS, NODE_EXPORTER = "prometheus", "prometheus-node-exporter"
_START_SECONDS = 60.0


def missing_programs() -> list[str]:
    """Return the programs that are not installed; their names are those of Debian's packages."""
    return [name for name in (PROMETHEUS, NODE_EXPORTER) if shutil.which(name) is None]


class PrometheusServer(Process):
    """A Prometheus on 127.0.0.1."""

    def __init__(self, directory: Path, jobs: Sequence[Mapping[str, Any]], scrape_interval_seconds: int = 1) -> None:
        """Prepare a server.

        Args:
            directory: directory of its configuration, log and data.
            jobs: `scrape_configs` of its configuration.
            scrape_interval_seconds: time between two scrapes of a target.
        """
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        # JSON is YAML.
        seconds = f"{scrape_interval_seconds}s"
        settings = {"global": {"scrape_interval": seconds, "scrape_timeout": seconds}, "scrape_configs": [*jobs]}
        configuration = directory / "prometheus.yml"
        configuration.write_text(json.dumps(settings))
        command = [
            PROMETHEUS,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        super().__init__("prometheus", command, directory / "prometheus.log")

    def start(self) -> None:
        """Start the server; return when it answers."""
        super().start()
        self.wait_until(lambda: _answers(f"{self.url}/-/ready"), _START_SECONDS)


def job_of_brokers(address: str, broker_ids: Sequence[int]) -> Mapping[str, Any]:
    """Return a job that scrapes `http://ADDRESS/BROKER/metrics`, with the label `pod` of each broker."""
    return {
        "job_name": "kafka",
        "static_configs": [
            {"targets": [address], "labels": {"pod": f"kafka-{id}", "__metrics_path__": f"/{id}/metrics"}}
            for id in broker_ids
        ],
    }


def node_exporter(directory: Path, address: str, command: Sequence[str] = ()) -> Process:
    """Return a node_exporter with the counters of network devices, not yet started.

    Args:
        directory: directory of its log.
        address: `host:port` to listen on.
        command: what starts it, for example `ip netns exec NAME`.
    """
    # Debian's package excludes loopback.
    every = "--collector.netdev.device-exclude=^$"
    flags = ["--collector.disable-defaults", "--collector.netdev", every, "--collector.netclass"]
    whole = [*command, NODE_EXPORTER, f"--web.listen-address={address}", *flags]
    return Process(f"node_exporter {address}", whole, directory / f"node_exporter-{address}.log")


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
