"""The edits from the current to the desired throttles, and the findings about foreign edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LATE_WRITES,
    LEADER_RATE,
    LEADER_REPLICAS,
    MAX_VALUE_BYTES,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import Problem, Snapshot, TopicReassignment
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, ChangeSet, Edit, changes, intended, validate_change
from autothrottle.core.throttles.ownership import DesiredKey, desired_replicas
from autothrottle.core.throttles.plan import DesiredReplicas, plan
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.units import MEGABYTE
from tests.builders import NOON

LIMITS = Limits(min_rate=10 * MEGABYTE, max_tx_ratio=0.9, max_rx_ratio=0.9, change_threshold=0.1, failure_threshold=1)
MINIMUM = str(10 * MEGABYTE)
TOPIC = ConfigResource.topic("t")
B1, B2, B3, B4 = (ConfigResource.broker(b) for b in (1, 2, 3, 4))
LISTS = {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}
"""Our throttles for the reassignment of partition 0 from broker 1 to broker 2."""

Configs = Mapping[ConfigResource, Mapping[str, str]]


def moving(partitions: int = 1, isr: tuple[int, ...] = (1,), adding: tuple[int, ...] = (2,)) -> TopicReassignment:
    return TopicReassignment(
        topic="t",
        partitions=tuple(range(partitions)),
        leaders=(isr[0],) * partitions,
        isr=(isr,) * partitions,
        adding_replicas=(adding,) * partitions,
        removing_replicas=((),) * partitions,
    )


@dataclass
class Kafka:
    """A cluster without metrics, so that every rate is the minimum or an override."""

    throttles: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    reassignments: tuple[TopicReassignment, ...] = (moving(),)
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)
    problems: tuple[Problem, ...] = ()
    unreadable: Mapping[ConfigResource, Problem] = field(default_factory=dict)
    hosted: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    keep_throttles: bool = False
    at: datetime = NOON

    def cycle(self) -> ChangeSet:
        """Decide, and apply all changes."""
        snapshot = Snapshot(
            version=1,
            brokers=frozenset({1, 2, 3, 4}),
            reassignments=self.reassignments,
            throttles={r: k for r, k in self.throttles.items() if r not in self.unreadable},
            ledger=self.ledger,
            replicas=self.hosted,
            unreadable_configs=self.unreadable,
            problems=self.problems,
        )
        limits = replace(LIMITS, keep_throttles=self.keep_throttles)
        failures = dict.fromkeys(range(1, 5), 9)
        done = changes(plan(snapshot, Loads(), limits, self.overrides, failures), snapshot, self.at, term=3, cycle=4)
        ledger = dict(self.ledger)
        for change in done.changes:
            validate_change(change)
            keys = self.throttles.setdefault(change.resource, {})
            for edit in change.edits:
                assert keys.pop(edit.key, None) == edit.expected
                if edit.value is not None:
                    keys[edit.key] = edit.value
            ledger.pop(change.resource, None)
            if change.ledger is not None:
                ledger[change.resource] = change.ledger
        self.ledger = ledger
        return done

    def end(self) -> ChangeSet:
        """End the reassignment, and run the next cycle."""
        self.reassignments = ()
        return self.cycle()

    def settle(self) -> ChangeSet:
        """Run the next cycle, after the last time at which a write of unknown outcome may arrive."""
        self.at += LATE_WRITES
        return self.cycle()

    def current(self) -> Configs:
        return {resource: keys for resource, keys in self.throttles.items() if keys}


THROTTLED: Configs = {B1: {LEADER_RATE: MINIMUM}, B2: {FOLLOWER_RATE: MINIMUM}, TOPIC: LISTS}


def throttled(**more: object) -> Kafka:
    """A cluster after its first cycle."""
    kafka = Kafka()
    kafka.cycle()
    for name, value in more.items():
        setattr(kafka, name, value)
    return kafka


def test_reassignment_gets_rates_and_lists_and_leaves_nothing_behind() -> None:
    kafka = Kafka()
    done = kafka.cycle()
    assert kafka.current() == THROTTLED
    assert [change.resource for change in done.changes] == [B1, B2, TOPIC]
    assert {c.ledger.term for c in done.changes if c.ledger} == {3}
    kafka.end()
    assert (kafka.current(), kafka.ledger) == ({}, {})


def test_brokers_come_before_topics_sorted_by_number() -> None:
    kafka = Kafka(reassignments=(moving(isr=(1,), adding=(10, 9)),))
    assert [c.resource.path for c in kafka.cycle().changes] == ["brokers/1", "brokers/9", "brokers/10", "topics/t"]


def test_unchanged_cluster_is_not_written() -> None:
    kafka = throttled()
    assert kafka.cycle() == ChangeSet((), (), ())


def test_missing_lists_are_written_in_any_cycle() -> None:
    """Defects D4 and D5 of the original.

    In the original lists are written only when a topic is seen for the first time: not after a failed first cycle, not
    for a new partition, not after a leader change.
    """
    kafka = throttled()
    del kafka.throttles[TOPIC]
    kafka.ledger = {r: e for r, e in kafka.ledger.items() if r != TOPIC}
    kafka.cycle()
    assert kafka.throttles[TOPIC] == LISTS


def test_new_partition_follower_or_leader_changes_the_lists() -> None:
    """D5: new partitions, followers and leaders of a topic never changed its lists."""
    kafka = throttled(reassignments=(moving(partitions=2, isr=(3, 1), adding=(2, 4)),))
    assert kafka.cycle().findings == ()
    assert kafka.throttles[TOPIC] == {
        LEADER_REPLICAS: "0:1,0:3,1:1,1:3",
        FOLLOWER_REPLICAS: "0:2,0:4,1:2,1:4",
    }


def test_change_that_was_not_applied_is_requested_again() -> None:
    """D6: the original swallows errors of topic writes and logs success.

    Here what was not applied is not in the ledger, so the next cycle asks for it again.
    """
    kafka = Kafka()
    first = kafka.cycle()
    kafka.throttles, kafka.ledger = {}, {}
    assert kafka.cycle() == first


def test_throttles_of_kafkas_tool_are_taken_over_during_the_reassignment() -> None:
    """D23: started during a reassignment, the original removed the throttles that Kafka's own tool had set for it."""
    tool = {LEADER_RATE: "5", FOLLOWER_RATE: "5"}
    lists = {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2"}
    kafka = Kafka({B1: dict(tool), B2: dict(tool), B3: dict(tool), TOPIC: dict(lists)})
    done = kafka.cycle()
    assert kafka.current() == THROTTLED
    assert done.findings == ()
    kafka.end()
    assert (kafka.current(), kafka.ledger) == ({}, {})


def test_rates_without_lists_of_the_reassignment_are_restored() -> None:
    before = {B1: {LEADER_RATE: "5", FOLLOWER_RATE: "6"}, B2: {FOLLOWER_RATE: MINIMUM}, B3: {LEADER_RATE: "7"}}
    kafka = Kafka({resource: dict(keys) for resource, keys in before.items()})
    kafka.cycle()
    assert kafka.throttles[B1] == {LEADER_RATE: MINIMUM, FOLLOWER_RATE: "6"}
    kafka.end()
    assert (kafka.current(), kafka.ledger) == (before, {})


# Foreign list entries


@pytest.mark.parametrize("before", ["", "9:3", "9:3,8:4,7:1", "10:1, 9:3", "9:3,9:3"])
def test_foreign_list_of_other_partitions_is_kept_and_restored_byte_for_byte(before: str) -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: before}})
    kafka.cycle()
    assert parse_replicas(kafka.throttles[TOPIC][LEADER_REPLICAS]) == {"0:1"} | parse_replicas(before)
    kafka.end()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: before}}


