"""Properties of plan and changes: a cluster is always left as it was found.

Hypothesis runs a small cluster through arbitrary stories. `apply_change_set` does what every writer of changes must do;
it knows nothing of throttles. `states_on_the_way` yields the states that a crash may leave, for a writer that cannot
write config and ledger in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    LEADER_RATE,
    RATE_KEYS,
    REPLICAS_KEYS,
    ConfigResource,
    LedgerEntry,
    ReplicaRole,
    format_replicas,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import NO_LEADER, Assignment, Problem, Snapshot, TopicReassignment
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.policy.interface import Limits
from autothrottle.core.throttles.changes import Change, ChangeSet, Edit, changes, intended, validate_change
from autothrottle.core.throttles.plan import CONSUMER_OFFSETS, Plan, plan
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.traffic.replication import ThrottleHistory
from tests.examples import examples

BROKERS = (1, 2, 3, 4, 5)
TOPICS = ("a", "b", CONSUMER_OFFSETS)
QUIET_TOPIC = "quiet"
MOVABLE = (0, 1, 2)
FIXED = (3, 4)
"""Partitions never in reassignment: foreign list entries of topics in reassignment name only these."""
LIMITS = Limits(min_rate=10_000_000, max_tx_ratio=0.9, max_rx_ratio=0.9, change_threshold=0.1, failure_threshold=1)

T = TypeVar("T")
Configs = Mapping[ConfigResource, Mapping[str, str]]


def apply_change_set(snapshot: Snapshot, change_set: ChangeSet) -> Snapshot:
    """Return the cluster after the edits; checks the expected values as a writer must."""
    throttles = {resource: dict(keys) for resource, keys in snapshot.throttles.items()}
    ledger = dict(snapshot.ledger)
    for change in change_set.changes:
        validate_change(change)
        keys = throttles.setdefault(change.resource, {})
        for edit in change.edits:
            assert keys.get(edit.key) == edit.expected
            ours = ledger[change.resource].keys.get(edit.key) if change.resource in ledger else None
            assert edit.writes or ours is None or ours.intent is not None or ours.is_released
            if edit.value is None:
                keys.pop(edit.key, None)
            else:
                keys[edit.key] = edit.value
        ledger.pop(change.resource, None)
        if change.ledger is not None:
            assert change.ledger.keys
            ledger[change.resource] = change.ledger
    current = {resource: keys for resource, keys in throttles.items() if keys}
    return replace(snapshot, version=snapshot.version + 1, throttles=current, ledger=ledger)


Standing = tuple[Configs, Mapping[ConfigResource, LedgerEntry]]
"""The stored state of a cluster: configs and ledger."""


def states_on_the_way(
    snapshot: Snapshot, change_set: ChangeSet, silent: frozenset[ConfigResource]
) -> Iterator[Standing]:
    """Yield the state after every single write; silent resources accept no config."""
    throttles, ledger = dict(snapshot.throttles), dict(snapshot.ledger)
    sent = [as_kafka_has_it(change) for change in change_set.changes]
    for change, _ in sent:
        if change.edits:
            put(ledger, change.resource, intended(change, ledger.get(change.resource), term=7))
            yield dict(throttles), dict(ledger)
    for change, requests in sent:
        for request in requests if change.resource not in silent else ():
            keys = {**throttles.get(change.resource, {}), **request}
            put(throttles, change.resource, {key: value for key, value in keys.items() if value is not None})
            yield dict(throttles), dict(ledger)
    for change, _ in sent:
        if change.resource not in silent:
            put(ledger, change.resource, change.ledger)
            yield dict(throttles), dict(ledger)


def put(mapping: dict[ConfigResource, T], resource: ConfigResource, value: T | None) -> None:
    """Set or remove a value; an empty value counts as absent."""
    mapping.pop(resource, None)
    if value:
        mapping[resource] = value


def as_kafka_has_it(change: Change) -> tuple[Change, list[dict[str, str | None]]]:
    """The change with lists as Kafka formats them, and the values of its keys after each request."""
    keys = dict(change.ledger.keys) if change.ledger else {}
    edits, requests = [], [dict[str, str | None](), dict[str, str | None]()]
    for edit in change.edits:
        texts = texts_of(edit, restores=edit.key not in change.records)
        for request, text in zip(requests, texts, strict=False):
            request[edit.key] = text
        edits.append(replace(edit, value=texts[-1]))
        if edit.key in keys:
            keys[edit.key] = replace(keys[edit.key], written=texts[-1])
    entry = replace(change.ledger, keys=keys) if change.ledger else None
    return replace(change, edits=tuple(edits), ledger=entry), [request for request in requests if request]


def texts_of(edit: Edit, restores: bool) -> list[str | None]:
    """The values after each request of an edit: lists are first appended to, then subtracted from."""
    if edit.value is None or edit.key in RATE_KEYS or "*" in (edit.expected, edit.value):
        return [edit.value]
    old = [part for part in (edit.expected or "").split(",") if part]
    added = format_replicas(parse_replicas(edit.value) - set(old)).split(",")
    appended = old + [part for part in added if part]
    subtracted = [part for part in appended if part in parse_replicas(edit.value)]
    texts: list[str | None] = [",".join(appended), ",".join(subtracted)]
    return [edit.value] if restores and texts[-1] != edit.value else texts


@dataclass
class Partition:
    """One partition of the model."""

    replicas: set[int]
    isr: list[int]
    leader: int
    adding: set[int] = field(default_factory=set)
    removing: set[int] = field(default_factory=set)
    moving: bool = False


@dataclass
class Model:
    """A cluster, its overrides and the planner's memory."""

    throttles: Configs
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    partitions: dict[tuple[str, int], Partition] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)
    history: ThrottleHistory = field(default_factory=ThrottleHistory)
    failures: dict[int, int] = field(default_factory=dict)
    blind: set[int] = field(default_factory=set)
    """Brokers without metrics."""
    down: set[int] = field(default_factory=set)
    """Brokers that are not registered."""
    traffic: dict[int, int] = field(default_factory=dict)
    """Broker -> bytes/s in each direction."""
    problems: tuple[Problem, ...] = ()
    unreadable: dict[ConfigResource, Problem] = field(default_factory=dict)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    last_plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        for topic in (*TOPICS, QUIET_TOPIC):
            for number in (*MOVABLE, *FIXED):
                replicas = [BROKERS[(number + i) % len(BROKERS)] for i in range(2)]
                self.partitions[topic, number] = Partition(set(replicas), replicas, replicas[0])

    def snapshot(self) -> Snapshot:
        """The snapshot from discovery."""
        rows = [
            (topic, [(n, p) for (t, n), p in sorted(self.partitions.items()) if t == topic and p.moving])
            for topic in sorted(TOPICS)
        ]
        hosted: dict[int, dict[str, tuple[int, ...]]] = {b: {} for b in self.overrides.active_brokers}
        for (topic, number), partition in sorted(self.partitions.items()):
            for broker_id in partition.replicas & hosted.keys():
                hosted[broker_id][topic] = (*hosted[broker_id].get(topic, ()), number)
        return Snapshot(
            version=1,
            brokers=frozenset(BROKERS) - self.down,
            reassignments=tuple(
                TopicReassignment(
                    topic=topic,
                    partitions=tuple(n for n, _ in moving),
                    leaders=tuple(p.leader for _, p in moving),
                    isr=tuple(tuple(p.isr) for _, p in moving),
                    adding_replicas=tuple(tuple(sorted(p.adding)) for _, p in moving),
                    removing_replicas=tuple(tuple(sorted(p.removing)) for _, p in moving),
                )
                for topic, moving in rows
                if moving
            ),
            throttles={r: k for r, k in self.throttles.items() if r not in self.unreadable},
            ledger=self.ledger,
            replicas=hosted,
            assignments={
                row: Assignment(tuple(partition.replicas), partition.leader, tuple(partition.isr))
                for row, partition in self.partitions.items()
                if partition.replicas & hosted.keys()
            },
            unreadable_configs=self.unreadable,
            problems=self.problems,
        )

    def loads(self) -> Loads:
        """The mean over the last minute."""
        capacity = Capacity(outbound=200_000_000, inbound=100_000_000)
        start = self.now - timedelta(minutes=1)
        used = {b: Utilization(self.traffic.get(b, 40_000_000), start, self.now) for b in BROKERS}
        return Loads({b: BrokerLoad(b, capacity, u, u) for b, u in used.items() if b not in self.blind})

    def cycle(self) -> ChangeSet:
        """Run one cycle and check the invariants."""
        self.now += timedelta(minutes=3)
        snapshot = self.snapshot()
        for broker_id in BROKERS:
            self.failures[broker_id] = self.failures.get(broker_id, 0) + 1 if broker_id in self.blind else 0
        self.history = self.history.observe(self.now, standing_rates(snapshot))
        self.last_plan = self._plan(snapshot)
        done = changes(self.last_plan, snapshot, self.now, term=7)
        after = apply_change_set(snapshot, done)
        again = changes(self._plan(after), after, self.now, term=8, cycle=1)
        assert again.changes == ()
        assert again.refused == done.refused
        hidden = {r: k for r, k in self.throttles.items() if r in self.unreadable}
        self.throttles, self.ledger = {**after.throttles, **hidden}, after.ledger
        return done

    def states(self, silent: frozenset[ConfigResource]) -> list[Standing]:
        """The states before the next cycle and after each of its writes."""
        snapshot = self.snapshot()
        self.last_plan = self._plan(snapshot)
        done = changes(self.last_plan, snapshot, self.now, term=7)
        return [(snapshot.throttles, snapshot.ledger), *states_on_the_way(snapshot, done, silent)]

    def interrupted_cycle(self, writes: int, silent: frozenset[ConfigResource]) -> None:
        """Run a cycle whose planner crashes after this number of writes."""
        self.now += timedelta(minutes=3)
        before, states = self.throttles, self.states(silent)
        throttles, self.ledger = states[min(writes, len(states) - 1)]
        self.throttles = {**throttles, **{r: k for r, k in before.items() if r in self.unreadable}}
        if self.last_plan.hold:
            check_nothing_removed(before, self.throttles)
        self.restart()

    def add_as_user(self, topic: str, role: ReplicaRole, entry: str) -> bool:
        """Add an entry to a list as another operator would; False if it is already there or intended."""
        resource = ConfigResource.topic(topic)
        keys, ledger = self.throttles.get(resource, {}), self.ledger.get(resource)
        ours = ledger.keys.get(role.replicas_key) if ledger else None
        text = keys.get(role.replicas_key, "")
        if "*" in text or entry in parse_replicas(text) or (ours and entry in ours.owned):
            return False
        added = f"{text},{entry}" if text else entry
        self.throttles = {**self.throttles, resource: {**keys, role.replicas_key: added}}
        return True

    def _plan(self, snapshot: Snapshot) -> Plan:
        return plan(snapshot, self.loads(), LIMITS, self.overrides, self.failures, self.history)

    def restart(self) -> None:
        """Another planner leads: state in memory is lost, the ledger stays."""
        self.history, self.failures = ThrottleHistory(), {}

    def start(self, topic: str, number: int, adding: set[int]) -> None:
        """Start a reassignment that adds these replicas and removes the others."""
        partition = self.partitions[topic, number]
        if not partition.moving:
            partition.adding = adding - partition.replicas
            partition.removing = partition.replicas - adding if adding else set()
            partition.replicas |= partition.adding
            partition.moving = True

    def join(self, topic: str, number: int) -> None:
        """Let the first pending replica join the ISR."""
        partition = self.partitions[topic, number]
        pending = sorted(partition.adding - set(partition.isr))
        partition.isr += pending[:1]

    def lag(self, topic: str, number: int) -> None:
        """Let the last replica fall out of the ISR, unless it is the only one."""
        partition = self.partitions[topic, number]
        partition.isr = partition.isr[:-1] or partition.isr
        partition.leader = partition.leader if partition.leader in partition.isr else partition.isr[0]

    def lead(self, topic: str, number: int, choice: int) -> None:
        """Change the leader within the ISR; every fourth time the partition goes offline."""
        partition = self.partitions[topic, number]
        leaders = [*partition.isr, NO_LEADER]
        partition.leader = leaders[choice % len(leaders)]

    def finish(self, topic: str, number: int) -> None:
        """End the partition's reassignment."""
        partition = self.partitions[topic, number]
        if partition.moving:
            partition.replicas -= partition.removing
            partition.isr = sorted(partition.replicas)
            partition.leader = partition.isr[0]
            partition.adding, partition.removing, partition.moving = set(), set(), False

    def override(self, broker_id: int, rate: int) -> None:
        """Set an override; broker 0 is the cluster, rate 0 removes it."""
        value = StoredOverride(rate)
        if broker_id == 0:
            self.overrides = replace(self.overrides, cluster=value if rate else None)
            return
        brokers = {b: o for b, o in self.overrides.brokers.items() if b != broker_id}
        self.overrides = replace(self.overrides, brokers={**brokers, broker_id: value} if rate else brokers)

    def end(self) -> None:
        """End all reassignments and overrides, and run the next cycles."""
        for topic, number in self.partitions:
            self.finish(topic, number)
        self.overrides, self.problems, self.unreadable, self.blind, self.down = Overrides(), (), {}, set(), set()
        self.cycle()
        if self.ledger:
            self.cycle()  # a write of unknown outcome has settled


