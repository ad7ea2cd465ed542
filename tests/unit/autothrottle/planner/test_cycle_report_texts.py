"""The texts of a cycle, one by one. `test_service_chain` checks them over a whole recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS, ConfigResource, ReplicaRole
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.records import Basis, Decision, Outcome, OutcomeStatus, Reason
from autothrottle.core.throttles.changes import Applied, Change
from autothrottle.core.throttles.plan import Plan
from autothrottle.planner import cycle_report
from autothrottle.ports.telemetry import Event
from tests import builders
from tests.builders import mb

if TYPE_CHECKING:
    from _collections_abc import dict_items

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
REASSIGNING = builders.snapshot(
    builders.reassignment("t2", {0: (1004, [1004], [1001], [])}),
    builders.reassignment("t1", {0: (1001, [1001, 1002], [1003], [1002])}),
)
IDLE = builders.snapshot()


def applied(*sides: tuple[int, ReplicaRole], removed: tuple[int, ...] = (), cleared: tuple[str, ...] = ()) -> Applied:
    rates: dict[tuple[int, ReplicaRole], int | None] = {side: mb(50) for side in sides}
    return Applied(rates | {(b, LEADER): None for b in removed}, cleared)


def outcome(path: str, status: OutcomeStatus = OutcomeStatus.APPLIED) -> Outcome:
    return Outcome(ConfigResource(path), status)


def plan_of(*decisions: Decision) -> Plan:
    return Plan(decisions)


def test_topic_lines_list_topics_leaders_and_followers() -> None:
    assert cycle_report.topic_lines(REASSIGNING) == [
        "Topics with ongoing reassignments: [t1 t2]",
        "Source brokers participating in replication: [1001 1004]",
        "Destination brokers participating in replication: [1001 1003]",
    ]


def test_a_line_states_that_there_is_no_reassignment() -> None:
    assert cycle_report.topic_lines(IDLE) == ["No topics undergoing reassignment"]


@pytest.mark.parametrize(
    ("reason", "basis"),
    [
        (Reason.HEADROOM, "based on a 90% max free capacity utilization"),
        (Reason.UNCHANGED, "based on a 90% max free capacity utilization"),
        (Reason.KEPT, "no metrics: current rate"),
        (Reason.MINIMUM, "no metrics: minimum rate"),
        (Reason.OVER_CAPACITY, "clients need the link: below the minimum rate"),
        (Reason.CLUSTER_OVERRIDE, "override"),
        (Reason.BROKER_OVERRIDE, "broker override"),
    ],
)
def test_a_written_rate_is_logged_with_its_reason(reason: Reason, basis: str) -> None:
    plan = plan_of(builders.decision(1037, LEADER, 139_830_000, reason))
    assert cycle_report.rate_lines(plan, applied((1037, LEADER)), builders.limits()) == [
        f"Replication throttle rate for broker 1037 [leader] ({basis}): 139.83MB/s",
        "Updated throttle on broker 1037 [leader]",
    ]


def test_the_client_load_has_a_line_of_its_own() -> None:
    """It was appended to the original's line of a rate, which ends in `MB/s`. Programs that read this line failed."""
    measured = replace(
        builders.decision(1037, LEADER, 139_830_000, Reason.HEADROOM),
        client_bytes_per_second=60_000_000,
        client_age_seconds=90,
    )
    for decision, loads in (
        (replace(measured, basis=Basis.GROWTH), ["60.00MB/s, current, from log growth"]),
        (
            replace(measured, basis=Basis.COUNTED, client_age_seconds=301),
            ["60.00MB/s, mean of the metric's interval, replication measured, 301s old"],
        ),
        (replace(measured, basis=None), []),
        (replace(measured, basis=Basis.GROWTH, reason=Reason.BROKER_OVERRIDE), []),
    ):
        rate, updated, *others = cycle_report.rate_lines(plan_of(decision), applied((1037, LEADER)), builders.limits())
        assert rate.endswith("): 139.83MB/s")
        assert updated == "Updated throttle on broker 1037 [leader]"
        assert others == [f"Client load of broker 1037 [leader]: {load}" for load in loads]


def test_a_static_rate_is_logged_as_static() -> None:
    decision = replace(builders.decision(1037, LEADER, 139_830_000, Reason.HEADROOM), basis=Basis.STATIC)
    line = cycle_report.rate_lines(plan_of(decision), applied((1037, LEADER)), builders.limits())[0]
    assert line == "Replication throttle rate for broker 1037 [leader] (static): 139.83MB/s"


class CountedRates(dict[tuple[int, ReplicaRole], int | None]):
    """Written rates; counts the iterations over them."""

    iterations = 0

    def items(self) -> dict_items[tuple[int, ReplicaRole], int | None]:
        self.iterations += 1
        return super().items()


