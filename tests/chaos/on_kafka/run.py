"""Executes one schedule on real brokers, and checks the result."""

from __future__ import annotations

import json
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path

from autothrottle.core.errors import AutothrottleError, Conflict, Missing, Unavailable
from tests.chaos.checker import Violation, differences
from tests.chaos.on_kafka.checker import ConfigRequest, Evidence, Judgement, judge
from tests.chaos.on_kafka.cluster import BROKERS
from tests.chaos.on_kafka.schedule import Call, Request
from tests.chaos.on_kafka.stage import (
    ALTER_CONFIGS,
    ALTER_REASSIGNMENTS,
    FETCH,
    NEW,
    OVERRIDE_RATE,
    PRODUCE,
    KafkaStage,
    SharedCluster,
    decoded_configs,
)
from tests.chaos.on_kafka.state_topic import texts_of_records
from tests.chaos.play import POLL_SECONDS, Play
from tests.chaos.proxy import Trap, kafka_api
from tests.chaos.resources import ResourceCount
from tests.chaos.schedule import Edit, Fault, FaultKind, Schedule, Target

_OUTAGE_SECONDS = 20.0
"""How long after a fault of a broker a gap between two cycles counts as its effect."""

LEASE_SHARE = 2 / 3
"""Share of the session time-out after which a leader without a heartbeat stops to write."""

API = "the API answers a call wrongly"
DISAGREED = "a process that reads the state topic differently"
_SIGNS_OF_DISAGREEMENT = (
    "was not that of the state topic",
    "disagree about the state topic",
    "lost its newest records",
    "is damaged",
)
"""In the log lines of a process. No fault of a run damages or removes a record that a process has read."""
MISSED = "the harness has missed records of the state"
LEDGER_LEFT = "a ledger entry after the end of the reassignment"
WRONG_END_STATE = "the final configs are not the initial ones plus the operators' changes"


@dataclass(frozen=True, slots=True)
class KafkaResult:
    """The result of one seed."""

    plan: Schedule
    judgement: Judgement
    violations: tuple[Violation, ...]
    kills: int
    """Number of SIGKILLs and SIGSTOPs of services."""
    kills_inside: int
    """The part of `kills` that hit the leader while one of its requests was in flight."""
    cuts: int
    """Connections that were cut between a request and its response."""
    broker_faults: int
    failovers: tuple[tuple[str, float, float], ...]
    """(signal, seconds until the next claim, seconds until the end of the next leader's first cycle)."""
    outages: tuple[tuple[str, float], ...]
    """(fault of the broker that led the state partition, longest time between the ends of two cycles after it)."""
    returns: tuple[tuple[str, float, float], ...]
    """(fault of all brokers, seconds without them, seconds from their return to the end of a cycle)."""
    seconds: float
    most: ResourceCount
    """The largest numbers of any process at any time."""
    notes: tuple[str, ...] = ()
    """The events in order, each with the seconds since the start."""


def run(
    cluster: SharedCluster,
    plan: Schedule,
    directory: Path,
    logs: Path | None = None,
    play: Callable[[KafkaStage, ThreadPoolExecutor], KafkaRun] | None = None,
) -> KafkaResult:
    """Execute one schedule and return its result.

    Args:
        cluster: serves many runs, one after the other.
        plan: the schedule of the seed.
        directory: an empty directory for sockets and logs; its path must be short.
        logs: directory that keeps the services' logs of a run with violations; None: they are removed.
        play: class that executes the schedule; None: `KafkaRun`.
    """
    is_broken = True
    try:
        with KafkaStage(cluster, plan, directory) as stage, ThreadPoolExecutor(4, "operator") as operators:
            result = (play or KafkaRun)(stage, operators).execute()
            is_broken = bool(result.violations)
            return result
    finally:
        if logs is not None and is_broken:
            saved_logs = logs / str(plan.seed)
            saved_logs.mkdir(parents=True, exist_ok=True)
            for log in directory.glob("*.log"):
                shutil.copy(log, saved_logs)


@dataclass(slots=True)
class Failover:
    """The leader ended by a signal."""

    signal: str
    at: float
    """Seconds since the epoch."""
    term: int


