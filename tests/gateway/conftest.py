"""Fixtures of the gateway's tests."""

from collections.abc import Iterator

import pytest

from tests.gateway.front import Front


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    """One gateway for all tests of a module."""
    with Front() as built:
        yield built


@pytest.fixture
def front(shared: Front) -> Front:
    """The gateway, without any override."""
    return shared.clear()
