"""The collector of a service: it looks rarely, and still finds what only holds itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from autothrottle.runtime.collector import collect_rarely


class Node:
    """Something that holds itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector of this process, put back at the end."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_what_was_made_before_a_service_starts_is_not_looked_at_again() -> None:
    collect_rarely()
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_what_only_holds_itself_is_found_before_it_fills_the_memory() -> None:
    collect_rarely()
    made = [weakref.ref(Node()) for _ in range(200_000)]
    assert sum(node() is not None for node in made) < 100_000