def test_list_extended_by_another_party_keeps_the_new_entries() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9:3"}})
    kafka.cycle()
    kafka.throttles[TOPIC][LEADER_REPLICAS] += ",8:8"
    assert kafka.cycle().findings == ()
    kafka.end()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: "8:8,9:3"}}


@pytest.mark.parametrize("foreign", ["*", "nonsense", "*,0:1", "9" * 20 + ":1", "0:2147483648"])
def test_foreign_wildcard_or_invalid_list_is_left_and_reported(foreign: str) -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: foreign}})
    done = kafka.cycle()
    effect = "" if foreign == "*" else ", which no broker applies"
    assert done.findings == (
        f"topics/t, {LEADER_REPLICAS}: another party set the replica list {foreign!r}{effect}; left unchanged",
    )
    assert done.invalid_lists == (foreign != "*")
    assert kafka.throttles[TOPIC] == {LEADER_REPLICAS: foreign, FOLLOWER_REPLICAS: "0:2"}
    assert kafka.end().findings == ()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: foreign}}


# Edits during the reassignment


@pytest.mark.parametrize("edit", ["5", "10500000", "0", "-1", "nonsense"])
@pytest.mark.parametrize("failures", [0, 9])
def test_edited_rate_is_repaired_and_reported_however_small_the_edit(edit: str, failures: int) -> None:
    kafka = throttled()
    snapshot = Snapshot(
        version=1,
        reassignments=(moving(),),
        throttles={**kafka.throttles, B1: {LEADER_RATE: edit}},
        ledger=kafka.ledger,
    )
    done = changes(plan(snapshot, Loads(), LIMITS, failures={1: failures}), snapshot, NOON, term=3)
    assert [(c.resource, [e.value for e in c.edits]) for c in done.changes] == [(B1, [MINIMUM])]
    assert done.findings == (
        f"brokers/1, {LEADER_RATE}: another party changed the rate from {MINIMUM} to {edit}; repaired",
    )


