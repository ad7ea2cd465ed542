"""The servers that the demo runs on, and the handling of signals.

`Stage` starts ZooKeeper and the services. Its subclasses start Kafka: `simulated_stage.SimulatedStage` simulated
brokers, `kafka_stage.KafkaStage` real ones. The sequence of events is in `command`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from operator import sub
from types import FrameType
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.cluster.configs import FOLLOWER_RATE, THROTTLE_KEYS
from autothrottle.core.errors import Unavailable
from autothrottle.core.units import MEGABYTE
from autothrottle_client.admin import AdminClient
from autothrottle_client.reassignments import Targets
from autothrottle_lab.demo.scenario import DEMO_NEW_BROKER
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.observer import Configs, Sample, Timeline
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer

INSTANCE_TYPE = "demo.large"
"""Instance type tag of the brokers' hosts; the cap-map has its capacity."""

START_SECONDS = 120.0
"""Deadline for the start of one process. It takes a second or two, and longer on a busy machine."""

_POLL_SECONDS = 0.1

UNMEASURED = "not measured"
"""Value of a row that this kind of brokers has no figure for."""

Reading = tuple[float, float, float]
"""Counters of the new broker: (seconds, bytes that clients wrote to it, bytes that it copied from leaders)."""


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruption:
    """Handles SIGINT and SIGTERM. The first signal takes effect at the next `check`; the second ends at once.

    Even then no process is left: the guard of `servers.processes` ends them. Use it from the main thread.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # It may run between any two bytecodes of the main thread, so it takes no lock and raises no exception.
        if self._number is not None:
            os._exit(128 + number)
        self._number = number

    def check(self) -> None:
        """Raise `Interrupted` if a signal arrived."""
        if self._number is not None:
            raise Interrupted(self._number)

    def end(self) -> None:
        """Ignore both signals from now on: a late signal must not change the exit status.

        While it shuts down, Python restores the default action, which is to die, of signals with a handler. Ignored
        signals stay ignored.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def sleep(self, seconds: float) -> None:
        """Sleep for a short time, then `check`."""
        time.sleep(seconds)
        self.check()

    def run(self, start: Callable[[], object], processes: Callable[[], Iterable[Process]]) -> None:
        """Run `start` in a thread and wait for it. A signal kills the `processes` it waits for, so that it fails.

        Raises:
            Interrupted: a signal arrived.
            Exception: the exception of `start`.
        """
        with ThreadPoolExecutor(1, "start") as pool:
            started = pool.submit(start)
            while wait([started], _POLL_SECONDS).not_done:
                for process in list(processes()) if self._number is not None else ():
                    process.kill()
        self.check()
        started.result()


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a recovery that has ended, as text and as JSON."""

    title: str
    """The source of the numbers, with a colon."""
    timeline: Timeline
    ideal_seconds: float
    """Shortest possible recovery: the slowest link side copies at its capacity less the client load."""
    client_bytes: int
    """Bytes that clients offered during the recovery."""
    cycles: int
    """Cycles that the planners logged from the start to the end."""
    client_rows: Sequence[tuple[str, str]]
    """Name and value of each row about the clients."""
    goals: Mapping[str, tuple[str, float, str]]
    """Name of a row -> the JSON key of its value, the limit of this value, and its unit."""
    remarks: Mapping[str, str]
    """Name of a row -> a remark on its value."""
    details: Mapping[str, Any]
    """More numbers for the JSON object; times in seconds."""
    bytes_copied: int = 0
    """Bytes that the new broker copied during the recovery."""
    unthrottled_bytes: int = 0
    """The part of them that was copied before the first throttle."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (name, value, remark) of each row."""
        values = self.document()
        rows = [
            ("recovery", f"{values['recovery_seconds']:.1f} s"),
            ("shortest possible", f"{self.ideal_seconds:.1f} s"),
            ("recovery / shortest", f"{values['recovery_over_ideal']:.2f}"),
            ("client bytes", size(self.client_bytes)),
            *self.client_rows,
            ("first throttle after", seconds(values["first_throttle_seconds"])),
            ("before the first throttle", size(self.unthrottled_bytes)),
            ("throttles removed after", seconds(values["clean_seconds"])),
            ("config writes", str(self.timeline.writes)),
            ("cycles", str(self.cycles)),
            ("leader changes", str(self.timeline.leader_changes)),
        ]
        remarks = {
            "recovery": f"{size(self.bytes_copied)} copied",
            "before the first throttle": "copied as fast as the brokers can"
            if self.unthrottled_bytes
            else "copied: the reassignment starts with its throttles",
            "throttles removed after": "counted from the end of the reassignment",
            **self.remarks,
        }
        for name, (key, limit, unit) in self.goals.items():
            met = values[key] is not None and values[key] <= limit
            remarks[name] = f"goal <= {limit:g}{unit}: {'met' if met else 'MISSED'}"
        if values["recovery_over_ideal"] < 1:
            remarks["recovery / shortest"] = self._below_one()
        return [(name, value, remarks.get(name, "")) for name, value in rows]

    def _below_one(self) -> str:
        """Return why the recovery took less than the shortest possible time."""
        if self.unthrottled_bytes >= MEGABYTE:
            return f"below 1: {size(self.unthrottled_bytes)} were copied before the first throttle, beyond the capacity"
        return "below 1: bursts after a change of a throttle go beyond the capacity, which is only a setting"

    def document(self) -> dict[str, Any]:
        """Return all numbers as a JSON object; a time is null if its event never happened."""
        timeline = self.timeline
        recovery, clean = timeline.seconds(timeline.ended), timeline.seconds(timeline.clean)
        assert recovery is not None
        values = {
            "recovery_seconds": recovery,
            "ideal_seconds": self.ideal_seconds,
            "bytes_moved": self.bytes_copied,
            "bytes_before_throttle": self.unthrottled_bytes,
            "client_bytes": self.client_bytes,
            "first_throttle_seconds": timeline.seconds(timeline.throttled),
            "writes": timeline.writes,
            "cycles": self.cycles,
            "leader_changes": timeline.leader_changes,
            "clean_seconds": None if clean is None else clean - recovery,
            "recovery_over_ideal": recovery / self.ideal_seconds,
            **self.details,
        }
        return {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items()}


