"""A real ZooKeeper server or ensemble, from the jars in the pyspark package, and its transaction log.

`ZooKeeperServer` starts, freezes, thaws, stops and kills a server. `ZooKeeperServer.transactions()` reads the server's
transaction log, which has all writes in commit order. Tests of fencing need this order. `ZooKeeperEnsemble` is several
servers.

Source: zookeeper.jute and FileTxnLog of ZooKeeper 3.9, and its administrator's guide.
"""

from __future__ import annotations

import re
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from kazoo.protocol.serialization import read_acl, read_buffer, read_string

from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.jars import (
    DUMP_SECONDS,
    cache_directory,
    class_archive_options,
    pyspark_jars,
    require_java,
)
from autothrottle_lab.servers.processes import Process, Startable, free_ports

_CONFIGURATION = """\
clientPortAddress={host}
clientPort={port}
dataDir={data}
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,ruok
"""

_TLS = """\
secureClientPortAddress={host}
secureClientPort={port}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={certificate}
ssl.trustStore.location={authorities}
ssl.clientAuth={client_auth}
authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider
"""

_JAAS = """\
Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required{users};
}};
"""

_JARS = tuple(
    ["zookeeper", "slf4j-api", "log4j", "netty", "metrics-core", "snappy-java", "commons-io", "commons-lang3"]
)
"""Name prefixes of the pyspark jars that ZooKeeper needs: a short class path starts faster."""

_ENSEMBLE = ("initLimit=20", "syncLimit=6")
"""In ticks of 0.5 s: 10 s to join; the leader drops a follower after 3 s without contact."""

_MODE = re.compile(r"^Mode: (\w+)$", re.MULTILINE)
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """A second port of a server, with TLS, and its users."""

    certificate: Path
    """PEM file with the server's certificate and its private key."""
    authorities: Path
    """PEM file with the authorities that sign the certificates of clients."""
    users: Mapping[str, str]
    """User -> password, for SASL with DIGEST-MD5."""
    needs_certificate: bool = False
    """Whether clients need a certificate."""


