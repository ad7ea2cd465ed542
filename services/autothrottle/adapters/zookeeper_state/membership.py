"""Registers each running autothrottle process as an ephemeral node, which disappears with its session.

The node's data is JSON: `service`, `roles`, `version`, `address`, `host`, `pid`, `start_time` (RFC 3339, UTC).
`remove_own_tree` removes autothrottle's tree, except for operators' settings and the term, when all processes are gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.state_store.registration import LEAVE_SECONDS, Registration, parse_member
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.members import Member, ordered

log = logging.getLogger(__name__)


class ZooKeeperMembership(Registration):
    """Registers one process as an ephemeral node.

    The client need not be connected yet. kazoo's listener only wakes our own thread, which checks that our node exists
    and belongs to the current session. The listener must not call ZooKeeper itself: it would wait for itself.
    """

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        super().__init__(own, session_timeout)
        self._client = client

    @property
    def _store(self) -> str:
        return f"ZooKeeper ({','.join(f'{host}:{port}' for host, port in self._client.hosts)})"

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all registered processes; a node that cannot be parsed is omitted."""
        deadline = time.monotonic() + timeout.total_seconds()
        members = []
        with translated_errors("reading the members"):
            try:
                names = self._client.get_children_async(self._own.members).get(timeout=timeout.total_seconds())
            except NoNodeError:
                return ()
            for node in [self._client.get_async(f"{self._own.members}/{name}") for name in names]:
                with suppress(NoNodeError, NoAuthError, Invalid):  # the process left since its name was read
                    members.append(parse_member(node.get(timeout=max(0.001, deadline - time.monotonic()))[0]))
        return ordered(members)

    def _keep_registered(self) -> None:
        self._client.add_listener(self.wake_up)
        super()._keep_registered()

    def _register(self) -> bool:
        """Make sure that our node exists and belongs to the current session; return whether it does."""
        if not self._client.connected:
            return False
        with translated_errors("registering this process"):
            stat = self._answer(self._client.exists_async(self._path))
            session = self._client.client_id  # (id, password); None between a lost session and the next one
            if session is None:
                return False
            if stat is not None and stat.ephemeralOwner == session[0]:
                return True
            if stat is not None:  # it belongs to an earlier session and may disappear at any moment
                with suppress(NoNodeError):
                    self._answer(self._client.delete_async(self._path))
            with suppress(NodeExistsError):  # an earlier call created it, but its answer was late
                self._answer(self._client.create_async(self._path, self._data, ephemeral=True, makepath=True))
            return True

    def _member_names(self) -> Sequence[str]:
        with translated_errors("reading the members"):
            names: Sequence[str] = self._answer(self._client.get_children_async(self._own.members))
            return names

    def _deregister(self) -> None:
        self._client.remove_listener(self.wake_up)
        if self._client.connected:
            with suppress(KazooException, KazooTimeoutError):
                self._client.delete_async(self._path).get(timeout=LEAVE_SECONDS)

    def _answer(self, result: Any) -> Any:
        return result.get(timeout=self._silence_limit)


_REMOVAL_POLL_SECONDS = 0.1


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
            time.sleep(_REMOVAL_POLL_SECONDS)