def test_removed_rate_is_repaired_and_reported() -> None:
    kafka = throttled()
    del kafka.throttles[B2]
    assert kafka.cycle().findings == (
        f"brokers/2, {FOLLOWER_RATE}: another party removed the rate of {MINIMUM}; repaired",
    )
    assert kafka.current() == THROTTLED


def test_deleted_lists_are_repaired_and_reported() -> None:
    # Strimzi's topic operator deletes them repeatedly during a reassignment (strimzi #9972).
    kafka = throttled()
    del kafka.throttles[TOPIC]
    findings = kafka.cycle().findings
    assert findings == (
        f"topics/t, {LEADER_REPLICAS}: another party removed 0:1 from the replica list; repaired",
        f"topics/t, {FOLLOWER_REPLICAS}: another party removed 0:2 from the replica list; repaired",
    )
    assert kafka.current() == THROTTLED
    assert kafka.cycle().findings == ()


def test_foreign_entry_for_a_partition_in_reassignment_is_repaired_and_reported() -> None:
    kafka = throttled()
    kafka.throttles[TOPIC][FOLLOWER_REPLICAS] = "0:3,0:2"
    assert kafka.cycle().findings == (
        f"topics/t, {FOLLOWER_REPLICAS}: another party added 0:3 to the replica list; repaired",
    )
    assert kafka.current() == THROTTLED


def test_list_with_lost_and_added_entries_is_repaired_and_both_are_reported() -> None:
    kafka = throttled()
    kafka.throttles[TOPIC][FOLLOWER_REPLICAS] = "0:3,0:4"
    assert kafka.cycle().findings == (
        f"topics/t, {FOLLOWER_REPLICAS}: another party removed 0:2 from and added 0:3,0:4 to the replica list; "
        "repaired",
    )
    assert kafka.current() == THROTTLED


