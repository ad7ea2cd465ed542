"""The replicas of one service: name resolution, failover and rotation. The type to know is `Endpoints`.

gRPC cannot do this: it resolves a single name, takes no list of names and forgets which address has just failed.

An address is `host:port` or `unix:path`. Each IP address of a host name is a replica. A call looks the name up again
after 30 s; a failure of a replica does so at once.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from autothrottle.adapters.credentials.tls import Tls
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.wire.common import from_rpc_error

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Maximum size of a message in either direction; snapshot chunks are far smaller."""

KEEPALIVE_MS = 10_000
"""Interval of keepalive pings on an open stream. Our servers must allow it: with gRPC's default (5 minutes) they would
close the connection."""

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first also limits one connection attempt: an address that drops packets costs 1 s, not 20 s.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Services of one cluster connect directly; proxy environment variables do not apply.
    ("grpc.enable_http_proxy", 0),
    # Retries are done here. With gRPC's own retry (1.85), one in some dozens of calls that start while their server
    # stops is lost and does not end even at its deadline.
    ("grpc.enable_retries", 0),
)

Interceptor = grpc.UnaryUnaryClientInterceptor | grpc.UnaryStreamClientInterceptor
"""Wraps every call of a client, for example to propagate a trace."""

Resolve = Callable[[str], Sequence[str]]
"""Resolves `host:port` to a list of `ip:port`; raises OSError if the lookup fails."""

REFRESH = timedelta(seconds=30)
"""Maximum age of a name lookup."""

_LOOKUP_SPACING = 0.2
"""Minimum seconds between two lookups of a name, even if replicas fail."""

_FIRST_PROBE_DELAY, _MAX_PROBE_DELAY = 0.5, 30.0
"""Seconds until a failed replica is probed; doubled after each failure."""

_PROBE_SECONDS = 1.0

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

_T = TypeVar("_T")


def resolved(address: str) -> Sequence[str]:
    """Resolve `host:port` to all its `ip:port`, in the order in which to try them."""
    host, _, port = address.rpartition(":")
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in found]


def _is_name(address: str) -> bool:
    """Whether an address needs a name lookup."""
    if address.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return True
    return False


class _ResolvedNames:
    """Lookups of addresses; each runs in its own thread, because name servers may be slow."""

    def __init__(self, addresses: Sequence[str], resolve: Resolve) -> None:
        self._resolve = resolve
        self._found: dict[str, Sequence[str]] = {a: () if _is_name(a) else (a,) for a in addresses}
        self._looked_up = {a: float("-inf") for a in addresses if _is_name(a)}
        self._running: set[str] = set()
        self._problems: dict[str, str] = {}
        self._changed = threading.Condition()

    def look_up(self, older_than: float) -> None:
        """Start to look up names whose last lookup is older than `older_than` seconds."""
        with self._changed:
            limit = time.monotonic() - older_than
            due = [a for a, at in self._looked_up.items() if at <= limit and a not in self._running]
            self._running.update(due)
        for address in due:
            threading.Thread(target=self._run, args=(address,), name=f"lookup-{address}", daemon=True).start()

    def wait_for_any(self, seconds: float) -> None:
        """Wait until an address has a target, or no lookup is running."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._found.values()) or not self._running, max(seconds, 0))

    def wait_for_all(self, seconds: float) -> None:
        """Wait until no lookup is running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, max(seconds, 0))

    def targets(self) -> dict[str, str]:
        """Return target (`ip:port` or `unix:path`) -> its address, in the order of the addresses."""
        with self._changed:
            targets: dict[str, str] = {}
            for address, found in self._found.items():
                for target in found:
                    targets.setdefault(target, address)
            return targets

    def problems(self) -> list[str]:
        """Return one sentence for each address without a target."""
        with self._changed:
            return [
                f"{a}: {self._problems.get(a, 'the lookup is still running')}" for a, f in self._found.items() if not f
            ]

    def _run(self, address: str) -> None:
        try:
            found, problem = tuple(self._resolve(address)), "the name has no address"
        except (OSError, ValueError) as error:  # the addresses of members may be invalid
            # An unreachable name server says nothing about the replicas: keep the known ones.
            found, problem = (), f"the name cannot be resolved: {error}"
        with self._changed:
            self._looked_up[address] = time.monotonic()
            self._running.discard(address)
            self._found[address] = found or self._found[address]
            self._problems[address] = problem
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class Replica:
    """One replica of a service, with its channel."""

    target: str
    """`ip:port` or `unix:path`."""
    name: str
    """Name in errors."""
    plain: grpc.Channel
    """Without interceptors."""
    channel: grpc.Channel
    """With interceptors."""
    generation: int
    """Generation of the certificate that the channel uses; 0: no TLS."""
    taken: int = 0
    """When it was last used, as a count of uses of all replicas."""
    answered: int = 0
    """When it last answered, in the same count."""
    failures: int = 0
    """Consecutive failures; 0: healthy as far as known."""
    next_probe: float = 0.0
    """When to probe it again, on the monotonic clock."""
    users: int = 0
    """Calls that use it now."""
    is_gone: bool = False
    """Whether no address resolves to it any more."""


