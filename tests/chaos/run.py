"""Executes one schedule on a stage, and checks the result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.chaos.checker import Subject, Verdict, Violation, differences, judge
from tests.chaos.proxy import Timing, Trap
from tests.chaos.schedule import PROCESS_FAULTS, Edit, Fault, FaultKind, Schedule, Target
from tests.chaos.stage import Stage

LIMIT_SECONDS = 120.0
"""Deadline of each expected state; it takes a second or two on an idle machine."""

_TRAP_SECONDS, _LATE_SECONDS = 30.0, 30.0
"""Longest waits for a transaction and for the next term; they take a few seconds on an idle machine."""

_POLL_SECONDS = 0.05
_DELAY_SECONDS = 0.3

STUCK = "an expected state was not reached"
CRASHED = "a service ended unexpectedly, or with a traceback"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one seed."""

    plan: Schedule
    verdict: Verdict
    kills: int
    """Number of SIGKILLs and SIGSTOPs of services."""
    kills_inside: int
    """The part of `kills` that hit a planner or applier while a transaction of its term was in flight."""
    cuts_after_commit: int
    """Connections that were cut after a commit and before its response."""
    seconds: float
    notes: tuple[str, ...] = ()
    """The events in order, each with the seconds since the start."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        return self.verdict.violations


def run(ensemble: ZooKeeperEnsemble, plan: Schedule, directory: Path) -> Result:
    """Execute one schedule and return its result.

    Args:
        ensemble: serves many runs, each with its own paths.
        plan: the schedule of the seed.
        directory: an empty directory for sockets and logs; its path must be short.
    """
    with Stage(ensemble, plan, directory) as stage:
        return _Run(stage).execute()


@dataclass(slots=True)
class _Run:
    stage: Stage
    start: float = field(default_factory=time.monotonic)
    repairs: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """(due time, action); the wait loops execute them."""
    kills: int = 0
    inside: int = 0
    cuts: int = 0
    extra: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def execute(self) -> Result:
        stage = self.stage
        for name in stage.processes:
            stage.start(name)
        self._until(lambda: stage.leader()[0] > 0, "a planner leads")
        stage.submit_reassignment()
        self._until(stage.is_throttled, "the reassignment is throttled")
        for step in stage.plan.steps:
            if isinstance(step, Edit):
                stage.edit(step)
                self._note(f"edit: {step.value}")
            else:
                self._inject(step)
        self._wait_until_repaired()
        self._until(stage.is_throttled, "the user's changes of throttles are repaired")
        stage.finish_reassignment()
        self._until(lambda: not stage.is_reassigning(), "the reassignment is done")
        self._until(
            lambda: not differences(stage.configs(), stage.expected) and not stage.ledger(), "all throttles are removed"
        )
        self._end_services()
        subject = Subject(stage.kafka_paths, stage.own, frozenset(stage.sessions), stage.begin, stage.expected)
        verdict = judge(stage.ensemble.transactions(stage.since, refused=True), subject)
        verdict = replace(verdict, violations=(*verdict.violations, *self.extra))
        seconds = time.monotonic() - self.start
        return Result(stage.plan, verdict, self.kills, self.inside, self.cuts, seconds, tuple(self.notes))

    # Waits, which execute the repairs that are due

    def _until(self, is_reached: Callable[[], bool], state: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not is_reached():
            if time.monotonic() > deadline:
                self.extra.append(Violation(STUCK, 0, f"not within {LIMIT_SECONDS:.0f} s: {state}"))
                return
            self._run_repairs()
            time.sleep(_POLL_SECONDS)
        self._note(state)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._run_repairs()
            time.sleep(min(left, _POLL_SECONDS))

    def _run_repairs(self) -> None:
        now = time.monotonic()
        due = [repair for repair in self.repairs if repair[0] <= now]
        self.repairs = [repair for repair in self.repairs if repair not in due]
        for _, repair in due:
            repair()

    def _schedule_repair(self, seconds: float, repair: Callable[[], None]) -> None:
        self.repairs.append((time.monotonic() + seconds, repair))

    def _note(self, event: str) -> None:
        self.notes.append(f"{time.monotonic() - self.start:.1f} {event}")

    # Faults

    def _inject(self, fault: Fault) -> None:
        self._sleep(fault.pause_seconds)
        if fault.timing is Timing.ANY:
            self._apply_fault(fault)
            return
        trap, links = Trap(fault.timing, self.stage.own.term), self.stage.writer_links()
        for link in links:
            link.trap = trap
        try:
            self._inject_during_transaction(fault, trap)
        finally:
            trap.disarm()
            trap.release(fault.dropped)
            for link in links:
                link.trap = None

    def _inject_during_transaction(self, fault: Fault, trap: Trap) -> None:
        """Hold a transaction, and inject the fault while it is held."""
        deadline = time.monotonic() + _TRAP_SECONDS
        while not trap.wait(_POLL_SECONDS):
            self._run_repairs()
            if time.monotonic() > deadline:
                trap.disarm()
                self._note("no transaction arrived")
                self._apply_fault(fault)
                return
        is_leaders = self.stage.leader()[0] == trap.fence
        self._apply_fault(fault)
        if fault.kind in (FaultKind.KILL, FaultKind.STOP):
            self.inside += is_leaders
        elif fault.kind is FaultKind.CUT:
            self.cuts += 1
        if fault.late:
            late = time.monotonic() + _LATE_SECONDS
            while self.stage.leader()[0] == trap.fence and time.monotonic() < late:
                self._sleep(_POLL_SECONDS)
            self._note(f"the transaction of term {trap.fence} continues in term {self.stage.leader()[0]}")

    def _apply_fault(self, fault: Fault) -> None:
        self._note(str(fault))
        if fault.target in (Target.ZOOKEEPER_LEADER, Target.ZOOKEEPER_FOLLOWER):
            self._break_server(fault)
        elif fault.kind in PROCESS_FAULTS:
            self._break_process(fault)
        else:
            self._break_link(fault)

    def _break_server(self, fault: Fault) -> None:
        """Kill or freeze one server of the ensemble, unless another one is down already."""
        servers = self.stage.ensemble.servers
        modes = {server.mode(): server for server in servers if server.running}
        server = modes.get("leader" if fault.target is Target.ZOOKEEPER_LEADER else "follower")
        if server is None or any(not other.mode() for other in servers):
            return
        if fault.kind is FaultKind.KILL:
            server.kill()
            self._schedule_repair(fault.seconds, partial(Process.start, server))
        else:
            server.freeze()
            self._schedule_repair(fault.seconds, server.thaw)

    def _break_process(self, fault: Fault) -> None:
        name = self._process_name(fault.target)
        process = self.stage.processes[name]
        if not process.running:
            self.stage.start(name)  # an earlier fault ended it; restart it before its repair is due
        process.thaw()
        self.kills += fault.kind in (FaultKind.KILL, FaultKind.STOP)
        if fault.kind is FaultKind.STOP:
            process.freeze()
            self._schedule_repair(fault.seconds, process.thaw)
        elif fault.kind is FaultKind.KILL:
            process.kill()
            self._schedule_repair(fault.seconds, partial(self.stage.start, name))
        elif self.stage.listens(name):
            process.terminate()
            self._schedule_repair(fault.seconds, partial(self._start_again, name, process.pid))

    def _start_again(self, name: str, pid: int) -> None:
        """Restart a process after SIGTERM, as a supervisor does, unless it was already restarted."""
        process = self.stage.processes[name]
        if process.pid != pid:
            return
        if process.running:
            self._schedule_repair(_POLL_SECONDS, partial(self._start_again, name, pid))
            return
        if process.returncode not in (0, -signal.SIGKILL):  # a later fault may have killed it
            self.extra.append(Violation(CRASHED, 0, f"{name} ended with {process.returncode} on SIGTERM"))
        self.stage.start(name)

    def _break_link(self, fault: Fault) -> None:
        name = "datadog" if fault.target is Target.DATADOG else self._process_name(fault.target)
        link = self.stage.links[name]
        if fault.kind is FaultKind.CUT:
            link.cut()
        elif fault.kind is FaultKind.HALF_CLOSE:
            link.half_close("client" if fault.seconds < 1.5 else "server")
        elif fault.kind is FaultKind.HOLD:
            link.hold()
            self._schedule_repair(fault.seconds, link.resume)
        else:
            link.delay_seconds = _DELAY_SECONDS
            self._schedule_repair(fault.seconds, link.resume)

    def _process_name(self, target: Target) -> str:
        """The name of the target process; if one process runs all services, it is the leading one."""
        names = list(self.stage.processes)
        planners = [name for name in names if name.startswith(("planner", "run"))]
        leader = self.stage.leader()[1] or planners[0]
        if target is Target.OTHER:
            return next(name for name in planners if name != leader)
        return leader if target is Target.LEADER or not self.stage.plan.separate_services else target.value

    # End

    def _wait_until_repaired(self) -> None:
        """Wait until all repairs are done, and all servers and services answer again."""
        while self.repairs:
            self._sleep(_POLL_SECONDS)
        for server in self.stage.ensemble.servers:
            self._until(partial(_serves, server), f"{server.connect} serves")
        for name in self.stage.processes:
            self._until(partial(self.stage.listens, name), f"{name} serves")

    def _end_services(self) -> None:
        """Stop all services by SIGTERM; each must be running before, and end without an error."""
        for name, process in self.stage.processes.items():
            if not process.running:
                self.extra.append(Violation(CRASHED, 0, f"{name} ended unexpectedly: {process.returncode}"))
            process.terminate()
        for name, process in self.stage.processes.items():
            status = process.wait(LIMIT_SECONDS) if process.running else process.returncode
            if status:
                self.extra.append(Violation(CRASHED, 0, f"{name} ended with {status} on SIGTERM"))
            if "Traceback" in process.log.read_text(errors="replace"):
                self.extra.append(Violation(CRASHED, 0, f"{name} logged a traceback; see its log"))


def _serves(server: ZooKeeperServer) -> bool:
    return bool(server.mode())
