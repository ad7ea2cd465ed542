"""The values that operators see: decisions, outcomes, cycles, pauses, catch-ups, submissions, moves and estimates.

Services and the client package use the same classes. Their fields have the names of the messages' fields. The type to
know is `Cycle`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole
from autothrottle.core.codec import GIVEN
from autothrottle.core.open_enum import OpenEnum
from autothrottle.core.texts import caller_name
from autothrottle.core.units import BytesPerSecond


class Reason(OpenEnum):
    """The reason for a rate."""

    HEADROOM = "headroom"
    UNCHANGED = "unchanged"
    """The measured rate differs from the previous one by less than the change threshold."""
    KEPT = "kept"
    """No usable metrics; the failures do not exceed the threshold yet."""
    MINIMUM = "minimum"
    """No usable metrics for too long, or none since the reassignment began."""
    CLUSTER_OVERRIDE = "cluster-override"
    BROKER_OVERRIDE = "broker-override"
    OVER_CAPACITY = "over-capacity"
    """Clients need the link: a rate below the minimum, down to 0, if `pause_over_capacity` allows it."""
    STARVATION = "starvation"
    """A rate above the headroom, because with less the reassignment would never end."""
    FINISH_BY = "finish-by"
    """A rate below the headroom, because it is enough for the deadline."""

    @property
    def is_override(self) -> bool:
        """Whether an operator set the rate."""
        return self in (Reason.BROKER_OVERRIDE, Reason.CLUSTER_OVERRIDE)

    @property
    def is_measured(self) -> bool:
        """Whether the rate, or its being unchanged, follows from a measurement."""
        return self in (Reason.HEADROOM, Reason.UNCHANGED)


class Basis(OpenEnum):
    """The measurement on which a rate is based, for policies other than the original's formula."""

    GROWTH = "growth"
    """The present client load, projected with the growth of logs."""
    COUNTED = "counted"
    """The client load in the metric's interval, with replication counted."""
    GUESSED = "guessed"
    """The client load in the metric's interval, with replication estimated from the throttle."""
    STATIC = "static"
    """The operator's fixed rate, independent of the client load."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The rate of one broker in one role, and its inputs."""

    broker_id: int
    role: ReplicaRole
    rate_bytes_per_second: BytesPerSecond
    reason: Reason
    current_rate_bytes_per_second: BytesPerSecond | None = None
    """The broker's throttle before the cycle; None: not throttled."""
    headroom_bytes_per_second: BytesPerSecond | None = None
    """The policy's rate before the change threshold, also under an override; None: no metrics."""
    utilization_bytes_per_second: BytesPerSecond | None = None
    """Measured traffic of the link side; None if `headroom_bytes_per_second` is None."""
    capacity_bytes_per_second: BytesPerSecond | None = None
    """Capacity of the link side; None if `headroom_bytes_per_second` is None."""
    client_bytes_per_second: BytesPerSecond | None = None
    """The client load that the policy assumes; None if `headroom_bytes_per_second` is None, or for a fixed rate."""
    client_age_seconds: int | None = None
    """Seconds since the end of the metric's interval of that load, >= 0; None: unknown."""
    basis: Basis | None = None
    """The measurement on which the policy's rate is based; None for the original's formula."""
    override_bytes_per_second: BytesPerSecond | None = None
    """The rate of the override that the link's capacity limits to the decided rate; None: none, or not limited."""


