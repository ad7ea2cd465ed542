"""What the services answer, as frozen dataclasses, and the generated messages they are read from.

Rates are whole bytes per second: 1 MB/s is 1,000,000. Times are UTC. The type to know is `Override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

from autothrottle.v1 import admin_pb2, planner_pb2, types_pb2
from autothrottle_client.errors import Invalid

MAX_RATE_BYTES_PER_SECOND = 2**63 - 1
"""Kafka keeps rates as a signed 64-bit number of bytes/s."""

MAX_BROKER_ID = 2**31 - 1

MAX_AUDIT_RECORDS = 1_000
"""How many of the newest changes are kept."""

MAX_REASON = 1_000
"""Characters of a reason."""


class ReplicaRole(StrEnum):
    """The side of a replication flow that a broker is on."""

    LEADER = "leader"
    """It sends."""
    FOLLOWER = "follower"
    """It receives."""
    UNKNOWN = "unknown"
    """A word that this version of the client does not know."""


class Reason(StrEnum):
    """Why a rate is what it is."""

    HEADROOM = "headroom"
    UNCHANGED = "unchanged"
    """The headroom asks for another rate, but by less than the change threshold."""
    KEPT = "kept"
    """No usable metrics; the failures do not exceed the threshold yet."""
    MINIMUM = "minimum"
    """No usable metrics for too long."""
    CLUSTER_OVERRIDE = "cluster-override"
    BROKER_OVERRIDE = "broker-override"
    OVER_CAPACITY = "over-capacity"
    """Clients need the link: less than the minimum, down to 0, where that is allowed."""
    STARVATION = "starvation"
    """More than the headroom gives: less would never let the move end."""
    FINISH_BY = "finish-by"
    """Less than the headroom gives: it is enough to be done in time."""
    UNKNOWN = "unknown"
    """A word that this version of the client does not know."""


class Basis(StrEnum):
    """What a rate was worked out from."""

    GROWTH = "growth"
    """The clients' load now, by the growth of logs."""
    COUNTED = "counted"
    """The clients' load of the metric's interval, replication counted."""
    GUESSED = "guessed"
    """The clients' load of the metric's interval, replication taken for the throttle."""
    STATIC = "static"
    """The rate that the operator gave, whatever clients do."""
    UNKNOWN = "unknown"
    """A word that this version of the client does not know."""


class PauseMode(StrEnum):
    """What becomes of autothrottle's throttles while it is paused."""

    KEEP = "keep"
    """They stay as they stand, replica lists too, whatever moves."""
    CLEAR = "clear"
    """They are given back to what stood before: what moves goes on without throttles."""
    UNKNOWN = "unknown"
    """A word that this version of the client does not know."""


@dataclass(frozen=True, slots=True)
class Pause:
    """That nothing is decided until somebody resumes it."""

    mode: PauseMode
    author: str
    """Who paused it: the address that called; empty when unknown."""
    time: datetime | None
    """When, UTC; None: unknown."""
    reason: str = ""
    """Why, as it was given."""


class OutcomeStatus(StrEnum):
    """What became of the change of one config resource."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """It stood already."""
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """A word that this version of the client does not know."""


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's rate in place of the measured ones."""

    rate_bytes_per_second: int
    """1 to 2^63-1."""
    broker_id: int | None = None
    """The broker that it rules; None: every broker that takes part in a reassignment."""
    autoremove: bool = False
    """Whether it ends when no reassignment is left; without effect on a broker's."""
    expire_time: datetime | None = None
    """When it ends by itself, UTC; None: never."""
    etag: str = field(default="", compare=False)
    """Names this version of it, for a change of no other; two overrides are equal whatever their versions are."""


