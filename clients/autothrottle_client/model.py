"""The results of calls, as frozen dataclasses whose fields have the names of the messages' fields.

Rates are whole bytes per second: 1 MB/s is 1,000,000. Times are UTC. The type to know is `Override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from google.protobuf.timestamp_pb2 import Timestamp

from autothrottle.messages import Conversion
from autothrottle.v1 import types_pb2
from autothrottle_client.errors import Invalid

MAX_RATE_BYTES_PER_SECOND = 10**12
"""Largest override, 1,000,000 MB/s. No link is that fast: a larger rate was probably given in another unit."""

MAX_BROKER_ID = 2**31 - 1

MAX_REQUEST_RATE = 1_000_000
"""Largest request quota, in requests per second."""

MAX_AUDIT_RECORDS = 1_000
"""The service keeps this many of the latest changes."""

MAX_REASON = 1_000
"""Longest reason, in characters."""


class ReplicaRole(StrEnum):
    """The side of a replication flow that a broker is on."""

    LEADER = "leader"
    """The broker sends."""
    FOLLOWER = "follower"
    """The broker receives."""
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


class Reason(StrEnum):
    """Reason for the rate of a decision."""

    HEADROOM = "headroom"
    UNCHANGED = "unchanged"
    """The headroom asks for another rate, but the difference is below the change threshold."""
    KEPT = "kept"
    """No usable metrics, but failures do not yet exceed the failure threshold."""
    MINIMUM = "minimum"
    """No usable metrics, and failures exceed the failure threshold."""
    CLUSTER_OVERRIDE = "cluster-override"
    BROKER_OVERRIDE = "broker-override"
    OVER_CAPACITY = "over-capacity"
    """Clients need the link. The rate may be below the minimum, down to 0, where the configuration allows it."""
    STARVATION = "starvation"
    """More than the headroom, because the reassignment would never end at a lower rate."""
    FINISH_BY = "finish-by"
    """Less than the headroom, but enough to finish in time."""
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


class Basis(StrEnum):
    """The source of the client load from which a rate was computed."""

    GROWTH = "growth"
    """Current client load, from log growth."""
    COUNTED = "counted"
    """Client load in the metric's interval, with replication counted."""
    GUESSED = "guessed"
    """Client load in the metric's interval, with replication assumed to equal the throttle."""
    STATIC = "static"
    """A rate set by the operator, independent of client load."""
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


class PauseMode(StrEnum):
    """What a pause does with the throttles that autothrottle has set."""

    KEEP = "keep"
    """Throttles and replica lists stay as they are, also when reassignments start or end."""
    CLEAR = "clear"
    """The values from before autothrottle are restored; reassignments continue without throttles."""
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the planner. It lasts until an operator resumes the planner."""

    mode: PauseMode
    author: str
    """Address of the caller who paused it; empty if unknown."""
    time: datetime | None
    """Start of the pause, UTC; None: unknown."""
    reason: str = ""
    """The author's reason."""


class OutcomeStatus(StrEnum):
    """Result of the change of one config resource."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The value was set already."""
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


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


class AuditAction(StrEnum):
    """Kind of action."""

    SET = "set"
    REMOVE = "remove"
    """Removed by a caller."""
    PURGE = "purge"
    """Removed by the leading planner."""
    PAUSE = "pause"
    RESUME = "resume"
    START_CATCH_UP = "start_catch_up"
    STOP_CATCH_UP = "stop_catch_up"
    SUBMIT = "submit"
    CANCEL = "cancel"
    REQUEST_CYCLE = "request_cycle"
    SET_REQUEST_QUOTA = "set_request_quota"
    REMOVE_REQUEST_QUOTA = "remove_request_quota"
    SET_QUOTA = "set_quota"
    REMOVE_QUOTA = "remove_quota"
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


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
class Decision:
    """The rate that one cycle decided for one broker in one role."""

    broker_id: int
    role: ReplicaRole
    rate_bytes_per_second: int
    reason: Reason
    current_rate_bytes_per_second: int | None = None
    """The broker's throttle before the cycle; None: not throttled."""
    headroom_bytes_per_second: int | None = None
    """The policy's result before the change threshold; None without metrics."""
    utilization_bytes_per_second: int | None = None
    """Measured traffic of the link side; None without metrics."""
    capacity_bytes_per_second: int | None = None
    """Capacity of the link side; None without metrics."""
    client_bytes_per_second: int | None = None
    """Client load that the policy used; None without metrics, or if the headroom formula implies it."""
    client_age_seconds: int | None = None
    """Seconds since the end of the metric's interval of that load; None if `client_bytes_per_second` is None."""
    basis: Basis | None = None
    """Source of the client load; None if the headroom formula implies it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the change of one config resource."""

    resource: str
    """`brokers/<id>` or `topics/<name>`."""
    status: OutcomeStatus
    reason: str = ""
    """One sentence that explains a refusal."""


