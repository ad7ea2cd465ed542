"""The files of TLS and logins, the ACLs that follow from them, and TLS on kazoo's sockets."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.protocol.serialization import Auth
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Id, Permissions

from autothrottle.adapters.zookeeper.client import ClientLog, PatientHandler, SecuredClient, ServerRefusal
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.security import OtherClients, SecurityFiles, ZooKeeperSecurity
from autothrottle.core.errors import Invalid
from tests.paths import CERTIFICATES

CA, SERVER = str(CERTIFICATES / "ca.pem"), str(CERTIFICATES / "server.pem")
OWN = OwnPaths()
SESSION = timedelta(seconds=6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "zk"


# Files.


@pytest.mark.parametrize(
    "content", ["", "\n", "autothrottle", "autothrottle:", ":secret", "a:b\nc", "a:b\x1bc", b"\xff:b", "a:b\nc:d"]
)
def test_file_without_user_and_password_is_refused_and_not_shown(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Invalid) as error:
        ZooKeeperSecurity(SecurityFiles(sasl=str(path)))
    assert str(error.value).startswith(f"zk-sasl-file {str(path)!r} ")
    assert "Fix: put " in str(error.value)
    assert not content or str(content) not in str(error.value)


def test_absent_file_is_named(path: Path) -> None:
    with pytest.raises(Invalid, match=r"zk-digest-file .* cannot be read: No such file or directory. Fix: name a"):
        ZooKeeperSecurity(SecurityFiles(digest=str(path)))
    with pytest.raises(Invalid, match=r"zk-tls-ca .* holds no PEM certificates \(No such file or directory\). Fix: "):
        ZooKeeperSecurity(SecurityFiles(authorities=str(path)))
    path.write_text("no certificate")
    with pytest.raises(Invalid, match=r"zk-tls-ca .* holds no PEM certificates .*Fix: give the file with the"):
        ZooKeeperSecurity(SecurityFiles(authorities=str(path)))
    encrypted = str(CERTIFICATES / "client-encrypted.pem")
    with pytest.raises(Invalid, match=r"zk-tls-cert .* and zk-tls-key .* are not a PEM certificate and its private"):
        ZooKeeperSecurity(SecurityFiles(CA, encrypted, encrypted))


@pytest.mark.parametrize(
    "files",
    [
        SecurityFiles(CA, SERVER),
        SecurityFiles(CA, "", SERVER),
        SecurityFiles("", SERVER, SERVER),
        SecurityFiles(digest="a", sasl="b"),
    ],
)
def test_files_that_would_not_be_used_are_refused(files: SecurityFiles) -> None:
    """A certificate without authorities would connect without TLS."""
    with pytest.raises(Invalid, match="Fix: give "):
        ZooKeeperSecurity(files)


def test_a_password_may_contain_colons_and_is_not_in_the_text_of_a_login(path: Path) -> None:
    path.write_text(" autothrottle:a:b c \n")
    login = ZooKeeperSecurity(SecurityFiles(sasl=str(path))).login()
    assert login is not None
    assert (login.users, login.name, login.identities) == (
        (("autothrottle", "a:b c"),),
        "sasl:autothrottle",
        [Id("sasl", "autothrottle")],
    )
    assert "a:b" not in repr(login)


def test_changed_files_are_used_and_broken_ones_are_not(path: Path) -> None:
    path.write_text("a:old")
    security = ZooKeeperSecurity(SecurityFiles(digest=str(path)))
    path.write_text("a:newer\na:old")
    login = security.login()
    assert login is not None
    assert login.users == (("a", "newer"), ("a", "old"))
    path.write_text("broken")
    assert security.login() == login


# ACLs.


@pytest.mark.parametrize(
    ("others", "of_ours", "of_overrides"),
    [
        (OtherClients.OPEN, Permissions.ALL, Permissions.ALL),
        (OtherClients.READ, Permissions.READ, Permissions.READ),
        (OtherClients.NONE, 0, Permissions.READ),
    ],
)
def test_only_our_nodes_get_acls_and_overrides_stay_readable(
    path: Path, others: OtherClients, of_ours: int, of_overrides: int
) -> None:
    path.write_text("a:b")
    security = ZooKeeperSecurity(SecurityFiles(digest=str(path)), others, OWN)
    login = security.login()

    def expected(permissions: int) -> list[ACL]:
        everyone = [ACL(permissions, ANYONE_ID_UNSAFE)] if permissions else []
        return [ACL(Permissions.ALL, Id("digest", "a:3OptnM09ILoVSfbZtd3mB0IViII=")), *everyone]

    for node in (OWN.root, OWN.term, OWN.audit_record):
        assert security.acl(node, login) == expected(of_ours)
    for override in (OWN.override(None), OWN.override(1001)):
        assert security.acl(override, login) == expected(of_overrides)
    for foreign in ("/", "/brokers", f"{OWN.root}-2", "/config/autothrottle"):
        assert security.acl(foreign, login) is None
    assert security.acl(OWN.term, None) is None


# Connections.


@pytest.fixture
def tls_server() -> Iterator[tuple[str, int]]:
    """A server with a certificate for 127.0.0.1 that completes handshakes and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(SERVER)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("authorities", "host", "reason"),
    [
        (CA, "zk1", "certificate is not valid for 'zk1'. Fix: give the name in its certificate in zk-addr"),
        (
            str(CERTIFICATES / "elsewhere.pem"),
            "127.0.0.1",
            "Fix: give the certificates of its authorities with zk-tls-ca",
        ),
    ],
)
def test_certificates_of_other_hosts_and_authorities_are_refused(
    tls_server: tuple[str, int], authorities: str, host: str, reason: str
) -> None:
    """kazoo does not check the host name by default, and trusts the system's authorities beside the given ones."""
    handler = PatientHandler(SESSION, ZooKeeperSecurity(SecurityFiles(authorities)))
    with pytest.raises(ServerRefusal) as refusal:
        handler.create_connection(address=tls_server, hostname=host, timeout=5)
    assert f"the certificate of ZooKeeper server {host}:{tls_server[1]} is not trusted: " in str(refusal.value)
    assert reason in str(refusal.value)


