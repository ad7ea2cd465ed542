"""Client of the admin service: overrides, reassignments, pause, catch-ups, leader and last cycle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from autothrottle.core.records import STRICT, Allowances, CancelEffect, CatchUp, Estimate, Pause, PauseMode, Submission
from autothrottle.messages import partitions_to_messages, refusals_from_messages, targets_to_messages, validate_reason
from autothrottle.v1 import admin_pb2, placement_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceStub
from autothrottle.v1.placement_pb2_grpc import PlacementServiceStub
from autothrottle_client.client import Client
from autothrottle_client.errors import AutothrottleError, Conflict, Invalid, Missing, NotLeader
from autothrottle_client.model import (
    AuditRecord,
    ClusterState,
    Override,
    RequestQuota,
    from_message,
    pause_mode_to_number,
    to_timestamp,
    validate_number,
)
from autothrottle_client.quotas import QuotaCalls
from autothrottle_client.reassignments import PARTITIONS_PER_REQUEST, Partition, Reassignments
from autothrottle_client.replicas import Replica, Replicas

if TYPE_CHECKING:
    from autothrottle.core.capacity.results import PoolsDifference, PoolsStatus, TimedForecasts
    from autothrottle.core.capacity.sizing import CapacityPlan, InstanceType, RecoveryGoal, UsableShares, Workload
    from autothrottle.core.placement.plan import PlanOptions
    from autothrottle.core.placement.proposal import ProposedPlacement

# Methods about plans import what they need: most programs plan nothing, and shall start fast.

SUBMIT_TIMEOUT = timedelta(seconds=60)
"""Timeout of a submission. The planner sets the throttles, reads them back and waits a second before it submits."""

ESTIMATE_TIMEOUT = timedelta(seconds=30)
"""Timeout of an estimate, which reads log sizes twice, some seconds apart."""

PLAN_TIMEOUT = timedelta(seconds=60)
"""Timeout of a plan: the service reads the whole cluster."""


class AdminClient(Client[AdminServiceStub]):
    """Client of the admin service. A broker id of None means the whole cluster.

    Every method may raise Unavailable: no replica answered in time.
    """

    service = "admin"
    stub = AdminServiceStub

    @property
    def quotas(self) -> QuotaCalls:
        """Kafka's client quotas."""
        return QuotaCalls(self._replicas)

    def list_overrides(self) -> tuple[tuple[Override, ...], tuple[str, ...]]:
        """Return (all overrides, warnings). The cluster override comes first, then broker overrides by id.

        Each warning is a sentence that names an override that cannot be read.
        """
        response = self._unary(lambda admin: admin.ListOverrides, admin_pb2.ListOverridesRequest())
        return tuple(from_message(Override, override) for override in response.overrides), tuple(response.warnings)

    def get_override(self, broker_id: int | None = None) -> Override:
        """Return one override.

        Raises:
            Missing: no override is set.
            Invalid: the broker id is not in 0..2^31-1.
        """
        request = admin_pb2.GetOverrideRequest(broker_id=_optional(broker_id))
        response = self._unary(lambda admin: admin.GetOverride, request)
        return from_message(Override, response.override)

    def set_override(
        self,
        rate_bytes_per_second: int,
        broker_id: int | None = None,
        autoremove: bool = False,
        expire_time: datetime | None = None,
        etag: str = "",
        beyond_capacity: bool = False,
    ) -> tuple[Override, tuple[str, ...]]:
        """Set or replace an override, start a cycle and return (override, warnings).

        A call with an etag is sent at most once, because a retry would fail with Conflict.

        Args:
            rate_bytes_per_second: 1 to 2^63-1; 1 MB/s is 1,000,000.
            broker_id: the broker to throttle; None: every broker that takes part in a reassignment.
            autoremove: end the cluster override when all reassignments are done; no effect on a broker override.
            expire_time: time at which the override ends, in the future and with a time zone; None: never.
            etag: replace only this version; empty: replace any version, or create the override.
            beyond_capacity: apply the rate also above the capacity of a link; otherwise the known capacity limits it.

        Raises:
            Invalid: a number or the time is out of range.
            Conflict: the current version is not the one of the etag, or no override is set.
        """
        override = admin_pb2.Override(
            broker_id=_optional(broker_id),
            rate_bytes_per_second=validate_number("rate_bytes_per_second", rate_bytes_per_second),
            autoremove=autoremove,
            expire_time=to_timestamp(expire_time),
            etag=etag,
            beyond_capacity=beyond_capacity,
        )
        request = admin_pb2.SetOverrideRequest(override=override)
        response = self._unary(lambda admin: admin.SetOverride, request, probe=_list_overrides if etag else None)
        return from_message(Override, response.override), tuple(response.warnings)

    def remove_override(self, broker_id: int | None = None, etag: str = "") -> None:
        """Remove an override. Sent at most once, because a retry would fail with Missing.

        Args:
            broker_id: the broker; None: the cluster override.
            etag: remove only this version; empty: remove any version.

        Raises:
            Missing: no override is set.
            Conflict: the current version is not the one of the etag.
            Invalid: the broker id is not in 0..2^31-1.
            Unavailable: no replica can be reached, or the connection broke. In the second case the override may be
                removed.
        """
        request = admin_pb2.RemoveOverrideRequest(broker_id=_optional(broker_id), etag=etag)
        self._unary(lambda admin: admin.RemoveOverride, request, probe=_list_overrides)

    def list_audit_records(self, limit: int = 100) -> tuple[AuditRecord, ...]:
        """Return the latest audit records, newest first. The service keeps the last 1,000.

        Raises:
            Invalid: the limit is not in 1..1,000.
        """
        request = admin_pb2.ListAuditRecordsRequest(limit=validate_number("limit", limit))
        response = self._unary(lambda admin: admin.ListAuditRecords, request)
        return tuple(from_message(AuditRecord, record) for record in response.records)

    def request_cycle(self) -> None:
        """Ask the leading planner to start a cycle. Does not wait for it."""
        self._unary(lambda admin: admin.RequestCycle, admin_pb2.RequestCycleRequest())

    def pause(self, mode: PauseMode = PauseMode.KEEP, reason: str = "") -> Pause:
        """Pause the planner until `resume`, across changes of leader. Replaces a current pause.

        Overrides set during a pause take effect on resume. The planner refuses submissions while paused.

        Args:
            mode: keep the current throttles, or restore the values from before autothrottle.
            reason: shown in the log and the state; one line of at most 1,000 printable characters.

        Raises:
            Invalid: the mode is unknown, or the reason is too long or not printable.
        """
        request = admin_pb2.PauseRequest(mode=pause_mode_to_number(mode), reason=validate_reason(reason))
        response = self._unary(lambda admin: admin.Pause, request)
        return from_message(Pause, response.pause)

    def resume(self) -> bool:
        """Resume the planner and start a cycle. Return whether it was paused."""
        return self._unary(lambda admin: admin.Resume, admin_pb2.ResumeRequest()).was_paused

    def start_catch_up(self, broker_id: int) -> tuple[CatchUp, tuple[str, ...]]:
        """Throttle a broker's catch-up until the broker is in sync; return (catch-up, warnings).

        Raises:
            Invalid: the broker id is not in 0..2^31-1.
        """
        request = admin_pb2.StartCatchUpRequest(broker_id=validate_number("broker_id", broker_id))
        response = self._unary(lambda admin: admin.StartCatchUp, request)
        return from_message(CatchUp, response.catch_up), tuple(response.warnings)

    def stop_catch_up(self, broker_id: int) -> None:
        """Remove the throttles of a broker's catch-up. Sent at most once, because a retry would fail with Missing.

        Raises:
            Missing: the broker has no throttled catch-up.
            Invalid: the broker id is not in 0..2^31-1.
            Unavailable: no replica can be reached, or the connection broke. In the second case the catch-up may have
                ended.
        """
        request = admin_pb2.StopCatchUpRequest(broker_id=validate_number("broker_id", broker_id))
        self._unary(lambda admin: admin.StopCatchUp, request, probe=_list_overrides)

    def list_request_quotas(self) -> tuple[RequestQuota, ...]:
        """Return all request quotas by user and client id; defaults come first."""
        response = self._unary(lambda admin: admin.ListRequestQuotas, admin_pb2.ListRequestQuotasRequest())
        return tuple(from_message(RequestQuota, quota) for quota in response.quotas)

    def set_request_quota(
        self, request_rate: int, user: str | None = None, client_id: str | None = None
    ) -> RequestQuota:
        """Set or replace the request quota of a user, a client id or both; return it as stored.

        Args:
            request_rate: requests per second, 1 to 1,000,000.
            user: the user; "": every user without a quota of its own; None: any user.
            client_id: the client id; "": every client id without a quota of its own; None: any client id.

        Raises:
            Invalid: the rate or a name is out of range, both names are None, or 1,000 quotas are set.
        """
        quota = admin_pb2.RequestQuota(
            user=user, client_id=client_id, request_rate=validate_number("request_rate", request_rate)
        )
        request = admin_pb2.SetRequestQuotaRequest(quota=quota)
        return from_message(RequestQuota, self._unary(lambda admin: admin.SetRequestQuota, request).quota)

    def remove_request_quota(self, user: str | None = None, client_id: str | None = None) -> None:
        """Remove a request quota. Sent at most once, because a retry would fail with Missing.

        Args:
            user: the user of the quota, as in `set_request_quota`.
            client_id: the client id of the quota, as in `set_request_quota`.

        Raises:
            Missing: the quota is not set.
            Invalid: both names are None.
            Unavailable: no replica can be reached, or the connection broke. In the second case the quota may be
                removed.
        """
        request = admin_pb2.RemoveRequestQuotaRequest(user=user, client_id=client_id)
        self._unary(lambda admin: admin.RemoveRequestQuota, request, probe=_list_overrides)

    def state(self, with_cycle: bool = True) -> ClusterState:
        """Return the leader, its last cycle and all overrides.

        Args:
            with_cycle: whether to include the last cycle, which has hundreds of kilobytes on a large cluster. A caller
                that polls needs it only when `last_cycle_end` has changed.
        """
        request = admin_pb2.GetClusterStateRequest(without_cycle=not with_cycle)
        return from_message(ClusterState, self._unary(lambda admin: admin.GetClusterState, request))

    def list_reassignments(self, with_paths: bool = False, with_moves: bool = False) -> Reassignments:
        """Return all ongoing reassignments, whichever tool submitted them.

        Args:
            with_paths: also return the data that each leader sends to each follower.
            with_moves: also return the moves, for which brokers are asked for log sizes.

        Raises:
            Incomplete: the reassignments cannot be read completely. Do not conclude that none are ongoing.
        """
        request = admin_pb2.ListReassignmentsRequest(with_paths=with_paths, with_moves=with_moves)
        return from_message(Reassignments, self._unary(lambda admin: admin.ListReassignments, request))

    def submit_reassignment(
        self,
        targets: Mapping[Partition, Sequence[int]],
        validate_only: bool = False,
        timeout: timedelta = SUBMIT_TIMEOUT,
        throttle_bytes_per_second: int | None = None,
        allowances: Allowances = STRICT,
    ) -> Submission:
        """Throttle partitions, then submit their reassignment; return when Kafka accepts it.

        No byte is copied without a throttle. Partitions that already are on the target replicas, or already move
        there, are not submitted again. More than 10,000 partitions are submitted in parts of 10,000, because a KRaft
        controller refuses more in one request. An error after the first part tells how many were submitted.

        Args:
            targets: (topic, partition) -> target broker ids, the preferred leader first.
            validate_only: validate without any change.
            timeout: for each part. If throttles are not in effect by then, the planner removes them and submits
                nothing.
            throttle_bytes_per_second: fixed rate, 1 to 10^12; None: the policy decides the rates. It is the cluster
                override with autoremove, so it ends with the last reassignment.
            allowances: what the service does not refuse, and whether it leaves out what it refuses.

        Raises:
            Invalid: a number is out of range, or a broker is unknown or down.
            Missing: a topic or partition does not exist.
            Conflict: a partition already moves to other replicas, has no live replica, or would lose something that
                `allowances` does not allow; another submission is in progress, or a throttle could not be set. Nothing
                was submitted. The message has a line for each reason.
        """
        done, parts = Submission(0), _parts(targets)
        if len(parts) > 1 and not validate_only:  # a part that is refused must not end a plan that has begun
            self.submit_reassignment(targets, True, timeout, throttle_bytes_per_second, allowances)
        refused = list[AutothrottleError]()
        for part in parts:
            request = admin_pb2.SubmitReassignmentRequest(
                partitions=targets_to_messages({row: targets[row] for row in part}),
                validate_only=validate_only,
                throttle_bytes_per_second=throttle_bytes_per_second,
                **asdict(allowances),
            )
            try:
                with _progress_in_errors(0 if validate_only else done.submitted, "submitted"):
                    response = self._unary(lambda admin: admin.SubmitReassignment, request, timeout)
            except (Missing, Invalid, Conflict) as error:
                if not validate_only:
                    raise
                refused.append(error)  # the reasons of all parts are needed at once
                continue
            done += from_message(Submission, response)
        if refused:
            raise type(refused[0])("\n".join(dict.fromkeys(map(str, refused)))) from refused[0]
        return done

    def estimate_reassignment(
        self,
        targets: Mapping[Partition, Sequence[int]],
        max_ratio: float | None = None,
        within: timedelta | None = None,
        timeout: timedelta = ESTIMATE_TIMEOUT,
        allowances: Allowances = STRICT,
    ) -> Estimate:
        """Return the duration of a reassignment, or the throttles that it needs. Changes nothing.

        Without `max_ratio` and `within`, the estimate uses the current headroom.

        Args:
            targets: (topic, partition) -> target broker ids, the preferred leader first.
            max_ratio: share of every link's capacity for replication, in (0, 1]; excludes `within`.
            within: required duration, 1 s to 365 days.
            timeout: for the whole call, which takes some seconds.
            allowances: as in `submit_reassignment`, which refuses the same plans.

        Raises:
            Invalid: a number is out of range, or a broker is unknown or down.
            Missing: a topic or partition does not exist.
            Conflict: a submission would refuse partitions; the message has a line for each reason.
        """
        if max_ratio is not None and not 0 < max_ratio <= 1:
            raise Invalid(f"max_ratio {max_ratio!r} is outside (0, 1]; give for example 0.3 for 30 %")
        request = admin_pb2.EstimateReassignmentRequest(
            partitions=targets_to_messages(targets), max_ratio=max_ratio or 0.0, **asdict(allowances)
        )
        if within is not None:
            request.within.FromTimedelta(within)
        return from_message(Estimate, self._unary(lambda admin: admin.EstimateReassignment, request, timeout))

    def plan_placement(self, options: PlanOptions, timeout: timedelta = PLAN_TIMEOUT) -> ProposedPlacement:
        """Return a plan for the replicas of topics. Changes nothing; submit its `targets` to execute it.

        Args:
            options: of the operation, for example `ScaleOptions`; those that only `topicmappr` has are refused.
            timeout: of the call; the service reads the whole cluster.

        Raises:
            Invalid: the options are wrong, or sizes or free storage are unknown.
            Missing: no topic matches, or no metrics are stored.
            Incomplete: the cluster cannot be read completely.
        """
        from autothrottle import planning_messages

        request = planning_messages.plan_request(options)
        return planning_messages.plan_from_message(self._placement(request, timeout).plan)

    def plan_pools(
        self, repair_lost: bool = False, allow_fewer_racks: bool = False, timeout: timedelta = PLAN_TIMEOUT
    ) -> PoolsDifference:
        """Return what differs between the server's pools file and the cluster. Changes nothing; submit its `targets`.

        Args:
            repair_lost: also move the replicas of brokers that are not in the cluster.
            allow_fewer_racks: replicas may share a rack where the brokers leave no other choice.
            timeout: of the call; the service reads the whole cluster.

        Raises:
            Missing: the server has no pools file.
            Invalid: the file contradicts the cluster, or sizes or free storage are needed and unknown.
            Incomplete: the cluster cannot be read completely.
        """
        from autothrottle.planning_messages import difference_from_message

        request = placement_pb2.PlanPoolsRequest(repair_lost=repair_lost, allow_fewer_racks=allow_fewer_racks)
        return difference_from_message(self._placement(request, timeout))

    def get_pool_status(self, timeout: timedelta = PLAN_TIMEOUT) -> PoolsStatus:
        """Return how full each pool of the server's pools file is.

        Raises:
            Missing: the server has no pools file, or no metrics are stored.
            Invalid: the file contradicts the cluster.
            Incomplete: the cluster cannot be read completely.
        """
        from autothrottle.core.capacity.results import PoolsStatus

        return from_message(PoolsStatus, self._placement(placement_pb2.GetPoolStatusRequest(), timeout))

    def get_capacity(
        self,
        workload: Workload,
        instances: Sequence[InstanceType],
        shares: UsableShares | None = None,
        goal: RecoveryGoal | None = None,
        timeout: timedelta = PLAN_TIMEOUT,
    ) -> CapacityPlan:
        """Return how many brokers of which instance type a workload needs.

        Args:
            workload: the data that clients write and read.
            instances: 1 to 20, with different names.
            shares: of each resource that may be used; None: the defaults.
            goal: the loss that the brokers survive; None: that of one broker.
            timeout: of the call.

        Raises:
            Invalid: a value is out of its range, or too many brokers would be needed.
        """
        from autothrottle import planning_messages
        from autothrottle.core.capacity.sizing import RecoveryGoal, UsableShares

        inputs = workload, instances, shares or UsableShares(), goal or RecoveryGoal()
        answer = self._placement(planning_messages.capacity_request(*inputs), timeout)
        return planning_messages.capacity_from_message(answer, workload, instances)

    def get_forecast(self, timeout: timedelta | None = None) -> TimedForecasts:
        """Return when brokers and pools reach their limits, as computed in the last hour.

        Raises:
            Missing: the server has no history, or it has no sample.
        """
        from autothrottle.core.capacity.results import TimedForecasts

        return from_message(TimedForecasts, self._placement(placement_pb2.GetForecastRequest(), timeout))

    def _placement(self, request: Message, timeout: timedelta | None) -> Any:
        """Call a method of the placement service, which has the name of its request without `Request`."""
        method = type(request).__name__.removesuffix("Request")

        def call(replica: Replica, seconds: float) -> Message:
            response: Message = getattr(PlacementServiceStub(replica.channel), method)(request, timeout=seconds)
            return response

        return self._replicas.call(call, timeout)

    def check_cancellation(
        self, partitions: Collection[Partition], timeout: timedelta = SUBMIT_TIMEOUT
    ) -> tuple[tuple[CancelEffect, ...], Mapping[Partition, str]]:
        """Return (effects on the partitions that would be cancelled, other partition -> why it would go on).

        Changes nothing. `cancel_reassignment` checks again, from newer data.

        Args:
            partitions: (topic, partition) pairs.
            timeout: for each part of 10,000 partitions.
        """
        effects, refused = list[CancelEffect](), dict[Partition, str]()
        for part in _parts(partitions):
            request = admin_pb2.CheckCancellationRequest(partitions=partitions_to_messages(part))
            response = self._unary(lambda admin: admin.CheckCancellation, request, timeout)
            effects += (from_message(CancelEffect, effect) for effect in response.effects)
            refused |= refusals_from_messages(response.refused)
        return tuple(effects), refused

    def cancel_reassignment(
        self, partitions: Collection[Partition], timeout: timedelta = SUBMIT_TIMEOUT
    ) -> tuple[int, Mapping[Partition, str]]:
        """Cancel the reassignment of partitions; return (number cancelled, other partition -> why it goes on).

        A partition is not cancelled unless at least min(min.insync.replicas, live in-sync replicas) of its original
        replicas are alive and in sync.

        Sent at most once, because a retry would fail with Missing. More than 10,000 partitions are cancelled in parts
        of 10,000. An error after the first part tells how many were cancelled.

        Args:
            partitions: (topic, partition) pairs that stay on their original replicas.
            timeout: for each part; Kafka's controller is slow with many partitions.

        Raises:
            Missing: none of the partitions is being reassigned.
            Invalid: the backend does not support cancellation.
            Unavailable: no replica can be reached, or the connection broke. In the second case the reassignment may
                be cancelled.
        """
        cancelled, refused, missing = 0, dict[Partition, str](), list[Missing]()
        parts = _parts(partitions)
        for part in parts:
            request = admin_pb2.CancelReassignmentRequest(partitions=partitions_to_messages(part))
            try:
                with _progress_in_errors(cancelled, "cancelled"):
                    response = self._unary(lambda admin: admin.CancelReassignment, request, timeout, _list_overrides)
            except Missing as error:
                missing.append(error)
                continue
            cancelled += response.cancelled
            refused.update(refusals_from_messages(response.refused))
        if len(missing) == len(parts):
            raise missing[0]
        return cancelled, refused

    def _locate(self, replicas: Replicas, timeout: timedelta) -> str:
        request = admin_pb2.GetClusterStateRequest(without_cycle=True)

        def ask(replica: Replica, seconds: float) -> str:
            return AdminServiceStub(replica.channel).GetClusterState(request, timeout=seconds).leader_address

        address = replicas.call(ask, timeout)
        if not address:
            raise NotLeader("the leader's address is unknown")
        return address


def _list_overrides(replica: Replica, seconds: float) -> None:
    """Return if the service can read its state: the probe of calls that are sent once."""
    AdminServiceStub(replica.channel).ListOverrides(admin_pb2.ListOverridesRequest(), timeout=seconds)


def _optional(broker_id: int | None) -> int | None:
    return None if broker_id is None else validate_number("broker_id", broker_id)


def _parts(partitions: Collection[Partition]) -> list[list[Partition]]:
    """Split partitions into those of each request, at least one."""
    rows, size = list(partitions), PARTITIONS_PER_REQUEST
    return [rows[first : first + size] for first in range(0, len(rows), size)] or [[]]


@contextmanager
def _progress_in_errors(count: int, done: str) -> Iterator[None]:
    """Add to errors how many partitions earlier requests have submitted or cancelled."""
    try:
        yield
    except AutothrottleError as error:
        if count:
            raise type(error)(f"{count} partitions were {done}, the next ones were not: {error}") from error
        raise
