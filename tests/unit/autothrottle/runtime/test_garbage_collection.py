"""The tuned garbage collector of a service runs rarely but still frees reference cycles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from autothrottle.runtime.garbage_collection import collect_rarely


class Node:
    """An object that references itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    """Restore the collector settings of this process at the end."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_objects_from_before_the_start_are_exempt_from_collection() -> None:
    collect_rarely()
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_reference_cycles_are_freed_before_they_fill_the_memory() -> None:
    collect_rarely()
    made = [weakref.ref(Node()) for _ in range(200_000)]
    assert sum(node() is not None for node in made) < 100_000
