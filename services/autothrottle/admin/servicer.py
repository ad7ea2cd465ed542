"""The gRPC service for operators."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import grpc

from autothrottle.admin.action_log import ActionLog, log_action, moves_words, partitions_words
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.plan_check import PlanCheck
from autothrottle.core.cluster.configs import validate_broker_id
from autothrottle.core.errors import AutothrottleError, Conflict, Invalid, Missing, NotLeader, Unavailable
from autothrottle.core.forecast.eta import Goal
from autothrottle.core.operators.audit import StoredAuditRecord, validate_audit_limit
from autothrottle.core.operators.sources import (
    Overrides,
    StoredOverride,
    capacity_warnings,
    format_etag,
    override_owner,
    parse_etag,
    readable,
    unreadable_entries,
    validate_expire_time,
    validate_rate,
)
from autothrottle.core.operators.submission import Targets
from autothrottle.core.records import Allowances, AuditAction, CatchUp, Cycle, Pause, Submission, override_effect
from autothrottle.core.request_quotas import (
    RequestQuotaEntity,
    in_order,
    validate_request_quota_entity,
    validate_request_rate,
)
from autothrottle.core.units import BytesPerSecond, format_megabytes
from autothrottle.messages import refusals_to_messages, validate_reason
from autothrottle.ports.kafka import BrokerRegistry, SnapshotSource
from autothrottle.ports.services import LeadingPlanner
from autothrottle.ports.state_store import CatchUpStore, Membership, OverrideStore, PauseStore, RequestQuotaStore
from autothrottle.runtime.access import author
from autothrottle.runtime.server import time_left
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from autothrottle.wire.common import (
    SAME_NAMES,
    expire_time_from_message,
    partitions_from_messages,
    pause_mode_from_number,
    reassignments_to_list,
    targets_from_messages,
    with_known_fields,
)

_TIMEOUT = timedelta(seconds=5)

_WARNING_TIMEOUT = timedelta(seconds=1)
"""Timeout of each lookup for warnings: the override is already stored by then."""

log = logging.getLogger(__name__)

_NO_LEADER = "no planner leads at the moment; try again in a few seconds"


@with_known_fields
class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    def __init__(
        self,
        overrides: OverrideStore,
        planner: LeadingPlanner,
        brokers: BrokerRegistry,
        snapshots: SnapshotSource,
        membership: Membership,
        pauses: PauseStore,
        estimator: Estimator,
        catch_ups: CatchUpStore,
        request_quotas: RequestQuotaStore,
        plan_check: PlanCheck,
    ) -> None:
        self._overrides, self._planner, self._brokers, self._snapshots = overrides, planner, brokers, snapshots
        self._membership, self._pauses, self._estimator = membership, pauses, estimator
        self._catch_ups, self._request_quotas, self._plan_check = catch_ups, request_quotas, plan_check
        self._actions = ActionLog(overrides)

    def ListOverrides(
        self, request: admin_pb2.ListOverridesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListOverridesResponse:
        overrides = self._overrides.read_overrides()
        effects = self._effects() if overrides.cluster or overrides.brokers else None
        return admin_pb2.ListOverridesResponse(
            overrides=overrides_to_messages(overrides, effects), warnings=override_warnings(overrides)
        )

    def GetOverride(
        self, request: admin_pb2.GetOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetOverrideResponse:
        broker_id = _broker_id(request)
        override = _current(self._overrides.read_overrides(), broker_id)
        if override is None:
            raise Missing(_no_override(broker_id))
        return admin_pb2.GetOverrideResponse(override=override_to_message(broker_id, override, self._effects()))

    def SetOverride(
        self, request: admin_pb2.SetOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SetOverrideResponse:
        """Store an override. The leading planner watches the store and acts at once."""
        broker_id, proposed = override_from_message(request.override)
        if proposed.expire_time is not None:
            validate_expire_time(proposed.expire_time, datetime.now(UTC))
        who = author(context)
        override = self._overrides.set_override(broker_id, proposed, who=who)
        sentence = f"Override of {override_owner(broker_id)} set to {override.rate} bytes/s"
        log_action(AuditAction.SET, who, sentence, broker_id)
        warnings = self._warnings(broker_id, override)
        for warning in warnings:
            log.warning("%s: %s", sentence, warning)
        stored = override_to_message(broker_id, override, self._effects())
        return admin_pb2.SetOverrideResponse(override=stored, warnings=warnings)

    def RemoveOverride(
        self, request: admin_pb2.RemoveOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RemoveOverrideResponse:
        broker_id, version, who = _broker_id(request), parse_etag(request.etag), author(context)
        if not self._overrides.remove_override(broker_id, version=version, who=who):
            raise Missing(_no_override(broker_id))
        log_action(AuditAction.REMOVE, who, f"Override of {override_owner(broker_id)} removed", broker_id)
        return admin_pb2.RemoveOverrideResponse()

    def ListAuditRecords(
        self, request: admin_pb2.ListAuditRecordsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListAuditRecordsResponse:
        """Return the newest actions of operators."""
        reading = self._overrides.read_audit_records(validate_audit_limit(request.limit))
        return admin_pb2.ListAuditRecordsResponse(
            records=map(audit_record_to_message, reading.records), warnings=reading.problems
        )

    def RequestCycle(
        self, request: admin_pb2.RequestCycleRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RequestCycleResponse:
        who = author(context)
        with self._actions.failure_recorded(AuditAction.REQUEST_CYCLE, who), _leader_required():
            self._planner.run_cycle(f"requested by {who}", _TIMEOUT)
        self._actions.record(AuditAction.REQUEST_CYCLE, who, "Cycle requested")
        return admin_pb2.RequestCycleResponse()

    def GetClusterState(
        self, request: admin_pb2.GetClusterStateRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetClusterStateResponse:
        """Return the leader and its last cycle, the overrides, the members, the pause and the catch-ups."""
        pause = self._pauses.read_pause()
        # Not longer than the caller waits: a call that ends tells the client that a planner hangs, and the next call
        # begins with another one.
        timeout = min(_TIMEOUT, time_left(context))
        state = self._planner.state(timeout, with_cycle=not request.without_cycle)
        if not state.leading:
            raise Unavailable(_NO_LEADER)
        overrides, catch_ups = self._overrides.read_overrides(), readable(self._catch_ups.read)
        effects = None if request.without_cycle else _Effects(state.last_cycle, pause, bool(catch_ups))
        return SAME_NAMES.to_message(
            admin_pb2.GetClusterStateResponse,
            state,
            overrides=overrides_to_messages(overrides, effects),
            members=SAME_NAMES.to_messages(admin_pb2.Member, self._membership.members(_TIMEOUT)),
            pause=None if pause is None else SAME_NAMES.to_message(types_pb2.Pause, pause),
            catch_ups=SAME_NAMES.to_messages(admin_pb2.CatchUp, (catch_ups[b] for b in sorted(catch_ups))),
            warnings=[*override_warnings(overrides), *unreadable_entries(catch_ups).values()],
        )

    def ListReassignments(
        self, request: admin_pb2.ListReassignmentsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListReassignmentsResponse:
        snapshot = self._snapshots.fetch_snapshot(timeout=time_left(context))
        moves = self._estimator.moves(snapshot, time_left(context) / 2) if request.with_moves else ()
        return reassignments_to_list(snapshot, request.with_paths, moves)

    def SubmitReassignment(
        self, request: admin_pb2.SubmitReassignmentRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SubmitReassignmentResponse:
        """Check a reassignment, and have the leading planner throttle and then submit it."""
        requested, who = targets_from_messages(request.partitions), author(context)
        allowances = SAME_NAMES.from_message(Allowances, request)
        is_fixed = request.HasField("throttle_bytes_per_second")
        rate = validate_rate(request.throttle_bytes_per_second) if is_fixed else None
        moves = moves_words(requested)
        recorded = (
            nullcontext() if request.validate_only else self._actions.failure_recorded(AuditAction.SUBMIT, who, moves)
        )
        with recorded:
            plan = self._plan_check.check(requested, allowances, time_left(context))
            if request.validate_only and not plan.targets:
                nothing = Submission(0, warnings=plan.warnings, left_out=plan.left_out)
                return SAME_NAMES.to_message(admin_pb2.SubmitReassignmentResponse, nothing)
            plan.require_partitions()
            moves = moves_words(plan.targets)
            with _leader_required(), self._fixed_rate(rate, request.validate_only, who) as accepted:
                submitted = self._planner.submit_reassignment(plan.targets, request.validate_only, time_left(context))
                accepted.extend([submitted] if submitted.submitted or submitted.already_in_progress else [])
        warnings = (*plan.warnings, *self._rate_warnings(rate, plan.targets), *submitted.warnings)
        submitted = replace(submitted, warnings=warnings, left_out=plan.left_out)
        if not request.validate_only:
            refused = f", {len(submitted.refused)} refused" if submitted.refused else ""
            self._actions.record(AuditAction.SUBMIT, who, f"{moves}: {submitted.submitted} submitted{refused}")
        return SAME_NAMES.to_message(admin_pb2.SubmitReassignmentResponse, submitted)

    def CancelReassignment(
        self, request: admin_pb2.CancelReassignmentRequest, context: grpc.ServicerContext
    ) -> admin_pb2.CancelReassignmentResponse:
        rows, who = partitions_from_messages(request.partitions), author(context)
        subject = partitions_words(rows)
        with self._actions.failure_recorded(AuditAction.CANCEL, who, subject), _leader_required():
            refused = self._planner.cancel_reassignment(rows, time_left(context))
        cancelled, refusals = len(rows) - len(refused), f", {len(refused)} refused" if refused else ""
        self._actions.record(AuditAction.CANCEL, who, f"{subject}: {cancelled} cancelled{refusals}")
        return admin_pb2.CancelReassignmentResponse(cancelled=cancelled, refused=refusals_to_messages(refused))

    def CheckCancellation(
        self, request: admin_pb2.CheckCancellationRequest, context: grpc.ServicerContext
    ) -> admin_pb2.CheckCancellationResponse:
        """Show what a cancellation would do; changes nothing."""
        rows = partitions_from_messages(request.partitions)
        effects, refused = self._estimator.cancellation(rows, time_left(context))
        return admin_pb2.CheckCancellationResponse(
            effects=SAME_NAMES.to_messages(admin_pb2.CancelEffect, effects), refused=refusals_to_messages(refused)
        )

    def EstimateReassignment(
        self, request: admin_pb2.EstimateReassignmentRequest, context: grpc.ServicerContext
    ) -> admin_pb2.EstimateReassignmentResponse:
        """Estimate a reassignment; changes nothing."""
        requested, goal = targets_from_messages(request.partitions), goal_from_message(request)
        plan = self._plan_check.check(requested, SAME_NAMES.from_message(Allowances, request), time_left(context))
        plan.require_partitions()
        estimate = self._estimator.estimate(plan.snapshot, plan.targets, goal, time_left(context))
        estimate = replace(estimate, warnings=(*plan.warnings, *estimate.warnings), left_out=plan.left_out)
        return SAME_NAMES.to_message(admin_pb2.EstimateReassignmentResponse, estimate)

    def Pause(self, request: admin_pb2.PauseRequest, context: grpc.ServicerContext) -> admin_pb2.PauseResponse:
        """Store a pause. The leading planner watches the store and acts at once."""
        mode, reason = pause_mode_from_number(request.mode), validate_reason(request.reason)
        pause = Pause(mode, author(context), datetime.now(UTC), reason)
        self._pauses.set_pause(pause)
        log_action(AuditAction.PAUSE, pause.author, f"Paused, {mode.value}{f': {reason}' if reason else ''}")
        return admin_pb2.PauseResponse(pause=SAME_NAMES.to_message(types_pb2.Pause, pause))

    def Resume(self, request: admin_pb2.ResumeRequest, context: grpc.ServicerContext) -> admin_pb2.ResumeResponse:
        """Remove the pause. The leading planner watches the store and acts at once."""
        who = author(context)
        was_paused = self._pauses.remove_pause(who)
        if was_paused:
            log_action(AuditAction.RESUME, who, "Resumed")
        return admin_pb2.ResumeResponse(was_paused=was_paused)

    def StartCatchUp(
        self, request: admin_pb2.StartCatchUpRequest, context: grpc.ServicerContext
    ) -> admin_pb2.StartCatchUpResponse:
        """Start the catch-up of a broker under throttle. The leading planner watches the store and acts at once."""
        catch_up = CatchUp(_required_broker_id(request), author(context), datetime.now(UTC))
        self._catch_ups.put(catch_up.broker_id, catch_up)
        sentence = f"Broker {catch_up.broker_id} catches up under throttle"
        log_action(AuditAction.START_CATCH_UP, catch_up.author, sentence, catch_up.broker_id)
        warnings = self._unregistered(
            catch_up.broker_id,
            "its replicas are throttled from its start, but its first fetches, of at most "
            "replica.fetch.response.max.bytes (10.5 MB by default) from each leader, pass at link speed; without "
            "replicas the catch-up ends at once",
        )
        sent = SAME_NAMES.to_message(admin_pb2.CatchUp, catch_up)
        return admin_pb2.StartCatchUpResponse(catch_up=sent, warnings=warnings)

    def StopCatchUp(
        self, request: admin_pb2.StopCatchUpRequest, context: grpc.ServicerContext
    ) -> admin_pb2.StopCatchUpResponse:
        """End a catch-up. The leading planner watches the store and removes its throttles at once."""
        broker_id, who = _required_broker_id(request), author(context)
        if not self._catch_ups.remove(broker_id, who):
            raise Missing(f"broker {broker_id} has no catch-up under throttle; GetClusterState lists the catch-ups")
        log_action(AuditAction.STOP_CATCH_UP, who, f"Catch-up of broker {broker_id} under throttle ended", broker_id)
        return admin_pb2.StopCatchUpResponse()

    def ListRequestQuotas(
        self, request: admin_pb2.ListRequestQuotasRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListRequestQuotasResponse:
        rates = self._request_quotas.read()
        return admin_pb2.ListRequestQuotasResponse(
            quotas=[request_quota_to_message(entity, rate) for entity, rate in in_order(rates)],
            warnings=unreadable_entries(rates).values(),
        )

    def SetRequestQuota(
        self, request: admin_pb2.SetRequestQuotaRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SetRequestQuotaResponse:
        """Store a request quota. Every process that serves the API watches the store and applies it at once."""
        entity = request_quota_entity_from_message(request.quota)
        rate, who = validate_request_rate(request.quota.request_rate), author(context)
        self._request_quotas.put(entity, rate, who)
        log_action(AuditAction.SET_REQUEST_QUOTA, who, f"Request quota of {entity} set to {rate} requests/s")
        return admin_pb2.SetRequestQuotaResponse(quota=request.quota)

    def RemoveRequestQuota(
        self, request: admin_pb2.RemoveRequestQuotaRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RemoveRequestQuotaResponse:
        entity, who = request_quota_entity_from_message(request), author(context)
        if not self._request_quotas.remove(entity, who):
            raise Missing(f"no request quota is set for {entity}; ListRequestQuotas shows the existing ones")
        log_action(AuditAction.REMOVE_REQUEST_QUOTA, who, f"Request quota of {entity} removed")
        return admin_pb2.RemoveRequestQuotaResponse()

    @contextmanager
    def _fixed_rate(self, rate: BytesPerSecond | None, validate_only: bool, who: str) -> Iterator[list[Submission]]:
        """Set the cluster override of a submission, and remove it unless the submission is added to the list.

        Raises:
            Conflict: another cluster override is set.
        """
        accepted: list[Submission] = []
        current = None if rate is None else _current(self._overrides.read_overrides(), None)
        if rate is not None and current is not None and (current.rate, current.autoremove) != (rate, True):
            raise Conflict(
                f"the cluster override is {format_megabytes(current.rate)} MB/s: nothing was submitted; remove it, or "
                "leave out the throttle of the reassignment"
            )
        if rate is None or current is not None or validate_only:
            yield accepted
            return
        override = self._overrides.set_override(None, StoredOverride(rate, autoremove=True), who=who)
        log_action(AuditAction.SET, who, f"Override of the cluster set to {rate} bytes/s for a reassignment")
        may_run = False
        try:
            yield accepted
        except Unavailable:
            may_run = True
            raise
        finally:
            if not accepted and not may_run:
                with suppress(AutothrottleError):  # another operator changed it since
                    self._overrides.remove_override(None, version=override.version, who=who)

    def _rate_warnings(self, rate: BytesPerSecond | None, targets: Targets) -> list[str]:
        if rate is None:
            return []
        destinations = {broker_id for replicas in targets.values() for broker_id in replicas}
        loads = self._estimator.current_loads(_WARNING_TIMEOUT)
        at_destinations = {b: load for b, load in loads.items() if b in destinations}
        return capacity_warnings(None, StoredOverride(rate), at_destinations)

    def _effects(self) -> _Effects | None:
        """What decides when overrides act; None: no planner leads, or the state cannot be read."""
        try:
            state = self._planner.state(_WARNING_TIMEOUT, with_cycle=True)
            pause, catch_ups = self._pauses.read_pause(), readable(self._catch_ups.read)
        except AutothrottleError:
            return None
        return _Effects(state.last_cycle, pause, bool(catch_ups)) if state.leading else None

    def _warnings(self, broker_id: int | None, override: StoredOverride) -> list[str]:
        warnings = capacity_warnings(broker_id, override, self._estimator.current_loads(_WARNING_TIMEOUT))
        if broker_id is not None and override.autoremove:
            warnings.append("autoremove has no effect on a broker override")
        if broker_id is not None:
            warnings += self._unregistered(broker_id, "the override applies when it catches up")
        return warnings

    def _unregistered(self, broker_id: int, effect: str) -> list[str]:
        """A warning with the effect if the broker is not registered; none if that cannot be read."""
        try:
            is_registered = self._brokers.is_registered(broker_id, _WARNING_TIMEOUT)
        except AutothrottleError:
            return []
        return [] if is_registered else [f"broker {broker_id} is not registered: {effect}"]


@contextmanager
def _leader_required() -> Iterator[None]:
    """Report as Unavailable that no planner leads."""
    try:
        yield
    except NotLeader as error:
        raise Unavailable(_NO_LEADER) from error


def _broker_id(
    message: admin_pb2.GetOverrideRequest | admin_pb2.RemoveOverrideRequest | admin_pb2.Override,
) -> int | None:
    return validate_broker_id(message.broker_id) if message.HasField("broker_id") else None


def _required_broker_id(request: admin_pb2.StartCatchUpRequest | admin_pb2.StopCatchUpRequest) -> int:
    if not request.HasField("broker_id"):
        raise Invalid("broker_id is absent; give a broker's id")
    return validate_broker_id(request.broker_id)


def _current(overrides: Overrides, broker_id: int | None) -> StoredOverride | None:
    override = overrides.cluster if broker_id is None else overrides.brokers.get(broker_id)
    return override if override is not None and override.rate > 0 else None


def _no_override(broker_id: int | None) -> str:
    return f"no throttle override is set for {override_owner(broker_id)}; ListOverrides shows the existing ones"


class _Effects(NamedTuple):
    """What decides when overrides act, see `override_effect`."""

    cycle: Cycle | None
    pause: Pause | None
    catches_up: bool


# Conversion to and from messages.


def override_to_message(
    broker_id: int | None, override: StoredOverride, effects: _Effects | None = None
) -> admin_pb2.Override:
    """Convert an override; broker id None means the cluster override."""
    return SAME_NAMES.to_message(
        admin_pb2.Override,
        override,
        broker_id=broker_id,
        rate_bytes_per_second=override.rate,
        etag=format_etag(override.version),
        effect="" if effects is None else override_effect(broker_id, override.autoremove, *effects),
    )


def override_from_message(message: admin_pb2.Override) -> tuple[int | None, StoredOverride]:
    """Convert a message to (broker id, override); None means the cluster override.

    Raises:
        Invalid: the broker id, the rate, the expire time or the etag is out of range.
    """
    broker_id, rate = _broker_id(message), validate_rate(message.rate_bytes_per_second)
    version, expire_time = parse_etag(message.etag), expire_time_from_message(message)
    return broker_id, StoredOverride(rate, message.autoremove, version, expire_time, message.beyond_capacity)


def overrides_to_messages(overrides: Overrides, effects: _Effects | None = None) -> list[admin_pb2.Override]:
    """Convert the active overrides: the cluster override first, then the broker overrides by id."""
    cluster = [] if overrides.cluster is None else [(None, overrides.cluster)]
    return [
        override_to_message(broker_id, override, effects)
        for broker_id, override in [*cluster, *sorted(overrides.brokers.items())]
        if override.rate > 0
    ]


def override_warnings(overrides: Overrides) -> list[str]:
    """Return one sentence for each override that cannot be read, and for each node that is ignored."""
    unreadable = [
        f"the override of {override_owner(b)} cannot be read: {reason}" for b, reason in overrides.unreadable.items()
    ]
    return [*unreadable, *overrides.warnings]


def audit_record_to_message(record: StoredAuditRecord) -> admin_pb2.AuditRecord:
    broker_id, old_override, new_override = record.broker_id, record.before, record.after
    return SAME_NAMES.to_message(
        admin_pb2.AuditRecord,
        record,
        before=None if old_override is None else override_to_message(broker_id, old_override),
        after=None if new_override is None else override_to_message(broker_id, new_override),
    )


def request_quota_to_message(entity: RequestQuotaEntity, rate: int) -> admin_pb2.RequestQuota:
    return SAME_NAMES.to_message(admin_pb2.RequestQuota, entity, request_rate=rate)


def request_quota_entity_from_message(
    message: admin_pb2.RequestQuota | admin_pb2.RemoveRequestQuotaRequest,
) -> RequestQuotaEntity:
    """Convert the user and the client id of a message.

    Raises:
        Invalid: both are absent, or a name is not valid.
    """
    return validate_request_quota_entity(SAME_NAMES.from_message(RequestQuotaEntity, message))


def goal_from_message(request: admin_pb2.EstimateReassignmentRequest) -> Goal:
    """Return the operator's goal for an estimate.

    Raises:
        Invalid: `max_ratio` or `within` is out of range.
    """
    try:
        within = request.within.ToTimedelta() if request.HasField("within") else None
    except (ValueError, OverflowError) as error:
        raise Invalid(f"within is not a valid duration: {error}; give 1 s to 365 days") from error
    return Goal(max_ratio=request.max_ratio or None, within=within)
