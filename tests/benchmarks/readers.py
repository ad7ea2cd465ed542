"""ZooKeeper sessions that read config change notifications, as the brokers of a cluster do.

Run it as `python -m tests.benchmarks.readers CONNECT SESSIONS`. Every session behaves like one broker. It watches the
children of `/config/changes`. When the watch fires, it reads the children and sets the watch again. Then it reads
each new notification and the config node that the notification names.

The client is a loop over raw sockets. It needs a tenth of the CPU time of as many library clients, and its own CPU
time is reported. It runs with the lowest priority, so that the services get the CPU first. The figures include the
work of ZooKeeper for these sessions.

SIGTERM ends the program. When all sessions have been idle for `QUIET_SECONDS`, it prints one line of JSON with the
totals so far.
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

from autothrottle.runtime.tuning import give_way

CHANGES, CONFIG = b"/config/changes", b"/config/"
SESSION_MS = 30_000
PING_SECONDS = 5.0
QUIET_SECONDS = 0.3
_GET_DATA, _GET_CHILDREN, _PING = 4, 8, 11
_WATCH_EVENT, _PING_REPLY = -1, -2


def frame(payload: bytes) -> bytes:
    """Return a packet of the ZooKeeper protocol."""
    return struct.pack(">i", len(payload)) + payload


def read_request(xid: int, kind: int, path: bytes, watch: bool) -> bytes:
    """Return a request for data or children."""
    return frame(struct.pack(">iii", xid, kind, len(path)) + path + bytes([watch]))


class BrokerSession:
    """A ZooKeeper session that reads notifications as a broker does."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.sendall(frame(struct.pack(">iqiqi", 0, 0, SESSION_MS, 0, 16) + bytes(17)))
        self._buffer = bytearray()
        self._pending: deque[str] = deque(["connect"])
        self._newest = -1
        self.notifications = self.configs = self.bytes = 0
        self._request("children", _GET_CHILDREN, CHANGES, watch=True)

    @property
    def is_done(self) -> bool:
        """Whether all requests were answered."""
        return not self._pending

    def receive(self) -> None:
        """Process the received packets and send the requests that follow from them."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise ConnectionError("ZooKeeper closed a session")
        self.bytes += len(chunk)
        self._buffer += chunk
        at = 0
        while len(self._buffer) - at >= 4:
            (size,) = struct.unpack_from(">i", self._buffer, at)
            if len(self._buffer) - at - 4 < size:
                break
            self._process(bytes(self._buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        del self._buffer[:at]

    def ping(self) -> None:
        """Keep the session alive."""
        self.socket.sendall(frame(struct.pack(">ii", _PING_REPLY, _PING)))

    def _request(self, expected: str, kind: int, path: bytes, watch: bool = False) -> None:
        self._pending.append(expected)
        self.socket.sendall(read_request(1, kind, path, watch))

    def _process(self, packet: bytes) -> None:
        if self._pending and self._pending[0] == "connect":
            self._pending.popleft()
            return
        (xid,) = struct.unpack_from(">i", packet)
        if xid == _WATCH_EVENT:
            self._request("children", _GET_CHILDREN, CHANGES, watch=True)
        elif xid != _PING_REPLY:
            expected, (error,) = self._pending.popleft(), struct.unpack_from(">i", packet, 12)
            if expected == "children":
                self._read_new(packet)
            elif expected == "notification" and not error:  # on an error the notification was already removed
                self._read_config(packet)
            elif expected == "config":
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
            self._request("notification", _GET_DATA, CHANGES + b"/" + name)

    def _read_config(self, packet: bytes) -> None:
        (size,) = struct.unpack_from(">i", packet, 16)
        self.notifications += 1
        entity = json.loads(packet[20 : 20 + size])["entity_path"]
        self._request("config", _GET_DATA, CONFIG + entity.encode())


def main(connect: str, sessions: int) -> None:
    """Read notifications until SIGTERM."""
    give_way(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    host, _, port = connect.partition(",")[0].rpartition(":")
    broker_sessions = [BrokerSession((host, int(port))) for _ in range(sessions)]
    selector = selectors.DefaultSelector()
    for broker in broker_sessions:
        selector.register(broker.socket, selectors.EVENT_READ, broker)
    reported, last_read, pinged = -1, time.time(), time.monotonic()
    while True:
        for key, _ in selector.select(QUIET_SECONDS):
            before = key.data.notifications, key.data.configs
            key.data.receive()
            if before != (key.data.notifications, key.data.configs):
                last_read = time.time()
        if time.monotonic() - pinged > PING_SECONDS:
            pinged = time.monotonic()
            for broker in broker_sessions:
                broker.ping()
        total = sum(broker.configs for broker in broker_sessions)
        if (
            total != reported
            and time.time() - last_read > QUIET_SECONDS
            and all(broker.is_done for broker in broker_sessions)
        ):
            reported = total
            usage = resource.getrusage(resource.RUSAGE_SELF)
            report = {
                "sessions": sessions,
                "notifications": [
                    min(b.notifications for b in broker_sessions),
                    max(b.notifications for b in broker_sessions),
                ],
                "configs": total,
                "megabytes": round(sum(broker.bytes for broker in broker_sessions) / 1e6, 1),
                "last": last_read,
                "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
