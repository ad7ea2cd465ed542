"""One seed of a lying proxy: the calls of the product during the lies and after them, over brokers in memory.

During the lies a call ends by its deadline, with the truth or with an error, and never with something that Kafka did
not say. After them all calls succeed within 10 s. The function to know is `play`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.placement import AdminClusterSource, LogDirMetrics
from autothrottle.adapters.kafka_admin.reassignments import read_reassignments
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings, KafkaPermissions
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import Answers, ConfigEdit, ConfigOperation, KafkaSettings
from autothrottle.adapters.kafka_state.topic import OutOfLog
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import (
    LEADER_RATE,
    LEADER_REPLICAS,
    RATE_KEYS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
)
from autothrottle.core.errors import AutothrottleError, Missing, NotLeader
from autothrottle.core.quotas.keys import ClientQuotaEntity, QuotaKey
from autothrottle.core.records import OutcomeStatus
from autothrottle.core.throttles.changes import Change, Edit
from autothrottle.ports.kafka import Term
from tests.chaos.lies import API_VERSIONS, DESCRIBE_CONFIGS, FETCH, KAFKA_CODES, METADATA, PRODUCE, Liar, Lie, LieKind
from tests.chaos.memory_brokers import BROKER, BROKERS, STATE_TOPIC, TOPIC, MemoryBrokers, virtual_network
from tests.chaos.proxy import Framing
from tests.resources import open_descriptors, usage
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryLedger
from tests.unit.autothrottle.adapters.kafka_admin.test_late_writes import TextLedger

TIMEOUT = timedelta(seconds=5)
RETURN_SECONDS = 10.0
LATENESS = 0.3
"""How late a call may end after its deadline, virtual seconds."""

ALTER_CONFIGS, LIST_REASSIGNMENTS, ALTER_REASSIGNMENTS, LOG_DIRS = 44, 46, 45, 35
DESCRIBE_QUOTAS, ALTER_QUOTAS, LIST_GROUPS, DESCRIBE_GROUPS, CONSUMER_GROUPS = 48, 49, 16, 15, 69
LIST_OFFSETS, DELETE_RECORDS, CREATE_TOPICS = 2, 21, 19
APIS = (
    *(METADATA, DESCRIBE_CONFIGS, ALTER_CONFIGS, LIST_REASSIGNMENTS, ALTER_REASSIGNMENTS, LOG_DIRS, DESCRIBE_QUOTAS),
    *(ALTER_QUOTAS, LIST_GROUPS, DESCRIBE_GROUPS, CONSUMER_GROUPS, PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS),
    *(CREATE_TOPICS, API_VERSIONS),
)
_MAY_BE_EMPTY = frozenset({LIST_REASSIGNMENTS, DESCRIBE_QUOTAS, LIST_GROUPS})
"""APIs whose answers may lack entries. A client cannot detect that an entry is missing."""


@dataclass(slots=True)
class Result:
    """What happened in one seed."""

    seed: int
    lie: Lie
    violations: list[str] = field(default_factory=list)
    lies: int = 0
    """Number of changed answers."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome of the calls during the lies -> their number."""


def lie_of(seed: int) -> Lie:
    """Return the lie of a seed: each kind for each API comes up in 126 seeds, each error code in 448."""
    kinds = tuple(LieKind)
    kind, number = kinds[seed % len(kinds)], seed // len(kinds)
    api = (*APIS, None)[number % (len(APIS) + 1)]
    choices = random.Random(seed)
    codes = KAFKA_CODES[2 * number % len(KAFKA_CODES) :][:2]
    apis = frozenset() if api is None else frozenset({api})
    in_records = kind is LieKind.FLIPPED and api == FETCH and number % 2 == 0
    return Lie(kind, apis, seed, codes, choices.choice([1.0, 1.0, 0.5]), in_records=in_records)


