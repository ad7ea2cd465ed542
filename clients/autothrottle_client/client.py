"""Base classes of clients: one service, its replicas, and calls of its methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Generic, Self, TypeVar

import grpc

from autothrottle_client.addresses import parse_addresses
from autothrottle_client.bearer_token import validate_token
from autothrottle_client.errors import AutothrottleError
from autothrottle_client.replicas import DEFAULT_TIMEOUT, Connection, Replica, Replicas, Rpc, validate_timeout
from autothrottle_client.throttle_times import ThrottleTimes
from autothrottle_client.tls import Certificates, Tls
from autothrottle_client.watch import DEFAULT_OUTAGE, DEFAULT_SILENCE, CycleWatch

_Stub = TypeVar("_Stub")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class StubClient(Generic[_Stub]):
    """A thread-safe client of one service. Operators' clients and those between services derive from it."""

    service = ""
    """Name of the service in errors."""
    stub: Callable[[grpc.Channel], _Stub]
    """The generated client."""

    def __init__(self, addresses: Sequence[str], connection: Connection) -> None:
        """Create the client; the first call connects."""
        self._replicas = Replicas(self.service, addresses, connection)

    def close(self) -> None:
        """Close the connections; calls in progress end as unavailable. Idempotent."""
        self._replicas.close()

    def _unary(
        self,
        method: Callable[[_Stub], grpc.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        timeout: timedelta | None = None,
        probe: Rpc[object] | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> _Response:
        """Call a unary method like `lambda planner: planner.RunCycle`. `Replicas.call` documents timeout and probe."""

        def rpc(replica: Replica, seconds: float) -> _Response:
            return method(self.stub(replica.channel))(request, timeout=seconds, metadata=tuple(metadata))

        return self._call(rpc, timeout, probe)

    def _call(self, rpc: Rpc[_Response], timeout: timedelta | None, probe: Rpc[object] | None = None) -> _Response:
        return self._replicas.call(rpc, timeout, probe)


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