def standing_rates(snapshot: Snapshot) -> dict[tuple[int, ReplicaRole], int]:
    found = {(b, role): snapshot.rates.get((b, role)) for b in BROKERS for role in ReplicaRole}
    return {side: rate for side, rate in found.items() if rate is not None}


# Events: (name, three numbers that its step may use).
STEPS = (
    "start",
    "join",
    "lag",
    "lead",
    "finish",
    "override",
    "drop override",
    "cluster override",
    "down",
    "blind",
    "traffic",
    "restart",
    "problem",
    "unreadable override",
    "unreadable config",
    "readable",
    "cycle",
)
Step = tuple[str, int, int, int, bool]
# Starts are drawn more often, because otherwise most stories are empty.
steps = st.lists(
    st.tuples(
        st.sampled_from(("start", "start", "start", "join", "join", "override", *STEPS)),
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(0, 31),
        st.booleans(),
    ),
    max_size=25,
)


def take(model: Model, step: Step) -> None:
    name, i, j, k, _ = step
    topic, number = TOPICS[i % len(TOPICS)], MOVABLE[j % len(MOVABLE)]
    broker_id = BROKERS[i % len(BROKERS)]
    if name == "start":
        model.start(topic, number, {b for b in BROKERS if k >> (b - 1) & 1})
    elif name == "join":
        model.join(topic, number)
    elif name == "lag":
        model.lag(topic, number)
    elif name == "lead":
        model.lead(topic, number, k)
    elif name == "finish":
        model.finish(topic, number)
    elif name == "override":
        model.override(broker_id, 1 + k * 1_000_000)
    elif name == "drop override":
        model.override(broker_id, 0)
    elif name == "cluster override":
        model.override(0, k * 1_000_000)
    elif name == "blind":
        model.blind ^= {broker_id}
    elif name == "down":
        model.down ^= {broker_id}
    elif name == "traffic":
        model.traffic[broker_id] = k * 7_000_000
    elif name == "restart":
        model.restart()
    elif name == "problem":
        model.problems = (Problem("/admin/reassign_partitions", "no JSON"),)
    elif name == "unreadable override":
        model.overrides = replace(model.overrides, unreadable={broker_id: "no JSON"})
    elif name == "unreadable config":
        resource = ConfigResource.topic(topic) if k % 2 else ConfigResource.broker(broker_id)
        model.unreadable[resource] = Problem(f"/config/{resource}", "no JSON")
    elif name == "readable":
        model.problems, model.unreadable = (), {}
        model.overrides = replace(model.overrides, unreadable={})


