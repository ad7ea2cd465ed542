"""Differential test of the planner: runs random scripts on the in-memory twins and prints one digest for each seed.

A script is a sequence of reassignments, faults, operators' requests, users' edits and failovers, drawn with its seed. A
digest covers all writes, answers, requested cycles, log lines, events, metrics and decision records. Two trees whose
planners behave alike print the same digests:

    python -m tests.quality.planner_scripts --seeds 0-1999 > build/planner_before.txt
    python -m tests.quality.planner_scripts --seeds 0-1999 --compare build/planner_before.txt
    python -m tests.quality.planner_scripts --seeds 7 --dump

The script also runs in an earlier tree, where the control loop was in `core/control`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import itertools
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from autothrottle.adapters.memory import MemoryCluster, MemoryDecisions, MemoryElection
from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    REPLICAS_KEYS,
    ClusterSettings,
    ConfigResource,
    FetchSettings,
    format_replicas,
)
from autothrottle.core.cluster.snapshot import NO_LEADER, Problem, TopicPartition
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.exported_metrics import ExportedMetric
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, TemporaryQuota
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.planner.loop import Planner, Trigger
from autothrottle.ports.kafka import Term
from autothrottle.ports.telemetry import Event
from tests import builders
from tests.builders import NOON, mb
from tests.unit.autothrottle.planner.bench import BROKERS, Bench


def _moved(name: str, *modules: str) -> Any:
    """Return a name of the first of these modules of core that exists."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"autothrottle.core.{module}"), name)
        except ModuleNotFoundError:
            continue
    raise ImportError(f"none of {modules} exists")


Pause = _moved("Pause", "records", "operators.pause", "control.pause")
PauseMode = _moved("PauseMode", "records", "operators.pause", "control.pause")
CatchUp = _moved("CatchUp", "records", "operators.catch_up", "control.catch_up")
StoredMap = _moved(
    "StoredMap",
    "operators.sources",
    "cluster.stored_map",
    "cycle.stored_map",
    "operators.stored_map",
    "control.stored_map",
)
parse_schedule = _moved("parse_schedule", "operators.schedule", "operators.sources", "control.schedule")

TOPICS = ("t1", "t2", "t3")
PARTITIONS = 4
CLIENTS = ("backfill-1", "backfill-2", "customer", "batch-7")


def plain(value: object) -> Any:
    """Return a value without the names of its types and fields, so that a rename changes no digest."""
    if isinstance(value, ExportedMetric):  # in an earlier tree, unit and kind are fields
        return value.name, value.help, value.labels, value.unit, getattr(value.kind, "value", value.kind)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return sorted(((plain(k), plain(v)) for k, v in value.items()), key=repr)
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, Exception):
        return type(value).__name__, str(value)
    return value


def _put(entries: Any, old_name: str, key: object, entry: object) -> None:
    """Store an entry in a map of the operators; an earlier tree has a method of its own for each map.

    Equal entries are not stored again: the twins of an earlier tree would announce them, ZooKeeper never did.
    """
    reads = ("read", "read_catch_ups", "read_temporary_quotas", "read_rules")
    with suppress(AutothrottleError):
        if next(getattr(entries, name) for name in reads if hasattr(entries, name))().get(key) == entry:
            return
    _ = entries.put(key, entry) if hasattr(entries, "put") else getattr(entries, old_name)(entry)


def _remove(entries: Any, old_name: str, key: object) -> None:
    _ = entries.remove(key) if hasattr(entries, "remove") else getattr(entries, old_name)(key)