def test_logging_2_000_rates_iterates_once_over_all_rates() -> None:
    # Each line iterated over all rates: 0.4 s, a third of a cycle with 1,000 brokers.
    sides = [(broker_id, role) for broker_id in range(1000) for role in ReplicaRole]
    rates = CountedRates({side: mb(50) for side in sides})
    plan = plan_of(*(builders.decision(broker_id, role, mb(50)) for broker_id, role in sides))
    lines = cycle_report.rate_lines(plan, Applied(rates), builders.limits())
    assert len(lines) == 2 * len(sides)
    assert rates.iterations == 1


def test_a_rate_line_shows_the_max_ratio_of_its_role() -> None:
    plan = plan_of(builders.decision(1, FOLLOWER, mb(225)))
    (line, _) = cycle_report.rate_lines(plan, applied((1, FOLLOWER)), builders.limits(max_rx_ratio=0.07))
    assert line == (
        "Replication throttle rate for broker 1 [follower] (based on a 7% max free capacity utilization): 225.00MB/s"
    )


def test_an_unwritten_rate_is_not_logged() -> None:
    plan = plan_of(builders.decision(1001, LEADER), builders.decision(1001, FOLLOWER))
    lines = cycle_report.rate_lines(plan, applied((1001, FOLLOWER)), builders.limits())
    assert [line for line in lines if line.startswith("Updated")] == ["Updated throttle on broker 1001 [follower]"]


def test_refused_and_unchanged_rates_are_not_applied() -> None:
    ours = builders.ledger_entry(leader_replication_throttled_rate="5")
    written, refused, unchanged = (
        builders.change(f"brokers/{b}", (LEADER_RATE, None, "5"), ledger=ours) for b in (1, 2, 3)
    )
    outcomes = [
        outcome("brokers/1"),
        outcome("brokers/2", OutcomeStatus.REFUSED),
        outcome("brokers/3", OutcomeStatus.UNCHANGED),
    ]
    assert Applied.of([written, refused, unchanged], outcomes) == Applied({(1, LEADER): 5}, ())


def test_a_rate_or_list_that_is_no_longer_ours_counts_as_removed() -> None:
    ours = builders.ledger_entry(leader_replication_throttled_rate="5")
    changes: list[Change] = [
        builders.change("brokers/1", (LEADER_RATE, "3", "5"), (FOLLOWER_RATE, "7", None), ledger=ours),
        builders.change("brokers/2", (LEADER_RATE, "5", "9"), ledger=None),
        builders.change("topics/t1", (LEADER_REPLICAS, "0:1", None)),
    ]
    done = Applied.of(changes, [outcome("brokers/1"), outcome("brokers/2"), outcome("topics/t1")])
    assert done.rates == {(1, LEADER): 5, (1, FOLLOWER): None, (2, LEADER): None}
    assert done.topics_cleared == ("t1",)


def test_a_broker_that_keeps_one_role_is_not_logged_as_unthrottled() -> None:
    plan = plan_of(builders.decision(1002, FOLLOWER))
    assert cycle_report.removal_lines(plan, applied(removed=(1003, 1002, 1001), cleared=("t1",))) == [
        "Throttle removed on broker 1001",
        "Throttle removed on broker 1003",
        "Throttled replicas removed on topic t1",
    ]


def test_one_written_rate_posts_an_event_with_all_brokers_of_the_reassignment() -> None:
    plan = plan_of(
        builders.decision(1001, LEADER, mb(126)),
        builders.decision(1003, FOLLOWER, 81_257_000),
        builders.decision(1004, LEADER, mb(50)),
    )
    assert cycle_report.change_events(plan, REASSIGNING, applied((1001, LEADER)), []) == [
        Event(
            "Broker replication throttle set",
            "Replication throttles changes for brokers [ID, role, rate]: "
            "[1001, leader, 126.00], [1003, follower, 81.26], [1004, leader, 50.00]\n"
            "Topics currently undergoing replication: [t1 t2]",
        )
    ]


def test_a_cycle_without_changes_posts_no_event() -> None:
    plan = plan_of(builders.decision(1001, LEADER))
    assert cycle_report.change_events(plan, REASSIGNING, Applied(), []) == []


def test_an_override_of_a_broker_without_reassignments_posts_its_own_event() -> None:
    plan = plan_of(*(builders.decision(1002, role, mb(50), Reason.BROKER_OVERRIDE) for role in ReplicaRole))
    assert cycle_report.change_events(plan, IDLE, applied((1002, LEADER), (1002, FOLLOWER)), []) == [
        Event(
            "Broker level throttle override(s) configured",
            "Replication throttle overrides for brokers [ID, role, rate]: "
            "[1002, leader, 50.00], [1002, follower, 50.00]",
        )
    ]


def test_an_override_in_the_role_that_a_participant_does_not_hold_is_in_the_event_of_overrides() -> None:
    plan = plan_of(*(builders.decision(1003, role, mb(50), Reason.BROKER_OVERRIDE) for role in ReplicaRole))
    found = cycle_report.change_events(plan, REASSIGNING, applied((1003, LEADER), (1003, FOLLOWER)), [])
    texts = {event.title: event.text for event in found}
    assert ": [1003, follower, 50.00]\n" in texts["Broker replication throttle set"]
    assert texts["Broker level throttle override(s) configured"].endswith(": [1003, leader, 50.00]")


