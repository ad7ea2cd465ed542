"""The planner's loop on in-memory twins: cycle by cycle in virtual time, and some tests with its thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.memory import (
    MemoryCluster,
    MemoryDecisions,
    MemoryElection,
    MemoryElectorate,
    MemoryMetrics,
)
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS, ConfigResource
from autothrottle.core.cluster.snapshot import ANY_SNAPSHOT, Problem, Snapshot, SnapshotRequest
from autothrottle.core.errors import NotLeader
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import AuditAction, Cycle, ForeignThrottle, OutcomeStatus, Reason
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.loop import SPACING, Planner, Trigger
from autothrottle.ports.kafka import Term
from tests import builders
from tests.builders import AT_ONCE, at_once, eventually, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

SLACK = timedelta(seconds=60)
RATES = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
"""The throttles during the bench's reassignment."""
EXACT = ("0:1001,0:1002", "0:1003")
BROKER_1001, BROKER_1003 = ConfigResource.broker(1001), ConfigResource.broker(1003)


@pytest.fixture
def real() -> Iterator[Bench]:
    """A bench in real time, for the planner's own thread."""
    with Bench(real_time=True) as made:
        yield made


pytestmark = pytest.mark.usefixtures("info_lines")


def reasons(record: Cycle) -> dict[int, Reason]:
    return {decision.broker_id: decision.reason for decision in record.decisions}


def last_cycle(bench: Bench) -> Cycle:
    """The last cycle that the planner's thread published; it publishes after its writes."""
    last = bench.planner.state().last_cycle
    assert last is not None
    return last


def count(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in message for message in caplog.messages)


# A reassignment from start to end.


