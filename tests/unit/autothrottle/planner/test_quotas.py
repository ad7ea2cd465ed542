"""Temporary client quotas in the planner: set, restored at their end, and after a failover; foreign values stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryElectorate, MemoryOverrides
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey
from autothrottle.core.errors import AutothrottleError, Incomplete, Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, QuotaState, TemporaryQuota
from autothrottle.core.records import AuditAction, CatchUp, Pause, PauseMode
from autothrottle.ports.kafka import Term
from tests.builders import NOON
from tests.unit.autothrottle.planner.bench import ADDRESS, Bench

BACKFILL = ClientQuotaEntity(DEFAULT, "backfill")
RESOURCE = BACKFILL.resource
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE


def temporary(minutes: float | None = None, recovery: bool = False, rate: int = 5) -> TemporaryQuota:
    ends = None if minutes is None else NOON + timedelta(minutes=minutes)
    return TemporaryQuota(BACKFILL, {PRODUCER: rate}, "anna", NOON, ends, recovery)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        made.cluster.configs[RESOURCE] = {"producer_byte_rate": "70", "consumer_byte_rate": "8"}
        yield made


def quotas(bench: Bench) -> dict[str, str]:
    return dict(bench.cluster.configs.get(RESOURCE, {}))


BEFORE = {"producer_byte_rate": "70", "consumer_byte_rate": "8"}
DURING = {"producer_byte_rate": "5", "consumer_byte_rate": "8"}


def test_a_quota_is_set_and_the_value_before_it_is_restored_when_it_expires(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=3))
    bench.cycle()
    assert quotas(bench) == DURING
    assert bench.cluster.ledger == {
        RESOURCE: LedgerEntry({"producer_byte_rate": LedgerKey("70", "5")}, bench.term.fence, 1)
    }
    writes = len(bench.cluster.writes)
    bench.cycle()
    assert len(bench.cluster.writes) == writes, "nothing changed, so nothing is written"
    bench.cycle()
    assert quotas(bench) == BEFORE
    assert bench.cluster.ledger == {} and bench.temporary_quotas.read() == {}
    bench.cycle()
    lines = [line for line in caplog.messages if "uota of" in line]
    assert lines == [
        "Quota of users/<default>/clients/backfill set: producer_byte_rate 5",
        "Quota of users/<default>/clients/backfill restored: producer_byte_rate 70",
        'Temporary quota of default user, client-id "backfill" ended: it has expired',
    ]
    (record, *_) = bench.overrides.audit.newest(1)
    assert (record.action, record.who, record.reason) == (
        AuditAction.REMOVE_QUOTA,
        f"planner, term {bench.term.fence}",
        "it has expired",
    )


def test_a_key_that_was_not_set_is_removed_again(bench: Bench) -> None:
    bench.cluster.configs[RESOURCE] = {}
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=1.5))
    bench.cycle()
    assert quotas(bench) == {"producer_byte_rate": "5"}
    bench.cycle()
    assert quotas(bench) == {} and bench.cluster.ledger == {}


def test_a_quota_that_an_operator_ends_early_is_restored(bench: Bench) -> None:
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=60))
    bench.cycle()
    assert bench.temporary_quotas.remove(BACKFILL, "anna")
    bench.cycle("a temporary quota changed")
    assert quotas(bench) == BEFORE and bench.cluster.ledger == {}


def test_a_quota_of_a_recovery_ends_with_the_last_reassignment(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.temporary_quotas.put(BACKFILL, temporary(recovery=True))
    bench.cycle()
    bench.cycle()
    assert quotas(bench) == DURING
    bench.cluster.finish("t1")
    bench.cycle("the reassignment ended")
    assert quotas(bench) == BEFORE and bench.cluster.ledger == {}
    assert bench.temporary_quotas.read() == {}


def test_a_quota_of_a_recovery_ends_with_the_last_catch_up(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1003)})
    bench.cluster.leave_isr("t1", 0, 1003)
    bench.catch_ups.put(1003, CatchUp(1003))
    bench.temporary_quotas.put(BACKFILL, temporary(recovery=True))
    bench.cycle()
    assert quotas(bench) == DURING
    bench.cluster.join_isr("t1", 0, 1003)
    bench.cycle()
    assert quotas(bench) == BEFORE


def test_the_next_leader_restores_what_a_killed_one_has_set(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.temporary_quotas.put(BACKFILL, temporary(recovery=True))
    bench.cycle()
    assert quotas(bench) == DURING
    bench.cluster.finish("t1")
    bench.planner.stop()
    bench.planner = bench.new_planner()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.cycle()
    assert quotas(bench) == BEFORE and bench.temporary_quotas.read() == {}
    assert bench.cluster.ledger == {}


def test_a_write_of_a_killed_leader_without_a_request_left_is_restored(bench: Bench) -> None:
    """The leader wrote the quota, then the operator ended it while no planner led."""
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=60))
    bench.cycle()
    bench.temporary_quotas.remove(BACKFILL)
    bench.planner.stop()
    bench.planner = bench.new_planner()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.cycle()
    assert quotas(bench) == BEFORE and bench.cluster.ledger == {}


def test_a_foreign_edit_is_repaired_while_it_holds_and_stays_after_its_end(bench: Bench) -> None:
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=4))
    bench.cycle()
    bench.cluster.set_config_as_user(RESOURCE, "producer_byte_rate", "900")
    record = bench.cycle()
    assert quotas(bench) == DURING
    assert any("changed the rate from 5 to 900; repaired" in finding for finding in record.findings)
    bench.cluster.set_config_as_user(RESOURCE, "producer_byte_rate", "900")
    bench.cycle(after=180)
    assert quotas(bench) == {**DURING, "producer_byte_rate": "900"}
    assert bench.cluster.ledger == {}


def test_other_entities_are_never_touched(bench: Bench) -> None:
    customer = ClientQuotaEntity(client_id="customer").resource
    bench.cluster.configs[customer] = {"producer_byte_rate": "1"}
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=1.5))
    bench.cycle()
    bench.cycle()
    assert {change.resource for change in bench.cluster.writes} == {RESOURCE}
    assert bench.cluster.configs[customer] == {"producer_byte_rate": "1"}


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_changes_no_quota(bench: Bench, mode: PauseMode) -> None:
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=2))
    bench.cycle()
    bench.pauses.set_pause(Pause(mode))
    bench.cycle(after=600)
    assert quotas(bench) == DURING
    bench.pauses.remove_pause()
    bench.cycle("resumed")
    assert quotas(bench) == BEFORE


def test_a_planner_in_shadow_mode_writes_no_quota_and_ends_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Bench(shadow=True) as bench:
        bench.temporary_quotas.put(BACKFILL, temporary(minutes=5))
        bench.cycle()
        bench.cycle(after=600)
        assert bench.cluster.writes == [] and bench.temporary_quotas.read()
    line = "Shadow: would write: Quota of users/<default>/clients/backfill set: producer_byte_rate 5"
    assert caplog.messages.count(line) == 1


def test_quotas_that_cannot_be_read_stay(bench: Bench) -> None:
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=60))
    bench.cycle()
    bench.temporary_quotas.unavailable(True)
    record = bench.cycle()
    assert any("the temporary quotas cannot be read; the last known ones stay" in one for one in record.findings)
    assert quotas(bench) == DURING
    bench.planner.stop()
    bench.planner = bench.new_planner()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    record = bench.cycle()
    assert any("no quota changes until they can be read" in one for one in record.findings)
    assert quotas(bench) == DURING


def test_a_refused_restore_is_tried_again_and_the_request_stays(bench: Bench) -> None:
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=1.5))
    bench.cycle()
    bench.cluster.refused[RESOURCE] = "the controller is busy"
    bench.cycle()
    assert quotas(bench) == DURING and bench.temporary_quotas.read()
    bench.cluster.refused.clear()
    bench.cycle()
    assert quotas(bench) == BEFORE and not bench.temporary_quotas.read()


def test_without_quotas_their_state_is_read_only_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    fetch = bench.cluster.fetch_quota_state

    def counted(resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        reads.append(resources)
        return fetch(resources, timeout)

    monkeypatch.setattr(bench.cluster, "fetch_quota_state", counted)
    for _ in range(3):
        bench.cycle()
    assert len(reads) == 1


@pytest.mark.parametrize("is_lost_at_the_end", [False, True])
def test_the_quota_before_ours_is_restored_although_the_ledger_lost_it(bench: Bench, is_lost_at_the_end: bool) -> None:
    """Without its ledger entry, our own quota counted as another party's, and the client kept it for good."""
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=60))
    bench.cycle()
    del bench.cluster.ledger[RESOURCE]
    if is_lost_at_the_end:
        bench.temporary_quotas.remove(BACKFILL, "anna")
    record = bench.cycle()
    assert [finding for finding in record.findings if "its record in the ledger is lost" in finding]
    assert bench.cluster.ledger[RESOURCE].keys["producer_byte_rate"].before == "70"
    bench.temporary_quotas.remove(BACKFILL, "anna")
    bench.cycle()
    assert quotas(bench) == BEFORE and bench.cluster.ledger == {}