class AuditAction(StrEnum):
    """What was done to an override, or to the pause."""

    SET = "set"
    REMOVE = "remove"
    """By somebody."""
    PURGE = "purge"
    """By the planner that leads."""
    PAUSE = "pause"
    RESUME = "resume"
    UNKNOWN = "unknown"
    """A word that this version of the client does not know."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change of one override, or of the pause."""

    number: int
    """Its place in the order of all changes: a later one has a larger number."""
    time: datetime
    """UTC, by the store's clock."""
    who: str
    """The caller, as far as it is known."""
    action: AuditAction
    broker_id: int | None
    """Whose override; None: the cluster's, or it was paused or resumed."""
    before: Override | None
    """What stood; None: nothing, or what could not be read."""
    after: Override | None
    """What stands since; None: nothing."""
    reason: str = ""
    """Why, when nobody asked for it."""
    pause: Pause | None = None
    """The pause that began, or that ended; None: an override was changed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The rate of one broker in one role, as one cycle decided it."""

    broker_id: int
    role: ReplicaRole
    rate_bytes_per_second: int
    reason: Reason
    standing_bytes_per_second: int | None = None
    """What stood on the broker; None: nothing."""
    headroom_bytes_per_second: int | None = None
    """What the policy would give, before the change threshold; None without metrics."""
    utilization_bytes_per_second: int | None = None
    """The measured traffic of the direction; None without metrics."""
    capacity_bytes_per_second: int | None = None
    """What the direction carries; None without metrics."""
    client_bytes_per_second: int | None = None
    """The load of clients that the policy counts on; None without metrics, or where its formula says it."""
    client_age_seconds: int | None = None
    """Since the end of the metric's interval in which that load was measured; None where that is."""
    basis: Basis | None = None
    """What the policy worked the rate out from; None where its formula says it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the change of one config resource."""

    resource: str
    """`brokers/<id>` or `topics/<name>`."""
    status: OutcomeStatus
    reason: str = ""
    """One sentence, when it was refused."""


@dataclass(frozen=True, slots=True)
class ForeignThrottle:
    """A throttle that somebody else has left."""

    resource: str
    """`brokers/<id>` or `topics/<name>`."""
    key: str
    """The config key."""
    value: str
    """What stands; of a long list its beginning."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One turn of the planner's loop, after its end."""

    term: int
    """The fence of the term that ran it."""
    number: int
    """Its number within the term, from 1."""
    start_time: datetime
    """UTC."""
    end_time: datetime
    """UTC."""
    reason: str
    """What started it: `interval`, or what happened."""
    sentence: str
    """What it did."""
    topics: tuple[str, ...] = ()
    """The topics in reassignment."""
    decisions: tuple[Decision, ...] = ()
    """By broker and role."""
    outcomes: tuple[Outcome, ...] = ()
    """One for each resource that was to change."""
    findings: tuple[str, ...] = ()
    """What somebody else did to autothrottle's keys, and what could not be read."""
    error: str = ""
    """Why it failed; empty when it did not."""
    bytes_left: int | None = None
    """What is left to be copied; None: nothing moves, or it is unknown."""
    eta: datetime | None = None
    """When the last byte lands at the rate of the last minutes, UTC; None: unknown."""
    pause: Pause | None = None
    """That nothing was decided, and why; None: it was not paused."""
    shadow: bool = False
    """Whether it ran in shadow: nothing was written, and the sentence says what would have been."""
    foreign_throttles: tuple[ForeignThrottle, ...] = ()
    """What autothrottle did not set and what stands while nothing moves; left, but for `--cleanup-foreign`."""
    eta_low: datetime | None = None
    """Not before this the last byte lands, as far as the rates of the last minutes tell, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""
    eta_is_static: bool = False
    """Whether `eta` is no measurement yet but what is left by the throttles that stand."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process that serves."""

    service: str
    """The command that it runs: `discovery`, `metrics`, `planner`, `applier`, `admin`, `gateway` or `run`."""
    roles: tuple[str, ...]
    """The services that it is: the one of its name, or all of them in `run`."""
    version: str
    """Of its program."""
    address: str
    """Where it answers, as it listens: `0.0.0.0` is every interface of its host."""
    host: str
    """The name of its host."""
    pid: int
    """Its process id there."""
    start_time: datetime
    """UTC, by its own clock."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A broker that catches up under throttle."""

    broker_id: int
    author: str = ""
    """Who asked for it; empty when unknown."""
    time: datetime | None = None
    """When, UTC; None: unknown."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Who leads and since when, the last cycle, all overrides, who runs and whether it is paused."""

    term: int
    """The newest term."""
    leader_address: str
    """Where the leading planner answers."""
    last_cycle: Cycle | None
    """The leader's; None: none yet."""
    overrides: tuple[Override, ...]
    """The cluster's first, then the brokers' by id."""
    leader_since: datetime | None = None
    """When the leader's term began, UTC; None: unknown."""
    members: tuple[Member, ...] = ()
    """The processes that run, by service and start."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> scheduled cycles in a row without usable metrics."""
    pause: Pause | None = None
    """None: it is not paused."""
    catch_ups: tuple[CatchUp, ...] = ()
    """The brokers that catch up under throttle, by id."""


