"""The replicas of one service: one channel per replica, one deadline for all attempts, and the retry rules.

Only Unavailable and NotLeader are retried; any other answer is final. The type to know is `Replicas`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import grpc

from autothrottle_client.errors import Invalid, NotLeader, Unavailable, from_rpc_error
from autothrottle_client.tls import Tls

DEFAULT_TIMEOUT = timedelta(seconds=10)

MAX_TIMEOUT = timedelta(days=1)

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    # The last cycle of a large cluster has thousands of decisions.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # An open stream notices within 15 s that its peer is frozen.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first option also bounds one connection attempt: an address that drops packets costs 1 s, not 20 s.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # This module decides about retries. gRPC's own retry (1.85) loses one of some dozens of calls that begin while
    # their server stops; such a call outlives even its deadline.
    ("grpc.enable_retries", 0),
)

_FIRST_BACKOFF, _LAST_BACKOFF = 0.1, 2.0
"""Seconds between two rounds over all addresses; doubles each round."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[1-9][0-9]{0,4})|unix:(?P<path>[^\s,]+)")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Peer:
    """One replica."""

    address: str
    channel: grpc.Channel


Rpc = Callable[[Peer, float], _T]
"""Calls one replica with a deadline in seconds."""


def backoffs() -> Iterator[float]:
    """Yield the seconds to wait after each attempt, without end."""
    seconds = _FIRST_BACKOFF
    while True:
        yield seconds
        seconds = min(2 * seconds, _LAST_BACKOFF)


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return addresses, each `host:port` or `unix:path`. A string is a comma-separated list.

    >>> parse_addresses("10.0.0.1:8090, [::1]:8090,unix:/run/autothrottle")
    ('10.0.0.1:8090', '[::1]:8090', 'unix:/run/autothrottle')

    Raises:
        Invalid: an address is malformed, or the list is empty.
    """
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(dict.fromkeys(address.strip() for address in given))
    for address in found or ("",):
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"] or 1) > 65535 or not address.isprintable():
            raise Invalid(
                f"address {address[:200]!r} is neither host:port (port 1 to 65535) nor a printable unix:path; "
                "give for example 127.0.0.1:8090, or several separated by commas"
            )
    return found


def validate_timeout(timeout: timedelta) -> timedelta:
    """Return the timeout if it is valid.

    Raises:
        Invalid: the timeout is not above 0 and at most one day.
    """
    if not timedelta(0) < timeout <= MAX_TIMEOUT:
        raise Invalid(f"timeout {timeout} is outside (0, {MAX_TIMEOUT}]; give some seconds")
    return timeout


class Replicas:
    """The replicas of one service. Thread-safe. A call starts with the replica that answered last."""

    def __init__(
        self,
        service: str,
        addresses: str | Sequence[str],
        timeout: timedelta = DEFAULT_TIMEOUT,
        tls: Tls | None = None,
    ) -> None:
        """Create the replicas without connecting.

        Args:
            service: name of the service in errors.
            addresses: at least one `host:port` or `unix:path`; a string is a comma-separated list.
            timeout: for each call with all its attempts, > 0 and at most one day.
            tls: key and certificates of mutual TLS; None: plain connections.

        Raises:
            Invalid: an address or the timeout is invalid.
        """
        self.service = service
        self.addresses = parse_addresses(addresses)
        self.timeout = validate_timeout(timeout)
        self.tls = tls
        self._preferred = self.addresses[0]
        self._channels: dict[str, grpc.Channel] = {}
        self._stamp = tls.stamp() if tls else None
        self._outdated: list[grpc.Channel] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def call(self, rpc: Rpc[_T], timeout: timedelta | None = None) -> _T:
        """Return the result of `rpc` from the first replica that succeeds, or from the leader that a replica names.

        Args:
            rpc: the call, which must be safe to repeat.
            timeout: for all attempts together; None: the default of these replicas.

        Raises:
            NotLeader: no replica that answers leads or knows the leader.
            Unavailable: no replica succeeds in time; the message names every address.
            AutothrottleError: any other error of a replica.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit.total_seconds()
        for backoff in backoffs():
            round_ = _Round(self, deadline)
            for peer in round_.peers():
                try:
                    result = round_.attempt(rpc, peer)
                except _TryNext:
                    continue
                self._preferred = peer.address
                return result
            if time.monotonic() + backoff >= deadline or self._closed.wait(backoff):
                raise round_.failure()
        raise AssertionError("backoffs never end")

    def call_once(self, rpc: Rpc[_T], probe: Rpc[object], timeout: timedelta | None = None) -> _T:
        """Send `rpc` once, to a replica that has just answered `probe`, and return its result.

        Args:
            rpc: the call, which must not be repeated.
            probe: a call that is safe to repeat.
            timeout: for `rpc`; None: the rest of the default timeout after the probe.

        Raises:
            Unavailable: no replica answers the probe, or `rpc` got no answer. In the second case it may have succeeded.
            AutothrottleError: any other error of a replica.
        """
        deadline = time.monotonic() + self.timeout.total_seconds()

        def answering(peer: Peer, seconds: float) -> Peer:
            probe(peer, seconds)
            return peer

        peer = self.call(answering)
        try:
            left = deadline - time.monotonic() if timeout is None else timeout.total_seconds()
            return _invoke(rpc, peer, max(left, 0.001))
        except Unavailable as error:
            self.deprioritize(peer.address)
            raise Unavailable(f"{error}. The call may have succeeded: check the state before you repeat it") from error

    def peer(self, address: str) -> Peer:
        """Return the replica at an address, which may be outside the given addresses.

        Raises:
            Unavailable: the client is closed.
        """
        with self._lock:
            if self._closed.is_set():
                raise Unavailable(f"the client of {self.service} is closed; create a new one")
            self._reload_certificates()
            if address not in self._channels:
                self._channels[address] = self._open(address)
            return Peer(address, self._channels[address])

    def _reload_certificates(self) -> None:
        """Use new channels after certificates were renewed. Calls in progress continue on the old channels."""
        stamp = self.tls.stamp() if self.tls else None
        if self.tls is None or stamp in (None, self._stamp) or not self.tls.is_whole():
            return
        self._stamp = stamp
        self._outdated += self._channels.values()
        self._channels.clear()

    def _open(self, address: str) -> grpc.Channel:
        if self.tls is None or address.startswith("unix:"):
            return grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS))
        return self.tls.channel(address, CHANNEL_OPTIONS)

    def deprioritize(self, address: str) -> None:
        """Start the next call with another address, if it would have started with this one."""
        if self._preferred == address:
            known = self.addresses
            self._preferred = known[(known.index(address) + 1) % len(known)] if address in known else known[0]

    def order(self) -> list[str]:
        """Return the addresses in the order of attempts."""
        return list(dict.fromkeys((self._preferred, *self.addresses)))

    def close(self) -> None:
        """Close all channels; calls in progress end as unavailable. Idempotent."""
        with self._lock:
            self._closed.set()
            for channel in (*self._channels.values(), *self._outdated):
                channel.close()


