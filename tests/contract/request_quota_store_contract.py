"""Contract of every `RequestQuotaStore`. Inherit from it and define the fixtures `store` and `newest`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.records import AuditAction
from autothrottle.core.request_quotas import RequestQuotaEntity, RequestRates
from autothrottle.ports.state_store import RequestQuotaStore
from tests.builders import eventually

ANNA, BOTH = RequestQuotaEntity("anna"), RequestQuotaEntity("Jürgen Ö", 'a "client", 1')
DEFAULTS, ANY_USER = RequestQuotaEntity("", ""), RequestQuotaEntity(None, "ci")
RATES: RequestRates = {ANNA: 100, BOTH: 1, DEFAULTS: 1_000_000, ANY_USER: 7}


class RequestQuotaStoreContract:
    def test_an_empty_store_has_no_quotas(self, store: RequestQuotaStore) -> None:
        assert store.read_request_quotas() == {}
        assert store.remove_request_quota(ANNA) is False

    def test_quotas_are_read_as_set(self, store: RequestQuotaStore) -> None:
        for entity, rate in RATES.items():
            store.set_request_quota(entity, rate)
        assert store.read_request_quotas() == RATES

    def test_a_quota_is_replaced_and_removed(self, store: RequestQuotaStore) -> None:
        store.set_request_quota(ANNA, 100)
        store.set_request_quota(BOTH, 5)
        store.set_request_quota(ANNA, 7)
        assert store.read_request_quotas() == {ANNA: 7, BOTH: 5}
        assert store.remove_request_quota(ANNA) is True
        assert store.read_request_quotas() == {BOTH: 5}

    def test_a_watch_has_the_stored_quotas_and_every_change(self, store: RequestQuotaStore) -> None:
        seen: list[RequestRates] = []
        store.set_request_quota(ANNA, 100)
        watch = store.watch_request_quotas(seen.append)
        try:
            eventually(lambda: seen and seen[-1] == {ANNA: 100})
            store.set_request_quota(DEFAULTS, 7)
            eventually(lambda: seen[-1] == {ANNA: 100, DEFAULTS: 7})
            store.remove_request_quota(ANNA)
            eventually(lambda: seen[-1] == {DEFAULTS: 7})
        finally:
            watch.close()

    def test_a_closed_watch_reports_nothing(self, store: RequestQuotaStore) -> None:
        closed, other = threading.Event(), threading.Event()
        store.watch_request_quotas(lambda rates: closed.set()).close()
        watch = store.watch_request_quotas(lambda rates: other.set())
        try:
            store.set_request_quota(ANNA, 100)
            assert other.wait(30)
        finally:
            watch.close()
        assert not closed.is_set()

    def test_every_change_is_audited(
        self, store: RequestQuotaStore, newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        store.set_request_quota(DEFAULTS, 100, "anna")
        store.set_request_quota(DEFAULTS, 100, "a repetition")
        store.remove_request_quota(DEFAULTS, "ben")
        store.remove_request_quota(DEFAULTS, "a repetition")
        assert [(record.action, record.who, record.result) for record in newest()] == [
            (AuditAction.REMOVE_REQUEST_QUOTA, "ben", "default user, default client id"),
            (AuditAction.SET_REQUEST_QUOTA, "anna", "default user, default client id: 100 requests/s"),
        ]
