"""Property: after any sequence of events, a cluster has exactly its original configs plus the users' changes.

Hypothesis runs a whole planner on the in-memory twins through random sequences of reassignments, overrides, pauses,
user edits and faults. Planners crash between any two writes, or resume after another planner was elected. One machine
writes config and ledger in one transaction, as in ZooKeeper. The other writes them separately, as through Kafka's admin
API.
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
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation
from autothrottle.adapters.memory import MemoryCluster, MemoryElectorate, MemoryOverrides
from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    REPLICAS_KEYS,
    ConfigResource,
    ResourceType,
    format_replicas,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import NO_LEADER, Problem
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Cycle, Outcome, OutcomeStatus, Pause, PauseMode
from autothrottle.core.throttles.changes import Change, intended
from autothrottle.planner.loop import Planner, Trigger
from autothrottle.ports.kafka import Term
from tests.builders import mb
from tests.examples import examples
from tests.unit.autothrottle.planner.bench import BROKERS, Bench

TOPICS = ("t1", "t2")
REASSIGNED, FIXED = (0, 1, 2), 3
"""Partitions that are reassigned, and one that never is. Users edit only its list entries: the others are ours."""
OTHER_KEY = "log.retention.ms"

Configs = dict[ConfigResource, dict[str, str]]


class PlannerCrashed(BaseException):
    """Simulates a crash; a BaseException, so that the planner does not catch it."""


class Fuse:
    """Crashes a planner before one of its next writes."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Writes that still succeed; None: no limit."""

    def burn(self) -> None:
        """Count one write.

        Raises:
            PlannerCrashed: no writes are left.
        """
        if self.left == 0:
            raise PlannerCrashed
        if self.left is not None:
            self.left -= 1


