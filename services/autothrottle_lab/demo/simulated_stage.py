"""The demo's stage with simulated brokers: one process that uses a real ZooKeeper and feeds a Datadog emulator."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.codec import parse_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.cluster.configs import FOLLOWER_RATE, THROTTLE_KEYS, THROTTLED_TYPES, ConfigResource
from autothrottle.core.errors import Unavailable
from autothrottle_lab.demo.stage import INSTANCE_TYPE, START_SECONDS, Interruption, Report, Stage, size
from autothrottle_lab.emulators.kafka_scenario import (
    DEMO_NEW_BROKER,
    demo_cluster,
    demo_targets,
    format_reassignment,
)
from autothrottle_lab.observation.observer import Sample, read_timeline
from autothrottle_lab.servers.processes import Process

GOALS = {
    "recovery / shortest": ("recovery_over_ideal", 1.25, ""),
    "  deferred share": ("deferred_percent", 0.5, " %"),
    "first throttle after": ("first_throttle_seconds", 1.0, " s"),
}

_KAFKA = KafkaPaths()
_ANSWER_SECONDS = 10.0
"""Timeout of a request for the brokers' counters."""
_ADDRESSES = re.compile(r"^Simulated Kafka: (\S+)\nDatadog: (\S+)$", re.MULTILINE)


class SimulatedStage(Stage):
    """A stage with the brokers of `demo_cluster`, their clients and Datadog in one process."""

    opening = "starting ZooKeeper, 6 simulated brokers, a Datadog emulator, 2 planners and the other services"
    run_seconds = 110.0  # the reassignment alone takes at least 46 s

    def __init__(self, interruption: Interruption, stack: ExitStack, options: Mapping[str, str]) -> None:
        super().__init__(interruption, stack, options)
        cluster = demo_cluster()
        self._targets = demo_targets(cluster)
        self.partitions = len(self._targets)
        self.total_bytes = round(sum(cluster.partitions[key].size for key in self._targets))
        self._last_sample: tuple[float, int, int] | None = None

    def build(self, say: Callable[[str], None]) -> None:
        self.start_zookeeper()
        self._start_brokers()
        addresses = _ADDRESSES.search(self._brokers.log.read_text(errors="replace"))
        assert addresses is not None
        self._counters_url, datadog_url = addresses.groups()
        self.start_services(datadog_url, self.options)

    def _start_brokers(self) -> None:
        arguments = ["--zookeeper", self.zookeeper.connect, "--datadog", INSTANCE_TYPE]
        command = [sys.executable, "-m", "autothrottle_lab.emulators.kafka", *arguments]
        process = self._brokers = Process("The simulated Kafka", command, self.directory / "brokers.log")

        def start() -> None:
            process.start()
            process.wait_until(lambda: bool(_ADDRESSES.search(process.log.read_text(errors="replace"))), START_SECONDS)

        self.stack.callback(process.stop)
        self.interruption.run(start, lambda: [process])

    def submit_reassignment(self) -> None:
        self._counters_at_start = self._counters()
        self.client.create(_KAFKA.reassign_partitions, format_reassignment(self._targets))

    def record_end(self) -> None:
        self._counters_at_end = self._counters()

    def set_client_load(self, factor: int) -> None:
        """Do nothing: the scenario's script changes the client load."""

    def sample(self) -> Sample:
        counters = self._counters()
        broker = counters["brokers"][str(DEMO_NEW_BROKER)]
        reading = counters["virtual_seconds"], broker["inbound"] - broker["replication_in"], broker["replication_in"]
        last_reading, self._last_sample = self._last_sample or reading, reading
        throttle = self._config(ConfigResource.broker(DEMO_NEW_BROKER)).get(FOLLOWER_RATE)
        return Sample.between(last_reading, reading, throttle, counters["bytes_left"])

    def is_reassigning(self) -> bool:
        return self.client.exists(_KAFKA.reassign_partitions) is not None

    def throttled(self) -> Sequence[str]:
        return [
            str(resource)
            for kind in THROTTLED_TYPES
            for name in sorted(self.client.get_children(f"{_KAFKA.configs}/{kind.value}"))
            if self._config(resource := ConfigResource(f"{kind.value}/{name}")).keys() & THROTTLE_KEYS
        ]

    def _counters(self) -> Mapping[str, Any]:
        """Return the brokers' counters, see `SimulatedKafka.counters`."""
        try:
            with urllib.request.urlopen(f"{self._counters_url}/counters", timeout=_ANSWER_SECONDS) as answer:
                counters: Mapping[str, Any] = json.load(answer)
        except OSError as error:
            raise Unavailable(f"cannot read the brokers' counters at {self._counters_url}: {error}") from error
        return counters

    def _config(self, resource: ConfigResource) -> Mapping[str, str]:
        try:
            return parse_config(self.client.get(_KAFKA.config(resource))[0])
        except NoNodeError:
            return {}

    def report(self, cycles: int) -> Report:
        client_bytes = growth(self._counters_at_start, self._counters_at_end, "client_offered")
        deferred = growth(self._counters_at_start, self._counters_at_end, "client_deferred")
        deferred_percent = 100 * deferred / client_bytes
        return Report(
            "Measured from ZooKeeper's transaction log and the brokers' counters:",
            read_timeline(self.zookeeper.transactions()),
            self._counters_at_end["ideal_seconds"],
            client_bytes,
            cycles,
            [
                ("client bytes", size(client_bytes)),
                ("  deferred", size(deferred)),
                ("  deferred share", f"{deferred_percent:.2f} %"),
            ],
            GOALS,
            {
                "shortest possible": "the new broker uses all capacity that clients leave free",
                "client bytes": "all brokers, both directions",
                "  deferred": "delayed because the link was full",
            },
            {"client_bytes_deferred": deferred, "deferred_percent": deferred_percent},
        )

    def processes(self) -> Iterable[Process]:
        return [self._brokers]


def growth(start: Mapping[str, Any], end: Mapping[str, Any], name: str) -> int:
    """Return by how much a counter of all brokers grew."""
    return sum(broker[name] - start["brokers"][key][name] for key, broker in end["brokers"].items())
