"""TLS to ZooKeeper, logins, and the ACLs of our nodes.

All credentials are read here: `tls_context` and `login` return those of the current files, and a session asks for them
at each connection. A file that becomes invalid changes nothing. The type to know is `ZooKeeperSecurity`.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from kazoo.security import ACL, ANYONE_ID_UNSAFE, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from autothrottle.adapters.credentials import CredentialFiles, pem_expiries
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import Invalid
from autothrottle_client.files import ReloadedFiles, read_text
from autothrottle_client.tls import reloaded_authorities, reloaded_pair, use_pair


class OtherClients(StrEnum):
    """What clients without our login may do with our nodes."""

    OPEN = "open"
    """Everything."""
    READ = "read"
    NONE = "none"
    """Nothing, except for reading the overrides, which Kafka-Kit's programs read, too."""


_PERMISSIONS = {
    OtherClients.OPEN: Permissions.ALL,
    OtherClients.READ: Permissions.READ,
    OtherClients.NONE: 0,
}


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """Paths of the files; "": not given."""

    authorities: str = ""
    """PEM file with the certificates of the authorities that sign the servers; turns on TLS."""
    certificate: str = ""
    """PEM file with our own certificate, for mutual TLS."""
    key: str = ""
    """PEM file with the private key of our own certificate, without a password."""
    digest: str = ""
    """File with lines of USER:PASSWORD for the scheme digest."""
    sasl: str = ""
    """File with USER:PASSWORD for SASL with DIGEST-MD5."""


@dataclass(frozen=True, slots=True)
class Login:
    """Users with which a session logs in."""

    scheme: str
    """`digest` or `sasl`."""
    users: tuple[tuple[str, str], ...] = field(repr=False)
    """(user, password). New nodes name the first one in their ACLs; the others open nodes of earlier passwords."""

    @property
    def name(self) -> str:
        """The scheme and the first user, for messages."""
        return f"{self.scheme}:{self.users[0][0]}"

    @property
    def identities(self) -> Sequence[Id]:
        """The identities of the users in ACLs, in the same order."""
        if self.scheme == "sasl":
            return [Id("sasl", user) for user, _ in self.users]
        return [Id("digest", make_digest_acl_credential(user, password)) for user, password in self.users]

    @property
    def option(self) -> str:
        """Name of the option with its file."""
        return f"zk-{self.scheme}-file"


class ZooKeeperSecurity:
    """How the sessions of this process are secured. Thread-safe."""

    def __init__(
        self,
        files: SecurityFiles = SecurityFiles(),
        others: OtherClients = OtherClients.OPEN,
        own: OwnPaths | None = None,
    ) -> None:
        """Read the files.

        Args:
            files: paths of the files. Without paths, sessions use neither TLS nor a login.
            others: what other clients may do with our nodes. Without a login, it has no effect.
            own: our nodes; None: this process creates none.

        Raises:
            Invalid: a file cannot be read, or has other content.
        """
        if bool(files.certificate) != bool(files.key) or (files.certificate and not files.authorities):
            raise Invalid("zk-tls-cert needs zk-tls-key and zk-tls-ca, and the key needs both. Fix: give all three")
        if files.digest and files.sasl:
            raise Invalid("zk-digest-file and zk-sasl-file are both given. Fix: give one")
        self.others, self._own = others, own
        self.reported: set[str] = set()
        """Refusals in the log; the sessions of a process report each of them once."""
        self.has_certificate = bool(files.certificate)
        self._authorities: ReloadedFiles[str] | None = None
        self._pair: ReloadedFiles[tuple[bytes, bytes]] | None = None
        self._login: ReloadedFiles[Login] | None = None
        if files.authorities:
            self._authorities = reloaded_authorities(files.authorities, "ZooKeeper's servers", "zk-tls-ca ")
        if files.certificate:
            options = ("zk-tls-cert", "zk-tls-key")
            self._pair = reloaded_pair(files.certificate, files.key, options)
        for scheme, path in (("digest", files.digest), ("sasl", files.sasl)):
            if path:
                self._login = ReloadedFiles((path,), partial(_read_login, scheme, path), Invalid)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context with the current files; None: connect without TLS."""
        if self._authorities is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self._authorities.current()[0])
        if self._pair is not None:
            use_pair(context, *self._pair.current()[0])
        return context

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files that are read again when they change."""
        files = []
        if self._authorities:
            expiries = lambda pem: pem_expiries(zk_tls_ca=pem.encode())  # noqa: E731
            files.append(CredentialFiles("zk-tls-ca", self._authorities, expiries))
        if self._pair:
            files.append(CredentialFiles("zk-tls-cert", self._pair, lambda pair: pem_expiries(zk_tls_cert=pair[0])))
        login = self.login()
        return [*files, *([CredentialFiles(login.option, self._login)] if self._login and login else [])]

    def login(self) -> Login | None:
        """Return the login of the current file; None: connect without a login."""
        return self._login.current()[0] if self._login else None

    def acl(self, path: str, login: Login | None) -> list[ACL] | None:
        """Return the ACL of one of our nodes; None: the node is not ours, or this process has no login.

        Args:
            path: of the node.
            login: of the session that creates the node or changes its ACL.
        """
        if login is None or self._own is None or not _is_below(self._own.root, path):
            return None
        permissions = _PERMISSIONS[self.others]
        if _is_below(self._own.overrides, path):
            permissions |= Permissions.READ
        of_others = [ACL(permissions, ANYONE_ID_UNSAFE)] if permissions else []
        return [ACL(Permissions.ALL, login.identities[0]), *of_others]


OPEN_ACL: list[ACL] = OPEN_ACL_UNSAFE
"""Every client may do everything."""


def _is_below(root: str, path: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def _read_login(scheme: str, path: str) -> Login:
    subject = f"zk-{scheme}-file {path!r}"
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except OSError as error:
        raise Invalid(f"{subject} cannot be read: {error.strerror}. Fix: name a readable file") from error
    except ValueError as error:
        raise Invalid(f"{subject} is not UTF-8 text. Fix: put USER:PASSWORD there") from error
    users = [line.partition(":")[::2] for line in lines]
    if scheme == "sasl" and len(users) > 1:
        raise Invalid(f"{subject} has {len(users)} lines. Fix: put one line USER:PASSWORD there")
    # The messages omit the lines, because they contain passwords.
    if not users or not all(user and password for user, password in users) or not "".join(lines).isprintable():
        raise Invalid(f"{subject} does not contain USER:PASSWORD alone. Fix: put one such line there")
    return Login(scheme, tuple(users))