# Both replicas of a stable partition are among the brokers, so that overrides often need the same entries.
foreign_lists = st.one_of(
    st.sampled_from(("", "*")),
    st.lists(st.sampled_from(("3:4", "3:5", "4:5", "4:1", "3:1", "4:2")), unique=True).map(",".join),
)
foreign_rates = st.sampled_from(("0", "-1", "1", "500000", "40000000", "9000000000", "x"))


@st.composite
def foreign_configs(draw: st.DrawFn) -> Configs:
    """Rates on any broker, lists of any topic; for topics in reassignment only partitions never in reassignment."""
    brokers = draw(
        st.dictionaries(
            st.sampled_from(BROKERS).map(ConfigResource.broker),
            st.dictionaries(st.sampled_from(RATE_KEYS), foreign_rates, min_size=1),
        )
    )
    topics = draw(
        st.dictionaries(
            st.sampled_from((*TOPICS, QUIET_TOPIC)).map(ConfigResource.topic),
            st.dictionaries(st.sampled_from(REPLICAS_KEYS), foreign_lists, min_size=1),
        )
    )
    return {**brokers, **topics}


def entries_of(configs: Configs, topic: str, role: ReplicaRole) -> frozenset[str]:
    return parse_replicas(configs.get(ConfigResource.topic(topic), {}).get(role.replicas_key, ""))


