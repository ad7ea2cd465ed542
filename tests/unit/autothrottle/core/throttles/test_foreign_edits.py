"""Edits of our throttles by other parties: what counts, how it is confirmed, and how often it is undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    RATE_KEYS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
)
from autothrottle.core.throttles.foreign_edits import (
    RESTORE_PAUSE,
    Contests,
    ForeignEdits,
    ResourceEdit,
    edits,
    needed_lists,
    needed_rates,
    resource_edit,
)
from tests.builders import ledger_entry, reassignment

BROKER, T1 = ConfigResource.broker(1001), ConfigResource.topic("t1")
RATE = {LEADER_RATE: "5"}
PAUSE = RESTORE_PAUSE.total_seconds()


# Which values count.


def test_throttles_of_what_copies_are_needed() -> None:
    copying = reassignment("t1", {0: (1001, (1001, 1002), (1004,), ()), 1: (1002, (1002,), (1003,), ())})
    done = reassignment("t2", {0: (1001, (1001, 1005), (1005,), ())})
    assert needed_lists([copying, done]) == {T1: (LEADER_REPLICAS, FOLLOWER_REPLICAS)}
    assert needed_rates([copying, done]) == {
        ConfigResource.broker(1001): (LEADER_RATE,),
        ConfigResource.broker(1002): (LEADER_RATE,),
        ConfigResource.broker(1003): (FOLLOWER_RATE,),
        ConfigResource.broker(1004): (FOLLOWER_RATE,),
    }


ENTRIES = st.frozensets(st.sampled_from(["0:1", "0:2", "1:1", "1:2"]))


def _list(entries: frozenset[str]) -> str | None:
    return ",".join(sorted(entries, reverse=True)) or None


@given(before=ENTRIES, after=ENTRIES, appended=ENTRIES, subtracted=ENTRIES)
def test_partial_write_of_our_list_is_not_a_foreign_edit(
    before: frozenset[str], after: frozenset[str], appended: frozenset[str], subtracted: frozenset[str]
) -> None:
    between = (before | (appended & after)) - (subtracted - after)
    ledger_key = LedgerKey(None, _list(before), before | after, _list(after) or "")
    current = {T1: {LEADER_REPLICAS: ",".join(between)} if between else {}}
    foreign = edits({T1: (LEADER_REPLICAS,)}, current, {T1: LedgerEntry({LEADER_REPLICAS: ledger_key}, 1)})
    if between or not before:
        assert foreign == {}


@given(owned=ENTRIES, current=ENTRIES)
def test_any_difference_from_our_written_list_is_a_foreign_edit(owned: frozenset[str], current: frozenset[str]) -> None:
    value = ",".join(current)
    entry = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, ",".join(sorted(owned)), owned)}, 1)
    foreign = edits({T1: (LEADER_REPLICAS,)}, {T1: {LEADER_REPLICAS: value}}, {T1: entry})
    assert foreign == ({} if owned == current else {(T1, LEADER_REPLICAS): (value, 1, 0)})


@pytest.mark.parametrize("current", [None, "9", "-1"])
def test_rate_is_a_foreign_edit_unless_written_or_intended(current: str | None) -> None:
    entry = LedgerEntry({LEADER_RATE: LedgerKey(None, "5", intent="6")}, 1)
    config = {} if current is None else {LEADER_RATE: current}
    assert edits({BROKER: RATE_KEYS}, {BROKER: config}, {BROKER: entry}) == {(BROKER, LEADER_RATE): (current, 1, 0)}
    for rate in ("5", "6"):
        assert edits({BROKER: RATE_KEYS}, {BROKER: {LEADER_RATE: rate}}, {BROKER: entry}) == {}


def test_unread_or_foreign_configs_are_not_foreign_edits() -> None:
    entry = ledger_entry(leader_replication_throttled_rate="5")
    assert edits({BROKER: RATE_KEYS}, {}, {BROKER: entry}) == {}
    assert edits({BROKER: RATE_KEYS}, {BROKER: RATE}, {}) == {}
    assert edits({BROKER: (FOLLOWER_RATE,)}, {BROKER: {}}, {BROKER: entry}) == {}


def test_malformed_list_is_a_foreign_edit() -> None:
    entry = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, "0:1001", frozenset({"0:1001"}))}, 1)
    current = {T1: {LEADER_REPLICAS: "nonsense"}}
    assert edits({T1: (LEADER_REPLICAS,)}, current, {T1: entry}) == {(T1, LEADER_REPLICAS): ("nonsense", 1, 0)}


# How an edit is confirmed.

REMOVED = {(BROKER, LEADER_RATE): (None, 1, 1)}
REMOVED_AGAIN = {(BROKER, LEADER_RATE): (None, 1, 2)}


def test_an_edit_counts_when_it_is_seen_twice_and_is_reported_once() -> None:
    foreign = ForeignEdits()
    assert [foreign.confirmed(edit) for edit in (REMOVED, {}, REMOVED)] == [frozenset()] * 3
    assert [foreign.confirmed(REMOVED) for _ in range(3)] == [{BROKER}, frozenset(), frozenset()]


def test_an_edit_after_our_next_write_is_another_one_although_no_reading_has_seen_that_write() -> None:
    """A party removed the rate again within the second that passed between two readings.

    The edit looked as if it were still in place, so only the next scheduled cycle restored the rate.
    """
    foreign = ForeignEdits()
    reports = [foreign.confirmed(edit) for edit in (REMOVED, REMOVED, REMOVED_AGAIN, REMOVED_AGAIN)]
    assert reports == [frozenset(), {BROKER}, frozenset(), {BROKER}]


def test_a_reading_of_some_resources_leaves_the_state_of_the_others() -> None:
    foreign = ForeignEdits()
    foreign.confirmed(REMOVED, [BROKER])
    assert foreign.confirmed({}, [T1]) == frozenset()
    assert foreign.confirmed(REMOVED, [BROKER]) == {BROKER}
    foreign.confirmed({}, [T1])
    assert foreign.confirmed(REMOVED, [BROKER]) == frozenset()


# How often our values are restored.


class Party:
    """Another party that removes the rate of a broker, and cycles that restore it; in virtual time."""

    def __init__(self, resource: ConfigResource = BROKER) -> None:
        self.resource, self.contests = resource, Contests()
        self.restored: list[float] = []
        self.findings: set[str] = set()
        self._written = (1, 1)
        self._cycle = 1
        self.is_removed = False

    def cycle(self, now: float, is_written: bool = True) -> None:
        """Run a cycle; `is_written`: Kafka accepts what it restores."""
        self._cycle += 1
        writer = 1, self._cycle
        edit = {self.resource: ResourceEdit(removes=True, written=self._written)} if self.is_removed else {}
        self.contests = self.contests.observe(edit, {self.resource}, writer, now)
        self.findings |= {*self.contests.findings()}
        if self.is_removed and self.resource not in self.contests.held_resources:
            self.restored.append(now)
            if is_written:
                self.is_removed, self._written = False, writer

    def play(self, seconds: float, removes: Callable[[float], bool]) -> None:
        """Run a cycle after each removal, and whenever the state asks for one."""
        for tick in range(int(seconds * 2)):
            now = tick / 2
            if removes(now) and not self.is_removed:
                self.is_removed = True
                self.cycle(now + 0.2)
            elif (wait := self.contests.next_restoration(now)) is not None and wait.total_seconds() <= 0:
                self.cycle(now)


def test_after_three_removals_in_a_minute_our_value_returns_every_ten_seconds_at_most() -> None:
    party = Party()
    party.play(120, lambda now: True)
    gaps = [later - earlier for earlier, later in zip(party.restored, party.restored[1:], strict=False)]
    assert gaps[0] < 1 and all(PAUSE <= gap <= PAUSE + 1 for gap in gaps[1:]), gaps


@pytest.mark.parametrize("rhythm", [20, 30, 120])
def test_a_slow_party_is_named_with_its_rhythm_and_undone_at_once(rhythm: int) -> None:
    """Strimzi's operators reconcile every 120 s."""
    party = Party()
    party.play(6 * rhythm + 1, lambda now: now % rhythm == 0)
    assert len(party.restored) == 7
    (finding,) = party.findings
    assert finding.startswith(f"another program removes the throttle of broker 1001 about every {rhythm} s; ")
    assert "kafka-reassign-partitions" in finding and "--preserve-throttles" in finding