def test_our_entry_removed_after_its_replica_is_in_sync_is_not_reported() -> None:
    kafka = Kafka(reassignments=(moving(adding=(2, 4)),))
    kafka.cycle()
    kafka.reassignments = (moving(isr=(1, 2), adding=(2, 4)),)
    assert kafka.cycle().findings == ()
    assert kafka.throttles[TOPIC] == {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:4"}


@pytest.mark.parametrize("edit", ["*", "nonsense"])
def test_replaced_list_is_repaired_and_its_earlier_value_is_restored(edit: str) -> None:
    kafka = Kafka({TOPIC: {FOLLOWER_REPLICAS: "9:4,9:3"}})
    kafka.cycle()
    kafka.throttles[TOPIC][FOLLOWER_REPLICAS] = edit
    effect = "" if edit == "*" else ", which no broker applies"
    assert kafka.cycle().findings == (
        f"topics/t, {FOLLOWER_REPLICAS}: another party set the replica list {edit!r}{effect}; repaired",
    )
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,9:3,9:4"
    kafka.end()
    assert kafka.current() == {TOPIC: {FOLLOWER_REPLICAS: "9:4,9:3"}}


# Edits at and after the end


def test_edit_first_seen_after_the_end_is_left_and_reported() -> None:
    kafka = throttled()
    kafka.throttles[B1] = {LEADER_RATE: "5"}
    kafka.throttles[TOPIC] = {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:2,0:4"}
    assert kafka.end().findings == (
        f"brokers/1, {LEADER_RATE}: another party changed the rate from {MINIMUM} to 5; left unchanged",
        f"topics/t, {LEADER_REPLICAS}: another party set the replica list '*'; left unchanged",
    )
    left = {B1: {LEADER_RATE: "5"}, TOPIC: {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:4"}}
    assert (kafka.current(), kafka.ledger) == (left, {})
    assert kafka.cycle() == ChangeSet((), (), ())


def test_foreign_values_set_after_the_end_are_never_changed() -> None:
    kafka = throttled()
    kafka.end()
    kafka.throttles = {B1: {LEADER_RATE: "5"}, TOPIC: {LEADER_REPLICAS: "0:1"}}
    assert kafka.cycle() == ChangeSet((), (), ())


def test_value_restored_by_another_party_is_not_reported() -> None:
    kafka = Kafka({B1: {LEADER_RATE: "5"}})
    kafka.cycle()
    kafka.throttles[B1] = {LEADER_RATE: "5"}
    assert kafka.end().findings == ()
    assert (kafka.current(), kafka.ledger) == ({B1: {LEADER_RATE: "5"}}, {})


def test_topic_deleted_during_the_reassignment_is_forgotten_and_not_written() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9:3"}})
    kafka.cycle()
    del kafka.throttles[TOPIC]
    assert [c.edits for c in kafka.end().changes if c.resource == TOPIC] == [()]
    assert (kafka.current(), kafka.ledger) == ({}, {})


# D1, D2. Hold: a part is unknown


HOLDS: list[dict[str, object]] = [
    {"problems": (Problem("/admin/reassign_partitions", "no JSON"),)},
    {"overrides": Overrides(unreadable={None: "no JSON"})},
]


@pytest.mark.parametrize("hold", HOLDS)
def test_nothing_is_removed_during_a_hold(hold: dict[str, object]) -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    kafka = throttled(**hold)
    assert kafka.end() == ChangeSet((), (), ())
    kafka.problems, kafka.overrides, kafka.keep_throttles = (), Overrides(), False
    kafka.cycle()
    assert (kafka.current(), kafka.ledger) == ({}, {})


@pytest.mark.parametrize("hold", HOLDS)
def test_rates_and_new_entries_are_written_during_a_hold(hold: dict[str, object]) -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    kafka = throttled(**hold)
    kafka.overrides = replace(kafka.overrides, cluster=StoredOverride(5))
    kafka.reassignments = (moving(isr=(3,), adding=(4,)),)
    kafka.cycle()
    assert kafka.current() == {
        B1: {LEADER_RATE: MINIMUM},
        B2: {FOLLOWER_RATE: MINIMUM},
        B3: {LEADER_RATE: "5"},
        B4: {FOLLOWER_RATE: "5"},
        TOPIC: {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2,0:4"},
    }


@pytest.mark.parametrize("hold", HOLDS)
def test_throttles_of_kafkas_tool_stay_during_a_hold_and_go_after_it(hold: dict[str, object]) -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    # Its lists become ours in the first cycle. With them goes the proof that its rates belong to the reassignment: a
    # hold in that cycle once left the rates on the brokers for ever.
    tool = {LEADER_RATE: "5", FOLLOWER_RATE: "5"}
    kafka = Kafka({B1: dict(tool), B3: dict(tool), TOPIC: {LEADER_REPLICAS: "0:1,0:3"}})
    for name, value in hold.items():
        setattr(kafka, name, value)
    kafka.cycle()
    assert kafka.current() == {
        B1: {LEADER_RATE: MINIMUM, FOLLOWER_RATE: "5"},
        B2: {FOLLOWER_RATE: MINIMUM},
        B3: tool,
        TOPIC: {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2"},
    }
    kafka.problems, kafka.overrides, kafka.keep_throttles = (), Overrides(), False
    kafka.cycle()
    assert kafka.current() == THROTTLED


def test_kept_throttles_follow_the_reassignment_and_stay_after_it() -> None:
    kafka = throttled(keep_throttles=True)
    assert kafka.end() == ChangeSet((), (), ())
    kafka.reassignments = (moving(isr=(3,), adding=(4,)),)
    kafka.cycle()
    assert kafka.current() == {
        B3: {LEADER_RATE: MINIMUM},
        B4: {FOLLOWER_RATE: MINIMUM},
        TOPIC: {LEADER_REPLICAS: "0:3", FOLLOWER_REPLICAS: "0:4"},
    }


def test_edit_during_a_hold_is_not_taken_for_the_end() -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    kafka = throttled(problems=(Problem("/", "no JSON"),))
    kafka.throttles[TOPIC][LEADER_REPLICAS] = "*"
    assert kafka.end() == ChangeSet((), (), ())
    assert kafka.ledger[TOPIC].keys.keys() == LISTS.keys()
    kafka.problems = ()
    assert kafka.cycle().findings == (
        f"topics/t, {LEADER_REPLICAS}: another party set the replica list '*'; left unchanged",
    )


def test_foreign_rates_are_not_taken_over_during_a_hold() -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    users = {B1: {LEADER_RATE: "7", FOLLOWER_RATE: "6"}, B2: {LEADER_RATE: "8"}}
    kafka = Kafka({resource: dict(keys) for resource, keys in users.items()}, problems=(Problem("/", "no JSON"),))
    kafka.cycle()
    kafka.problems = ()
    kafka.end()
    assert (kafka.current(), kafka.ledger) == (users, {})


def test_unreadable_config_is_refused_with_its_path_and_others_are_written() -> None:
    """D31: in the original `config: null` or truncated JSON panics or is overwritten."""
    kafka = Kafka(unreadable={B2: Problem("/config/brokers/2", "`config` is null; repair or delete the node")})
    done = kafka.cycle()
    reason = "/config/brokers/2: `config` is null; repair or delete the node"
    assert done.refused == (Outcome(B2, OutcomeStatus.REFUSED, reason),)
    assert kafka.current() == {B1: {LEADER_RATE: MINIMUM}, TOPIC: LISTS}
    kafka.unreadable = {}
    kafka.cycle()
    assert kafka.current() == THROTTLED


def test_unreadable_config_keeps_its_ledger_until_it_is_readable() -> None:
    """D31: an unreadable config was overwritten, or ended the process."""
    kafka = throttled(unreadable={TOPIC: Problem("/config/topics/t", "truncated")})
    assert [outcome.resource for outcome in kafka.end().refused] == [TOPIC]
    assert kafka.current() == {TOPIC: LISTS}
    kafka.unreadable = {}
    kafka.cycle()
    assert (kafka.current(), kafka.ledger) == ({}, {})


def test_unreadable_config_that_no_change_needs_is_ignored() -> None:
    kafka = Kafka(reassignments=(), unreadable={B2: Problem("/config/brokers/2", "truncated")})
    assert kafka.cycle() == ChangeSet((), (), ())


# --- D11, D27, D30


def test_entries_of_override_and_reassignment_are_separated_again() -> None:
    """D11: the lists of a reassignment and of an override overwrote each other."""
    kafka = throttled(hosted={3: {"t": (0, 1)}}, overrides=Overrides(brokers={3: StoredOverride(5)}))
    kafka.cycle()
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,0:3,1:3"
    kafka.end()
    both = {LEADER_RATE: "5", FOLLOWER_RATE: "5"}
    assert kafka.current() == {B3: both, TOPIC: {FOLLOWER_REPLICAS: "0:3,1:3"}}
    kafka.reassignments = (moving(),)
    kafka.cycle()
    kafka.overrides = Overrides()
    kafka.cycle()
    assert kafka.current() == THROTTLED


def test_entry_from_before_an_override_stays_after_it() -> None:
    before = {TOPIC: {FOLLOWER_REPLICAS: "1:3,0:3"}}
    kafka = Kafka({TOPIC: dict(before[TOPIC])}, reassignments=(), hosted={3: {"t": (1, 2)}})
    kafka.overrides = Overrides(brokers={3: StoredOverride(5)})
    kafka.cycle()
    assert kafka.throttles[TOPIC] == {FOLLOWER_REPLICAS: "0:3,1:3,2:3"}
    assert kafka.cycle() == ChangeSet((), (), ())
    kafka.overrides = Overrides()
    kafka.cycle()
    assert (kafka.current(), kafka.ledger) == (before, {})


def test_foreign_entry_goes_when_its_partition_joins_the_reassignment() -> None:
    # Also if nothing else in the list changes: a reassignment that only removes replicas needs no entries.
    kafka = Kafka({TOPIC: {FOLLOWER_REPLICAS: "7:3,1:3"}})
    kafka.cycle()
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,1:3,7:3"
    kafka.reassignments = (replace(moving(partitions=2), adding_replicas=((2,), ())),)
    kafka.cycle()
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,7:3"
    kafka.end()
    assert kafka.current() == {TOPIC: {FOLLOWER_REPLICAS: "7:3"}}


def test_rate_of_the_other_role_is_never_written() -> None:
    """D27: overrides and the fail-safe wrote both roles of each broker."""
    foreign = {B1: {FOLLOWER_RATE: "7"}}
    kafka = Kafka({B1: {FOLLOWER_RATE: "7"}}, overrides=Overrides(cluster=StoredOverride(5)))
    kafka.cycle()
    assert kafka.throttles[B1] == {LEADER_RATE: "5", FOLLOWER_RATE: "7"}
    kafka.end()
    assert kafka.current() == foreign


def test_rate_of_a_former_leader_goes_at_once() -> None:
    """D30: the rates of former leaders and the entries of finished partitions stayed until the end."""
    kafka = throttled(reassignments=(moving(isr=(3, 1)),))
    kafka.cycle()
    assert kafka.current() == {
        B2: {FOLLOWER_RATE: MINIMUM},
        B3: {LEADER_RATE: MINIMUM},
        TOPIC: {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2"},
    }


# Lists that are too long


LONG = moving(partitions=1500, isr=(1, 3, 4, 100_001), adding=(2,))
FOREIGN = ",".join(f"{partition}:3" for partition in range(9000, 5000, -1))
"""28 kB of entries of partitions outside the reassignment."""


@pytest.mark.parametrize("before", [None, "", "9001:3", "9001:4,9000:3"])
def test_list_over_the_limit_becomes_a_wildcard_and_is_restored(before: str | None) -> None:
    initial = {} if before is None else {TOPIC: {LEADER_REPLICAS: before}}
    kafka = Kafka({resource: dict(keys) for resource, keys in initial.items()})
    kafka.reassignments = (LONG,)
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    assert len(kafka.throttles[TOPIC][FOLLOWER_REPLICAS]) < MAX_VALUE_BYTES
    again = kafka.cycle()
    assert again.changes == ()
    assert [finding.partition(":")[0] for finding in again.findings] == [f"topics/t, {LEADER_REPLICAS}"]
    assert "not raised" in again.findings[0]
    assert kafka.end().findings == ()
    assert (kafka.current(), kafka.ledger) == (initial, {})


def test_entries_over_the_limit_together_with_foreign_ones_become_a_wildcard() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: FOREIGN}}, reassignments=(moving(partitions=1000),))
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    assert kafka.cycle().changes == ()
    kafka.end()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: FOREIGN}}


def test_list_that_shrinks_below_the_limit_is_exact_again() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9001:4,9000:3"}}, reassignments=(LONG,))
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.reassignments = (moving(),)
    assert kafka.cycle().findings == ()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "0:1,9000:3,9001:4"
    kafka.end()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: "9001:4,9000:3"}}


