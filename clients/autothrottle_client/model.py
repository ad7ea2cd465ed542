"""The results of calls, as frozen dataclasses, and their conversion from generated messages.

Rates are whole bytes per second: 1 MB/s is 1,000,000. Times are UTC. The type to know is `Override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

from google.protobuf.message import Message

from autothrottle.v1 import admin_pb2, planner_pb2, types_pb2
from autothrottle_client.errors import Invalid

MAX_RATE_BYTES_PER_SECOND = 2**63 - 1
"""Kafka stores rates as signed 64-bit bytes per second."""

MAX_BROKER_ID = 2**31 - 1

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
    """Kind of change of an override or of the pause."""

    SET = "set"
    REMOVE = "remove"
    """Removed by a caller."""
    PURGE = "purge"
    """Removed by the leading planner."""
    PAUSE = "pause"
    RESUME = "resume"
    UNKNOWN = "unknown"
    """A value that this version of the client does not know."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change of an override or of the pause."""

    number: int
    """Sequence number; later changes have larger numbers."""
    time: datetime
    """UTC, from the state store's clock."""
    who: str
    """The caller, as far as known."""
    action: AuditAction
    broker_id: int | None
    """Broker of the override; None: the cluster override, or a pause or resume."""
    before: Override | None
    """Value before the change; None: not set, or unreadable."""
    after: Override | None
    """Value after the change; None: not set."""
    reason: str = ""
    """Reason of a change that no caller requested."""
    pause: Pause | None = None
    """The pause that began or ended; None: an override was changed."""


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


_ROLES: Mapping[int, ReplicaRole] = MappingProxyType(
    {
        types_pb2.REPLICA_ROLE_LEADER: ReplicaRole.LEADER,
        types_pb2.REPLICA_ROLE_FOLLOWER: ReplicaRole.FOLLOWER,
    }
)
_REASONS: Mapping[int, Reason] = MappingProxyType(
    {
        types_pb2.Decision.REASON_HEADROOM: Reason.HEADROOM,
        types_pb2.Decision.REASON_UNCHANGED: Reason.UNCHANGED,
        types_pb2.Decision.REASON_KEPT: Reason.KEPT,
        types_pb2.Decision.REASON_MINIMUM: Reason.MINIMUM,
        types_pb2.Decision.REASON_CLUSTER_OVERRIDE: Reason.CLUSTER_OVERRIDE,
        types_pb2.Decision.REASON_BROKER_OVERRIDE: Reason.BROKER_OVERRIDE,
        types_pb2.Decision.REASON_OVER_CAPACITY: Reason.OVER_CAPACITY,
        types_pb2.Decision.REASON_STARVATION: Reason.STARVATION,
        types_pb2.Decision.REASON_FINISH_BY: Reason.FINISH_BY,
    }
)
_BASES: Mapping[int, Basis] = MappingProxyType(
    {
        types_pb2.Decision.BASIS_GROWTH: Basis.GROWTH,
        types_pb2.Decision.BASIS_COUNTED: Basis.COUNTED,
        types_pb2.Decision.BASIS_GUESSED: Basis.GUESSED,
        types_pb2.Decision.BASIS_STATIC: Basis.STATIC,
    }
)
_PAUSE_MODES: Mapping[int, PauseMode] = MappingProxyType(
    {
        types_pb2.Pause.MODE_KEEP: PauseMode.KEEP,
        types_pb2.Pause.MODE_CLEAR: PauseMode.CLEAR,
    }
)
_STATUSES: Mapping[int, OutcomeStatus] = MappingProxyType(
    {
        types_pb2.Outcome.STATUS_APPLIED: OutcomeStatus.APPLIED,
        types_pb2.Outcome.STATUS_UNCHANGED: OutcomeStatus.UNCHANGED,
        types_pb2.Outcome.STATUS_REFUSED: OutcomeStatus.REFUSED,
    }
)


_ACTIONS: Mapping[int, AuditAction] = MappingProxyType(
    {
        admin_pb2.AuditRecord.ACTION_SET: AuditAction.SET,
        admin_pb2.AuditRecord.ACTION_REMOVE: AuditAction.REMOVE,
        admin_pb2.AuditRecord.ACTION_PURGE: AuditAction.PURGE,
        admin_pb2.AuditRecord.ACTION_PAUSE: AuditAction.PAUSE,
        admin_pb2.AuditRecord.ACTION_RESUME: AuditAction.RESUME,
    }
)


def validate_rate(rate_bytes_per_second: int) -> int:
    """Return the rate if it is valid.

    Raises:
        Invalid: the rate is not in 1..2^63-1 bytes/s.
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
        Invalid: the broker id is not in 1..2^31-1.
    """
    return _whole(broker_id, MAX_BROKER_ID, "broker_id", "give the id of a broker, or none for the whole cluster")


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


def _whole(value: int, largest: int, name: str, fix: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} {value!r} is not an int; {fix}")
    if not 0 < value <= largest:
        raise Invalid(f"{name} {value} is outside 1..{largest}; {fix}")
    return value


def override_from_message(message: admin_pb2.Override) -> Override:
    """Return the override in a message."""
    broker_id = message.broker_id if message.HasField("broker_id") else None
    expire_time = message.expire_time.ToDatetime(tzinfo=UTC) if message.HasField("expire_time") else None
    return Override(message.rate_bytes_per_second, broker_id, message.autoremove, expire_time, message.etag)


