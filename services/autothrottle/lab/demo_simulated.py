"""The demo's stage with simulated brokers: one process, which lives in a real ZooKeeper and feeds a Datadog."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.lab.demo_stage import INSTANCE_TYPE, START_SECONDS, Interruption, Report, Stage, seconds, size, text
from autothrottle.lab.observer import Observer, Sample, Summary, read_timeline, summary
from autothrottle.lab.processes import Process
from autothrottle.lab.scenario import DEMO_NEW_BROKER

GOAL_RECOVERY_OVER_IDEAL = 1.25
GOAL_DEFERRED_PERCENT = 0.5
GOAL_FIRST_THROTTLE_SECONDS = 1.0

_ADDRESSES = re.compile(r"^Simulated Kafka: (\S+)\nDatadog: (\S+)$", re.MULTILINE)


class SimulatedStage(Stage):
    """The brokers of a scenario, with their clients and Datadog, in one process."""

    def __init__(
        self,
        interruption: Interruption,
        stack: ExitStack,
        say: Callable[[str], None],
        scenario: Mapping[str, Any],
        options: Mapping[str, str],
    ) -> None:
        """Start ZooKeeper; `options` are the services', by their names without dashes."""
        super().__init__(interruption, stack, say)
        self._scenario, self._options = scenario, options
        self._before: Mapping[str, Any] = {}
        self._after: Mapping[str, Any] = {}

    def build(self) -> None:
        """Start the brokers and the services."""
        self._brokers = self._start_brokers()
        self.client = self.connect()
        counters_url, datadog_url = self._addresses
        self._observer = Observer(self.client, counters_url, DEMO_NEW_BROKER)
        self.services = self.start_services(datadog_url, self._options)

    def _start_brokers(self) -> Process:
        path = self.directory / "scenario.json"
        path.write_text(json.dumps(self._scenario))
        arguments = ["--zookeeper", self.zookeeper.connect, "--scenario", str(path), "--datadog", INSTANCE_TYPE]
        command = [sys.executable, "-m", "autothrottle.lab.simulated", *arguments]
        process = Process("The simulated Kafka", command, self.directory / "brokers.log")

        def start() -> None:
            process.start()
            process.wait_until(lambda: bool(_ADDRESSES.search(text(process.log))), START_SECONDS)

        self.stack.callback(process.stop)
        self.interruption.run(start, lambda: [process])
        return process

    @property
    def _addresses(self) -> tuple[str, str]:
        """The brokers' counters and Datadog."""
        found = _ADDRESSES.search(text(self._brokers.log))
        assert found is not None
        return found[1], found[2]

    def start_move(self) -> None:
        """Submit the reassignment."""
        self._before = self._observer.counters()
        content = json.dumps(self._scenario["reassignment"]).encode()
        self.client.create(KafkaPaths().reassign_partitions, content)

    def end_move(self) -> None:
        """Note the counters."""
        self._after = self._observer.counters()

    def set_client_load(self, factor: int) -> None:
        """Do nothing: the scenario's script begins with the reassignment."""

    def sample(self) -> Sample:
        """Return how it stands, with rates since the last call."""
        return self._observer.sample()

    def is_moving(self) -> bool:
        """Return whether the reassignment is still under way."""
        return self._observer.is_moving()

    def throttled(self) -> Sequence[str]:
        """Return the brokers and topics on which anything stands."""
        return [str(resource) for resource in self._observer.throttled()]

    def leader_address(self) -> str:
        """Return where the planner that leads answers."""
        return self._observer.leader_address()

    def report(self, cycles: int) -> Report:
        """Return what an observer saw, with the goals."""
        timeline = read_timeline(self.zookeeper.transactions())
        found = summary(timeline, self._before, self._after, cycles)
        title = "What an observer of the znodes and the brokers' counters saw:"
        return Report(title, _rows(found), found.document())

    def processes(self) -> Iterable[Process]:
        """Return the one that is all brokers."""
        return [self._brokers]


def _rows(found: Summary) -> list[tuple[str, str, str]]:
    def goal(value: float | None, limit: float, unit: str) -> str:
        met = value is not None and value <= limit
        return f"goal <= {limit:g}{unit}: {'met' if met else 'MISSED'}"

    ratio, deferred = found.recovery_over_ideal, found.deferred_percent
    first, clean = found.first_throttle_seconds, found.clean_seconds
    return [
        ("recovery", f"{found.recovery_seconds:.1f} s", ""),
        ("at best", f"{found.ideal_seconds:.1f} s", "the new broker with all that clients leave of its link"),
        ("recovery / at best", f"{ratio:.2f}", goal(ratio, GOAL_RECOVERY_OVER_IDEAL, "")),
        ("client bytes", size(found.client_bytes), "all brokers, both directions"),
        ("  of them deferred", size(found.client_bytes_deferred), "did not fit when they came"),
        ("  share", f"{deferred:.2f} %", goal(deferred, GOAL_DEFERRED_PERCENT, " %")),
        ("first throttle after", seconds(first), goal(first, GOAL_FIRST_THROTTLE_SECONDS, " s")),
        ("all throttles gone after", seconds(clean), "the end of the move"),
        ("config writes", str(found.writes), ""),
        ("cycles", str(found.cycles), ""),
        ("leader changes", str(found.leader_changes), ""),
    ]
