"""The edits between what stands and what shall stand, and what they say of other people's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from autothrottle.core.changes import Change, ChangeSet, Edit, Outcome, OutcomeStatus, changes, intended
from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    MAX_VALUE_BYTES,
    ConfigResource,
    ReplicaRole,
    parse_replicas,
)
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, Loads
from autothrottle.core.overrides import Override, Overrides
from autothrottle.core.plan import plan, previous_rate
from autothrottle.core.topology import Problem, Snapshot, TopicReassignment

LIMITS = Limits(min_rate=10 * MEGABYTE, max_tx_ratio=0.9, max_rx_ratio=0.9, change_threshold=0.1, failure_threshold=1)
MINIMUM = str(10 * MEGABYTE)
TOPIC = ConfigResource.topic("t")
B1, B2, B3, B4 = (ConfigResource.broker(b) for b in (1, 2, 3, 4))
LISTS = {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}
"""What we write for partition 0 on its way from broker 1 to broker 2."""

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
    """A cluster whose metrics are away, so that every rate is the minimum or an override."""

    throttles: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    reassignments: tuple[TopicReassignment, ...] = (moving(),)
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)
    problems: tuple[Problem, ...] = ()
    unreadable: Mapping[ConfigResource, Problem] = field(default_factory=dict)
    hosted: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    keep_throttles: bool = False

    def cycle(self) -> ChangeSet:
        """Decide, and carry everything out."""
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
        done = changes(plan(snapshot, Loads(), limits, self.overrides, failures), snapshot, term=3, cycle=4)
        ledger = dict(self.ledger)
        for change in done.changes:
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
        """End the move, and run the cycle that sees it."""
        self.reassignments = ()
        return self.cycle()

    def standing(self) -> Configs:
        return {resource: keys for resource, keys in self.throttles.items() if keys}


THROTTLED: Configs = {B1: {LEADER_RATE: MINIMUM}, B2: {FOLLOWER_RATE: MINIMUM}, TOPIC: LISTS}


def throttled(**more: object) -> Kafka:
    """A cluster after its first cycle."""
    kafka = Kafka()
    kafka.cycle()
    for name, value in more.items():
        setattr(kafka, name, value)
    return kafka


def test_a_move_gets_rates_and_lists_and_leaves_nothing() -> None:
    kafka = Kafka()
    done = kafka.cycle()
    assert kafka.standing() == THROTTLED
    assert [change.resource for change in done.changes] == [B1, B2, TOPIC]
    assert {c.ledger.term for c in done.changes if c.ledger} == {3}
    kafka.end()
    assert (kafka.standing(), kafka.ledger) == ({}, {})


def test_brokers_come_before_topics_and_by_number() -> None:
    kafka = Kafka(reassignments=(moving(isr=(1,), adding=(10, 9)),))
    assert [c.resource.path for c in kafka.cycle().changes] == ["brokers/1", "brokers/9", "brokers/10", "topics/t"]


def test_an_unchanged_cluster_is_not_written() -> None:
    kafka = throttled()
    assert kafka.cycle() == ChangeSet((), (), ())


# D4, D5. In the original lists are written only when a topic is seen for the first time: not after a failed first
# cycle, not for a new partition, not after a leader change.
def test_d4_lists_that_are_missing_are_written_in_any_cycle() -> None:
    kafka = throttled()
    del kafka.throttles[TOPIC]
    kafka.ledger = {r: e for r, e in kafka.ledger.items() if r != TOPIC}
    kafka.cycle()
    assert kafka.throttles[TOPIC] == LISTS


def test_d5_a_new_partition_a_new_destination_and_a_new_leader_change_the_lists() -> None:
    kafka = throttled(reassignments=(moving(partitions=2, isr=(3, 1), adding=(2, 4)),))
    assert kafka.cycle().findings == ()
    assert kafka.throttles[TOPIC] == {
        LEADER_REPLICAS: "0:1,0:3,1:1,1:3",
        FOLLOWER_REPLICAS: "0:2,0:4,1:2,1:4",
    }


# D6. The original swallows errors of topic writes and logs success. Here what was not applied is not in the ledger,
# so the next cycle asks for it again.
def test_d6_a_change_that_was_not_carried_out_is_asked_for_again() -> None:
    kafka = Kafka()
    first = kafka.cycle()
    kafka.throttles, kafka.ledger = {}, {}
    assert kafka.cycle() == first


# D23. Started in the middle of a reassignment, the original removed what Kafka's own tool had set for it.
def test_d23_what_kafkas_tool_set_is_taken_over_in_mid_move() -> None:
    tool = {LEADER_RATE: "5", FOLLOWER_RATE: "5"}
    lists = {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2"}
    kafka = Kafka({B1: dict(tool), B2: dict(tool), B3: dict(tool), TOPIC: dict(lists)})
    done = kafka.cycle()
    assert kafka.standing() == THROTTLED
    assert done.findings == ()
    kafka.end()
    assert (kafka.standing(), kafka.ledger) == ({}, {})


def test_rates_without_lists_of_the_move_are_put_back() -> None:
    before = {B1: {LEADER_RATE: "5", FOLLOWER_RATE: "6"}, B2: {FOLLOWER_RATE: MINIMUM}, B3: {LEADER_RATE: "7"}}
    kafka = Kafka({resource: dict(keys) for resource, keys in before.items()})
    kafka.cycle()
    assert kafka.throttles[B1] == {LEADER_RATE: MINIMUM, FOLLOWER_RATE: "6"}
    kafka.end()
    assert (kafka.standing(), kafka.ledger) == (before, {})


# Foreign list entries


@pytest.mark.parametrize("before", ["", "9:3", "9:3,8:4,7:1", "10:1, 9:3", "9:3,9:3"])
def test_a_foreign_list_of_other_partitions_is_kept_and_comes_back_byte_for_byte(before: str) -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: before}})
    kafka.cycle()
    assert parse_replicas(kafka.throttles[TOPIC][LEADER_REPLICAS]) == {"0:1"} | parse_replicas(before)
    kafka.end()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: before}}


def test_a_list_that_somebody_extends_in_mid_move_keeps_the_new_entries() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9:3"}})
    kafka.cycle()
    kafka.throttles[TOPIC][LEADER_REPLICAS] += ",8:8"
    assert kafka.cycle().findings == ()
    kafka.end()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: "8:8,9:3"}}


@pytest.mark.parametrize("foreign", ["*", "nonsense", "*,0:1"])
def test_a_foreign_wildcard_or_no_list_is_left_and_reported(foreign: str) -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: foreign}})
    done = kafka.cycle()
    assert done.findings == (f"topics/t, {LEADER_REPLICAS}: the replica list {foreign!r} is not ours; left as it is",)
    assert kafka.throttles[TOPIC] == {LEADER_REPLICAS: foreign, FOLLOWER_REPLICAS: "0:2"}
    assert kafka.end().findings == ()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: foreign}}


# Edits in mid-move


@pytest.mark.parametrize("edit", ["5", "10500000", "0", "-1", "nonsense"])
@pytest.mark.parametrize("failures", [0, 9])
def test_an_edited_rate_is_repaired_and_found_however_small_the_edit(edit: str, failures: int) -> None:
    kafka = throttled()
    snapshot = Snapshot(
        version=1,
        reassignments=(moving(),),
        throttles={**kafka.throttles, B1: {LEADER_RATE: edit}},
        ledger=kafka.ledger,
    )
    done = changes(plan(snapshot, Loads(), LIMITS, failures={1: failures}), snapshot, term=3)
    assert [(c.resource, [e.value for e in c.edits]) for c in done.changes] == [(B1, [MINIMUM])]
    assert done.findings == (
        f"brokers/1, {LEADER_RATE}: somebody set a rate of {edit} in place of {MINIMUM}; repaired",
    )


def test_a_removed_rate_is_repaired_and_found() -> None:
    kafka = throttled()
    del kafka.throttles[B2]
    assert kafka.cycle().findings == (f"brokers/2, {FOLLOWER_RATE}: somebody removed the rate of {MINIMUM}; repaired",)
    assert kafka.standing() == THROTTLED


def test_deleted_lists_are_repaired_and_found() -> None:
    # Strimzi's topic operator deletes them in mid-move, again and again (strimzi #9972).
    kafka = throttled()
    del kafka.throttles[TOPIC]
    findings = kafka.cycle().findings
    assert findings == (
        f"topics/t, {LEADER_REPLICAS}: somebody removed 0:1 from the replica list; repaired",
        f"topics/t, {FOLLOWER_REPLICAS}: somebody removed 0:2 from the replica list; repaired",
    )
    assert kafka.standing() == THROTTLED
    assert kafka.cycle().findings == ()


def test_an_entry_that_somebody_adds_for_a_moving_partition_is_repaired_and_found() -> None:
    kafka = throttled()
    kafka.throttles[TOPIC][FOLLOWER_REPLICAS] = "0:3,0:2"
    assert kafka.cycle().findings == (
        f"topics/t, {FOLLOWER_REPLICAS}: somebody added 0:3 to the replica list; repaired",
    )
    assert kafka.standing() == THROTTLED


def test_a_list_that_lost_entries_and_got_others_is_repaired_and_both_are_found() -> None:
    kafka = throttled()
    kafka.throttles[TOPIC][FOLLOWER_REPLICAS] = "0:3,0:4"
    assert kafka.cycle().findings == (
        f"topics/t, {FOLLOWER_REPLICAS}: somebody removed 0:2 from and added 0:3,0:4 to the replica list; repaired",
    )
    assert kafka.standing() == THROTTLED


def test_an_entry_of_ours_that_goes_since_its_replica_has_arrived_is_nobodys_edit() -> None:
    kafka = Kafka(reassignments=(moving(adding=(2, 4)),))
    kafka.cycle()
    kafka.reassignments = (moving(isr=(1, 2), adding=(2, 4)),)
    assert kafka.cycle().findings == ()
    assert kafka.throttles[TOPIC] == {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:4"}


@pytest.mark.parametrize("edit", ["*", "nonsense"])
def test_a_list_of_ours_that_somebody_replaces_is_repaired_and_what_stood_before_comes_back(edit: str) -> None:
    kafka = Kafka({TOPIC: {FOLLOWER_REPLICAS: "9:4,9:3"}})
    kafka.cycle()
    kafka.throttles[TOPIC][FOLLOWER_REPLICAS] = edit
    assert kafka.cycle().findings == (
        f"topics/t, {FOLLOWER_REPLICAS}: the replica list {edit!r} is not ours; repaired",
    )
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,9:3,9:4"
    kafka.end()
    assert kafka.standing() == {TOPIC: {FOLLOWER_REPLICAS: "9:4,9:3"}}


# Edits at and after the end


def test_an_edit_that_is_first_seen_after_the_end_is_left_and_found() -> None:
    kafka = throttled()
    kafka.throttles[B1] = {LEADER_RATE: "5"}
    kafka.throttles[TOPIC] = {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:2,0:4"}
    assert kafka.end().findings == (
        f"brokers/1, {LEADER_RATE}: somebody set a rate of 5 in place of {MINIMUM}; left as it is",
        f"topics/t, {LEADER_REPLICAS}: the replica list '*' is not ours; left as it is",
    )
    left = {B1: {LEADER_RATE: "5"}, TOPIC: {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:4"}}
    assert (kafka.standing(), kafka.ledger) == (left, {})
    assert kafka.cycle() == ChangeSet((), (), ())


def test_what_somebody_sets_after_the_end_is_never_touched() -> None:
    kafka = throttled()
    kafka.end()
    kafka.throttles = {B1: {LEADER_RATE: "5"}, TOPIC: {LEADER_REPLICAS: "0:1"}}
    assert kafka.cycle() == ChangeSet((), (), ())


def test_what_somebody_has_put_back_already_is_no_edit() -> None:
    kafka = Kafka({B1: {LEADER_RATE: "5"}})
    kafka.cycle()
    kafka.throttles[B1] = {LEADER_RATE: "5"}
    assert kafka.end().findings == ()
    assert (kafka.standing(), kafka.ledger) == ({B1: {LEADER_RATE: "5"}}, {})


def test_a_topic_that_was_deleted_in_mid_move_is_forgotten_and_not_written() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9:3"}})
    kafka.cycle()
    del kafka.throttles[TOPIC]
    assert [c.edits for c in kafka.end().changes if c.resource == TOPIC] == [()]
    assert (kafka.standing(), kafka.ledger) == ({}, {})


# D1, D2. When a part is unknown


HOLDS: list[dict[str, object]] = [
    {"problems": (Problem("/admin/reassign_partitions", "no JSON"),)},
    {"overrides": Overrides(unreadable={4: "no JSON"})},
]


@pytest.mark.parametrize("hold", HOLDS)
def test_d1_nothing_is_removed_while_something_is_unknown(hold: dict[str, object]) -> None:
    kafka = throttled(**hold)
    assert kafka.end() == ChangeSet((), (), ())
    kafka.problems, kafka.overrides, kafka.keep_throttles = (), Overrides(), False
    kafka.cycle()
    assert (kafka.standing(), kafka.ledger) == ({}, {})


@pytest.mark.parametrize("hold", HOLDS)
def test_d1_rates_and_new_entries_still_follow(hold: dict[str, object]) -> None:
    kafka = throttled(**hold)
    kafka.overrides = replace(kafka.overrides, cluster=Override(5))
    kafka.reassignments = (moving(isr=(3,), adding=(4,)),)
    kafka.cycle()
    assert kafka.standing() == {
        B1: {LEADER_RATE: MINIMUM},
        B2: {FOLLOWER_RATE: MINIMUM},
        B3: {LEADER_RATE: "5"},
        B4: {FOLLOWER_RATE: "5"},
        TOPIC: {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2,0:4"},
    }


@pytest.mark.parametrize("hold", HOLDS)
def test_d1_what_kafkas_tool_set_stays_during_a_hold_and_goes_after_it(hold: dict[str, object]) -> None:
    # Its lists become ours in the first cycle, and with them the proof that its rates belong to the move: a hold
    # in that cycle left the rates on the brokers for ever.
    tool = {LEADER_RATE: "5", FOLLOWER_RATE: "5"}
    kafka = Kafka({B1: dict(tool), B3: dict(tool), TOPIC: {LEADER_REPLICAS: "0:1,0:3"}})
    for name, value in hold.items():
        setattr(kafka, name, value)
    kafka.cycle()
    assert kafka.standing() == {
        B1: {LEADER_RATE: MINIMUM, FOLLOWER_RATE: "5"},
        B2: {FOLLOWER_RATE: MINIMUM},
        B3: tool,
        TOPIC: {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2"},
    }
    kafka.problems, kafka.overrides, kafka.keep_throttles = (), Overrides(), False
    kafka.cycle()
    assert kafka.standing() == THROTTLED


def test_throttles_that_an_operator_keeps_stay_after_the_move_and_follow_it_until_then() -> None:
    kafka = throttled(keep_throttles=True)
    assert kafka.end() == ChangeSet((), (), ())
    kafka.reassignments = (moving(isr=(3,), adding=(4,)),)
    kafka.cycle()
    assert kafka.standing() == {
        B3: {LEADER_RATE: MINIMUM},
        B4: {FOLLOWER_RATE: MINIMUM},
        TOPIC: {LEADER_REPLICAS: "0:3", FOLLOWER_REPLICAS: "0:4"},
    }


def test_d1_an_edit_during_a_hold_is_not_taken_for_the_end() -> None:
    kafka = throttled(problems=(Problem("/", "no JSON"),))
    kafka.throttles[TOPIC][LEADER_REPLICAS] = "*"
    assert kafka.end() == ChangeSet((), (), ())
    assert kafka.ledger[TOPIC].keys.keys() == LISTS.keys()
    kafka.problems = ()
    assert kafka.cycle().findings == (f"topics/t, {LEADER_REPLICAS}: the replica list '*' is not ours; left as it is",)


def test_d1_rates_of_users_are_not_taken_over_during_a_hold() -> None:
    users = {B1: {LEADER_RATE: "7", FOLLOWER_RATE: "6"}, B2: {LEADER_RATE: "8"}}
    kafka = Kafka({resource: dict(keys) for resource, keys in users.items()}, problems=(Problem("/", "no JSON"),))
    kafka.cycle()
    kafka.problems = ()
    kafka.end()
    assert (kafka.standing(), kafka.ledger) == (users, {})


# D31. In the original `config: null` or truncated JSON panics or is overwritten.
def test_d31_an_unreadable_config_is_refused_by_its_path_and_the_others_go_on() -> None:
    kafka = Kafka(unreadable={B2: Problem("/config/brokers/2", "`config` is null; repair or delete the node")})
    done = kafka.cycle()
    reason = "/config/brokers/2: `config` is null; repair or delete the node"
    assert done.refused == (Outcome(B2, OutcomeStatus.REFUSED, reason),)
    assert kafka.standing() == {B1: {LEADER_RATE: MINIMUM}, TOPIC: LISTS}
    kafka.unreadable = {}
    kafka.cycle()
    assert kafka.standing() == THROTTLED


def test_d31_an_unreadable_config_keeps_its_ledger_until_it_can_be_read() -> None:
    kafka = throttled(unreadable={TOPIC: Problem("/config/topics/t", "truncated")})
    assert [outcome.resource for outcome in kafka.end().refused] == [TOPIC]
    assert kafka.standing() == {TOPIC: LISTS}
    kafka.unreadable = {}
    kafka.cycle()
    assert (kafka.standing(), kafka.ledger) == ({}, {})


def test_an_unreadable_config_that_nobody_needs_is_no_matter() -> None:
    kafka = Kafka(reassignments=(), unreadable={B2: Problem("/config/brokers/2", "truncated")})
    assert kafka.cycle() == ChangeSet((), (), ())


# D11, D27, D30


def test_d11_entries_of_an_override_and_of_a_move_separate_again() -> None:
    kafka = throttled(hosted={3: {"t": (0, 1)}}, overrides=Overrides(brokers={3: Override(5)}))
    kafka.cycle()
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,0:3,1:3"
    kafka.end()
    both = {LEADER_RATE: "5", FOLLOWER_RATE: "5"}
    assert kafka.standing() == {B3: both, TOPIC: {FOLLOWER_REPLICAS: "0:3,1:3"}}
    kafka.reassignments = (moving(),)
    kafka.cycle()
    kafka.overrides = Overrides()
    kafka.cycle()
    assert kafka.standing() == THROTTLED


def test_an_entry_that_was_there_before_an_override_stays_after_it() -> None:
    before = {TOPIC: {FOLLOWER_REPLICAS: "1:3,0:3"}}
    kafka = Kafka({TOPIC: dict(before[TOPIC])}, reassignments=(), hosted={3: {"t": (1, 2)}})
    kafka.overrides = Overrides(brokers={3: Override(5)})
    kafka.cycle()
    assert kafka.throttles[TOPIC] == {FOLLOWER_REPLICAS: "0:3,1:3,2:3"}
    assert kafka.cycle() == ChangeSet((), (), ())
    kafka.overrides = Overrides()
    kafka.cycle()
    assert (kafka.standing(), kafka.ledger) == (before, {})


def test_a_foreign_entry_goes_when_its_partition_joins_the_move() -> None:
    # Also when nothing else of the list changes: a move that only removes replicas asks for no entries.
    kafka = Kafka({TOPIC: {FOLLOWER_REPLICAS: "7:3,1:3"}})
    kafka.cycle()
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,1:3,7:3"
    kafka.reassignments = (replace(moving(partitions=2), adding_replicas=((2,), ())),)
    kafka.cycle()
    assert kafka.throttles[TOPIC][FOLLOWER_REPLICAS] == "0:2,7:3"
    kafka.end()
    assert kafka.standing() == {TOPIC: {FOLLOWER_REPLICAS: "7:3"}}


def test_d27_the_other_roles_rate_is_never_written() -> None:
    foreign = {B1: {FOLLOWER_RATE: "7"}}
    kafka = Kafka({B1: {FOLLOWER_RATE: "7"}}, overrides=Overrides(cluster=Override(5)))
    kafka.cycle()
    assert kafka.throttles[B1] == {LEADER_RATE: "5", FOLLOWER_RATE: "7"}
    kafka.end()
    assert kafka.standing() == foreign


def test_d30_the_rate_of_a_leader_that_left_goes_at_once() -> None:
    kafka = throttled(reassignments=(moving(isr=(3, 1)),))
    kafka.cycle()
    assert kafka.standing() == {
        B2: {FOLLOWER_RATE: MINIMUM},
        B3: {LEADER_RATE: MINIMUM},
        TOPIC: {LEADER_REPLICAS: "0:1,0:3", FOLLOWER_REPLICAS: "0:2"},
    }


# Lists that are too long


LONG = moving(partitions=1500, isr=(1, 3, 4, 100_001), adding=(2,))
FOREIGN = ",".join(f"{partition}:3" for partition in range(9000, 5000, -1))
"""28 kB of entries of partitions that do not move."""


@pytest.mark.parametrize("before", [None, "", "9001:3", "9001:4,9000:3"])
def test_a_list_over_the_limit_becomes_a_wildcard_and_comes_back(before: str | None) -> None:
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
    assert (kafka.standing(), kafka.ledger) == (initial, {})


def test_entries_that_only_together_with_foreign_ones_exceed_the_limit_become_a_wildcard_too() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: FOREIGN}}, reassignments=(moving(partitions=1000),))
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    assert kafka.cycle().changes == ()
    kafka.end()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: FOREIGN}}


def test_a_list_that_shrinks_below_the_limit_is_exact_again() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9001:4,9000:3"}}, reassignments=(LONG,))
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.reassignments = (moving(),)
    assert kafka.cycle().findings == ()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "0:1,9000:3,9001:4"
    kafka.end()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: "9001:4,9000:3"}}


@pytest.mark.parametrize("hold", HOLDS)
def test_a_wildcard_stays_one_during_a_hold_though_the_exact_list_would_fit_by_then(hold: dict[str, object]) -> None:
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


def test_what_somebody_added_in_mid_move_survives_the_wildcard() -> None:
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: "9001:4"}})
    kafka.cycle()
    kafka.throttles[TOPIC][LEADER_REPLICAS] = "0:1,9001:4,9000:3"
    kafka.reassignments = (LONG,)
    kafka.cycle()
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.end()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: "9000:3,9001:4"}}


def test_a_finding_shows_a_part_of_a_long_list() -> None:
    kafka = Kafka(reassignments=(moving(partitions=1000),))
    kafka.cycle()
    kafka.throttles[TOPIC] = {FOLLOWER_REPLICAS: "x" * 1000}
    removed, replaced = kafka.cycle().findings
    assert removed.endswith("removed 0:1,1:1,2:1,3:1,4:1,5:1,6:1,7:1 and 992 more from the replica list; repaired")
    assert "xxx..." in replaced
    assert len(replaced) < 200


def test_a_wildcard_of_ours_that_somebody_removes_is_repaired_in_mid_move_and_left_at_the_end() -> None:
    kafka = Kafka(reassignments=(LONG,))
    kafka.cycle()
    del kafka.throttles[TOPIC][LEADER_REPLICAS]
    repaired, _ = kafka.cycle().findings
    assert repaired == f"topics/t, {LEADER_REPLICAS}: somebody removed the replica list; repaired"
    assert kafka.throttles[TOPIC][LEADER_REPLICAS] == "*"
    kafka.throttles[TOPIC][LEADER_REPLICAS] = "3:3"
    kafka.end()
    assert kafka.standing() == {TOPIC: {LEADER_REPLICAS: "3:3"}}


def test_a_foreign_list_over_the_limit_is_no_reason_to_write() -> None:
    too_long = ",".join(f"{partition}:3" for partition in range(1000, 9000))
    kafka = Kafka({TOPIC: {LEADER_REPLICAS: too_long}}, reassignments=(moving(isr=(1, 2), adding=(2,)),))
    assert kafka.cycle() == ChangeSet((), (), ())


# What was about to be written


def interrupted(kafka: Kafka, written: bool) -> Kafka:
    """The cluster after a cycle that announced everything and wrote all of it or nothing, and confirmed nothing."""
    before, ledger = {r: dict(keys) for r, keys in kafka.throttles.items()}, kafka.ledger
    done = kafka.cycle()
    announced = {change.resource: intended(change, ledger.get(change.resource), 3) for change in done.changes}
    kafka.ledger = {resource: entry for resource, entry in {**ledger, **announced}.items() if entry}
    if not written:
        kafka.throttles = before
    return kafka


both = pytest.mark.parametrize("written", [True, False], ids=["written", "not-written"])


@both
def test_an_intent_is_confirmed_or_written_by_the_next_cycle_and_nobody_is_accused(written: bool) -> None:
    kafka = interrupted(Kafka(), written)
    assert kafka.ledger[B1].keys[LEADER_RATE] == LedgerKey(None, None, frozenset(), MINIMUM)
    assert kafka.ledger[TOPIC].keys[LEADER_REPLICAS] == LedgerKey(None, None, frozenset({"0:1"}), "0:1")
    done = kafka.cycle()
    assert done.findings == ()
    assert [edit for change in done.changes for edit in change.edits] == [] or not written
    assert kafka.standing() == THROTTLED
    assert [known.intent for entry in kafka.ledger.values() for known in entry.keys.values()] == [None] * 4
    assert kafka.cycle().changes == ()


@both
@pytest.mark.parametrize("before", [None, "", "9000:3"])
def test_an_intent_is_taken_back_when_the_move_is_over(written: bool, before: str | None) -> None:
    initial = {} if before is None else {TOPIC: {LEADER_REPLICAS: before}}
    kafka = interrupted(Kafka({resource: dict(keys) for resource, keys in initial.items()}), written)
    assert kafka.end().findings == ()
    assert (kafka.standing(), kafka.ledger) == (initial, {})


@both
def test_a_wildcard_on_its_way_in_or_out_is_told_by_what_stands(written: bool) -> None:
    users = {TOPIC: {LEADER_REPLICAS: "9000:3"}}
    kafka = Kafka({TOPIC: dict(users[TOPIC])})
    kafka.cycle()
    for reassigned in (LONG, moving()):
        kafka.reassignments = (reassigned,)
        interrupted(kafka, written)
        assert not any("somebody" in finding or "not ours" in finding for finding in kafka.cycle().findings)
    interrupted(kafka, written)
    kafka.end()
    assert (kafka.standing(), kafka.ledger) == (users, {})


@both
def test_entries_of_a_partition_that_is_done_stay_ours_until_they_are_gone(written: bool) -> None:
    kafka = Kafka(reassignments=(moving(partitions=2),))
    kafka.cycle()
    kafka.reassignments = (moving(),)
    interrupted(kafka, written)
    assert kafka.ledger[TOPIC].keys[LEADER_REPLICAS].owned == {"0:1", "1:1"}
    assert kafka.end().findings == ()
    assert (kafka.standing(), kafka.ledger) == ({}, {})


@both
def test_a_first_wildcard_that_is_interrupted_leaves_the_users_list(written: bool) -> None:
    users = {TOPIC: {LEADER_REPLICAS: "9001:4,9000:3"}}
    kafka = interrupted(Kafka({TOPIC: dict(users[TOPIC])}, reassignments=(LONG,)), written)
    assert kafka.end().findings == ()
    assert (kafka.standing(), kafka.ledger) == (users, {})


@both
def test_a_foreign_rate_that_an_intent_replaces_comes_back(written: bool) -> None:
    kafka = interrupted(Kafka({B1: {LEADER_RATE: "77"}}), written)
    assert kafka.end().findings == ()
    assert (kafka.standing(), kafka.ledger) == ({B1: {LEADER_RATE: "77"}}, {})


@both
def test_the_rates_of_kafkas_tool_that_an_intent_replaces_go_with_the_move(written: bool) -> None:
    tools = {B1: {LEADER_RATE: "77"}, B2: {FOLLOWER_RATE: "77"}, TOPIC: LISTS}
    kafka = interrupted(Kafka({resource: dict(keys) for resource, keys in tools.items()}), written)
    kafka.throttles[TOPIC] = {}
    assert kafka.end().findings == ()
    assert (kafka.standing(), kafka.ledger) == ({}, {})


def test_what_is_neither_written_nor_intended_is_somebody_elses() -> None:
    kafka = interrupted(Kafka(), written=True)
    kafka.throttles[B1] = {LEADER_RATE: "7"}
    edited = f"brokers/1, {LEADER_RATE}: somebody set a rate of 7 in place of {MINIMUM}"
    assert kafka.end().findings == (f"{edited}; left as it is",)
    assert kafka.standing() == {B1: {LEADER_RATE: "7"}}


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
def test_what_is_given_back_after_a_write_that_may_still_come_must_be_what_stands_now(
    resource: ConfigResource, key: str, before: str | None, stands: str | None
) -> None:
    """Through the admin API what stood before that write was expected.

    Where users had changed it since then, or had made the topic anew, every cycle refused to let go of it, for ever.
    """
    kafka = interrupted(Kafka({} if before is None else {resource: {key: before}}), written=False)
    kafka.throttles[resource] = {} if stands is None else {key: stands}
    done = kafka.end()
    assert Edit(key, stands, stands) in [e for c in done.changes if c.resource == resource for e in c.edits]
    assert (kafka.standing(), kafka.ledger) == ({} if stands is None else {resource: {key: stands}}, {})


@pytest.mark.parametrize("standing", [MINIMUM, "40000000"])
def test_a_rate_on_its_way_is_the_previous_one_whichever_stands(standing: str) -> None:
    known = LedgerEntry({LEADER_RATE: LedgerKey(None, MINIMUM, frozenset(), "40000000")}, 1)
    snapshot = Snapshot(version=1, throttles={B1: {LEADER_RATE: standing}}, ledger={B1: known})
    assert previous_rate(snapshot, 1, ReplicaRole.LEADER) == int(standing)


def test_a_change_that_takes_back_announces_nothing_but_what_was_never_ours() -> None:
    entry = LedgerEntry({LEADER_RATE: LedgerKey(None, "5")}, 1)
    back = Change(B1, (Edit(LEADER_RATE, "5", None),), None)
    assert intended(back, entry, term=2) is entry
    assert intended(back, None, term=2) == LedgerEntry({LEADER_RATE: LedgerKey(None, "5")}, 2)
    assert intended(Change(B1, (), None), None, term=2) is None