@pytest.mark.parametrize("hold", HOLDS)
def test_wildcard_stays_during_a_hold_even_if_the_exact_list_fits(hold: dict[str, object]) -> None:
    kafka = Kafka(reassignments=(LONG,))
    kafka.cycle()
    kafka.reassignments = (moving(),)
    for name, value in hold.items():
        setattr(kafka, name, value)
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.problems, kafka.overrides = (), Overrides()
    kafka.cycle()
    assert kafka.throttles[TOPIC] == LISTS


def test_entries_added_by_another_party_survive_the_wildcard() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9001:4"}})
    kafka.cycle()
    kafka.throttles[TOPIC][LEADER_REPLICAS] = "0:1,9001:4,9000:3"
    kafka.reassignments = (LONG,)
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.end()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: "9000:3,9001:4"}}


def test_finding_truncates_a_long_list() -> None:
    kafka = Kafka(reassignments=(moving(partitions=1000),))
    kafka.cycle()
    kafka.throttles[TOPIC] = {FOLLOWER_REPLICAS: "x" * 1000}
    removed, replaced = kafka.cycle().findings
    assert removed.endswith("removed 0:1,1:1,2:1,3:1,4:1,5:1,6:1,7:1 and 992 more from the replica list; repaired")
    assert "xxx..." in replaced
    assert len(replaced) < 200


