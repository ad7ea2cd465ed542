"""What the ACLs of znodes let this client do; asking changes nothing.

Entries for everybody, for this client's address and for its login concern it. Entries for the name in a certificate
(x509) are taken for its own, because only ZooKeeper knows that name.
"""

from __future__ import annotations

import ipaddress
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ANYONE_ID_UNSAFE, Id, Permissions

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.security import Login
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.errors import Incomplete, Unavailable
from autothrottle.ports.kafka import PERMITTED

_NAMES = {
    Permissions.READ: "read",
    Permissions.WRITE: "write",
    Permissions.CREATE: "create",
    Permissions.DELETE: "delete",
}
_IN_FLIGHT = 1_000
_NO_TIME = "their ACLs cannot be read in time. Fix: check them again while ZooKeeper is less busy"
_SHOWN = 5
"""Maximum number of entries of an ACL in a sentence."""
_ALL = Permissions.READ | Permissions.WRITE | Permissions.CREATE | Permissions.DELETE
_PARENT = Permissions.READ | Permissions.CREATE | Permissions.DELETE


class ZooKeeperPermissions:
    """The ACLs of autothrottle's own znodes, or of Kafka's; a `PermissionSource`."""

    summary = PERMITTED

    def __init__(self, client: SecuredClient, paths: OwnPaths | KafkaPaths, submits: bool = True) -> None:
        """Prepare.

        Args:
            client: connected.
            paths: the znodes to check.
            submits: whether reassignments are submitted through Kafka's znodes.
        """
        self._client, self._paths, self._submits = client, paths, submits

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading the ACLs of znodes"):
            paths = self._paths
            needed = self._own(paths, deadline) if isinstance(paths, OwnPaths) else self._kafka(paths, deadline)
            return dict(self._missing(dict(needed), deadline))

    def _own(self, own: OwnPaths, deadline: float) -> Iterator[tuple[str, int]]:
        """Yield the znodes of the state and the permissions that they need; without a state, the place to create it."""
        if not self._exists(own.root, deadline):
            yield self._nearest(own.root, deadline), Permissions.READ | Permissions.CREATE
            return
        yield own.root, _PARENT
        for path in self._children(own.root, deadline):
            yield path, _ALL
        for path in self._children(own.ledger, deadline):
            yield path, _ALL

    def _kafka(self, kafka: KafkaPaths, deadline: float) -> Iterator[tuple[str, int]]:
        """Yield the znodes of Kafka and the permissions that they need."""
        if not self._exists(kafka.broker_ids, deadline):
            raise Incomplete(kafka.absent)
        yield kafka.broker_ids, Permissions.READ
        yield kafka.topics, Permissions.READ
        yield kafka.change_notification.rpartition("/")[0], Permissions.CREATE
        if self._submits:
            yield kafka.reassign_partitions.rpartition("/")[0], Permissions.CREATE
        for kind in ("brokers", "topics"):
            parent = kafka.entity_config(kind)
            yield parent, Permissions.READ | Permissions.CREATE
            for path in self._children(parent, deadline):
                yield path, Permissions.READ | Permissions.WRITE

    def _missing(self, needed: Mapping[str, int], deadline: float) -> Iterator[tuple[str, str]]:
        paths, address = list(needed), self._address()
        login = self._client.login
        identities = {*login.identities} if login else set()
        for start in range(0, len(paths), _IN_FLIGHT):
            batch = paths[start : start + _IN_FLIGHT]
            answers = [self._client.get_acls_async(path) for path in batch]
            for path, answer in zip(batch, answers, strict=True):
                entries: Sequence[Any] = ()
                with suppress(NoAuthError):  # it needs the permission to read, which this client lacks
                    try:
                        entries = answer.get(timeout=seconds_left(deadline))[0]
                    except NoNodeError:
                        continue
                    except KazooTimeoutError:
                        yield f"{path} and later znodes", _NO_TIME
                        return
                if absent := needed[path] & ~_allowed(entries, address, identities):
                    yield path, _sentence(absent, entries, login)
                elif surplus := self._surplus(path, entries):
                    yield path, surplus

    def _surplus(self, path: str, entries: Sequence[Any]) -> str:
        """Return a sentence if other clients may do more with one of our nodes than `zk-acl` says; "": they may not."""
        acl = self._client.security.acl(path, self._client.login)
        if acl is None or not _allowed(entries, "", set()) & ~_allowed(acl, "", set()):
            return ""
        return (
            f"other clients may do more than zk-acl {self._client.security.others} says: its ACL is "
            f"{_shown(entries)}. Fix: autothrottle state secure"
        )

    def _exists(self, path: str, deadline: float) -> bool:
        return self._client.exists_async(path).get(timeout=seconds_left(deadline)) is not None

    def _nearest(self, path: str, deadline: float) -> str:
        """Return the lowest parent of a path that exists."""
        while not self._exists(path := path.rpartition("/")[0] or "/", deadline) and path != "/":
            continue
        return path

    def _children(self, path: str, deadline: float) -> list[str]:
        """Return the children of a znode; without permission to read it, none: the znode itself is a finding."""
        with suppress(NoNodeError, NoAuthError):
            names = self._client.get_children_async(path).get(timeout=seconds_left(deadline))
            return [f"{path}/{name}" for name in sorted(names)]
        return []

    def _address(self) -> str:
        """Return the address of this client in its connection; "": unknown."""
        with suppress(OSError, AttributeError):
            return str(self._client._connection._socket.getsockname()[0])
        return ""


