"""A real ZooKeeper server on 127.0.0.1, from the jars inside the pyspark package, and what it has written.

`ZooKeeperServer` starts, freezes, thaws, kills and ends one. `ZooKeeperServer.transactions()` reads the
server's own transaction log, which is the order in which writes became true: what a test about fencing has to
look at.

Source: zookeeper.jute and FileTxnLog of ZooKeeper 3.9.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autothrottle.lab.jars import pyspark_jars, require_java
from autothrottle.lab.processes import Process, free_ports

_CONFIGURATION = """\
clientPortAddress=127.0.0.1
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
"""Beginnings of the names of those pyspark jars that ZooKeeper needs: a short class path starts faster."""


_MODE = re.compile(r"^Mode: (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Membership:
    """A server's place in an ensemble."""

    number: int
    """From 1 on."""
    configuration: tuple[str, ...]
    """Lines that are the same for all members."""


class ZooKeeperServer:
    """One ZooKeeper, of its own or of an ensemble; a context manager that starts it and ends it.

    The least session time-out that it grants is 1 s. Its data outlives `stop` and `kill`, not the caller's
    directory.
    """

    def __init__(self, directory: Path, port: int | None = None, membership: Membership | None = None) -> None:
        """Keep data, configuration and log in `directory`.

        Args:
            directory: made if it is not there.
            port: for clients; defaults to a free one.
            membership: in an ensemble; None: a server of its own.
        """
        self.port = port or free_ports(1)[0]
        self.directory = directory
        data, configuration = directory / "data", directory / "zoo.cfg"
        data.mkdir(parents=True, exist_ok=True)
        lines = _CONFIGURATION.format(port=self.port, data=data)
        if membership is not None:
            lines += "\n".join(membership.configuration)
            (data / "myid").write_text(f"{membership.number}\n")
        configuration.write_text(lines)
        self.process = Process("ZooKeeper", self._command(configuration), directory / "zookeeper.log")

    @staticmethod
    def _command(configuration: Path) -> list[str]:
        jars = [str(jar) for jar in sorted(pyspark_jars().glob("*.jar")) if jar.name.startswith(_JARS)]
        return [
            *(str(require_java()), "-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            "-XX:-UsePerfData",  # or a file of it stays behind when it is killed
            # The page cache survives a crash of the process; a crash of the machine is no test here.
            *("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024", "-Dorg.apache.logging.log4j.level=WARN"),
            *("-cp", ":".join(jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)),
        ]

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def connect(self) -> str:
        """Connection string, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def start(self, within_seconds: float = 120.0) -> None:
        """Start it and return when it answers; its port and data are those of the last time."""
        self.process.start()
        self.process.wait_until(lambda: self.mode() != "", within_seconds)

    def mode(self) -> str:
        """Return `standalone`, `leader` or `follower`; "" while it serves nobody."""
        found = _MODE.search(self.say("srvr"))
        return found.group(1) if found else ""

    def stop(self) -> None:
        """End it by SIGTERM."""
        self.process.stop()

    def kill(self) -> None:
        """End it by SIGKILL; every transaction that it has confirmed is in its log."""
        self.process.kill()

    def freeze(self) -> None:
        """Stop it where it is: connections stay open, nothing is answered, no session expires."""
        self.process.freeze()

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self.process.thaw()

    def say(self, word: str, timeout_seconds: float = 2.0) -> str:
        """Return the answer to a four letter word (`srvr`, `mntr`, `ruok`), "" when it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout_seconds) as connection:
                connection.settimeout(timeout_seconds)
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def transactions(self, after_zxid: int = 0, refused: bool = False) -> Iterator[Transaction]:
        """Yield what was written after `after_zxid`, in the order in which it became true.

        Everything that a client was told is there; also works on a server that is frozen or has ended. With
        `refused` also the writes that were not carried out: they have a zxid of their own.
        """
        for transaction in _read_logs(self.directory / "data" / "version-2"):
            if transaction.zxid > after_zxid and (refused or transaction.applied):
                yield transaction

    def last_zxid(self) -> int:
        """Return the zxid of the last transaction in the log, 0 when there is none."""
        return max((transaction.zxid for transaction in self.transactions(refused=True)), default=0)


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of one node, or one check of its version."""

    kind: str
    """create, delete, set, set_acl or check."""
    path: str
    data: bytes | None = None
    """New content; None for delete, set_acl and check."""
    version: int | None = None
    """set: the version that the node has now; check: the version that it had to have; else None."""
    ephemeral: bool = False
    """create: whether the node goes with its session."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What ZooKeeper did, or refused to do, at once."""

    zxid: int
    """Its place in the one order of all writes."""
    session_id: int
    """The session that asked for it."""
    time: datetime
    """The server's clock when it was prepared."""
    kind: str
    """create, delete, set, set_acl, multi, open_session, close_session, or error: a refused single write."""
    operations: tuple[Operation, ...] = ()
    """All of them, in order; of a refused multi those that were prepared before the one that failed."""
    error: int = 0
    """0, or ZooKeeper's code of why nothing of it was carried out: -103 bad version, -110 node exists."""

    @property
    def applied(self) -> bool:
        """Whether it was carried out, all of it."""
        return self.error == 0


_KINDS = {
    **{
        1: "create",
        15: "create",
        19: "create",
        21: "create",
    },  # create, create2, container, with a time to live
    **{2: "delete", 20: "delete", 5: "set", 7: "set_acl", 13: "check", 14: "multi"},
    **{-10: "open_session", -11: "close_session", -1: "error"},
}

_HEADER = struct.Struct(">qiqqi")
_MULTI = 14
_ERROR = -1
_CLOSE_SESSION = -11


def _read_logs(directory: Path) -> Iterator[Transaction]:
    logs = sorted(directory.glob("log.*"), key=lambda path: int(path.suffix[1:], 16))
    for path in logs:
        content = path.read_bytes()
        if content[:4] == b"ZKLG":
            yield from _transactions(content)


def _transactions(content: bytes) -> Iterator[Transaction]:
    """Yield the transactions of one log: 16 bytes, then (checksum, length, record, 'B') until zeros."""
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
    operations, error = _operations(record, code)
    return Transaction(
        zxid=zxid,
        session_id=session_id,
        time=datetime.fromtimestamp(milliseconds / 1000, UTC),
        kind=_KINDS.get(code, f"type {code}"),
        operations=operations,
        error=error,
    )


def _operations(record: _Record, code: int) -> tuple[tuple[Operation, ...], int]:
    """Return the operations of a transaction and the error that refused it, 0 if none did."""
    if code == _ERROR:
        return (), record.integer()
    if code == _CLOSE_SESSION:
        return _deleted_with_the_session(record), 0
    if code == _MULTI:
        return _parts(record)
    operation = _operation(record, code)
    return (operation,) if operation else (), 0


def _deleted_with_the_session(record: _Record) -> tuple[Operation, ...]:
    if not record.rest:
        return ()
    return tuple(Operation("delete", record.string()) for _ in range(record.integer()))


def _parts(record: _Record) -> tuple[tuple[Operation, ...], int]:
    """Return the parts of a multi, and the error for which nothing of it was done, 0 if there is none."""
    operations: list[Operation] = []
    errors: list[int] = []
    for _ in range(record.integer()):
        code = record.integer()
        part = _Record(record.buffer())
        if code == _ERROR:
            errors.append(part.integer())
        elif operation := _operation(part, code):
            operations.append(operation)
    # The part that failed has the reason; those after it are errors too, whatever they would have been.
    return tuple(operations), errors[0] if errors else 0


def _operation(record: _Record, code: int) -> Operation | None:
    kind = _KINDS.get(code, "")
    if kind == "create":
        path, data = record.string(), record.buffer()
        if code == 1 or code == 15:
            record.skip_acl()
            return Operation(kind, path, data, ephemeral=bool(record.byte()))
        return Operation(kind, path, data)
    if kind == "set":
        return Operation(kind, record.string(), record.buffer(), record.integer())
    if kind == "check":
        # The log has the version that would follow.
        return Operation(kind, record.string(), version=record.integer() - 1)
    if kind in ("delete", "set_acl"):
        return Operation(kind, record.string())
    return None


class _Record:
    """Jute's binary encoding: big endian, lengths before contents."""

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