def test_a_reassignment_is_throttled_with_exact_lists_that_follow_the_isr_and_cleaned_up(bench: Bench) -> None:
    bench.begin_reassignment(partitions=2)
    began = bench.cycle("a reassignment of [t1] started")
    assert bench.rates() == RATES
    assert bench.lists() == ("0:1001,0:1002,1:1001,1:1002", "0:1003,1:1003")
    assert began.sentence == "1 topics in reassignment; 3 of 3 changes written"
    assert (began.term, began.number, began.topics, began.error) == (bench.term.fence, 1, ("t1",), "")

    bench.cluster.join_isr("t1", 0, 1003)
    bench.cycle("broker 1003 joined the ISR of t1-0")
    assert bench.rates() == RATES
    assert bench.lists() == ("1:1001,1:1002", "1:1003")

    bench.cluster.finish("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.is_clean()


def test_a_start_that_is_still_being_read_gets_the_rates_of_the_part_that_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    decisions = MemoryDecisions()
    with Bench(decisions=decisions) as bench:
        bench.cycle()
        for topic in ("t1", "t2"):
            bench.begin_reassignment(topic)
        bench.cluster.unread_topics = {"t2"}
        early = bench.cycle("reassignment started: [t1]")
        assert bench.rates() == RATES
        assert (bench.lists("t1"), bench.lists("t2")) == (EXACT, (None, None))
        assert early.findings == (
            "/brokers/topics: 1 more partitions in reassignment are still being read; the next cycle throttles them, "
            "and no throttle is removed until then",
        )
        assert count(caplog, "Topics with ongoing reassignments: [t1]; 1 more partitions are being read") == 1
        assert decisions.reassignments == [], "the record has all topics and partitions"
        whole = bench.cycle("reassignment started: [t2]")
        assert (whole.findings, whole.topics) == ((), ("t1", "t2"))
        assert bench.rates() == RATES
        assert bench.lists("t1") == bench.lists("t2") == EXACT
        assert [(record.topics, record.partitions) for record in decisions.reassignments] == [(["t1", "t2"], 2)]


def test_the_rest_of_a_large_start_is_throttled_without_an_event(bench: Bench) -> None:
    """The planner read the part from one discovery replica, and got its events from another one.

    That one had read the whole before. So the end of the read was no event, and the rest stayed unthrottled until the
    next interval.
    """
    triggers = bench.planner._triggers
    bench.cycle()
    bench.begin_reassignment("t1")
    bench.begin_reassignment("t2")
    assert triggers.poll() is not None
    bench.cluster.unread_topics = {"t2"}
    bench.cycle("reassignment started: [t1 t2]")
    assert triggers.poll() is None
    bench.seconds += 20
    assert triggers.poll() == Trigger("the rest of the reassignments", scheduled=False)
    bench.cycle("the rest of the reassignments")
    assert bench.lists("t1") == bench.lists("t2") == EXACT


def test_a_cycle_with_up_to_date_throttles_writes_nothing(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    written = len(bench.cluster.writes)
    for _ in range(3):
        assert bench.cycle().sentence == "1 topics in reassignment; throttles are up to date"
    assert len(bench.cluster.writes) == written == 3


def test_rates_follow_the_client_load(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.set_load(1001, outbound=60)
    bench.cycle()
    assert bench.rate(1001, LEADER) == 36.0
    bench.set_load(1001, outbound=0)
    bench.cycle()
    bench.finish_ramps()
    assert bench.rate(1001, LEADER) == 90.0


def test_a_broker_over_its_capacity_gets_the_minimum_rate(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.set_load(1003, inbound=130)
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) == 10.0


def test_keep_throttles_leaves_throttles_after_the_reassignment() -> None:
    with Bench(limits=builders.limits(keep_throttles=True)) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.finish("t1")
        for _ in range(3):
            assert bench.cycle().topics == ()
        assert bench.rates() == RATES
        assert bench.lists() == EXACT


# Metrics.


def test_without_metrics_a_broker_keeps_its_rate_then_gets_the_minimum_until_metrics_return(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.metrics.lose(1003, "host h3 reports nothing")
    first = bench.cycle()
    assert reasons(first) == {1001: Reason.UNCHANGED, 1003: Reason.KEPT}
    assert first.findings == ("broker 1003: host h3 reports nothing",)
    assert bench.rates() == RATES
    assert reasons(bench.cycle())[1003] is Reason.MINIMUM
    assert bench.rates() == {**RATES, (1003, "follower"): 10.0}
    bench.set_load(1003)
    assert reasons(bench.cycle())[1003] is Reason.HEADROOM
    bench.finish_ramps()
    assert bench.rates() == RATES
    bench.metrics.lose(1003, "host h3 reports nothing")
    assert reasons(bench.cycle())[1003] is Reason.KEPT, "a successful cycle resets the failure count"


def test_only_scheduled_cycles_count_failures(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.metrics.lose(1003, "host h3 reports nothing")
    assert reasons(bench.cycle())[1003] is Reason.KEPT
    for _ in range(5):
        assert reasons(bench.cycle("a leader changed"))[1003] is Reason.KEPT
    assert bench.planner.state().failures == {1003: 1}
    assert reasons(bench.cycle())[1003] is Reason.MINIMUM


def test_a_broker_unknown_to_the_metrics_source_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.metrics.loads = Loads({1001: builders.load(1001)})
    bench.begin_reassignment()
    for _ in range(3):
        record = bench.cycle()
        assert record.findings == ("broker 1003: unknown to the metrics source",)
    assert count(caplog, "Broker 1003: unknown to the metrics source") == 1


def test_without_the_metrics_source_rates_are_kept_once_then_minimal_and_the_error_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.metrics.unavailable(True)
    assert set(reasons(bench.cycle()).values()) == {Reason.KEPT}
    assert set(reasons(bench.cycle()).values()) == {Reason.MINIMUM}
    assert bench.rates() == {(1001, "leader"): 10.0, (1003, "follower"): 10.0}
    assert count(caplog, "Metrics cannot be read: the metrics source does not answer") == 1
    bench.metrics.unavailable(False)
    bench.cycle()
    bench.finish_ramps()
    assert bench.rates() == RATES


def test_an_event_cycle_reuses_the_last_loads_within_the_metrics_window(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.set_load(1001, outbound=60)
    bench.cycle("a leader changed", after=119.9)
    assert (bench.rate(1001, LEADER), bench.metrics.reads) == (72.0, 1)
    bench.cycle("a leader changed", after=0.1)
    assert (bench.rate(1001, LEADER), bench.metrics.reads) == (36.0, 2)


def test_an_event_cycle_reuses_the_loads_of_an_idle_interval(bench: Bench) -> None:
    bench.cycle()
    bench.begin_reassignment()
    bench.cycle("a reassignment of [t1] started", after=30)
    assert (bench.rates(), bench.metrics.reads) == (RATES, 1)


def test_event_cycles_do_not_read_metrics_for_a_while_after_a_failed_read(bench: Bench) -> None:
    """Each event cycle read the hanging source again. An override that was set then waited for one more timeout."""
    bench.metrics.unavailable(True)
    bench.begin_reassignment()
    bench.cycle()
    for _ in range(5):
        record = bench.cycle("an override changed")
        assert record.findings == ("metrics cannot be read: the metrics source does not answer; try again",)
    assert bench.metrics.reads == 1
    bench.metrics.unavailable(False)
    bench.cycle("an override changed", after=15)
    bench.finish_ramps()
    assert (bench.rates(), bench.metrics.reads) == (RATES, 2)


# Overrides.


def test_a_cluster_override_applies_to_all_participants_and_a_broker_override_beats_it(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.overrides.set_override(None, StoredOverride(mb(30)))
    bench.cycle("an override changed")
    assert bench.rates() == {(1001, "leader"): 30.0, (1003, "follower"): 30.0}
    bench.overrides.set_override(1003, StoredOverride(mb(50)))
    bench.cycle("an override changed")
    bench.finish_ramps()
    assert bench.rates() == {(1001, "leader"): 30.0, (1003, "leader"): 50.0, (1003, "follower"): 50.0}
    bench.overrides.remove_override(None)
    bench.overrides.remove_override(1003)
    bench.cycle("an override changed")
    bench.finish_ramps()
    assert bench.rates() == RATES


def test_an_override_stays_limited_by_the_last_known_capacity_while_the_metrics_fail(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(400), autoremove=True))
    bench.cycle()
    bench.begin_reassignment()
    bench.metrics.unavailable(True)
    with caplog.at_level(logging.INFO):
        bench.cycle(after=60)
    assert bench.rates() == {(1001, "leader"): 100.0, (1003, "follower"): 100.0}
    why = "override of 400.00MB/s, limited by the capacity of the link"
    assert f"Replication throttle rate for broker 1001 [leader] ({why}): 100.00MB/s" in caplog.messages


def test_a_broker_override_applies_without_reassignments_and_its_removal_cleans_up(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1003, 1004)})
    bench.cluster.add_topic("__consumer_offsets", {0: (1002, 1001)})
    bench.overrides.set_override(1002, StoredOverride(mb(50)))
    bench.cycle("an override changed")
    assert bench.rates() == {(1002, "leader"): 50.0, (1002, "follower"): 50.0}
    assert (bench.lists("t1"), bench.lists("__consumer_offsets")) == ((None, "0:1002"), (None, None))
    bench.overrides.remove_override(1002)
    bench.cycle("an override changed")
    assert bench.is_clean()


def test_a_broker_override_stays_for_both_roles_and_recovery_during_a_reassignment(bench: Bench) -> None:
    """It ended for recovery when a reassignment of its broker began. The broker then caught up at link speed."""
    both = {(1003, "leader"): 50.0, (1003, "follower"): 50.0}
    bench.cluster.add_topic("kept", {0: (1001, 1003), 1: (1002, 1003)})
    bench.cluster.leave_isr("kept", 1, 1003)
    bench.overrides.set_override(1003, StoredOverride(mb(50)))
    bench.cycle()
    assert bench.lists("kept") == (None, "0:1003,1:1003")
    bench.begin_reassignment()
    bench.cycle()
    assert bench.rates() == both | {(1001, "leader"): RATES[1001, "leader"]}
    assert bench.lists() == ("0:1001,0:1002", "0:1003")
    assert bench.lists("kept") == (None, "1:1003"), "the in-sync replica would take a share of the rate"
    bench.cluster.leave_isr("kept", 0, 1003)
    bench.cluster.brokers.discard(1003)
    bench.cycle("brokers gone")
    assert bench.lists("kept") == (None, "0:1003,1:1003")
    bench.cluster.brokers.add(1003)
    bench.cluster.join_isr("kept", 1, 1003)
    bench.cycle("brokers registered")
    assert bench.lists("kept") == (None, "0:1003")
    bench.overrides.remove_override(1003)
    bench.cycle("an override changed")
    bench.finish_ramps()
    assert (bench.rates(), bench.lists("kept")) == (RATES, (None, None))
    assert bench.lists() == ("0:1001,0:1002", "0:1003")
    bench.overrides.set_override(1003, StoredOverride(mb(50)))
    bench.cycle("an override changed")
    bench.cluster.finish("t1")
    bench.cycle("reassignment ended")
    assert bench.rates() == both
    assert (bench.lists(), bench.lists("kept")) == ((None, "0:1003"), (None, "0:1003,1:1003"))
    bench.overrides.remove_override(1003)
    bench.cycle("an override changed")
    assert bench.is_clean()


def test_an_override_marked_for_removal_by_the_original_is_removed_with_its_throttles(bench: Bench) -> None:
    bench.overrides.set_override(1002, StoredOverride(mb(50)))
    bench.cycle("an override changed")
    bench.overrides.mark_for_removal(1002)
    bench.cycle("an override changed")
    assert bench.is_clean()
    assert bench.overrides.read_overrides().brokers == {}


def test_an_autoremove_override_ends_with_its_reassignment(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(30), autoremove=True))
    bench.cycle()
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None, "it waits for its reassignment"
    bench.begin_reassignment()
    bench.cycle()
    assert bench.rates() == {(1001, "leader"): 30.0, (1003, "follower"): 30.0}
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()
    assert bench.overrides.read_overrides().cluster is None
    assert count(caplog, "Throttle override removed: no reassignment is left") == 1

    bench.overrides.set_override(None, StoredOverride(mb(40), autoremove=True))
    bench.cycle()
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None, "the next override waits for the next reassignment"


def test_an_autoremove_override_ends_if_the_lists_were_removed_before_the_reassignment_ended(bench: Bench) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(30), autoremove=True))
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.join_isr("t1", 0, 1003)
    bench.cycle("broker 1003 joined the ISR of t1-0")
    assert bench.is_clean()
    assert bench.overrides.read_overrides().cluster is not None
    bench.cluster.finish("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.overrides.read_overrides().cluster is None


def test_an_autoremove_override_stays_until_every_throttle_is_removed(bench: Bench) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(30), autoremove=True))
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cluster.refused[BROKER_1003] = "not now"
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None
    bench.cluster.refused[BROKER_1003] = ""
    bench.cycle("retrying after a failure")
    assert bench.is_clean()
    assert bench.overrides.read_overrides().cluster is None


