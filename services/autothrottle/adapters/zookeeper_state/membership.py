"""Registers each running autothrottle process as an ephemeral node, which disappears with its session.

The node's data is JSON: `service`, `roles`, `version`, `address`, `host`, `pid`, `start_time` (RFC 3339, UTC).
`remove_own_tree` removes autothrottle's tree, except for operators' settings and the term, when all processes are gone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.codec import field_error, integer, text, time_of
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.errors import FIELD_ERRORS, Conflict, Invalid, Unavailable
from autothrottle.core.members import Member, hosts_without_route, ordered

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 1.0
"""How long `leave` waits at most for ZooKeeper to answer."""


class ZooKeeperMembership:
    """Registers one process; a `Membership`.

    The client need not be connected yet. kazoo's listener only wakes our own thread, which checks that our node exists
    and belongs to the current session. The listener must not call ZooKeeper itself: it would wait for itself.
    """

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        self._client, self._own = client, own
        self._silence_limit = session_timeout.total_seconds() * 2 / 3
        self._heartbeat_seconds = session_timeout.total_seconds() / 3
        self._path, self._data = "", b""
        self._planner: Member | None = None
        self._names: list[str] = []
        self._hosts_without_route: tuple[str, ...] = ()
        self._leaving = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_registered = 0.0
        self._is_registered = self._outage_logged = False

    def join(self, member: Member) -> None:
        """Start to register this process in a background thread."""
        self._path, self._data = f"{self._own.members}/{member.service}-{uuid.uuid4().hex}", format_member(member)
        self._planner = member if "planner" in member.roles else None
        self._last_registered = time.monotonic()
        self._thread = threading.Thread(target=self._keep_registered, name="membership", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Delete this process's node once ZooKeeper answers; otherwise the node disappears with the session."""
        self._leaving.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all registered processes; a node that cannot be parsed is omitted."""
        deadline = time.monotonic() + timeout.total_seconds()
        found = []
        with translated_errors("reading the members"):
            try:
                names = self._client.get_children_async(self._own.members).get(timeout=timeout.total_seconds())
            except NoNodeError:
                return ()
            for node in [self._client.get_async(f"{self._own.members}/{name}") for name in names]:
                with suppress(NoNodeError, NoAuthError, Invalid):  # the process left since its name was read
                    found.append(parse_member(node.get(timeout=max(0.001, deadline - time.monotonic()))[0]))
        return ordered(found)

    def problem(self) -> str:
        """Return why this process is not registered; "": ZooKeeper has just confirmed that it is."""
        age = time.monotonic() - self._last_registered
        if self._is_registered and age <= self._silence_limit:
            return ""
        what = f"has not answered for {age:.0f} s" if self._is_registered else "has not answered yet"
        return f"ZooKeeper ({self._servers}) {what}: this process is not registered as a member"

    # Keeping the registration.

    def _keep_registered(self) -> None:
        self._client.add_listener(self._wake_up)
        while not self._leaving.is_set():
            self._check_registration()
            self._wake.wait(self._heartbeat_seconds)
            self._wake.clear()
        self._client.remove_listener(self._wake_up)
        self._withdraw()

    def _wake_up(self, _state: object) -> None:
        """Wake the thread: the connection or the session changed."""
        self._wake.set()

    def _check_registration(self) -> None:
        """Make sure that we are registered; log once when that fails, and once when it works again."""
        try:
            listed = self._client.connected and self._register()
            if listed:
                self._look_for_other_hosts()
        except (KazooException, KazooTimeoutError, Unavailable):
            listed = False
        except Exception:  # a bug must not end the thread: this process would disappear from the members
            log.exception("Registering this process as a member failed unexpectedly, trying again")
            listed = False
        if listed:
            self._registered()
        elif not self._outage_logged and time.monotonic() - self._last_registered > self._silence_limit:
            self._outage_logged = True
            log.warning("ZooKeeper (%s) does not answer: this process is not registered as a member", self._servers)

    @property
    def _servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._client.hosts)

    def _look_for_other_hosts(self) -> None:
        """Warn when a process joins on a host that cannot call this planner."""
        if self._planner is None:
            return  # each host may have other services of its own
        names = self._answer(self._client.get_children_async(self._own.members))
        if names == self._names:
            return
        found = hosts_without_route(self._planner, self.members(timedelta(seconds=self._silence_limit)))
        self._names = names
        if {*found} - {*self._hosts_without_route}:
            log.warning(
                "Calls of other hosts fail while this planner leads: %s cannot reach this planner's address %s. "
                "Fix: restart it with a listening address for other hosts, and --advertise",
                ", ".join(found),
                self._planner.address,
            )
        self._hosts_without_route = found

    def _registered(self) -> None:
        self._is_registered, self._last_registered = True, time.monotonic()
        if self._outage_logged:
            self._outage_logged = False
            log.info("This process is registered as a member again")

    def _register(self) -> bool:
        """Make sure that our node exists and belongs to the current session; return whether it does."""
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

    def _withdraw(self) -> None:
        if self._client.connected:
            with suppress(KazooException, KazooTimeoutError):
                self._client.delete_async(self._path).get(timeout=_LEAVE_SECONDS)

    def _answer(self, result: Any) -> Any:
        return result.get(timeout=self._silence_limit)


def format_member(member: Member) -> bytes:
    """Format a member as the node's text."""
    return json.dumps({**asdict(member), "start_time": member.start_time.isoformat()}).encode()


def parse_member(data: bytes) -> Member:
    """Parse a member. Unknown fields are ignored; a later version may have written them.

    Raises:
        Invalid: the node does not describe a member.
    """
    try:
        content = json.loads(data)
        return Member(
            service=text(content["service"]),
            roles=tuple(map(text, content["roles"])),
            version=text(content["version"]),
            address=text(content["address"]),
            host=text(content["host"]),
            pid=integer(content["pid"]),
            start_time=time_of(content["start_time"]),
        )
    except FIELD_ERRORS as error:
        raise Invalid(f"{data[:60]!r} does not describe a member: {field_error(error)}") from error


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