def audit_record_from_message(message: admin_pb2.AuditRecord) -> AuditRecord:
    """Return the audit record in a message."""
    return AuditRecord(
        number=message.number,
        time=message.time.ToDatetime(tzinfo=UTC),
        who=message.who,
        action=_ACTIONS.get(message.action, AuditAction.UNKNOWN),
        broker_id=message.broker_id if message.HasField("broker_id") else None,
        before=override_from_message(message.before) if message.HasField("before") else None,
        after=override_from_message(message.after) if message.HasField("after") else None,
        reason=message.reason,
        pause=pause_from_message(message.pause) if message.HasField("pause") else None,
    )


def cycle_from_message(message: types_pb2.Cycle) -> Cycle:
    """Return the cycle in a message."""
    return Cycle(
        term=message.term,
        number=message.number,
        start_time=message.start_time.ToDatetime(tzinfo=UTC),
        end_time=message.end_time.ToDatetime(tzinfo=UTC),
        reason=message.reason,
        sentence=message.sentence,
        topics=tuple(message.topics),
        decisions=tuple(map(_decision_from_message, message.decisions)),
        outcomes=tuple(map(_outcome_from_message, message.outcomes)),
        findings=tuple(message.findings),
        error=message.error,
        bytes_left=message.bytes_left if message.HasField("bytes_left") else None,
        eta=message.eta.ToDatetime(tzinfo=UTC) if message.HasField("eta") else None,
        pause=pause_from_message(message.pause) if message.HasField("pause") else None,
        shadow=message.shadow,
        foreign_throttles=tuple(ForeignThrottle(f.resource, f.key, f.value) for f in message.foreign_throttles),
        eta_low=message.eta_low.ToDatetime(tzinfo=UTC) if message.HasField("eta_low") else None,
        eta_high=message.eta_high.ToDatetime(tzinfo=UTC) if message.HasField("eta_high") else None,
        eta_is_static=message.eta_is_static,
    )


def cluster_state_from_message(message: admin_pb2.GetClusterStateResponse) -> ClusterState:
    """Return the cluster state in a message."""
    return ClusterState(
        term=message.term,
        leader_address=message.leader_address,
        last_cycle=cycle_from_message(message.last_cycle) if message.HasField("last_cycle") else None,
        overrides=tuple(map(override_from_message, message.overrides)),
        leader_since=message.leader_since.ToDatetime(tzinfo=UTC) if message.HasField("leader_since") else None,
        members=tuple(map(_member_from_message, message.members)),
        failures=dict(message.failures),
        pause=pause_from_message(message.pause) if message.HasField("pause") else None,
        catch_ups=tuple(map(catch_up_from_message, message.catch_ups)),
    )


def catch_up_from_message(message: admin_pb2.CatchUp) -> CatchUp:
    """Return the catch-up in a message."""
    time = message.time.ToDatetime(tzinfo=UTC) if message.HasField("time") else None
    return CatchUp(message.broker_id, message.author, time)


def pause_from_message(message: types_pb2.Pause) -> Pause:
    """Return the pause in a message."""
    return Pause(
        mode=_PAUSE_MODES.get(message.mode, PauseMode.UNKNOWN),
        author=message.author,
        time=message.time.ToDatetime(tzinfo=UTC) if message.HasField("time") else None,
        reason=message.reason,
    )


def pause_mode_to_number(mode: PauseMode) -> types_pb2.Pause.Mode.ValueType:
    """Return the protocol number of a pause mode.

    Raises:
        Invalid: the mode is neither keep nor clear.
    """
    for number, known in _PAUSE_MODES.items():
        if known == mode:
            return types_pb2.Pause.Mode.ValueType(number)
    raise Invalid(f"pause mode {mode!r} is neither keep nor clear; give one of them")


def role_from_number(number: int) -> ReplicaRole:
    """Return the role with a protocol number."""
    return _ROLES.get(number, ReplicaRole.UNKNOWN)


def planner_state_from_message(message: planner_pb2.GetStateResponse) -> PlannerState:
    """Return the planner state in a message."""
    return PlannerState(
        leading=message.leading,
        term=message.term,
        leader_address=message.leader_address,
        last_cycle=cycle_from_message(message.last_cycle) if message.HasField("last_cycle") else None,
        failures=dict(message.failures),
        leader_since=message.leader_since.ToDatetime(tzinfo=UTC) if message.HasField("leader_since") else None,
    )


def _member_from_message(message: admin_pb2.Member) -> Member:
    return Member(
        service=message.service,
        roles=tuple(message.roles),
        version=message.version,
        address=message.address,
        host=message.host,
        pid=message.pid,
        start_time=message.start_time.ToDatetime(tzinfo=UTC),
    )


def _decision_from_message(message: types_pb2.Decision) -> Decision:
    return Decision(
        broker_id=message.broker_id,
        role=_ROLES.get(message.role, ReplicaRole.UNKNOWN),
        rate_bytes_per_second=message.rate_bytes_per_second,
        reason=_REASONS.get(message.reason, Reason.UNKNOWN),
        current_rate_bytes_per_second=present(message, "current_rate_bytes_per_second"),
        headroom_bytes_per_second=present(message, "headroom_bytes_per_second"),
        utilization_bytes_per_second=present(message, "utilization_bytes_per_second"),
        capacity_bytes_per_second=present(message, "capacity_bytes_per_second"),
        client_bytes_per_second=present(message, "client_bytes_per_second"),
        client_age_seconds=present(message, "client_age_seconds"),
        basis=_BASES.get(message.basis, Basis.UNKNOWN) if message.basis else None,
    )


def present(message: Message, name: str) -> int | None:
    """Return a number field, or None if it is absent."""
    return int(getattr(message, name)) if message.HasField(name) else None


def _outcome_from_message(message: types_pb2.Outcome) -> Outcome:
    return Outcome(message.resource, _STATUSES.get(message.status, OutcomeStatus.UNKNOWN), message.reason)
