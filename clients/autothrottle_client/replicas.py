"""The connection to one service: its replicas, the order of attempts, the deadline of a call, and the retry rules.

gRPC cannot do this: it resolves a single name, takes no list of names and forgets which address has just failed.
Operators' clients and the services themselves use it. They differ in the fields of `Connection`. Names of replicas are
resolved in the background. The types to know are `Replicas`, and `StubClient`, the base class of clients.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import grpc

from autothrottle.core.records import PlannerState
from autothrottle.core.retries import CALL, PROBE
from autothrottle.core.texts import ip_address_of
from autothrottle_client.call_metadata import with_token
from autothrottle_client.errors import AutothrottleError, Invalid, NotLeader, Unavailable, from_rpc_error
from autothrottle_client.tls import Certificates
from autothrottle_client.waiting import PATIENCE, SLOW, say_later

Resolve = Callable[[str], Sequence[str]]
"""Resolves `host:port` to a list of `ip:port`; raises OSError if the lookup fails."""

MOST_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""Longest path of a Unix socket; the others are those of macOS and the BSDs."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[1-9][0-9]{0,4})|unix:(?P<path>[^\s,]+)")

DEFAULT_TIMEOUT = timedelta(seconds=10)

MAX_TIMEOUT = timedelta(days=1)

REFRESH = timedelta(seconds=30)
"""Maximum age of a name lookup."""

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    # The last cycle of a large cluster has thousands of decisions; snapshot chunks are far smaller.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # An open stream notices within 15 s that its peer is frozen. Our servers allow these pings; with gRPC's default
    # (5 minutes) they would close the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first option also bounds one connection attempt: an address that drops packets costs 1 s, not 20 s.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", int(CALL.first * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(CALL.longest * 1000)),
    # This module decides about retries. gRPC's own retry (1.85) loses one of some dozens of calls that begin while
    # their server stops; such a call outlives even its deadline.
    ("grpc.enable_retries", 0),
)

Interceptor = grpc.UnaryUnaryClientInterceptor | grpc.UnaryStreamClientInterceptor
"""Wraps every call of a client, for example to propagate a trace."""

_LOOKUP_SPACING = 0.2
"""Minimum seconds between two lookups of a name, even if replicas fail."""

_PROBE_SECONDS = 1.0

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

_SERVING = b"\x08\x01"
"""A HealthCheckResponse with the status SERVING, encoded: the client does not depend on gRPC's health package."""

_FIX = ". Fix: check that it runs and listens at these addresses; right after its start, try again"

_SHORTEST = 0.001
"""Seconds; gRPC refuses a call without time before it tries to connect."""

_T = TypeVar("_T")
_Stub = TypeVar("_Stub")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return addresses, each `host:port` or `unix:path`. A string is a comma-separated list.

    >>> parse_addresses("10.0.0.1:8090, [::1]:8090,unix:/run/autothrottle")
    ('10.0.0.1:8090', '[::1]:8090', 'unix:/run/autothrottle')

    Raises:
        Invalid: an address is malformed, or the list is empty.
    """
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    distinct = tuple(dict.fromkeys(address.strip() for address in given))
    for address in distinct or ("",):
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"] or 1) > 65535 or not address.isprintable():
            raise Invalid(
                f"address {address[:200]!r} is neither host:port (port 1 to 65535) nor a printable unix:path; "
                "give for example 127.0.0.1:8090, or several separated by commas"
            )
        if (size := len(os.fsencode(match["path"] or ""))) > MOST_PATH_BYTES:
            raise Invalid(
                f"address {address[:200]!r} has a path of {size} bytes, and those of Unix sockets have at most "
                f"{MOST_PATH_BYTES}; give a shorter path, or a link to its directory"
            )
    return distinct


def resolved(address: str) -> Sequence[str]:
    """Resolve `host:port` to all its `ip:port`, in the order in which to try them.

    Raises:
        OSError: the lookup fails.
        ValueError: the port is not a number.
    """
    host, _, port = address.rpartition(":")
    ips = [str(info[4][0]) for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in ips]


def _is_name(address: str) -> bool:
    """Whether an address needs a name lookup."""
    return not address.startswith("unix:") and ip_address_of(address.rpartition(":")[0].strip("[]")) is None


def is_loopback_host(host: str) -> bool:
    """Whether a host, without port and brackets, is this host's loopback interface."""
    address = ip_address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def is_loopback(target: str) -> bool:
    """Whether a target is a unix socket or a loopback address, so that no other host can reach or read it."""
    return target.startswith("unix:") or is_loopback_host(target.rpartition(":")[0].strip("[]"))


