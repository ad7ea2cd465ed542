"""The demo's stage with simulated brokers: one process that uses a real ZooKeeper and feeds a Datadog emulator."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle_lab.demo.stage import INSTANCE_TYPE, START_SECONDS, Interruption, Report, Stage, seconds, size, text
from autothrottle_lab.emulators.kafka_scenario import DEMO_NEW_BROKER
from autothrottle_lab.observation.observer import Observer, Sample, Summary, read_timeline, summary
from autothrottle_lab.servers.processes import Process

GOAL_RECOVERY_OVER_IDEAL = 1.25
GOAL_DEFERRED_PERCENT = 0.5
GOAL_FIRST_THROTTLE_SECONDS = 1.0

_ADDRESSES = re.compile(r"^Simulated Kafka: (\S+)\nDatadog: (\S+)$", re.MULTILINE)


class SimulatedStage(Stage):
    """A stage with the brokers of a scenario, their clients and Datadog in one process."""

    def __init__(
        self,
        interruption: Interruption,
        stack: ExitStack,
        say: Callable[[str], None],
        scenario: Mapping[str, Any],
        options: Mapping[str, str],
    ) -> None:
        """Start ZooKeeper; `options`: option of the services, without dashes -> value."""
        super().__init__(interruption, stack, say)
        self._scenario, self._options = scenario, options
        self._before: Mapping[str, Any] = {}
        self._after: Mapping[str, Any] = {}

    def build(self) -> None:
        self._brokers = self._start_brokers()
        self.client = self.connect()
        counters_url, datadog_url = self._addresses
        self._observer = Observer(self.client, counters_url, DEMO_NEW_BROKER)
        self.services = self.start_services(datadog_url, self._options)

    def _start_brokers(self) -> Process:
        path = self.directory / "scenario.json"
        path.write_text(json.dumps(self._scenario))
        arguments = ["--zookeeper", self.zookeeper.connect, "--scenario", str(path), "--datadog", INSTANCE_TYPE]
        command = [sys.executable, "-m", "autothrottle_lab.emulators.kafka", *arguments]
        process = Process("The simulated Kafka", command, self.directory / "brokers.log")

        def start() -> None:
            process.start()
            process.wait_until(lambda: bool(_ADDRESSES.search(text(process.log))), START_SECONDS)

        self.stack.callback(process.stop)
        self.interruption.run(start, lambda: [process])
        return process

    @property
    def _addresses(self) -> tuple[str, str]:
        """The URLs of the brokers' counters and of Datadog."""
        found = _ADDRESSES.search(text(self._brokers.log))
        assert found is not None
        return found[1], found[2]

    def submit_reassignment(self) -> None:
        self._before = self._observer.counters()
        content = json.dumps(self._scenario["reassignment"]).encode()
        self.client.create(KafkaPaths().reassign_partitions, content)

    def record_end(self) -> None:
        self._after = self._observer.counters()

    def set_client_load(self, factor: int) -> None:
        """Do nothing: the scenario's script changes the client load."""

    def sample(self) -> Sample:
        return self._observer.sample()

    def is_reassigning(self) -> bool:
        return self._observer.is_reassigning()

    def throttled(self) -> Sequence[str]:
        return [str(resource) for resource in self._observer.throttled()]

    def leader_address(self) -> str:
        return self._observer.leader_address()

    def report(self, cycles: int) -> Report:
        timeline = read_timeline(self.zookeeper.transactions())
        found = summary(timeline, self._before, self._after, cycles)
        title = "Measured from ZooKeeper's transaction log and the brokers' counters:"
        return Report(title, _rows(found), found.document())

    def processes(self) -> Iterable[Process]:
        return [self._brokers]


def _rows(found: Summary) -> list[tuple[str, str, str]]:
    def goal(value: float | None, limit: float, unit: str) -> str:
        met = value is not None and value <= limit
        return f"goal <= {limit:g}{unit}: {'met' if met else 'MISSED'}"

    ratio, deferred = found.recovery_over_ideal, found.deferred_percent
    first, clean = found.first_throttle_seconds, found.clean_seconds
    return [
        ("recovery", f"{found.recovery_seconds:.1f} s", ""),
        (
            "shortest possible",
            f"{found.ideal_seconds:.1f} s",
            "the new broker uses all capacity that clients leave free",
        ),
        ("recovery / shortest", f"{ratio:.2f}", goal(ratio, GOAL_RECOVERY_OVER_IDEAL, "")),
        ("client bytes", size(found.client_bytes), "all brokers, both directions"),
        ("  deferred", size(found.client_bytes_deferred), "delayed because the link was full"),
        ("  deferred share", f"{deferred:.2f} %", goal(deferred, GOAL_DEFERRED_PERCENT, " %")),
        ("first throttle after", seconds(first), goal(first, GOAL_FIRST_THROTTLE_SECONDS, " s")),
        ("throttles removed after", seconds(clean), "counted from the end of the reassignment"),
        ("config writes", str(found.writes), ""),
        ("cycles", str(found.cycles), ""),
        ("leader changes", str(found.leader_changes), ""),
    ]
