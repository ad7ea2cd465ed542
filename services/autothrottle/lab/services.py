"""The services as separate processes, as an operator would start them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from autothrottle.lab.datadog import API_KEY, APP_KEY
from autothrottle.lab.processes import Process

LISTENS = re.compile(r"(?:listens on|gRPC API:|Admin API:) (\S+)$", re.MULTILINE)
"""What a service logs once it answers, with its address."""
_START_SECONDS = 120.0
"""A second on a machine that is free; a process that ends instead is noticed at once."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What all the processes have in common."""

    zookeeper_connect: str
    datadog_url: str
    directory: Path
    """Where logs are written."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options, by their names without dashes."""

    def process(self, service: str, name: str, options: Mapping[str, str]) -> Process:
        """Return one service's process, not started."""
        given = {"zk-addr": self.zookeeper_connect, "datadog-url": self.datadog_url, **self.options, **options}
        flags = [f"--{option}={value}" for option, value in given.items()]
        environment = {"AUTOTHROTTLE_API_KEY": API_KEY, "AUTOTHROTTLE_APP_KEY": APP_KEY}
        command = [sys.executable, "-m", "autothrottle", service, *flags]
        return Process(name, command, self.directory / f"{name}.log", environment)


class ServiceProcesses:
    """Discovery, metrics, applier, admin and some planners, each a process; a context manager."""

    def __init__(self, deployment: Deployment, planners: int = 2) -> None:
        self._deployment, self._stack = deployment, ExitStack()
        self.processes: dict[str, Process] = {}
        """By name: `discovery`, `metrics`, `applier`, `planner-1`, ..., `admin`."""
        self.addresses: dict[str, str] = {}
        """Where each answers, `host:port`."""
        self._begins: dict[str, int] = {}
        """Where the log of what runs now begins, in bytes."""
        self._planners = [f"planner-{number}" for number in range(1, planners + 1)]

    def __enter__(self) -> ServiceProcesses:
        try:
            self.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stack.close()

    def start(self) -> None:
        """Start all that do not run, and return when all listen; after a stop they listen elsewhere."""
        self._start({name: (name, {}) for name in ("discovery", "metrics", "applier")})
        peers = {f"{name}-addr": self.addresses[name] for name in ("discovery", "metrics", "applier")}
        self._start({name: ("planner", peers) for name in self._planners})
        planners = ",".join(self.addresses[name] for name in self._planners)
        self._start({"admin": ("admin", {"planner-addr": planners, "discovery-addr": self.addresses["discovery"]})})

    def stop(self) -> list[int]:
        """Ask all that run to end (SIGTERM), wait, and return their exit statuses."""
        running = [process for process in self.processes.values() if process.running]
        for process in running:
            process.terminate()
        return [process.wait(within_seconds=30.0) for process in running]

    def planner(self, address: str) -> Process:
        """Return the planner that answers at an address."""
        return self.processes[next(name for name in self._planners if self.addresses[name] == address)]

    def log(self, names: Sequence[str] | None = None) -> str:
        """Return the logs of all, or of some, one after the other."""
        chosen = self.processes if names is None else names
        return "".join(self.processes[name].log.read_text(errors="replace") for name in chosen)

    def _start(self, wanted: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
        for name, (service, options) in wanted.items():
            if name in self.processes and self.processes[name].running:
                continue
            process = self.processes[name] = self._deployment.process(service, name, options)
            self._begins[name] = process.log.stat().st_size if process.log.exists() else 0
            self._stack.callback(process.stop)
            process.start()
        for name in wanted:
            self.processes[name].wait_until(lambda name=name: self._listens(name), _START_SECONDS)  # type: ignore[misc]

    def _listens(self, name: str) -> bool:
        log = self.processes[name].log.read_bytes()[self._begins[name] :]
        found = LISTENS.findall(log.decode(errors="replace"))
        if found:
            self.addresses[name] = found[-1]
        return bool(found)
