"""Connections and file descriptors of a process: how many callers may hold, in total and per host.

A process that has no free descriptor cannot reach ZooKeeper or Kafka. So callers get a part of the descriptors only.
The types to know are `ConnectionLimit`, for a port whose connections gRPC accepts, and `RefusalLog`.
"""

from __future__ import annotations

import heapq
import ipaddress
import logging
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import NamedTuple

from autothrottle.core.retries import CONNECTION_COUNT

MOST_GRPC_CONNECTIONS = 500
"""Connections to a gRPC port over TCP. One host gets half of them."""

_BURST, _TLS_BURST = 8, 1.5
"""gRPC accepts this many times the limit; `ConnectionLimit` closes the rest at its next turn.

A TLS connection takes 40 kB, which the process keeps. Beyond the lower number, gRPC refuses callers until that turn.
Their clients try again.
"""

_HANDSHAKE_SECONDS, _IDLE_SECONDS = 10.0, 300.0

_PERIOD_SECONDS = 0.05
"""Time between two turns. A turn without many descriptors takes 0.03 ms."""

_REST = 1
"""Time between two turns, at least this many times as long as the last turn: 2,000 connections take 30 ms."""

_MOST_DESCRIPTORS = 1 << 20
"""The limit of a process for which the system sets none."""

_DESCRIPTORS = "/dev/fd"
"""The directory with one entry for each open descriptor of this process, on Linux and macOS."""

_LEAST_FREE, _MOST_FREE = 0.1, 256
"""A process is not ready below this share of free descriptors, or this number if it is less."""

LOG_SPACING_SECONDS = 60.0
"""Time between two log lines about closed connections of a port."""

_TCP_INFO = struct.Struct("8x24I4Q")
"""Linux' `struct tcp_info` up to `tcpi_bytes_received`."""

_LAST_RECEIVED, _BYTES_RECEIVED = 11, 27
"""Positions in it: milliseconds since data were received or the connection was made, and bytes received."""

logger = logging.getLogger(__name__)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open descriptors to the hard limit. systemd's soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= highest:
        return
    with suppress(ValueError, OSError):  # macOS has a lower limit, which it does not report
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


def descriptor_limit() -> int:
    """Return how many descriptors this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def descriptors_problem() -> str | None:
    """Check that the process has free descriptors; return the problem."""
    try:
        count = len(os.listdir(_DESCRIPTORS))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"the descriptors of this process cannot be counted: {error.strerror}; {_FIX}"
    limit = descriptor_limit()
    if limit - count >= min(limit * _LEAST_FREE, _MOST_FREE):
        return None
    return f"{count} of {limit} file descriptors are open; new connections may fail. {_FIX}"


_FIX = "Fix: raise the hard limit (LimitNOFILE, ulimit -Hn), and find the callers with `ss -tnp`"


def host_of(address: str) -> str:
    """Return by what the callers at an IP address are counted: the address, or its /64 in IPv6.

    >>> host_of("10.0.0.1"), host_of("::ffff:10.0.0.1"), host_of("2001:db8:1:2:a::7")
    ('10.0.0.1', '10.0.0.1', '2001:db8:1:2::/64')
    """
    if ":" not in address:
        return address
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


def share_of_descriptors(most: int, part: int) -> int:
    """Return a limit of connections: `most`, or one `part`-th of the descriptors if they are few."""
    return max(2, min(most, descriptor_limit() // part))


def grpc_options(tls: bool) -> list[tuple[str, int]]:
    """Return the options of a gRPC server on a TCP port."""
    most = int(MOST_GRPC_CONNECTIONS * (_TLS_BURST if tls else _BURST))
    return [
        ("grpc.max_allowed_incoming_connections", share_of_descriptors(most, 2)),
        # It also ends connections that never send a byte. The default is two minutes.
        ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_SECONDS * 1000)),
        # Clients connect again for their next call.
        ("grpc.max_connection_idle_ms", int(_IDLE_SECONDS * 1000)),
    ]


class RefusalLog:
    """Logs closed connections of a port: one line per minute, with the number and the busiest host. Thread-safe."""

    def __init__(
        self,
        port: str,
        clock: Callable[[], float] = time.monotonic,
        cause: str = "too many connections",
        rule: str = ", the least active ones first",
    ) -> None:
        """`port` names the port; `clock` returns monotonic seconds; `cause` and `rule` say why which were closed."""
        self._port, self._clock, self._cause, self._rule = port, clock, cause, rule
        self._closed: Counter[str] = Counter()
        self._next = clock()
        self._lock = threading.Lock()

    def add(self, closed: Iterable[str]) -> None:
        """Count closed connections, one for each host in `closed`."""
        with self._lock:
            self._closed.update(closed)

    def write(self) -> None:
        """Log the connections closed since the last line, if there are any and a minute has passed."""
        with self._lock:
            now = self._clock()
            if not self._closed or now < self._next:
                return
            self._next = now + LOG_SPACING_SECONDS
            counts, self._closed = self._closed, Counter()
        ((host, most),) = counts.most_common(1)
        logger.warning(
            "%s has %s: closed %d, of which %d came from %s%s. "
            "Fix: end the connections of that host; docs/security.md has the limits",
            self._port,
            self._cause,
            counts.total(),
            most,
            host,
            self._rule,
        )


class _Connection(NamedTuple):
    """A connection that gRPC has accepted."""

    host: str
    bytes_received: int
    idle_seconds: float
    peer: tuple[object, ...]
    """The caller's address and port."""
    descriptor: int