class ZooKeeperServer(Process):
    """One ZooKeeper server, standalone or in an ensemble.

    Its minimum session timeout is 1 s. Its data survives `stop` and `kill` as long as its directory exists; all
    confirmed transactions are in its log. While it is frozen, sessions do not expire.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        number: int = 0,
        ensemble: Sequence[str] = (),
        host: str = "127.0.0.1",
        java: Sequence[str] = (),
        security: ServerSecurity | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            directory: for data, configuration and log; created if necessary.
            port: client port; None: any free port.
            number: `myid` of the server in an ensemble, >= 1; 0: a standalone server.
            ensemble: lines of `zoo.cfg` that are the same for all members of the ensemble.
            host: address of this machine that it listens on.
            java: Java and its options; empty: those of `java_command`.
            security: TLS at `secure_connect`, and logins at both ports; None: neither.
        """
        self.host = host
        self.port = port or free_ports(1)[0]
        self.directory = directory
        data, configuration = directory / "data", directory / "zoo.cfg"
        data.mkdir(parents=True, exist_ok=True)
        self.security = security
        self._secure_port = free_ports(1)[0] if security else 0
        lines = _CONFIGURATION.format(host=host, port=self.port, data=data) + "".join(f"{line}\n" for line in ensemble)
        options = []
        if security:
            lines += _TLS.format(
                host=host,
                port=self._secure_port,
                certificate=security.certificate,
                authorities=security.authorities,
                client_auth="need" if security.needs_certificate else "none",
            )
            users = "".join(f'\n    user_{user}="{password}"' for user, password in security.users.items())
            (directory / "jaas.conf").write_text(_JAAS.format(users=users))
            options = [f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"]
        configuration.write_text(lines)
        if number:
            (data / "myid").write_text(f"{number}\n")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [*(java or java_command()), *options, main, str(configuration)]
        super().__init__("ZooKeeper", command, directory / "zookeeper.log")

    @property
    def connect(self) -> str:
        """Connection string, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def secure_connect(self) -> str:
        """Connection string of the port with TLS."""
        return f"{self.host}:{self._secure_port}"

    def start(self, within_seconds: float = 120.0) -> None:
        """Start the server; return when it answers. Port and data are the same after each start."""
        super().start()
        self.wait_until(lambda: self.mode() != "", within_seconds)

    def close(self) -> None:
        self.kill()

    def mode(self) -> str:
        """Return `standalone`, `leader` or `follower`; "" while it does not serve clients."""
        match = _MODE.search(self.four_letter_word("srvr"))
        return match.group(1) if match else ""

    def four_letter_word(self, word: str, timeout_seconds: float = 2.0) -> str:
        """Return the response to a four-letter word (`srvr`, `mntr`, `ruok`); "" without a response."""
        try:
            with socket.create_connection((self.host, self.port), timeout_seconds) as connection:
                connection.settimeout(timeout_seconds)
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def transactions(self, after_zxid: int = 0, refused: bool = False) -> Iterator[Transaction]:
        """Yield the transactions after `after_zxid` in commit order.

        They include every write that was confirmed to a client. This works on frozen and stopped servers, too.
        With `refused`, failed writes are included; they have their own zxid.
        """
        for transaction in _read_logs(self.directory / "data" / "version-2"):
            if transaction.zxid > after_zxid and (refused or transaction.applied):
                yield transaction

    def last_zxid(self) -> int:
        """Return the zxid of the last transaction in the log; 0: the log is empty."""
        return max((transaction.zxid for transaction in self.transactions(refused=True)), default=0)


class ZooKeeperEnsemble(Startable):
    """The servers of one ensemble on 127.0.0.1. Tests may freeze, kill and restart its `servers` one by one."""

    def __init__(self, directory: Path, size: int = 3, security: ServerSecurity | None = None) -> None:
        """Prepare `size` servers, each with its own subdirectory of `directory`.

        The servers have the same `security`. It covers their clients, not the connections among the servers.
        """
        ports = free_ports(3 * size)
        members = [
            f"server.{number}=127.0.0.1:{ports[size + number - 1]}:{ports[2 * size + number - 1]}"
            for number in range(1, size + 1)
        ]
        configuration = (*_ENSEMBLE, *members)
        self.servers = [
            ZooKeeperServer(directory / f"server-{number}", ports[number - 1], number, configuration, security=security)
            for number in range(1, size + 1)
        ]

    @property
    def connect(self) -> str:
        """Connection string: `host:port` of all servers, separated by commas."""
        return ",".join(server.connect for server in self.servers)

    @property
    def secure_connect(self) -> str:
        """Connection string of the ports with TLS."""
        return ",".join(server.secure_connect for server in self.servers)

    def start(self, within_seconds: float = 120.0) -> None:
        """Start the servers that do not run; return when all serve clients. Ports and data are the same each time.

        Raises:
            TimeoutError: a server ends, or does not serve clients in time.
        """
        for server in self.servers:
            Process.start(server)  # alone it does not serve clients
        for server in self.servers:
            server.start(within_seconds)

    def kill(self) -> None:
        """Kill all servers by SIGKILL; all confirmed transactions are in their logs."""
        for server in self.servers:
            server.kill()

    close = kill

    def leader(self, within_seconds: float = 30.0) -> ZooKeeperServer:
        """Return the leader; a former leader may report itself for a moment after `thaw`.

        Raises:
            Unavailable: no server reports that it leads in time.
        """
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.running and server.mode() == "leader":
                    return server
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"no server of {self.connect} leads after {within_seconds:g} s: a majority must be running")

    def transactions(self, after_zxid: int = 0, refused: bool = False) -> Iterator[Transaction]:
        """Yield the transactions after `after_zxid` in commit order.

        These are the transactions in the logs of a majority of servers. They include every write that was confirmed to
        a client. They exclude proposals of a former leader that were never committed, which stay in its own log. With
        `refused`, failed writes are included. This works on frozen and stopped servers, too.
        """
        logs = [{t.zxid: t for t in server.transactions(after_zxid, refused)} for server in self.servers]
        holders = Counter(zxid for log in logs for zxid in log)
        every = {zxid: transaction for log in logs for zxid, transaction in log.items()}
        yield from (every[zxid] for zxid in sorted(holders) if 2 * holders[zxid] > len(self.servers))

    def last_zxid(self) -> int:
        """Return the zxid of the last transaction that a majority of servers has; 0: no such transaction."""
        return max((transaction.zxid for transaction in self.transactions(refused=True)), default=0)


@cache
def java_command() -> list[str]:
    """Return a Java command with ZooKeeper's jars; append a main class to run it.

    Raises:
        Missing: Java is missing or too old, or pyspark is not installed.
    """
    jars = [jar for jar in sorted(pyspark_jars().glob("*.jar")) if jar.name.startswith(_JARS)]
    command = [
        *(str(require_java()), "-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        "-XX:-UsePerfData",  # otherwise a kill leaves its file behind
        # The page cache survives a crash of the process, and tests do not crash the machine.
        *("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024", "-Dorg.apache.logging.log4j.level=WARN"),
        *("-cp", ":".join(map(str, jars))),
    ]
    archive = cache_directory() / "jars" / archive_name(jars)
    return [*command, *class_archive_options(archive, partial(_run_once, command))]


def archive_name(jars: Sequence[Path]) -> str:
    """Return the file name of the archive of these jars' classes.

    Java compares the paths and times of the jars: each installation of pyspark has its own archive.
    """
    installation = repr([(str(jar), jar.stat().st_mtime_ns) for jar in jars])
    return f"zookeeper-{zlib.crc32(installation.encode()):08x}.jsa"


def _run_once(command: Sequence[str], options: Sequence[str], directory: Path) -> None:
    """Start a server with these Java options and stop it."""
    with ZooKeeperServer(directory, java=[*command, *options]) as server:
        server.terminate()
        server.wait(DUMP_SECONDS)


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of one znode, or one check of its version."""

    kind: str
    """create, delete, set, set_acl or check."""
    path: str
    data: bytes | None = None
    """New content; None for delete, set_acl and check."""
    version: int | None = None
    """set: the new version of the znode; check: the required version; else None."""
    ephemeral: bool = False
    """create: whether the znode is ephemeral."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One atomic transaction, applied or refused."""

    zxid: int
    """Its position in the total order of writes."""
    session_id: int
    """The session that requested it."""
    time: datetime
    """The server's clock when it prepared the transaction."""
    kind: str
    """create, delete, set, set_acl, multi, open_session, close_session, or error: a refused single write."""
    operations: tuple[Operation, ...] = ()
    """All operations in order; for a refused multi, those before the one that failed."""
    error: int = 0
    """0, or ZooKeeper's error code of a refused transaction: -103 bad version, -110 node exists."""

    @property
    def applied(self) -> bool:
        """Whether it was applied; a transaction is applied as a whole or not at all."""
        return self.error == 0


_MULTI = 14
_ERROR = -1
_KINDS = {
    **dict.fromkeys((1, 15, 19, 21), "create"),  # create, create2, container, with a time to live
    **{2: "delete", 20: "delete", 5: "set", 7: "set_acl", 13: "check", _MULTI: "multi"},
    **{-10: "open_session", -11: "close_session", _ERROR: "error"},
}


def _read_logs(directory: Path) -> Iterator[Transaction]:
    logs = sorted(directory.glob("log.*"), key=lambda path: int(path.suffix[1:], 16))
    for path in logs:
        content = path.read_bytes()
        if content[:4] == b"ZKLG":
            yield from _transactions(content)


def _transactions(content: bytes) -> Iterator[Transaction]:
    """Yield the transactions of a log file: a header of 16 bytes, then (checksum, length, record, 'B') until zeros."""
    at = 16
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">i", content, at + 8)
        record = content[at + 12 : at + 12 + length]
        at += 12 + length
        if length <= 0 or content[at : at + 1] != b"B":
            return
        at += 1
        yield _transaction(_Record(record))