class Transcript(logging.Handler):
    """All that a script observes of its planners, as lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.requests: list[str] = []
        """Requested cycles and ramp steps in their order; where they stand among the log lines has no effect."""
        self.background: list[str] = []
        """Log lines of other threads: their place among the other lines is a matter of chance."""

    def add(self, kind: str, *values: object) -> None:
        line = f"{kind} {' '.join(repr(plain(value)) for value in values)}"
        if kind != "request":
            self.lines.append(line)
        if kind in ("request", "action", "cycle"):
            self.requests.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        line = f"log {record.levelname} {record.getMessage()}"
        # Not the record's thread: `configure_logs` of an earlier test leaves it out.
        is_main = threading.current_thread() is threading.main_thread()
        (self.lines if is_main else self.background).append(line)

    def digest(self) -> str:
        text = "\n".join([*self.lines, *self.requests, *sorted(self.background)])
        # The twin of earlier trees refused an edit in other words than the adapters do.
        text = re.sub(r", but was (.+?) when the change was decided", r" instead of \1; another party changed it", text)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class ScriptedCluster(MemoryCluster):
    """A cluster in which something may happen between a planner's reading and its writes."""

    before_write: Callable[[], None] | None = None
    settings_reads = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.no_cycle = threading.Event()
        """Cleared during a cycle: settings are read after it, so that their requests follow those of the cycle."""
        self.no_cycle.set()

    def apply(self, term: Term, changes: Any, timeout: timedelta) -> Any:
        action, self.before_write = self.before_write, None
        if action is not None:
            action()
        return super().apply(term, changes, timeout)

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        self.settings_reads += 1
        self.no_cycle.wait(60)
        return super().fetch_settings(broker_ids, topics, timeout)


