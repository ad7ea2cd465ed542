"""The parts of a run that do not depend on the servers: waits, faults of services and links, and the end."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from tests.chaos.checker import Violation
from tests.chaos.proxy import Timing, Trap
from tests.chaos.resources import ResourceWatch
from tests.chaos.schedule import PROCESS_FAULTS, SERVERS, Fault, FaultKind, Target
from tests.chaos.services import StagedServices

_LATE_SECONDS = 30.0
"""Longest wait for the next term; it takes a few seconds on an idle machine."""

POLL_SECONDS = 0.05
_DELAY_SECONDS = 0.3
_SETTLE_SECONDS = 10.0
"""How long after the end of the reassignment a process may still have the descriptors and threads of its repairs."""

STUCK = "an expected state was not reached"
CRASHED = "a service ended unexpectedly, or with a traceback"
PILED_UP = "descriptors or threads that stay after the faults"


class Play(ABC):
    """Executes the steps of one schedule."""

    limit_seconds = 120.0
    """Deadline of each expected state; it takes a second or two on an idle machine."""
    trap_seconds = 30.0
    """Longest wait for a request; it takes a few seconds on an idle machine."""

    def __init__(self, services: StagedServices) -> None:
        self._services = services
        self.start = time.monotonic()
        self.repairs: list[tuple[float, Callable[[], None]]] = []
        """(due time, action); the wait loops execute them."""
        self.kills = 0
        """Number of SIGKILLs and SIGSTOPs of services."""
        self.inside = 0
        """The part of `kills` that hit a planner or applier while a request of its term was in flight."""
        self.cuts = 0
        """Connections that were cut after a request and before its response."""
        self._terminated: set[int] = set()
        """Process ids that have got SIGTERM."""
        self._frozen_after_terminate: set[int] = set()
        """Those that were then stopped. They end with an error if the time limit of their end has passed meanwhile."""
        self.resources = ResourceWatch(services.processes)
        self.violations: list[Violation] = []
        self.notes: list[str] = []
        """The events in order, each with the seconds since the start."""

    # Waits, which execute the repairs that are due

    def until(self, is_reached: Callable[[], bool], state: str) -> None:
        deadline = time.monotonic() + self.limit_seconds
        while not is_reached():
            if time.monotonic() > deadline:
                self.violations.append(Violation(STUCK, 0, f"not within {self.limit_seconds:.0f} s: {state}"))
                return
            self._run_repairs()
            time.sleep(POLL_SECONDS)
        self.note(state)

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            self._run_repairs()
            time.sleep(min(remaining, POLL_SECONDS))

    def _run_repairs(self) -> None:
        self.resources.sample()
        now = time.monotonic()
        due = [repair for repair in self.repairs if repair[0] <= now]
        self.repairs = [repair for repair in self.repairs if repair not in due]
        for _, repair in due:
            repair()

    def schedule_repair(self, seconds: float, repair: Callable[[], None]) -> None:
        self.repairs.append((time.monotonic() + seconds, repair))

    def note(self, event: str) -> None:
        self.notes.append(f"{time.monotonic() - self.start:.1f} {event}")

    # Faults

    def inject(self, fault: Fault) -> None:
        self.sleep(fault.pause_seconds)
        if fault.timing is Timing.ANY:
            self._apply_fault(fault)
            return
        trap, links = self._trap(fault), self._services.writer_links()
        for link in links:
            link.trap = trap
        try:
            self._inject_during_request(fault, trap)
        finally:
            trap.disarm()
            trap.release(fault.dropped)
            for link in links:
                link.trap = None

    @abstractmethod
    def _trap(self, fault: Fault) -> Trap:
        """Return a trap for the request that the fault waits for."""

    @abstractmethod
    def _term_of(self, trap: Trap) -> int:
        """Return the term of a held request."""

    def _inject_during_request(self, fault: Fault, trap: Trap) -> None:
        """Hold a request, and inject the fault while it is held."""
        deadline = time.monotonic() + self.trap_seconds
        while not trap.wait(POLL_SECONDS):
            self._run_repairs()
            if time.monotonic() > deadline:
                trap.disarm()
                self.note("no request arrived")
                self._apply_fault(fault)
                return
        term = self._term_of(trap)
        is_leaders = self._services.leader()[0] == term
        self._apply_fault(fault)
        if fault.kind in (FaultKind.KILL, FaultKind.STOP):
            self.inside += is_leaders
        elif fault.kind is FaultKind.CUT:
            self.cuts += 1
        if fault.late:
            late = time.monotonic() + _LATE_SECONDS
            while self._services.leader()[0] == term and time.monotonic() < late:
                self.sleep(POLL_SECONDS)
            self.note(f"the request of term {term} continues in term {self._services.leader()[0]}")

    def _apply_fault(self, fault: Fault) -> None:
        self.note(str(fault))
        if fault.target in SERVERS:
            self._break_server(fault)
        elif fault.kind in PROCESS_FAULTS:
            self._break_process(fault)
        else:
            self._break_link(fault)

    @abstractmethod
    def _break_server(self, fault: Fault) -> None:
        """Break a server of Kafka or ZooKeeper, unless another one is down already."""

    def _break_process(self, fault: Fault) -> None:
        name = self._process_name(fault.target)
        process = self._services.processes[name]
        if not process.running:
            self._services.start(name)  # an earlier fault ended it; restart it before its repair is due
        self._thaw(name)
        self.kills += fault.kind in (FaultKind.KILL, FaultKind.STOP)
        if fault.kind is FaultKind.STOP:
            if process.pid in self._terminated:
                self._frozen_after_terminate.add(process.pid)
            process.freeze()
            self.schedule_repair(fault.seconds, partial(self._thaw, name))
        elif fault.kind is FaultKind.KILL:
            process.kill()
            self.schedule_repair(fault.seconds, partial(self._services.start, name))
        elif self._services.listens(name) and process.pid not in self._terminated:
            # A second SIGTERM would end it at once, with an exit status of its own.
            self._terminated.add(process.pid)
            process.terminate()
            self.schedule_repair(fault.seconds, partial(self._start_again, name, process.pid))

    def _thaw(self, name: str) -> None:
        self._services.processes[name].thaw()

    def _start_again(self, name: str, pid: int) -> None:
        """Restart a process after SIGTERM, as a supervisor does, unless it was already restarted."""
        process = self._services.processes[name]
        if process.pid != pid:
            return
        if process.running:
            self.schedule_repair(POLL_SECONDS, partial(self._start_again, name, pid))
            return
        is_late = process.returncode == 1 and pid in self._frozen_after_terminate
        if process.returncode not in (0, -signal.SIGKILL) and not is_late:  # a later fault may have killed it
            self.violations.append(Violation(CRASHED, 0, f"{name} ended with {process.returncode} on SIGTERM"))
        self._services.start(name)

    def _break_link(self, fault: Fault) -> None:
        name = "datadog" if fault.target is Target.DATADOG else self._process_name(fault.target)
        link = self._services.links[name]
        if fault.kind is FaultKind.CUT:
            link.cut()
        elif fault.kind is FaultKind.HALF_CLOSE:
            link.half_close("client" if fault.seconds < 1.5 else "server")
        elif fault.kind is FaultKind.HOLD:
            link.hold()
            self.schedule_repair(fault.seconds, link.resume)
        else:
            link.delay_seconds = _DELAY_SECONDS
            self.schedule_repair(fault.seconds, link.resume)

    def _process_name(self, target: Target) -> str:
        """The name of the target process; if one process runs all services, it is the leading one."""
        names = list(self._services.processes)
        planners = [name for name in names if name.startswith(("planner", "run"))]
        leader = self._services.leader()[1] or planners[0]
        if target is Target.OTHER:
            return next(name for name in planners if name != leader)
        return leader if target is Target.LEADER or not self._services.plan.separate_services else target.value

    # End

    def check_services(self) -> None:
        """Find processes whose descriptors or threads have piled up."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (excess := list(self.resources.excess())) and time.monotonic() < deadline:
            self.sleep(POLL_SECONDS)
        self.violations += [Violation(PILED_UP, 0, sentence) for sentence in excess]
        self.note(f"at most {self.resources.most} of a process, {self.resources.quiet} before the faults")

    def end_services(self) -> None:
        """Stop all services by SIGTERM; each must be running before, and end without an error."""
        for name, process in self._services.processes.items():
            if not process.running:
                self.violations.append(Violation(CRASHED, 0, f"{name} ended unexpectedly: {process.returncode}"))
            process.terminate()
        for name, process in self._services.processes.items():
            status = process.wait(self.limit_seconds) if process.running else process.returncode
            if status:
                self.violations.append(Violation(CRASHED, 0, f"{name} ended with {status} on SIGTERM"))
            if "Traceback" in process.log.read_text(errors="replace"):
                self.violations.append(Violation(CRASHED, 0, f"{name} logged a traceback; see its log"))
