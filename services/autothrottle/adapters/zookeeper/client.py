"""kazoo's client with TLS, logins and the ACLs of our nodes. The type to know is `SecuredClient`.

kazoo lacks five things. It logs passwords at the level debug. It trusts the system's authorities beside the given ones
and does not check host names. It waits for the network while a part of TLS is decrypted already. A login that a server
refuses, even one that is just stopping, ends the client for good (https://github.com/python-zk/kazoo/issues/594).
So does a damaged answer; here it ends the connection, and the call fails like one whose answer is lost.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    SASLException,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.handlers.utils import fileobj_to_fd
from kazoo.protocol.serialization import Auth, CheckVersion, GetChildren, GetChildren2, Transaction
from kazoo.protocol.states import KazooState
from kazoo.security import ACL

from autothrottle.adapters.zookeeper.security import Login, ZooKeeperSecurity
from autothrottle.core.errors import Unavailable
from autothrottle.core.retries import SESSION

log = logging.getLogger(__name__)

_PROBE_SECONDS = 2.0

_ENDED_LOGINS = 3
"""A server that is stopping closes the connection, too, and some versions do so for a wrong password."""

_PARENT_ACL_SECONDS = 60.0
"""How long the ACL of a parent outside of our tree is used for new nodes."""

_PARENT_TIMEOUT_SECONDS = 2.0

_LONG_LOSS_SECONDS = 4.0
"""After so long without a connection, callers do not wait for it. An ensemble elects a new leader in less."""

_LOSS_PATIENCE = 1.0
"""How long a caller waits for a connection that was lost long ago, seconds."""


class ServerRefusal(ConnectionDropped):  # type: ignore[misc]
    """A server is reached and refuses the connection; the message is one sentence with the fix."""


class SecuredClient(KazooClient):  # type: ignore[misc]
    """A session that logs in at each connection, with the files of that moment, and gives our new nodes our ACL."""

    last_zxid: int
    """Number of the last transaction that this client has seen; each connection tells it to its server."""

    def __init__(self, hosts: str, session_timeout: timedelta, security: ZooKeeperSecurity) -> None:
        """Prepare; `start_async` connects.

        Args:
            hosts: a comma list of `host:port` without a chroot.
            session_timeout: of the session.
            security: TLS, login and ACLs.
        """
        self.security = security
        handler = PatientHandler(session_timeout, security)
        super().__init__(
            handler=handler,
            hosts=hosts,
            timeout=session_timeout.total_seconds(),
            connection_retry={"max_tries": -1, "delay": SESSION.first, "max_delay": SESSION.longest, "backoff": 2},
            command_retry={"max_tries": 0},
            logger=ClientLog(hosts),
            use_ssl=security.tls_context() is not None,
        )
        handler.awaits_heartbeat = self._connection.ping_outstanding.is_set
        self.login: Login | None = None
        """That of the current connection; the next one may have another."""
        self.logged_in = threading.Event()
        """Set after the first connection whose login a server has accepted."""
        self.refusals: dict[tuple[str, int], str] = {}
        """(host, port) -> why that server refuses this client; empty after a successful connection."""
        self._ended_logins: Counter[tuple[str, int]] = Counter()
        """(host, port) -> how often in succession that server has closed the connection during the login."""
        self._tls_servers: dict[tuple[str, int], bool] = {}
        """(ip, port) -> whether that server speaks TLS."""
        self.warns_of_refusals = False
        """Whether to log each refusal; otherwise the user of the client reports the first one."""
        self._may_read_back = False
        """Whether the next connection may reach a server with older data than this client has seen."""
        self._read_unchecked = self._connection._read_socket
        self._connection._read_socket = self._read_socket
        self._connect_unsecured = self._connection._connect
        self._connection._connect = self._connect
        self._parent_acls: dict[str, tuple[float, list[ACL] | None]] = {}
        self._is_reached = threading.Event()
        self._is_reached.set()
        self._loss_time = 0.0
        """When the last connection was lost, on the monotonic clock."""
        self.add_listener(self._note_state)

    @property
    def refusal(self) -> str:
        """Why every server refuses this client; "": not each of them has refused it."""
        servers = {(host, port) for host, port in self.hosts}
        return next(iter(self.refusals.values())) if servers and servers <= self.refusals.keys() else ""

    def require_connection(self) -> None:
        """Check that the connection was not lost long ago. Otherwise wait a second for it.

        So a caller gets the reason before its own deadline.

        Raises:
            Unavailable: no server has answered for `_LONG_LOSS_SECONDS`, and for the second that this waits.
        """
        seconds = time.monotonic() - self._loss_time
        if not self._is_reached.is_set() and seconds > _LONG_LOSS_SECONDS and not self._is_reached.wait(_LOSS_PATIENCE):
            servers = ", ".join(f"{host}:{port}" for host, port in self.hosts)
            raise Unavailable(
                f"no ZooKeeper server of {servers} has answered for {seconds:.0f} s. Fix: start them, a majority must "
                "run, or check the network to them"
            )

    def _note_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._is_reached.set()
        elif self._is_reached.is_set():
            self._loss_time = time.monotonic()
            self._is_reached.clear()

    # Connecting.

    def _connect(self, host: str, ip: str, port: int) -> Any:
        """Connect and log in; a refusal is retried like a lost connection."""
        login = self.login = self.security.login()
        users = login.users if login else ()
        is_digest = login is not None and login.scheme == "digest"
        self.auth_data = {("digest", f"{user}:{password}") for user, password in users if is_digest}
        self._connection.sasl_options = None
        if login and not is_digest:
            user, password = users[0]
            self._connection.sasl_options = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
        try:
            timeouts = self._connect_unsecured(host, ip, port)
            if self._may_read_back:
                self._catch_up(timeouts[1] / 1_000)
        except (SessionExpiredError, KazooTimeoutError):
            raise
        except Exception as error:  # also that of a damaged answer
            if reason := self._reason(error, host, ip, port):
                self._refuse(host, port, reason)
                raise ServerRefusal(reason) from error
            if self._connection._socket is not None and self.last_zxid:
                self.last_zxid, self._may_read_back = 0, True
            # After other errors than a dropped connection, kazoo would end the client.
            raise ConnectionDropped(str(error)) from error
        self.refusals.clear()
        self._ended_logins.clear()
        self.security.reported.clear()
        self.logged_in.set()
        return timeouts

    def _catch_up(self, timeout: float) -> None:
        """Let the server apply all transactions that this client has seen, before it answers anything.

        A client names the last transaction that it has seen, and a server that has not seen it refuses the client. That
        server may lag, or the number was damaged on the way, and then all servers refuse. So the next connection names
        none. A transaction that changes nothing takes its place: the server answers it after all earlier ones.
        """
        connection = self._connection
        connection._xid += 1
        with suppress(NoAuthError):  # the root is hidden from us; the refusal has its place in the order, too
            self.last_zxid = connection._invoke(timeout, _NO_CHANGE, connection._xid) or 0
        self._may_read_back = False

    def _refuse(self, host: str, port: int, reason: str) -> None:
        if self.warns_of_refusals and reason not in self.security.reported:
            self.security.reported.add(reason)
            log.warning("%s", reason)
        self.refusals[host, port] = reason

    def _reason(self, error: Exception, host: str, ip: str, port: int) -> str:
        """Return why a server refuses the connection; "": it does not, or it is unknown."""
        server = f"ZooKeeper server {host}:{port}"
        if isinstance(error, ServerRefusal):
            return str(error)
        if self.login and isinstance(error, AuthFailedError | SASLException):
            if isinstance(error.__cause__, ConnectionDropped):
                self._ended_logins[host, port] += 1
                if self._ended_logins[host, port] < _ENDED_LOGINS:
                    return ""  # it may be stopping
            return (
                f"{server} refuses the login {self.login.name}: the user or the password is wrong, or the server has "
                f"no users for {self.login.scheme}. Fix: correct {self.login.option}, or the server's users"
            )
        if isinstance(error.__context__, ssl.SSLError) and _is_alert(error.__context__):
            refused = "refuses our certificate" if self.security.has_certificate else "needs a client certificate"
            return (
                f"{server} {refused} ({_short(error.__context__)}). Fix: give a certificate that the server trusts "
                "with zk-tls-cert and zk-tls-key"
            )
        if self._accepts_only_tls(ip, port):
            return (
                f"{server} accepts only TLS at this port. Fix: give zk-tls-ca, or the server's clientPort in place of "
                "its secureClientPort in zk-addr"
            )
        return ""

    def _accepts_only_tls(self, ip: str, port: int) -> bool:
        """Whether a server that has accepted a connection without TLS, and closed it, speaks TLS.

        It is asked once, before the first connection: a server without TLS logs a warning for it.
        """
        if self.use_ssl or self.logged_in.is_set() or self._connection._socket is None:
            return False
        if (ip, port) not in self._tls_servers:
            self._tls_servers[ip, port] = _speaks_tls((ip, port))
        return self._tls_servers[ip, port]

    # Answers.

    def _call(self, request: Any, async_object: Any) -> Any:
        return super()._call(_guarded(request), async_object)

    def _read_socket(self, read_timeout: float) -> Any:
        """Read an answer; a damaged one fails its call, and ends the connection."""
        pending = self._pending[0] if self._pending else None
        try:
            return self._read_unchecked(read_timeout)
        except (KazooException, KazooTimeoutError, OSError):
            raise
        except Exception as error:
            if pending and not pending[1].ready() and pending not in self._pending:
                pending[1].set_exception(ConnectionLoss(_DAMAGED))
            raise ConnectionDropped(f"{_DAMAGED} ({type(error).__name__}: {error})") from error

    # ACLs of new nodes.

    def create_async(self, path: str, value: bytes = b"", acl: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Create a node; one of ours gets our ACL."""
        return super().create_async(path, value, acl or self.security.acl(path, self.login), *args, **kwargs)

    def ensure_path_async(self, path: str, acl: Any = None) -> Any:
        """Create missing nodes, each with the ACL of its own path: kazoo would give parents the ACL of the child."""
        return super().ensure_path_async(path, None)

    def transaction(self) -> TransactionRequest:
        return _SecuredTransaction(self)

    def acl_of_new(self, path: str) -> list[ACL] | None:
        """Return the ACL of a node that a transaction creates; None: everyone may do everything.

        A node of Kafka gets the ACL of its parent. If only Kafka may write there, an open node would let everyone
        change configs.
        """
        if self.login is None:
            return None
        return self.security.acl(path, self.login) or self._parent_acl(path.rpartition("/")[0] or "/")

    def _parent_acl(self, parent: str) -> list[ACL] | None:
        read, entries = self._parent_acls.get(parent, (-math.inf, None))
        if time.monotonic() - read < _PARENT_ACL_SECONDS:
            return entries
        try:
            entries = list(self.get_acls_async(parent).get(timeout=_PARENT_TIMEOUT_SECONDS)[0])
        except NoNodeError:
            return self._parent_acl(parent.rpartition("/")[0] or "/")
        except (KazooException, KazooTimeoutError):  # Kafka must be able to read the node in any case
            return None
        self._parent_acls[parent] = time.monotonic(), entries
        return entries