def _allowed(entries: Sequence[Any], address: str, identities: Collection[Id]) -> int:
    """Return the permissions that the entries give to a client with an address ("": unknown) and identities."""
    allowed = 0
    for entry in entries:
        is_address = entry.id.scheme == "ip" and _is_in(address, entry.id.id)
        is_certificate = entry.id.scheme == "x509" and bool(address)
        if entry.id == ANYONE_ID_UNSAFE or entry.id in identities or is_address or is_certificate:
            allowed |= entry.perms
    return allowed


def require_access(client: SecuredClient, own: OwnPaths, timeout: timedelta) -> None:
    """Check that this session may write our nodes, by a transaction that never takes effect.

    It fails at the check of a node that cannot exist, unless ZooKeeper denies an earlier operation. A wrong password of
    the scheme digest is found only this way: ZooKeeper accepts it as another identity.

    Raises:
        Unavailable: ZooKeeper denies it, or does not answer.
    """
    absent = f"{own.root}/absent-{uuid.uuid4().hex}"
    transaction = client.transaction()
    transaction.create(absent)
    transaction.set_data(own.term, b"")
    transaction.check(f"{absent}/absent", -1)
    with translated_errors("checking the access to our nodes"):
        results = transaction.commit_async().get(timeout=timeout.total_seconds())
    if not any(isinstance(result, NoAuthError) for result in results):
        return
    login = client.login
    who = f"its login {login.name} is not in their ACLs" if login else "it has no login"
    password = ", or its password is wrong" if login and login.scheme == "digest" else ""
    fix = f"correct {login.option}" if login else "give the login of the others with --zk-digest-file or --zk-sasl-file"
    raise Unavailable(f"ZooKeeper denies this process the nodes below {own.root}: {who}{password}. Fix: {fix}")


def _is_in(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _sentence(absent: int, entries: Sequence[Any], login: Login | None) -> str:
    operations = " and ".join(name for bit, name in _NAMES.items() if bit & absent)
    reason = f"its ACL is {_shown(entries)}" if entries else "it hides its ACL"
    fix = f"correct {login.option}" if login else "give a login with --zk-sasl-file or --zk-digest-file"
    client = f"the login {login.name}" if login else "this client"
    return f"{client} may not {operations}: {reason}. Fix: {fix}, or allow it in the znode's ACL, see docs/security.md"


def _shown(entries: Sequence[Any]) -> str:
    return ", ".join(f"{entry.id.scheme}:{entry.id.id[:40]} {_letters(entry.perms)}" for entry in entries[:_SHOWN])


def _letters(permissions: int) -> str:
    """Return permissions as zkCli shows them, ADMIN included."""
    return "".join(letter for bit, letter in enumerate("rwcda") if permissions & 1 << bit)
