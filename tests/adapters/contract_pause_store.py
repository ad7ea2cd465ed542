"""What every `PauseStore` keeps to; inherit and give the fixture `store`."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from autothrottle.core.pause import Pause, PauseMode
from autothrottle.ports.pauses import PauseStore
from tests.builders import eventually

KEEP = Pause(PauseMode.KEEP, "10.0.0.9:5000", datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC), 'a "release", ö')
CLEAR = Pause(PauseMode.CLEAR)


class PauseStoreContract:
    def test_at_first_it_is_not_paused(self, store: PauseStore) -> None:
        assert store.read_pause() is None
        assert store.remove_pause() is False

    @pytest.mark.parametrize("pause", [KEEP, CLEAR])
    def test_a_pause_is_read_as_it_was_set(self, store: PauseStore, pause: Pause) -> None:
        store.set_pause(pause)
        assert store.read_pause() == pause

    def test_a_later_pause_takes_the_place_of_an_earlier_one(self, store: PauseStore) -> None:
        store.set_pause(KEEP)
        assert store.read_pause() == KEEP
        store.set_pause(CLEAR)
        assert store.read_pause() == CLEAR

    def test_after_a_removal_it_is_not_paused(self, store: PauseStore) -> None:
        store.set_pause(KEEP)
        assert store.remove_pause() is True
        assert store.read_pause() is None
        store.set_pause(CLEAR)
        assert store.read_pause() == CLEAR

    def test_a_watch_tells_of_a_pause_and_of_its_end(self, store: PauseStore) -> None:
        told = threading.Event()
        # The first reading is what later changes are compared with.
        store.read_pause()
        watch = store.watch_pause(told.set)
        try:
            store.set_pause(KEEP)
            assert told.wait(30)
            told.clear()
            store.remove_pause()
            assert told.wait(30)
        finally:
            watch.close()

    def test_a_closed_watch_tells_nothing(self, store: PauseStore) -> None:
        closed, other = threading.Event(), threading.Event()
        store.read_pause()
        store.watch_pause(closed.set).close()
        watch = store.watch_pause(other.set)
        try:
            store.set_pause(KEEP)
            assert other.wait(30)
        finally:
            watch.close()
        assert not closed.is_set()
        eventually(lambda: store.read_pause() == KEEP)