def test_a_fast_party_has_its_own_rhythm_and_not_that_of_our_restorations() -> None:
    party = Party(T1)
    party.play(120, lambda now: now % 2 == 0)
    (finding,) = party.findings
    assert finding.startswith("another program removes the throttled replica lists of topic t1 every few seconds; ")
    assert "strimzi.io/managed=false" in finding and "docs/kubernetes.md" in finding


def test_an_irregular_party_has_one_finding_so_that_the_log_has_it_once() -> None:
    party = Party()
    times = [0, 24, 52, 80, 101, 130, 155, 185]
    party.play(200, lambda now: now in times)
    assert len(party.findings) == 1


def test_what_could_not_be_restored_is_not_a_second_removal() -> None:
    """A broker that answers slowly refuses the write, and its rate is still missing in the next cycles."""
    party = Party()
    party.is_removed = True
    for second in range(10):
        party.cycle(second, is_written=False)
    assert party.restored == [*range(10)] and not party.findings


def test_the_end_of_a_contest_ends_its_finding() -> None:
    party = Party()
    party.play(30, lambda now: True)
    assert party.contests.contested == {BROKER}
    party.is_removed = False
    party.cycle(100)
    assert not party.contests.contested and not party.contests.resources


def test_a_resource_without_throttles_of_ours_is_forgotten() -> None:
    party = Party()
    party.play(5, lambda now: True)
    assert not party.contests.observe({}, (), (1, 99), 6).resources


def test_many_brokers_share_a_finding() -> None:
    """Kafka's own tool clears the rates of all brokers with --cancel."""
    resources = [ConfigResource.broker(b) for b in range(1001, 1201)]
    contests = Contests()
    for number, now in enumerate((0, 30, 60), 1):
        edit = {r: ResourceEdit(removes=True, written=(1, number)) for r in resources}
        contests = contests.observe(edit, resources, (1, number + 1), now)
    (finding,) = contests.findings()
    assert finding.startswith("another program removes the throttle of 200 brokers [1001-1200] about every 30 s; ")


def test_a_changed_rate_is_no_removal() -> None:
    entry = LedgerEntry({LEADER_RATE: LedgerKey(None, "5"), FOLLOWER_RATE: LedgerKey(None, "5")}, 1, 7)
    assert resource_edit(entry, [LEADER_RATE], {LEADER_RATE: "9"}) == ResourceEdit(False, (1, 7))
    assert resource_edit(entry, [LEADER_RATE, FOLLOWER_RATE], {LEADER_RATE: "9"}) == ResourceEdit(True, (1, 7))
    lists = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, "0:1,0:2", intent="0:1")}, 1, 7)
    assert resource_edit(lists, [LEADER_REPLICAS], {LEADER_REPLICAS: "0:1"}) == ResourceEdit(True, (1, 7), False)
    assert resource_edit(lists, [LEADER_REPLICAS], {LEADER_REPLICAS: "0:1,0:2,0:3"}).removes is False
