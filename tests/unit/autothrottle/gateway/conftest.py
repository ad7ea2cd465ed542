"""Fixtures of the gateway's tests."""

from collections.abc import Iterator

import pytest

from tests.unit.autothrottle.gateway.front import Front


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    """One gateway shared by all tests of a module."""
    with Front() as built:
        yield built


@pytest.fixture
def front(shared: Front) -> Front:
    """The shared gateway without overrides."""
    return shared.clear()
