"""Changes the ACLs of existing nodes: closes our tree to other clients, and opens it again.

The ACL of a member's node shows whether its process has our login: each process with a login names it there. The type
to know is `AccessChange`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Id, Permissions

from autothrottle.adapters.state_store.registration import parse_member
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.security import OPEN_ACL, OtherClients
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.errors import Conflict, Invalid

TIMEOUT = timedelta(seconds=10)
"""For each answer of ZooKeeper."""

_MOST_ROUNDS = 5
"""Nodes that are created during a round are changed in the next one; normally the second round finds none."""
_IN_FLIGHT = 1_000
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class AccessChange:
    """The result of a change of ACLs."""

    changed: int
    """Number of nodes whose ACL was changed."""
    creators: tuple[str, ...]
    """Running processes whose new nodes have other ACLs, until they restart with another `zk-acl`."""


@dataclass(frozen=True, slots=True)
class _MemberNode:
    """A running process, and the ACL with which it creates nodes."""

    name: str
    entries: Sequence[ACL]

    def has(self, identity: Id) -> bool:
        return ACL(Permissions.ALL, identity) in self.entries

    @property
    def others(self) -> int:
        """Permissions of everyone."""
        return _of_everyone(self.entries)


def secure_tree(client: SecuredClient, own: OwnPaths, undo: bool = False, timeout: timedelta = TIMEOUT) -> AccessChange:
    """Give all our nodes the ACL of this process, or open them to everyone with `undo`. Idempotent.

    Data and versions of the nodes stay, and so do the term and the sessions of processes with our login. Parents come
    first, so that other clients cannot add nodes behind the change.

    Raises:
        Invalid: this process has no login, or its `zk-acl` is open.
        Conflict: a running process has another login or none, and nothing was changed. Or the ACL of a node does not
            admit this process, and the others were changed.
        Unavailable: ZooKeeper does not answer; a part may be changed.
    """
    login = client.login
    if login is None:
        raise Invalid("changing the ACLs of our nodes needs a login. Fix: --zk-digest-file or --zk-sasl-file")
    if client.security.others is OtherClients.OPEN and not undo:
        raise Invalid("zk-acl is open, so there is nothing to secure. Fix: --zk-acl=read or --zk-acl=none")
    with translated_errors("changing the ACLs of our nodes"):
        members = list(_members(client, own, timeout))
        if not undo and (strangers := [m.name for m in members if not m.has(login.identities[0])]):
            raise Conflict(
                f"these processes do not have the login {login.name} and would be locked out; nothing was changed: "
                f"{'; '.join(strangers)}. Fix: restart them with {login.option}, then run this again"
            )

        def entries_of(path: str) -> Sequence[ACL]:
            return OPEN_ACL if undo else client.security.acl(path, login) or OPEN_ACL

        changed, denied = 0, set[str]()
        for _ in range(_MOST_ROUNDS):
            count, refused = _change(client, own.root, entries_of, undo, timeout.total_seconds())
            changed, denied = changed + count, {*refused}
            if count == 0:
                break
        if denied:
            raise Conflict(
                f"the ACLs of {len(denied)} nodes do not admit {login.name}, and were not changed: "
                f"{', '.join(sorted(denied)[:_SHOWN])}. {changed} others were. Fix: run this with the login in them"
            )
    of_others = Permissions.ALL if undo else _of_everyone(entries_of(own.members))
    return AccessChange(changed, tuple(member.name for member in members if member.others != of_others))


def members_without_login(client: SecuredClient, own: OwnPaths, timeout: timedelta = TIMEOUT) -> Sequence[str]:
    """Return the running processes that do not have the login of this session."""
    if client.login is None:
        return ()
    identity = client.login.identities[0]
    with translated_errors("reading the members"):
        return [member.name for member in _members(client, own, timeout) if not member.has(identity)]


def _members(client: SecuredClient, own: OwnPaths, timeout: timedelta) -> Iterator[_MemberNode]:
    seconds = timeout.total_seconds()
    with suppress(NoNodeError):
        for name in sorted(client.get_children_async(own.members).get(timeout=seconds)):
            path = f"{own.members}/{name}"
            try:
                entries = client.get_acls_async(path).get(timeout=seconds)[0]
                yield _MemberNode(_described(client.get_async(path).get(timeout=seconds)[0], name), entries)
            except NoNodeError:
                continue  # it has left
            except NoAuthError:
                yield _MemberNode(name, ())  # it has another login


def _described(data: bytes, name: str) -> str:
    try:
        member = parse_member(data)
    except Invalid:
        return name
    return f"{member.service} on {member.host}, pid {member.pid}"


def _change(
    client: SecuredClient, root: str, entries_of: Callable[[str], Sequence[ACL]], undo: bool, seconds: float
) -> tuple[int, list[str]]:
    """Change the ACLs of a tree, parents first; return the number of changed nodes, and the paths of refused ones."""
    changed, level = 0, [root]
    denied: list[str] = []
    while level:
        children: list[str] = []
        for start in range(0, len(level), _IN_FLIGHT):
            paths = level[start : start + _IN_FLIGHT]
            current = _answers(paths, client.get_acls_async, seconds, denied)
            outdated = [
                path for path, (entries, _) in current.items() if not _is_right(entries, entries_of(path), undo)
            ]
            changed += len(
                _answers(outdated, lambda path: client.set_acls_async(path, entries_of(path)), seconds, denied)
            )
            for path, names in _answers(paths, client.get_children_async, seconds, denied).items():
                children += [f"{path}/{name}" for name in names]
        level = children
    return changed, denied


def _answers(paths: Sequence[str], request: Callable[[str], Any], seconds: float, denied: list[str]) -> dict[str, Any]:
    """Return path -> answer of the nodes that exist and admit this session; add the others' paths to `denied`."""
    answers = {}
    for path, pending in [(path, request(path)) for path in paths]:
        try:
            answers[path] = pending.get(timeout=seconds)
        except NoNodeError:
            continue
        except NoAuthError:
            denied.append(path)
    return answers


def _is_right(entries: Sequence[ACL], target: Sequence[ACL], undo: bool) -> bool:
    # Nodes of processes with a login and an open zk-acl also name the login.
    return _of_everyone(entries) == Permissions.ALL if undo else set(entries) == set(target)


def _of_everyone(entries: Sequence[ACL]) -> int:
    permissions = 0
    for entry in entries:
        if entry.id == ANYONE_ID_UNSAFE:
            permissions |= entry.perms
    return permissions