class ResolvedNames:
    """Lookups of addresses; each runs in its own thread, because name servers may be slow."""

    def __init__(self, addresses: Sequence[str], resolve: Resolve | None) -> None:
        """Store the addresses; the first `look_up` resolves them.

        Args:
            addresses: `host:port` or `unix:path`.
            resolve: resolves names; None: every address is its own target.
        """
        self._resolve: Resolve = resolve or (lambda address: (address,))
        names = [address for address in addresses if resolve and _is_name(address)]
        self._targets_of_addresses: dict[str, Sequence[str]] = {a: () if a in names else (a,) for a in addresses}
        self._looked_up = dict.fromkeys(names, float("-inf"))
        self._running: set[str] = set()
        self._problems: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False

    def close(self) -> None:
        """Let all waits for lookups end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

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
            self._changed.wait_for(
                lambda: any(self._targets_of_addresses.values()) or not self._running or self._closed, max(seconds, 0)
            )

    def wait_for_all(self, seconds: float) -> None:
        """Wait until no lookup is running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running or self._closed, max(seconds, 0))

    def targets(self) -> dict[str, str]:
        """Return target (`ip:port` or `unix:path`) -> its address, in the order of the addresses."""
        with self._changed:
            targets: dict[str, str] = {}
            for address, names in self._targets_of_addresses.items():
                for target in names:
                    targets.setdefault(target, address)
            return targets

    def problems(self) -> list[str]:
        """Return one sentence for each address without a target."""
        with self._changed:
            return [
                f"{a}: {self._problems.get(a, 'the lookup is still running')}"
                for a, f in self._targets_of_addresses.items()
                if not f
            ]

    def _run(self, address: str) -> None:
        try:
            targets, problem = tuple(self._resolve(address)), "the name has no address"
        except Exception as error:  # any, such as an invalid address of a member: otherwise no lookup would follow
            # An unreachable name server says nothing about the replicas: keep the known ones.
            targets, problem = (), f"the name cannot be resolved: {error}"
        with self._changed:
            self._looked_up[address] = time.monotonic()
            self._running.discard(address)
            self._targets_of_addresses[address] = targets or self._targets_of_addresses[address]
            self._problems[address] = problem
            self._changed.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How the replicas of a service are called."""

    timeout: timedelta = DEFAULT_TIMEOUT
    """Default for each call with all its attempts, > 0 and at most one day."""
    certificates: Certificates | None = None
    """Key and certificates of mutual TLS; None: plain connections."""
    token: Callable[[], str] | None = None
    """Returns the bearer token of a call; None: calls have none."""
    interceptors: Sequence[Interceptor] = ()
    """Wrap every call, outermost first."""
    resolve: Resolve | None = None
    """Resolves names, each of whose IP addresses is a replica; None: gRPC resolves, and a name is one replica."""
    refresh: timedelta = REFRESH
    """Maximum age of a lookup."""
    rotates: bool = False
    """True: calls rotate over the replicas. False: they stay with the replica that answered last."""
    waits: bool = False
    """True: a call tries all replicas again until its deadline, and each attempt has only its share of the time left.
    False: a call tries each replica once, and an attempt may take all of the time left."""
    has_leader: bool = False
    """True: NotLeader is retried at the leader that a replica names, else at the other replicas. False: it is final."""
    options: Sequence[tuple[str, int]] = ()
    """gRPC channel options in addition to `CHANNEL_OPTIONS`."""
    on_silence: Callable[[], None] | None = None
    """Called once in another thread if the first call has no answer within `waiting.PATIENCE`, or within
    `waiting.SLOW` from a replica that is connected; None: nothing is."""


@dataclass(slots=True, eq=False)
class Replica:
    """One replica of a service, with its channel."""

    target: str
    """`ip:port` or `unix:path`; `host:port` if gRPC resolves names."""
    name: str
    """Name in errors."""
    plain: grpc.Channel
    """Without interceptors, except for that of the token."""
    channel: grpc.Channel
    """With interceptors."""
    generation: int
    """Generation of the certificate that the channel uses; 0: no TLS."""
    last_use: int = 0
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


Rpc = Callable[[Replica, float], _T]
"""Calls one replica with a deadline in seconds."""


@dataclass(slots=True)
class _Call(Generic[_T]):
    """One call with all its attempts. Times are on the monotonic clock."""

    rpc: Rpc[_T]
    probe: Rpc[object] | None
    deadline: float
    search_until: float
    """When the search for a replica ends."""
    is_unanswered: bool = False
    """Whether a request that must not be repeated was sent and not answered."""


def validate_timeout(timeout: timedelta) -> timedelta:
    """Return the timeout if it is valid.

    Raises:
        Invalid: the timeout is not above 0 and at most one day.
    """
    if not timedelta(0) < timeout <= MAX_TIMEOUT:
        raise Invalid(f"timeout {timeout} is outside (0, {MAX_TIMEOUT}]; give some seconds")
    return timeout


class Replicas:
    """The replicas of one service, one channel each. Thread-safe.

    A failed replica is the last choice until it answers. With rotation, its health is probed in the background after
    0.5 s, 1 s, 2 s up to 30 s, so that a hanging replica delays one call and not every n-th.
    """

    def __init__(self, service: str, addresses: Sequence[str], connection: Connection) -> None:
        """Store the settings; the first call resolves names and connects.

        Args:
            service: name of the service in errors.
            addresses: `host:port` or `unix:path`, at least one.
            connection: how to call them.

        Raises:
            Invalid: `addresses` is empty.
        """
        if not addresses:
            raise Invalid(f"{service} has no address; give at least one `host:port` or `unix:path`")
        self.service, self.addresses, self.connection = service, tuple(addresses), connection
        self._retried: tuple[type[AutothrottleError], ...] = (Unavailable, *([NotLeader] * connection.has_leader))
        self._names = ResolvedNames(addresses, connection.resolve)
        self._replicas: dict[str, Replica] = {}
        self._in_use: set[Replica] = set()
        self._uses = itertools.count(1)
        self._silence: threading.Timer | None = None
        """Runs from the first call to the first answer."""
        self._has_answered = threading.Event()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def call(self, rpc: Rpc[_T], timeout: timedelta | None = None, probe: Rpc[object] | None = None) -> _T:
        """Return the result of `rpc` from the first replica that succeeds.

        Args:
            rpc: the call. Without a probe it must be safe to repeat.
            timeout: for all attempts together; None: the connection's.
            probe: a call that is safe to repeat. Then `rpc` is sent once, to a replica that has just answered the
                probe, and the search for that replica takes at most the connection's timeout.

        Raises:
            NotLeader: no replica that answers leads or knows the leader.
            Unavailable: no replica succeeds in time; the message names every address. With a probe, `rpc` may have
                taken effect, and then the message says so.
            AutothrottleError: any other error of a replica.
        """
        begin, patience = time.monotonic(), self.connection.timeout.total_seconds()
        limit = patience if timeout is None else timeout.total_seconds()
        with self._lock:
            if self._silence is None and self.connection.on_silence and not self._closed.is_set():
                self._silence = say_later(self._say_silence, PATIENCE)
        call = _Call(rpc, probe, begin + limit, begin + (min(limit, patience) if probe else limit))
        for failures in itertools.count(1):
            try:
                return self._round(call)
            except self._retried:
                backoff = CALL.wait(failures)
                is_last = not self.connection.waits or time.monotonic() + backoff >= call.search_until
                if call.is_unanswered or is_last or self._closed.wait(backoff):
                    raise
        raise AssertionError("the waits never end")

    def leader_state(
        self, fetch: Rpc[PlannerState], timeout: timedelta | None = None, leader_timeout: timedelta | None = None
    ) -> PlannerState:
        """Return the leader's state, or another replica's if the leader is unknown or does not answer.

        Args:
            fetch: fetches the state of one replica.
            timeout: for all attempts together; None: the connection's.
            leader_timeout: for the call of a leader that another replica names; None: the rest of `timeout`.

        Raises:
            Unavailable: no replica answers in time.
        """
        begin, limit = time.monotonic(), self.connection.timeout if timeout is None else timeout
        state = self.call(fetch, limit)
        if state.leading or not state.leader_address:
            return state
        remaining = leader_timeout or limit - timedelta(seconds=time.monotonic() - begin)
        try:
            with self.at(state.leader_address) as leader:
                return self._invoke(fetch, leader, remaining.total_seconds())
        except AutothrottleError:
            return state

    @contextmanager
    def at(self, address: str) -> Iterator[Replica]:
        """Connect to the leader at an address that may be outside the given ones, until the context ends.

        Raises:
            Unavailable: the replicas are closed.
        """
        with self._lock:
            self._require_open()
            leader = self._open(address, address, f"the leading {self.service} at {address}")
            leader.users, leader.is_gone = 1, True
            self._in_use.add(leader)
        try:
            yield leader
        finally:
            self._give_back(leader)

    def close(self) -> None:
        """Close all channels; calls in progress end as unavailable. Idempotent."""
        with self._lock:
            self._closed.set()
            replicas = [*self._replicas.values(), *self._in_use]
        self._end_silence()
        if self._silence:
            self._silence.join()  # otherwise its line might follow the last one of the caller
        self._names.close()
        for replica in replicas:
            replica.plain.close()

    # One call.

    def _round(self, call: _Call[_T]) -> _T:
        """Return the first result of one attempt at each replica, and at each leader that a replica names."""
        failures: list[str] = []
        tried: set[str] = set()
        leaders: list[str] = []
        no_leader: NotLeader | None = None
        with closing(self._with_leaders(leaders, call.search_until)) as replicas:
            for replica in replicas:
                if replica.target in tried:
                    continue
                tried.add(replica.target)
                seconds_left = call.search_until - time.monotonic()
                if failures and seconds_left <= 0:
                    failures.append(f"{replica.name}: not tried, out of time")
                    continue
                # A hanging replica must not use up the time of the others.
                others = len(self._replicas.keys() - tried) if self.connection.waits else 0
                try:
                    return self._attempt(call, replica, max(seconds_left, _SHORTEST) / (others + 1))
                except self._retried as error:
                    if call.is_unanswered:
                        raise
                    failures.append(f"{replica.name}: {error}" if isinstance(error, NotLeader) else str(error))
                    if isinstance(error, NotLeader):
                        leaders += {error.leader_address} - tried - {""}
                        no_leader = no_leader if error.leader_address else error
        if no_leader is not None:
            raise no_leader
        # A replica that answers has written the fix itself.
        failures += self._names.problems()
        fix = "" if all("Fix: " in failure for failure in failures) else _FIX
        raise Unavailable(f"{self.service} is unavailable: {'; '.join(failures)}{fix}")

    def _with_leaders(self, leaders: list[str], deadline: float) -> Generator[Replica, None, None]:
        """Yield the candidates, and the replica at each address that the caller appends to `leaders`."""
        with closing(self._candidates(deadline)) as candidates:
            for replica in candidates:
                yield replica
                while leaders:
                    with self.at(leaders.pop()) as leader:
                        yield leader

    def _attempt(self, call: _Call[_T], replica: Replica, seconds: float) -> _T:
        try:
            if call.probe is None:
                result = self._invoke(call.rpc, replica, seconds)
            else:
                self._invoke(call.probe, replica, seconds)
                result = self._send_once(call, replica)
        except AutothrottleError as error:
            # Also after the deadline: the next call must not start with a frozen replica.
            note = self._note_failure if isinstance(error, self._retried) else self._note_answer
            note(replica)
            raise
        self._note_answer(replica)
        return result

    def _send_once(self, call: _Call[_T], replica: Replica) -> _T:
        try:
            return self._invoke(call.rpc, replica, call.deadline - time.monotonic())
        except Unavailable as error:
            call.is_unanswered = True
            raise Unavailable(
                f"{error}. The request may have taken effect: check the state before you repeat it"
            ) from error

    def _invoke(self, rpc: Rpc[_T], replica: Replica, seconds: float) -> _T:
        """Return the result of a call; raise the client's errors instead of gRPC's."""
        try:
            return rpc(replica, max(seconds, _SHORTEST))
        except grpc.RpcError as error:
            raise from_rpc_error(error, replica.name, seconds) from error
        except ValueError as error:
            # grpc raises ValueError on a closed channel; on an open channel it means a wrong argument.
            if not self._closed.is_set():
                raise
            raise Unavailable(f"{replica.name}: the client is closed") from error

    # The replicas and their channels.

    def _candidates(self, deadline: float) -> Generator[Replica, None, None]:
        """Yield every replica once, best first; look names up again if the caller rejects them all.

        Each replica's channel stays open until the next one is requested. A caller that stops early must close the
        iterator.

        Args:
            deadline: how long to wait for lookups, on the monotonic clock.

        Raises:
            Unavailable: the replicas are closed.
        """
        tried: set[str] = set()
        self._names.look_up(self.connection.refresh.total_seconds())
        self._names.wait_for_any(deadline - time.monotonic())
        yield from self._untried(tried)
        self._names.look_up(_LOOKUP_SPACING)
        self._names.wait_for_all(deadline - time.monotonic())
        yield from self._untried(tried)

    def _note_answer(self, replica: Replica) -> None:
        """Record that a replica answered."""
        with self._lock:
            replica.failures, replica.answered = 0, next(self._uses)
        self._end_silence()

    def _say_silence(self) -> None:
        """Report the silence; if a replica is connected, so that it may be computing the answer, only after a time."""
        with self._lock:
            channels = [replica.plain for replica in self._in_use]
        is_slow = any(map(_is_connected, channels)) and self._has_answered.wait((SLOW - PATIENCE).total_seconds())
        if self.connection.on_silence and not is_slow:
            self.connection.on_silence()

    def _end_silence(self) -> None:
        self._has_answered.set()
        if self._silence:
            self._silence.cancel()

    def _note_failure(self, replica: Replica) -> None:
        """Record a failure: the replica is the last choice until it answers."""
        with self._lock:
            replica.failures += 1
            replica.next_probe = time.monotonic() + PROBE.wait(replica.failures)
        self._names.look_up(_LOOKUP_SPACING)

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
            self._require_open()
            gone = self._update_replicas(targets)
            best = min((r for t, r in self._replicas.items() if t not in tried), key=self._rank, default=None)
            probed = self._due() if best is not None and not best.failures else []
            if best is not None:
                best.users, best.last_use = best.users + 1, next(self._uses)
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

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable(f"the client of {self.service} is closed; create a new one")

    def _rank(self, replica: Replica) -> tuple[float, int]:
        """Sort key: healthy replicas first, in their turn; then failed ones, the next probe first."""
        turn = replica.last_use if self.connection.rotates else -replica.answered
        return (replica.next_probe if replica.failures else 0.0, turn)

    def _update_replicas(self, targets: dict[str, str]) -> list[Replica]:
        """Make the replicas match targets and certificate; return the unused channels to close."""
        old_replicas, generation = self._replicas, self._generation()
        current = {t: r for t, r in old_replicas.items() if r.generation == generation}
        self._replicas = {
            t: current.get(t) or self._open(t, a, t if t == a else f"{a} ({t})") for t, a in targets.items()
        }
        left_over = [replica for target, replica in old_replicas.items() if self._replicas.get(target) is not replica]
        for replica in left_over:
            replica.is_gone = True
        return [replica for replica in left_over if not replica.users]

    def _generation(self) -> int:
        return self.connection.certificates.generation if self.connection.certificates else 0

    def _open(self, target: str, address: str, name: str) -> Replica:
        # Read before the certificate: a renewal in between causes one more new channel, never an outdated one.
        generation, certificates = self._generation(), self.connection.certificates
        options = [*CHANNEL_OPTIONS, *self.connection.options]
        if certificates is None or target.startswith("unix:"):
            plain = grpc.insecure_channel(target, options=options)
        else:
            plain = certificates.channel(target, address, options)
        # A stub registers its methods at the channel. If another thread has closed the channel, gRPC 1.85 then ends the
        # process with a segmentation fault. Without a handle, its methods are not registered.
        setattr(plain, "_get_registered_call_handle", lambda method: None)  # noqa: B010
        if self.connection.token:
            is_secure = certificates is not None or is_loopback(target)
            plain = with_token(plain, self.connection.token, target, is_secure)
        channel = grpc.intercept_channel(plain, *self.connection.interceptors)
        return Replica(target, name, plain, channel, generation)

    # Health checks.

    def _due(self) -> list[Replica]:
        """The failed replicas to probe now, each once."""
        now = time.monotonic()
        due = [r for r in self._replicas.values() if self.connection.rotates and r.failures and r.next_probe <= now]
        for replica in due:
            replica.next_probe = now + PROBE.longest
        return due

    def _probe(self, replica: Replica) -> None:
        """Start a health check, without waiting for it."""
        try:
            probe = _health_method(replica).future(b"", timeout=_PROBE_SECONDS)
        except ValueError:  # closed by another thread
            return
        probe.add_done_callback(lambda answer: self._probed(replica, answer))

    def _probed(self, replica: Replica, answer: Any) -> None:
        code = answer.code()
        is_serving = code is grpc.StatusCode.OK and answer.result() == _SERVING
        if is_serving or code is grpc.StatusCode.UNIMPLEMENTED:
            with self._lock:
                replica.failures = 0
        else:
            self._note_failure(replica)


class ServiceCalls(Generic[_Stub]):
    """Calls unary methods of one service."""

    stub: Callable[[grpc.Channel], _Stub]
    """The generated client."""

    def __init__(self, replicas: Replicas) -> None:
        """Call the methods at these replicas."""
        self._replicas = replicas

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

        return self._replicas.call(rpc, timeout, probe)


class StubClient(ServiceCalls[_Stub]):
    """A thread-safe client of one service. Operators' clients and those between services derive from it."""

    service = ""
    """Name of the service in errors."""

    def __init__(self, addresses: Sequence[str], connection: Connection) -> None:
        """Create the client; the first call connects."""
        super().__init__(Replicas(self.service, addresses, connection))

    def close(self) -> None:
        """Close the connections; calls in progress end as unavailable. Idempotent."""
        self._replicas.close()


def _is_connected(channel: grpc.Channel) -> bool:
    """Return whether the server has answered on this channel: a call that waits has reached it."""
    ready = grpc.channel_ready_future(channel)
    try:
        ready.result(timeout=0.1)
    except grpc.FutureTimeoutError:
        return False
    finally:
        ready.cancel()
    return True


def check_health(replica: Replica, seconds: float) -> None:
    """Return if a replica answers a health check, with any status; otherwise raise the error of the call."""
    try:
        _health_method(replica)(b"", timeout=min(seconds, _PROBE_SECONDS))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise


def _health_method(replica: Replica) -> Any:
    return replica.plain.unary_unary(_HEALTH_CHECK)