_DAMAGED = "an answer of ZooKeeper is damaged"

_NO_CHANGE = Transaction([CheckVersion("/", -1)])


def _guarded(request: Any) -> Any:
    """Return a request whose answer, if it is damaged, fails the call with one of kazoo's errors."""
    kind = type(request)
    if not hasattr(kind, "deserialize"):
        return request
    return tuple.__new__(_guarded_kind(kind), request) if issubclass(kind, tuple) else _Guarded(request)


@cache
def _guarded_kind(kind: type[Any]) -> type[Any]:
    """Return a class of one of kazoo's own requests, which kazoo tells apart by their classes."""

    def deserialize(request: Any, data: bytes, offset: int) -> Any:
        answer = _deserialized(super(guarded, request).deserialize, data, offset)
        if issubclass(kind, GetChildren | GetChildren2) and None in (answer[0] if kind is GetChildren2 else answer):
            raise ConnectionLoss(f"{_DAMAGED} (a node without a name)")
        return answer

    guarded: type[Any] = type(kind.__name__, (kind,), {"deserialize": deserialize})
    return guarded


class _Guarded:
    """Another request."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def deserialize(self, data: bytes, offset: int) -> Any:
        return _deserialized(self._request.deserialize, data, offset)


def _deserialized(deserialize: Callable[[bytes, int], Any], data: bytes, offset: int) -> Any:
    try:
        return deserialize(data, offset)
    except KazooException:
        raise
    except Exception as error:  # whatever the decoder stumbles over
        raise ConnectionLoss(f"{_DAMAGED} ({type(error).__name__}: {error})") from None


class _SecuredTransaction(TransactionRequest):  # type: ignore[misc]
    """A transaction whose new nodes have the ACLs of `SecuredClient.acl_of_new`."""

    def create(self, path: str, value: bytes = b"", acl: Any = None, *args: Any, **kwargs: Any) -> None:
        super().create(path, value, acl or self.client.acl_of_new(path), *args, **kwargs)


def _speaks_tls(address: tuple[str, int]) -> bool:
    """Whether a server that has closed a connection without TLS answers to one with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, _PROBE_SECONDS) as connection, context.wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        return _is_alert(error)  # it needs a client certificate, for example
    except OSError:
        return False


