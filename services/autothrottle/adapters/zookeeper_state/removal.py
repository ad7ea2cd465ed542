"""Removes autothrottle's tree from ZooKeeper, except for operators' settings and the term."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.errors import Conflict

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


def remove_own_tree(client: KazooClient, own: OwnPaths, patience: timedelta = timedelta(0)) -> None:
    """Remove the ledger, the election and the members.

    Operators' settings stay: overrides, request quotas, temporary quotas, yield rules, catch-ups, a pause and the audit
    log. The term stays too, because its number must never decrease. Services that still run stay registered.

    Args:
        client: connected.
        own: autothrottle's paths.
        patience: how long to wait for members of ended sessions to disappear.

    Raises:
        Conflict: the ledger still has entries, or a planner is still a candidate.
    """
    parents = [f"{own.ledger}/{kind.value}" for kind in ResourceType]
    with translated_errors("removing our tree"):
        # The election first: if a planner still runs, the tree stays complete.
        for path in (own.election, *parents, own.ledger):
            try:
                client.delete(path)
            except NoNodeError:
                continue
            except NotEmptyError as error:
                fix = "stop every planner first" if path == own.election else "remove autothrottle's throttles first"
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
                log.warning("Some services still run and stay registered until they stop: %s", running)
                return
            time.sleep(_POLL_SECONDS)