@dataclass(frozen=True, slots=True)
class PlannerState:
    """How one planner stands."""

    leading: bool
    """Whether this planner leads."""
    term: int
    """The newest term that it knows; 0: none."""
    leader_address: str
    """Where the leader answers; empty when unknown."""
    last_cycle: Cycle | None
    """The last cycle that this planner ran; None: none yet."""
    failures: Mapping[int, int]
    """Broker id -> scheduled cycles in a row without usable metrics."""
    leader_since: datetime | None = None
    """When the leader's term began, UTC; None: unknown."""


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
    """Return a rate, or say what is wrong with it.

    Raises:
        Invalid: when it is not in 1..2^63-1 bytes/s.
    """
    return _whole(
        rate_bytes_per_second,
        MAX_RATE_BYTES_PER_SECOND,
        "rate_bytes_per_second",
        "give a positive rate (1 MB/s is 1000000), or remove the override",
    )


def validate_broker_id(broker_id: int) -> int:
    """Return a broker id, or say what is wrong with it.

    Raises:
        Invalid: when it is not in 1..2^31-1.
    """
    return _whole(broker_id, MAX_BROKER_ID, "broker_id", "give the id of a broker, or none for the whole cluster")


def validate_limit(limit: int) -> int:
    """Return how many audit records are wanted, or say what is wrong with the number.

    Raises:
        Invalid: when it is not in 1..1,000.
    """
    return _whole(limit, MAX_AUDIT_RECORDS, "limit", "that many are kept, ask for fewer")


def validate_reason(reason: str) -> str:
    """Return why something is asked for, or say what is wrong with it.

    Raises:
        Invalid: when it is longer than 1,000 characters or not printable; bytes that are no UTF-8 are neither.
    """
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise Invalid(
            f"reason {reason[:40]!r} of {len(reason)} characters; give at most {MAX_REASON} printable ones on one line"
        )
    return reason


def _whole(value: int, largest: int, name: str, fix: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} {value!r} is no int; {fix}")
    if not 0 < value <= largest:
        raise Invalid(f"{name} {value} is outside of 1..{largest}; {fix}")
    return value


def override_from_message(message: admin_pb2.Override) -> Override:
    """Return the override that a message holds."""
    broker_id = message.broker_id if message.HasField("broker_id") else None
    expire_time = message.expire_time.ToDatetime(tzinfo=UTC) if message.HasField("expire_time") else None
    return Override(message.rate_bytes_per_second, broker_id, message.autoremove, expire_time, message.etag)


def audit_record_from_message(message: admin_pb2.AuditRecord) -> AuditRecord:
    """Return the audit record that a message holds."""
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
    """Return the cycle that a message holds."""
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
    """Return the state that a message holds."""
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
    """Return the catch-up that a message holds."""
    time = message.time.ToDatetime(tzinfo=UTC) if message.HasField("time") else None
    return CatchUp(message.broker_id, message.author, time)


def pause_from_message(message: types_pb2.Pause) -> Pause:
    """Return the pause that a message holds."""
    return Pause(
        mode=_PAUSE_MODES.get(message.mode, PauseMode.UNKNOWN),
        author=message.author,
        time=message.time.ToDatetime(tzinfo=UTC) if message.HasField("time") else None,
        reason=message.reason,
    )


def pause_mode_to_number(mode: PauseMode) -> types_pb2.Pause.Mode.ValueType:
    """Return the number of a mode, or say what is wrong with it.

    Raises:
        Invalid: when it is neither keep nor clear.
    """
    for number, known in _PAUSE_MODES.items():
        if known == mode:
            return types_pb2.Pause.Mode.ValueType(number)
    raise Invalid(f"pause mode {mode!r} is neither keep nor clear; give one of them")


def role_from_number(number: int) -> ReplicaRole:
    """Return the role that a number stands for."""
    return _ROLES.get(number, ReplicaRole.UNKNOWN)


def planner_state_from_message(message: planner_pb2.GetStateResponse) -> PlannerState:
    """Return the state that a message holds."""
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
        standing_bytes_per_second=_present(message, "standing_bytes_per_second"),
        headroom_bytes_per_second=_present(message, "headroom_bytes_per_second"),
        utilization_bytes_per_second=_present(message, "utilization_bytes_per_second"),
        capacity_bytes_per_second=_present(message, "capacity_bytes_per_second"),
        client_bytes_per_second=_present(message, "client_bytes_per_second"),
        client_age_seconds=_present(message, "client_age_seconds"),
        basis=_BASES.get(message.basis, Basis.UNKNOWN) if message.basis else None,
    )


def _present(message: types_pb2.Decision, name: str) -> int | None:
    return int(getattr(message, name)) if message.HasField(name) else None  # type: ignore[arg-type]


def _outcome_from_message(message: types_pb2.Outcome) -> Outcome:
    return Outcome(message.resource, _STATUSES.get(message.status, OutcomeStatus.UNKNOWN), message.reason)
