"""Removes our own tree from ZooKeeper, but for what operators set and for the term."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.configs import ResourceType
from autothrottle.core.errors import Conflict

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1


def remove_own_tree(client: KazooClient, own: OwnPaths, patience: timedelta = timedelta(0)) -> None:
    """Remove the ledger, the election and the members.

    What operators set stays: overrides and the record of their changes, a pause, and which brokers catch up. So does
    the term, whose number must never fall. Services that still run stay listed.

    Args:
        client: a session.
        own: what is ours.
        patience: how long the members of sessions that are over already may take to go.

    Raises:
        Conflict: when the ledger still has entries, or a planner still stands for election.
    """
    parents = [f"{own.ledger}/{kind.value}" for kind in ResourceType]
    with translated_errors("removing our tree"):
        # The election first: whoever still stands for it is left a whole tree.
        for path in (own.election, *parents, own.ledger):
            try:
                client.delete(path)
            except NoNodeError:
                continue
            except NotEmptyError as error:
                fix = "stop every planner first" if path == own.election else "take everything back first"
                raise Conflict(f"{path} is not empty; {fix}") from error
        _remove_members(client, own, time.monotonic() + patience.total_seconds())


def _remove_members(client: KazooClient, own: OwnPaths, deadline: float) -> None:
    while True:
        try:
            client.delete(own.members)
            return
        except NoNodeError:
            return
        except NotEmptyError:
            if time.monotonic() >= deadline:
                running = ", ".join(sorted(client.get_children(own.members)))
                log.warning("services still run, and stay listed until they end: %s", running)
                return
            time.sleep(_LOOK_SECONDS)