class Stage(ABC):
    """All servers of the demo; they end with the stack. Use it from the main thread."""

    opening: str
    """First line of output."""
    targets: Targets
    """The reassignment."""
    total_bytes: int
    """Bytes to copy."""
    run_seconds: float
    """Deadline of the whole demo."""
    services: ServiceProcesses

    def __init__(self, interruption: Interruption, stack: ExitStack, options: Mapping[str, str]) -> None:
        """Prepare the stage; `options`: option of the services, without dashes -> value."""
        self.interruption, self.stack, self.options = interruption, stack, options
        self._last_reading: Reading | None = None
        self._copied: list[tuple[float, int]] = []
        """(Unix time, bytes copied so far) of each sample, from the submission on."""

    @abstractmethod
    def build(self, say: Callable[[str], None]) -> None:
        """Start the brokers and the services; `say` prints progress.

        Raises:
            Interrupted: a signal arrived.
            AutothrottleError, TimeoutError, OSError: a server does not start.
        """

    def submit_reassignment(self) -> None:
        """Submit the reassignment as `throttlectl reassign` does: with throttles that are in effect before it starts.

        Raises:
            Interrupted: a signal arrived.
            AutothrottleError: it is refused.
        """
        self.record_start()
        self._copied = [(time.time(), 0)]
        with AdminClient([self.services.addresses["admin"]]) as admin:
            self.interruption.run(lambda: admin.submit_reassignment(self.targets), self.services.processes.values)

    @abstractmethod
    def record_start(self) -> None:
        """Record the counters at the start of the reassignment."""

    @abstractmethod
    def record_end(self) -> None:
        """Record the counters at the end of the reassignment."""

    @abstractmethod
    def set_client_load(self, factor: int) -> None:
        """Set the client load to `factor` times the initial load."""

    @abstractmethod
    def reading(self) -> tuple[Reading, int]:
        """Return the counters of the new broker, and the bytes that it still has to copy."""

    @abstractmethod
    def is_reassigning(self) -> bool:
        """Return whether the reassignment is in progress."""

    @abstractmethod
    def configs(self) -> Configs:
        """Return the dynamic configs of all brokers and topics."""

    @abstractmethod
    def report(self, cycles: int) -> Report:
        """Return the results of the recovery; call it when no throttle is left."""

    def processes(self) -> Iterable[Process]:
        """Return the processes of Kafka that must not end; simulated brokers have none."""
        return ()

    def sample(self) -> Sample:
        """Return the state of the new broker, with rates since the last call."""
        reading, bytes_left = self.reading()
        self._copied.append((time.time(), self.total_bytes - bytes_left))
        duration, client_bytes, copied = map(sub, reading, self._last_reading or reading)
        self._last_reading, interval = reading, max(duration, 1e-9)
        throttle = self.configs().get(f"brokers/{DEMO_NEW_BROKER}", {}).get(FOLLOWER_RATE)
        rate = None if throttle is None else int(throttle)
        return Sample(rate, client_bytes / interval, copied / interval, bytes_left)

    def unthrottled_bytes(self, timeline: Timeline) -> int:
        """Return the bytes that were copied before the first throttle, interpolated between two samples."""
        if timeline.throttled is None:
            return self.total_bytes
        if timeline.throttled == timeline.started:
            return 0
        at, (time_before, copied_before) = timeline.throttled.timestamp(), self._copied[0]
        for sample_time, copied in self._copied:
            if sample_time >= at:
                share = (at - time_before) / max(sample_time - time_before, 1e-9)
                return round(copied_before + max(share, 0.0) * (copied - copied_before))
            time_before, copied_before = sample_time, copied
        return copied_before

    def throttled(self) -> Sequence[str]:
        """Return the brokers and topics that have a throttle or a list of throttled replicas."""
        return [resource for resource, config in self.configs().items() if config.keys() & THROTTLE_KEYS]

    def require_running(self, killed: Sequence[Process]) -> None:
        """Raise `Unavailable` if a process other than the killed ones has ended."""
        for process in (self.zookeeper, *self.processes(), *self.services.processes.values()):
            if process not in killed and not process.running:
                raise Unavailable(f"{process.name} ended unexpectedly; the end of its log:\n{process.log_end()}")

    def leader_address(self) -> str:
        """Return the address of the leading planner; "" before the first term."""
        try:
            content, _ = self.client.get(OwnPaths().term)
        except NoNodeError:
            return ""
        return str(json.loads(content)["address"]) if content else ""

    def page_url(self) -> str:
        """Return the address of the page."""
        return f"http://{self.services.addresses['gateway']}/"

    def start_zookeeper(self) -> None:
        """Start ZooKeeper in a new scratch directory, and connect a client to it."""
        self.directory = self.stack.enter_context(scratch_directory("autothrottle-demo-"))
        self.zookeeper = ZooKeeperServer(self.directory / "zookeeper")
        self.stack.callback(self.zookeeper.kill)
        self.interruption.run(lambda: self.zookeeper.start(START_SECONDS), lambda: [self.zookeeper])
        self.client = KazooClient(hosts=self.zookeeper.connect)
        self.stack.callback(self.client.close)
        self.stack.callback(self.client.stop)
        self.client.start(timeout=START_SECONDS)

    def start_datadog(self, broker_ids: Iterable[int]) -> DatadogEmulator:
        """Start a Datadog emulator that has a host for each of these brokers."""
        datadog = self.stack.enter_context(DatadogEmulator())
        for broker_id in broker_ids:
            datadog.add_host(f"broker-{broker_id}", broker_id, INSTANCE_TYPE)
        return datadog

    def start_services(self, datadog_url: str, options: Mapping[str, str]) -> None:
        """Start the services with these options; return when all of them listen."""
        deployment = Deployment(self.zookeeper.connect, datadog_url, self.directory, options)
        self.services = ServiceProcesses(deployment, has_gateway=True)
        self.stack.callback(self.services.close)
        self.interruption.run(self.services.start, self.services.processes.values)


def size(amount: float) -> str:
    """Format an amount of bytes as MB."""
    return f"{amount / MEGABYTE:,.0f} MB"


def seconds(value: float | None) -> str:
    """Format a duration; None: its end never happened."""
    return "never" if value is None else f"{value:.2f} s"