class _ReadOnlyOverrides(MemoryOverrides):
    """A store in which some overrides cannot be removed."""

    def __init__(self, electorate: MemoryElectorate, error: AutothrottleError, broker_ids: Collection[int]) -> None:
        super().__init__(electorate)
        self.error, self.broker_ids, self.purges = error, broker_ids, list[int | None]()

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        self.purges.append(broker_id)
        if broker_id in self.broker_ids:
            raise self.error
        return super().purge_override(fence, broker_id, version, reason)


@pytest.mark.parametrize(
    ("error", "purges"),
    [(Incomplete("no audit record can be written"), [1001, 1002]), (Unavailable("the store does not answer"), [1001])],
)
def test_an_override_that_cannot_be_removed_does_not_keep_a_quota(
    bench: Bench, error: AutothrottleError, purges: list[int | None]
) -> None:
    """The removal of one expired override failed in each cycle, and ended the actions that followed it.

    No other override and no temporary quota was removed.
    """
    overrides = bench.overrides = _ReadOnlyOverrides(bench.electorate, error, [1001])
    bench.planner = bench.new_planner()
    for broker_id in (1001, 1002):
        overrides.set_override(broker_id, StoredOverride(5_000_000, expire_time=NOON + timedelta(minutes=1.5)))
    bench.temporary_quotas.put(BACKFILL, temporary(minutes=1.5))
    bench.cycle()
    assert quotas(bench) == DURING
    record = bench.cycle()
    assert (record.error, overrides.purges) == (str(error), purges)
    assert quotas(bench) == BEFORE and bench.temporary_quotas.read() == {}
