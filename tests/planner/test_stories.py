"""Whatever happens to a cluster and its planners, what is left is what was there before and what users changed.

A whole planner is led through arbitrary stories over the in-memory twins: moves, overrides, pauses, edits of users,
faults, and planners that are lost between any two of their writes or that wake when another one leads. Once with config
and ledger in one transaction, as in ZooKeeper, and once one after the other, as through Kafka's admin API.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autothrottle.adapters.kafka_admin import config_writer
from autothrottle.adapters.kafka_admin.client import ConfigEdit, ConfigOperation
from autothrottle.adapters.memory import MemoryCluster, MemoryElectorate, MemoryOverrides
from autothrottle.core.changes import Change, Outcome, OutcomeStatus, intended
from autothrottle.core.configs import (
    RATE_KEYS,
    REPLICAS_KEYS,
    ConfigResource,
    ResourceType,
    format_replicas,
    parse_replicas,
)
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.core.topology import NO_LEADER, Problem
from autothrottle.planner.loop import Planner
from autothrottle.planner.triggers import Trigger
from autothrottle.ports.leadership import Term
from tests.builders import mb
from tests.planner.bench import BROKERS, Bench

TOPICS = ("t1", "t2")
MOVABLE, FIXED = (0, 1, 2), 3
"""Partitions that move, and one that never does: users list no others, since entries of a move belong to it."""
ANOTHER_KEY = "log.retention.ms"

Configs = dict[ConfigResource, dict[str, str]]


class PlannerLost(BaseException):
    """The process is gone; nothing of the planner catches it."""


class Fuse:
    """Ends a planner before one of its next writes."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Writes that still succeed; None: all do."""

    def burn(self) -> None:
        """Let one more write happen, or none."""
        if self.left == 0:
            raise PlannerLost
        if self.left is not None:
            self.left -= 1