@dataclass(frozen=True, slots=True)
class ForeignThrottle:
    """A throttle that another party has set and not removed."""

    resource: str
    """`brokers/<id>` or `topics/<name>`."""
    key: str
    """The config key."""
    value: str
    """The current value; only the beginning of a long list."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One completed run of the planner's loop."""

    term: int
    """Fence of the term in which it ran."""
    number: int
    """Number within the term, from 1."""
    start_time: datetime
    """UTC."""
    end_time: datetime
    """UTC."""
    reason: str
    """Trigger of the cycle: `interval`, or an event."""
    sentence: str
    """Summary of the cycle's changes."""
    topics: tuple[str, ...] = ()
    """Topics in reassignment."""
    decisions: tuple[Decision, ...] = ()
    """Sorted by broker and role."""
    outcomes: tuple[Outcome, ...] = ()
    """One per resource to change."""
    findings: tuple[str, ...] = ()
    """Changes of autothrottle's keys by other parties, and data that could not be read."""
    error: str = ""
    """Error of a failed cycle; empty: success."""
    bytes_left: int | None = None
    """Bytes still to copy; None: unknown, or no reassignment is ongoing."""
    eta: datetime | None = None
    """Expected end at the rate of the last minutes, UTC; None: unknown."""
    pause: Pause | None = None
    """The pause during which no rates were decided; None: not paused."""
    shadow: bool = False
    """True: ran in shadow mode, wrote nothing; the sentence describes the changes it would have made."""
    foreign_throttles: tuple[ForeignThrottle, ...] = ()
    """Foreign throttles found while no reassignment is ongoing; kept unless `--cleanup-foreign` is set."""
    eta_low: datetime | None = None
    """Earliest expected end, from the variation of the last minutes' rates, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest expected end, likewise."""
    eta_is_static: bool = False
    """True: `eta` is bytes left divided by the current throttles, because no rate was measured yet."""


@dataclass(frozen=True, slots=True)
class Member:
    """One running process of autothrottle."""

    service: str
    """Its command: `discovery`, `metrics`, `planner`, `applier`, `admin`, `gateway` or `run`."""
    roles: tuple[str, ...]
    """Services in the process: the one named by its command, or all of them for `run`."""
    version: str
    """Program version."""
    address: str
    """Listening address; `0.0.0.0` means every interface of its host."""
    host: str
    """Host name."""
    pid: int
    """Process id on that host."""
    start_time: datetime
    """UTC, from the process's own clock."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A broker's catch-up under a throttle."""

    broker_id: int
    author: str = ""
    """Address of the caller who requested it; empty if unknown."""
    time: datetime | None = None
    """Time of the request, UTC; None: unknown."""


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


@dataclass(frozen=True, slots=True)
class PlannerState:
    """State of one planner."""

    leading: bool
    """True: this planner leads."""
    term: int
    """The latest term that it knows; 0: none."""
    leader_address: str
    """Address of the leader; empty if unknown."""
    last_cycle: Cycle | None
    """Last cycle of this planner; None: none yet."""
    failures: Mapping[int, int]
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    leader_since: datetime | None = None
    """Start of the leader's term, UTC; None: unknown."""
    leader_host: str = ""
    """Name of the leader's host; empty if unknown."""
    cluster_name: str = ""
    """Name of the Kafka cluster; empty if unknown."""


from_message = Conversion().from_message
"""Converts a message to a result."""


def validate_rate(rate_bytes_per_second: int) -> int:
    """Return the rate if it is valid.

    Raises:
        Invalid: the rate is not in 1..10^12 bytes/s.
    """
    return _whole(
        rate_bytes_per_second,
        MAX_RATE_BYTES_PER_SECOND,
        "rate_bytes_per_second",
        "give a positive rate (1 MB/s is 1000000), or remove the override",
    )


def validate_broker_id(broker_id: int) -> int:
    """Return the broker id if it is valid.

    Raises:
        Invalid: the broker id is not in 0..2^31-1.
    """
    fix = "give the id of a broker, or none for the whole cluster"
    return _whole(broker_id, MAX_BROKER_ID, "broker_id", fix, smallest=0)


def validate_request_rate(request_rate: int) -> int:
    """Return the rate of a request quota if it is valid.

    Raises:
        Invalid: the rate is not in 1..1,000,000 requests/s.
    """
    fix = "give requests per second in this range, or remove the quota"
    return _whole(request_rate, MAX_REQUEST_RATE, "request_rate", fix)


def validate_limit(limit: int) -> int:
    """Return the number of audit records to list if it is valid.

    Raises:
        Invalid: the number is not in 1..1,000.
    """
    return _whole(limit, MAX_AUDIT_RECORDS, "limit", "give a number in this range")


def validate_reason(reason: str) -> str:
    """Return the reason of a request if it is valid.

    Raises:
        Invalid: the reason has more than 1,000 characters, or unprintable ones (such as bytes that are not UTF-8).
    """
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise Invalid(
            f"reason {reason[:40]!r} has {len(reason)} characters; "
            f"give at most {MAX_REASON} printable characters on one line"
        )
    return reason


def _whole(value: int, largest: int, name: str, fix: str, smallest: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} {value!r} is not an int; {fix}")
    if not smallest <= value <= largest:
        raise Invalid(f"{name} {value} is outside {smallest}..{largest}; {fix}")
    return value


def pause_mode_to_number(mode: PauseMode) -> types_pb2.Pause.Mode.ValueType:
    """Return the protocol number of a pause mode.

    Raises:
        Invalid: the mode is neither keep nor clear.
    """
    if mode not in (PauseMode.KEEP, PauseMode.CLEAR):
        raise Invalid(f"pause mode {mode!r} is neither keep nor clear; give one of them")
    return types_pb2.Pause.Mode.Value(f"MODE_{mode.upper()}")


def to_timestamp(time: datetime) -> Timestamp:
    """Return a time as a message.

    Raises:
        Invalid: it has no time zone.
    """
    if time.tzinfo is None:
        raise Invalid(
            f"expire_time {time.isoformat()} has no time zone; give for example datetime.now(UTC) + a timedelta"
        )
    found = Timestamp()
    found.FromDatetime(time)
    return found
