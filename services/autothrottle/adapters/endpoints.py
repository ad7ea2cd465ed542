"""The replicas of one service: where its addresses lead, which of them answer, and whose turn it is.

gRPC resolves a single name, takes no list of names and forgets which address has just failed; so this is done here.
An address is `host:port` or `unix:path`. A host name stands for all of its IP addresses, each of which is a replica; it
is looked up again every 30 s in which there are calls, and at once when a replica fails. The type to know is
`Endpoints`.
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

from autothrottle.adapters.tls import Tls
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.wire.errors import from_rpc_error

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message either way; chunks keep far below it."""

KEEPALIVE_MS = 10_000
"""How often an open stream asks whether the other side is still there; a server that allows pings only more
rarely (gRPC's default: 5 minutes) ends the connection, so ours allow them."""

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first also bounds one attempt to connect: an address that swallows packets costs 1 s, not 20 s.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Services of one cluster talk directly, whatever the environment says of proxies.
    ("grpc.enable_http_proxy", 0),
    # Whom to try next is decided here. gRPC's own retry (1.85) loses one of some dozens of calls that begin while their
    # server stops, and then not even the deadline ends them.
    ("grpc.enable_retries", 0),
)

Interceptor = grpc.UnaryUnaryClientInterceptor | grpc.UnaryStreamClientInterceptor
"""What wraps every call of a client, for example to carry a trace along."""

Resolve = Callable[[str], Sequence[str]]
"""Returns the `ip:port` of all that a `host:port` stands for; raises OSError when that cannot be found out."""

REFRESH = timedelta(seconds=30)
"""How old the answer of a name server may be."""

_LOOKUP_SPACING = 0.2
"""Seconds between two lookups of a name, whatever fails."""

_FIRST_REST, _LONGEST_REST = 0.5, 30.0
"""Seconds until a replica that failed is asked whether it is there again; doubled each time."""

_PROBE_SECONDS = 1.0

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

_T = TypeVar("_T")


def resolved(address: str) -> Sequence[str]:
    """Return every `ip:port` that a `host:port` stands for, in the order in which they are to be tried."""
    host, _, port = address.rpartition(":")
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in found]


def _is_name(address: str) -> bool:
    """Whether an address has to be looked up."""
    if address.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return True
    return False


class _Names:
    """What addresses stand for; each lookup has a thread of its own, since a name server may take its time."""

    def __init__(self, addresses: Sequence[str], resolve: Resolve) -> None:
        self._resolve = resolve
        self._found: dict[str, Sequence[str]] = {a: () if _is_name(a) else (a,) for a in addresses}
        self._looked_up = {a: float("-inf") for a in addresses if _is_name(a)}
        self._under_way: set[str] = set()
        self._problems: dict[str, str] = {}
        self._changed = threading.Condition()

    def look_up(self, older_than: float) -> None:
        """Begin to look up what was looked up so many seconds ago, or never."""
        with self._changed:
            limit = time.monotonic() - older_than
            due = [a for a, at in self._looked_up.items() if at <= limit and a not in self._under_way]
            self._under_way.update(due)
        for address in due:
            threading.Thread(target=self._run, args=(address,), name=f"lookup-{address}", daemon=True).start()

    def wait_for_any(self, seconds: float) -> None:
        """Return when it is known where one of the addresses leads, or none can be found out."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._found.values()) or not self._under_way, max(seconds, 0))

    def wait_for_all(self, seconds: float) -> None:
        """Return when nothing is looked up any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, max(seconds, 0))

    def targets(self) -> dict[str, str]:
        """Return `ip:port` or `unix:path` -> the address that leads there, in the order of the addresses."""
        with self._changed:
            targets: dict[str, str] = {}
            for address, found in self._found.items():
                for target in found:
                    targets.setdefault(target, address)
            return targets

    def problems(self) -> list[str]:
        """Return why addresses lead nowhere."""
        with self._changed:
            return [f"{a}: {self._problems.get(a, 'it is still looked up')}" for a, f in self._found.items() if not f]

    def _run(self, address: str) -> None:
        try:
            found, problem = tuple(self._resolve(address)), "the name has no address"
        except (OSError, ValueError) as error:  # what members say of their addresses need not be any
            # A name server that is away tells nothing of the replicas: those that were known are kept.
            found, problem = (), f"the name cannot be looked up: {error}"
        with self._changed:
            self._looked_up[address] = time.monotonic()
            self._under_way.discard(address)
            self._found[address] = found or self._found[address]
            self._problems[address] = problem
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class Replica:
    """One place where a service answers."""

    target: str
    """`ip:port` or `unix:path`."""
    name: str
    """What errors call it."""
    plain: grpc.Channel
    channel: grpc.Channel
    """The same with interceptors."""
    generation: int
    """Of the certificate that it is called with; 0: none."""
    taken: int = 0
    """When it was used last, counted in uses of all replicas."""
    answered: int = 0
    """When it answered last, in the same count."""
    failures: int = 0
    """In a row; 0: nothing speaks against it."""
    asked_again: float = 0.0
    """When it is asked whether it is there again, on the monotonic clock."""
    users: int = 0
    is_gone: bool = False
    """Whether no address leads here any more."""