def test_a_server_that_does_not_answer_the_handshake_is_refused_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handler = PatientHandler(SESSION, ZooKeeperSecurity(SecurityFiles(CA)))
        with pytest.raises(ServerRefusal, match="does not complete the TLS handshake in time"):
            handler.create_connection(address=listener.getsockname(), hostname="127.0.0.1", timeout=0.1)


def test_select_returns_at_once_for_data_that_is_decrypted_already() -> None:
    """Two answers in one TLS record: kazoo waited for the network until the next heartbeat with the second one."""
    client_context = ZooKeeperSecurity(SecurityFiles(CA)).tls_context()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(SERVER)
    server, client = socket.socketpair()
    secured: list[ssl.SSLSocket] = []
    accepting = threading.Thread(target=lambda: secured.append(server_context.wrap_socket(server, server_side=True)))
    accepting.start()
    assert client_context is not None
    handler = PatientHandler(timedelta(seconds=60))
    requests, request = socket.socketpair()
    with client_context.wrap_socket(client, server_hostname="127.0.0.1") as reader, requests, request:
        accepting.join()
        secured[0].send(b"answer 1answer 2")
        assert reader.recv(8) == b"answer 1"
        began = time.monotonic()
        assert handler.select([reader, requests], [], [], 30) == ([reader], [], [])
        request.send(b"\0")
        assert handler.select([reader, requests], [], [], 30) == ([reader, requests], [], [])
        assert time.monotonic() - began < 5
        secured[0].close()


def test_a_password_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the level debug, kazoo logs each request, also the one with the password."""
    log = ClientLog("zk1:2181")
    log.connected = True
    with caplog.at_level(logging.DEBUG):
        log.debug("Sending request(xid=%s): %s", -4, Auth(0, "digest", "a:canary"))
    assert caplog.messages == ["ZooKeeper (zk1:2181): Sending request(xid=-4): (login)"]


def test_a_refused_login_is_retried_and_counts_as_wrong_after_the_third_time(path: Path) -> None:
    """A server that stopped during a login ended kazoo's client for good: the process had to be restarted."""
    path.write_text("a:b")
    client = SecuredClient("zk1:2181,zk2:2181", SESSION, ZooKeeperSecurity(SecurityFiles(sasl=str(path))))

    def attempt(host: str, error: Exception) -> str:
        def connect(*_: object) -> None:
            raise error

        client._connect_unsecured = connect
        with pytest.raises(ConnectionDropped) as dropped:
            client._connect(host, "10.0.0.1", 2181)
        return str(dropped.value)

    ended = AuthFailedError("Connection dropped in SASL")
    ended.__cause__ = ConnectionDropped()
    assert [attempt("zk1", ended) for _ in range(2)] == ["Connection dropped in SASL"] * 2
    assert attempt("zk1", ended).startswith("ZooKeeper server zk1:2181 refuses the login sasl:a: ")
    assert client.refusal == ""  # the other one may accept it
    refused = attempt("zk2", AuthFailedError())
    assert refused.endswith("Fix: correct zk-sasl-file, or the server's users")
    assert client.refusal in refused.replace("zk2", "zk1")
    client._connect_unsecured = lambda *_: (1.0, 1.0)
    client._connect("zk2", "10.0.0.1", 2181)
    assert (client.refusals, client.logged_in.is_set()) == ({}, True)


@pytest.mark.parametrize(
    ("reason", "certificate", "sentence"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "", "needs a client certificate (tlsv13 alert certificate required)"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", SERVER, "refuses our certificate (sslv3 alert bad certificate)"),
        ("UNEXPECTED_EOF_WHILE_READING", SERVER, ""),
    ],
)
def test_a_server_that_is_stopping_is_not_taken_for_one_that_refuses_the_certificate(
    reason: str, certificate: str, sentence: str
) -> None:
    security = ZooKeeperSecurity(SecurityFiles(CA, certificate, certificate))
    client = SecuredClient("zk1:2281", SESSION, security)
    alert = ssl.SSLError(1, "from the server")
    alert.reason = reason

    def connect(*_: object) -> None:
        try:
            raise alert
        except OSError:
            raise ConnectionDropped("socket connection error")  # noqa: B904

    client._connect_unsecured = connect
    with pytest.raises(ConnectionDropped) as dropped:
        client._connect("zk1", "10.0.0.1", 2281)
    if sentence:
        fix = "Fix: give a certificate that the server trusts with zk-tls-cert and zk-tls-key"
        assert str(dropped.value) == f"ZooKeeper server zk1:2281 {sentence}. {fix}"
    else:
        assert client.refusal == ""
