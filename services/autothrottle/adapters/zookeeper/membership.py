"""Which processes of autothrottle run: an ephemeral node for each, which goes with its session.

The node's data is JSON: `service`, `roles`, `version`, `address`, `host`, `pid`, `start_time` (RFC 3339, UTC).
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.errors import Invalid
from autothrottle.core.members import Member, ordered

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 1.0
"""What `leave` waits at most for a ZooKeeper that does not answer."""


class ZooKeeperMembership:
    """One process's node; a `Membership`.

    The client need not be connected yet. What kazoo's listener hears only wakes a thread of our own, which looks
    whether our node stands and belongs to the session of now: a listener that calls ZooKeeper waits for itself.
    """

    def __init__(self, client: KazooClient, own: OwnPaths, session_timeout: timedelta) -> None:
        self._client, self._own = client, own
        self._patience = session_timeout.total_seconds() * 2 / 3
        self._beat = session_timeout.total_seconds() / 3
        self._path, self._data = "", b""
        self._leaving = threading.Event()
        self._stirred = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_seen = 0.0
        self._told = False

    def join(self, member: Member) -> None:
        """Be on the list from now on."""
        self._path, self._data = f"{self._own.members}/{member.service}-{uuid.uuid4().hex}", format_member(member)
        self._last_seen = time.monotonic()
        self._thread = threading.Thread(target=self._stay, name="membership", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Be off the list as soon as ZooKeeper answers, with the session at the latest."""
        self._leaving.set()
        self._stirred.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all who are on the list; a node that cannot be read names nobody."""
        deadline = time.monotonic() + timeout.total_seconds()
        found = []
        with translated_errors("reading the members"):
            try:
                names = self._client.get_children_async(self._own.members).get(timeout=timeout.total_seconds())
            except NoNodeError:
                return ()
            for node in [self._client.get_async(f"{self._own.members}/{name}") for name in names]:
                with suppress(NoNodeError, Invalid):  # it left meanwhile
                    found.append(parse_member(node.get(timeout=max(0.001, deadline - time.monotonic()))[0]))
        return ordered(found)

    # Staying on the list.

    def _stay(self) -> None:
        self._client.add_listener(self._stir)
        while True:
            self._stirred.clear()
            if self._leaving.is_set():
                break
            self._look()
            self._stirred.wait(self._beat)
        self._client.remove_listener(self._stir)
        self._withdraw()

    def _stir(self, _state: object) -> None:
        """Look again: the connection or the session changed."""
        self._stirred.set()

    def _look(self) -> None:
        """Be registered, or say once that it cannot be."""
        try:
            listed = self._client.connected and self._register()
        except (KazooException, KazooTimeoutError):
            listed = False
        if listed:
            self._seen()
        elif not self._told and time.monotonic() - self._last_seen > self._patience:
            self._told = True
            servers = ",".join(f"{host}:{port}" for host, port in self._client.hosts)
            log.warning("ZooKeeper (%s) does not answer: this process is not listed among the members", servers)

    def _seen(self) -> None:
        self._last_seen = time.monotonic()
        if self._told:
            self._told = False
            log.info("This process is listed among the members again")

    def _register(self) -> bool:
        """Let our node stand and belong to the session of now; return whether it does."""
        stat = self._answer(self._client.exists_async(self._path))
        session = self._client.client_id  # (id, password); None while one is lost and the next is not there yet
        if session is None:
            return False
        if stat is not None and stat.ephemeralOwner == session[0]:
            return True
        if stat is not None:  # of an earlier session: it may go at any moment
            with suppress(NoNodeError):
                self._answer(self._client.delete_async(self._path))
        with suppress(NodeExistsError):  # made by a call that was not answered in time
            self._answer(self._client.create_async(self._path, self._data, ephemeral=True, makepath=True))
        return True

    def _withdraw(self) -> None:
        if self._client.connected:
            with suppress(KazooException, KazooTimeoutError):
                self._client.delete_async(self._path).get(timeout=_LEAVE_SECONDS)

    def _answer(self, result: Any) -> Any:
        return result.get(timeout=self._patience)


def format_member(member: Member) -> bytes:
    """Return a member as the content of its node."""
    content = {
        "service": member.service,
        "roles": list(member.roles),
        "version": member.version,
        "address": member.address,
        "host": member.host,
        "pid": member.pid,
        "start_time": member.started.isoformat(),
    }
    return json.dumps(content).encode()


def parse_member(data: bytes) -> Member:
    """Return the member that a node describes; what else stands there is of a later version.

    Raises:
        Invalid: when it describes none.
    """
    try:
        content = json.loads(data)
        started = datetime.fromisoformat(content["start_time"])
        if started.tzinfo is None:
            raise ValueError("start_time has no zone")
        return Member(
            service=str(content["service"]),
            roles=tuple(map(str, content["roles"])),
            version=str(content["version"]),
            address=str(content["address"]),
            host=str(content["host"]),
            pid=int(content["pid"]),
            started=started.astimezone(UTC),
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Invalid(f"{data[:60]!r} describes no member: {type(error).__name__} {error}") from error