def wanted_entries(model: Model, topic: str, role: ReplicaRole) -> set[str]:
    """The values that the specification requires, in terms of the model."""
    wanted: set[str] = set()
    busy = model.snapshot().participants.keys()
    for (name, number), partition in model.partitions.items():
        pending = partition.adding - set(partition.isr)
        if name == topic and partition.moving and pending:
            brokers = partition.isr if role is ReplicaRole.LEADER else pending
            wanted |= {f"{number}:{b}" for b in brokers}
        if name == topic and topic != CONSUMER_OFFSETS and role is ReplicaRole.FOLLOWER:
            certainly_in_sync = busy & set(partition.isr) - model.down
            overridden = partition.replicas & model.overrides.active_brokers
            wanted |= {f"{number}:{b}" for b in overridden - certainly_in_sync}
    return wanted


def without_entries_of(entries: frozenset[str], broker_ids: frozenset[int]) -> frozenset[str]:
    return frozenset(entry for entry in entries if entry == "*" or int(entry.partition(":")[2]) not in broker_ids)


def check_exact(model: Model, initial: Configs) -> None:
    """After a cycle: exactly the desired values and the earlier ones, except for brokers whose override is unknown."""
    hold = model.last_plan.hold
    for topic in (*TOPICS, QUIET_TOPIC):
        for role in ReplicaRole:
            foreign = entries_of(initial, topic, role)
            current = entries_of(model.throttles, topic, role)
            if ConfigResource.topic(topic) not in model.unreadable:
                expected = foreign if "*" in foreign else foreign | wanted_entries(model, topic, role)
                assert without_entries_of(current, hold.entries_of) == without_entries_of(expected, hold.entries_of)
                assert current >= expected
    decided = {(d.broker_id, d.role): str(d.rate_bytes_per_second) for d in model.last_plan.decisions}
    roles, overridden = model.snapshot().participants, model.overrides.brokers
    for broker_id in BROKERS:
        resource = ConfigResource.broker(broker_id)
        for role in ReplicaRole:
            held = role in roles.get(broker_id, set()) or broker_id in overridden
            before = initial.get(resource, {}).get(role.rate_key)
            expected_rate = decided[broker_id, role] if held else before
            assert held or (broker_id, role) not in decided
            assert broker_id not in overridden or expected_rate == str(overridden[broker_id].rate)
            if resource not in model.unreadable and not (expected_rate == before and hold.rates_of(broker_id)):
                assert model.throttles.get(resource, {}).get(role.rate_key) == expected_rate


