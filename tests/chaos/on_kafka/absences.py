"""Executes a schedule with an absence of all brokers, records of other clients, and client quotas.

A cycle must run soon after the brokers' return, and no acknowledged edit of an operator may be lost. All other
guarantees are those of `run`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.core.errors import AutothrottleError
from autothrottle_client import AdminClient
from tests.chaos.checker import Violation
from tests.chaos.on_kafka.acknowledged import AcknowledgedEdits
from tests.chaos.on_kafka.other_client import OtherClient, foreign_records
from tests.chaos.on_kafka.run import KafkaResult, KafkaRun
from tests.chaos.on_kafka.schedule import ClientQuota, Request, TopicFault
from tests.chaos.on_kafka.stage import KafkaStage
from tests.chaos.on_kafka.state_topic import KafkaState
from tests.chaos.proxy import Trap
from tests.chaos.schedule import Fault, Target

RETURN_SECONDS = 10.0
"""Longest time from the return of the brokers until the end of a cycle."""
_QUOTA_SECONDS = 8.0
_SNAPSHOT_SECONDS = 2.0
"""Time for the leader to append a snapshot after a deletion."""
_SUPERVISOR_SECONDS = 5.0
"""How often the supervisor starts processes again that have ended because Kafka is away."""
_POLL_SECONDS = 0.2
_CALL_SECONDS = 10.0

NO_CYCLE = "no cycle soon after the return of the brokers"


class AbsenceRun(KafkaRun):
    """One run with an absence."""

    def __init__(self, stage: KafkaStage, operators: ThreadPoolExecutor) -> None:
        super().__init__(stage, operators)
        self._other_client = OtherClient(stage.kafka, stage.state.partition[0])
        self._edits = AcknowledgedEdits(stage.client)
        self._chance = random.Random(f"foreign records {stage.plan.seed}")

    def execute(self) -> KafkaResult:
        with self._edits:
            return super().execute()

    def _take_step(self, step: Fault | Enum) -> None:
        if isinstance(step, TopicFault):
            self._harm_topic(step)
        elif isinstance(step, ClientQuota):
            self._throttle_clients(step)
        else:
            super()._take_step(step)

    def _inject_during_request(self, fault: Fault, trap: Trap) -> None:
        if fault.request == Request.SNAPSHOT.name:
            self._harm_topic(TopicFault.DELETION)
        super()._inject_during_request(fault, trap)

    def _break_server(self, fault: Fault) -> None:
        if fault.target is Target.ALL_BROKERS:
            self._absence(fault)
        else:
            super()._break_server(fault)

    # The absence

    def _absence(self, fault: Fault) -> None:
        """Let all brokers be away, and wait for a cycle after their return."""
        brokers = self.stage.brokers
        self.until(lambda: not brokers.away() and self._has_planner(), "all brokers serve, and a planner is ready")
        # The others take part in the measured times; no process can claim while Kafka is away.
        self.failovers = [failover for failover in self.failovers if failover.term < self.stage.leader()[0]]
        brokers.end_all(fault.kind)
        end = time.monotonic() + fault.seconds
        while (seconds := end - time.monotonic()) > 0:
            self.sleep(min(seconds, _SUPERVISOR_SECONDS))
            self.all_listen()
        self.note("the brokers return")
        brokers.return_all(fault.kind)
        self.until(lambda: brokers.serves(self.stage.state.partition), "the brokers serve again")
        brokers.release_ports()
        seconds = self._until_cycle("a cycle after the return of the brokers")
        if seconds > RETURN_SECONDS:
            details = f"{seconds:.1f} s after an absence of {fault.seconds:.0f} s ({fault.kind.value})"
            self.violations.append(Violation(NO_CYCLE, 0, details))
        self.returns.append((fault.kind.value, fault.seconds, seconds))

    def _has_planner(self) -> bool:
        """Whether a planner, and the services that it needs, are neither frozen nor starting."""
        ready = {
            name: process.running and name not in self.frozen and self.stage.listens(name)
            for name, process in self.stage.processes.items()
        }
        planners = {name for name in ready if name.startswith(("run", "planner"))}
        return any(ready[name] for name in planners) and all(ready[name] for name in ready.keys() - planners)

    def _until_cycle(self, event: str) -> float:
        """Wait until a cycle is completed; return the seconds that it takes."""
        since = time.time()
        logs = {process.log: process.log.stat().st_size for process in self.stage.processes.values()}
        times: list[float] = []

        def is_completed() -> bool:
            self.sleep(_POLL_SECONDS)
            times.extend(completed for completed in completed_cycles(logs) if completed > since)
            return bool(times)

        self.until(is_completed, event)
        return min(times, default=time.time()) - since

    # Other clients

    def _harm_topic(self, fault: TopicFault) -> None:
        state = self.stage.state
        if not isinstance(state, KafkaState):
            return
        if not state.is_strict:
            self.until(lambda: state.is_strict, "the strict rules of the topic hold")
        if fault is TopicFault.COPIES:
            self.sleep(_SNAPSHOT_SECONDS)
        end = state.end
        if fault is not TopicFault.DELETION:
            records = foreign_records(fault, state.records(), end, self.stage.leader()[0], self._chance)
            self._await(_succeeds(lambda: self._other_client.append(records)), f"{len(records)} x {fault.value}")
        if fault in (TopicFault.DELETION, TopicFault.OLD_SNAPSHOT):
            self._await(_succeeds(lambda: self._other_client.delete_before(end)), TopicFault.DELETION.value)

    def _throttle_clients(self, quota: ClientQuota) -> None:
        self._await(_succeeds(lambda: self._other_client.set_quota(quota, True)), quota.value)
        self.sleep(_QUOTA_SECONDS)
        self._await(_succeeds(lambda: self._other_client.set_quota(quota, False)), "the quota is removed")
        seconds = self._until_cycle("a cycle after the end of the quota")
        self.note(f"it ended {seconds:.1f} s after the quota")

    # End

    def check_services(self) -> None:
        self._edits.close()
        for name, process in self.stage.processes.items():
            if name.startswith(("run", "admin")) and process.running:
                with AdminClient([self.stage.socket(name)], timedelta(seconds=_CALL_SECONDS)) as client:
                    self._await(partial(self._edits.check, client), f"{name} has the last override")
        self.violations += self._edits.violations
        self.note(f"{self._edits.acknowledged} acknowledged edits")
        super().check_services()


def completed_cycles(logs: Mapping[Path, int]) -> Iterator[float]:
    """Yield the times at which cycles ended without a failure, seconds since the epoch.

    Args:
        logs: log in JSON -> offset of the first line to read.
    """
    for log, offset in logs.items():
        with log.open("rb") as file:
            file.seek(offset)
            text = file.read().decode(errors="replace")
        has_failed = False
        for line in text.splitlines():
            if '"The cycle ' in line:
                has_failed = True
            elif '"Cycle ' in line and line.endswith("}"):
                if not has_failed:
                    yield datetime.fromisoformat(json.loads(line)["time"]).timestamp()
                has_failed = False


def _succeeds(call: Callable[[], None]) -> Callable[[], bool]:
    """Return a function that makes a call and returns whether Kafka has confirmed it."""

    def attempt() -> bool:
        try:
            call()
        except (kafka.errors.KafkaError, AutothrottleError):
            return False
        return True

    return attempt