class Sink:
    """Events in the order of their posts."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self.events.append(event)


class Candidate:
    """One planner with its election, and a caller that may wait for it."""

    def __init__(self, script: Script, name: str) -> None:
        self.script, self.name = script, name
        bench = script.bench
        self.election = MemoryElection(bench.electorate)
        self.sink, self.decisions = Sink(), MemoryDecisions()
        dependencies = replace(bench.dependencies(self.election), events=self.sink, decisions=self.decisions)
        dependencies = script.with_odd_stores(dependencies)
        self.planner = Planner(
            dependencies, bench.settings, bench.now, lambda: bench.seconds, random.Random(script.seed).random
        )
        self._record_requests()
        self.caller: threading.Thread | None = None
        self.answer: object = None

    def _record_requests(self) -> None:
        triggers, reader = self.planner._triggers, self.planner._reader
        request, step_in, on_read = triggers.request, triggers.step_in, reader._on_read

        def recorded_request(reason: str, after: timedelta = timedelta(0), urgent: bool = False, **rest: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                self.script.transcript.add("request", self.name, reason, after, urgent)
            request(reason, after, urgent, **rest)

        def recorded_step(delay: timedelta | None) -> None:
            self.script.transcript.add("request", self.name, "ramp step", delay)
            step_in(delay)

        def counted_read() -> None:
            on_read()
            self.script.settings_answers += 1

        vars(triggers).update(request=recorded_request, step_in=recorded_step)
        reader._on_read = counted_read

    def wait_for_settings(self) -> None:
        """Wait until the settings that the last cycle asked for are there, so that the next cycle always has them."""
        self.script.cluster.no_cycle.set()
        reader = self.planner._reader
        while reader.reading.complete_for is None or self.script.settings_answers < self.script.cluster.settings_reads:
            time.sleep(0.0005)

    def call(self, action: Callable[[], object]) -> None:
        """Let a caller wait for an action in its own thread, until it waits for a cycle or has its answer."""
        if self.caller is not None:
            return

        def run() -> None:
            try:
                self.answer = action()
            except AutothrottleError as error:
                self.answer = error

        self.answer = None
        self.caller = threading.Thread(target=run, daemon=True)
        self.caller.start()
        while self.caller.is_alive() and not self.is_waiting:
            time.sleep(0.0005)
        # The caller requests a cycle directly after it has proposed.
        if self.caller.is_alive():
            time.sleep(0.002)
        self.take_answer()

    @property
    def is_waiting(self) -> bool:
        """Whether a caller waits for a cycle."""
        submissions: Any = self.planner._submissions
        name = "request" if hasattr(submissions, "request") else "wanted"  # the second one in an earlier tree
        return getattr(submissions, name) is not None

    def take_answer(self) -> None:
        if self.caller is not None and (not self.caller.is_alive() or not self.is_waiting):
            self.caller.join(60)
            self.caller = None
            self.script.transcript.add("answer", self.name, self.answer)


class Script:
    """One cluster with its planners, and the actions that a script draws from."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        chance = self.random.random
        policy = HeadroomPolicy() if chance() < 0.4 else AdaptivePolicy()
        self.transcript = Transcript()
        schedule = parse_schedule("11:50-12:03=50,12:10-12:20=95" if chance() < 0.2 else "")
        self.bench = Bench(
            limits=builders.limits(
                failure_threshold=self.random.choice((1, 2)),
                keep_throttles=chance() < 0.3,
                pause_over_capacity=chance() < 0.2,
            ),
            cleanup_after=self.random.choice((1, 2)),
            cleanup_foreign=chance() < 0.5,
            shadow=chance() < 0.08,
            schedule=schedule,
            finish_by=NOON + timedelta(minutes=self.random.choice((5, 60))) if chance() < 0.2 else None,
            policy=policy,
        )
        self.bench.planner.stop()
        self.cluster = ScriptedCluster(self.bench.electorate, BROKERS)
        self.bench.cluster = self.cluster
        self.cluster.group_clients = set(CLIENTS[:3])
        if chance() < 0.7:
            self.cluster.tell_progress(self.bench.now)
            if chance() < 0.7:
                self.cluster.tell_growth()
        if chance() < 0.1:
            self.cluster.plug_ins = {1001: "org.example.Quotas"}
        if chance() < 0.5:
            self.cluster.settings = ClusterSettings(
                {b: FetchSettings(self.random.choice((10_485_760, 104_857_600))) for b in BROKERS},
                {topic: self.random.choice((1, 2)) for topic in TOPICS},
            )
        self.odd_entries: dict[str, str] = {}
        self.written = self.settings_answers = 0
        for topic in TOPICS:
            self._add(topic)
        self.candidates: list[Candidate] = []
        self.elect()

    def with_odd_stores(self, dependencies: Any) -> Any:
        """Let the stores of operators report unreadable entries while `odd_entries` has some."""
        script = self

        class Odd:
            def __init__(self, store: Any, read: str) -> None:
                self._store, self._read = store, read

            def __getattr__(self, name: str) -> Any:
                target = getattr(self._store, name)
                if name not in (self._read, "read"):  # the first is its name in an earlier tree
                    return target

                def read() -> Any:
                    entries = target()
                    problem = script.odd_entries.get(self._read)
                    if problem is None:
                        return entries
                    rest = {key: value for key, value in entries.items() if str(getattr(key, "path", key)) != problem}
                    return StoredMap(rest, {problem: f"{self._read}/{problem} is not JSON; remove it"})

                return read

        return replace(
            dependencies,
            catch_ups=Odd(dependencies.catch_ups, "read_catch_ups"),
            temporary_quotas=Odd(dependencies.temporary_quotas, "read_temporary_quotas"),
            yield_rules=Odd(dependencies.yield_rules, "read_rules"),
        )

    @property
    def leader(self) -> Candidate:
        return self.candidates[-1]

    # Planners.

    def elect(self) -> None:
        """Let a new planner, or the one before, lead a new term."""
        again = len(self.candidates) > 1 and self.random.random() < 0.5
        candidate = self.candidates.pop(0) if again else Candidate(self, f"planner-{len(self.candidates) + 1}")
        for deposed in self.candidates[:-1]:
            self._stop(deposed)
        self.candidates = [*self.candidates[-1:], candidate]
        self._begin_term(candidate)

    def _begin_term(self, candidate: Candidate) -> None:
        for deposed in self.candidates:
            deposed.election.term = None
        candidate.election.term = Term(self.bench.electorate.begin_term(candidate.name))

    def run(self, candidate: Candidate, trigger: Trigger, term: Term) -> None:
        """Run a cycle or a ramp step, as the planner's own thread does."""
        self.cluster.no_cycle.clear()
        if trigger.step:
            candidate.planner.run_step(term)
        else:
            record = candidate.planner.run_cycle(term, trigger)
            self.transcript.add("cycle", candidate.name, record)
        candidate.take_answer()  # before the settings: both request a cycle
        candidate.wait_for_settings()
        self._note(candidate)

    def _note(self, candidate: Candidate) -> None:
        transcript = self.transcript
        for change in self.cluster.writes[self.written :]:
            transcript.add("write", change)
        self.written = len(self.cluster.writes)
        for record in (*candidate.decisions.decisions, *candidate.decisions.reassignments):
            transcript.add("decision", record)
        candidate.decisions.decisions, candidate.decisions.reassignments = [], []
        samples = [sample for sample in candidate.planner.samples() if "queue" not in repr(sample)]
        transcript.add("metrics", hashlib.sha256(repr(plain(samples)).encode()).hexdigest()[:12])
        transcript.add("failing", candidate.planner.failing(), candidate.planner.unreadable())

    def let_time_pass(self) -> None:
        self.bench.seconds += self.random.choice((0.3, 1, 1, 2, 5, 12, 30, 61))
        candidate = self.leader
        for _ in range(4):
            trigger = candidate.planner._triggers.poll()
            if trigger is None:
                return
            term = candidate.election.term
            assert term is not None
            self.run(candidate, trigger, term)

    def deposed_planner_resumes(self) -> None:
        if len(self.candidates) > 1:
            deposed = self.candidates[0]
            term = Term(max(1, self.bench.electorate.fence - 1))
            self.run(deposed, Trigger("interval", scheduled=True), term)

    def _stop(self, candidate: Candidate) -> None:
        candidate.planner.stop()
        candidate.take_answer()
        for event in candidate.sink.events:
            self.transcript.add("event", candidate.name, event)

    # The cluster.

    def _add(self, topic: str) -> None:
        count = self.random.choice((2, 3))
        rows = {n: self.random.sample(BROKERS, count) for n in range(PARTITIONS)}
        self.cluster.add_topic(topic, rows)
        for partition, replicas in rows.items():
            for broker_id in replicas:
                self.cluster.grow(broker_id, topic, partition, mb(4000))

    def _row(self, moves: bool | None = None) -> TopicPartition | None:
        rows = [
            (topic, n)
            for topic, partitions in self.cluster.topics.items()
            for n, partition in partitions.items()
            if moves is None or bool(partition.moves) is moves
        ]
        return self.random.choice(rows) if rows else None

    def start(self) -> None:
        topic = self.random.choice(TOPICS)
        numbers = self.random.sample(range(PARTITIONS), self.random.choice((1, 1, 2, 4)))
        self.cluster.submit_reassignment(topic, {n: self._targets() for n in numbers})

    def _targets(self) -> list[int]:
        return self.random.sample(BROKERS, self.random.choice((1, 2, 3)))

    def join_isr(self) -> None:
        if row := self._row():
            assignment = self.cluster.topics[row[0]][row[1]]
            if pending := [b for b in assignment.replicas if b not in assignment.isr]:
                self.cluster.join_isr(*row, self.random.choice(pending))

    def leave_isr(self) -> None:
        if row := self._row():
            assignment = self.cluster.topics[row[0]][row[1]]
            if followers := [b for b in assignment.isr if b != assignment.leader]:
                self.cluster.leave_isr(*row, self.random.choice(followers))

    def move_leader(self) -> None:
        if row := self._row():
            self.cluster.move_leader(*row, self.random.choice([*self.cluster.topics[row[0]][row[1]].isr, NO_LEADER]))

    def end_partition(self) -> None:
        if row := self._row(moves=True):
            self.random.choice((self.cluster.finish, self.cluster.finish, self.cluster.cancel))(*row)

    def end_everything(self) -> None:
        for topic in TOPICS:
            self.cluster.finish(topic)

    def recreate_topic(self) -> None:
        topic = self.random.choice(TOPICS)
        self.cluster.delete_topic(topic)
        self._add(topic)

    def copy_bytes(self) -> None:
        for topic, partitions in self.cluster.topics.items():
            for n, partition in partitions.items():
                for broker_id in partition.replicas:
                    size = 0 if broker_id in partition.isr and self.random.random() < 0.7 else mb(200)
                    if broker_id in self.cluster.brokers:
                        self.cluster.grow(broker_id, topic, n, size)

    def stop_broker(self) -> None:
        if len(self.cluster.brokers) < 3:
            return
        broker_id = self.random.choice(sorted(self.cluster.brokers))
        self.cluster.brokers.discard(broker_id)
        self.cluster.log_bytes.pop(broker_id, None)
        for topic, partitions in self.cluster.topics.items():
            for n, partition in partitions.items():
                if broker_id in partition.isr and len(partition.isr) > 1:
                    self.cluster.leave_isr(topic, n, broker_id)
                    if partition.leader == broker_id:
                        self.cluster.move_leader(topic, n, next(b for b in partition.isr if b != broker_id))

    def start_brokers(self) -> None:
        for broker_id in sorted(set(BROKERS) - self.cluster.brokers):
            self.cluster.brokers.add(broker_id)
            self.cluster.version += 1
            for topic, partitions in self.cluster.topics.items():
                for n, partition in partitions.items():
                    if broker_id in partition.replicas:
                        self.cluster.grow(broker_id, topic, n, mb(1000))

    # Loads.

    def set_loads(self) -> None:
        end = self.bench.now() - timedelta(seconds=self.random.choice((0, 5, 100)))
        names = self.random.sample(BROKERS, self.random.choice((1, 4)))
        for broker_id in names:
            outbound, inbound = (mb(self.random.choice((0, 5, 20, 60, 99, 140))) for _ in range(2))
            self.bench.metrics.set_loads(builders.load(broker_id, outbound, inbound, end=end))

    def lose_load(self) -> None:
        self.bench.metrics.lose(self.random.choice(BROKERS), "no series")

    # Operators.

    def set_override(self) -> None:
        broker_id = self.random.choice((None, *BROKERS))
        expiry = self.bench.now() + timedelta(seconds=90) if self.random.random() < 0.3 else None
        rate = mb(self.random.choice((1, 15, 40, 200)))
        autoremove, overrides = self.random.random() < 0.4, self.bench.overrides
        override = StoredOverride(rate, autoremove, expire_time=expiry)
        takes_override = "override" in inspect.signature(overrides.set_override).parameters
        values = (override,) if takes_override else (rate, autoremove, expiry)  # as an earlier tree takes it
        self._attempt(lambda: overrides.set_override(broker_id, *values))

    def remove_override(self) -> None:
        broker_id = self.random.choice((None, *BROKERS))
        overrides = self.bench.overrides
        if self.random.random() < 0.3:
            self._attempt(lambda: overrides.mark_for_removal(broker_id))
        else:
            self._attempt(lambda: overrides.remove_override(broker_id))

    def pause(self) -> None:
        mode = self.random.choice(list(PauseMode))
        self._attempt(lambda: self.bench.pauses.set_pause(Pause(mode, "anna", NOON, "maintenance")))

    def resume(self) -> None:
        self._attempt(self.bench.pauses.remove_pause)

    def start_catch_up(self) -> None:
        broker_id = self.random.choice(BROKERS)
        self._attempt(lambda: _put(self.bench.catch_ups, "start_catch_up", broker_id, CatchUp(broker_id, "anna", NOON)))

    def remove_catch_up(self) -> None:
        self._attempt(lambda: _remove(self.bench.catch_ups, "remove_catch_up", self.random.choice(BROKERS)))

    def set_quota(self) -> None:
        entity = self.random.choice(
            (ClientQuotaEntity("alice"), *(ClientQuotaEntity(DEFAULT, client) for client in CLIENTS))
        )
        expiry = self.bench.now() + timedelta(seconds=70) if self.random.random() < 0.5 else None
        key = self.random.choice((QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE))
        quota = TemporaryQuota(entity, {key: mb(self.random.choice((1, 5)))}, "anna", NOON, expiry, expiry is None)
        self._attempt(lambda: _put(self.bench.temporary_quotas, "set_temporary_quota", entity, quota))

    def remove_quota(self) -> None:
        entity = ClientQuotaEntity(DEFAULT, self.random.choice(CLIENTS))
        self._attempt(lambda: _remove(self.bench.temporary_quotas, "remove_temporary_quota", entity))

    def set_rule(self) -> None:
        name = self.random.choice(("backfill", "batch"))
        share = self.random.random() < 0.3
        keys = frozenset({self.random.choice((QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE))})
        unit = "_bytes_per_second" if "floor_bytes_per_second" in YieldRule.__dataclass_fields__ else ""
        limits: dict[str, Any] = {f"floor{unit}": mb(2), f"at_most{unit}": None if share else mb(20)}
        rule = YieldRule(
            name=name,
            user=None,
            client_id=f"{name}-*",
            at_most_share=0.2 if share else None,
            keys=keys,
            author="anna",
            time=NOON,
            **limits,
        )
        self._attempt(lambda: _put(self.bench.yield_rules, "set_rule", name, rule))

    def remove_rule(self) -> None:
        self._attempt(lambda: _remove(self.bench.yield_rules, "remove_rule", self.random.choice(("backfill", "batch"))))

    def submit(self) -> None:
        topic = self.random.choice((*TOPICS, *TOPICS, "t9"))
        numbers = self.random.sample(range(PARTITIONS), self.random.choice((1, 2)))
        targets = {(topic, n): tuple(self._targets()) for n in numbers}
        is_dry_run = self.random.random() < 0.1
        leader = self.leader
        leader.call(lambda: leader.planner.submit_reassignment(targets, timedelta(hours=9), is_dry_run))

    def withdraw(self) -> None:
        self.leader.planner._submissions.fail(Unavailable("the caller has gone"))
        self.leader.take_answer()

    def cancel_through_the_planner(self) -> None:
        if (row := self._row(moves=True)) and self.leader.caller is None:
            leader, rows = self.leader, [row, ("t9", 0)]
            self._attempt(lambda: leader.planner.cancel_reassignment(rows, timedelta(seconds=9)))

    def request_cycle(self) -> None:
        self._attempt(lambda: self.leader.planner.request_cycle("an operator asked"))

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            result = action()
        except AutothrottleError as error:
            result = error
        if isinstance(result, Mapping | AutothrottleError):
            self.transcript.add("answer", result)

    # Users.

    def edit_rate(self) -> None:
        value = self.random.choice((None, "0", "500000", "40000001", "9000000001", "many"))
        resource = ConfigResource.broker(self.random.choice(BROKERS))
        self.cluster.set_config_as_user(resource, self.random.choice(RATE_KEYS), value)

    def edit_list(self) -> None:
        entries = [f"{self.random.randrange(PARTITIONS)}:{b}" for b in self.random.sample(BROKERS, 2)]
        value = self.random.choice((None, format_replicas(entries), "*", "1:2:3"))
        resource = ConfigResource.topic(self.random.choice(TOPICS))
        self.cluster.set_config_as_user(resource, self.random.choice(REPLICAS_KEYS), value)

    def edit_quota(self) -> None:
        entity = ClientQuotaEntity(DEFAULT, self.random.choice(CLIENTS))
        value = self.random.choice((None, "1000000", "90000000", "odd"))
        self.cluster.set_config_as_user(entity.resource, str(QuotaKey.PRODUCER_BYTE_RATE), value)

    def edit_default(self) -> None:
        key = self.random.choice(RATE_KEYS)
        if self.random.random() < 0.5:
            self.cluster.default_configs.pop(key, None)
        else:
            self.cluster.default_configs[key] = self.random.choice(("30000000", "odd"))
        self.cluster.version += 1

    def edit_during_a_cycle(self) -> None:
        action = self.random.choice((self.edit_rate, self.edit_list, self.edit_quota, self.end_everything))
        self.cluster.before_write = action

    # Faults.

    def lose_ledger_entry(self) -> None:
        if resources := sorted(self.cluster.ledger, key=lambda resource: resource.path):
            del self.cluster.ledger[self.random.choice(resources)]
            self.cluster.version += 1

    def break_stores(self) -> None:
        bench = self.bench
        store = self.random.choice(
            (bench.overrides, bench.pauses, bench.catch_ups, bench.temporary_quotas, bench.yield_rules, bench.metrics)
        )
        store.unavailable(True)

    def break_entries(self) -> None:
        self.odd_entries = {
            "read_catch_ups": str(self.random.choice(BROKERS)),
            "read_temporary_quotas": ClientQuotaEntity(DEFAULT, self.random.choice(CLIENTS)).path,
            "read_rules": self.random.choice(("backfill", "batch")),
        }
        if self.random.random() < 0.5:
            self.bench.overrides.unreadable = {self.random.choice((None, *BROKERS)): "it is not JSON"}

    def break_cluster(self) -> None:
        resource = self.random.choice(
            (ConfigResource.broker(self.random.choice(BROKERS)), ConfigResource.topic(self.random.choice(TOPICS)))
        )
        match self.random.randrange(7):
            case 0:
                self.cluster.unavailable(True)
            case 1:
                self.cluster.incomplete = "not JSON"
            case 2:
                topic = self.random.choice(("", "t1"))
                self.cluster.problems[:] = [Problem("/brokers/topics/t1", "not JSON", *([topic] if topic else []))]
            case 3:
                self.cluster.unreadable_configs[resource] = Problem(f"/config/{resource}", "not JSON")
            case 4:
                self.cluster.refused[resource] = "not now"
            case 5:
                self.cluster.conflict = "the controller is busy"
            case 6:
                self.cluster.slow_controller = not self.cluster.slow_controller

    def break_program(self) -> None:
        """Raise an error that no part of the planner expects."""

        def fail() -> None:
            raise RuntimeError("a bug")

        self.cluster.before_write = fail

    def fail_during_a_cycle(self) -> None:
        self.cluster.before_write = lambda: self.cluster.unavailable(True)

    def depose_during_a_cycle(self) -> None:
        self.cluster.before_write = lambda: self._begin_term(self.leader)

    def repair(self) -> None:
        bench = self.bench
        for store in (bench.overrides, bench.pauses, bench.catch_ups, bench.temporary_quotas, bench.yield_rules):
            store.unavailable(False)
        bench.metrics.unavailable(False)
        bench.overrides.unreadable = {}
        self.odd_entries = {}
        self.cluster.unavailable(False)
        self.cluster.incomplete = self.cluster.conflict = ""
        self.cluster.problems.clear()
        self.cluster.unreadable_configs.clear()
        self.cluster.refused.clear()
        if self.cluster.slow_controller:
            self.cluster.slow_controller = False
            self.cluster.process_submissions()

    def change_clock(self) -> None:
        self.bench.clock_change += timedelta(seconds=self.random.choice((-3600, 1, 40)))

    def play(self, actions: int) -> Transcript:
        """Carry out random actions, then end everything; return what was observed."""
        chosen = self.random.choices([name for name, _ in ACTIONS], [weight for _, weight in ACTIONS], k=actions)
        for name in chosen:
            self.transcript.add("action", name)
            getattr(self, name)()
            if self.random.random() < 0.7:
                self.let_time_pass()
        self.repair()
        self.end_everything()
        self.let_time_pass()
        for _ in range(2):
            self.bench.seconds += 60
            self.let_time_pass()
        for candidate in self.candidates:
            self._stop(candidate)
        self.transcript.add("configs", self.cluster.configs, self.cluster.ledger)
        return self.transcript


