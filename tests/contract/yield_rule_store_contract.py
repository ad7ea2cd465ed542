"""Contract of every `YieldRuleStore`. Inherit from it and define the fixtures `store` and `newest`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.errors import Conflict
from autothrottle.core.quotas.keys import QuotaKey
from autothrottle.core.quotas.yielding import BYTE_RATES, MAX_RULES, YieldRule, rule_sentence
from autothrottle.core.records import AuditAction
from autothrottle.ports.state_store import YieldRuleStore
from tests.builders import eventually

TIME = datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC)
RATE = YieldRule(
    name="backfills",
    user=None,
    client_id="backfill-* ☃",
    at_most_bytes_per_second=2**53,
    at_most_share=None,
    floor_bytes_per_second=1,
    keys=BYTE_RATES,
    author="10.0.0.9:5000",
    time=TIME,
)
SHARE = YieldRule(
    name="etl",
    user="etl/*",
    client_id=None,
    at_most_bytes_per_second=None,
    at_most_share=0.1,
    floor_bytes_per_second=1_000_000,
    keys=frozenset({QuotaKey.PRODUCER_BYTE_RATE}),
    author="anna",
    time=TIME,
)


class YieldRuleStoreContract:
    def test_empty_store_has_no_rules(self, store: YieldRuleStore) -> None:
        assert store.read_rules() == {}
        assert store.remove_rule("backfills") is False

    def test_rules_are_read_as_set_and_replaced_by_name(self, store: YieldRuleStore) -> None:
        store.set_rule(SHARE)
        store.set_rule(RATE)
        assert store.read_rules() == {"backfills": RATE, "etl": SHARE}
        later = replace(RATE, user="*", floor_bytes_per_second=7)
        store.set_rule(later)
        assert store.remove_rule("etl") is True
        assert store.read_rules() == {"backfills": later}

    def test_changes_are_audited(
        self, store: YieldRuleStore, newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        store.set_rule(SHARE)
        assert store.remove_rule("etl", "bernd") is True
        assert store.remove_rule("etl", "bernd") is False
        assert [(r.action, r.who, r.result) for r in reversed(newest())] == [
            (AuditAction.SET_QUOTA, "anna", f"Yield rule etl: {rule_sentence(SHARE)}"),
            (AuditAction.REMOVE_QUOTA, "bernd", "Yield rule etl removed"),
        ]

    def test_a_rule_above_the_limit_is_refused(
        self, store: YieldRuleStore, newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        for number in range(MAX_RULES):
            store.set_rule(replace(SHARE, name=f"r{number}"))
        before, last = store.read_rules(), newest()[0]
        with pytest.raises(Conflict, match="remove one"):
            store.set_rule(replace(SHARE, name="more"))
        assert store.read_rules() == before and newest()[0] == last
        store.set_rule(replace(SHARE, name="r0", floor_bytes_per_second=5))
        assert store.read_rules()["r0"].floor_bytes_per_second == 5

    def test_only_open_watches_report_changes(self, store: YieldRuleStore) -> None:
        notified, closed = threading.Event(), threading.Event()
        # The watch compares later changes with the first read.
        store.read_rules()
        store.watch_rules(closed.set).close()
        watch = store.watch_rules(notified.set)
        try:
            store.set_rule(RATE)
            assert notified.wait(30)
            eventually(lambda: store.read_rules() == {"backfills": RATE})
        finally:
            watch.close()
        assert not closed.is_set()