def test_removed_wildcard_is_repaired_during_and_left_after_the_reassignment() -> None:
    kafka = Kafka(reassignments=(LONG,))
    kafka.cycle()
    del kafka.throttles[TOPIC][LEADER_REPLICAS]
    repaired, _ = kafka.cycle().findings
    assert repaired == f"topics/t, {LEADER_REPLICAS}: another party removed the replica list; repaired"
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.throttles[TOPIC][LEADER_REPLICAS] = "3:3"
    kafka.end()
    assert kafka.current() == {TOPIC: {LEADER_REPLICAS: "3:3"}}


def test_foreign_list_over_the_limit_causes_no_write() -> None:
    too_long = ",".join(f"{partition}:3" for partition in range(1000, 9000))
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: too_long}}, reassignments=(moving(isr=(1, 2), adding=(2,)),))
    assert kafka.cycle() == ChangeSet((), (), ())


# Intents


def interrupted(kafka: Kafka, written: bool) -> Kafka:
    """The cluster after a cycle that recorded all intents, wrote all values or none, and confirmed nothing."""
    before, ledger = {r: dict(keys) for r, keys in kafka.throttles.items()}, kafka.ledger
    done = kafka.cycle()
    announced = {change.resource: intended(change, ledger.get(change.resource), 3) for change in done.changes}
    kafka.ledger = {resource: entry for resource, entry in {**ledger, **announced}.items() if entry}
    if not written:
        kafka.throttles = before
    return kafka


both = pytest.mark.parametrize("written", [True, False], ids=["written", "not-written"])


@both
def test_intent_is_confirmed_or_rewritten_by_the_next_cycle_without_findings(written: bool) -> None:
    kafka = interrupted(Kafka(), written)
    assert kafka.ledger[B1].keys[LEADER_RATE] == LedgerKey(None, None, frozenset(), MINIMUM)
    assert kafka.ledger[TOPIC].keys[LEADER_REPLICAS] == LedgerKey(None, None, frozenset({"0:1"}), "0:1")
    done = kafka.cycle()
    assert done.findings == ()
    assert [edit for change in done.changes for edit in change.edits] == [] or not written
    assert kafka.current() == THROTTLED
    assert [known.intent for entry in kafka.ledger.values() for known in entry.keys.values()] == [None] * 4
    assert kafka.cycle().changes == ()