ACTIONS: Sequence[tuple[str, int]] = (
    ("start", 12),
    ("join_isr", 6),
    ("leave_isr", 4),
    ("move_leader", 2),
    ("end_partition", 6),
    ("end_everything", 2),
    ("recreate_topic", 1),
    ("copy_bytes", 8),
    ("stop_broker", 2),
    ("start_brokers", 3),
    ("set_loads", 8),
    ("lose_load", 2),
    ("set_override", 5),
    ("remove_override", 4),
    ("pause", 2),
    ("resume", 4),
    ("start_catch_up", 3),
    ("remove_catch_up", 1),
    ("set_quota", 4),
    ("remove_quota", 2),
    ("set_rule", 4),
    ("remove_rule", 1),
    ("submit", 8),
    ("withdraw", 1),
    ("cancel_through_the_planner", 2),
    ("request_cycle", 2),
    ("edit_rate", 3),
    ("edit_list", 3),
    ("edit_quota", 2),
    ("edit_default", 1),
    ("edit_during_a_cycle", 2),
    ("lose_ledger_entry", 2),
    ("break_stores", 3),
    ("break_entries", 2),
    ("break_cluster", 5),
    ("break_program", 1),
    ("fail_during_a_cycle", 1),
    ("depose_during_a_cycle", 1),
    ("repair", 9),
    ("change_clock", 1),
    ("elect", 2),
    ("deposed_planner_resumes", 1),
    ("let_time_pass", 10),
)
"""Action -> its weight."""


