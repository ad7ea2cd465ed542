"""Brokers that follow the notifications: each reads the new ones, and the config that each of them names.

A program of its own, `python -m tests.benchmarks.readers CONNECT SESSIONS`. Every session is what a broker is to
ZooKeeper: a watch on the children of `/config/changes`; when it fires the children with a watch again, the data of each
new child, and the config node that it names. The client is a loop over raw sockets: it costs a tenth of what as many
clients of a library would, and what its process takes is known. It runs with the lowest priority, so that what is left
of the machine is the services' first: what ZooKeeper itself has to do for the readers is in the figures.

SIGTERM ends it. Whenever all sessions have had everything for a moment, a line of JSON says what they have read so far.
"""

from __future__ import annotations

import json
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque

from autothrottle.runtime.priority import give_way

CHANGES, CONFIG = b"/config/changes", b"/config/"
SESSION_MS = 30_000
PING_SECONDS = 5.0
QUIET_SECONDS = 0.3
_GET_DATA, _GET_CHILDREN, _PING = 4, 8, 11
_WATCH_EVENT, _PING_REPLY = -1, -2


def frame(payload: bytes) -> bytes:
    """Return a packet of ZooKeeper's protocol."""
    return struct.pack(">i", len(payload)) + payload


def read_request(xid: int, kind: int, path: bytes, watch: bool) -> bytes:
    """Return a request for data or children."""
    return frame(struct.pack(">iii", xid, kind, len(path)) + path + bytes([watch]))


class Broker:
    """One session."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.sendall(frame(struct.pack(">iqiqi", 0, 0, SESSION_MS, 0, 16) + bytes(17)))
        self._buffer = bytearray()
        self._waiting: deque[str] = deque(["connect"])
        self._newest = -1
        self.notifications = self.configs = self.bytes = 0
        self._ask("children", _GET_CHILDREN, CHANGES, watch=True)

    @property
    def is_done(self) -> bool:
        """Whether everything that was asked for has come."""
        return not self._waiting

    def receive(self) -> None:
        """Take what has come, and ask for what follows from it."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise ConnectionError("ZooKeeper has ended a session")
        self.bytes += len(chunk)
        self._buffer += chunk
        at = 0
        while len(self._buffer) - at >= 4:
            (size,) = struct.unpack_from(">i", self._buffer, at)
            if len(self._buffer) - at - 4 < size:
                break
            self._take(bytes(self._buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        del self._buffer[:at]

    def ping(self) -> None:
        """Keep the session."""
        self.socket.sendall(frame(struct.pack(">ii", _PING_REPLY, _PING)))

    def _ask(self, what: str, kind: int, path: bytes, watch: bool = False) -> None:
        self._waiting.append(what)
        self.socket.sendall(read_request(1, kind, path, watch))

    def _take(self, packet: bytes) -> None:
        if self._waiting and self._waiting[0] == "connect":
            self._waiting.popleft()
            return
        (xid,) = struct.unpack_from(">i", packet)
        if xid == _WATCH_EVENT:
            self._ask("children", _GET_CHILDREN, CHANGES, watch=True)
        elif xid != _PING_REPLY:
            what, (error,) = self._waiting.popleft(), struct.unpack_from(">i", packet, 12)
            if what == "children":
                self._read_new(packet)
            elif what == "notification" and not error:  # else it is gone, which is no news
                self._read_config(packet)
            elif what == "config":
                self.configs += 1

    def _read_new(self, packet: bytes) -> None:
        (count,), at, found = struct.unpack_from(">i", packet, 16), 20, []
        for _ in range(count):
            (size,) = struct.unpack_from(">i", packet, at)
            name = packet[at + 4 : at + 4 + size]
            at += 4 + size
            if int(name[-10:]) > self._newest:
                found.append(name)
        for name in sorted(found, key=lambda name: int(name[-10:])):
            self._newest = int(name[-10:])
            self._ask("notification", _GET_DATA, CHANGES + b"/" + name)

    def _read_config(self, packet: bytes) -> None:
        (size,) = struct.unpack_from(">i", packet, 16)
        self.notifications += 1
        entity = json.loads(packet[20 : 20 + size])["entity_path"]
        self._ask("config", _GET_DATA, CONFIG + entity.encode())


def main(connect: str, sessions: int) -> None:
    """Follow until the end."""
    give_way(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    host, _, port = connect.partition(",")[0].rpartition(":")
    brokers = [Broker((host, int(port))) for _ in range(sessions)]
    selector = selectors.DefaultSelector()
    for broker in brokers:
        selector.register(broker.socket, selectors.EVENT_READ, broker)
    told, heard, pinged = -1, time.time(), time.monotonic()
    while True:
        for key, _ in selector.select(QUIET_SECONDS):
            before = key.data.notifications, key.data.configs
            key.data.receive()
            if before != (key.data.notifications, key.data.configs):
                heard = time.time()
        if time.monotonic() - pinged > PING_SECONDS:
            pinged = time.monotonic()
            for broker in brokers:
                broker.ping()
        total = sum(broker.configs for broker in brokers)
        if total != told and time.time() - heard > QUIET_SECONDS and all(broker.is_done for broker in brokers):
            told = total
            usage = resource.getrusage(resource.RUSAGE_SELF)
            said = {
                "sessions": sessions,
                "notifications": [min(b.notifications for b in brokers), max(b.notifications for b in brokers)],
                "configs": total,
                "megabytes": round(sum(broker.bytes for broker in brokers) / 1e6, 1),
                "last": heard,
                "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
            }
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
