"""The replicas of one service: a channel each, one deadline for all attempts, and what may be tried again.

What is worth another attempt is Unavailable and NotLeader; any other answer is final. The type to know is `Replicas`.
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
    # An open stream notices within 15 s that the other side is frozen.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first also bounds one attempt to connect: an address that swallows packets costs 1 s, not 20 s.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # What is tried again is decided here. gRPC's own retry (1.85) loses one of some dozens of calls that begin while
    # their server stops, and then not even the deadline ends them.
    ("grpc.enable_retries", 0),
)

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 2.0
"""Seconds between two rounds over all addresses; doubled each time."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[1-9][0-9]{0,4})|unix:(?P<path>[^\s,]+)")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Peer:
    """One replica."""

    address: str
    channel: grpc.Channel


Rpc = Callable[[Peer, float], _T]
"""Makes one call on a replica within so many seconds."""


def pauses() -> Iterator[float]:
    """Yield the seconds to wait after each attempt, for ever."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LAST_PAUSE)


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return addresses, each of which is `host:port` or `unix:path`; a text is a comma list of them.

    >>> parse_addresses("10.0.0.1:8090, [::1]:8090,unix:/run/autothrottle")
    ('10.0.0.1:8090', '[::1]:8090', 'unix:/run/autothrottle')

    Raises:
        Invalid: when one is neither, or there is none.
    """
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(dict.fromkeys(address.strip() for address in given))
    for address in found or ("",):
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"] or 1) > 65535 or not address.isprintable():
            raise Invalid(
                f"address {address[:200]!r} is neither host:port (port 1 to 65535) nor a printable unix:path; "
                "give for example 127.0.0.1:8090, several with commas between"
            )
    return found


def validate_timeout(timeout: timedelta) -> timedelta:
    """Return a time-out, or say what is wrong with it.

    Raises:
        Invalid: when it is not above 0 and at most a day.
    """
    if not timedelta(0) < timeout <= MAX_TIMEOUT:
        raise Invalid(f"timeout {timeout} is outside of (0, {MAX_TIMEOUT}]; give some seconds")
    return timeout


class Replicas:
    """The replicas of one service; calls begin with the one that answered last. Threads may share it."""

    def __init__(
        self,
        service: str,
        addresses: str | Sequence[str],
        timeout: timedelta = DEFAULT_TIMEOUT,
        tls: Tls | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            service: what errors call the other side.
            addresses: `host:port` or `unix:path`, at least one; a text is a comma list.
            timeout: for each call with all its attempts, > 0 and at most a day.
            tls: with which connections are made; None: they are plain.

        Raises:
            Invalid: when an address or the time-out is not as it must be.
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
        """Return what `rpc` returns for the first replica that does it, or for the leader that it names.

        Args:
            rpc: the call, which may be done twice.
            timeout: for all attempts together; None: that of these replicas.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Unavailable: when nobody does it in time; the message has every address.
            AutothrottleError: what a replica answered.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit.total_seconds()
        for pause in pauses():
            round_ = _Round(self, deadline)
            for peer in round_.peers():
                try:
                    result = round_.attempt(rpc, peer)
                except _Passed:
                    continue
                self._preferred = peer.address
                return result
            if time.monotonic() + pause >= deadline or self._closed.wait(pause):
                raise round_.failure()
        raise AssertionError("pauses never end")

    def call_once(self, rpc: Rpc[_T], probe: Rpc[object], timeout: timedelta | None = None) -> _T:
        """Return what `rpc` returns; it is sent once, to a replica that has just answered `probe`.

        Args:
            rpc: the call, which must not be done twice.
            probe: a call that may.
            timeout: for `rpc`; None: what the probe leaves of that of these replicas.

        Raises:
            Unavailable: when no replica answers the probe, or `rpc` got no answer, so that it may have been done.
            AutothrottleError: what a replica answered.
        """
        deadline = time.monotonic() + self.timeout.total_seconds()

        def answering(peer: Peer, seconds: float) -> Peer:
            probe(peer, seconds)
            return peer

        peer = self.call(answering)
        try:
            left = deadline - time.monotonic() if timeout is None else timeout.total_seconds()
            return _called(rpc, peer, max(left, 0.001))
        except Unavailable as error:
            self.pass_over(peer.address)
            raise Unavailable(f"{error}. It may have been done nevertheless: look, then decide") from error

    def peer(self, address: str) -> Peer:
        """Return the replica at an address, also at one that was not given.

        Raises:
            Unavailable: when this was closed.
        """
        with self._lock:
            if self._closed.is_set():
                raise Unavailable(f"the client of {self.service} is closed; make a new one")
            self._follow_renewals()
            if address not in self._channels:
                self._channels[address] = self._opened(address)
            return Peer(address, self._channels[address])

    def _follow_renewals(self) -> None:
        """Make connections anew when certificates were renewed; what is under way on the old ones goes on."""
        stamp = self.tls.stamp() if self.tls else None
        if self.tls is None or stamp in (None, self._stamp) or not self.tls.is_whole():
            return
        self._stamp = stamp
        self._outdated += self._channels.values()
        self._channels.clear()

    def _opened(self, address: str) -> grpc.Channel:
        if self.tls is None or address.startswith("unix:"):
            return grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS))
        return self.tls.channel(address, CHANNEL_OPTIONS)

    def pass_over(self, address: str) -> None:
        """Let the next call begin with another address, if it would have begun with this one."""
        if self._preferred == address:
            known = self.addresses
            self._preferred = known[(known.index(address) + 1) % len(known)] if address in known else known[0]

    def order(self) -> list[str]:
        """Return the addresses in the order in which they are tried."""
        return list(dict.fromkeys((self._preferred, *self.addresses)))

    def close(self) -> None:
        """Close all channels; what is under way on them ends as unavailable. Idempotent."""
        with self._lock:
            self._closed.set()
            for channel in (*self._channels.values(), *self._outdated):
                channel.close()


class _Passed(Exception):
    """This replica did not do it; another may."""


class _Round:
    """One attempt at each address, and at the leader that one of them names."""

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
                self._failures.append(f"{address}: not tried, the time was over")
            else:
                yield self._replicas.peer(address)

    def attempt(self, rpc: Rpc[_T], peer: Peer) -> _T:
        """Make the call.

        Raises:
            _Passed: when another replica may do it.
        """
        # A replica that hangs must not use up the time of the others.
        seconds = max(self._left(), 0.001) / (len(self._waiting) + 1)
        try:
            return _called(rpc, peer, seconds)
        except NotLeader as refusal:
            self._refer(peer, refusal)
        except Unavailable as failure:
            self._failures.append(str(failure))
        self._replicas.pass_over(peer.address)
        raise _Passed

    def failure(self) -> Unavailable | NotLeader:
        """Return why nobody did it."""
        if self._no_leader is not None:
            return self._no_leader
        return Unavailable(
            f"{self._replicas.service} is unavailable: {'; '.join(self._failures)}. "
            "Fix: see whether it runs and listens there, then try again"
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


def _called(rpc: Rpc[_T], peer: Peer, seconds: float) -> _T:
    """Return what a call returns; raises our errors instead of gRPC's."""
    try:
        return rpc(peer, seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error, peer.address, seconds) from error
    except ValueError as error:  # grpc's way to say that the channel was closed
        raise Unavailable(f"{peer.address}: {error}") from error