class TransactionalCluster(MemoryCluster):
    """Config and ledger in one transaction; a planner may be lost before each."""

    def __init__(self, electorate: MemoryElectorate, fuse: Fuse) -> None:
        super().__init__(electorate, BROKERS)
        self.fuse = fuse
        self.user: Callable[[], None] | None = None
        """Acts between the planner's reading and its writing, once."""

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        user, self.user = self.user, None
        if user is not None:
            user()
        return self._carry_out(fence, changes, timeout)

    def _carry_out(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        return super().apply(fence, changes, timeout)

    def _apply(self, change: Change) -> Outcome:
        self.fuse.burn()
        return super()._apply(change)


class StagedCluster(TransactionalCluster):
    """The ledger says what is about to be written, then Kafka is told, then the ledger says that it was.

    What is sent is the admin writer's own thought; here it is carried out one write after the other.
    """

    def _carry_out(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        self._answer()
        outcomes: dict[ConfigResource, Outcome] = {}
        ready = [p for change in changes if (p := self._prepared(change, outcomes)) is not None]
        for prepared in ready:
            if prepared.requests:
                self._write_ledger(fence, prepared.resource, intended(prepared.change, prepared.ledger, fence))
        for prepared in ready:
            for request in prepared.requests:
                self._write_config(fence, prepared.resource, request)
        for prepared in ready:
            self._write_ledger(fence, prepared.resource, prepared.change.ledger)
            outcomes[prepared.resource] = Outcome(prepared.resource, OutcomeStatus.APPLIED)
        return [outcomes[change.resource] for change in changes]

    def _prepared(self, change: Change, outcomes: dict[ConfigResource, Outcome]) -> Any:
        resource, entry = change.resource, self.ledger.get(change.resource)
        standing = self._throttles().get(resource, {})
        reason = self._refused.get(resource, "")
        try:
            work = config_writer._prepared(change, entry, standing)
        except AutothrottleError as error:
            reason = str(error)
        if reason:
            outcomes[resource] = Outcome(resource, OutcomeStatus.REFUSED, reason)
            return None
        if work.requests or work.change.ledger != entry:
            return work
        outcomes[resource] = Outcome(resource, OutcomeStatus.UNCHANGED)
        return None

    def _write_ledger(self, fence: int, resource: ConfigResource, entry: Any) -> None:
        self.fuse.burn()
        self.electorate.check(fence)
        if entry is None:
            self.ledger.pop(resource, None)
        else:
            self.ledger[resource] = entry
        self.version += 1

    def _write_config(self, fence: int, resource: ConfigResource, request: Sequence[ConfigEdit]) -> None:
        self.fuse.burn()
        self.electorate.check(fence)
        if resource.type is ResourceType.TOPIC and resource.name not in self.topics:
            return
        config = self.configs.setdefault(resource, {})
        for edit in request:
            value = altered(config.get(edit.key), edit)
            if value is None:
                config.pop(edit.key, None)
            else:
                config[edit.key] = value
        self.version += 1


def altered(standing: str | None, edit: ConfigEdit) -> str | None:
    """What a controller makes of a value (KIP-339)."""
    parts = [part for part in (standing or "").split(",") if part]
    named = (edit.value or "").split(",")
    match edit.operation:
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.SET:
            return edit.value
        case ConfigOperation.APPEND:
            return ",".join([*parts, *(part for part in named if part not in parts)])
        case ConfigOperation.SUBTRACT:
            return ",".join(part for part in parts if part not in named)


class BreakableOverrides(MemoryOverrides):
    """Overrides; a planner may be lost before it purges one."""

    def __init__(self, electorate: MemoryElectorate, fuse: Fuse) -> None:
        super().__init__(electorate)
        self.fuse = fuse

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        self.fuse.burn()
        return super().purge_override(fence, broker_id, version, reason)


brokers = st.sampled_from(BROKERS)
topics = st.sampled_from(TOPICS)
partitions = st.sampled_from(MOVABLE)
# None that a planner would choose: who sets that very rate in that very moment has set it together with us.
rates = st.sampled_from(("0", "1", "500000", "40000001", "72000001", "9000000001"))
broker_resources = brokers.map(ConfigResource.broker)
topic_resources = topics.map(ConfigResource.topic)
entries = st.lists(st.sampled_from([f"{FIXED}:{b}" for b in BROKERS]), min_size=1, unique=True).map(",".join)
initial_configs = st.builds(
    lambda rates, lists: {**rates, **lists},
    st.dictionaries(broker_resources, st.dictionaries(st.sampled_from((*RATE_KEYS, ANOTHER_KEY)), rates, min_size=1)),
    st.dictionaries(topic_resources, st.dictionaries(st.sampled_from(REPLICAS_KEYS), entries, min_size=1)),
)


class Story(RuleBasedStateMachine):
    """One cluster, its planners and its users."""

    cluster_class: type[TransactionalCluster] = TransactionalCluster

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(cleanup_foreign=False)
        self.bench.planner.stop()
        self.fuse = Fuse()
        self.cluster = self.cluster_class(self.bench.electorate, self.fuse)
        self.bench.cluster = self.cluster
        self.bench.overrides = BreakableOverrides(self.bench.electorate, self.fuse)
        self.planners: list[tuple[Planner, Term]] = []
        self.expected: Configs = {}
        """What users set, here and before."""
        for topic in TOPICS:
            self._add(topic)
        self._elect()

    @initialize(configs=initial_configs)
    def begin(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        self.expected = {resource: dict(keys) for resource, keys in configs.items()}
        self.cluster.configs = {resource: dict(keys) for resource, keys in configs.items()}

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            for planner, _ in self.planners:
                planner.stop()

    # Planners.

    @rule()
    def cycle(self) -> None:
        self._cycle()

    @rule()
    def cycle_of_an_event(self) -> None:
        self._cycle("something happened")

    @rule(writes=st.integers(0, 12))
    def lose_the_planner_between_two_writes(self, writes: int) -> None:
        self.fuse.left = writes
        with contextlib.suppress(PlannerLost):
            self._cycle()
        self.fuse.left = None
        self._elect()

    @rule()
    def restart(self) -> None:
        self._elect()

    @precondition(lambda self: len(self.planners) > 1)
    @rule()
    def an_old_planner_wakes(self) -> None:
        planner, term = self.planners[-2]
        before = self._copy()
        record = planner.run_cycle(term, Trigger("interval", scheduled=True))
        assert self._copy() == before
        assert (
            record.error or not record.outcomes or not any(o.status is OutcomeStatus.APPLIED for o in record.outcomes)
        )

    # The cluster.

    @rule(topic=topics, partition=partitions, replicas=st.lists(brokers, min_size=1, max_size=3, unique=True))
    def start(self, topic: str, partition: int, replicas: list[int]) -> None:
        self.cluster.start_reassignment(topic, {partition: replicas})

    @rule(topic=topics, partition=partitions)
    def catch_up(self, topic: str, partition: int) -> None:
        standing = self.cluster.topics[topic][partition]
        pending = [b for b in standing.adding if b not in standing.isr]
        assume(pending)
        self.cluster.join_isr(topic, partition, pending[0])

    @rule(topic=topics, partition=partitions, choice=st.integers(0, 3))
    def lead(self, topic: str, partition: int, choice: int) -> None:
        leaders = [*self.cluster.topics[topic][partition].isr, NO_LEADER]
        self.cluster.move_leader(topic, partition, leaders[choice % len(leaders)])

    @rule(topic=topics, partition=partitions, cancels=st.booleans())
    def end_one(self, topic: str, partition: int, cancels: bool) -> None:
        assume(self.cluster.topics[topic][partition].moves)
        (self.cluster.cancel if cancels else self.cluster.finish)(topic, partition)

    @rule(topic=topics)
    def delete_and_make_anew(self, topic: str) -> None:
        self.cluster.delete_topic(topic)
        self.expected.pop(ConfigResource.topic(topic), None)
        self._add(topic)

    # Operators.

    @rule(broker_id=st.none() | brokers, rate=st.integers(1, 200), autoremove=st.booleans(), ends=st.booleans())
    def override(self, broker_id: int | None, rate: int, autoremove: bool, ends: bool) -> None:
        end = self.bench.now() + timedelta(seconds=90) if ends else None
        self.bench.overrides.set_override(broker_id, mb(rate), autoremove, end)

    @rule(broker_id=st.none() | brokers)
    def drop_override(self, broker_id: int | None) -> None:
        self.bench.overrides.remove_override(broker_id)

    @rule(mode=st.sampled_from(PauseMode))
    def pause(self, mode: PauseMode) -> None:
        self.bench.pauses.set_pause(Pause(mode))

    @rule()
    def resume(self) -> None:
        self.bench.pauses.remove_pause()

    # Users.

    @rule(resource=broker_resources, key=st.sampled_from((*RATE_KEYS, ANOTHER_KEY)), value=st.none() | rates)
    def edit_what_is_not_ours(self, resource: ConfigResource, key: str, value: str | None) -> None:
        self._set(resource, key, value)

    @rule(topic=topics, key=st.sampled_from(REPLICAS_KEYS), broker_id=brokers, adds=st.booleans())
    def edit_an_entry_that_is_not_ours(self, topic: str, key: str, broker_id: int, adds: bool) -> None:
        self._edit_entry(ConfigResource.topic(topic), key, f"{FIXED}:{broker_id}", adds)

    @rule(resource=broker_resources, key=st.sampled_from(RATE_KEYS), value=st.none() | rates)
    def edit_what_is_not_ours_while_a_planner_decides(
        self, resource: ConfigResource, key: str, value: str | None
    ) -> None:
        self.cluster.user = lambda: self._set(resource, key, value)
        self._cycle()
        self.cluster.user = None

    @rule(data=st.data(), value=st.none() | rates)
    def edit_a_rate_of_ours(self, data: st.DataObject, value: str | None) -> None:
        self._mend()
        for _ in range(2):
            self._cycle("something happened")
        overrides = self.bench.overrides.read_overrides()
        # A rate that would go anyway is left as the user set it; of those that stand, some overrides end by themselves.
        assume(not any(o and o.expire_time for o in (overrides.cluster, *overrides.brokers.values())))
        ours = [(r, key) for r, entry in self.cluster.ledger.items() for key in entry.keys if key in RATE_KEYS]
        assume(ours)
        resource, key = data.draw(st.sampled_from(sorted(ours, key=str)))
        standing = self.cluster.configs[resource][key]
        self.cluster.set_config_as_user(resource, key, value)
        record = self._cycle()
        assert self.cluster.configs[resource].get(key) is not None, "repaired"
        if value != standing:
            assert (
                any("somebody" in finding for finding in record.findings)
                or value == self.cluster.configs[resource][key]
            )

    # Faults.

    @rule()
    def nobody_answers(self) -> None:
        self.cluster.unavailable(True)

    @rule()
    def what_moves_is_unreadable(self) -> None:
        self.cluster.incomplete("no JSON")

    @rule()
    def a_part_is_unreadable(self) -> None:
        self.cluster.problems[:] = [Problem("/brokers/topics/t9", "no JSON")]

    @rule(resource=broker_resources | topic_resources)
    def a_config_is_unreadable(self, resource: ConfigResource) -> None:
        self.cluster.unreadable_configs[resource] = Problem(f"/config/{resource}", "no JSON")

    @rule(resource=broker_resources | topic_resources)
    def a_resource_is_refused(self, resource: ConfigResource) -> None:
        self.cluster.refuse(resource, "not now")

    @rule(down=st.booleans())
    def metrics(self, down: bool) -> None:
        self.bench.metrics.unavailable(down)

    @rule(broker_id=brokers, rx=st.integers(0, 120))
    def measure(self, broker_id: int, rx: int) -> None:
        self.bench.measure(broker_id, tx=rx, rx=rx)

    @rule(down=st.booleans())
    def stores(self, down: bool) -> None:
        assume(not down or self.bench.pauses.read_pause() is None)
        self.bench.overrides.unreadable = {None: "no JSON"} if down else {}

    @rule()
    def mend(self) -> None:
        self._mend()

    @invariant()
    def what_is_not_ours_stands_as_users_left_it(self) -> None:
        for resource in self.cluster.configs.keys() | self.expected.keys():
            standing, users = self.cluster.configs.get(resource, {}), self.expected.get(resource, {})
            entry = self.cluster.ledger.get(resource)
            ours = entry.keys if entry else {}
            for key in standing.keys() | users.keys():
                if key in REPLICAS_KEYS:
                    owned = ours[key].owned if key in ours else frozenset()
                    assert parse_replicas(standing.get(key, "")) - owned == parse_replicas(users.get(key, ""))
                elif key not in ours:
                    assert standing.get(key) == users.get(key), (resource, key)
                else:
                    assert users.get(key) in (ours[key].before, standing.get(key)), (resource, key)

    # What the rules are made of.

    def _elect(self) -> None:
        self.planners[:-1], forgotten = [], self.planners[:-1]
        for planner, _ in forgotten:
            planner.stop()
        self.planners.append((self.bench.another_planner(), Term(self.bench.electorate.begin_term())))

    def _cycle(self, reason: str = "") -> CycleRecord:
        planner, term = self.planners[-1]
        self.bench.seconds += 1 if reason else 60
        record = planner.run_cycle(term, Trigger(reason or "interval", scheduled=not reason))
        assert "unexpected" not in record.error
        return record

    def _add(self, topic: str) -> None:
        self.cluster.add_topic(topic, {n: (BROKERS[n % 4], BROKERS[(n + 1) % 4]) for n in (*MOVABLE, FIXED)})

    def _copy(self) -> object:
        return {r: dict(c) for r, c in self.cluster.configs.items()}, dict(self.cluster.ledger)

    def _set(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """A user's edit, unless it is of a key of ours."""
        entry = self.cluster.ledger.get(resource)
        if entry is None or key not in entry.keys:
            self.cluster.set_config_as_user(resource, key, value)
            users = self.expected.setdefault(resource, {})
            users.pop(key, None)
            if value is not None:
                users[key] = value

    def _edit_entry(self, resource: ConfigResource, key: str, entry: str, adds: bool) -> None:
        ledger = self.cluster.ledger.get(resource)
        ours = ledger.keys[key].owned if ledger and key in ledger.keys else frozenset()
        if entry in ours:
            return
        for configs, apart in ((self.cluster.configs, ours), (self.expected, frozenset[str]())):
            config = configs.setdefault(resource, {})
            listed = parse_replicas(config.get(key, "")) - {entry} | ({entry} if adds else frozenset())
            config.pop(key, None)
            if listed or apart:
                config[key] = format_replicas(listed)
        self.cluster.version += 1

    def _mend(self) -> None:
        self.cluster.unavailable(False)
        self.cluster.incomplete("")
        self.cluster.problems.clear()
        self.cluster.unreadable_configs.clear()
        self.cluster._refused.clear()
        self.bench.overrides.unreadable = {}
        self.bench.pauses.remove_pause()

    def _end(self) -> None:
        """All is over: moves, overrides, pauses and faults. Two cycles later nothing of ours is left."""
        self._mend()
        for topic in TOPICS:
            self.cluster.finish(topic)
        for broker_id in (None, *BROKERS):
            self.bench.overrides.remove_override(broker_id)
        self._cycle()
        self._cycle()
        assert self.cluster.ledger == {}
        for resource in self.cluster.configs.keys() | self.expected.keys():
            standing, users = self.cluster.configs.get(resource, {}), self.expected.get(resource, {})
            assert standing.keys() == users.keys(), resource
            for key in standing:
                if key in REPLICAS_KEYS:
                    assert parse_replicas(standing[key]) == parse_replicas(users[key]), (resource, key)
                else:
                    assert standing[key] == users[key], (resource, key)


class StoryThroughTheAdminApi(Story):
    """The same, with config and ledger written one after the other."""

    cluster_class = StagedCluster


# Without shrinking, which takes minutes here: a story that fails has 30 steps at most, and is printed.
SETTINGS = settings(
    max_examples=60, stateful_step_count=30, phases=[Phase.reuse, Phase.generate], report_multiple_bugs=False
)
TestInOneTransaction = Story.TestCase
TestInOneTransaction.settings = SETTINGS
TestOneAfterTheOther = StoryThroughTheAdminApi.TestCase
TestOneAfterTheOther.settings = SETTINGS