@pytest.mark.parametrize("broker_id", [None, 1001])
def test_an_override_is_removed_when_it_expires(
    bench: Bench, caplog: pytest.LogCaptureFixture, broker_id: int | None
) -> None:
    bench.overrides.set_override(broker_id, StoredOverride(mb(30), expire_time=bench.now() + timedelta(seconds=90)))
    bench.begin_reassignment()
    bench.cycle()
    assert bench.rate(1001, LEADER) == 30.0
    bench.cycle("an override expires", after=29)
    assert bench.rate(1001, LEADER) == 30.0, "one second before the expiry"
    assert bench.overrides.read_overrides().of(1001) is not None
    bench.cycle("an override expires", after=1)
    bench.finish_ramps()
    assert bench.rates() == RATES
    assert bench.overrides.read_overrides().of(1001) is None
    newest = bench.overrides.read_audit_records(1).records[0]
    assert (newest.action, newest.reason) == (AuditAction.PURGE, "it has expired")
    assert newest.who == f"planner, term {bench.term.fence}"
    assert count(caplog, "removed: it has expired") == 1


def test_a_broker_override_that_expires_without_reassignments_is_cleaned_up(bench: Bench) -> None:
    bench.overrides.set_override(1002, StoredOverride(mb(50), expire_time=bench.now() + timedelta(seconds=90)))
    bench.cycle()
    assert bench.rate(1002, LEADER) == 50.0
    bench.cycle()
    assert bench.is_clean()
    assert bench.overrides.read_overrides().brokers == {}


def test_an_extended_override_does_not_expire(bench: Bench) -> None:
    bench.overrides.set_override(1002, StoredOverride(mb(50), expire_time=bench.now() + timedelta(seconds=90)))
    bench.cycle()
    bench.overrides.set_override(1002, StoredOverride(mb(50), expire_time=bench.now() + timedelta(seconds=900)))
    bench.cycle()
    assert bench.rate(1002, LEADER) == 50.0
    assert bench.overrides.read_overrides().active_brokers == {1002}


def test_an_expired_override_that_became_unreadable_is_not_removed(bench: Bench) -> None:
    bench.overrides.set_override(1002, StoredOverride(mb(50), expire_time=bench.now() + timedelta(seconds=90)))
    bench.cycle()
    bench.overrides.unreadable = {1002: "/override_rate/1002 is not JSON"}
    bench.cycle()
    bench.overrides.unreadable = {}
    assert bench.overrides.read_overrides().active_brokers == {1002}


@pytest.mark.parametrize(
    ("problems", "unreadable"),
    [([Problem("/brokers/topics/t2", "is not JSON")], {}), ([], {None: "/override_rate is not JSON"})],
    ids=["a topic", "the override"],
)
def test_an_autoremove_override_ends_if_its_reassignment_ended_during_a_read_problem(
    bench: Bench, problems: list[Problem], unreadable: dict[int | None, str]
) -> None:
    """The lists of this reassignment were refused, so only the planner's state knows that it ran.

    A cycle with an unreadable topic or override forgot that state.
    """
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    bench.cluster.refused[ConfigResource.topic("t1")] = "not now"
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cluster.problems += problems
    bench.overrides.unreadable |= unreadable
    bench.cycle()
    bench.cluster.problems.clear()
    bench.overrides.unreadable.clear()
    assert bench.overrides.read_overrides().cluster is not None
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is None
    assert bench.is_clean()


