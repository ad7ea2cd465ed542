"""The errors of the client package as core's errors. Both trees have the same names, which a test compares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import autothrottle_client.errors as client
from autothrottle.core import errors as core


@contextmanager
def as_core_errors() -> Iterator[None]:
    """Raise errors of the client package as core's errors of the same name."""
    try:
        yield
    except client.AutothrottleError as error:
        raise core_error(error) from error


def core_error(error: client.AutothrottleError) -> core.AutothrottleError:
    """Return core's error of the same name, with the same message."""
    if isinstance(error, client.NotLeader):
        return core.NotLeader(str(error), error.leader_address)
    found: type[core.AutothrottleError] = getattr(core, type(error).__name__)
    return found(str(error))
