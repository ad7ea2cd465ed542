"""The service processes of a run, and the link of each; the base class of every stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.services import LISTENS
from tests.chaos.proxy import Link
from tests.chaos.schedule import Schedule


class StagedServices(ABC):
    """The services of one run, each behind its own link."""

    def __init__(self, plan: Schedule, directory: Path) -> None:
        """Prepare; sockets and logs go to `directory`."""
        self.plan, self.directory = plan, directory
        self.processes: dict[str, Process] = {}
        self.links: dict[str, Link] = {}
        """Process name -> its link; `datadog` -> the link to Datadog."""
        self._log_starts: dict[str, int] = {}
        """Name -> offset in the log file at which the log of the current process starts."""

    @abstractmethod
    def leader(self) -> tuple[int, str]:
        """Return (term, name of the leading process); (0, "") before the first term."""

    def start(self, name: str) -> None:
        """Start a service, unless it runs."""
        process = self.processes[name]
        if process.running:
            return
        self._log_starts[name] = process.log.stat().st_size if process.log.exists() else 0
        process.start()

    def listens(self, name: str) -> bool:
        """Whether a service listens since its last start."""
        return bool(LISTENS.search(self.log(name)))

    def log(self, name: str) -> str:
        """Return the log of a service since its last start."""
        return self.processes[name].log.read_bytes()[self._log_starts[name] :].decode(errors="replace")

    def writer_links(self) -> list[Link]:
        """The links of the processes that write throttles."""
        return [self.links[name] for name in self.links if name.startswith(("applier", "run"))]

    def addresses(self, name: str) -> dict[str, str]:
        """Options with the address of a service, the same after each start, and the addresses of its peers."""
        if name.startswith("run"):
            return {"grpc-listen": self.socket(name), "api-listen": "127.0.0.1:0"}
        peers = ("discovery", "metrics", "applier") if name.startswith("planner") else ()
        return {"listen": self.socket(name), **{f"{peer}-addr": self.socket(peer) for peer in peers}}

    def socket(self, name: str) -> str:
        """Return the address of a service."""
        return f"unix:{self.directory}/{name}"