def check_nothing_removed(before: Configs, after: Configs) -> None:
    for resource, keys in before.items():
        assert keys.keys() <= after.get(resource, {}).keys()
        for key in keys.keys() & set(REPLICAS_KEYS):
            assert parse_replicas(keys[key]) <= parse_replicas(after[resource][key])


def tell(model: Model, story: list[Step], initial: Configs) -> None:
    for step in story:
        take(model, step)
        if step[0] == "cycle" or step[-1]:
            before = model.throttles
            model.cycle()
            if model.last_plan.hold.everything:
                check_nothing_removed(before, model.throttles)
            else:
                check_exact(model, initial)


@settings(max_examples=examples(37, 300), deadline=None)
@given(initial=foreign_configs(), story=steps)
def test_cluster_is_left_byte_for_byte_as_found(initial: Configs, story: list[Step]) -> None:
    model = Model(initial)
    tell(model, story, initial)
    model.end()
    assert model.throttles == initial
    assert model.ledger == {}


@settings(max_examples=examples(20, 150), deadline=None)
@given(initial=foreign_configs(), story=steps)
def test_restart_before_every_cycle_leaves_the_same_configs(initial: Configs, story: list[Step]) -> None:
    model = Model(initial)
    for step in story:
        tell(model, [("restart", 0, 0, 0, False), step], initial)
    model.restart()
    model.end()
    assert model.throttles == initial
    assert model.ledger == {}


