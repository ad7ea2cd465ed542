"""Clients for operators: their base class, the client of the planners, and the cycles of the current leader.

One of the planners leads; the others name the leader's address. `CycleWatch` is the endless sequence of the leader's
cycles, across changes of leader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Protocol, Self, TypeVar

import grpc

from autothrottle.core.records import Cycle, PlannerState
from autothrottle.core.retries import CALL
from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle_client.call_metadata import ThrottleTimes, validate_token
from autothrottle_client.errors import AutothrottleError, NotLeader, Unavailable, from_rpc_error
from autothrottle_client.model import from_message
from autothrottle_client.replicas import (
    DEFAULT_TIMEOUT,
    Connection,
    Replica,
    Replicas,
    StubClient,
    parse_addresses,
    validate_timeout,
)
from autothrottle_client.tls import Certificates, Tls

DEFAULT_OUTAGE = timedelta(seconds=60)
"""Longest time without a leader. A failover takes one session timeout, which is at most that long."""

DEFAULT_SILENCE = timedelta(seconds=10)
"""Longest silence of a stream before the watch checks that its planner still leads."""

_ASK_TIMEOUT = timedelta(seconds=2)
"""Timeout of the search for the leader, and of the leader's own state; without it, the follower's state is returned."""

Locate = Callable[[Replicas, timedelta], str]
"""Returns the address of the leading planner within a timeout."""


class _Stream(Protocol):
    """An open `WatchCycles` stream."""

    def __next__(self) -> planner_pb2.WatchCyclesResponse: ...

    def cancel(self) -> object: ...


class CycleWatch:
    """Iterates over the cycles of the current leader as they end, starting with the leader's last cycle.

    For one thread. The watch reopens a broken stream at the current leader. It notices a planner that is alive but
    lost its term after `silence`. Each cycle comes once, in the order of (term, number). Of the cycles that end
    while no stream is open, only the latest is returned.
    """

    def __init__(
        self,
        replicas: Replicas,
        locate: Locate,
        outage: timedelta,
        silence: timedelta,
        on_loss: Callable[[AutothrottleError], None],
        on_check: Callable[[AutothrottleError | None], None] = lambda error: None,
    ) -> None:
        """Find the leader.

        Args:
            replicas: the service that knows the leader; closed with the watch.
            locate: asks the replicas for the leader.
            outage: longest time without a leader, > 0.
            silence: see the class, > 0.
            on_loss: called once each time the leader is lost; the watch then looks for the leader itself.
            on_check: called after each silence with None if the planner still leads, or why that is unknown.

        Raises:
            Unavailable: no leader is found within the timeout of the connection.
        """
        self._replicas, self._locate = replicas, locate
        self._on_loss, self._on_check = on_loss, on_check
        self._outage = validate_timeout(outage).total_seconds()
        self._silence = validate_timeout(silence).total_seconds()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._channel = ExitStack()
        self._moved = self._lost = False
        self._backoffs = CALL.waits()
        self._newest = (0, 0)
        self._address = self._find(replicas.connection.timeout)
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._check, name="cycle-watch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Cycle]:
        return self

    def __next__(self) -> Cycle:
        """Wait for the next cycle.

        Raises:
            Unavailable: there was no leader for `outage`.
        """
        while not self._closed.is_set():
            try:
                cycle = self._receive()
            except (Unavailable, NotLeader) as error:
                self._recover(error)
                continue
            if (cycle.term, cycle.number) > self._newest:
                self._newest = (cycle.term, cycle.number)
                return cycle
        raise StopIteration

    def close(self) -> None:
        """End the watch, from any thread and also during a wait. Idempotent."""
        self._closed.set()
        self._replicas.close()  # ends the stream and any other call
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> CycleWatch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed.is_set()

    def _receive(self) -> Cycle:
        stream = self._open_stream()
        try:
            message = next(stream)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._address) from error
        except StopIteration:
            raise Unavailable(f"{self._address} ended the stream of its cycles") from None
        self._heard, self._lost = time.monotonic(), False
        self._backoffs = CALL.waits()
        return from_message(Cycle, message.cycle)

    def _open_stream(self) -> _Stream:
        with self._lock:
            if self._stream is None:
                if not self._address:
                    self._address = self._find(_ASK_TIMEOUT)
                leader = self._channel.enter_context(self._replicas.at(self._address))
                self._stream = PlannerServiceStub(leader.channel).WatchCycles(planner_pb2.WatchCyclesRequest())
            return self._stream

    def _find(self, timeout: timedelta) -> str:
        try:
            return self._locate(self._replicas, timeout)
        except NotLeader as error:
            raise Unavailable(f"no planner leads at the moment: {error}; try again in a few seconds") from error

    def _recover(self, error: AutothrottleError) -> None:
        """Forget the stream, and wait before the next attempt."""
        with self._lock:
            moved, self._moved = self._moved, False
            self._stream, self._address = None, ""
            self._channel.close()
        if self._closed.is_set() or moved:
            return
        if not self._lost:
            self._lost = True
            self._on_loss(error)
        if time.monotonic() - self._heard > self._outage:
            raise Unavailable(f"no leading planner could be watched for {self._outage:g} s: {error}")
        self._closed.wait(next(self._backoffs))

    def _check(self) -> None:
        """Locate the leader again after each silence: a planner that lost its term sends nothing."""
        while not self._closed.wait(max(self._heard + self._silence - time.monotonic(), self._silence / 4)):
            if time.monotonic() - self._heard >= self._silence and self._stream is not None:
                self._compare()

    def _compare(self) -> None:
        try:
            leader = self._locate(self._replicas, _ASK_TIMEOUT)
        except AutothrottleError as error:
            return self._on_check(error)
        with self._lock:
            if self._stream is None:
                return
            if leader == self._address:
                self._heard, self._lost = time.monotonic(), False
            else:
                self._moved = True
                self._stream.cancel()
                return
        self._on_check(None)


_Stub = TypeVar("_Stub")


class Client(StubClient[_Stub]):
    """A thread-safe client of one service for operators: it waits for the service until its deadline."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        timeout: timedelta = DEFAULT_TIMEOUT,
        tls: Tls | None = None,
        token: str = "",
        client_id: str = "",
        on_silence: Callable[[str], None] | None = None,
    ) -> None:
        """Create the client; the first call connects.

        Args:
            addresses: of all replicas, at least one `host:port` or `unix:path`; a string is a comma-separated list.
            timeout: for each call with all its attempts, > 0 and at most one day.
            tls: key and certificates of mutual TLS; None: plain connections.
            token: names the caller to the service; "": none. It is not sent over a plain connection to another host.
            client_id: names this program for request quotas, 1 to 128 printable ASCII characters; "": none.
            on_silence: receives a sentence, once and in another thread, if the first call has no answer soon.

        Raises:
            Invalid: an address, the timeout, a certificate, the token or the client id is invalid.
        """
        self.throttle_times = ThrottleTimes(client_id)
        """How long request quotas have delayed the responses so far."""
        servers = parse_addresses(addresses)
        bearer = validate_token(token)
        sentence = f"waiting for autothrottle's {self.service} service at {', '.join(servers)} ..."
        connection = Connection(
            timeout=validate_timeout(timeout),
            certificates=Certificates(tls) if tls else None,
            token=(lambda: bearer) if bearer else None,
            interceptors=(self.throttle_times,),
            waits=True,
            has_leader=True,
            on_silence=partial(on_silence, sentence) if on_silence else None,
        )
        super().__init__(servers, connection)
        self._watches: list[CycleWatch] = []

    def close(self) -> None:
        """Close all watches and connections. Idempotent."""
        for watch in self._watches:
            watch.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def watch_cycles(
        self,
        outage: timedelta = DEFAULT_OUTAGE,
        silence: timedelta = DEFAULT_SILENCE,
        on_loss: Callable[[AutothrottleError], None] = lambda error: None,
        on_check: Callable[[AutothrottleError | None], None] = lambda error: None,
    ) -> CycleWatch:
        """Return an iterator over the cycles of the current leader. The leader's address must be reachable from here.

        Args:
            outage: longest time without a leader, > 0; after it the iterator raises Unavailable.
            silence: longest time without a message before the client locates the leader again, > 0.
            on_loss: called once each time the leader is lost.
            on_check: called after each silence with None if the planner still leads, or why that is unknown.

        Raises:
            Unavailable: no leader is found in time.
        """
        # Separate connections, which close with the watch.
        replicas = Replicas(self.service, self._replicas.addresses, self._replicas.connection)
        try:
            watch = CycleWatch(replicas, self._locate, outage, silence, on_loss, on_check)
        except AutothrottleError:
            replicas.close()
            raise
        self._watches = [w for w in self._watches if not w.closed] + [watch]
        return watch

    def _locate(self, replicas: Replicas, timeout: timedelta) -> str:
        """Return the address of the leading planner, as a replica knows it.

        Raises:
            NotLeader: the leader is unknown.
        """
        raise NotImplementedError


