"""Contract of every `OverrideStore`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.errors import Conflict, Invalid, NotLeader
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import AuditAction
from autothrottle.core.traffic.loads import MAX_LINK_RATE
from autothrottle.ports.state_store import OverrideStore
from tests import builders


class OverrideStoreSubject(Protocol):
    """An empty store, and a way to begin the terms that fence it."""

    @property
    def store(self) -> OverrideStore: ...

    @property
    def records_kept(self) -> int:
        """Number of audit records that the store keeps."""
        ...

    def begin_term(self) -> int:
        """Begin a new term and return its fence."""
        ...


def summary(record: StoredAuditRecord) -> tuple[AuditAction, int | None, StoredOverride | None, StoredOverride | None]:
    """(action, broker id, override before, override after) of a record."""
    return record.action, record.broker_id, record.before, record.after


class OverrideStoreContract:
    def test_empty_store_has_no_override(self, subject: OverrideStoreSubject) -> None:
        assert subject.store.read_overrides().of(1001) is None

    def test_broker_override_beats_cluster_override(self, subject: OverrideStoreSubject) -> None:
        subject.store.set_override(None, StoredOverride(5, autoremove=True))
        subject.store.set_override(1001, StoredOverride(7))
        read = subject.store.read_overrides()
        assert read.cluster is not None
        assert (read.cluster.rate, read.cluster.autoremove) == (5, True)
        assert read.brokers.keys() == {1001}
        of_broker, of_another = read.of(1001), read.of(1002)
        assert of_broker is not None and of_broker.rate == 7
        assert of_another is not None and of_another.rate == 5

    def test_set_returns_the_stored_override(self, subject: OverrideStoreSubject) -> None:
        returned = subject.store.set_override(1001, StoredOverride(7))
        assert subject.store.read_overrides().brokers == {1001: returned}

    def test_a_later_override_replaces_an_earlier_one(self, subject: OverrideStoreSubject) -> None:
        earlier = subject.store.set_override(1001, StoredOverride(7))
        later = subject.store.set_override(1001, StoredOverride(MAX_LINK_RATE))
        assert later.version != earlier.version
        assert subject.store.read_overrides().brokers[1001].rate == MAX_LINK_RATE

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_a_removed_override_has_no_effect(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        subject.store.set_override(broker_id, StoredOverride(7))
        assert subject.store.remove_override(broker_id) is True
        assert subject.store.read_overrides().of(1001) is None
        assert subject.store.remove_override(broker_id) is False

    def test_removing_the_cluster_override_keeps_broker_overrides(self, subject: OverrideStoreSubject) -> None:
        subject.store.set_override(None, StoredOverride(5))
        subject.store.set_override(1001, StoredOverride(7))
        subject.store.remove_override(None)
        assert subject.store.read_overrides().active_brokers == {1001}

    @pytest.mark.parametrize(
        ("broker_id", "rate"), [(1001, 0), (None, -1), (None, MAX_LINK_RATE + 1), (-1, 5), (2**31, 5)]
    )
    def test_values_out_of_range_are_rejected(
        self, subject: OverrideStoreSubject, broker_id: int | None, rate: int
    ) -> None:
        with pytest.raises(Invalid):
            subject.store.set_override(broker_id, StoredOverride(rate))
        assert subject.store.read_overrides().of(1001) is None

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_purge_removes_the_given_version(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        version = subject.store.set_override(broker_id, StoredOverride(7)).version
        assert subject.store.purge_override(subject.begin_term(), broker_id, version) is True
        assert subject.store.read_overrides().of(1001) is None

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_purge_keeps_a_later_version(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        # The original's purge deletes an override that an operator has just set.
        version = subject.store.set_override(broker_id, StoredOverride(7)).version
        later = subject.store.set_override(broker_id, StoredOverride(9))
        assert subject.store.purge_override(subject.begin_term(), broker_id, version) is False
        assert subject.store.read_overrides().of(1001) == later

    def test_purge_in_an_earlier_term_raises_not_leader(self, subject: OverrideStoreSubject) -> None:
        current = subject.store.set_override(1001, StoredOverride(7))
        earlier = subject.begin_term()
        subject.begin_term()
        with pytest.raises(NotLeader):
            subject.store.purge_override(earlier, 1001, current.version)
        assert subject.store.read_overrides().brokers == {1001: current}

    # Compare and set.

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_change_with_an_outdated_version_is_a_conflict(
        self, subject: OverrideStoreSubject, broker_id: int | None
    ) -> None:
        first = subject.store.set_override(broker_id, StoredOverride(7))
        second = subject.store.set_override(broker_id, StoredOverride(8, version=first.version))
        with pytest.raises(Conflict, match=r"etag is now .+; read it again"):
            subject.store.set_override(broker_id, StoredOverride(9, version=first.version))
        with pytest.raises(Conflict, match=r"etag is now .+; read it again"):
            subject.store.remove_override(broker_id, version=first.version)
        assert subject.store.read_overrides().of(1001) == second
        assert subject.store.remove_override(broker_id, version=second.version) is True
        assert subject.store.read_overrides().of(1001) is None

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_version_of_a_removed_override_is_never_valid_again(
        self, subject: OverrideStoreSubject, broker_id: int | None
    ) -> None:
        removed = subject.store.set_override(broker_id, StoredOverride(7))
        subject.store.remove_override(broker_id)
        with pytest.raises(Conflict):
            subject.store.set_override(broker_id, StoredOverride(9, version=removed.version))
        assert subject.store.remove_override(broker_id, version=removed.version) is False
        recreated = subject.store.set_override(broker_id, StoredOverride(7))
        with pytest.raises(Conflict):
            subject.store.remove_override(broker_id, version=removed.version)
        assert subject.store.read_overrides().of(1001) == recreated

    def test_refused_change_leaves_no_audit_record(self, subject: OverrideStoreSubject) -> None:
        version = subject.store.set_override(1001, StoredOverride(7)).version
        with pytest.raises(Conflict):
            subject.store.set_override(1001, StoredOverride(9, version=version + 1))
        assert len(subject.store.read_audit_records(10).records) == 1

    def test_only_one_of_many_concurrent_changes_of_one_version_succeeds(self, subject: OverrideStoreSubject) -> None:
        version = subject.store.set_override(1001, StoredOverride(1)).version

        def change(rate: int) -> StoredOverride | None:
            try:
                return subject.store.set_override(1001, StoredOverride(rate, version=version))
            except Conflict:
                return None

        with ThreadPoolExecutor(6) as pool:
            changed = [override for override in pool.map(change, range(2, 8)) if override is not None]
        assert [subject.store.read_overrides().brokers[1001]] == changed

    def test_concurrent_changes_without_a_version_are_serialised(self, subject: OverrideStoreSubject) -> None:
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(lambda rate: subject.store.set_override(1001, StoredOverride(rate)), range(1, 7)))
        records = subject.store.read_audit_records(10).records[::-1]
        assert {record.after for record in records} == set(made)
        assert [record.before for record in records] == [None, *(record.after for record in records[:-1])]

    # The end of an override.

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_expire_time_is_stored(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        end = builders.NOON + timedelta(microseconds=1)
        returned = subject.store.set_override(broker_id, StoredOverride(7, autoremove=True, expire_time=end))
        assert returned.expire_time == end
        assert subject.store.read_overrides().of(1001) == returned
        assert subject.store.set_override(broker_id, StoredOverride(7)).expire_time is None

    # Audit records.

    def test_every_change_has_an_audit_record_with_author_and_values(self, subject: OverrideStoreSubject) -> None:
        assert subject.store.read_audit_records(10).records == ()
        first = subject.store.set_override(
            None, StoredOverride(5, autoremove=True, expire_time=builders.NOON), who="operator a"
        )
        second = subject.store.set_override(None, StoredOverride(6), who="operator b")
        third = subject.store.set_override(1001, StoredOverride(7))
        subject.store.remove_override(None, who="operator c")
        subject.store.purge_override(subject.begin_term(), 1001, third.version, "its time is over")
        records = subject.store.read_audit_records(10).records
        assert [summary(record) for record in reversed(records)] == [
            (AuditAction.SET, None, None, first),
            (AuditAction.SET, None, first, second),
            (AuditAction.SET, 1001, None, third),
            (AuditAction.REMOVE, None, second, None),
            (AuditAction.PURGE, 1001, third, None),
        ]
        purged, *others = (record.who for record in records)
        assert others == ["operator c", "", "operator b", "operator a"]
        assert purged.startswith("planner, term ")
        assert records[0].reason == "its time is over"
        numbers = [record.number for record in records]
        assert numbers == sorted(set(numbers), reverse=True)
        assert all(record.time.utcoffset() == timedelta(0) for record in records)

    def test_calls_without_effect_leave_no_audit_record(self, subject: OverrideStoreSubject) -> None:
        version = subject.store.set_override(1001, StoredOverride(7)).version
        subject.store.remove_override(1001)
        subject.store.remove_override(1001)
        subject.store.remove_override(None)
        subject.store.purge_override(subject.begin_term(), 1001, version)
        assert len(subject.store.read_audit_records(10).records) == 2

    def test_newest_audit_records_come_first(self, subject: OverrideStoreSubject) -> None:
        current = [subject.store.set_override(1001, StoredOverride(rate)) for rate in range(1, 6)]
        assert [record.after for record in subject.store.read_audit_records(2).records] == [current[4], current[3]]

    def test_other_actions_are_recorded_among_the_changes(self, subject: OverrideStoreSubject) -> None:
        subject.store.set_override(None, StoredOverride(50))
        subject.store.add_audit_record(AuditAction.SUBMIT, "anna", "3 partitions submitted")
        submitted, changed = subject.store.read_audit_records(10).records
        assert (changed.action, submitted.action) == (AuditAction.SET, AuditAction.SUBMIT)
        assert (submitted.who, submitted.result) == ("anna", "3 partitions submitted")
        assert submitted.number > changed.number

    def test_only_the_newest_audit_records_are_kept(self, subject: OverrideStoreSubject) -> None:
        for rate in range(1, subject.records_kept + 3):
            last = subject.store.set_override(1001, StoredOverride(rate))
        records = subject.store.read_audit_records(subject.records_kept + 10).records
        assert len(records) == subject.records_kept
        assert records[0].after == last
        assert records[-1].after is not None and replace(records[-1].after, version=0) == StoredOverride(3)

    # Watching.

    def test_watch_reports_every_kind_of_change(self, subject: OverrideStoreSubject) -> None:
        notified = threading.Event()
        # The watch compares later changes with the first read.
        subject.store.read_overrides()
        watch = subject.store.watch_overrides(notified.set)
        try:
            subject.store.set_override(None, StoredOverride(5))
            assert notified.wait(20)
            notified.clear()
            subject.store.remove_override(None)
            assert notified.wait(20)
        finally:
            watch.close()

    def test_closed_watch_reports_nothing(self, subject: OverrideStoreSubject) -> None:
        closed, other = threading.Event(), threading.Event()
        subject.store.read_overrides()
        subject.store.watch_overrides(closed.set).close()
        watch = subject.store.watch_overrides(other.set)
        try:
            subject.store.set_override(None, StoredOverride(5))
            assert other.wait(20)
        finally:
            watch.close()
        assert not closed.is_set()
        builders.eventually(lambda: subject.store.read_overrides().cluster is not None)