def test_the_end_of_a_reassignment_posts_done_topics_and_removed_throttles() -> None:
    assert cycle_report.change_events(Plan(), IDLE, applied(removed=(1003, 1001), cleared=("t1",)), ["t1", "t2"]) == [
        Event("Topics done reassigning", "Topics done reassigning: [t1 t2]"),
        Event(
            "Broker replication throttle removed",
            "Replication throttle removed on the following brokers: [1001 1003]\n"
            "Throttled replicas removed on the following topics: [t1]",
        ),
    ]


@pytest.mark.parametrize(
    ("seen", "changes", "outcomes", "sentence"),
    [
        (IDLE, 0, [], "no reassignments; throttles are up to date"),
        (REASSIGNING, 0, [], "2 topics in reassignment; throttles are up to date"),
        (REASSIGNING, 2, ["applied", "applied"], "2 topics in reassignment; 2 of 2 changes written"),
        (REASSIGNING, 2, ["applied", "refused"], "2 topics in reassignment; 1 of 2 changes written, 1 refused"),
        (REASSIGNING, 0, ["refused"], "2 topics in reassignment; 0 of 0 changes written, 1 refused"),
    ],
)
def test_the_sentence_of_a_cycle(seen: Snapshot, changes: int, outcomes: list[str], sentence: str) -> None:
    wanted = [builders.change(f"brokers/{b}") for b in range(changes)]
    results = [outcome(f"brokers/{b}", OutcomeStatus(status)) for b, status in enumerate(outcomes)]
    assert cycle_report.written_sentence(seen, wanted, results) == sentence


def test_the_foreign_throttles_line_names_the_cleanup_policy() -> None:
    found = {ConfigResource.broker(1001): {LEADER_RATE: "1"}, ConfigResource.topic("t9"): {LEADER_REPLICAS: "0:1"}}
    begin = (
        "Foreign throttles, not set by autothrottle, exist while there are no reassignments: [brokers/1001 topics/t9]; "
    )
    assert cycle_report.foreign_line(found, cleanup=False) == begin + "they stay; --cleanup-foreign removes them"
    assert cycle_report.foreign_line(found, cleanup=True) == begin + "they are removed after --cleanup-after intervals"


def test_a_default_throttle_is_logged_when_it_appears_changes_and_disappears() -> None:
    five, six = {LEADER_RATE: str(mb(5))}, {LEADER_RATE: str(mb(6))}
    (appeared,), (changed,) = cycle_report.default_lines({}, five), cycle_report.default_lines(five, six)
    assert appeared.startswith("Kafka's <default> leader throttle is 5.00MB/s: it limits brokers without their own")
    assert changed.startswith("Kafka's <default> leader throttle is 6.00MB/s")
    assert cycle_report.default_lines(six, six) == []
    assert cycle_report.default_lines(six, {}) == ["Kafka's <default> leader throttle of 6.00MB/s was removed"]
    (garbage,) = cycle_report.default_lines({}, {FOLLOWER_RATE: "much"})
    assert garbage.startswith("Kafka's <default> follower throttle is 'much'")


def test_the_default_applies_again_only_where_our_rate_was_really_removed() -> None:
    defaults = {LEADER_RATE: str(mb(5))}
    removals = [
        builders.change(f"brokers/{b}", (LEADER_RATE, "7", None), (FOLLOWER_RATE, "7", None)) for b in (1001, 1002)
    ]
    restored = builders.change("brokers/1003", (LEADER_RATE, "7", "8"), ledger=None)
    outcomes = [outcome("brokers/1001"), outcome("brokers/1002", OutcomeStatus.REFUSED), outcome("brokers/1003")]
    assert cycle_report.default_in_force_lines(defaults, [*removals, restored], outcomes) == [
        "broker 1001 [leader]: its own throttle was removed, so Kafka's <default> of 5.00MB/s applies again"
    ]
    assert cycle_report.default_in_force_lines({}, removals, outcomes) == []


def test_record_of_a_cycle_limits_findings_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every response with the cycle contains them, and a response has at most 64 MiB."""
    monkeypatch.setattr(cycle_report, "_FINDINGS_SHOWN", 2)
    assert cycle_report.limited_findings(["a", "b"]) == ("a", "b")
    assert cycle_report.limited_findings(["a", "b", "c", "d"]) == ("a", "b", "and 2 more findings, in the log")
    refused = [Outcome(ConfigResource.broker(n), OutcomeStatus.REFUSED, f"reason {n}") for n in range(3)]
    applied = Outcome(ConfigResource.topic("t"), OutcomeStatus.APPLIED)
    reasons = [outcome.reason for outcome in cycle_report.limited_reasons([*refused, applied])]
    assert reasons == ["reason 0", "reason 1", "the log has the reason", ""]


def test_topics_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of 100,000 topics did not fit into the event of a cycle, so no event was posted."""
    monkeypatch.setattr(cycle_report, "_ITEMS_SHOWN", 2)
    assert cycle_report.done_line(["a", "b", "c", "d"]) == "Topics done reassigning: [a b and 2 more]"