@both
@pytest.mark.parametrize("before", [None, "", "9000:3"])
def test_intent_is_released_when_the_reassignment_is_over(written: bool, before: str | None) -> None:
    initial = {} if before is None else {TOPIC: {LEADER_REPLICAS: before}}
    kafka = interrupted(Kafka({resource: dict(keys) for resource, keys in initial.items()}), written)
    assert kafka.end().findings == ()
    assert kafka.current() == initial
    assert all(key.is_released for entry in kafka.ledger.values() for key in entry.keys.values())
    assert kafka.settle().findings == ()
    assert (kafka.current(), kafka.ledger) == (initial, {})


@pytest.mark.parametrize("before", [None, ""])
@pytest.mark.parametrize("text", ["0:1,0:2", "*"])
def test_unneeded_list_of_ours_is_released_unless_it_is_held(before: str | None, text: str) -> None:
    ours, nothing = LedgerKey(before, text), DesiredReplicas()
    assert desired_replicas(nothing, ReplicaRole.LEADER, text, ours, False) == DesiredKey(before, None)
    assert desired_replicas(nothing, ReplicaRole.LEADER, text, ours, True) == DesiredKey(text, ours)
    held = desired_replicas(nothing, ReplicaRole.LEADER, text, ours, False, frozenset({1}))
    assert held.value == ("*" if text == "*" else "0:1")


@both
def test_current_value_decides_whether_an_intended_wildcard_was_written(written: bool) -> None:
    users = {TOPIC: {LEADER_REPLICAS: "9000:3"}}
    kafka = Kafka({TOPIC: dict(users[TOPIC])})
    kafka.cycle()
    for reassigned in (LONG, moving()):
        kafka.reassignments = (reassigned,)
        interrupted(kafka, written)
        assert not any("another party" in finding for finding in kafka.cycle().findings)
    interrupted(kafka, written)
    kafka.end()
    kafka.settle()
    assert (kafka.current(), kafka.ledger) == (users, {})


@both
def test_entries_of_a_finished_partition_stay_ours_until_removed(written: bool) -> None:
    kafka = Kafka(reassignments=(moving(partitions=2),))
    kafka.cycle()
    kafka.reassignments = (moving(),)
    interrupted(kafka, written)
    assert kafka.ledger[TOPIC].keys[LEADER_REPLICAS].owned == {"0:1", "1:1"}
    assert kafka.end().findings == kafka.settle().findings == ()
    assert (kafka.current(), kafka.ledger) == ({}, {})


@both
def test_interrupted_first_wildcard_keeps_the_foreign_list(written: bool) -> None:
    users = {TOPIC: {LEADER_REPLICAS: "9001:4,9000:3"}}
    kafka = interrupted(Kafka({TOPIC: dict(users[TOPIC])}, reassignments=(LONG,)), written)
    assert kafka.end().findings == kafka.settle().findings == ()
    assert (kafka.current(), kafka.ledger) == (users, {})


@both
def test_foreign_rate_replaced_by_an_intent_is_restored(written: bool) -> None:
    kafka = interrupted(Kafka({B1: {LEADER_RATE: "77"}}), written)
    assert kafka.end().findings == kafka.settle().findings == ()
    assert (kafka.current(), kafka.ledger) == ({B1: {LEADER_RATE: "77"}}, {})


@both
def test_tool_rates_replaced_by_an_intent_go_with_the_reassignment(written: bool) -> None:
    tools = {B1: {LEADER_RATE: "77"}, B2: {FOLLOWER_RATE: "77"}, TOPIC: LISTS}
    kafka = interrupted(Kafka({resource: dict(keys) for resource, keys in tools.items()}), written)
    kafka.throttles[TOPIC] = {}
    assert kafka.end().findings == kafka.settle().findings == ()
    assert (kafka.current(), kafka.ledger) == ({}, {})


def test_value_neither_written_nor_intended_is_foreign() -> None:
    kafka = interrupted(Kafka(), written=True)
    kafka.throttles[B1] = {LEADER_RATE: "7"}
    edited = f"brokers/1, {LEADER_RATE}: another party changed the rate from {MINIMUM} to 7"
    assert kafka.end().findings == (f"{edited}; left unchanged",)
    assert kafka.current() == {B1: {LEADER_RATE: "7"}}


