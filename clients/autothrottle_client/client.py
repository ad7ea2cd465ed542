"""Clients for operators: their base class, and the client of the planners.

One of the planners leads; the others name the leader's address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Self, TypeVar

from autothrottle.core.records import PlannerState
from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle_client.call_metadata import ThrottleTimes, validate_token
from autothrottle_client.errors import AutothrottleError, NotLeader
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
from autothrottle_client.watch import DEFAULT_OUTAGE, DEFAULT_SILENCE, CycleWatch

_LEADER_TIMEOUT = timedelta(seconds=2)
"""Timeout of the leader's own answer; without one, the follower's answer is returned."""

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
    ) -> None:
        """Create the client; the first call connects.

        Args:
            addresses: of all replicas, at least one `host:port` or `unix:path`; a string is a comma-separated list.
            timeout: for each call with all its attempts, > 0 and at most one day.
            tls: key and certificates of mutual TLS; None: plain connections.
            token: names the caller to the service; "": none. It is not sent over a plain connection to another host.
            client_id: names this program for request quotas, 1 to 128 printable ASCII characters; "": none.

        Raises:
            Invalid: an address, the timeout, a certificate, the token or the client id is invalid.
        """
        self.throttle_times = ThrottleTimes(client_id)
        """How long request quotas have delayed the responses so far."""
        connection = Connection(
            timeout=validate_timeout(timeout),
            certificates=Certificates(tls) if tls else None,
            token=validate_token(token),
            interceptors=(self.throttle_times,),
            waits=True,
            has_leader=True,
        )
        super().__init__(parse_addresses(addresses), connection)
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
        watch = CycleWatch(replicas, self._locate, outage, silence, on_loss, on_check)
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
        return self._replicas.leader_state(_state, leader_timeout=_LEADER_TIMEOUT)

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