class ConnectionLimit:
    """Closes connections to a gRPC port beyond the limits, in a thread of its own.

    gRPC cannot count connections by host. It accepts them all up to `grpc.max_allowed_incoming_connections`. This
    thread then looks at the process's sockets and shuts down the least active connections of the busiest hosts: those
    with the fewest received bytes, the longest idle ones first.
    """

    def __init__(self, name: str, address: str, total: int = 0, of_host: int = 0) -> None:
        """Start nothing yet.

        Args:
            name: the server's name in the log.
            address: `host:port` of the listening socket.
            total: limit of all connections; 0: `MOST_GRPC_CONNECTIONS`, or less if there are few descriptors.
            of_host: limit of one host; 0: half of the total.
        """
        self._total = total or share_of_descriptors(MOST_GRPC_CONNECTIONS, 4)
        self._of_host = of_host or self._total // 2
        self._port = int(address.rpartition(":")[2])
        self._log = RefusalLog(f"gRPC port {address} of {name}")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-connections", daemon=True)

    def start(self) -> None:
        """Apply the limits until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._ended.set()

    def enforce(self) -> None:
        """Close the connections beyond the limits."""
        names = os.listdir(_DESCRIPTORS)
        if len(names) <= self._of_host:
            return self._log.write()
        connections = [connection for name in names if (connection := _connection(int(name), self._port))]
        excess = _excess(connections, self._total, self._of_host)
        for connection in excess:
            _shut_down(connection)
        self._log.add(connection.host for connection in excess)
        self._log.write()

    def _run(self) -> None:
        pause = _PERIOD_SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                self.enforce()
            except OSError as error:
                logger.warning("Cannot count connections: %s. The next attempt follows in a minute", error)
                self._ended.wait(CONNECTION_COUNT.first)
            pause = max(_PERIOD_SECONDS, _REST * (time.monotonic() - began))


def _excess(connections: Collection[_Connection], total: int, of_host: int) -> list[_Connection]:
    """Return the connections beyond the limits, the least active ones of each host."""
    by_host: dict[str, list[_Connection]] = defaultdict(list)
    for connection in sorted(connections, key=attrgetter("idle_seconds")):
        by_host[connection.host].append(connection)
    excess = []
    for group in by_host.values():
        group.sort(key=attrgetter("bytes_received"), reverse=True)
        excess += group[of_host:]
        del group[of_host:]
    busiest = [(-len(group), host) for host, group in by_host.items()]
    heapq.heapify(busiest)
    for _ in range(len(connections) - len(excess) - total):
        count, host = busiest[0]
        excess.append(by_host[host].pop())
        heapq.heapreplace(busiest, (count + 1, host))
    return excess


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object for a descriptor, which stays open. It may also be another file: then calls fail."""
    # The family is only the size of addresses: those of IPv4 are shorter. Python would read it with three calls.
    connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def _connection(descriptor: int, port: int) -> _Connection | None:
    """Return the connection of a descriptor; None: it is not an established connection to this port of ours."""
    with suppress(OSError), _borrowed(descriptor) as connection:
        own = connection.getsockname()
        if isinstance(own, tuple) and own[1] == port:
            peer = connection.getpeername()
            return _Connection(host_of(peer[0]), *_activity(connection), peer, descriptor)
    return None


def _shut_down(connection: _Connection) -> None:
    """Let gRPC read the end of a connection, and close it."""
    with suppress(OSError):
        duplicate = os.dup(connection.descriptor)  # gRPC may close it now, and the number is then used again
        try:
            with _borrowed(duplicate) as accepted:
                if accepted.getpeername() == connection.peer:
                    accepted.shutdown(socket.SHUT_RDWR)
        finally:
            os.close(duplicate)


def _activity(connection: socket.socket) -> tuple[int, float]:
    """Return the bytes received on a connection, and the seconds since the last of them; (0, 0.0) if not known."""
    option = getattr(socket, "TCP_INFO", None)
    info = b"" if option is None else connection.getsockopt(socket.IPPROTO_TCP, option, 256)
    if len(info) < _TCP_INFO.size:
        return 0, 0.0
    fields = _TCP_INFO.unpack_from(info)
    return fields[_BYTES_RECEIVED], fields[_LAST_RECEIVED] / 1000
