"""Config writes of unknown outcome that arrive later, at any time up to `LATE_WRITES`: nothing of ours stays.

`LateKafka` decides the fate of each request; the writer, the decisions and the text of the ledger are the product's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, repeat

from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.zookeeper.codec import format_ledger_entry, parse_ledger_entry
from autothrottle.core.cluster.configs import (
    LATE_WRITES,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import Problem, Snapshot
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import changes, validate_change
from autothrottle.core.throttles.plan import plan
from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Ledger
from tests.builders import NOON, reassignment
from tests.examples import examples
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka
from tests.unit.autothrottle.adapters.kafka_admin.test_config_writer import value_after

LIMITS = Limits(min_rate=10, max_tx_ratio=0.9, max_rx_ratio=0.9, change_threshold=0.1, failure_threshold=1)
BROKER, TOPIC = ConfigResource.broker(1), ConfigResource.topic("t")
OPERATORS_ENTRY = "7:1"
ANSWERED, LOST, UNANSWERED = 0, -1, -2
"""Fates of a request, beside the number of seconds after which it arrives without an answer."""

Configs = Mapping[ConfigResource, Mapping[str, str]]


class LateKafka(MemoryKafka):
    """A cluster whose requests may arrive late, and a frozen broker that keeps its requests until it continues."""

    def __init__(self, initial: Configs) -> None:
        super().__init__(MemoryCluster(brokers=(1, 2)))
        self.cluster.configs = {resource: dict(keys) for resource, keys in initial.items()}
        self.at = NOON
        self.fates: Iterator[int] = repeat(ANSWERED)
        self.pending: list[tuple[datetime, ConfigResource, tuple[ConfigEdit, ...]]] = []
        self.requests = 0

    def alter_broker_configs(self, broker_id: int, edits: Sequence[ConfigEdit], *, until: float | None = None) -> None:
        self._send(ConfigResource.broker(broker_id), edits)

    def alter_topic_configs(
        self, edits: Mapping[str, Sequence[ConfigEdit]], *, until: float | None = None
    ) -> Mapping[str, AutothrottleError]:
        for topic, edits_of_topic in edits.items():
            self._send(ConfigResource.topic(topic), edits_of_topic)
        return {}

    def wait(self, seconds: int) -> None:
        """Let time pass: due requests arrive, except at a frozen broker."""
        self.at += timedelta(seconds=seconds)
        frozen = {ConfigResource.broker(b) for b in self.silent}
        for request in sorted(self.pending, key=lambda request: request[0]):
            due, resource, edits = request
            if due <= self.at and resource not in frozen:
                self.pending.remove(request)
                self.carry_out(resource, edits)

    def _send(self, resource: ConfigResource, edits: Sequence[ConfigEdit]) -> None:
        self.requests += 1
        fate = next(self.fates)
        if fate > 0 or (fate != LOST and resource in map(ConfigResource.broker, self.silent)):
            self.pending.append((self.at + timedelta(seconds=fate), resource, tuple(edits)))
            raise Unavailable("no answer")
        if fate != LOST:
            self.carry_out(resource, edits)
        if fate != ANSWERED:
            raise Unavailable("no answer")

    def carry_out(self, resource: ConfigResource, edits: Sequence[ConfigEdit]) -> None:
        values = dict(self.cluster.configs.get(resource, {}))
        for edit in edits:
            value = value_after(values.pop(edit.key, None), edit)
            values |= {} if value is None else {edit.key: value}
        self.cluster.configs.pop(resource, None)
        if values:
            self.cluster.configs[resource] = values


class TextLedger(Ledger):
    """A ledger of texts, as in the state store."""

    def __init__(self) -> None:
        self.texts: dict[ConfigResource, bytes] = {}
        self.writes = 0
        self.loses_writes = False

    @property
    def entries(self) -> dict[ConfigResource, LedgerEntry]:
        return {resource: parse_ledger_entry(text) for resource, text in self.texts.items()}

    def check_term(self, fence: int, deadline: float) -> None:
        pass

    def read(
        self, resources: Collection[ConfigResource], deadline: float
    ) -> Mapping[ConfigResource, LedgerEntry | Invalid | None]:
        return {resource: self.entries.get(resource) for resource in resources}

    def quota_entries(self, deadline: float) -> Mapping[ConfigResource, LedgerEntry | Invalid]:
        return {}

    def write(
        self, fence: int, entries: Mapping[ConfigResource, LedgerEntry | None], deadline: float
    ) -> Mapping[ConfigResource, Outcome]:
        self.writes += 1
        for resource, entry in entries.items():
            if self.loses_writes and resource in self.texts:
                return {r: Outcome(r, OutcomeStatus.REFUSED, "no answer") for r in entries}
            self.texts.pop(resource, None)
            if entry is not None:
                self.texts[resource] = format_ledger_entry(entry)
                assert parse_ledger_entry(self.texts[resource]) == entry
        return {resource: Outcome(resource, OutcomeStatus.APPLIED) for resource in entries}


class Story:
    """Cycles of a planner on such a cluster."""

    def __init__(self, initial: Configs) -> None:
        self.kafka, self.ledger = LateKafka(initial), TextLedger()
        self.writer = AdminConfigWriter(self.kafka, self.ledger, timedelta(seconds=10))
        self.moving: frozenset[int] = frozenset()
        self.rate = 100

    def cycle(self, fates: Sequence[int] = ()) -> tuple[str, ...]:
        """Run one cycle, whose requests have these fates; return its findings."""
        self.kafka.fates = chain(fates, repeat(ANSWERED))
        snapshot, overrides = self.snapshot(), Overrides(StoredOverride(self.rate) if self.moving else None)
        change_set = changes(plan(snapshot, Loads(), LIMITS, overrides), snapshot, self.kafka.at, term=1)
        for change in change_set.changes:
            validate_change(change)
        self.writer.apply(Term(1), change_set.changes, timedelta(seconds=10))
        return change_set.findings

    def snapshot(self) -> Snapshot:
        rows = sorted(self.moving)
        moving = reassignment("t", {number: (1, (1,), (2,), ()) for number in rows})
        frozen = {ConfigResource.broker(b) for b in self.kafka.silent}
        return Snapshot(
            version=1,
            brokers=frozenset({1, 2}),
            reassignments=(moving,) if rows else (),
            throttles={r: dict(keys) for r, keys in self.kafka.cluster.configs.items() if r not in frozen},
            ledger=self.ledger.entries,
            unreadable_configs={r: Problem(r.path, "no answer") for r in frozen},
        )

    def end(self) -> None:
        """End the reassignment, and run cycles until no write can arrive any more."""
        self.moving, self.kafka.silent, self.ledger.loses_writes = frozenset(), set(), False
        self.kafka.wait(0)
        for _ in range(15):
            self.cycle()
            self.kafka.wait(5)
        self.cycle()


def test_a_rate_that_arrives_after_its_release_is_restored() -> None:
    """A proxy held the request for a rate for 4 s, and meanwhile the reassignment ended.

    The ledger entry was removed with the throttles, so the late rate stayed as that of another party.
    """
    story = Story({})
    story.moving = frozenset({0})
    story.cycle([20])
    story.moving = frozenset()
    story.kafka.wait(1)
    assert story.cycle() == ()
    assert story.kafka.cluster.configs == {}
    assert story.ledger.entries[BROKER].keys[LEADER_RATE].is_released
    sent, recorded = story.kafka.requests, story.ledger.writes
    story.kafka.wait(10)
    assert story.cycle() == ()
    assert (story.kafka.requests, story.ledger.writes) == (sent, recorded), "nothing is written while a record waits"
    story.kafka.wait(10)
    assert story.kafka.cluster.configs == {BROKER: {LEADER_RATE: "100"}}, "the late rate"
    assert story.cycle() == ()
    assert story.kafka.cluster.configs == {}
    story.kafka.wait(int(LATE_WRITES.total_seconds()))
    assert story.cycle() == ()
    assert story.ledger.entries == {}
    assert story.ledger.writes <= recorded + 2


def test_a_rate_that_another_party_sets_while_a_late_one_may_arrive_is_kept() -> None:
    story = Story({})
    story.moving = frozenset({0})
    story.cycle([30])
    story.moving = frozenset()
    story.cycle()
    story.kafka.cluster.configs[BROKER] = {LEADER_RATE: "77"}
    assert story.cycle() == ()
    story.kafka.wait(30)
    assert story.kafka.cluster.configs == {BROKER: {LEADER_RATE: "100"}}, "the late rate"
    story.end()
    assert story.kafka.cluster.configs == {BROKER: {LEADER_RATE: "77"}}
    assert story.ledger.entries == {}


def test_a_record_waits_while_its_broker_does_not_answer() -> None:
    """A frozen broker holds the late request until it continues, however long that takes."""
    story = Story({})
    story.moving = frozenset({0})
    story.cycle([30])
    story.moving = frozenset()
    story.cycle()
    story.kafka.silent = {1}
    story.kafka.wait(600)
    story.cycle()
    assert BROKER in story.ledger.entries
    story.end()
    assert (story.kafka.cluster.configs, story.ledger.entries) == ({}, {})


fates = st.lists(st.sampled_from((ANSWERED, ANSWERED, LOST, UNANSWERED, 1, 4, 30, 60)), max_size=5)
events = st.lists(
    st.tuples(
        st.sampled_from(("move", "move", "finish", "rate", "operator", "freeze", "thaw", "ledger", "cycle")),
        st.integers(0, 2),
        st.sampled_from((1, 1, 3, 10, 40)),
        fates,
    ),
    max_size=12,
)
initial_configs = st.fixed_dictionaries(
    {},
    optional={
        BROKER: st.sampled_from(("77", "100", "0")).map(lambda rate: {LEADER_RATE: rate}),
        TOPIC: st.sampled_from(("", "9:1", "9:2,8:1")).map(lambda entries: {LEADER_REPLICAS: entries}),
    },
)


@settings(max_examples=examples(60, 1500), deadline=None)
@given(initial=initial_configs, story=events)
def test_nothing_of_ours_stays_whenever_requests_arrive(
    initial: Configs, story: Sequence[tuple[str, int, int, Sequence[int]]]
) -> None:
    model, added = Story(initial), False
    actions: Mapping[str, Callable[[int], None]] = {
        "move": lambda number: setattr(model, "moving", model.moving | {number}),
        "finish": lambda number: setattr(model, "moving", model.moving - {number}),
        "rate": lambda number: setattr(model, "rate", (100, 200, 77)[number]),
        "freeze": lambda number: model.kafka.silent.add(1),
        "thaw": lambda number: model.kafka.silent.clear(),
        "ledger": lambda number: setattr(model.ledger, "loses_writes", number > 0),
        "cycle": lambda number: None,
    }
    for name, number, seconds, request_fates in story:
        if name == "operator":
            # A late write of ours may remove what another party sets before it arrives; Kafka cannot refuse it.
            if model.kafka.pending or TOPIC not in initial:
                continue
            model.kafka.carry_out(TOPIC, [ConfigEdit(LEADER_REPLICAS, ConfigOperation.APPEND, OPERATORS_ENTRY)])
            added = True
        else:
            actions[name](number)
        model.kafka.wait(0)
        model.cycle(request_fates)
        model.kafka.wait(seconds)
    model.end()
    assert model.ledger.entries == {}
    configs = model.kafka.cluster.configs
    if added:
        assert parse_replicas(configs[TOPIC].pop(LEADER_REPLICAS)) == {
            OPERATORS_ENTRY,
            *parse_replicas(initial[TOPIC][LEADER_REPLICAS]),
        }
    assert configs == {r: {} if added and r == TOPIC else keys for r, keys in initial.items()}
