"""The numbers of terms in ZooKeeper, and how a transaction checks that a term is the newest one.

ZooKeeper counts the versions of a node from 0 again after the node was deleted. So the fence of a term is the version
of the term node plus the origin of the store, a number that no other store has. The origin is the name of a child of
the term node. Whatever deletes the term node deletes this child, so that a check of both fails in every other store.

An older version of autothrottle begins terms without an origin, whose fence is the version alone. The type to know is
`FenceCheck`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import NotLeader
from autothrottle.core.units import MAX_INT32

_MAX_VERSION = MAX_INT32
"""ZooKeeper's largest version of a node; every origin is larger."""

_ORIGIN = re.compile(r"[1-9][0-9]{9,17}")

_TERMS_PER_MILLISECOND = 1000
"""Stores that were created one after the other have origins so far apart that their terms never meet."""


@dataclass(frozen=True, slots=True)
class FenceCheck:
    """The operations with which each transaction of a term begins."""

    fence: int
    nodes: tuple[tuple[str, int], ...]
    """(path, version) of each node to check; version -1: it must exist."""

    def begin(self, client: KazooClient) -> TransactionRequest:
        """Return a transaction that first checks the term."""
        transaction = client.transaction()
        for path, version in self.nodes:
            transaction.check(path, version)
        return transaction

    def require(self, results: Sequence[Any], consequence: str) -> Sequence[Any]:
        """Return the results of the operations after the checks.

        Raises:
            NotLeader: a check failed, so the whole transaction was rolled back.
        """
        checks = results[: len(self.nodes)]
        if any(isinstance(result, BadVersionError | NoNodeError) for result in checks):
            raise _ended(self.fence, consequence)
        return results[len(self.nodes) :]


def term_check(client: KazooClient, own: OwnPaths, fence: int, timeout: float, consequence: str) -> FenceCheck:
    """Return the check of a term.

    Args:
        client: connected.
        own: autothrottle's paths.
        fence: the term's number.
        timeout: for reading the origin, in seconds.
        consequence: the part of the error that says what happens because the term is over.

    Raises:
        NotLeader: the term is one of another store.
    """
    if fence <= _MAX_VERSION:
        return FenceCheck(fence, ((own.term, fence),))
    origin = read_origin(client, own, timeout)
    if not origin or not 0 < fence - origin <= _MAX_VERSION:
        raise _ended(fence, consequence)
    return FenceCheck(fence, ((own.term, fence - origin), (origin_path(own, origin), -1)))


def read_origin(client: KazooClient, own: OwnPaths, timeout: float) -> int:
    """Return the origin of the store's terms; 0: only an older version of autothrottle has led."""
    try:
        names = client.get_children_async(own.term).get(timeout=timeout)
    except NoNodeError:
        return 0
    origins = [int(name) for name in names if _ORIGIN.fullmatch(name)]
    return max((origin for origin in origins if origin > _MAX_VERSION), default=0)


def new_origin(created: int) -> int:
    """Return the origin of a store whose term node was created at this time, in milliseconds since 1970.

    Later stores have larger origins. The numbers stay below 2^53 until the year 2255, so that a double holds them.
    """
    return max(created * _TERMS_PER_MILLISECOND, _MAX_VERSION + 1)


def origin_path(own: OwnPaths, origin: int) -> str:
    """Return the node whose name is the origin."""
    return f"{own.term}/{origin}"


def _ended(fence: int, consequence: str) -> NotLeader:
    return NotLeader(f"term {fence} is over; {consequence}")