def test_the_planner_thread_runs_a_cycle_when_an_override_expires() -> None:
    with Bench(real_time=True, interval=timedelta(minutes=10)) as real:
        real.overrides.set_override(1002, StoredOverride(mb(50), expire_time=datetime.now(UTC) + timedelta(seconds=2)))
        real.planner.start(ADDRESS)
        eventually(lambda: real.overrides.read_overrides().brokers == {} and real.is_clean())
        assert real.overrides.read_audit_records(1).records[0].reason == "it has expired"


def test_an_unreadable_override_keeps_its_last_rate_and_nothing_is_removed(bench: Bench) -> None:
    """D2: the original reads an unparsable override as no override.

    It replaced the operator's rate by the measured one.
    """
    bench.overrides.set_override(None, StoredOverride(mb(30)))
    bench.overrides.set_override(1003, StoredOverride(mb(50)))
    bench.begin_reassignment()
    bench.cycle()
    bench.overrides.unreadable = {None: "/override_rate is not JSON", 1003: "/override_rate/1003 is not JSON"}
    record = bench.cycle()
    assert bench.rates() == {(1001, "leader"): 30.0, (1003, "leader"): 50.0, (1003, "follower"): 50.0}
    assert record.findings == ("/override_rate is not JSON", "/override_rate/1003 is not JSON")
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.rates() == {(1001, "leader"): 30.0, (1003, "leader"): 50.0, (1003, "follower"): 50.0}
    bench.overrides.unreadable = {}
    bench.overrides.remove_override(1003)
    bench.cycle()
    assert bench.is_clean()


def test_without_the_override_store_the_last_overrides_apply_and_nothing_is_removed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """D2 with the whole store unavailable. The cycle continues, since the cluster can be read."""
    bench.overrides.set_override(1003, StoredOverride(mb(50)))
    bench.cycle()
    bench.overrides.unavailable(True)
    bench.begin_reassignment()
    record = bench.cycle()
    assert bench.rates() == {(1001, "leader"): 72.0, (1003, "follower"): 50.0, (1003, "leader"): 50.0}
    (finding,) = record.findings
    assert finding.startswith("the overrides cannot be read; the last known ones apply:")
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.rate(1001, LEADER) == 72.0
    assert count(caplog, "the last known ones apply") == 1
    bench.overrides.unavailable(False)
    bench.cycle()
    assert bench.rates() == {(1003, "leader"): 50.0, (1003, "follower"): 50.0}


def test_a_new_term_writes_nothing_until_it_has_read_the_overrides(bench: Bench) -> None:
    bench.overrides.unavailable(True)
    bench.begin_reassignment()
    record = bench.cycle()
    assert "the overrides cannot be read" in record.error
    assert bench.cluster.writes == []


# The cluster cannot be read.


