"""Contract of every `CatchUpStore`. Inherit from it and define the fixtures `store`, `fence` and `newest`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.errors import NotLeader
from autothrottle.core.records import AuditAction, CatchUp
from autothrottle.ports.state_store import CatchUpStore
from tests.builders import eventually

FIRST = CatchUp(1001, "10.0.0.9:5000", datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC))
SECOND = CatchUp(1002)


class CatchUpStoreContract:
    def test_empty_store_has_no_catch_ups(self, store: CatchUpStore) -> None:
        assert store.read_catch_ups() == {}
        assert store.remove_catch_up(1001) is False

    def test_catch_ups_are_read_as_started(self, store: CatchUpStore) -> None:
        store.start_catch_up(FIRST)
        store.start_catch_up(SECOND)
        assert store.read_catch_ups() == {1001: FIRST, 1002: SECOND}

    def test_a_later_catch_up_replaces_an_earlier_one(self, store: CatchUpStore) -> None:
        later = replace(FIRST, author="another")
        store.start_catch_up(FIRST)
        store.start_catch_up(later)
        assert store.read_catch_ups() == {1001: later}

    def test_a_removal_leaves_the_others(self, store: CatchUpStore) -> None:
        store.start_catch_up(FIRST)
        store.start_catch_up(SECOND)
        assert store.remove_catch_up(1001) is True
        assert store.remove_catch_up(1001) is False
        assert store.read_catch_ups() == {1002: SECOND}

    def test_start_and_removal_by_a_caller_are_audited(
        self, store: CatchUpStore, fence: int, newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        store.start_catch_up(FIRST)
        store.start_catch_up(SECOND)
        assert store.remove_catch_up(1001, "anna") is True
        assert store.remove_catch_up(1001, "anna") is False
        assert store.purge_catch_up(fence, SECOND) is True
        assert [(r.action, r.broker_id, r.who) for r in reversed(newest())] == [
            (AuditAction.START_CATCH_UP, 1001, FIRST.author),
            (AuditAction.START_CATCH_UP, 1002, SECOND.author),
            (AuditAction.STOP_CATCH_UP, 1001, "anna"),
        ]

    def test_purge_only_removes_the_given_catch_up(self, store: CatchUpStore, fence: int) -> None:
        later = replace(FIRST, time=datetime.now(UTC) + timedelta(seconds=5))
        store.start_catch_up(later)
        assert store.purge_catch_up(fence, FIRST) is False
        assert store.read_catch_ups() == {1001: later}
        assert store.purge_catch_up(fence, later) is True
        assert store.read_catch_ups() == {}

    def test_purge_with_a_wrong_fence_raises_not_leader(self, store: CatchUpStore, fence: int) -> None:
        store.start_catch_up(FIRST)
        with pytest.raises(NotLeader):
            store.purge_catch_up(fence + 1, FIRST)
        assert store.read_catch_ups() == {1001: FIRST}

    def test_only_open_watches_report_start_and_removal(self, store: CatchUpStore) -> None:
        notified, closed = threading.Event(), threading.Event()
        # The watch compares later changes with the first read.
        store.read_catch_ups()
        store.watch_catch_ups(closed.set).close()
        watch = store.watch_catch_ups(notified.set)
        try:
            store.start_catch_up(FIRST)
            assert notified.wait(30)
            eventually(lambda: store.read_catch_ups() == {1001: FIRST})
            notified.clear()
            store.remove_catch_up(1001)
            assert notified.wait(30)
        finally:
            watch.close()
        assert not closed.is_set()