def _is_alert(error: ssl.SSLError) -> bool:
    """Whether the other side has sent the error; otherwise it has closed the connection, for example."""
    return "ALERT" in (error.reason or "")


def _short(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


class PatientHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Waits for the answer to a heartbeat as long as ZooKeeper's own client: two thirds of the session timeout.

    kazoo drops the connection after half of this time. A server that was busy for 2 s with the writes of a large
    reassignment then cost every client its connection and its watches.
    """

    def __init__(self, session_timeout: timedelta, security: ZooKeeperSecurity | None = None) -> None:
        super().__init__()
        self._security = security or ZooKeeperSecurity()
        self._patience = session_timeout.total_seconds() * 2 / 3
        self._last_answer = time.monotonic()
        self.awaits_heartbeat: Callable[[], bool] = bool

    def select(self, readers: Sequence[Any], writers: Sequence[Any], errors: Sequence[Any], timeout: float) -> Any:
        """Wait for one of the sockets; the first reader is the connection with ZooKeeper."""
        if readers and _is_decrypted(readers[0]):
            # OpenSSL has read it from the network, where nothing more may arrive.
            ready = _ready(readers, writers, 0)
            self._last_answer = time.monotonic()
            return [*dict.fromkeys((readers[0], *ready[0]))], *ready[1:]
        ready = _ready(readers, writers, timeout)
        while readers and not any(ready) and self.awaits_heartbeat():
            left = self._last_answer + self._patience - time.monotonic()
            if left <= 0:
                break
            ready = _ready(readers, writers, left)
        if readers and readers[0] in ready[0]:
            self._last_answer = time.monotonic()
        return ready

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_kazoo: Any
    ) -> Any:
        """Connect, with TLS if the process has authorities for it; kazoo's own options of TLS are not used.

        Raises:
            ServerRefusal: the server's certificate is not trusted, or the server does not speak TLS.
        """
        context = self._security.tls_context()
        if context is None:
            return super().create_connection(address, hostname, timeout)
        connection = super().create_connection(address, hostname, timeout)
        server = f"ZooKeeper server {hostname or address[0]}:{address[1]}"
        try:
            return context.wrap_socket(connection, server_hostname=hostname or address[0])
        except (OSError, ValueError) as error:
            connection.close()
            raise ServerRefusal(_tls_reason(server, error)) from error


def _tls_reason(server: str, error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            fix = "give the certificates of its authorities with zk-tls-ca"
            if "hostname" in error.verify_message.lower() or "ip address" in error.verify_message.lower():
                fix = "give the name in its certificate in zk-addr"
            return f"the certificate of {server} is not trusted: {error.verify_message.rstrip('.')}. Fix: {fix}"
        # Python 3.11.2 reports a server that closes during the handshake as an end of the TLS session.
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ConnectionError():
            return (
                f"{server} closes the connection when TLS begins. Fix: give its secureClientPort in zk-addr, or leave "
                "out zk-tls-ca"
            )
        case TimeoutError():
            return f"{server} does not complete the TLS handshake in time"
        case ssl.SSLError():
            return (
                f"{server} and this process cannot agree on TLS ({_short(error)}). Fix: check zk-tls-ca and zk-tls-cert"
            )
    return f"{server} cannot be reached with TLS: {error}"


def _is_decrypted(connection: Any) -> bool:
    """Whether data of a TLS connection has been decrypted and not yet been read."""
    return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0


def _ready(
    readers: Sequence[Any], writers: Sequence[Any], timeout: float | None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the sockets that can be read, those that can be written, and an empty list.

    kazoo creates an epoll instance for each wait, which took a seventh of the time of a large read.
    """
    events = {fileobj_to_fd(reader): select.POLLIN for reader in readers}
    for writer in writers:
        events[fileobj_to_fd(writer)] = events.get(fileobj_to_fd(writer), 0) | select.POLLOUT
    poll = select.poll()
    for descriptor, mask in events.items():
        poll.register(descriptor, mask)
    ready = dict(poll.poll(None if timeout is None else math.ceil(max(0.0, timeout) * 1_000)))
    if any(mask & select.POLLNVAL for mask in ready.values()):
        raise ValueError("the connection with ZooKeeper is closed")
    readable, writable = (
        [sock for sock in sockets if ready.get(fileobj_to_fd(sock), 0) & (mask | select.POLLERR | select.POLLHUP)]
        for sockets, mask in ((readers, select.POLLIN), (writers, select.POLLOUT))
    )
    return readable, writable, []


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log lines with the addresses of the servers, without warnings until the first connection.

    kazoo warns at every attempt to connect, and does not name the server. Until the first connection the client's user
    logs the problem once. Damaged answers have a line and no traceback: they are no bug of ours.
    """

    def __init__(self, hosts: str) -> None:
        super().__init__(logging.getLogger("kazoo.client"))
        self.hosts, self.connected = hosts, False

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if isinstance(error := sys.exception() if kwargs.get("exc_info") else None, ConnectionLoss):
            level, msg, args, kwargs = logging.WARNING, "%s; the call counts as unanswered", (error,), {}
        if (self.connected or level >= logging.ERROR) and self.isEnabledFor(level):
            shown = ["(login)" if isinstance(arg, Auth) else arg for arg in args]  # it has the password
            self.logger.log(level, f"ZooKeeper (%s): {msg}", self.hosts, *shown, **kwargs)