@pytest.mark.parametrize("fault", ["unavailable", "incomplete"])
def test_nothing_is_removed_while_the_cluster_cannot_be_read(
    bench: Bench, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D1: the original reads a lost connection, or truncated JSON in the reassignment node, as "no reassignments".

    During a reassignment it removed the lists after 2 s and the rates after 3.2 s, until the next interval.
    """
    bench.begin_reassignment()
    bench.cycle()
    written = len(bench.cluster.writes)
    bench.cluster.unavailable(fault == "unavailable")
    bench.cluster.incomplete = "/admin/reassign_partitions is not JSON" if fault == "incomplete" else ""
    record = bench.cycle()
    assert record.error and not record.sentence and not record.outcomes
    assert bench.rates() == RATES and bench.lists() == EXACT
    assert count(caplog, "The cycle failed, nothing was removed") == 1
    assert count(caplog, "No topics undergoing reassignment") == count(caplog, "Topics done") == 0
    bench.cluster.unavailable(False)
    bench.cluster.incomplete = ""
    assert not bench.cycle("retrying after a failure").error
    assert len(bench.cluster.writes) == written


def test_nothing_is_removed_while_part_of_the_topology_cannot_be_read(bench: Bench) -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cluster.problems.append(Problem("/brokers/topics/t2", "is not JSON; fix it"))
    record = bench.cycle()
    assert record.findings == ("/brokers/topics/t2: is not JSON; fix it",)
    assert bench.rates() == RATES
    bench.cluster.problems.clear()
    bench.cycle()
    assert bench.is_clean()


def test_cycles_back_off_from_one_second_after_an_error_of_discovery(real: Bench) -> None:
    """D3: after an error of discovery the original's loop retried at once, thousands of times per second."""
    real.cluster.unavailable(True)
    real.planner.start(ADDRESS)
    starts: list[float] = []
    last = None
    while len(starts) < 3:
        last = real.planner.next_cycle(last, SLACK)
        assert last is not None and "the cluster does not answer" in last.error
        starts.append(last.start_time.timestamp())
    first, second = starts[1] - starts[0], starts[2] - starts[1]
    assert first > 0.95, "never less than 1 s apart"
    assert second > 1.95, "the second wait is longer"
    real.cluster.unavailable(False)
    real.begin_reassignment()
    eventually(lambda: real.rates() == RATES)


# Writing.


@pytest.mark.parametrize("resource", [BROKER_1001, ConfigResource.topic("t1")])
def test_a_refused_write_is_reported_as_refused_and_retried_until_it_succeeds(
    bench: Bench, resource: ConfigResource, caplog: pytest.LogCaptureFixture
) -> None:
    """D6, D9: the original logged and posted a refused write as done, and never retried it."""
    bench.cluster.refused[resource] = "the controller said no"
    bench.begin_reassignment()
    for _ in range(3):
        record = bench.cycle()
        refused = [o for o in record.outcomes if o.status is OutcomeStatus.REFUSED]
        assert [(o.resource, o.reason) for o in refused] == [(resource, "the controller said no")]
        assert "1 refused" in record.sentence
    assert count(caplog, f"{resource}: not written: the controller said no") == 1
    broker_is_refused = resource == BROKER_1001
    assert count(caplog, "Updated throttle on broker 1001 [leader]") == (0 if broker_is_refused else 1)
    assert count(caplog, "Updated throttle on broker 1003 [follower]") == 1
    bench.cluster.refused[resource] = ""
    bench.cycle("retrying after a failure")
    assert bench.rates() == RATES and bench.lists() == EXACT
    assert count(caplog, "Updated throttle on broker 1001 [leader]") == 1
    titles = [event.title for event in bench.posted()]
    assert titles == ["Broker replication throttle set"] * (2 if broker_is_refused else 1)


def test_a_refused_write_is_retried_long_before_the_next_interval(real: Bench) -> None:
    real.planner.start(ADDRESS)
    assert real.planner.next_cycle(None, SLACK) is not None
    real.cluster.refused[BROKER_1001] = "not now"
    real.begin_reassignment()
    eventually(lambda: "not now" in [outcome.reason for outcome in last_cycle(real).outcomes])
    assert real.rates() == {(1003, "follower"): 81.0}
    real.cluster.refused[BROKER_1001] = ""
    eventually(lambda: real.rates() == RATES)
    eventually(lambda: "retrying after a failure" in last_cycle(real).reason)


def test_a_refused_removal_is_not_logged_until_it_is_done(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cluster.refused[BROKER_1003] = "not now"
    bench.cycle()
    assert count(caplog, "Throttle removed on broker 1001") == 1
    assert count(caplog, "Throttle removed on broker 1003") == 0
    bench.cluster.refused[BROKER_1003] = ""
    bench.cycle()
    assert count(caplog, "Throttle removed on broker 1003") == 1


def test_a_write_is_reported_even_if_the_purge_of_an_override_fails_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store failed between the write and the purge. The write was then never logged or posted."""
    with Bench() as bench:
        bench.overrides.set_override(None, StoredOverride(mb(30), autoremove=True))
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.finish("t1")
        bench.overrides.nodes.electorate = MemoryElectorate()  # its newest term differs
        record = bench.cycle()
        assert "term 1 is over" in record.error
        assert bench.is_clean()
        assert count(caplog, "Throttle removed on broker 1001") == 1
        bench.overrides.nodes.electorate = bench.electorate
        bench.cycle()
        assert bench.overrides.read_overrides().cluster is None
        assert [e.title for e in bench.posted()][-1] == "Broker replication throttle removed"


def test_an_outdated_term_ends_the_cycle_without_writes(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.begin_reassignment()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.electorate.begin_term("127.0.0.1:4004")
    record = bench.cycle()
    assert "term 1 is over" in record.error
    assert bench.cluster.writes == []
    assert count(caplog, "The cycle ended early: term 1 is over") == 1


@pytest.mark.parametrize(("at_start", "at_write", "written"), [(-1.0, 600.0, 3), (600.0, -1.0, 0)])
def test_a_cycle_writes_with_the_lease_of_its_moment(
    bench: Bench, at_start: float, at_write: float, written: int
) -> None:
    bench.begin_reassignment()
    fence, now = bench.electorate.begin_term(ADDRESS), time.monotonic()
    bench.term, bench.election.term = Term(fence, now + at_start), Term(fence, now + at_write)
    record = bench.cycle()
    assert len(bench.cluster.writes) == written
    assert ("lease has ended" in record.error) == (written == 0)


def test_an_outdated_term_is_not_retried(real: Bench) -> None:
    """A fenced-off planner may not know yet that it lost its term, for example after a process pause.

    It must not send retries to the applier.
    """
    elsewhere = MemoryElectorate()
    dependencies = real.dependencies(MemoryElection(elsewhere))
    real.electorate.begin_term()
    real.electorate.begin_term()
    real.begin_reassignment()
    stale = Planner(dependencies, real.settings)
    try:
        stale.start(ADDRESS)
        first = stale.next_cycle(None, SLACK)
        assert first is not None and "term 1 is over, the newest is 2" in first.error
        assert stale.next_cycle(first, timedelta(seconds=1.5)) is None
    finally:
        stale.stop()


def test_a_bug_in_one_cycle_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """An exception ended the loop's thread while it held the term. No planner could lead from then on."""
    with Bench() as bench:
        loads = bench.metrics.loads
        bench.metrics.loads = None  # type: ignore[assignment]
        bench.begin_reassignment()
        record = bench.cycle()
        assert record.error == "unexpected AttributeError; the log has the traceback"
        assert count(caplog, "The cycle failed unexpectedly") == 1
        bench.metrics.loads = loads
        bench.cycle()
        assert bench.rates() == RATES


class _DefectiveMetrics(MemoryMetrics):
    """A metrics source with a bug."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        raise ZeroDivisionError


def test_a_bug_of_the_metrics_source_is_a_finding_and_the_throttles_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unexpected error of a metrics source ended each cycle, so that no throttle was written or removed.

    It now counts as metrics that cannot be read.
    """
    with Bench() as bench:
        dependencies = replace(bench.dependencies(bench.election), loads=_DefectiveMetrics())
        bench.planner = Planner(dependencies, bench.settings, bench.now, lambda: bench.seconds)
        bench.begin_reassignment()
        record = bench.cycle()
        assert (record.error, bench.lists() == (None, None)) == ("", False)
        assert "metrics cannot be read: unexpected ZeroDivisionError; the log has the traceback" in record.findings
        assert count(caplog, "Reading the loads failed unexpectedly") == 1


def test_a_finding_that_cannot_be_formatted_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A metrics source of another party gave a warning that is no text, which failed the report of the cycle.

    The throttles are in place then. The cycle counts as failed, and the next one reports again.
    """
    with Bench() as bench:
        loads = bench.metrics.loads
        bench.metrics.loads = replace(loads, warnings=(7,))  # type: ignore[arg-type]
        bench.begin_reassignment()
        record = bench.cycle()
        assert record.error == "unexpected TypeError; the log has the traceback"
        assert count(caplog, "The cycle failed unexpectedly") == 1
        assert bench.rates() == RATES
        bench.metrics.loads = loads
        assert bench.cycle().error == ""


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("_triggers", "wait"),
        ("_submissions", "take_cancelled"),
        ("_reader", "want"),
        ("_reporter", "report"),
        ("_journal", "write"),
        ("", "_schedule_step"),
        ("", "run_step"),
        ("", "_publish"),
    ],
)
def test_after_an_exception_a_planner_runs_cycles_or_gives_up_its_term(
    real: Bench, monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    """Some exceptions ended the loop's thread while the planner led. It still led, but ran no cycle again."""

    def fail(*_arguments: object) -> None:
        failed.set()
        monkeypatch.undo()
        raise ZeroDivisionError

    failed, ended = threading.Event(), threading.Event()
    real.begin_reassignment()
    real.planner = planner = Planner(replace(real.dependencies(real.election), on_failure=ended.set), real.settings)
    planner.start(ADDRESS)
    eventually(lambda: planner.state().last_cycle)
    monkeypatch.setattr(getattr(planner, part) if part else planner, method, fail)
    if method == "run_step":
        planner._triggers.step_in(timedelta(0))
    else:
        planner.request_cycle("test")
    assert failed.wait(SLACK.total_seconds())
    last = planner.state().last_cycle
    eventually(lambda: ended.is_set() or planner.state().last_cycle is not last)
    assert ended.is_set() == (real.election.term is None)


# Foreign throttles.


@pytest.mark.parametrize(("interval", "wait"), [(1, 0.4), (10, 4), (30, 12), (180, 15)])
def test_the_metrics_timeout_leaves_a_cycle_below_half_an_interval(interval: float, wait: float) -> None:
    with Bench(interval=timedelta(seconds=interval)) as bench:
        bench.cycle()
        assert bench.metrics.last_timeout == timedelta(seconds=wait)


def test_foreign_throttles_are_logged_once_and_left_in_place(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.cluster.set_config_as_user(BROKER_1001, LEADER_RATE, "1000")
    for _ in range(70):
        bench.cycle()
    assert bench.cluster.configs[BROKER_1001] == {LEADER_RATE: "1000"}
    assert count(caplog, "exist while there are no reassignments: [brokers/1001]; they stay") == 1


def test_foreign_throttles_are_in_the_state_and_posted_when_they_appear_or_change(bench: Bench) -> None:
    bench.cluster.set_config_as_user(BROKER_1001, LEADER_RATE, "1000")
    found = bench.cycle().foreign_throttles
    assert found == (ForeignThrottle(BROKER_1001, LEADER_RATE, "1000"),)
    assert bench.cycle().foreign_throttles == found
    bench.cluster.set_config_as_user(ConfigResource.topic("t9"), LEADER_REPLICAS, ",".join(["0:1001"] * 100))
    bench.cycle()
    bench.begin_reassignment()
    assert bench.cycle().foreign_throttles == (), "during a reassignment their owner is unknown"
    bench.cluster.finish("t1")
    bench.cycle()
    bench.cycle()
    first, second, *_, last = [e.text.splitlines() for e in bench.posted() if e.title == "Foreign throttles found"]
    assert first == [
        "Foreign throttles, not set by autothrottle, exist while there are no reassignments:",
        "brokers/1001, leader.replication.throttled.rate: 1000",
        "they stay; --cleanup-foreign removes them",
    ]
    assert second[1] == first[1] and second[2].startswith("topics/t9, ") and second[2].endswith("...")
    assert last == second


def test_cleanup_foreign_removes_throttles_after_the_idle_intervals_and_logs_them_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Bench(cleanup_after=3, cleanup_foreign=True) as bench:
        for _ in range(5):
            bench.cycle()
        bench.cluster.set_config_as_user(BROKER_1001, LEADER_RATE, "1000")
        bench.cluster.set_config_as_user(BROKER_1001, "log.retention.ms", "5")
        bench.cluster.set_config_as_user(ConfigResource.topic("t9"), LEADER_REPLICAS, "*")
        for number in range(3):
            bench.cycle()
            bench.cycle("requested")
            assert bench.rate(1001, LEADER) == 0.001, f"after {number + 1} intervals"
        assert count(caplog, "[brokers/1001 topics/t9]; they are removed after --cleanup-after intervals") == 1
        bench.cycle()
        assert bench.cluster.configs == {BROKER_1001: {"log.retention.ms": "5"}, ConfigResource.topic("t9"): {}}
        assert bench.posted()[-1].title == "Broker replication throttle removed"


def test_a_default_throttle_is_logged_and_left_and_applies_again_after_ours_is_removed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Cruise Control hangs for hours when it removes its throttles while a default throttle exists (#2385)."""
    current = "Kafka's <default> leader throttle is 5.00MB/s"
    bench.cluster.set_default_as_user(LEADER_RATE, str(mb(5)))
    bench.cluster.set_default_as_user("log.cleaner.threads", "2")
    bench.begin_reassignment()
    assert [f for f in bench.cycle().findings if current in f]
    assert bench.rates() == RATES
    bench.cluster.set_default_as_user(FOLLOWER_RATE, str(mb(6)))
    assert ["follower throttle is 6.00MB/s" in f for f in bench.cycle().findings] == [True]
    assert bench.cycle().findings == ()

    bench.cluster.finish("t1")
    assert bench.cycle("the reassignment of [t1] ended").findings == (
        "broker 1001 [leader]: its own throttle was removed, so Kafka's <default> of 5.00MB/s applies again",
        "broker 1003 [follower]: its own throttle was removed, so Kafka's <default> of 6.00MB/s applies again",
    )
    assert bench.is_clean()
    assert bench.cluster.default_configs[LEADER_RATE] == str(mb(5))
    assert bench.cycle().findings == ()
    assert count(caplog, current) == 1
    assert count(caplog, "applies again") == 2


def test_foreign_throttles_are_not_removed_or_reported_while_the_snapshot_is_incomplete() -> None:
    """They may belong to a reassignment that could not be read."""
    with Bench(cleanup_foreign=True, cleanup_after=1) as bench:
        bench.cluster.set_config_as_user(BROKER_1001, LEADER_RATE, "5")
        bench.cluster.problems.append(Problem("/admin/reassign_partitions", "is not JSON"))
        for _ in range(5):
            assert bench.cycle().foreign_throttles == ()
        assert bench.cluster.configs[BROKER_1001] == {LEADER_RATE: "5"}
        bench.cluster.problems.clear()
        assert bench.cycle().foreign_throttles != ()
        bench.cycle()
        bench.cycle()
        assert bench.is_clean()


def test_foreign_throttles_of_a_resource_are_removed_one_cycle_after_our_own_change_of_it() -> None:
    """Two changes of one resource in one cycle would overwrite each other's ledger entry."""
    with Bench(cleanup_foreign=True, cleanup_after=2) as bench:
        bench.cluster.add_topic("t1", {0: (1001, 1003)})
        bench.overrides.set_override(1003, StoredOverride(mb(50)))
        bench.cluster.set_config_as_user(ConfigResource.topic("t1"), LEADER_REPLICAS, "0:1001")
        bench.cycle()
        bench.cycle()
        bench.overrides.remove_override(1003)
        due, after = bench.cycle(), bench.cycle()
        assert [outcome.resource for outcome in due.outcomes] == [BROKER_1003, ConfigResource.topic("t1")]
        assert [outcome.resource for outcome in after.outcomes] == [ConfigResource.topic("t1")]
        assert bench.is_clean()
        assert bench.cycle().findings == ()


def test_a_reassignment_resets_the_count_of_idle_intervals() -> None:
    with Bench(cleanup_after=2, cleanup_foreign=True) as bench:
        other = ConfigResource.broker(1004)
        bench.cluster.set_config_as_user(other, FOLLOWER_RATE, "1000")
        bench.cycle()
        bench.cycle()
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.finish("t1")
        bench.cycle()
        bench.cycle()
        assert bench.cluster.configs[other] == {FOLLOWER_RATE: "1000"}
        bench.cycle()
        assert bench.cluster.configs[other] == {}


def test_a_foreign_rate_is_restored_after_the_reassignment(bench: Bench) -> None:
    bench.cluster.set_config_as_user(BROKER_1001, LEADER_RATE, "55000000")
    bench.begin_reassignment()
    bench.cycle()
    assert bench.rate(1001, LEADER) == 90.0
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.rates() == {(1001, "leader"): 55.0}
    assert bench.cluster.ledger == {}


# Log lines and events.


def test_topics_in_reassignment_are_logged_when_they_change_and_once_per_interval(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin_reassignment()
    bench.cycle("a reassignment of [t1] started")
    bench.cycle("an override changed")
    bench.cycle("an override changed")
    assert count(caplog, "Topics with ongoing reassignments: [t1]") == 1
    bench.cycle()
    assert count(caplog, "Topics with ongoing reassignments: [t1]") == 2


def test_finished_topics_are_reported_even_after_a_failed_cycle(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.begin_reassignment("t1")
    bench.begin_reassignment("t2")
    bench.cycle()
    bench.cluster.finish("t2")
    bench.cluster.unavailable(True)
    bench.cycle()
    bench.cluster.unavailable(False)
    bench.cycle()
    assert count(caplog, "Topics done reassigning: [t2]") == 1
    assert bench.posted()[-1].text == "Topics done reassigning: [t2]"


def test_a_foreign_edit_of_our_rate_is_repaired_and_reported(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, "1")
    record = bench.cycle()
    bench.finish_ramps()
    assert bench.rates() == RATES
    assert any("another party changed the rate from" in finding for finding in record.findings)


def test_a_slow_event_sink_gets_every_event_and_delays_no_cycle(bench: Bench) -> None:
    bench.metrics.post_gate.clear()
    bench.begin_reassignment()
    bench.cycle()
    assert bench.metrics.hangs.wait(60)
    bench.cluster.finish("t1")
    assert not bench.cycle().error
    assert bench.is_clean() and bench.metrics.events == []
    bench.metrics.post_gate.set()
    assert [event.title for event in bench.posted()] == [
        "Broker replication throttle set",
        "Topics done reassigning",
        "Broker replication throttle removed",
    ]


def test_a_failed_event_post_is_logged_and_the_next_event_is_posted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.cycle()
    bench.metrics.unavailable(True)
    bench.begin_reassignment()
    bench.cycle("a reassignment of [t1] started")
    eventually(lambda: count(caplog, "Event was not posted (the metrics source does not answer"))
    bench.metrics.unavailable(False)
    bench.cluster.finish("t1")
    bench.cycle()
    assert [e.title for e in bench.posted()] == ["Topics done reassigning", "Broker replication throttle removed"]


# Terms, and the thread.


def test_a_new_term_starts_with_empty_state(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.metrics.lose(1003, "host h3 reports nothing")
    bench.cycle()
    assert bench.planner.state().failures == {1003: 1}
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    record = bench.cycle()
    assert (record.term, record.number) == (2, 1)
    assert reasons(record)[1003] is Reason.KEPT, "the failure count starts at 1 again"
    assert caplog.messages.count("Leading in term 1") == caplog.messages.count("Leading in term 2") == 1


def test_a_snapshot_is_at_least_as_new_as_the_last_event() -> None:
    """Discovery replicas differ. A lagging one returned a snapshot without the change that another had reported."""

    class VersionRecorder(MemoryCluster):
        min_versions: list[int]

        def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
            self.min_versions.append(request.min_version)
            return super().fetch_snapshot(request, timeout=timeout)

    with Bench() as bench:
        cluster = VersionRecorder(bench.electorate, (1001, 1002, 1003))
        cluster.min_versions = []
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.new_planner()
        bench.cycle()
        bench.begin_reassignment()
        version = cluster.version
        bench.cycle("a reassignment of [t1] started")
        assert cluster.min_versions == [0, version]


def test_events_start_cycles_at_once_regardless_of_the_interval(real: Bench) -> None:
    limit = SPACING.total_seconds() + AT_ONCE
    real.planner.start(ADDRESS)
    assert real.planner.next_cycle(None, SLACK) is not None
    real.begin_reassignment()
    at_once(lambda: real.rates() == RATES, limit)
    real.overrides.set_override(1003, StoredOverride(mb(70)))
    at_once(lambda: real.rate(1003, FOLLOWER) == 70.0, limit)
    real.overrides.remove_override(1003)
    at_once(lambda: (real.rate(1003, FOLLOWER) or 0) > 70, limit)
    eventually(lambda: real.rates() == RATES)  # after a ramp
    real.cluster.finish("t1")
    at_once(real.is_clean, limit)


def test_a_slow_watcher_gets_every_cycle_in_order(real: Bench) -> None:
    real.planner.start(ADDRESS)
    first = real.planner.next_cycle(None, SLACK)
    assert first is not None and (first.number, first.reason) == (1, "interval")
    assert real.planner.next_cycle(first, timedelta(seconds=0.05)) is None
    real.planner.request_cycle("second")
    eventually(lambda: (last := real.planner.state().last_cycle) and last.number == 2)
    real.planner.request_cycle("")
    eventually(lambda: (last := real.planner.state().last_cycle) and last.number == 3)
    second = real.planner.next_cycle(first, SLACK)
    third = real.planner.next_cycle(second, SLACK)
    assert second is not None and (second.number, second.reason) == (2, "second")
    assert third is not None and (third.number, third.reason) == (3, "requested")


def test_a_waiting_planner_takes_over_when_the_leader_stops(real: Bench) -> None:
    other_election = MemoryElection(real.electorate)
    dependencies = real.dependencies(other_election)
    other = Planner(dependencies, real.settings)
    try:
        real.planner.start(ADDRESS)
        other.start("127.0.0.1:4004")
        real.begin_reassignment()
        eventually(lambda: real.rates() == RATES)
        with pytest.raises(NotLeader) as refused:
            other.request_cycle("requested")
        assert refused.value.leader_address == ADDRESS
        state = other.state()
        assert (state.leading, state.term, state.leader_address, state.last_cycle) == (False, 1, ADDRESS, None)
        real.set_load(1001, outbound=92)
        real.set_load(1003, inbound=91)
        written = len(real.cluster.writes)
        real.planner.stop()
        first = other.next_cycle(None, SLACK)
        assert first is not None and (first.term, first.number, first.error) == (2, 1, "")
        assert len(real.cluster.writes) == written, "a failover during a reassignment writes nothing"
        assert other.state().leading
        real.cluster.finish("t1")
        eventually(real.is_clean)
    finally:
        other.stop()


def test_a_reelected_leader_restarts_its_cycle_numbers(real: Bench) -> None:
    real.planner.start(ADDRESS)
    first = real.planner.next_cycle(None, SLACK)
    real.electorate.depose()
    again = real.planner.next_cycle(first, SLACK)
    assert again is not None and (again.term, again.number, again.reason) == (2, 1, "interval")


def test_stop_finishes_the_current_cycle_and_gives_up_the_leadership(real: Bench) -> None:
    real.begin_reassignment()
    real.metrics.read_gate.clear()
    real.planner.start(ADDRESS)
    assert real.metrics.hangs.wait(60)
    opening = threading.Timer(0.2, real.metrics.read_gate.set)
    opening.start()
    assert real.rates() == {}
    real.planner.stop()
    opening.join()
    assert real.rates() == RATES
    assert real.election.term is None


def test_a_planner_that_never_started_can_be_stopped(bench: Bench) -> None:
    """A TCP port was in use, so `start` was never called. The failure of `stop` then hid that error."""
    bench.planner.stop()
    bench.planner.stop()


# Health.


def test_loop_counts_as_stalled_after_three_intervals_without_a_cycle(bench: Bench) -> None:
    assert bench.planner.stall() == ""
    bench.seconds += 180
    assert bench.planner.stall() == ""
    bench.seconds += 1
    assert bench.planner.stall() == "the planner's loop has not finished a cycle for 181 s; restart the process"


def test_a_loop_that_waits_for_metrics_stalls_and_recovers() -> None:
    """Health knew nothing of the loop. A planner whose cycle hung led for as long as its session lasted."""
    ahead = [0.0]
    with Bench(real_time=True) as bench:
        planner = Planner(bench.dependencies(bench.election), bench.settings, clock=lambda: time.monotonic() + ahead[0])
        bench.metrics.read_gate.clear()
        bench.begin_reassignment()
        planner.start(ADDRESS)
        try:
            assert bench.metrics.hangs.wait(60)
            ahead[0] = 181.0
            assert planner.stall()
            bench.metrics.read_gate.set()
            eventually(lambda: not planner.stall())
        finally:
            bench.metrics.read_gate.set()
            planner.stop()


def test_unreadable_snapshot_is_reported_until_the_next_one_succeeds(bench: Bench) -> None:
    bench.cycle()
    assert bench.planner.unreadable() == ""
    bench.cluster.unavailable(True)
    bench.cycle()
    assert "answer" in bench.planner.unreadable()
    bench.cluster.unavailable(False)
    bench.cycle()
    assert bench.planner.unreadable() == ""


def test_current_loads_are_read_again_four_seconds_after_copies_begin() -> None:
    """The loads of the cycle that saw a reassignment contained copies which no count covered yet.

    They were used until the next scheduled cycle, up to three minutes later.
    """
    with Bench(interval=timedelta(seconds=180)) as bench:
        bench.cycle(after=0)
        bench.begin_reassignment()
        bench.cycle("a reassignment started", after=1)
        assert bench.metrics.reads == 1
        bench.cycle("first loads with counted copies", after=4)
        assert bench.metrics.reads == 2
        bench.cycle("an ISR changed", after=4)
        assert bench.metrics.reads == 2


def test_delayed_metrics_are_not_read_again_when_copies_begin() -> None:
    with Bench(interval=timedelta(seconds=180)) as bench:
        bench.seconds = 60
        bench.cycle()
        bench.begin_reassignment()
        bench.cycle("a reassignment started", after=1)
        bench.cycle("an ISR changed", after=5)
        assert bench.metrics.reads == 1