class _Errors(logging.Handler):
    """Keeps records with a traceback, and errors."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else ""
            self.texts.append(f"{record.getMessage()}: {error!r}")


def play(seed: int, lie: Lie | None = None) -> Result:
    """Play one seed."""
    result, handler = Result(seed, lie or lie_of(seed)), _Errors()
    descriptors, threads = open_descriptors(), threading.active_count()
    logging.getLogger().addHandler(handler)
    try:
        brokers, liar = MemoryBrokers(), Liar(Framing.KAFKA)
        with virtual_network(brokers, liar) as network:
            _Seed(result, brokers, liar, network.servers).run()
            result.violations += [f"the brokers in memory: {error!r}" for error in network.errors]
    finally:
        logging.getLogger().removeHandler(handler)
    result.violations += [f"logged: {text[:300]}" for text in handler.texts]
    deadline = time.monotonic() + 5.0
    while True:
        left = tuple(now - before for now, before in zip(usage(), (descriptors, threads), strict=True))
        if max(left) <= 0 or time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    if max(left) > 0:
        result.violations.append(f"{left[1]} threads and {left[0]} descriptors are left")
    return result


class _Seed:
    """The clients of one seed, and their calls."""

    def __init__(self, result: Result, brokers: MemoryBrokers, liar: Liar, servers: tuple[str, ...]) -> None:
        self._result, self._world, self._liar, self._lie = result, brokers, liar, result.lie
        self._choices = random.Random(result.seed)
        brokers.configs[BROKER, "2"] = {LEADER_RATE: "2000"}
        brokers.configs[TOPIC, "b"] = {LEADER_REPLICAS: "0:2"}
        self._settings = KafkaSettings(servers, request_timeout=TIMEOUT)
        self._appended = 0
        self._topic_id = str(brokers.topic_ids[STATE_TOPIC])

    def run(self) -> None:
        with closing(KafkaAdmin(self._settings)) as kafka, closing(TopicLog(self._settings, STATE_TOPIC)) as log:
            self._kafka, self._log = kafka, log
            self._ledger = TextLedger()
            self._writer = AdminConfigWriter(kafka, self._ledger, timedelta(seconds=9))
            calls = list(self._calls())
            if self._choices.random() < 0.7:
                for call in calls:
                    self._call(*call, must_succeed=True)
            self._choices.shuffle(calls)
            self._liar.begin(self._lie)
            for call in calls:
                self._call(*call)
            self._liar.end()
            ended = time.monotonic()
            for name, api, act in calls:
                while not self._call(name, api, act, must_succeed=time.monotonic() > ended + RETURN_SECONDS):
                    if time.monotonic() > ended + 60.0:
                        break
                    time.sleep(0.2)
            if time.monotonic() > ended + RETURN_SECONDS + len(calls) * 0.1:
                self._violated(f"all calls succeed only {time.monotonic() - ended:.1f} s after the lies")
            self._check_untouched()
            self._result.lies = sum(self._liar.lies.values())

    def _violated(self, text: str) -> None:
        self._result.violations.append(text)

    def _call(self, name: str, apis: Sequence[int], act: Callable[[], bool], must_succeed: bool = False) -> bool:
        """Make a call, and return whether it succeeded in full; check its time."""
        began = time.monotonic()
        try:
            is_complete = act()
            self._result.outcomes["full" if is_complete else "part"] += 1
        except AutothrottleError as error:
            self._result.outcomes[type(error).__name__] += 1
            is_complete = False
            if must_succeed:
                self._violated(f"{name} without lies: {error}")
        except Exception as error:
            self._violated(f"{name} raises {error!r}")
            is_complete = True
        seconds = time.monotonic() - began
        polls = 3 if name == "snapshot" else 1  # the source of snapshots ends with its own poll
        if seconds > polls * TIMEOUT.total_seconds() + LATENESS:
            self._violated(f"{name} takes {seconds:.1f} s")
        if must_succeed and not is_complete:
            self._violated(f"{name} has only a part without lies")
        return is_complete

    def _calls(self) -> Iterator[tuple[str, Sequence[int], Callable[[], bool]]]:
        """Yield name, APIs that it depends on, and the call, which returns whether its result is complete."""
        kafka = self._kafka
        yield "brokers", [METADATA], lambda: self._same("brokers", kafka.brokers(), {*BROKERS}, part=True)
        yield "partitions", [METADATA], self._partitions
        yield "views", [METADATA], self._views
        yield "topic configs", [DESCRIBE_CONFIGS], self._topic_configs
        yield "broker configs", [DESCRIBE_CONFIGS], self._broker_configs
        yield "defaults", [DESCRIBE_CONFIGS], lambda: self._same("defaults", kafka.default_broker_configs(), {})
        yield "reassignments", [LIST_REASSIGNMENTS], self._reassignments
        yield "a move", [LIST_REASSIGNMENTS, METADATA], self._reading
        yield "log sizes", [LOG_DIRS], self._log_sizes
        yield "storage", [LOG_DIRS], lambda: bool(LogDirMetrics(kafka).fetch_storage_metrics(TIMEOUT))
        yield "quotas", [DESCRIBE_QUOTAS], self._quotas
        yield "groups", [LIST_GROUPS, DESCRIBE_GROUPS, CONSUMER_GROUPS], self._groups
        yield "settings", [DESCRIBE_CONFIGS], self._fetch_settings
        yield "permissions", [METADATA], lambda: not KafkaPermissions(kafka, True).fetch_missing_permissions(TIMEOUT)
        yield "cluster", [METADATA], lambda: not AdminClusterSource(kafka).fetch_cluster(TIMEOUT).problems
        yield "snapshot", [METADATA, DESCRIBE_CONFIGS, LIST_REASSIGNMENTS], self._snapshot
        yield "alter topic", [ALTER_CONFIGS], self._alter_topic
        yield "alter broker", [ALTER_CONFIGS], self._alter_broker
        yield "alter moves", [ALTER_REASSIGNMENTS], self._alter_moves
        yield "alter quotas", [ALTER_QUOTAS], self._alter_quotas
        yield "writer", [DESCRIBE_CONFIGS, ALTER_CONFIGS], self._write
        yield "append", [PRODUCE, METADATA], self._append
        yield "read", [FETCH, METADATA], self._read
        yield "locate", [METADATA, LIST_OFFSETS], self._locate
        yield "risks", [DESCRIBE_CONFIGS, METADATA], lambda: self._log.risks(self._soon()) is not None
        yield "delete records", [DELETE_RECORDS, METADATA], lambda: not self._log.delete_before(0, self._soon())  # type: ignore[func-returns-value]
        yield "create topic", [CREATE_TOPICS, METADATA], lambda: not self._log.create(self._soon())  # type: ignore[func-returns-value]

    def _soon(self) -> float:
        return time.monotonic() + TIMEOUT.total_seconds()

    # Truth

    def _may_differ(self, *apis: int, part: bool = False) -> bool:
        """Whether a client cannot detect the lie: a flipped bit, or entries that may be absent."""
        lie = self._lie
        if self._liar.lie is None:
            return False
        concerns = not lie.apis or bool(lie.apis & {*apis})
        if lie.kind is LieKind.FLIPPED:
            return concerns and not (lie.in_records and {*apis} == {FETCH})
        is_gap = lie.kind in (LieKind.PART, LieKind.EMPTY)
        is_absent = bool({*apis} & _MAY_BE_EMPTY) or (part and lie.kind is LieKind.PART)
        return concerns and is_gap and is_absent

    def _same(self, name: str, value: object, truth: object, api: int = METADATA, part: bool = False) -> bool:
        api = DESCRIBE_CONFIGS if name == "defaults" else api
        if value != truth and not self._may_differ(api, part=part):
            self._violated(f"{name}: {value} instead of {truth}"[:300])
        return value == truth

    def _each(self, name: str, answers: Answers[Any, Any], truth: Mapping[Any, Any], *apis: int, part: bool) -> bool:
        """Check that each value is the truth, and that what is absent has a reason."""
        if self._may_differ(*apis, part=part):
            return not answers.failures
        for key, value in truth.items():
            if key in answers.values:
                if answers.values[key] != value:
                    self._violated(f"{name} of {key}: {answers.values[key]} instead of {value}"[:300])
            elif key not in answers.failures:
                self._violated(f"{name} of {key} has neither a value nor a reason")
            elif isinstance(answers.failures[key], Missing) and self._lie.kind is not LieKind.ERROR:
                self._violated(f"{name} of {key} is called missing: {answers.failures[key]}")
        if surplus := (answers.values.keys() | answers.failures.keys()) - truth.keys():
            self._violated(f"{name} has what was not asked for: {surplus}")
        return not answers.failures

    def _metadata(self, names: Sequence[str]) -> dict[str, dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]]]:
        topics: dict[str, dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]]] = {name: {} for name in names}
        for (topic, number), replicas in self._world.replicas.items():
            if topic in topics:
                added = self._world.adding.get((topic, number), [])
                topics[topic][number] = replicas[0], (*replicas, *added), tuple(replicas)
        return topics

    def _partitions(self) -> bool:
        answers = self._kafka.partitions(["a", "b"])
        return self._each("metadata", answers, self._metadata(["a", "b"]), METADATA, part=True)

    def _views(self) -> bool:
        topics = self._metadata(["a"])
        views = self._kafka.partitions_by_broker({b: ["a"] for b in BROKERS})
        if self._lie.kind is LieKind.ERROR and self._liar.lie is not None:
            return not views.failures  # a broker may not know a topic yet
        return self._each("the view", views, dict.fromkeys(BROKERS, topics), METADATA, part=True)

    def _current(self, answers: Answers[Any, Any], keys: Sequence[str]) -> Answers[Any, dict[str, str]]:
        values = {
            name: {key: config.current for key, config in configs.items() if key in keys and config.current is not None}
            for name, configs in answers.values.items()
        }
        return Answers(values, answers.failures)

    def _own(self, kind: int, name: str) -> dict[str, str]:
        return dict(self._world.configs.get((kind, name), {}))

    def _topic_configs(self) -> bool:
        answers = self._current(self._kafka.topic_configs(["a", "b"]), [LEADER_REPLICAS, *_FOLLOWER])
        truth = {name: self._own(TOPIC, name) for name in ("a", "b")}
        return self._each("the lists", answers, truth, DESCRIBE_CONFIGS, part=False)

    def _broker_configs(self) -> bool:
        answers = self._current(self._kafka.broker_configs(BROKERS), [*RATE_KEYS])
        truth = {b: self._own(BROKER, str(b)) for b in BROKERS}
        return self._each("the rates", answers, truth, DESCRIBE_CONFIGS, part=True)

    def _reassignments(self) -> bool:
        moves: dict[str, dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]] = {}
        for (topic, number), adding in self._world.adding.items():
            replicas = (*self._world.replicas[topic, number], *adding)
            moves.setdefault(topic, {})[number] = replicas, tuple(adding), ()
        return self._each("the moves", self._kafka.reassignments(), moves, LIST_REASSIGNMENTS, part=True)

    def _reading(self) -> bool:
        """A move with unreadable metadata is a problem, or has all its adding replicas out of sync."""
        reading = read_reassignments(self._kafka, TIMEOUT, {}, None)
        if self._may_differ(LIST_REASSIGNMENTS, METADATA, part=True):
            return not reading.problems
        moving = {topic for topic, _ in self._world.adding}
        if absent := moving - reading.reassignments.keys() - {problem.topic for problem in reading.problems}:
            self._violated(f"a move is lost: {absent}")
        return not reading.problems

    def _log_sizes(self) -> bool:
        truth = {row: 100 + row[1] for row, replicas in self._world.replicas.items() if 1 in replicas}
        return self._same("log sizes", self._kafka.log_sizes(1, None), truth, LOG_DIRS, part=True)

    def _quotas(self) -> bool:
        quotas = self._kafka.client_quotas()
        truth = {ClientQuotaEntity(dict(e)["user"]): {QuotaKey.PRODUCER_BYTE_RATE: v} for e, v in self._rates()}
        return self._same("quotas", quotas, truth, DESCRIBE_QUOTAS)

    def _rates(self) -> list[tuple[tuple[tuple[str, str | None], ...], int]]:
        return [(entity, int(values["producer_byte_rate"])) for entity, values in self._world.quotas.items()]

    def _groups(self) -> bool:
        half = timedelta(seconds=2)
        listed = self._kafka.groups(BROKERS, timeout=half)
        clients = self._kafka.group_clients(listed.values, timeout=half)
        truth = {"g1": frozenset({"of-g1"}), "g2": frozenset(), "g3": frozenset({"of-g3"})}
        apis = (LIST_GROUPS, DESCRIBE_GROUPS, CONSUMER_GROUPS)
        # Damaged versions, for example without types of groups, stay until the connection is replaced.
        is_other_version = self._lie.kind is LieKind.FLIPPED and self._lie.apis <= {API_VERSIONS}
        may_differ = self._lie.kind is LieKind.PART or is_other_version or self._may_differ(*apis)
        if not listed.failures and not may_differ:
            self._each("the group", clients, truth, *apis, part=True)
        return not listed.failures and not clients.failures

    def _fetch_settings(self) -> bool:
        settings = KafkaFetchSettings(self._kafka).fetch_settings(BROKERS, ["a", "b"], TIMEOUT)
        if not self._may_differ(DESCRIBE_CONFIGS):
            for topic, minimum in settings.min_in_sync_replicas.items():
                self._same(f"min.insync.replicas of {topic}", minimum, 2)
        return len(settings.brokers) == len(BROKERS) and len(settings.min_in_sync_replicas) == 2

    def _snapshot(self) -> bool:
        """Every throttle of the cluster is in the snapshot, or its resource is unreadable."""
        ledger = MemoryLedger(MemoryCluster())
        with closing(AdminSnapshots(self._kafka, ledger, timedelta(days=1))) as snapshots:
            snapshot = snapshots.fetch_snapshot(timeout=TIMEOUT)
        is_denied = self._lie.kind is LieKind.ERROR and not _NOT_THERE.isdisjoint(self._lie.codes)
        if is_denied or self._may_differ(METADATA, DESCRIBE_CONFIGS, LIST_REASSIGNMENTS, part=True):
            return not snapshot.problems
        for (kind, name), configs in self._world.configs.items():
            resource = ConfigResource.topic(name) if kind == TOPIC else ConfigResource.broker(int(name))
            if resource not in snapshot.unreadable_configs and snapshot.throttles.get(resource, {}) != configs:
                is_read = kind == BROKER or (name in {topic for topic, _ in self._world.adding})
                if is_read or not self._world.adding:
                    self._violated(f"the snapshot has {snapshot.throttles.get(resource)} for {resource}, not {configs}")
        moving = {topic for topic, _ in self._world.adding}
        if absent := moving - {r.topic for r in snapshot.reassignments} - {p.topic for p in snapshot.problems}:
            self._violated(f"the snapshot lacks the move of {absent}")
        return not snapshot.problems and not snapshot.unreadable_configs

    # Writes

    def _alter_topic(self) -> bool:
        value = f"1:{self._choices.choice([1, 2])}"
        edits = {"a": [ConfigEdit(LEADER_REPLICAS, ConfigOperation.SET, value)]}
        refused = self._kafka.alter_topic_configs(edits)
        return self._is_done("topic a", refused, self._own(TOPIC, "a").get(LEADER_REPLICAS), value)

    def _alter_broker(self) -> bool:
        value = str(self._choices.randrange(1, 10**6))
        self._kafka.alter_broker_configs(1, [ConfigEdit(LEADER_RATE, ConfigOperation.SET, value)])
        return self._is_done("broker 1", {}, self._own(BROKER, "1").get(LEADER_RATE), value)

    def _alter_moves(self) -> bool:
        target = self._choices.choice([[1, 2, 3], [1, 2]])
        refused = self._kafka.alter_reassignments({("a", 1): target})
        added = self._world.adding.get(("a", 1), [])
        return self._is_done("partition a-1", refused, added, [b for b in target if b == 3])

    def _alter_quotas(self) -> bool:
        rate = self._choices.randrange(1, 10**6)
        self._kafka.alter_client_quotas(ClientQuotaEntity("x"), {QuotaKey.PRODUCER_BYTE_RATE: rate})
        return self._is_done("the quota", {}, dict(self._rates())[("user", "x"),], rate)

    def _is_done(self, name: str, refused: Mapping[Any, Any], current: object, expected: object) -> bool:
        may_differ = self._may_differ(ALTER_CONFIGS, ALTER_REASSIGNMENTS, ALTER_QUOTAS)
        if not refused and current != expected and not may_differ:
            self._violated(f"{name} has {current} after a write of {expected} that counts as done")
        return not refused

    def _write(self) -> bool:
        """Set a throttle of broker 3 and of topic a, and nothing else."""
        before = self._others()
        rate, entries = str(self._choices.randrange(1, 10**6)), f"0:{self._choices.choice([1, 2])}"
        broker, topic = ConfigResource.broker(3), ConfigResource.topic("a")
        changes = [
            self._change(broker, LEADER_RATE, self._own(BROKER, "3"), rate),
            self._change(topic, _FOLLOWER[0], self._own(TOPIC, "a"), entries),
        ]
        lease = time.monotonic() + 9.0
        try:
            outcomes = self._writer.apply(Term(1, lease), changes, TIMEOUT)
        except NotLeader:
            return False
        if self._others() != before:
            self._violated(f"another throttle changed from {before} to {self._others()}")
        done = {OutcomeStatus.APPLIED, OutcomeStatus.UNCHANGED}
        for outcome, (kind, name, key, value) in zip(
            outcomes, ((BROKER, "3", LEADER_RATE, rate), (TOPIC, "a", _FOLLOWER[0], entries)), strict=True
        ):
            current = self._own(kind, name).get(key)
            if outcome.status in done and current != value and not self._may_differ(DESCRIBE_CONFIGS, ALTER_CONFIGS):
                self._violated(f"{name} has {current} and not {value}, and the outcome is {outcome.status}")
        return all(outcome.status in done for outcome in outcomes)

    def _change(self, resource: ConfigResource, key: str, current: Mapping[str, str], value: str) -> Change:
        entry = LedgerEntry({key: LedgerKey(None, value)}, 1)
        return Change(resource, (Edit(key, current.get(key), value),), entry)

    def _others(self) -> dict[str, dict[str, str]]:
        rows = ((BROKER, "1"), (BROKER, "2"), (TOPIC, "b"))
        return {name: self._own(kind, name) for kind, name in rows}

    def _check_untouched(self) -> None:
        """Nothing wrote to broker 2 and topic b."""
        if self._own(BROKER, "2") != {LEADER_RATE: "2000"} or self._own(TOPIC, "b") != {LEADER_REPLICAS: "0:2"}:
            self._violated("another party's throttle has changed")

    # The state topic

    def _append(self) -> bool:
        self._appended += 1
        text = f"r{self._appended}".encode()
        self._log.append([text], self._soon())
        if not any(text in _texts(batch) for batch in self._world.log) and not self._may_differ(PRODUCE):
            self._violated(f"record {text!r} is not in the log, and its append counts as done")
        return True

    def _read(self) -> bool:
        try:
            answer = self._log.read(self._topic_id, 0, -1, 0.5, self._soon())
        except OutOfLog:
            self._log.locate(self._soon())
            return False
        if not self._may_differ(FETCH):
            values = [text for batch in self._world.log for text in _texts(batch)]
            for record in answer.records:
                if record.offset not in answer.skipped and values[record.offset : record.offset + 1] != [record.value]:
                    self._violated(f"the record {record} was never appended")
        return answer.next_offset == self._world.end

    def _locate(self) -> bool:
        topic_id, _ = self._log.locate(self._soon())
        return self._same("the id of the topic", topic_id, self._topic_id)


_NOT_THERE = frozenset({3, 100})
"""Error codes with which a broker says that a topic does not exist."""
_FOLLOWER = ("follower.replication.throttled.replicas",)


def _texts(batch: bytes) -> list[bytes]:
    from autothrottle.adapters.kafka_admin.record_batches import split

    return [record.value for part in split(batch) for record in part.records(0)[0]]
