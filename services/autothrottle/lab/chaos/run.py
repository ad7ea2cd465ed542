"""Carries one schedule out on a stage, and judges what became of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from autothrottle.lab.chaos.checker import Subject, Verdict, Violation, differences, judge
from autothrottle.lab.chaos.proxy import Moment, Trap
from autothrottle.lab.chaos.schedule import PROCESS_DEEDS, Deed, Edit, Fault, Schedule, Target
from autothrottle.lab.chaos.stage import Stage
from autothrottle.lab.ensemble import ZooKeeperEnsemble
from autothrottle.lab.zookeeper import ZooKeeperServer

LIMIT_SECONDS = 120.0
"""For everything that must come true by itself; a second or two on a machine that is free."""

_TRAP_SECONDS, _LATE_SECONDS = 30.0, 30.0
"""What is waited for at most: for a transaction on its way, and for the next term; a few seconds on a free machine."""

_POLL_SECONDS = 0.05
_DELAY_SECONDS = 0.3

STUCK = "it does not end"
CRASHED = "a service ended by itself, or with a traceback"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one seed."""

    plan: Schedule
    verdict: Verdict
    kills: int
    """SIGKILLs and SIGSTOPs of services."""
    kills_inside: int
    """Those of a planner or applier while a transaction of its term was on its way."""
    cuts_after_commit: int
    """Connections that were cut when a transaction was carried out and its answer had not come."""
    seconds: float
    notes: tuple[str, ...] = ()
    """What happened, in order, with the seconds since the start."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What must not be."""
        return self.verdict.violations


def run(ensemble: ZooKeeperEnsemble, plan: Schedule, directory: Path) -> Result:
    """Let one schedule happen, and return what became of it.

    Args:
        ensemble: serves many runs, each in a tree of its own.
        plan: of the seed.
        directory: an empty one, for sockets and logs; its path is short.
    """
    with Stage(ensemble, plan, directory) as stage:
        return _Run(stage).play()