class Endpoints:
    """The replicas of one service, one channel each. Thread-safe.

    Calls stay with the replica that answered last, or rotate over all replicas (`rotates`). A failed replica is the
    last choice until it answers. With rotation, its health is probed in the background after 0.5 s, 1 s, 2 s up to
    30 s, so that a hanging replica delays one call and not every n-th.
    """

    def __init__(
        self,
        service: str,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        *,
        rotates: bool = False,
        resolve: Resolve = resolved,
        refresh: timedelta = REFRESH,
        tls: Tls | None = None,
    ) -> None:
        """Store the settings; the first call resolves names and connects.

        Args:
            service: name of the service in errors.
            addresses: `host:port` or `unix:path`, at least one.
            interceptors: wrap every call, outermost first.
            rotates: whether calls rotate over the replicas.
            resolve: resolves names.
            refresh: maximum age of a lookup.
            tls: certificates; None: plaintext connections.

        Raises:
            Invalid: `addresses` is empty.
        """
        if not addresses:
            raise Invalid(f"{service} has no address; give at least one `host:port` or `unix:path`")
        self.service = service
        self._names = _ResolvedNames(addresses, resolve)
        self._interceptors, self._rotates, self._refresh = tuple(interceptors), rotates, refresh.total_seconds()
        self._tls = tls
        self._replicas: dict[str, Replica] = {}
        self._in_use: set[Replica] = set()
        self._uses = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False

    def call(self, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta, once: bool = False) -> _T:
        """Return the result of `rpc` from the first replica that answers.

        Args:
            rpc: makes the call on a channel within the given number of seconds.
            timeout: for all attempts together, > 0.
            once: send the request to a single replica, which has just answered a health check. For requests that must
                not be repeated.

        Raises:
            Unavailable: no replica answers in time; the message names every address. With `once`, the request may have
                taken effect, and then the message says so.
            AutothrottleError: the error that a replica answered.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        failures: list[str] = []
        with closing(self.candidates(deadline)) as candidates:
            for replica in candidates:
                left = deadline - time.monotonic()
                if failures and left <= 0:
                    failures.append(f"{replica.name}: not tried, the time is over")
                    continue
                is_sent = False
                try:
                    if once:
                        _check_answers(replica, left)
                        left, is_sent = max(deadline - time.monotonic(), 0.001), True
                    result = rpc(replica.channel, left)
                except (grpc.RpcError, ValueError) as error:
                    failures.append(str(self._unavailable(replica, error, timeout)))
                    if is_sent:
                        failures[-1] += ". The request may have taken effect; check before you retry"
                        break
                else:
                    self.note_answer(replica)
                    return result
        raise Unavailable(f"{self.service} is unavailable: {'; '.join(failures + self._names.problems())}")

    def candidates(self, deadline: float) -> Generator[Replica, None, None]:
        """Yield every replica once, best first; look names up again if the caller rejects them all.

        Each replica's channel stays open until the next one is requested. A caller that stops early must close the
        iterator.

        Args:
            deadline: how long to wait for lookups, on the monotonic clock.

        Raises:
            Unavailable: the endpoints are closed.
        """
        tried: set[str] = set()
        self._names.look_up(self._refresh)
        self._names.wait_for_any(deadline - time.monotonic())
        yield from self._untried(tried)
        self._names.look_up(_LOOKUP_SPACING)
        self._names.wait_for_all(deadline - time.monotonic())
        yield from self._untried(tried)

    def note_answer(self, replica: Replica) -> None:
        """Record that a replica answered."""
        with self._lock:
            replica.failures, replica.answered = 0, next(self._uses)

    def note_failure(self, replica: Replica) -> None:
        """Record a failure: the replica is the last choice until it answers."""
        with self._lock:
            delay = min(_FIRST_PROBE_DELAY * 2 ** min(replica.failures, 16), _MAX_PROBE_DELAY)
            replica.failures += 1
            replica.next_probe = time.monotonic() + delay
        self._names.look_up(_LOOKUP_SPACING)

    def close(self) -> None:
        """Close all channels; running calls end as Unavailable. Idempotent."""
        with self._lock:
            self._closed = True
            replicas = [*self._replicas.values(), *self._in_use]
        for replica in replicas:
            replica.plain.close()

    def _unavailable(self, replica: Replica, error: grpc.RpcError | ValueError, timeout: timedelta) -> Unavailable:
        """Return the reason to try another replica; raise any other error."""
        if isinstance(error, ValueError):
            # grpc raises ValueError on a closed channel; on an open channel it means a wrong argument.
            if not self._closed:
                raise error
            return Unavailable(f"{replica.name}: the client is closed")
        failure = from_rpc_error(error, peer=replica.name, deadline=timeout)
        if not isinstance(failure, Unavailable):
            self.note_answer(replica)
            raise failure from error
        # Also after the deadline: the next call must not start with a frozen replica.
        self.note_failure(replica)
        return failure

    def _untried(self, tried: set[str]) -> Generator[Replica, None, None]:
        while (replica := self._take(tried)) is not None:
            tried.add(replica.target)
            try:
                yield replica
            finally:
                self._give_back(replica)

    def _take(self, tried: set[str]) -> Replica | None:
        """Take the best untried replica and mark it as in use."""
        targets = self._names.targets()
        with self._lock:
            if self._closed:
                raise Unavailable(f"the client of {self.service} is closed; create a new one")
            gone = self._update_replicas(targets)
            best = min((r for t, r in self._replicas.items() if t not in tried), key=self._rank, default=None)
            probed = self._due() if best is not None and not best.failures else []
            if best is not None:
                best.users, best.taken = best.users + 1, next(self._uses)
                self._in_use.add(best)
        for replica in gone:
            replica.plain.close()
        for replica in probed:
            self._probe(replica)
        return best

    def _give_back(self, replica: Replica) -> None:
        with self._lock:
            replica.users -= 1
            if replica.users:
                return
            self._in_use.discard(replica)
        if replica.is_gone:
            replica.plain.close()

    def _rank(self, replica: Replica) -> tuple[float, int]:
        """Sort key: healthy replicas first, in their turn; then failed ones, the next probe first."""
        turn = replica.taken if self._rotates else -replica.answered
        return (replica.next_probe if replica.failures else 0.0, turn)

    def _update_replicas(self, targets: dict[str, str]) -> list[Replica]:
        """Make the replicas match the targets; return the unused channels to close."""
        before, generation = self._replicas, self._tls.generation if self._tls else 0
        current = {t: r for t, r in before.items() if r.generation == generation}
        self._replicas = {t: current.get(t) or self._open(t, a, generation) for t, a in targets.items()}
        left_over = [replica for target, replica in before.items() if self._replicas.get(target) is not replica]
        for replica in left_over:
            replica.is_gone = True
        return [replica for replica in left_over if not replica.users]

    def _open(self, target: str, address: str, generation: int) -> Replica:
        name = target if target == address else f"{address} ({target})"
        if self._tls is None:
            plain = grpc.insecure_channel(target, options=list(CHANNEL_OPTIONS))
        else:
            plain = self._tls.channel(target, address, CHANNEL_OPTIONS)
        return Replica(target, name, plain, grpc.intercept_channel(plain, *self._interceptors), generation)

    def _due(self) -> list[Replica]:
        """The failed replicas to probe now, each once."""
        now = time.monotonic()
        due = [r for r in self._replicas.values() if self._rotates and r.failures and r.next_probe <= now]
        for replica in due:
            replica.next_probe = now + _MAX_PROBE_DELAY
        return due

    def _probe(self, replica: Replica) -> None:
        """Start a health check, without waiting for it."""
        try:
            probe = _health_check(replica).future(health_pb2.HealthCheckRequest(), timeout=_PROBE_SECONDS)
        except ValueError:  # closed by another thread
            return
        probe.add_done_callback(lambda answer: self._probed(replica, answer))

    def _probed(self, replica: Replica, answer: Any) -> None:
        code = answer.code()
        is_serving = code is grpc.StatusCode.OK and answer.result().status == health_pb2.HealthCheckResponse.SERVING
        if is_serving or code is grpc.StatusCode.UNIMPLEMENTED:
            with self._lock:
                replica.failures = 0
        else:
            self.note_failure(replica)


def _health_check(replica: Replica) -> Any:
    return replica.plain.unary_unary(
        _HEALTH_CHECK,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )


def _check_answers(replica: Replica, seconds: float) -> None:
    """Return if a replica answers a health check, with any status; otherwise raise the error of the call."""
    try:
        _health_check(replica)(health_pb2.HealthCheckRequest(), timeout=min(seconds, _PROBE_SECONDS))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
