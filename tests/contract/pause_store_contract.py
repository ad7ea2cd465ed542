"""Contract of every `PauseStore`. Inherit from it and define the fixture `store`."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from autothrottle.core.records import Pause, PauseMode
from autothrottle.ports.state_store import PauseStore
from tests.builders import eventually

KEEP = Pause(PauseMode.KEEP, "10.0.0.9:5000", datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC), 'a "release", ö')
CLEAR = Pause(PauseMode.CLEAR)


class PauseStoreContract:
    def test_empty_store_has_no_pause(self, store: PauseStore) -> None:
        assert store.read_pause() is None
        assert store.remove_pause() is False

    @pytest.mark.parametrize("pause", [KEEP, CLEAR])
    def test_pause_is_read_as_set(self, store: PauseStore, pause: Pause) -> None:
        store.set_pause(pause)
        assert store.read_pause() == pause

    def test_a_later_pause_replaces_an_earlier_one(self, store: PauseStore) -> None:
        store.set_pause(KEEP)
        assert store.read_pause() == KEEP
        store.set_pause(CLEAR)
        assert store.read_pause() == CLEAR

    def test_no_pause_after_its_removal(self, store: PauseStore) -> None:
        store.set_pause(KEEP)
        assert store.remove_pause() is True
        assert store.read_pause() is None
        store.set_pause(CLEAR)
        assert store.read_pause() == CLEAR

    def test_watch_reports_pause_and_removal(self, store: PauseStore) -> None:
        notified = threading.Event()
        # The watch compares later changes with the first read.
        store.read_pause()
        watch = store.watch_pause(notified.set)
        try:
            store.set_pause(KEEP)
            assert notified.wait(30)
            notified.clear()
            store.remove_pause()
            assert notified.wait(30)
        finally:
            watch.close()

    def test_closed_watch_reports_nothing(self, store: PauseStore) -> None:
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
