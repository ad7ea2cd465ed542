"""Contract of every `TemporaryQuotaStore`. Inherit from it and define the fixtures `store`, `fence` and `newest`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.errors import NotLeader
from autothrottle.core.quotas.entities import DEFAULT, ClientQuotaEntity
from autothrottle.core.quotas.keys import QuotaKey
from autothrottle.core.quotas.temporary import TemporaryQuota
from autothrottle.core.records import AuditAction
from autothrottle.ports.state_store import TemporaryQuotaStore
from tests.builders import eventually

TIME = datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC)
FIRST = TemporaryQuota(
    ClientQuotaEntity("a/b ☃", DEFAULT),
    {QuotaKey.PRODUCER_BYTE_RATE: 20_000_000, QuotaKey.REQUEST_PERCENTAGE: 12.5},
    "10.0.0.9:5000",
    TIME,
    TIME + timedelta(hours=1),
)
SECOND = TemporaryQuota(
    ClientQuotaEntity(ip="10.0.0.7"), {QuotaKey.CONNECTION_CREATION_RATE: 5}, "anna", TIME, until_recovered=True
)


class TemporaryQuotaStoreContract:
    def test_empty_store_has_no_quotas(self, store: TemporaryQuotaStore) -> None:
        assert store.read_temporary_quotas() == {}
        assert store.remove_temporary_quota(FIRST.entity) is False

    def test_quotas_are_read_as_set_and_replaced_by_entity(self, store: TemporaryQuotaStore) -> None:
        store.set_temporary_quota(FIRST)
        store.set_temporary_quota(SECOND)
        assert store.read_temporary_quotas() == {FIRST.entity: FIRST, SECOND.entity: SECOND}
        later = replace(FIRST, values={QuotaKey.CONSUMER_BYTE_RATE: 7}, until_recovered=True)
        store.set_temporary_quota(later)
        assert store.remove_temporary_quota(SECOND.entity) is True
        assert store.read_temporary_quotas() == {FIRST.entity: later}

    def test_changes_are_audited(
        self, store: TemporaryQuotaStore, fence: int, newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        store.set_temporary_quota(FIRST)
        store.set_temporary_quota(SECOND)
        assert store.remove_temporary_quota(FIRST.entity, "anna") is True
        assert store.remove_temporary_quota(FIRST.entity, "anna") is False
        assert store.purge_temporary_quota(fence, SECOND, "it has expired") is True
        assert [(r.action, r.who, r.result, r.reason) for r in reversed(newest())] == [
            (
                AuditAction.SET_QUOTA,
                FIRST.author,
                'Quota of user "a/b ☃", default client-id: producer_byte_rate 20000000, request_percentage 12.5, '
                "ends at 2026-11-02T13:00:00+00:00",
                "",
            ),
            (
                AuditAction.SET_QUOTA,
                "anna",
                'Quota of ip "10.0.0.7": connection_creation_rate 5, ends with the recovery',
                "",
            ),
            (AuditAction.REMOVE_QUOTA, "anna", f"Temporary quota of {FIRST.entity} ended", ""),
            (
                AuditAction.REMOVE_QUOTA,
                f"planner, term {fence}",
                f"Temporary quota of {SECOND.entity} ended",
                "it has expired",
            ),
        ]

    def test_purge_only_removes_the_given_quota(self, store: TemporaryQuotaStore, fence: int) -> None:
        later = replace(FIRST, time=TIME + timedelta(seconds=5))
        store.set_temporary_quota(later)
        assert store.purge_temporary_quota(fence, FIRST, "") is False
        with pytest.raises(NotLeader):
            store.purge_temporary_quota(fence + 1, later, "")
        assert store.read_temporary_quotas() == {FIRST.entity: later}
        assert store.purge_temporary_quota(fence, later, "") is True
        assert store.read_temporary_quotas() == {}

    def test_only_open_watches_report_changes(self, store: TemporaryQuotaStore) -> None:
        notified, closed = threading.Event(), threading.Event()
        # The watch compares later changes with the first read.
        store.read_temporary_quotas()
        store.watch_temporary_quotas(closed.set).close()
        watch = store.watch_temporary_quotas(notified.set)
        try:
            store.set_temporary_quota(FIRST)
            assert notified.wait(30)
            eventually(lambda: store.read_temporary_quotas() == {FIRST.entity: FIRST})
        finally:
            watch.close()
        assert not closed.is_set()