class PlannerClient(Client[PlannerServiceStub]):
    """Client of the leading planner. The leader may be at any given address, or at an address that a planner names."""

    service = "planner"
    stub = PlannerServiceStub

    def state(self) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer.

        Raises:
            Unavailable: no planner answers in time.
        """
        return self._replicas.leader_state(_state, leader_timeout=_ASK_TIMEOUT)

    def run_cycle(self, reason: str = "") -> None:
        """Ask the leader for a cycle without waiting for it. Idempotent: several requests may share one cycle.

        Args:
            reason: shown in the log.

        Raises:
            NotLeader: no planner that answers leads or knows the leader.
            Unavailable: no planner answers in time, or the leader does not.
        """
        self._unary(lambda planner: planner.RunCycle, planner_pb2.RunCycleRequest(reason=reason))

    def _locate(self, replicas: Replicas, timeout: timedelta) -> str:
        def ask(peer: Replica, seconds: float) -> str:
            state = _state(peer, seconds, without_cycle=True)
            if not state.leading and not state.leader_address:
                raise NotLeader("this planner does not know the leader")
            return peer.target if state.leading else state.leader_address

        return replicas.call(ask, timeout)


def _state(peer: Replica, seconds: float, without_cycle: bool = False) -> PlannerState:
    request = planner_pb2.GetStateRequest(without_cycle=without_cycle)
    return from_message(PlannerState, PlannerServiceStub(peer.channel).GetState(request, timeout=seconds))
