"""Registers each running process as a node that it writes again and again. Without these writes, the entry expires."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.state_store.registration import LEAVE_SECONDS, Registration, parse_member
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.errors import AutothrottleError, Conflict, Invalid
from autothrottle.core.members import Member, ordered

_POLL_SECONDS = 0.1


class KafkaMembership(Registration):
    """Registers one process. The topic need not exist yet."""

    def __init__(self, log: StateLog, own: OwnPaths, session_timeout: timedelta) -> None:
        super().__init__(own, session_timeout)
        self._log = log

    @property
    def _store(self) -> str:
        return f"Kafka (topic {self._log.name})"

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all processes that have written their entry within the session timeout."""
        with self._log.synced(time.monotonic() + timeout.total_seconds()) as tree:
            paths = self._log.living(self._own.members, self._session_timeout.total_seconds())
            nodes = [node for path in paths if (node := tree.node(path)) is not None]
        members = []
        for node in nodes:
            with suppress(Invalid):
                members.append(parse_member(node.text.encode()))
        return ordered(members)

    def _register(self) -> bool:
        edit = StateEdit(texts={self._path: self._data.decode()})
        self._log.append(edit, time.monotonic() + self._silence_limit)
        return True

    def _member_names(self) -> Sequence[str]:
        with self._log.current() as tree:
            return sorted(tree.children(self._own.members))

    def _deregister(self) -> None:
        if not self._log.problem():
            with suppress(AutothrottleError):
                self._log.append(StateEdit(texts={self._path: None}), time.monotonic() + LEAVE_SECONDS)


def disagreement(log: StateLog, own: OwnPaths, session_timeout: timedelta) -> str:
    """Return which running processes have another state than the topic and this process, and the fix; "": none."""
    nodes = log.differing_nodes(session_timeout.total_seconds())
    if not nodes:
        return ""
    names = sorted(_member_name(texts, own) or f"process {process}" for process, texts in nodes.items())
    return (
        f"The state of these processes is not that of the state topic {log.name}, which this process has read again: "
        f"{', '.join(names)}. Fix: restart them"
    )


def _member_name(texts: Mapping[str, str], own: OwnPaths) -> str:
    """Return the name of the member among the nodes of a process (path -> text); "": no member."""
    for path, node in texts.items():
        if path.startswith(f"{own.members}/"):
            with suppress(Invalid):
                member = parse_member(node.encode())
                return f"{member.service} on {member.host} (pid {member.pid}, address {member.address})"
    return ""


def remove_own_nodes(log: StateLog, own: OwnPaths, session_timeout: timedelta) -> None:
    """Remove the entries of candidates and members that have died. What operators set stays, and the term.

    A candidate that has died counts as alive until it has been silent for the session timeout.

    Raises:
        Conflict: the ledger still has entries, or a planner is still a candidate.
        Unavailable: Kafka does not answer.
    """
    session_seconds = session_timeout.total_seconds()
    expiry = time.monotonic() + session_seconds
    while alive := log.living(own.election, session_seconds):
        if time.monotonic() > expiry + _POLL_SECONDS:
            raise Conflict(f"{alive[0]} is a candidate; stop every planner first")
        time.sleep(_POLL_SECONDS)
    deadline = time.monotonic() + session_seconds
    with log.synced(deadline) as tree:
        has_ledger = any(tree.children(f"{own.ledger}/{kind.value}") for kind in ResourceType)
        versions = {
            f"{parent}/{name}": node.version
            for parent in (own.election, own.members)
            for name, node in tree.children(parent).items()
        }
    if has_ledger:
        raise Conflict(f"{own.ledger} is not empty; remove autothrottle's throttles first")
    expired = {path: version for path, version in versions.items() if log.silence(path) > session_seconds}
    log.append(StateEdit(versions=expired, texts=dict.fromkeys(expired)), deadline)