@dataclass(slots=True)
class _Run:
    stage: Stage
    start: float = field(default_factory=time.monotonic)
    repairs: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """(when, what), to be done by whoever waits."""
    kills: int = 0
    inside: int = 0
    cuts: int = 0
    extra: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def play(self) -> Result:
        stage = self.stage
        for name in stage.processes:
            stage.start(name)
        self._until(lambda: stage.leader()[0] > 0, "somebody leads")
        stage.start_move()
        self._until(stage.is_throttled, "the move is throttled")
        for step in stage.plan.steps:
            if isinstance(step, Edit):
                stage.edit(step)
                self._note(f"edit: {step.value}")
            else:
                self._suffer(step)
        self._heal()
        self._until(stage.is_throttled, "what the user spoilt is repaired")
        stage.end_move()
        self._until(lambda: not stage.is_moving(), "the move is over")
        self._until(lambda: not differences(stage.configs(), stage.expected) and not stage.ledger(), "all is clean")
        self._end_services()
        subject = Subject(stage.kafka_paths, stage.own, frozenset(stage.sessions), stage.begin, stage.expected)
        verdict = judge(stage.ensemble.transactions(stage.since, refused=True), subject)
        verdict = replace(verdict, violations=(*verdict.violations, *self.extra))
        seconds = time.monotonic() - self.start
        return Result(stage.plan, verdict, self.kills, self.inside, self.cuts, seconds, tuple(self.notes))

    # Waiting, while what is broken is mended when its time has come.

    def _until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not true():
            if time.monotonic() > deadline:
                self.extra.append(Violation(STUCK, 0, f"not within {LIMIT_SECONDS:.0f} s: {what}"))
                return
            self._mend()
            time.sleep(_POLL_SECONDS)
        self._note(what)

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._mend()
            time.sleep(min(left, _POLL_SECONDS))

    def _mend(self) -> None:
        now = time.monotonic()
        due = [repair for repair in self.repairs if repair[0] <= now]
        self.repairs = [repair for repair in self.repairs if repair not in due]
        for _, repair in due:
            repair()

    def _later(self, seconds: float, repair: Callable[[], None]) -> None:
        self.repairs.append((time.monotonic() + seconds, repair))

    def _note(self, what: str) -> None:
        self.notes.append(f"{time.monotonic() - self.start:.1f} {what}")

    # Faults.

    def _suffer(self, fault: Fault) -> None:
        self._pass(fault.pause_seconds)
        if fault.moment is Moment.ANY:
            self._hit(fault)
            return
        trap, links = Trap(fault.moment, self.stage.own.term), self.stage.writers()
        for link in links:
            link.trap = trap
        try:
            self._hit_inside(fault, trap)
        finally:
            trap.give_up()
            trap.release(fault.dropped)
            for link in links:
                link.trap = None

    def _hit_inside(self, fault: Fault, trap: Trap) -> None:
        """Wait for a transaction on its way, and let it happen while it is held."""
        deadline = time.monotonic() + _TRAP_SECONDS
        while not trap.wait(_POLL_SECONDS):
            self._mend()
            if time.monotonic() > deadline:
                trap.give_up()
                self._note("no transaction came by")
                self._hit(fault)
                return
        is_leaders = self.stage.leader()[0] == trap.fence
        self._hit(fault)
        if fault.deed in (Deed.KILL, Deed.STOP):
            self.inside += is_leaders
        elif fault.deed is Deed.CUT:
            self.cuts += 1
        if fault.late:
            late = time.monotonic() + _LATE_SECONDS
            while self.stage.leader()[0] == trap.fence and time.monotonic() < late:
                self._pass(_POLL_SECONDS)
            self._note(f"what term {trap.fence} wrote goes on in term {self.stage.leader()[0]}")

    def _hit(self, fault: Fault) -> None:
        self._note(str(fault))
        if fault.target in (Target.ZOOKEEPER_LEADER, Target.ZOOKEEPER_FOLLOWER):
            self._break_server(fault)
        elif fault.deed in PROCESS_DEEDS:
            self._break_process(fault)
        else:
            self._break_link(fault)

    def _break_server(self, fault: Fault) -> None:
        """Take one server of the ensemble away, unless one is away already."""
        servers = self.stage.ensemble.servers
        modes = {server.mode(): server for server in servers if server.process.running}
        server = modes.get("leader" if fault.target is Target.ZOOKEEPER_LEADER else "follower")
        if server is None or any(not other.mode() for other in servers):
            return
        if fault.deed is Deed.KILL:
            server.kill()
            self._later(fault.seconds, server.process.start)
        else:
            server.freeze()
            self._later(fault.seconds, server.thaw)

    def _break_process(self, fault: Fault) -> None:
        name = self._name(fault.target)
        process = self.stage.processes[name]
        if not process.running:
            self.stage.start(name)  # it is away already, and comes back a moment earlier
        process.thaw()
        self.kills += fault.deed in (Deed.KILL, Deed.STOP)
        if fault.deed is Deed.STOP:
            process.freeze()
            self._later(fault.seconds, process.thaw)
        elif fault.deed is Deed.KILL:
            process.kill()
            self._later(fault.seconds, partial(self.stage.start, name))
        elif self.stage.listens(name):
            process.terminate()
            self._later(fault.seconds, partial(self._start_again, name, process.pid))

    def _start_again(self, name: str, pid: int) -> None:
        """Start a process that was asked to end, as a supervisor does, unless it has been started meanwhile."""
        process = self.stage.processes[name]
        if process.pid != pid:
            return
        if process.running:
            self._later(_POLL_SECONDS, partial(self._start_again, name, pid))
            return
        if process.returncode not in (0, -signal.SIGKILL):  # it may have been killed while it ended
            self.extra.append(Violation(CRASHED, 0, f"{name} ended with {process.returncode} on SIGTERM"))
        self.stage.start(name)

    def _break_link(self, fault: Fault) -> None:
        name = "datadog" if fault.target is Target.DATADOG else self._name(fault.target)
        link = self.stage.links[name]
        if fault.deed is Deed.CUT:
            link.cut()
        elif fault.deed is Deed.HALF_CLOSE:
            link.half_close("client" if fault.seconds < 1.5 else "server")
        elif fault.deed is Deed.HOLD:
            link.hold()
            self._later(fault.seconds, link.resume)
        else:
            link.delay_seconds = _DELAY_SECONDS
            self._later(fault.seconds, link.resume)

    def _name(self, target: Target) -> str:
        """The process that is meant; where all services are one, the one that leads does everything."""
        names = list(self.stage.processes)
        planners = [name for name in names if name.startswith(("planner", "run"))]
        leader = self.stage.leader()[1] or planners[0]
        if target is Target.OTHER:
            return next(name for name in planners if name != leader)
        return leader if target is Target.LEADER or not self.stage.plan.apart else target.value

    # The end.

    def _heal(self) -> None:
        """Wait until everything is mended and serves again."""
        while self.repairs:
            self._pass(_POLL_SECONDS)
        for server in self.stage.ensemble.servers:
            self._until(partial(_serves, server), f"{server.connect} serves")
        for name in self.stage.processes:
            self._until(partial(self.stage.listens, name), f"{name} serves")

    def _end_services(self) -> None:
        """End all by SIGTERM; each must have been alive until then, and end without an error."""
        for name, process in self.stage.processes.items():
            if not process.running:
                self.extra.append(Violation(CRASHED, 0, f"{name} ended by itself: {process.returncode}"))
            process.terminate()
        for name, process in self.stage.processes.items():
            status = process.wait(LIMIT_SECONDS) if process.running else process.returncode
            if status:
                self.extra.append(Violation(CRASHED, 0, f"{name} ended with {status} on SIGTERM"))
            if "Traceback" in process.log.read_text(errors="replace"):
                self.extra.append(Violation(CRASHED, 0, f"{name} logged a traceback; see its log"))


def _serves(server: ZooKeeperServer) -> bool:
    return bool(server.mode())
