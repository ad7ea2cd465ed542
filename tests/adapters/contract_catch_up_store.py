"""What every `CatchUpStore` keeps to; inherit and give the fixtures `store` and `fence`."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.core.catch_up import CatchUp
from autothrottle.core.errors import NotLeader
from autothrottle.ports.catch_ups import CatchUpStore
from tests.builders import eventually

FIRST = CatchUp(1001, "10.0.0.9:5000", datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC))
SECOND = CatchUp(1002)


class CatchUpStoreContract:
    def test_at_first_nobody_catches_up(self, store: CatchUpStore) -> None:
        assert store.read_catch_ups() == {}
        assert store.remove_catch_up(1001) is False

    def test_they_are_read_as_they_were_started(self, store: CatchUpStore) -> None:
        store.start_catch_up(FIRST)
        store.start_catch_up(SECOND)
        assert store.read_catch_ups() == {1001: FIRST, 1002: SECOND}

    def test_a_later_one_takes_the_place_of_an_earlier_one(self, store: CatchUpStore) -> None:
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

    def test_the_planner_purges_what_is_over_and_no_later_one(self, store: CatchUpStore, fence: int) -> None:
        later = replace(FIRST, time=datetime.now(UTC) + timedelta(seconds=5))
        store.start_catch_up(later)
        assert store.purge_catch_up(fence, FIRST) is False
        assert store.read_catch_ups() == {1001: later}
        assert store.purge_catch_up(fence, later) is True
        assert store.read_catch_ups() == {}

    def test_a_term_that_is_over_purges_nothing(self, store: CatchUpStore, fence: int) -> None:
        store.start_catch_up(FIRST)
        with pytest.raises(NotLeader):
            store.purge_catch_up(fence + 1, FIRST)
        assert store.read_catch_ups() == {1001: FIRST}

    def test_a_watch_tells_of_a_begin_and_of_an_end_and_a_closed_one_does_not(self, store: CatchUpStore) -> None:
        told, closed = threading.Event(), threading.Event()
        # The first reading is what later changes are compared with.
        store.read_catch_ups()
        store.watch_catch_ups(closed.set).close()
        watch = store.watch_catch_ups(told.set)
        try:
            store.start_catch_up(FIRST)
            assert told.wait(30)
            eventually(lambda: store.read_catch_ups() == {1001: FIRST})
            told.clear()
            store.remove_catch_up(1001)
            assert told.wait(30)
        finally:
            watch.close()
        assert not closed.is_set()