class TransactionalCluster(MemoryCluster):
    """Writes config and ledger in one transaction; the planner may crash before each."""

    def __init__(self, electorate: MemoryElectorate, fuse: Fuse) -> None:
        super().__init__(electorate, BROKERS)
        self.fuse = fuse
        self.user: Callable[[], None] | None = None
        """Called once, between the planner's read and its write."""

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        user, self.user = self.user, None
        if user is not None:
            user()
        return self._carry_out(term, changes, timeout)

    def _carry_out(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        return super().apply(term, changes, timeout)

    def _apply(self, change: Change) -> Outcome:
        self.fuse.burn()
        return super()._apply(change)


class StagedCluster(TransactionalCluster):
    """Writes the intent to the ledger, then the config to Kafka, then the result to the ledger.

    The admin backend's writer prepares the requests; this class carries them out write by write.
    """

    def _carry_out(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        self._raise_if_down()
        outcomes: dict[ConfigResource, Outcome] = {}
        ready = [p for change in changes if (p := self._prepared(change, outcomes)) is not None]
        for prepared in ready:
            if prepared.requests:
                self._write_ledger(
                    term.fence, prepared.resource, intended(prepared.change, prepared.ledger, term.fence)
                )
        for prepared in ready:
            for request in prepared.requests:
                self._write_config(term.fence, prepared.resource, request)
        for prepared in ready:
            self._write_ledger(term.fence, prepared.resource, prepared.change.ledger)
            outcomes[prepared.resource] = Outcome(prepared.resource, OutcomeStatus.APPLIED)
        return [outcomes[change.resource] for change in changes]

    def _prepared(self, change: Change, outcomes: dict[ConfigResource, Outcome]) -> Any:
        resource, entry = change.resource, self.ledger.get(change.resource)
        current = self._throttles().get(resource, {})
        reason = self.refused.get(resource, "")
        try:
            work = config_writer._prepared(change, entry, current)
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


def altered(current: str | None, edit: ConfigEdit) -> str | None:
    """Return the value after an incremental edit, as a controller computes it (KIP-339)."""
    parts = [part for part in (current or "").split(",") if part]
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
    """Overrides; the planner may crash before a purge."""

    def __init__(self, electorate: MemoryElectorate, fuse: Fuse) -> None:
        super().__init__(electorate)
        self.fuse = fuse

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        self.fuse.burn()
        return super().purge_override(fence, broker_id, version, reason)


brokers = st.sampled_from(BROKERS)
topics = st.sampled_from(TOPICS)
partitions = st.sampled_from(REASSIGNED)
# No rate that a planner can choose: a user who sets the same rate cannot be distinguished from the planner.
rates = st.sampled_from(("0", "1", "500000", "40000001", "72000001", "9000000001"))
broker_resources = brokers.map(ConfigResource.broker)
topic_resources = topics.map(ConfigResource.topic)
entries = st.lists(st.sampled_from([f"{FIXED}:{b}" for b in BROKERS]), min_size=1, unique=True).map(",".join)
initial_configs = st.builds(
    lambda rates, lists: {**rates, **lists},
    st.dictionaries(broker_resources, st.dictionaries(st.sampled_from((*RATE_KEYS, OTHER_KEY)), rates, min_size=1)),
    st.dictionaries(topic_resources, st.dictionaries(st.sampled_from(REPLICAS_KEYS), entries, min_size=1)),
)


class Story(RuleBasedStateMachine):
    """One cluster with its planners and users."""

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
        """The users' configs: the initial ones and their edits."""
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
    def event_cycle(self) -> None:
        self._cycle("an event")

    @rule(writes=st.integers(0, 12))
    def crash_the_planner_between_two_writes(self, writes: int) -> None:
        self.fuse.left = writes
        with contextlib.suppress(PlannerCrashed):
            self._cycle()
        self.fuse.left = None
        self._elect()

    @rule()
    def restart(self) -> None:
        self._elect()

    @precondition(lambda self: len(self.planners) > 1)
    @rule()
    def a_deposed_planner_resumes(self) -> None:
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
        self.cluster.submit_reassignment(topic, {partition: replicas})

    @rule(topic=topics, partition=partitions)
    def join_isr(self, topic: str, partition: int) -> None:
        current = self.cluster.topics[topic][partition]
        pending = [b for b in current.adding_replicas if b not in current.isr]
        assume(pending)
        self.cluster.join_isr(topic, partition, pending[0])

    @rule(topic=topics, partition=partitions, choice=st.integers(0, 3))
    def elect_leader(self, topic: str, partition: int, choice: int) -> None:
        leaders = [*self.cluster.topics[topic][partition].isr, NO_LEADER]
        self.cluster.move_leader(topic, partition, leaders[choice % len(leaders)])

    @rule(topic=topics, partition=partitions, cancels=st.booleans())
    def end_partition(self, topic: str, partition: int, cancels: bool) -> None:
        assume(self.cluster.topics[topic][partition].moves)
        (self.cluster.cancel if cancels else self.cluster.finish)(topic, partition)

    @rule(topic=topics)
    def delete_and_recreate(self, topic: str) -> None:
        self.cluster.delete_topic(topic)
        self.expected.pop(ConfigResource.topic(topic), None)
        self._add(topic)

    # Operators.

    @rule(broker_id=st.none() | brokers, rate=st.integers(1, 200), autoremove=st.booleans(), ends=st.booleans())
    def override(self, broker_id: int | None, rate: int, autoremove: bool, ends: bool) -> None:
        end = self.bench.now() + timedelta(seconds=90) if ends else None
        self.bench.overrides.set_override(broker_id, StoredOverride(mb(rate), autoremove=autoremove, expire_time=end))

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

    @rule(resource=broker_resources, key=st.sampled_from((*RATE_KEYS, OTHER_KEY)), value=st.none() | rates)
    def edit_a_foreign_key(self, resource: ConfigResource, key: str, value: str | None) -> None:
        self._set(resource, key, value)

    @rule(topic=topics, key=st.sampled_from(REPLICAS_KEYS), broker_id=brokers, adds=st.booleans())
    def edit_a_foreign_list_entry(self, topic: str, key: str, broker_id: int, adds: bool) -> None:
        self._edit_entry(ConfigResource.topic(topic), key, f"{FIXED}:{broker_id}", adds)

    @rule(resource=broker_resources, key=st.sampled_from(RATE_KEYS), value=st.none() | rates)
    def edit_a_foreign_key_during_a_cycle(self, resource: ConfigResource, key: str, value: str | None) -> None:
        self.cluster.user = lambda: self._set(resource, key, value)
        self._cycle()
        self.cluster.user = None

    @rule(data=st.data(), value=st.none() | rates)
    def edit_our_rate(self, data: st.DataObject, value: str | None) -> None:
        self._repair()
        for _ in range(2):
            self._cycle("an event")
        overrides = self.bench.overrides.read_overrides()
        # A rate that is due for removal keeps the user's value. Skip overrides that may expire in the next cycle.
        assume(not any(o and o.expire_time for o in (overrides.cluster, *overrides.brokers.values())))
        ours = [(r, key) for r, entry in self.cluster.ledger.items() for key in entry.keys if key in RATE_KEYS]
        assume(ours)
        resource, key = data.draw(st.sampled_from(sorted(ours, key=str)))
        current = self.cluster.configs[resource][key]
        self.cluster.set_config_as_user(resource, key, value)
        record = self._cycle()
        assert self.cluster.configs[resource].get(key) is not None, "repaired"
        if value != current:
            assert (
                any("another party" in finding for finding in record.findings)
                or value == self.cluster.configs[resource][key]
            )

    # Faults.

    @rule()
    def the_cluster_is_unavailable(self) -> None:
        self.cluster.unavailable(True)

    @rule()
    def reassignments_are_unreadable(self) -> None:
        self.cluster.incomplete = "not JSON"

    @rule()
    def a_topic_is_unreadable(self) -> None:
        self.cluster.problems[:] = [Problem("/brokers/topics/t9", "not JSON")]

    @rule(resource=broker_resources | topic_resources)
    def a_config_is_unreadable(self, resource: ConfigResource) -> None:
        self.cluster.unreadable_configs[resource] = Problem(f"/config/{resource}", "not JSON")

    @rule(resource=broker_resources | topic_resources)
    def a_resource_is_refused(self, resource: ConfigResource) -> None:
        self.cluster.refused[resource] = "not now"

    @rule(down=st.booleans())
    def metrics(self, down: bool) -> None:
        self.bench.metrics.unavailable(down)

    @rule(broker_id=brokers, inbound=st.integers(0, 120))
    def set_load(self, broker_id: int, inbound: int) -> None:
        self.bench.set_load(broker_id, outbound=inbound, inbound=inbound)

    @rule(down=st.booleans())
    def overrides_are_unreadable(self, down: bool) -> None:
        assume(not down or self.bench.pauses.read_pause() is None)
        self.bench.overrides.unreadable = {None: "not JSON"} if down else {}

    @rule()
    def repair(self) -> None:
        self._repair()

    @invariant()
    def foreign_configs_are_unchanged(self) -> None:
        for resource in self.cluster.configs.keys() | self.expected.keys():
            current, users = self.cluster.configs.get(resource, {}), self.expected.get(resource, {})
            entry = self.cluster.ledger.get(resource)
            ours = entry.keys if entry else {}
            for key in current.keys() | users.keys():
                if key in REPLICAS_KEYS:
                    owned = ours[key].owned if key in ours else frozenset()
                    assert parse_replicas(current.get(key, "")) - owned == parse_replicas(users.get(key, ""))
                elif key not in ours:
                    assert current.get(key) == users.get(key), (resource, key)
                else:
                    assert users.get(key) in (ours[key].before, current.get(key)), (resource, key)

    # Helpers of the rules.

    def _elect(self) -> None:
        self.planners[:-1], dropped = [], self.planners[:-1]
        for planner, _ in dropped:
            planner.stop()
        self.planners.append((self.bench.new_planner(), Term(self.bench.electorate.begin_term())))

    def _cycle(self, reason: str = "") -> Cycle:
        planner, term = self.planners[-1]
        self.bench.seconds += 1 if reason else 60
        record = planner.run_cycle(term, Trigger(reason or "interval", scheduled=not reason))
        assert "unexpected" not in record.error
        return record

    def _add(self, topic: str) -> None:
        self.cluster.add_topic(topic, {n: (BROKERS[n % 4], BROKERS[(n + 1) % 4]) for n in (*REASSIGNED, FIXED)})

    def _copy(self) -> object:
        return {r: dict(c) for r, c in self.cluster.configs.items()}, dict(self.cluster.ledger)

    def _set(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """Edit a key as a user, unless the planner owns it."""
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
        for configs, owned in ((self.cluster.configs, ours), (self.expected, frozenset[str]())):
            config = configs.setdefault(resource, {})
            listed = parse_replicas(config.get(key, "")) - {entry} | ({entry} if adds else frozenset())
            config.pop(key, None)
            if listed or owned:
                config[key] = format_replicas(listed)
        self.cluster.version += 1

    def _repair(self) -> None:
        self.cluster.unavailable(False)
        self.cluster.incomplete = ""
        self.cluster.problems.clear()
        self.cluster.unreadable_configs.clear()
        self.cluster.refused.clear()
        self.bench.overrides.unreadable = {}
        self.bench.pauses.remove_pause()

    def _end(self) -> None:
        """End all reassignments, overrides, pauses and faults; two cycles later nothing of ours remains."""
        self._repair()
        for topic in TOPICS:
            self.cluster.finish(topic)
        for broker_id in (None, *BROKERS):
            self.bench.overrides.remove_override(broker_id)
        self._cycle()
        self._cycle()
        assert self.cluster.ledger == {}
        for resource in self.cluster.configs.keys() | self.expected.keys():
            current, users = self.cluster.configs.get(resource, {}), self.expected.get(resource, {})
            assert current.keys() == users.keys(), resource
            for key in current:
                if key in REPLICAS_KEYS:
                    assert parse_replicas(current[key]) == parse_replicas(users[key]), (resource, key)
                else:
                    assert current[key] == users[key], (resource, key)


class StoryThroughTheAdminApi(Story):
    """The same story with separate writes of config and ledger."""

    cluster_class = StagedCluster


# No shrinking, since it takes minutes: a failing story is printed and has at most 30 steps.
SETTINGS = settings(
    max_examples=examples(15, 120),
    stateful_step_count=30,
    phases=[Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
TestStoriesInOneTransaction = Story.TestCase
TestStoriesInOneTransaction.settings = SETTINGS
TestStoriesWithSeparateWrites = StoryThroughTheAdminApi.TestCase
TestStoriesWithSeparateWrites.settings = SETTINGS