LONGEST = timedelta(days=365)
"""A longer duration counts as infinite."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """The throttle of one broker in one role, as Kafka has it."""

    broker_id: int
    role: ReplicaRole
    rate_bytes_per_second: BytesPerSecond
    """As last read or written."""
    target_bytes_per_second: BytesPerSecond | None = None
    """The rate to which a ramp raises it in steps; None: it does not rise."""
    arrival_time: datetime | None = None
    """When the ramp arrives at its target, UTC, in whole seconds; None: it does not rise, or waits for a step."""

    def move_time(self, size: int, growth: BytesPerSecond, at: datetime) -> timedelta | None:
        """Return the time to copy bytes under this throttle; None: it would never end, or not within a year.

        With a constant rate it is KIP-73's MoveTime, `size / (rate - growth)`. A rising rate is taken as linear.

        Args:
            size: bytes to copy, >= 0.
            growth: produce traffic that counts against the throttle, bytes/s, >= 0.
            at: UTC; from now on.

        >>> from datetime import UTC
        >>> noon = datetime(2026, 11, 2, 12, tzinfo=UTC)
        >>> Throttle(7, ReplicaRole.LEADER, 15_000_000).move_time(3_600_000_000, 5_000_000, noon).total_seconds()
        360.0
        >>> rising = Throttle(7, ReplicaRole.LEADER, 10, 30, noon + timedelta(seconds=20))
        >>> rising.move_time(400, 0, noon).total_seconds(), rising.move_time(700, 0, noon).total_seconds()
        (20.0, 30.0)
        >>> rising.move_time(150, 0, noon).total_seconds()
        10.0
        """
        if size <= 0:
            return timedelta(0)
        start, end, rise = self.rate_bytes_per_second - growth, self.rate_bytes_per_second - growth, 0.0
        if self.target_bytes_per_second is not None and self.arrival_time is not None:
            end = self.target_bytes_per_second - growth
            rise = max(0.0, (self.arrival_time - at).total_seconds())
        if end <= 0:
            return None
        copied = (start + end) / 2 * rise
        if copied < size:
            seconds = rise + (size - copied) / end
        else:
            steepness = (end - start) / rise
            seconds = (math.sqrt(start * start + 2 * steepness * size) - start) / steepness
        return timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() else None


class OutcomeStatus(OpenEnum):
    """The result of one change."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The value was set already."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the change of one resource."""

    resource: ConfigResource
    status: OutcomeStatus
    reason: str = ""
    """Why it was refused: one sentence that names the cause and the fix."""


@dataclass(frozen=True, slots=True)
class ForeignThrottle:
    """A throttle key that another party has set and not removed."""

    resource: ConfigResource
    key: str
    value: str
    """The current value; a long list is truncated."""


class PauseMode(OpenEnum):
    """What happens during a pause to the throttles that autothrottle has set."""

    KEEP = "keep"
    """Rates and replica lists stay unchanged, regardless of reassignments."""
    CLEAR = "clear"
    """The earlier values are restored; reassignments continue without throttles."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause and its author. It lasts until an operator resumes the planner."""

    mode: PauseMode
    author: str = ""
    """Who paused; "": unknown."""
    time: datetime | None = None
    """When it began, UTC; None: unknown."""
    reason: str = ""
    """The reason given by the author."""

    def __str__(self) -> str:
        since = f", since {self.time:%Y-%m-%dT%H:%M:%SZ}" if self.time else ""
        by = f", by {caller_name(self.author)}" if self.author else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.mode.value}{since}{by}{why}"


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A request to throttle a broker's catch-up, and its author."""

    broker_id: int = field(metadata=GIVEN)
    """>= 0."""
    author: str = ""
    """Who requested it; "": unknown."""
    time: datetime | None = None
    """When it was requested, UTC; None: unknown."""


class AuditAction(OpenEnum):
    """What was done."""

    SET = "set"
    REMOVE = "remove"
    """Removed by an operator."""
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


