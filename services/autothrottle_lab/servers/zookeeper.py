"""A real ZooKeeper server, by default on 127.0.0.1, from the jars in the pyspark package, and its transaction log.

`ZooKeeperServer` starts, freezes, thaws, stops and kills a server. `ZooKeeperServer.transactions()` reads the server's
transaction log, which has all writes in commit order. Tests of fencing need this order.

Source: zookeeper.jute and FileTxnLog of ZooKeeper 3.9.
"""

from __future__ import annotations

import re
import socket
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from autothrottle_lab.servers.class_archive import DUMP_SECONDS, class_archive_options
from autothrottle_lab.servers.jars import cache_directory, pyspark_jars, require_java
from autothrottle_lab.servers.processes import Process, free_ports

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

_JARS = (
    "zookeeper",
    "slf4j-api",
    "log4j",
    "netty",
    "metrics-core",
    "snappy-java",
    "commons-io",
    "commons-lang3",
)
"""Name prefixes of the pyspark jars that ZooKeeper needs: a short class path starts faster."""


_MODE = re.compile(r"^Mode: (\w+)$", re.MULTILINE)


class ZooKeeperServer:
    """One ZooKeeper server, standalone or in an ensemble; a context manager that starts and kills it.

    Its minimum session timeout is 1 s. Its data survives `stop` and `kill` as long as its directory exists.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        number: int = 0,
        ensemble: Sequence[str] = (),
        host: str = "127.0.0.1",
        java: Sequence[str] = (),
    ) -> None:
        """Prepare a server.

        Args:
            directory: for data, configuration and log; created if necessary.
            port: client port; None: any free port.
            number: `myid` of the server in an ensemble, >= 1; 0: a standalone server.
            ensemble: lines of `zoo.cfg` that are the same for all members of the ensemble.
            host: address of this machine that it listens on.
            java: Java and its options; empty: those of `java_command`.
        """
        self.host = host
        self.port = port or free_ports(1)[0]
        self.directory = directory
        data, configuration = directory / "data", directory / "zoo.cfg"
        data.mkdir(parents=True, exist_ok=True)
        configuration.write_text(_CONFIGURATION.format(host=host, port=self.port, data=data) + "\n".join(ensemble))
        if number:
            (data / "myid").write_text(f"{number}\n")
        command = [*(java or java_command()), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]
        self.process = Process("ZooKeeper", command, directory / "zookeeper.log")

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def connect(self) -> str:
        """Connection string, `host:port`."""
        return f"{self.host}:{self.port}"

    def start(self, within_seconds: float = 120.0) -> None:
        """Start the server; return when it answers. Port and data are the same after each start."""
        self.process.start()
        self.process.wait_until(lambda: self.mode() != "", within_seconds)

    def mode(self) -> str:
        """Return `standalone`, `leader` or `follower`; "" while it does not serve clients."""
        match = _MODE.search(self.four_letter_word("srvr"))
        return match.group(1) if match else ""

    def stop(self) -> None:
        """Stop it by SIGTERM."""
        self.process.stop()

    def kill(self) -> None:
        """Kill it by SIGKILL; all confirmed transactions are in its log."""
        self.process.kill()

    def freeze(self) -> None:
        """Suspend it: connections stay open, it does not answer, and sessions do not expire."""
        self.process.freeze()

    def thaw(self) -> None:
        """Resume it after `freeze`."""
        self.process.thaw()

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
        server.process.terminate()
        server.process.wait(DUMP_SECONDS)


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
_HEADER = struct.Struct(">qiqqi")


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
    session_id, _, zxid, milliseconds, code = record.unpack(_HEADER)
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
            record.skip_acl()
            ephemeral = bool(record.byte())
        yield Operation(kind, path, data, ephemeral=ephemeral)
    elif kind == "set":
        yield Operation(kind, record.string(), record.buffer(), record.integer())
    elif kind == "check":
        # The log has the checked version plus 1.
        yield Operation(kind, record.string(), version=record.integer() - 1)
    elif kind in ("delete", "set_acl"):
        yield Operation(kind, record.string())
    elif kind == "close_session" and record.rest:
        for _ in range(record.integer()):
            yield Operation("delete", record.string())


class _Record:
    """A reader of Jute's binary encoding: big endian, lengths before contents."""

    def __init__(self, content: bytes) -> None:
        self.rest = content

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        values = form.unpack_from(self.rest)
        self.rest = self.rest[form.size :]
        return values

    def integer(self) -> int:
        return self.unpack(struct.Struct(">i"))[0]

    def byte(self) -> int:
        return self.unpack(struct.Struct(">b"))[0]

    def buffer(self) -> bytes:
        length = max(self.integer(), 0)
        content, self.rest = self.rest[:length], self.rest[length:]
        return content

    def string(self) -> str:
        return self.buffer().decode()

    def skip_acl(self) -> None:
        for _ in range(self.integer()):
            self.integer()
            self.string()
            self.string()