@settings(max_examples=examples(20, 150), deadline=None)
@given(story=steps, seen_unreadable=st.booleans())
def test_throttles_of_kafkas_tool_are_gone_after_the_reassignment(story: list[Step], seen_unreadable: bool) -> None:
    # kafka-reassign-partitions --throttle writes lists that name moving partitions, all current replicas on
    # the leader side, and both rates on every broker in them. They are removed only at the end of the reassignment.
    tool_rates = {LEADER_RATE: "5000000", FOLLOWER_RATE: "5000000"}
    others = {ConfigResource.broker(5): {LEADER_RATE: "77"}}
    model = Model(
        {
            **others,
            ConfigResource.topic("a"): {REPLICAS_KEYS[0]: "0:1,0:2", REPLICAS_KEYS[1]: "0:3,0:4"},
            **{ConfigResource.broker(b): tool_rates for b in (1, 2, 3, 4)},
        }
    )
    model.start("a", 0, {3, 4})
    if seen_unreadable:
        model.overrides = replace(model.overrides, unreadable={None: "no JSON"})
        model.cycle()
        assert {b for b in BROKERS if LEADER_RATE in model.throttles[ConfigResource.broker(b)]} == set(BROKERS)
        model.overrides = Overrides()
    model.cycle()
    tell(model, story, others)
    model.end()
    assert model.throttles == others
    assert model.ledger == {}


USERS_ENTRIES = ("3:4", "3:5", "4:5", "4:1", "3:1", "4:2")
Added = dict[tuple[str, ReplicaRole], set[str]]
CRASH_STORY = (
    "start",
    "start",
    "start",
    "join",
    "finish",
    "finish",
    "lead",
    "override",
    "drop override",
    "problem",
    "readable",
)
crash_steps = st.lists(
    st.tuples(
        st.sampled_from((*CRASH_STORY, "crash", "crash", "cycle", "cycle", "user")),
        st.sampled_from((0, 0, 0, 1, 2)),
        st.integers(0, 2),
        st.integers(1, 30),
        st.booleans(),
    ),
    min_size=2,
    max_size=20,
)


@settings(max_examples=examples(15, 120), deadline=None)
@given(initial=foreign_configs(), story=crash_steps)
def test_crash_between_any_two_writes_leaves_initial_configs_and_user_edits(
    initial: Configs, story: list[Step]
) -> None:
    """The ledger records each intent before the write, so the next cycle recovers from any crash."""
    model, added = Model(initial), Added()
    for number in MOVABLE[:2]:
        model.start("a", number, {BROKERS[number + 3], BROKERS[number + 2]})
    model.cycle()
    for name, i, j, k, flag in story:
        if name == "crash":
            model.interrupted_cycle(k % 12, silent_broker(j) if flag else frozenset())
        elif name == "user":
            topic, role, entry = TOPICS[i % len(TOPICS)], list(ReplicaRole)[j % 2], USERS_ENTRIES[k % 6]
            if model.add_as_user(topic, role, entry):
                added.setdefault((topic, role), set()).add(entry)
        elif name == "cycle":
            model.cycle()
        else:
            take(model, (name, i, j, k, flag))
    silent = silent_broker(len(story)) if len(story) % 2 else frozenset[ConfigResource]()
    for writes in range(len(model.states(silent))):
        crashed = deepcopy(model)
        crashed.interrupted_cycle(writes, silent)
        crashed.end()
        check_left(crashed, initial, added)


def silent_broker(number: int) -> frozenset[ConfigResource]:
    return frozenset({ConfigResource.broker(BROKERS[number % len(BROKERS)])})


def check_left(model: Model, initial: Configs, added: Added) -> None:
    """After the end: the initial values, and the values that users added."""
    assert model.ledger == {}
    for resource in initial.keys() | model.throttles.keys():
        for key in RATE_KEYS:
            assert model.throttles.get(resource, {}).get(key) == initial.get(resource, {}).get(key)
    for topic in (*TOPICS, QUIET_TOPIC):
        for role in ReplicaRole:
            left = entries_of(model.throttles, topic, role)
            assert left == entries_of(initial, topic, role) | added.get((topic, role), set())
    if not added:
        assert model.throttles == initial