def transcript(seed: int, actions: int) -> Transcript:
    """Return what the script of this seed observes."""
    script = Script(seed)
    log = logging.getLogger("autothrottle")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(script.transcript)
    try:
        return script.play(actions)
    finally:
        log.removeHandler(script.transcript)


def numbers(text: str) -> Iterator[int]:
    """Yield the numbers in a text like `0-9,12`."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-99", help="seeds to run, like 0-99 or 3,8")
    parser.add_argument("--actions", type=int, default=40, help="actions of each script")
    parser.add_argument("--dump", action="store_true", help="print the lines, too")
    parser.add_argument("--compare", type=Path, help="file with the digests of another tree; report differing seeds")
    options = parser.parse_args()
    before = dict(line.split() for line in options.compare.read_text().splitlines()) if options.compare else {}
    differing = []
    for seed in numbers(options.seeds):
        lines = transcript(seed, options.actions)
        if options.dump:
            print(*itertools.chain(lines.lines, lines.requests, lines.background), sep="\n")
        digest = lines.digest()
        if not options.compare:
            print(seed, digest, flush=True)
        elif before.get(str(seed)) != digest:
            differing.append(seed)
    if options.compare:
        print(f"{len(differing)} seeds differ: {differing[:20]}" if differing else "no seed differs")
    return bool(differing)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.quality.planner_scripts", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