@pytest.mark.parametrize(
    ("resource", "key", "before", "stands"),
    [
        (TOPIC, LEADER_REPLICAS, "9000:3", None),
        (TOPIC, LEADER_REPLICAS, "9000:3", "9000:3,9001:4"),
        (TOPIC, LEADER_REPLICAS, "9000:3", "9000:3"),
        (B1, LEADER_RATE, None, "7"),
    ],
    ids=["the topic was made anew", "a user's entry was added", "nothing has happened", "a user's rate was set"],
)
def test_release_after_an_unconfirmed_write_requires_the_current_value(
    resource: ConfigResource, key: str, before: str | None, stands: str | None
) -> None:
    """Through the admin API, the value before that write was expected.

    If users had since changed it, or had recreated the topic, every cycle refused to release it, for ever.
    """
    kafka = interrupted(Kafka({} if before is None else {resource: {key: before}}), written=False)
    kafka.throttles[resource] = {} if stands is None else {key: stands}
    done = kafka.end()
    assert Edit(key, stands, stands) in [e for c in done.changes if c.resource == resource for e in c.edits]
    kafka.settle()
    assert (kafka.current(), kafka.ledger) == ({} if stands is None else {resource: {key: stands}}, {})


@pytest.mark.parametrize("current", [MINIMUM, "40000000"])
def test_ramp_target_is_the_previous_rate_whatever_the_current_value(current: str) -> None:
    known = LedgerEntry({LEADER_RATE: LedgerKey(None, MINIMUM, frozenset(), "40000000")}, 1)
    snapshot = Snapshot(version=1, throttles={B1: {LEADER_RATE: current}}, ledger={B1: known})
    assert snapshot.previous_rates.get((1, ReplicaRole.LEADER)) == int(current)


def test_release_announces_only_values_that_were_never_ours() -> None:
    entry = LedgerEntry({LEADER_RATE: LedgerKey(None, "5")}, 1)
    back = Change(B1, (Edit(LEADER_RATE, "5", None),), None)
    assert intended(back, entry, term=2) is entry
    assert intended(back, None, term=2) == LedgerEntry({LEADER_RATE: LedgerKey(None, "5")}, 2)
    assert intended(Change(B1, (), None), None, term=2) is None


def only(key: str, value: str) -> LedgerEntry:
    return LedgerEntry({key: LedgerKey(None, value)}, term=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change(B1, (Edit(LEADER_RATE, None, "5"),), None), "without a record in the ledger"),
        (Change(B1, (Edit(LEADER_RATE, None, "5"),), only(FOLLOWER_RATE, "5")), "without a record in the ledger"),
        (Change(TOPIC, (Edit(LEADER_REPLICAS, None, "*"),), None), "without a record in the ledger"),
        (Change(B1, (Edit(LEADER_RATE, None, "6"),), only(LEADER_RATE, "5")), "another value than its record"),
        *(
            (
                Change(B1, (Edit(LEADER_RATE, None, wrong),), only(LEADER_RATE, wrong)),
                "give an integer in 0..9223372036",
            )
            for wrong in ("-1", "05", "+5", " 5", "5.0", "x", str(2**63), "1" * 5000)
        ),
        *(
            (Change(TOPIC, (Edit(LEADER_REPLICAS, "0:2", wrong),), entry), "is not `partition:broker`")
            for wrong in ("0", "0:1,*", "a:b", "0:1;1:2")
            for entry in (None, LedgerEntry({LEADER_REPLICAS: LedgerKey(None, "0:1")}, term=3))
        ),
        (Change(TOPIC, (Edit(LEADER_RATE, None, "5"),), only(LEADER_RATE, "5")), "has the keys leader.replication"),
        (Change(B1, (Edit(LEADER_REPLICAS, None, "0:1"),), None), "has the keys leader.replication.throttled.replicas"),
        (Change(B1, (), only(LEADER_REPLICAS, "0:1")), "has the keys leader.replication.throttled.replicas"),
        (Change(B1, (Edit(LEADER_RATE, "1", None), Edit(LEADER_RATE, "1", None)), None), "at most once"),
    ],
)
def test_a_change_that_the_planner_never_decides_is_invalid(change: Change, reason: str) -> None:
    """The applier wrote any text to a throttle key, and left throttles that no ledger entry would ever remove."""
    with pytest.raises(Invalid, match=reason):
        validate_change(change)


@pytest.mark.parametrize(
    "change",
    [
        Change(B1, (Edit(LEADER_RATE, "5", None),), None),
        Change(B1, (Edit(LEADER_RATE, "5", "x"),), None),
        Change(B1, (Edit(LEADER_RATE, "x", "x"),), only(LEADER_RATE, "x")),
        Change(B1, (Edit(LEADER_RATE, None, str(2**63 - 1)),), only(LEADER_RATE, str(2**63 - 1))),
        Change(TOPIC, (Edit(LEADER_REPLICAS, None, ""),), None),
        Change(TOPIC, (Edit(LEADER_REPLICAS, "0:1,1:2", "1:2, "),), None),
        Change(TOPIC, (Edit(LEADER_REPLICAS, None, "*"),), only(LEADER_REPLICAS, "*")),
    ],
)
def test_removal_restore_and_takeover_are_valid_changes(change: Change) -> None:
    validate_change(change)