class _TryNext(Exception):
    """This replica failed; another one may succeed."""


class _Round:
    """One attempt at each address, and at the leader that a replica names."""

    def __init__(self, replicas: Replicas, deadline: float) -> None:
        self._replicas, self._deadline = replicas, deadline
        self._waiting = replicas.order()
        self._tried: set[str] = set()
        self._failures: list[str] = []
        self._no_leader: NotLeader | None = None

    def peers(self) -> Iterator[Peer]:
        while self._waiting:
            address = self._waiting.pop(0)
            self._tried.add(address)
            if self._left() <= 0 and self._failures:
                self._failures.append(f"{address}: not tried, out of time")
            else:
                yield self._replicas.peer(address)

    def attempt(self, rpc: Rpc[_T], peer: Peer) -> _T:
        """Call one replica.

        Raises:
            _TryNext: another replica may succeed.
        """
        # A hanging replica must not use up the time of the others.
        seconds = max(self._left(), 0.001) / (len(self._waiting) + 1)
        try:
            return _invoke(rpc, peer, seconds)
        except NotLeader as refusal:
            self._refer(peer, refusal)
        except Unavailable as failure:
            self._failures.append(str(failure))
        self._replicas.deprioritize(peer.address)
        raise _TryNext

    def failure(self) -> Unavailable | NotLeader:
        """Return the error of a round without success."""
        if self._no_leader is not None:
            return self._no_leader
        return Unavailable(
            f"{self._replicas.service} is unavailable: {'; '.join(self._failures)}. "
            "Fix: check that it runs and listens at these addresses, then try again"
        )

    def _refer(self, peer: Peer, refusal: NotLeader) -> None:
        leader = refusal.leader_address
        self._failures.append(f"{peer.address}: {refusal}")
        if not leader:
            self._no_leader = refusal
        elif leader not in self._tried:
            self._waiting = [leader, *(address for address in self._waiting if address != leader)]

    def _left(self) -> float:
        return self._deadline - time.monotonic()


def _invoke(rpc: Rpc[_T], peer: Peer, seconds: float) -> _T:
    """Return the result of a call; raise the client's errors instead of gRPC's."""
    try:
        return rpc(peer, seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error, peer.address, seconds) from error
    except ValueError as error:  # grpc raises it for a closed channel
        raise Unavailable(f"{peer.address}: {error}") from error
