"""Removes our own tree from ZooKeeper, but for what operators set and for the term."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.configs import ResourceType
from autothrottle.core.errors import Conflict


def remove_own_tree(client: KazooClient, own: OwnPaths) -> None:
    """Remove the ledger and the election; overrides stay, and so does the term, whose number must never fall.

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
