"""What every `OverrideStore` keeps to; inherit and give the fixture `subject`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.audit import AuditAction, AuditRecord
from autothrottle.core.errors import Conflict, Invalid, NotLeader
from autothrottle.core.overrides import MAX_RATE, Override
from autothrottle.ports.overrides import OverrideStore
from tests import builders


class OverrideStoreSubject(Protocol):
    """An empty store, and the terms that fence it."""

    @property
    def store(self) -> OverrideStore: ...

    @property
    def records_kept(self) -> int:
        """How many audit records it keeps."""
        ...

    def begin_term(self) -> int:
        """Begin a new term, return its fence."""
        ...


def told(record: AuditRecord) -> tuple[AuditAction, int | None, Override | None, Override | None]:
    """What an audit record says was done."""
    return record.action, record.broker_id, record.before, record.after


class OverrideStoreContract:
    def test_without_overrides_nothing_rules(self, subject: OverrideStoreSubject) -> None:
        assert subject.store.read_overrides().of(1001) is None

    def test_a_brokers_override_beats_the_clusters(self, subject: OverrideStoreSubject) -> None:
        subject.store.set_override(None, 5, True)
        subject.store.set_override(1001, 7, False)
        read = subject.store.read_overrides()
        assert read.cluster is not None
        assert (read.cluster.rate, read.cluster.autoremove) == (5, True)
        assert read.brokers.keys() == {1001}
        of_broker, of_another = read.of(1001), read.of(1002)
        assert of_broker is not None and of_broker.rate == 7
        assert of_another is not None and of_another.rate == 5

    def test_an_override_is_returned_as_it_stands(self, subject: OverrideStoreSubject) -> None:
        returned = subject.store.set_override(1001, 7, False)
        assert subject.store.read_overrides().brokers == {1001: returned}

    def test_a_later_override_takes_the_place_of_an_earlier_one(self, subject: OverrideStoreSubject) -> None:
        earlier = subject.store.set_override(1001, 7, False)
        later = subject.store.set_override(1001, MAX_RATE, False)
        assert later.version != earlier.version
        assert subject.store.read_overrides().brokers[1001].rate == MAX_RATE

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_a_removed_override_rules_no_more(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        subject.store.set_override(broker_id, 7, False)
        assert subject.store.remove_override(broker_id) is True
        assert subject.store.read_overrides().of(1001) is None
        assert subject.store.remove_override(broker_id) is False

    def test_removing_the_clusters_override_leaves_the_brokers(self, subject: OverrideStoreSubject) -> None:
        subject.store.set_override(None, 5, False)
        subject.store.set_override(1001, 7, False)
        subject.store.remove_override(None)
        assert subject.store.read_overrides().active_brokers == {1001}

    @pytest.mark.parametrize(("broker_id", "rate"), [(1001, 0), (None, -1), (None, MAX_RATE + 1), (0, 5)])
    def test_what_is_out_of_range_is_not_set(
        self, subject: OverrideStoreSubject, broker_id: int | None, rate: int
    ) -> None:
        with pytest.raises(Invalid):
            subject.store.set_override(broker_id, rate, False)
        assert subject.store.read_overrides().of(1001) is None

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_a_purge_removes_the_version_that_was_read(
        self, subject: OverrideStoreSubject, broker_id: int | None
    ) -> None:
        version = subject.store.set_override(broker_id, 7, False).version
        assert subject.store.purge_override(subject.begin_term(), broker_id, version) is True
        assert subject.store.read_overrides().of(1001) is None

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_a_purge_leaves_a_later_version(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        # The original's purge deletes an override that an operator has set a moment ago.
        version = subject.store.set_override(broker_id, 7, False).version
        later = subject.store.set_override(broker_id, 9, False)
        assert subject.store.purge_override(subject.begin_term(), broker_id, version) is False
        assert subject.store.read_overrides().of(1001) == later

    def test_an_earlier_term_purges_nothing(self, subject: OverrideStoreSubject) -> None:
        standing = subject.store.set_override(1001, 7, False)
        earlier = subject.begin_term()
        subject.begin_term()
        with pytest.raises(NotLeader):
            subject.store.purge_override(earlier, 1001, standing.version)
        assert subject.store.read_overrides().brokers == {1001: standing}

    # Compare and set.

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_a_version_lets_only_itself_be_changed(self, subject: OverrideStoreSubject, broker_id: int | None) -> None:
        first = subject.store.set_override(broker_id, 7, False)
        second = subject.store.set_override(broker_id, 8, False, version=first.version)
        with pytest.raises(Conflict, match=r"etag .* stands; read it again"):
            subject.store.set_override(broker_id, 9, False, version=first.version)
        with pytest.raises(Conflict, match=r"etag .* stands; read it again"):
            subject.store.remove_override(broker_id, version=first.version)
        assert subject.store.read_overrides().of(1001) == second
        assert subject.store.remove_override(broker_id, version=second.version) is True
        assert subject.store.read_overrides().of(1001) is None

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_a_version_that_was_removed_comes_not_back(
        self, subject: OverrideStoreSubject, broker_id: int | None
    ) -> None:
        gone = subject.store.set_override(broker_id, 7, False)
        subject.store.remove_override(broker_id)
        with pytest.raises(Conflict):
            subject.store.set_override(broker_id, 9, False, version=gone.version)
        assert subject.store.remove_override(broker_id, version=gone.version) is False
        anew = subject.store.set_override(broker_id, 7, False)
        with pytest.raises(Conflict):
            subject.store.remove_override(broker_id, version=gone.version)
        assert subject.store.read_overrides().of(1001) == anew

    def test_a_change_that_is_refused_leaves_no_record(self, subject: OverrideStoreSubject) -> None:
        version = subject.store.set_override(1001, 7, False).version
        with pytest.raises(Conflict):
            subject.store.set_override(1001, 9, False, version=version + 1)
        assert len(subject.store.read_audit_records(10)) == 1

    def test_of_many_that_change_one_version_one_does(self, subject: OverrideStoreSubject) -> None:
        version = subject.store.set_override(1001, 1, False).version

        def change(rate: int) -> Override | None:
            try:
                return subject.store.set_override(1001, rate, False, version=version)
            except Conflict:
                return None

        with ThreadPoolExecutor(6) as pool:
            changed = [override for override in pool.map(change, range(2, 8)) if override is not None]
        assert [subject.store.read_overrides().brokers[1001]] == changed

    def test_changes_at_once_are_all_made_one_after_the_other(self, subject: OverrideStoreSubject) -> None:
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(lambda rate: subject.store.set_override(1001, rate, False), range(1, 7)))
        records = subject.store.read_audit_records(10)[::-1]
        assert {record.after for record in records} == set(made)
        assert [record.before for record in records] == [None, *(record.after for record in records[:-1])]

    # The end of an override.

    @pytest.mark.parametrize("broker_id", [None, 1001])
    def test_the_time_at_which_an_override_ends_is_kept(
        self, subject: OverrideStoreSubject, broker_id: int | None
    ) -> None:
        end = builders.NOON + timedelta(microseconds=1)
        returned = subject.store.set_override(broker_id, 7, True, end)
        assert returned.expire_time == end
        assert subject.store.read_overrides().of(1001) == returned
        assert subject.store.set_override(broker_id, 7, False).expire_time is None

    # The record of changes.

    def test_every_change_is_recorded_with_who_and_what(self, subject: OverrideStoreSubject) -> None:
        assert subject.store.read_audit_records(10) == ()
        first = subject.store.set_override(None, 5, True, builders.NOON, who="operator a")
        second = subject.store.set_override(None, 6, False, who="operator b")
        third = subject.store.set_override(1001, 7, False)
        subject.store.remove_override(None, who="operator c")
        subject.store.purge_override(subject.begin_term(), 1001, third.version, "its time is over")
        records = subject.store.read_audit_records(10)
        assert [told(record) for record in reversed(records)] == [
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

    def test_what_changes_nothing_is_not_recorded(self, subject: OverrideStoreSubject) -> None:
        version = subject.store.set_override(1001, 7, False).version
        subject.store.remove_override(1001)
        subject.store.remove_override(1001)
        subject.store.remove_override(None)
        subject.store.purge_override(subject.begin_term(), 1001, version)
        assert len(subject.store.read_audit_records(10)) == 2

    def test_the_newest_records_are_shown(self, subject: OverrideStoreSubject) -> None:
        standing = [subject.store.set_override(1001, rate, False) for rate in range(1, 6)]
        assert [record.after for record in subject.store.read_audit_records(2)] == [standing[4], standing[3]]

    def test_only_so_many_of_the_newest_records_are_kept(self, subject: OverrideStoreSubject) -> None:
        for rate in range(1, subject.records_kept + 3):
            last = subject.store.set_override(1001, rate, False)
        records = subject.store.read_audit_records(subject.records_kept + 10)
        assert len(records) == subject.records_kept
        assert records[0].after == last
        assert records[-1].after is not None and replace(records[-1].after, version=0) == Override(3)

    # Watching.

    def test_a_watch_tells_of_every_kind_of_change(self, subject: OverrideStoreSubject) -> None:
        told = threading.Event()
        # The first reading is what later changes are compared with.
        subject.store.read_overrides()
        watch = subject.store.watch_overrides(told.set)
        try:
            subject.store.set_override(None, 5, False)
            assert told.wait(20)
            told.clear()
            subject.store.remove_override(None)
            assert told.wait(20)
        finally:
            watch.close()

    def test_a_closed_watch_tells_nothing(self, subject: OverrideStoreSubject) -> None:
        closed, other = threading.Event(), threading.Event()
        subject.store.read_overrides()
        subject.store.watch_overrides(closed.set).close()
        watch = subject.store.watch_overrides(other.set)
        try:
            subject.store.set_override(None, 5, False)
            assert other.wait(20)
        finally:
            watch.close()
        assert not closed.is_set()
        builders.eventually(lambda: subject.store.read_overrides().cluster is not None)
