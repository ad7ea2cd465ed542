"""The results of calls, as frozen dataclasses whose fields have the names of the messages' fields.

Rates are whole bytes per second: 1 MB/s is 1,000,000. Times are UTC. The type to know is `Override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from autothrottle.core.cluster.configs import BROKER_IDS, ReplicaRole
from autothrottle.core.members import Member
from autothrottle.core.records import AuditAction, CatchUp, Cycle, Pause, PauseMode, Throttle
from autothrottle.core.request_quotas import MAX_REQUEST_RATE
from autothrottle.messages import Conversion
from autothrottle.v1 import types_pb2
from autothrottle_client.errors import Invalid

MAX_RATE_BYTES_PER_SECOND = 10**12
"""Largest override, 1,000,000 MB/s. No link is that fast: a larger rate was probably given in another unit."""

MAX_AUDIT_RECORDS = 1_000
"""The service keeps this many of the latest changes."""


@dataclass(frozen=True, slots=True)
class Override:
    """A rate set by an operator. It replaces computed rates."""

    rate_bytes_per_second: int
    """1 to 2^63-1."""
    broker_id: int | None = None
    """The throttled broker; None: every broker that takes part in a reassignment."""
    autoremove: bool = False
    """True: ends when all reassignments are done. No effect on a broker override."""
    expire_time: datetime | None = None
    """Time at which it ends, UTC; None: never."""
    etag: str = field(default="", compare=False)
    """Identifies this version for conditional changes. Comparison of overrides ignores it."""
    beyond_capacity: bool = False
    """True: applies also above the capacity of a link. False: the known capacity limits it."""
    effect: str = field(default="", compare=False)
    """When it acts, such as `acts now`; empty: unknown. Comparison of overrides ignores it."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One action of a caller, or one change of an override by the planner."""

    number: int
    """Sequence number; later changes have larger numbers."""
    time: datetime
    """UTC, from the state store's clock."""
    who: str
    """The caller, as far as known."""
    action: AuditAction
    broker_id: int | None
    """Broker of the override or catch-up; None: the cluster override, or an action that concerns no broker."""
    before: Override | None
    """Value before the change; None: not set, or unreadable."""
    after: Override | None
    """Value after the change; None: not set."""
    reason: str = ""
    """Reason of a change that no caller requested."""
    pause: Pause | None = None
    """The pause that began or ended; None: another action."""
    result: str = ""
    """How a submission, cancellation or request of a cycle ended, or the request quota; "" for other actions."""


@dataclass(frozen=True, slots=True)
class RequestQuota:
    """How many requests per second a caller may send to autothrottle itself."""

    request_rate: int
    """Requests per second at each process, 1 to 1,000,000."""
    user: str | None = None
    """Name in the caller's certificate or of its token; "": users without a quota of their own; None: any user."""
    client_id: str | None = None
    """The caller's client id; "": client ids without a quota of their own; None: any client id."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State of the cluster: leader, last cycle, overrides, running processes, pause and catch-ups."""

    term: int
    """The latest term."""
    leader_address: str
    """Address of the leading planner."""
    last_cycle: Cycle | None
    """Last cycle of the leader; None: none yet."""
    overrides: tuple[Override, ...]
    """The cluster override first, then broker overrides by id."""
    leader_since: datetime | None = None
    """Start of the leader's term, UTC; None: unknown."""
    members: tuple[Member, ...] = ()
    """Running processes, sorted by service and start time."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    pause: Pause | None = None
    """None: not paused."""
    catch_ups: tuple[CatchUp, ...] = ()
    """Throttled catch-ups, sorted by broker id."""
    leader_host: str = ""
    """Name of the leader's host; empty if unknown."""
    cluster_name: str = ""
    """Name of the Kafka cluster; empty if unknown."""
    warnings: tuple[str, ...] = ()
    """One sentence for each override and catch-up that cannot be read."""
    last_cycle_end: datetime | None = None
    """End of the leader's last cycle, UTC; None: none yet, or the planner has an earlier version."""
    throttles: tuple[Throttle, ...] = ()
    """The throttles that ramp steps have changed since the last cycle; `current_throttles` has all."""

    @property
    def current_throttles(self) -> Mapping[tuple[int, ReplicaRole], Throttle]:
        """Broker id and role -> its throttle in Kafka; absent: none.

        A planner of an earlier version reports only its decisions, which then count as written.
        """
        cycle = self.last_cycle
        if cycle is None:
            return {}
        of_cycle = cycle.throttles
        if not cycle.throttles_are_known:
            of_cycle = tuple(Throttle(d.broker_id, d.role, d.rate_bytes_per_second) for d in cycle.decisions)
        return {(throttle.broker_id, throttle.role): throttle for throttle in (*of_cycle, *self.throttles)}


from_message = Conversion(has_newer_peers=True).from_message
"""Converts a message to a result."""


_RANGES = {
    "rate_bytes_per_second": (
        range(1, MAX_RATE_BYTES_PER_SECOND + 1),
        "give a positive rate (1 MB/s is 1000000), or remove the override",
    ),
    "broker_id": (BROKER_IDS, "give the id of a broker, or none for the whole cluster"),
    "request_rate": (
        range(1, MAX_REQUEST_RATE + 1),
        "give requests per second in this range, or remove the quota",
    ),
    "limit": (range(1, MAX_AUDIT_RECORDS + 1), "give a number in this range"),
}
"""Name of an argument -> (its values, how to correct another one)."""


def validate_number(name: str, value: int) -> int:
    """Return the value of an argument if it is valid.

    Raises:
        Invalid: the value is not an integer in the range of the argument.
    """
    values, fix = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} {value!r} is not an int; {fix}")
    if value not in values:
        raise Invalid(f"{name} {value} is outside {values[0]}..{values[-1]}; {fix}")
    return value


def pause_mode_to_number(mode: PauseMode) -> types_pb2.Pause.Mode.ValueType:
    """Return the protocol number of a pause mode.

    Raises:
        Invalid: the mode is neither keep nor clear.
    """
    if mode not in (PauseMode.KEEP, PauseMode.CLEAR):
        raise Invalid(f"pause mode {mode!r} is neither keep nor clear; give one of them")
    return types_pb2.Pause.Mode.Value(f"MODE_{mode.upper()}")


def to_timestamp(time: datetime | None) -> Timestamp | None:
    """Return an expire time as a message; None: never.

    Raises:
        Invalid: it has no time zone.
    """
    if time is None:
        return None
    if time.tzinfo is None:
        raise Invalid(
            f"expire_time {time.isoformat()} has no time zone; give for example datetime.now(UTC) + a timedelta"
        )
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp
