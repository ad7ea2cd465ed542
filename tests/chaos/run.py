"""Executes one schedule on a stage, and checks the result."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.chaos.checker import Subject, Verdict, Violation, differences, judge
from tests.chaos.play import POLL_SECONDS, Play
from tests.chaos.proxy import TransactionTrap, Trap
from tests.chaos.resources import ResourceCount
from tests.chaos.schedule import Edit, Fault, FaultKind, Schedule, Target
from tests.chaos.stage import Stage


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
    most: ResourceCount
    """The largest numbers of any process at any time."""
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


class _Run(Play):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.stage = stage

    def execute(self) -> Result:
        stage = self.stage
        for name in stage.processes:
            stage.start(name)
        self.until(lambda: stage.leader()[0] > 0, "a planner leads")
        stage.submit_reassignment()
        self.until(stage.is_throttled, "the reassignment is throttled")
        self.resources.begin_faults()
        for step in stage.plan.steps:
            if isinstance(step, Fault):
                self.inject(step)
            else:
                stage.edit(Edit(step))
                self.note(f"edit: {step.value}")
        self._wait_until_repaired()
        self.until(stage.is_throttled, "the user's changes of throttles are repaired")
        stage.finish_reassignment()
        self.until(lambda: not stage.is_reassigning(), "the reassignment is done")
        self.until(
            lambda: not differences(stage.configs(), stage.expected) and not stage.ledger(), "all throttles are removed"
        )
        self.check_services()
        self.end_services()
        subject = Subject(stage.kafka_paths, stage.own, frozenset(stage.sessions), stage.begin, stage.expected)
        verdict = judge(stage.ensemble.transactions(stage.since, refused=True), subject)
        verdict = replace(verdict, violations=(*verdict.violations, *self.violations))
        seconds = time.monotonic() - self.start
        counts = self.kills, self.inside, self.cuts
        return Result(stage.plan, verdict, *counts, seconds, self.resources.most, tuple(self.notes))

    def _trap(self, fault: Fault) -> Trap:
        return TransactionTrap(fault.timing, self.stage.own.term)

    def _term_of(self, trap: Trap) -> int:
        assert isinstance(trap, TransactionTrap)
        return trap.fence

    def _break_server(self, fault: Fault) -> None:
        """Kill or freeze one server of the ensemble, unless another one is down already."""
        servers = self.stage.ensemble.servers
        modes = {server.mode(): server for server in servers if server.running}
        server = modes.get("leader" if fault.target is Target.ZOOKEEPER_LEADER else "follower")
        if server is None or any(not other.mode() for other in servers):
            return
        if fault.kind is FaultKind.KILL:
            server.kill()
            self.schedule_repair(fault.seconds, partial(Process.start, server))
        else:
            server.freeze()
            self.schedule_repair(fault.seconds, server.thaw)

    def _wait_until_repaired(self) -> None:
        """Wait until all repairs are done, and all servers and services answer again."""
        while self.repairs:
            self.sleep(POLL_SECONDS)
        for server in self.stage.ensemble.servers:
            self.until(partial(_serves, server), f"{server.connect} serves")
        for name in self.stage.processes:
            self.until(partial(self.stage.listens, name), f"{name} serves")


def _serves(server: ZooKeeperServer) -> bool:
    return bool(server.mode())
