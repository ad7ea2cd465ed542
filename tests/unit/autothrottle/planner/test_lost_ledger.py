"""A ledger that loses records: the planner knows what it wrote in this term."""

from __future__ import annotations

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_REPLICAS, LEADER_RATE, ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.records import Cycle
from tests.unit.autothrottle.planner.bench import Bench

BROKER, TOPIC = ConfigResource.broker(1001), ConfigResource.topic("t1")
LOST = "its record in the ledger is lost"


def throttled(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    assert {BROKER, TOPIC} <= bench.cluster.ledger.keys()


def finish(bench: Bench) -> Cycle:
    bench.cluster.finish("t1")
    bench.cycle()
    return bench.cycle()


@pytest.mark.parametrize("resource", [BROKER, TOPIC])
def test_a_lost_entry_is_written_again_and_the_values_stay_ours(resource: ConfigResource) -> None:
    """Without its ledger entry, the planner took its own rate for another party's and restored it at the end.

    The throttle of the broker then stayed for good.
    """
    with Bench() as bench:
        throttled(bench)
        entry, values = bench.cluster.ledger.pop(resource), dict(bench.cluster.configs)
        record = bench.cycle()
        assert [finding for finding in record.findings if LOST in finding and str(resource) in finding]
        assert bench.cluster.ledger[resource].keys == entry.keys
        assert bench.cluster.configs == values
        assert not [finding for finding in bench.cycle().findings if "another party" in finding or LOST in finding]
        finish(bench)
        assert bench.is_clean()


def test_a_lost_record_of_one_key_is_written_again() -> None:
    with Bench() as bench:
        throttled(bench)
        entry = bench.cluster.ledger[TOPIC]
        rest = {key: record for key, record in entry.keys.items() if key != FOLLOWER_REPLICAS}
        bench.cluster.ledger[TOPIC] = LedgerEntry(rest, entry.term, entry.cycle)
        bench.cycle()
        assert bench.cluster.ledger[TOPIC].keys == entry.keys
        finish(bench)
        assert bench.is_clean()


def test_the_value_before_ours_is_restored_although_its_record_is_lost_at_the_end() -> None:
    with Bench() as bench:
        bench.cluster.configs[BROKER] = {LEADER_RATE: "5000000"}
        throttled(bench)
        bench.cluster.finish("t1")
        del bench.cluster.ledger[BROKER]
        bench.cycle()
        bench.cycle()
        assert bench.cluster.configs[BROKER] == {LEADER_RATE: "5000000"}
        assert bench.cluster.ledger == {}


def test_an_entry_that_was_unreadable_and_is_then_deleted_is_lost() -> None:
    """An unreadable entry is refused until an operator deletes it. Then our values are still ours."""
    with Bench() as bench:
        throttled(bench)
        entry = bench.cluster.ledger.pop(BROKER)
        bench.cluster.unreadable_configs[BROKER] = Problem("/autothrottle/ledger/brokers/1001", "no JSON")
        bench.cycle()
        del bench.cluster.unreadable_configs[BROKER]
        bench.cycle()
        assert bench.cluster.ledger[BROKER].keys == entry.keys
        finish(bench)
        assert bench.is_clean()


def test_a_key_whose_value_and_record_are_both_gone_is_not_ours() -> None:
    with Bench() as bench:
        throttled(bench)
        del bench.cluster.ledger[BROKER], bench.cluster.configs[BROKER]
        record = bench.cycle()
        assert not [finding for finding in record.findings if LOST in finding]
        assert bench.cluster.ledger[BROKER].keys[LEADER_RATE].before is None


def test_a_new_term_reports_that_a_rate_without_a_record_counts_as_foreign() -> None:
    """A new leader cannot know who set a rate without a record, so it says what happens to it."""
    with Bench() as bench:
        throttled(bench)
        rate = bench.cluster.configs[BROKER][LEADER_RATE]
        del bench.cluster.ledger[BROKER]
        bench.planner, bench.term = bench.new_planner(), type(bench.term)(bench.electorate.begin_term())
        record = bench.cycle()
        assert [finding for finding in record.findings if f"the rate {rate} is not in the ledger" in finding]