class KafkaRun(Play):
    """One run with faults of one broker at a time."""

    trap_seconds = 4.0

    def __init__(self, stage: KafkaStage, operators: ThreadPoolExecutor) -> None:
        super().__init__(stage)
        self.stage, self._operators = stage, operators
        self._stops: dict[str, list[tuple[float, float]]] = {}
        """Process -> (time of a SIGSTOP, time of its SIGCONT), seconds since the epoch."""
        self.frozen: dict[str, float] = {}
        """Process -> time of the SIGSTOP that is in effect."""
        self.failovers: list[Failover] = []
        """Those that the result measures."""
        self._broker_faults = 0
        self._outages: list[tuple[str, float]] = []
        """(fault of the broker that led the state partition, seconds since the epoch)."""
        self.returns: list[tuple[str, float, float]] = []
        """As in `KafkaResult`."""
        self._submissions: list[Future[bool]] = []
        """Reassignments that operators submit in the background."""

    def execute(self) -> KafkaResult:
        stage = self.stage
        for name in stage.processes:
            stage.start(name)
        self.until(self.all_listen, "all services listen")
        self.until(lambda: stage.leader()[0] > 0, "a planner leads")
        self._await(_repeated(stage.submit_through_api), "the reassignment is submitted")
        stage.submit_through_kafka()
        self.until(stage.is_throttled, "the reassignment is throttled")
        self.resources.begin_faults()
        for step in stage.plan.steps:
            self._take_step(step)
        self._wait_until_repaired()
        self.until(lambda: all(submission.done() for submission in self._submissions), "all submissions have ended")
        # Between the removal of an entry and its repair, its partition may be copied at the speed of the link.
        self.until(
            lambda: stage.is_throttled() or not stage.is_copying(), "the operators' changes of throttles are repaired"
        )
        stage.accept_unrepaired_rate()
        self.until(self._is_consistent, "the ledger has no intent, and agrees with Kafka")
        stage.finish_reassignment()
        self.until(lambda: not stage.kafka.reassigning(), "the reassignment is done")
        self.until(self._is_clean, "all throttles are removed")
        if stage.state.history().current_ledger():
            self.sleep(self.trap_seconds)
            self.until(self._is_clean, "late writes are restored")
        self.check_services()
        self.end_services()
        self._check_end()
        return self._result()

    def _take_step(self, step: Fault | Enum) -> None:
        if isinstance(step, Fault):
            self.inject(step)
        elif isinstance(step, Edit):
            self._await(partial(self._edit, step), f"edit: {step.value}")
        else:
            self._call(Call(step))

    def _result(self) -> KafkaResult:
        stage, history = self.stage, self.stage.state.history()
        requests = [
            ConfigRequest(sent.at, sent.process, decoded_configs(sent.frame))
            for sent in stage.sent
            if kafka_api(sent.frame) == ALTER_CONFIGS
        ]
        lease = stage.plan.session_seconds * LEASE_SHARE
        planners_write = not stage.plan.separate_services
        judgement = judge(
            Evidence(history, requests, stage.config_records(), stage.edits, self._stops, planners_write, lease)
        )
        violations = (*self.violations, *judgement.violations)
        failovers = tuple(filter(None, (self._measure(failover) for failover in self.failovers)))
        counts = self.kills, self.inside, self.cuts, self._broker_faults
        outages = tuple((kind, self._longest_gap(at)) for kind, at in self._outages)
        times, seconds = (failovers, outages, tuple(self.returns)), time.monotonic() - self.start
        notes = tuple(self.notes)
        return KafkaResult(stage.plan, judgement, violations, *counts, *times, seconds, self.resources.most, notes)

    # States

    def all_listen(self) -> bool:
        """Whether all services listen; start those again that ended because Kafka did not answer at their start."""
        stage = self.stage
        for name, process in stage.processes.items():
            if not process.running and process.returncode == 1 and not stage.listens(name):
                self.note(f"{name} ended at its start")
                stage.start(name)
        return all(process.running and stage.listens(name) for name, process in stage.processes.items())

    def _is_consistent(self) -> bool:
        """Whether each rate in Kafka is the one in the ledger, without an intent."""
        ledger = self.stage.state.history().current_ledger()
        configs = self.stage.configs()
        return bool(ledger or not self.stage.is_copying()) and all(
            record.intent is None and record.written == configs.get(entity, {}).get(key)
            for entity, entry in ledger.items()
            for key, record in entry.keys.items()
            if entity.startswith("brokers/")
        )

    def _is_clean(self) -> bool:
        return not differences(self.stage.configs(), self.stage.expected) and not self._ledger_left()

    def _ledger_left(self) -> list[str]:
        """Entities with an entry, apart from released ones that only wait for late writes."""
        ledger = self.stage.state.history().current_ledger()
        return sorted(
            entity for entity, entry in ledger.items() if not all(key.is_released for key in entry.keys.values())
        )

    def _check_end(self) -> None:
        self.violations += [
            Violation(WRONG_END_STATE, 0, line) for line in differences(self.stage.configs(), self.stage.expected)
        ]
        self.violations += [Violation(LEDGER_LEFT, 0, entity) for entity in self._ledger_left()]
        for name, process in self.stage.processes.items():
            log = process.log.read_text(errors="replace")
            self.violations += [
                Violation(DISAGREED, 0, f"{name} logged {sign!r}") for sign in _SIGNS_OF_DISAGREEMENT if sign in log
            ]
        self.violations += [Violation(MISSED, 0, sentence) for sentence in self.stage.state.missed]

    # Operators

    def _await(self, call: Callable[[], bool], event: str) -> None:
        """Repeat a call in the background until it returns True; repairs go on meanwhile."""
        pending: list[Future[bool]] = []

        def is_done() -> bool:
            if not pending:
                pending.append(self._operators.submit(call))
            if not pending[0].done():
                return False
            return pending.pop().result()

        self.until(is_done, event)

    def _edit(self, edit: Edit) -> bool:
        with suppress(AutothrottleError):
            self.stage.edit(edit)
            return True
        return False

    def _call(self, call: Call) -> None:
        client, stage = self.stage.client, self.stage
        if call is Call.PAUSE:
            self._await(_repeated(lambda: client.pause(reason="chaos")), "paused")
            self.sleep(1.0)
            self._await(_repeated(client.resume), "resumed")
        elif call is Call.SUBMIT:
            self._await(_repeated(lambda: client.submit_reassignment(stage.late_targets(0, 1))), "submitted")
        else:
            self._await(_repeated(lambda: client.set_override(OVERRIDE_RATE, NEW)), "override set")
            rates = {OVERRIDE_RATE}
            if call is Call.RIVALS:
                rates |= self._rival_overrides()
            self.until(lambda: self._has_rate(rates), f"the override of {sorted(rates)} bytes/s is in Kafka")
            self._await(_repeated(lambda: client.remove_override(NEW), done=Missing), "override removed")

    def _has_rate(self, rates: set[int]) -> bool:
        texts = {str(rate) for rate in rates}
        return self.stage.config(f"brokers/{NEW}").get("follower.replication.throttled.rate") in texts

    def _rival_overrides(self) -> set[int]:
        """Replace the override twice at once with one etag; return the possible rates. At most one call succeeds."""
        client = self.stage.client
        etags: list[str] = []
        self._await(_repeated(lambda: etags.append(client.get_override(NEW).etag)), "override read")
        rivals = {
            rate: self._operators.submit(client.set_override, rate, NEW, etag=etags[-1])
            for rate in (OVERRIDE_RATE + 1, OVERRIDE_RATE + 2)
        }
        while not all(future.done() for future in rivals.values()):
            self.sleep(POLL_SECONDS)
        accepted = {rate for rate, future in rivals.items() if future.exception() is None}
        unknown = {rate for rate, future in rivals.items() if isinstance(future.exception(), Unavailable)}
        for future in rivals.values():
            if not isinstance(future.exception(), Conflict | Unavailable | None):
                self.violations.append(Violation(API, 0, f"a rival override: {future.exception()!r}"))
        if len(accepted) > 1:
            self.violations.append(Violation(API, 0, "two overrides with the same etag were accepted"))
        self.note(f"accepted {sorted(accepted)}, unknown {sorted(unknown)}")
        return accepted or {OVERRIDE_RATE} | unknown

    # Faults

    def _trap(self, fault: Fault) -> Trap:
        return Trap(fault.timing, _matcher(Request[fault.request]))

    def _inject_during_request(self, fault: Fault, trap: Trap) -> None:
        if fault.request != Request.REASSIGN.name:
            super()._inject_during_request(fault, trap)
            return
        targets = self.stage.late_targets(2, 3)
        submission = self._operators.submit(_repeated(lambda: self.stage.client.submit_reassignment(targets)))
        super()._inject_during_request(fault, trap)
        self._submissions.append(submission)

    def _term_of(self, trap: Trap) -> int:
        return self.stage.leader()[0]

    def _break_process(self, fault: Fault) -> None:
        term, leader = self.stage.leader()
        is_leaders = self._process_name(fault.target) == leader and self.stage.processes[leader].running
        at = time.time()
        name = self._process_name(fault.target)
        super()._break_process(fault)
        if fault.kind is FaultKind.STOP:
            self.frozen[name] = at
        if is_leaders and fault.kind in (FaultKind.KILL, FaultKind.TERMINATE):
            self.failovers.append(Failover(fault.kind.value, at, term))

    def _thaw(self, name: str) -> None:
        if name in self.frozen:
            self._stops.setdefault(name, []).append((self.frozen.pop(name), time.time()))
        super()._thaw(name)

    def _break_server(self, fault: Fault) -> None:
        """Break one broker, unless another one is away."""
        brokers = self.stage.brokers
        leader = brokers.leader(self.stage.state.partition)
        others = [broker_id for broker_id in BROKERS if broker_id != leader]
        broker_id = leader if fault.target is Target.STATE_LEADER and leader > 0 else others[self.stage.plan.seed % 2]
        if brokers.away():
            self.note("another broker is away")
            return
        self._broker_faults += 1
        self.note(f"broker {broker_id}; the state partition is led by {leader}")
        broker = brokers.kafka.brokers[broker_id]
        if broker_id == leader:
            self._outages.append((fault.kind.value, time.time()))
        if fault.kind is FaultKind.KILL:
            broker.kill()
            self.schedule_repair(fault.seconds, partial(self._restart, broker_id))
        elif fault.kind is FaultKind.STOP:
            broker.freeze()
            self.schedule_repair(fault.seconds, broker.thaw)
        elif fault.kind is FaultKind.CUT:
            brokers.hold_clients(broker_id)
            self.schedule_repair(fault.seconds, partial(brokers.resume_clients, broker_id))
        else:
            brokers.peers[broker_id].hold()
            self.schedule_repair(fault.seconds, brokers.peers[broker_id].resume)

    def _restart(self, broker_id: int) -> None:
        """Restart a killed broker once its session has ended."""
        brokers = self.stage.brokers
        if broker_id in brokers.kafka.metadata.brokers():
            self.schedule_repair(POLL_SECONDS, partial(self._restart, broker_id))
        else:
            brokers.kafka.brokers[broker_id].start()

    # End

    def _wait_until_repaired(self) -> None:
        """Wait until all repairs are done, and all brokers and services answer again."""
        while self.repairs:
            self.sleep(POLL_SECONDS)
        self.until(lambda: not self.stage.brokers.away(), "all brokers are in the cluster")
        self.until(self.all_listen, "all services listen again")

    def _measure(self, failover: Failover) -> tuple[str, float, float] | None:
        """Return the seconds from the signal to the next claim, and to the end of its first cycle."""
        claims = self.stage.state.history().claims
        claim = next((claim for claim in claims if claim.term > failover.term), None)
        if claim is None:
            return None
        log = self.stage.processes[claim.process].log.read_text(errors="replace")
        cycle = next((at for at in _cycles(log) if at > claim.at), None)
        return None if cycle is None else (failover.signal, claim.at - failover.at, cycle - failover.at)

    def _longest_gap(self, at: float) -> float:
        """Return the longest time between the ends of two cycles, from the last one before a time on."""
        logs = [process.log.read_text(errors="replace") for process in self.stage.processes.values()]
        ends = sorted(end for log in logs for end in _cycles(log) if end < at + _OUTAGE_SECONDS)
        first = max(0, bisect_right(ends, at) - 1)
        return max((later - end for end, later in pairwise(ends[first:])), default=0.0)


def _cycles(log: str) -> list[float]:
    """Return the times at which cycles ended, seconds since the epoch."""
    lines = (json.loads(line) for line in log.splitlines() if '"Cycle ' in line and line.endswith("}"))
    return [datetime.fromisoformat(entry["time"]).timestamp() for entry in lines]


def _repeated(call: Callable[[], object], done: type[AutothrottleError] | None = None) -> Callable[[], bool]:
    """Return a function that makes a call and returns whether it succeeded; `done` is success, too."""

    def attempt() -> bool:
        try:
            call()
        except AutothrottleError as error:
            return done is not None and isinstance(error, done)
        return True

    return attempt


def _matcher(request: Request) -> Callable[[bytes], bool]:
    api = {Request.CONFIG: ALTER_CONFIGS, Request.REASSIGN: ALTER_REASSIGNMENTS, Request.FETCH: FETCH}.get(
        request, PRODUCE
    )
    texts = {Request.LEDGER: b"/ledger/", Request.HEARTBEAT: b"/election/", Request.SNAPSHOT: b'"rows"'}
    text = texts.get(request, b"")
    return lambda frame: kafka_api(frame) == api and text in texts_of_records(frame)