def _transaction(record: _Record) -> Transaction:
    session_id, _, zxid, milliseconds, code = record.unpack(">qiqqi")
    parts = [(code, record)]
    if code == _MULTI:
        parts = [(record.integer(), _Record(record.buffer())) for _ in range(record.integer())]
    operations = tuple(operation for code, part in parts for operation in _operations(code, part))
    # The first error is the cause; all later operations are logged as errors, too.
    errors = [part.integer() for code, part in parts if code == _ERROR]
    return Transaction(
        zxid=zxid,
        session_id=session_id,
        time=datetime.fromtimestamp(milliseconds / 1000, UTC),
        kind=_KINDS.get(code, f"type {code}"),
        operations=operations,
        error=errors[0] if errors else 0,
    )


def _operations(code: int, record: _Record) -> Iterator[Operation]:
    """Yield the operations of a record other than a multi: one, none, or a deletion for each ephemeral znode."""
    kind = _KINDS.get(code, "")
    if kind == "create":
        path, data = record.string(), record.buffer()
        ephemeral = False
        if code in (1, 15):
            for _ in range(record.integer()):
                record.read(read_acl)
            ephemeral = bool(record.unpack(">?")[0])
        yield Operation(kind, path, data, ephemeral=ephemeral)
    elif kind == "set":
        yield Operation(kind, record.string(), record.buffer(), record.integer())
    elif kind == "check":
        # The log has the checked version plus 1.
        yield Operation(kind, record.string(), version=record.integer() - 1)
    elif kind in ("delete", "set_acl"):
        yield Operation(kind, record.string())
    elif kind == "close_session" and record.at < len(record.content):
        for _ in range(record.integer()):
            yield Operation("delete", record.string())


@dataclass(slots=True)
class _Record:
    """A reader of Jute's binary encoding: big endian, lengths before contents."""

    content: bytes
    at: int = 0

    def read(self, decode: Callable[[bytes, int], tuple[Any, int]]) -> Any:
        value, self.at = decode(self.content, self.at)
        return value

    def unpack(self, form: str) -> tuple[int, ...]:
        start = self.at
        self.at += struct.calcsize(form)
        return struct.unpack_from(form, self.content, start)

    def integer(self) -> int:
        return self.unpack(">i")[0]

    def buffer(self) -> bytes:
        return self.read(read_buffer) or b""

    def string(self) -> str:
        return self.read(read_string) or ""
