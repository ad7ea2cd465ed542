"""What the demo plays on: ZooKeeper, the services, and a Kafka that a subclass brings; and how it is interrupted.

`demo_simulated.SimulatedStage` has simulated brokers, `demo_kafka.KafkaStage` real ones. The story is in `demo`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from kazoo.client import KazooClient

from autothrottle.core.errors import Unavailable
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.observer import Sample
from autothrottle.lab.processes import Process, scratch_directory
from autothrottle.lab.services import Deployment, ServiceProcesses
from autothrottle.lab.zookeeper import ZooKeeperServer

INSTANCE_TYPE = "demo.large"
"""What the brokers' hosts are tagged with; the cap-map has its capacity."""

START_SECONDS = 120.0
"""How long one process may take to start: a second or two, and more on a machine that has other things to do."""

_TURN_SECONDS = 0.1


class Interrupted(Exception):
    """SIGINT or SIGTERM came."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruption:
    """Takes SIGINT and SIGTERM: the first is noted, and acted on where that is safe; the second ends at once.

    Nothing is left then either: what was started has a guard (`processes`). Use it from the main thread.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # Takes no lock and raises nothing: it runs between any two steps of the main thread.
        if self._number is not None:
            os._exit(128 + number)
        self._number = number

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self._number is not None:
            raise Interrupted(self._number)

    def end(self) -> None:
        """Ignore both from now on: all has ended, and one that comes late must not change the exit status.

        Python gives a signal that has a function its default back in the interpreter's last steps, which is to die of
        it; an ignored one stays ignored.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def sleep(self, seconds: float) -> None:
        """Let a short time pass, then `check`."""
        time.sleep(seconds)
        self.check()

    def run(self, start: Callable[[], object], processes: Callable[[], Iterable[Process]]) -> None:
        """Return when `start` has; a signal kills the processes that it waits for, so that it gives up.

        Raises:
            Interrupted: a signal came.
            Exception: what `start` raised.
        """
        failures: list[Exception] = []

        def run() -> None:
            try:
                start()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="start", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_TURN_SECONDS)
            for process in list(processes()) if self._number is not None else ():
                process.kill()
        self.check()
        for failure in failures:
            raise failure


@dataclass(frozen=True, slots=True)
class Report:
    """A recovery that has ended, for people and for programs."""

    title: str
    """Who saw it, with a colon."""
    rows: Sequence[tuple[str, str, str]]
    """Name, value and remark."""
    document: Mapping[str, Any]
    """The numbers as a JSON object; times in seconds."""


class Stage(ABC):
    """Everything that runs; all of it ends with the stack. Use it from the main thread."""

    def __init__(self, interruption: Interruption, stack: ExitStack, say: Callable[[str], None]) -> None:
        """Start ZooKeeper; `say` tells what is being done; `build` starts the rest."""
        self.interruption, self.stack, self.say = interruption, stack, say
        self.directory = stack.enter_context(scratch_directory("autothrottle-demo-"))
        self.zookeeper = self._start_zookeeper()
        self.client: KazooClient
        """Connected to it."""
        self.services: ServiceProcesses

    @abstractmethod
    def build(self) -> None:
        """Start the brokers and the services.

        Raises:
            Interrupted: a signal came.
            AutothrottleError, TimeoutError, OSError: something does not start.
        """

    @abstractmethod
    def start_move(self) -> None:
        """Submit the reassignment."""

    @abstractmethod
    def end_move(self) -> None:
        """Note how things stand now that the reassignment is done."""

    @abstractmethod
    def set_client_load(self, factor: int) -> None:
        """From now on let clients send so many times what they sent at first."""

    @abstractmethod
    def sample(self) -> Sample:
        """Return how it stands, with rates since the last call."""

    @abstractmethod
    def is_moving(self) -> bool:
        """Return whether the reassignment is still under way."""

    @abstractmethod
    def throttled(self) -> Sequence[str]:
        """Return the brokers and topics on which any throttle, or list of throttled replicas, stands."""

    @abstractmethod
    def leader_address(self) -> str:
        """Return where the planner that leads answers; "" before the first term."""

    @abstractmethod
    def report(self, cycles: int) -> Report:
        """Return the numbers of the recovery, now that no throttle is left."""

    @abstractmethod
    def processes(self) -> Iterable[Process]:
        """Return the processes of Kafka that must not end."""

    def require_all_running(self, but: Sequence[Process]) -> None:
        """Raise `Unavailable` if a process has ended that was not to."""
        for process in (self.zookeeper.process, *self.processes(), *self.services.processes.values()):
            if process not in but and not process.running:
                raise Unavailable(f"{process.name} ended by itself; the end of its log:\n{process.log_end()}")

    def connect(self) -> KazooClient:
        """Return a client of ZooKeeper."""
        client = KazooClient(hosts=self.zookeeper.connect)
        self.stack.callback(_disconnect, client)
        client.start(timeout=START_SECONDS)
        return client

    def start_services(self, datadog_url: str, options: Mapping[str, str]) -> ServiceProcesses:
        """Return the services, all of which listen."""
        services = ServiceProcesses(Deployment(self.zookeeper.connect, datadog_url, self.directory, options))
        self.stack.push(services.__exit__)
        self.interruption.run(services.start, services.processes.values)
        return services

    def _start_zookeeper(self) -> ZooKeeperServer:
        server = ZooKeeperServer(self.directory / "zookeeper")
        self.stack.callback(server.kill)
        self.interruption.run(lambda: server.start(START_SECONDS), lambda: [server.process])
        return server


def _disconnect(client: KazooClient) -> None:
    client.stop()
    client.close()


def size(amount: float) -> str:
    """Return bytes for people."""
    return f"{amount / MEGABYTE:,.0f} MB"


def seconds(value: float | None) -> str:
    """Return a duration for people; None: what it led up to never was."""
    return "never" if value is None else f"{value:.2f} s"


def text(path: Path) -> str:
    """Return what a file holds, "" when it is not there."""
    return path.read_text(errors="replace") if path.exists() else ""
