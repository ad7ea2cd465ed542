"""Keeps a process registered among the members, wherever they are stored. The type to know is `Registration`."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.codec import decode, encode, field_error
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.members import Member, hosts_without_route

log = logging.getLogger(__name__)

_JOIN_SECONDS = 0.3
"""How long `join` waits at most, so that the health check of a healthy process does not fail at first."""

LEAVE_SECONDS = 1.0
"""How long `leave` waits at most for the store to answer."""


class Registration(ABC):
    """Registers one process; a `Membership`. A thread of its own repeats it while the store does not answer."""

    def __init__(self, own: OwnPaths, session_timeout: timedelta) -> None:
        self._own, self._session_timeout = own, session_timeout
        self._silence_limit = session_timeout.total_seconds() * 2 / 3
        self._heartbeat_seconds = session_timeout.total_seconds() / 3
        self._path, self._data = "", b""
        self._planner: Member | None = None
        self._names: Sequence[str] = ()
        self._hosts_without_route: tuple[str, ...] = ()
        self._leaving, self._checked = threading.Event(), threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_registered = 0.0
        self._is_registered = self._outage_logged = False

    @property
    @abstractmethod
    def _store(self) -> str:
        """Name of the store in messages."""

    @abstractmethod
    def _register(self) -> bool:
        """Make sure that this process is registered; return whether it is.

        Raises:
            Unavailable: the store does not answer.
        """

    @abstractmethod
    def _deregister(self) -> None:
        """Remove the entry of this process, or let it expire."""

    @abstractmethod
    def _member_names(self) -> Sequence[str]:
        """Return the names of all entries."""

    @abstractmethod
    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all registered processes; an entry that cannot be parsed is omitted."""

    def join(self, member: Member) -> None:
        """Register this process in a background thread; usually this is done when the call returns."""
        self._path, self._data = f"{self._own.members}/{member.service}-{uuid.uuid4().hex}", format_member(member)
        self._planner = member if "planner" in member.roles else None
        self._last_registered = time.monotonic()
        self._thread = threading.Thread(target=self._keep_registered, name="membership", daemon=True)
        self._thread.start()
        self._checked.wait(_JOIN_SECONDS)

    def leave(self) -> None:
        """Remove this process's entry once the store answers; otherwise the entry expires."""
        self._leaving.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)

    def problem(self) -> str:
        """Return why this process is not registered; "": the store has just confirmed that it is."""
        age = time.monotonic() - self._last_registered
        if self._is_registered and age <= self._silence_limit:
            return ""
        what = f"has not answered for {age:.0f} s" if self._is_registered else "has not answered yet"
        return f"{self._store} {what}: this process is not registered as a member"

    def wake_up(self, *_reason: object) -> None:
        """Check the registration now."""
        self._wake.set()

    def _keep_registered(self) -> None:
        while not self._leaving.is_set():
            self._check_registration()
            self._checked.set()
            self._wake.wait(self._heartbeat_seconds)
            self._wake.clear()
        self._deregister()

    def _check_registration(self) -> None:
        """Make sure that we are registered; log once when that fails, and once when it works again."""
        reason = ""
        try:
            listed = self._register()
            if listed:
                self._look_for_other_hosts()
        except AutothrottleError as error:
            listed, reason = False, str(error)
        except Exception:  # a bug must not end the thread: this process would disappear from the members
            log.exception("Registering this process as a member failed unexpectedly, trying again")
            listed = False
        if listed:
            self._registered()
        elif not self._outage_logged and time.monotonic() - self._last_registered > self._silence_limit:
            self._outage_logged = True
            if reason:
                log.warning("This process is not registered as a member: %s", reason)
            else:
                log.warning("%s does not answer: this process is not registered as a member", self._store)

    def _look_for_other_hosts(self) -> None:
        """Warn when a process joins on a host that cannot call this planner."""
        if self._planner is None:
            return  # each host may have other services of its own
        names = self._member_names()
        if names == self._names:
            return
        hosts = hosts_without_route(self._planner, self.members(timedelta(seconds=self._silence_limit)))
        self._names = names
        if {*hosts} - {*self._hosts_without_route}:
            log.warning(
                "Calls of other hosts fail while this planner leads: %s cannot reach this planner's address %s. "
                "Fix: restart it with a listening address for other hosts, and --advertise",
                ", ".join(hosts),
                self._planner.address,
            )
        self._hosts_without_route = hosts

    def _registered(self) -> None:
        self._is_registered, self._last_registered = True, time.monotonic()
        if self._outage_logged:
            self._outage_logged = False
            log.info("This process is registered as a member again")


def format_member(member: Member) -> bytes:
    """Format a member as the node's text."""
    return json.dumps(encode(member)).encode()


def parse_member(data: bytes) -> Member:
    """Parse a member.

    Raises:
        Invalid: the node does not describe a member.
    """
    try:
        return decode(Member, json.loads(data))
    except (ValueError, RecursionError, Invalid) as error:
        raise Invalid(f"{data[:60]!r} does not describe a member: {field_error(error)}") from error