class Endpoints:
    """The replicas of one service, a channel each. Threads may share it.

    Either calls stay with the replica that answered last, or (`rotates`) they go round. A replica that failed is the
    last choice until it answers: those that go round ask it for its health in the background, after 0.5 s, 1 s, 2 s up
    to 30 s, so that one that hangs costs the time of one call and not of every n-th.
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
        """Look nothing up and connect to nobody before the first call.

        Args:
            service: what errors call the other side.
            addresses: `host:port` or `unix:path`, at least one.
            interceptors: what wraps every call, the outermost first.
            rotates: whether calls go round the replicas.
            resolve: looks up names.
            refresh: how old its answers may be.
            tls: what connections are made with; None: they are plain.

        Raises:
            Invalid: when there is no address.
        """
        if not addresses:
            raise Invalid(f"{service} has no address; give at least one `host:port` or `unix:path`")
        self.service = service
        self._names = _Names(addresses, resolve)
        self._interceptors, self._rotates, self._refresh = tuple(interceptors), rotates, refresh.total_seconds()
        self._tls = tls
        self._replicas: dict[str, Replica] = {}
        self._in_use: set[Replica] = set()
        self._uses = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False

    def call(self, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta, once: bool = False) -> _T:
        """Return what `rpc` returns for the first replica that is there.

        Args:
            rpc: makes the call on a channel within so many seconds.
            timeout: for all attempts together, > 0.
            once: whether it is sent to one replica only, which has just answered: what is done may not be repeated.

        Raises:
            Unavailable: when no replica answers in time; the message has every address. With `once` it may have been
                done, as the message says then.
            AutothrottleError: what a replica answered.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        failures: list[str] = []
        with closing(self.candidates(deadline)) as candidates:
            for replica in candidates:
                left = deadline - time.monotonic()
                if failures and left <= 0:
                    failures.append(f"{replica.name}: not tried, the time was over")
                    continue
                may_be_done = False
                try:
                    if once:
                        _demand_answer(replica, left)
                        left, may_be_done = max(deadline - time.monotonic(), 0.001), True
                    result = rpc(replica.channel, left)
                except (grpc.RpcError, ValueError) as error:
                    failures.append(str(self._unavailable(replica, error, timeout)))
                    if may_be_done:
                        failures[-1] += ". It may have been done nevertheless: look, then decide"
                        break
                else:
                    self.note_answer(replica)
                    return result
        raise Unavailable(f"{self.service} is unavailable: {'; '.join(failures + self._names.problems())}")

    def candidates(self, deadline: float) -> Generator[Replica, None, None]:
        """Yield every replica once, the best first; names are looked up again when none of them will do.

        Each is kept open until the next is asked for; whoever stops early closes the iterator.

        Args:
            deadline: until when lookups are waited for, on the monotonic clock.

        Raises:
            Unavailable: when the endpoints are closed.
        """
        tried: set[str] = set()
        self._names.look_up(self._refresh)
        self._names.wait_for_any(deadline - time.monotonic())
        yield from self._untried(tried)
        self._names.look_up(_LOOKUP_SPACING)
        self._names.wait_for_all(deadline - time.monotonic())
        yield from self._untried(tried)

    def note_answer(self, replica: Replica) -> None:
        """Remember that it is there."""
        with self._lock:
            replica.failures, replica.answered = 0, next(self._uses)

    def note_failure(self, replica: Replica) -> None:
        """Let it be the last choice until it answers."""
        with self._lock:
            rest = min(_FIRST_REST * 2 ** min(replica.failures, 16), _LONGEST_REST)
            replica.failures += 1
            replica.asked_again = time.monotonic() + rest
        self._names.look_up(_LOOKUP_SPACING)

    def close(self) -> None:
        """Close all channels; what is under way on them ends as unavailable. Idempotent."""
        with self._lock:
            self._closed = True
            replicas = [*self._replicas.values(), *self._in_use]
        for replica in replicas:
            replica.plain.close()

    def _unavailable(self, replica: Replica, error: grpc.RpcError | ValueError, timeout: timedelta) -> Unavailable:
        """The reason to try another replica; any other answer is raised."""
        if isinstance(error, ValueError):
            # grpc's way to say that `close` came first; with open channels it is somebody's wrong argument.
            if not self._closed:
                raise error
            return Unavailable(f"{replica.name}: the client is closed")
        failure = from_rpc_error(error, peer=replica.name, deadline=timeout)
        if not isinstance(failure, Unavailable):
            self.note_answer(replica)
            raise failure from error
        # Also when the deadline is over: the next call must not begin with a frozen replica.
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
        """The best replica that was not tried, as one that is in use."""
        targets = self._names.targets()
        with self._lock:
            if self._closed:
                raise Unavailable(f"the client of {self.service} is closed; make a new one")
            gone = self._follow(targets)
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
        """What comes first: no failure, then whose turn it is; of those that failed the one that failed longest ago."""
        turn = replica.taken if self._rotates else -replica.answered
        return (replica.asked_again if replica.failures else 0.0, turn)

    def _follow(self, targets: dict[str, str]) -> list[Replica]:
        """Have a replica for each target, in their order; return those that nobody needs any more."""
        before, generation = self._replicas, self._tls.generation if self._tls else 0
        standing = {t: r for t, r in before.items() if r.generation == generation}
        self._replicas = {t: standing.get(t) or self._opened(t, a, generation) for t, a in targets.items()}
        left_over = [replica for target, replica in before.items() if self._replicas.get(target) is not replica]
        for replica in left_over:
            replica.is_gone = True
        return [replica for replica in left_over if not replica.users]

    def _opened(self, target: str, address: str, generation: int) -> Replica:
        name = target if target == address else f"{address} ({target})"
        if self._tls is None:
            plain = grpc.insecure_channel(target, options=list(CHANNEL_OPTIONS))
        else:
            plain = self._tls.channel(target, address, CHANNEL_OPTIONS)
        return Replica(target, name, plain, grpc.intercept_channel(plain, *self._interceptors), generation)

    def _due(self) -> list[Replica]:
        """Those that are to be asked for their health now, each once."""
        now = time.monotonic()
        due = [r for r in self._replicas.values() if self._rotates and r.failures and r.asked_again <= now]
        for replica in due:
            replica.asked_again = now + _LONGEST_REST
        return due

    def _probe(self, replica: Replica) -> None:
        """Ask for its health, without waiting."""
        try:
            asked = _health_check(replica).future(health_pb2.HealthCheckRequest(), timeout=_PROBE_SECONDS)
        except ValueError:  # closed meanwhile
            return
        asked.add_done_callback(lambda answer: self._probed(replica, answer))

    def _probed(self, replica: Replica, answer: Any) -> None:
        code = answer.code()
        is_serving = code is grpc.StatusCode.OK and answer.result().status == health_pb2.HealthCheckResponse.SERVING
        if is_serving or code is grpc.StatusCode.UNIMPLEMENTED:
            with self._lock:
                replica.failures = 0
        else:
            self.note_failure(replica)


def _health_check(replica: Replica) -> Any:
    """The method that tells how a replica is."""
    return replica.plain.unary_unary(
        _HEALTH_CHECK,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )


def _demand_answer(replica: Replica, seconds: float) -> None:
    """Return when a replica answers, whatever it says of itself; else raise what a call of it raises."""
    try:
        _health_check(replica)(health_pb2.HealthCheckRequest(), timeout=min(seconds, _PROBE_SECONDS))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
