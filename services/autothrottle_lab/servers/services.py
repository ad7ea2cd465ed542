"""The services as separate processes, as an operator would start them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY
from autothrottle_lab.servers.processes import Process, Startable

LISTENS = re.compile(r"(?:listens on|gRPC API:|Admin API:) (\S+)$", re.MULTILINE)
"""The log line with the address of a service; it appears once the service answers."""
_START_SECONDS = 120.0
"""Deadline for the start of a service. It takes a second on an idle machine; a process that ends fails at once."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The settings that all service processes share."""

    zookeeper_connect: str
    """"": without ZooKeeper; then `options` name another state store."""
    datadog_url: str
    """"": without Datadog; then `options` name another metrics source."""
    directory: Path
    """Directory of the log files."""
    options: Mapping[str, str] = field(default_factory=dict)
    """More options: name without dashes -> value."""

    def process(self, service: str, name: str, options: Mapping[str, str]) -> Process:
        """Return the process of one service, not yet started."""
        datadog = {"datadog-url": self.datadog_url} if self.datadog_url else {}
        zookeeper = {"zk-addr": self.zookeeper_connect} if self.zookeeper_connect else {}
        listen = {"grpc-listen": "127.0.0.1:0"} if service == "run" else {}  # several run on this host
        given = {**zookeeper, **listen, **datadog, **self.options, **options}
        flags = [f"--{option}={value}" for option, value in given.items()]
        environment = {"AUTOTHROTTLE_API_KEY": API_KEY, "AUTOTHROTTLE_APP_KEY": APP_KEY} if datadog else {}
        command = [sys.executable, "-m", "autothrottle", service, *flags]
        return Process(name, command, self.directory / f"{name}.log", environment)


class ServiceProcesses(Startable):
    """Discovery, metrics, applier, admin, some planners and perhaps a gateway, one process each."""

    def __init__(self, deployment: Deployment, planners: int = 2, has_gateway: bool = False) -> None:
        self._deployment, self._stack, self._has_gateway = deployment, ExitStack(), has_gateway
        self.processes: dict[str, Process] = {}
        """Name -> process; names are `discovery`, `metrics`, `applier`, `planner-1`, ..., `admin`, `gateway`."""
        self.addresses: dict[str, str] = {}
        """Name -> `host:port`."""
        self._log_starts: dict[str, int] = {}
        """Name -> offset in the log file at which the log of the current process starts."""
        self._planners = [f"planner-{number}" for number in range(1, planners + 1)]

    def start(self) -> None:
        """Start all services that do not run; return when all listen. After a stop their addresses change."""
        self._start({name: (name, {}) for name in ("discovery", "metrics", "applier")})
        peers = {f"{name}-addr": self.addresses[name] for name in ("discovery", "metrics", "applier")}
        self._start({name: ("planner", peers) for name in self._planners})
        planners = ",".join(self.addresses[name] for name in self._planners)
        self._start({"admin": ("admin", {"planner-addr": planners, "discovery-addr": self.addresses["discovery"]})})
        if self._has_gateway:
            options = {"admin-addr": self.addresses["admin"], "api-listen": "127.0.0.1:0"}
            self._start({"gateway": ("gateway", options)})

    def stop(self) -> list[int]:
        """Send SIGTERM to all running services, wait for them, and return their exit statuses.

        If a status is not 0, the end of that service's log is printed.
        """
        running = [process for process in self.processes.values() if process.running]
        for process in running:
            process.terminate()
        statuses = [process.wait(within_seconds=30.0) for process in running]
        for process, status in zip(running, statuses, strict=True):
            if status:
                print(f"{process.name} ended with status {status}.\n{process.log_end()}")
        return statuses

    def close(self) -> None:
        self.stop()
        self._stack.close()

    def planner(self, address: str) -> Process:
        """Return the planner with this address."""
        return self.processes[next(name for name in self._planners if self.addresses[name] == address)]

    def log(self, names: Sequence[str] | None = None) -> str:
        """Return the concatenated logs of these services; None: of all."""
        chosen = self.processes if names is None else names
        return "".join(self.processes[name].log.read_text(errors="replace") for name in chosen)

    def _start(self, services: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
        for name, (service, options) in services.items():
            if name in self.processes and self.processes[name].running:
                continue
            process = self.processes[name] = self._deployment.process(service, name, options)
            self._log_starts[name] = process.log.stat().st_size if process.log.exists() else 0
            self._stack.callback(process.stop)
            process.start()
        for name in services:
            self.processes[name].wait_until(lambda name=name: self._listens(name), _START_SECONDS)  # type: ignore[misc]

    def _listens(self, name: str) -> bool:
        log = self.processes[name].log.read_bytes()[self._log_starts[name] :]
        addresses = LISTENS.findall(log.decode(errors="replace"))
        if addresses:
            self.addresses[name] = addresses[-1]
        return bool(addresses)
