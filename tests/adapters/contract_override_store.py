"""What every `OverrideStore` keeps to; inherit and give the fixture `subject`."""

from __future__ import annotations

import threading
from typing import Protocol

import pytest

from autothrottle.core.errors import Invalid, NotLeader
from autothrottle.core.overrides import MAX_RATE
from autothrottle.ports.overrides import OverrideStore
from tests import builders


class OverrideStoreSubject(Protocol):
    """An empty store, and the terms that fence it."""

    @property
    def store(self) -> OverrideStore: ...

    def begin_term(self) -> int:
        """Begin a new term, return its fence."""
        ...


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