@dataclass(frozen=True, slots=True)
class Cycle:
    """One finished cycle."""

    term: int
    """The fence of the term that ran it."""
    number: int
    """Its number within the term, from 1."""
    start_time: datetime
    """UTC."""
    end_time: datetime
    """UTC; not before `start_time`."""
    reason: str
    """What started it: `interval`, or the event."""
    sentence: str
    """One sentence that says what the cycle did."""
    topics: tuple[str, ...] = ()
    """The topics in reassignment."""
    decisions: tuple[Decision, ...] = ()
    """Ordered by broker and role. While paused they have measurements, and the rates that are not written."""
    outcomes: tuple[Outcome, ...] = ()
    """One for each resource with a change."""
    findings: tuple[str, ...] = ()
    """Foreign edits of our keys, and what could not be read; one sentence each."""
    error: str = ""
    """Why the cycle failed; "": it did not."""
    bytes_left: int | None = None
    """Bytes left to copy, summed over the known flows; None: no reassignment, or nothing is known."""
    eta: datetime | None = None
    """When the last byte is copied at the rate of the last minutes, UTC; None: unknown."""
    pause: Pause | None = None
    """The pause, in which no rate is written; None: not paused."""
    shadow: bool = False
    """Whether it ran in shadow mode, which writes nothing: the sentence describes the changes it would have made."""
    foreign_throttles: tuple[ForeignThrottle, ...] = ()
    """Foreign throttles while nothing is in reassignment, by resource and key; they stay, or wait for the clean-up."""
    eta_low: datetime | None = None
    """Earliest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_is_static: bool = False
    """Whether `eta` is not measured yet, but computed as bytes left divided by the current throttles."""
    throttles: tuple[Throttle, ...] = ()
    """The throttles in Kafka at the end of the cycle, also those of other parties; ordered by broker and role."""
    down_brokers: tuple[int, ...] = ()
    """Destinations that are down, so that the ETA is unknown. `bytes_left` contains their last known bytes."""
    throttles_are_known: bool = False
    """Whether `throttles` is complete; False: none were read yet, or the planner has an earlier version."""


def override_effect(
    broker_id: int | None, autoremove: bool, cycle: Cycle | None, pause: Pause | None, catches_up: bool
) -> str:
    """Return when an override acts, as a short text; "": unknown, since no cycle has read the cluster.

    Args:
        broker_id: the broker of the override; None: the cluster override.
        autoremove: whether the cluster override ends with the last reassignment.
        cycle: the last cycle, also one from before the override was set.
        pause: the current pause.
        catches_up: whether a broker catches up under a throttle.
    """
    if pause is not None:
        return "waits: autothrottle is paused; acts after throttlectl resume"
    if cycle is None or cycle.error:
        return ""
    if cycle.shadow:
        return "sets no throttle, because autothrottle runs in shadow mode"
    if broker_id is not None:
        is_throttled = cycle.pause is None and any(decision.broker_id == broker_id for decision in cycle.decisions)
        return "acts now" if is_throttled else f"acts in the next cycle, if broker {broker_id} is registered"
    if cycle.topics or catches_up:
        return "acts now"
    end = ", and ends with the last one" if autoremove else ""
    return f"armed: nothing moves now; acts when a move or a catch-up begins{end}"


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The leadership as one planner knows it, and its last cycle."""

    leading: bool = False
    """Whether this planner leads."""
    term: int = 0
    """The newest term that it knows; 0: none."""
    leader_address: str = ""
    """The leader's address; "": unknown."""
    last_cycle: Cycle | None = None
    """The last cycle that this planner ran; None: none yet."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    leader_since: datetime | None = None
    """When the leader's term began, UTC; None: unknown."""
    leader_host: str = ""
    """Name of the leader's host; "": unknown."""
    cluster_name: str = ""
    """Name of the Kafka cluster; "": unknown."""
    last_cycle_end: datetime | None = None
    """When the last cycle that this planner ran ended, UTC, also if it is not included; None: none yet."""
    throttles: tuple[Throttle, ...] = ()
    """The throttles that ramp steps have changed since the last cycle."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """What the author of a plan allows. The names are those of the options and of the fields of requests."""

    allow_fewer_replicas: bool = False
    """Partitions may get fewer replicas than now."""
    allow_fewer_racks: bool = False
    """The replicas of a partition may be in fewer racks than now."""
    allow_cordoned: bool = False
    """Cordoned brokers may get replicas."""
    allow_full: bool = False
    """Brokers may get more bytes than they have free."""
    skip_refused: bool = False
    """Refused partitions are left out, and the others are submitted."""


STRICT = Allowances()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A reason for which partitions of a plan are not submitted."""

    reason: str
    """What would happen and the fix, in one line that names the first partitions."""
    partitions: tuple[tuple[str, int], ...]
    """All (topic, partition) that share the reason, in the order of the plan."""
    allowed_by: str
    """The option that allows it, for example `allow_fewer_replicas`; "": nothing does."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of a requested reassignment. It counts partitions, except for `postponed`."""

    submitted: int
    """Accepted by Kafka; with `validate_only`: would be submitted."""
    already_in_progress: int = 0
    """Already being reassigned to their targets."""
    already_there: int = 0
    """Already on their target replicas."""
    refused: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(topic, partition) that Kafka refused -> the reason."""
    warnings: tuple[str, ...] = ()
    """Problems that do not prevent the reassignment, one sentence each."""
    postponed: int = 0
    """Number of replicas to exchange later, when the same reassignment is submitted again."""
    left_out: tuple[LeftOut, ...] = ()
    """Refused before the submission, by reason; only with `skip_refused`."""

    @property
    def partitions_left_out(self) -> frozenset[tuple[str, int]]:
        """All (topic, partition) that are refused before the submission."""
        return frozenset(row for reason in self.left_out for row in reason.partitions)

    def __add__(self, other: Submission) -> Submission:
        """Return the result of two submissions of different partitions."""
        return Submission(
            self.submitted + other.submitted,
            self.already_in_progress + other.already_in_progress,
            self.already_there + other.already_there,
            {**self.refused, **other.refused},
            tuple(dict.fromkeys((*self.warnings, *other.warnings))),
            self.postponed + other.postponed,
            (*self.left_out, *other.left_out),
        )


@dataclass(frozen=True, slots=True)
class RunningMove:
    """The partitions of one topic that gain replicas on the same brokers and lose replicas on the same brokers."""

    topic: str
    partitions: tuple[int, ...]
    """Ascending."""
    adding_replicas: tuple[int, ...]
    """Ids of the brokers that gain replicas, ascending."""
    removing_replicas: tuple[int, ...]
    """Ids of the brokers that lose replicas, ascending."""
    partitions_to_copy: int
    """Partitions with at least one new replica that is not in sync yet."""
    bytes_left: int | None = None
    """Bytes still to copy; None: unknown."""
    eta: datetime | None = None
    """When its last byte is copied, UTC; None: unknown."""


@dataclass(frozen=True, slots=True)
class CancelEffect:
    """What a cancellation does to one partition."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """Ids of the brokers that keep their replicas."""
    dropped_replicas: tuple[int, ...]
    """Ids of the brokers whose replicas are deleted."""
    bytes_lost: int | None = None
    """Bytes that the deleted replicas have copied; None: unknown."""


@dataclass(frozen=True, slots=True)
class LinkSideEstimate:
    """One link side's part of an estimate."""

    broker_id: int
    role: ReplicaRole
    bytes_to_copy: int
    produced_bytes_per_second: BytesPerSecond
    """Produce traffic during the reassignment that counts against the throttle."""
    rate_bytes_per_second: BytesPerSecond | None
    """The assumed throttle; None: unknown, because the capacity is unknown."""
    headroom_bytes_per_second: BytesPerSecond | None
    """The rate that the policy would give now; None: no metrics."""
    capacity_bytes_per_second: BytesPerSecond | None
    """Capacity of the link side; None: no metrics."""
    seconds: float | None
    """Duration; None: unknown, or it would never end."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a whole reassignment."""

    partitions: int
    """Number of partitions with replicas to copy."""
    total_partitions: int
    """Number of partitions in the cluster."""
    move_ratio: float
    """KIP-73's MoveRatio, in [0, 1]: partitions / total_partitions."""
    bytes_to_copy: int
    """Summed over all copies of the partitions of known size."""
    unknown_partitions: int
    """Number of partitions of unknown size."""
    seconds: float | None
    """Duration; None: unknown, or it would never end."""
    sides: tuple[LinkSideEstimate, ...] = ()
    """Ordered by broker and role."""
    warnings: tuple[str, ...] = ()
    """Problems of the reassignment, one sentence each."""
    left_out: tuple[LeftOut, ...] = ()
    """Partitions that are not estimated, since a submission refuses them, by reason; only with `skip_refused`."""
