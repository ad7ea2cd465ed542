"""The admin service: overrides, reassignments, who leads and what its last cycle did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceStub
from autothrottle_client.client import Client
from autothrottle_client.errors import AutothrottleError, Invalid, NotLeader
from autothrottle_client.estimates import Estimate, estimate_from_message
from autothrottle_client.model import (
    AuditRecord,
    CatchUp,
    ClusterState,
    Override,
    Pause,
    PauseMode,
    audit_record_from_message,
    catch_up_from_message,
    cluster_state_from_message,
    override_from_message,
    pause_from_message,
    pause_mode_to_number,
    validate_broker_id,
    validate_limit,
    validate_rate,
    validate_reason,
)
from autothrottle_client.reassignments import (
    Partition,
    Reassignments,
    Submission,
    partitions_to_messages,
    reassignments_from_message,
    refused_from_messages,
    submission_from_message,
    targets_to_messages,
)
from autothrottle_client.replicas import Peer, Replicas, Rpc
from autothrottle_client.watch import DEFAULT_OUTAGE, DEFAULT_SILENCE, CycleWatch

SUBMIT_TIMEOUT = timedelta(seconds=60)
"""For submitting a reassignment: its throttles are set, read back and given a second to act first."""

ESTIMATE_TIMEOUT = timedelta(seconds=30)
"""For an estimate: the sizes of logs are read twice, some seconds apart."""

_T = TypeVar("_T")


class AdminClient(Client):
    """What operators call; a broker id of None is the whole cluster.

    Every method may raise Unavailable, when no replica answers in time.
    """

    service = "admin"

    def list_overrides(self) -> tuple[tuple[Override, ...], tuple[str, ...]]:
        """Return (all overrides, warnings): the cluster's first, then the brokers' by id.

        The warnings name overrides that cannot be read, a sentence each.
        """
        request = admin_pb2.ListOverridesRequest()
        response = self._replicas.call(lambda peer, seconds: _stub(peer).ListOverrides(request, timeout=seconds))
        return tuple(map(override_from_message, response.overrides)), tuple(response.warnings)

    def get_override(self, broker_id: int | None = None) -> Override:
        """Return one override.

        Raises:
            Missing: when none is set.
            Invalid: when the broker id is not in 1..2^31-1.
        """
        request = admin_pb2.GetOverrideRequest(broker_id=_optional(broker_id))
        response = self._replicas.call(lambda peer, seconds: _stub(peer).GetOverride(request, timeout=seconds))
        return override_from_message(response.override)

    def set_override(
        self,
        rate_bytes_per_second: int,
        broker_id: int | None = None,
        autoremove: bool = False,
        expire_time: datetime | None = None,
        etag: str = "",
    ) -> tuple[Override, tuple[str, ...]]:
        """Set an override, in place of one that stands, and return (it, warnings). A cycle starts at once.

        With an etag it is never sent twice, as the second answer would be Conflict.

        Args:
            rate_bytes_per_second: 1 to 2^63-1; 1 MB/s is 1,000,000.
            broker_id: the broker that it rules; None: every broker that takes part in a reassignment.
            autoremove: whether it ends when no reassignment is left; without effect on a broker's.
            expire_time: when it ends by itself, with a zone and in the future; None: never.
            etag: of the version that it may take the place of, and no other; empty: any, or none.

        Raises:
            Invalid: when a number or the time is out of range.
            Conflict: when another version stands, or none.
        """
        wanted = admin_pb2.Override(
            broker_id=_optional(broker_id),
            rate_bytes_per_second=validate_rate(rate_bytes_per_second),
            autoremove=autoremove,
            expire_time=None if expire_time is None else _timestamp(expire_time),
            etag=etag,
        )
        request = admin_pb2.SetOverrideRequest(override=wanted)
        response = self._call_once(_setting(request)) if etag else self._replicas.call(_setting(request))
        return override_from_message(response.override), tuple(response.warnings)

    def remove_override(self, broker_id: int | None = None, etag: str = "") -> None:
        """Remove an override, or one version of it. Never sent twice, as the second answer would be Missing.

        Raises:
            Missing: when none is set.
            Conflict: when another version stands than that of the etag.
            Invalid: when the broker id is not in 1..2^31-1.
            Unavailable: when no replica can be reached, or the connection broke, so that it may have been done.
        """
        request = admin_pb2.RemoveOverrideRequest(broker_id=_optional(broker_id), etag=etag)
        self._call_once(lambda peer, seconds: _stub(peer).RemoveOverride(request, timeout=seconds))

    def list_audit_records(self, limit: int = 100) -> tuple[AuditRecord, ...]:
        """Return the newest changes of overrides, the newest first; the last 1,000 are kept.

        Raises:
            Invalid: when the limit is not in 1..1,000.
        """
        request = admin_pb2.ListAuditRecordsRequest(limit=validate_limit(limit))
        response = self._replicas.call(lambda peer, seconds: _stub(peer).ListAuditRecords(request, timeout=seconds))
        return tuple(map(audit_record_from_message, response.records))

    def _call_once(self, rpc: Rpc[_T], timeout: timedelta | None = None) -> _T:
        listing = admin_pb2.ListOverridesRequest()
        return self._replicas.call_once(
            rpc, probe=lambda peer, seconds: _stub(peer).ListOverrides(listing, timeout=seconds), timeout=timeout
        )

    def request_cycle(self) -> None:
        """Ask the leading planner for a cycle; does not wait for it."""
        request = admin_pb2.RequestCycleRequest()
        self._replicas.call(lambda peer, seconds: _stub(peer).RequestCycle(request, timeout=seconds))

    def pause(self, mode: PauseMode = PauseMode.KEEP, reason: str = "") -> Pause:
        """Let the planner decide nothing until `resume`, whoever leads; in place of a pause that stands.

        Overrides are kept and act when it is resumed; reassignments are not submitted meanwhile.

        Args:
            mode: whether throttles stay as they stand, or are given back.
            reason: for the log and the state, at most 1,000 printable characters on one line.

        Raises:
            Invalid: when the mode or the reason is no such thing.
        """
        request = admin_pb2.PauseRequest(mode=pause_mode_to_number(mode), reason=validate_reason(reason))
        response = self._replicas.call(lambda peer, seconds: _stub(peer).Pause(request, timeout=seconds))
        return pause_from_message(response.pause)

    def resume(self) -> bool:
        """Let the planner decide again; return whether it was paused. A cycle starts at once."""
        request = admin_pb2.ResumeRequest()
        return self._replicas.call(lambda peer, seconds: _stub(peer).Resume(request, timeout=seconds)).was_paused

    def start_catch_up(self, broker_id: int) -> tuple[CatchUp, tuple[str, ...]]:
        """Let a broker catch up under throttle; return (that, warnings). It ends by itself when the broker is in sync.

        Raises:
            Invalid: when the broker id is not in 1..2^31-1.
        """
        request = admin_pb2.StartCatchUpRequest(broker_id=validate_broker_id(broker_id))
        response = self._replicas.call(lambda peer, seconds: _stub(peer).StartCatchUp(request, timeout=seconds))
        return catch_up_from_message(response.catch_up), tuple(response.warnings)

    def stop_catch_up(self, broker_id: int) -> None:
        """Take the throttles of a broker that catches up away. Never sent twice, as the second answer would be Missing.

        Raises:
            Missing: when it does not catch up under throttle.
            Invalid: when the broker id is not in 1..2^31-1.
            Unavailable: when no replica can be reached, or the connection broke, so that it may have been done.
        """
        request = admin_pb2.StopCatchUpRequest(broker_id=validate_broker_id(broker_id))
        self._call_once(lambda peer, seconds: _stub(peer).StopCatchUp(request, timeout=seconds))

    def state(self) -> ClusterState:
        """Return who leads, its last cycle and all overrides."""
        return cluster_state_from_message(_state(self._replicas))

    def list_reassignments(self) -> Reassignments:
        """Return what is being reassigned, however it was started.

        Raises:
            Incomplete: when that cannot be read: nothing may be concluded.
        """
        request = admin_pb2.ListReassignmentsRequest()
        return reassignments_from_message(
            self._replicas.call(lambda peer, seconds: _stub(peer).ListReassignments(request, timeout=seconds))
        )

    def submit_reassignment(
        self,
        targets: Mapping[Partition, Sequence[int]],
        validate_only: bool = False,
        timeout: timedelta = SUBMIT_TIMEOUT,
    ) -> Submission:
        """Let partitions be throttled and then moved; return when Kafka has taken it. Not a byte moves unthrottled.

        What is on its way to the same replicas, or there, is not submitted again.

        Args:
            targets: (topic, partition) -> the broker ids that it shall be on, the preferred leader first.
            validate_only: whether it is only looked at, and nothing is changed.
            timeout: for all of it; throttles that do not stand by then are taken back, and nothing is submitted.

        Raises:
            Invalid: when a number is out of range, or a broker is unknown or down.
            Missing: when a topic or partition does not exist.
            Conflict: when a partition is being reassigned to other replicas, another reassignment is being submitted,
                or a throttle could not be set. Nothing was submitted.
        """
        request = admin_pb2.SubmitReassignmentRequest(
            partitions=targets_to_messages(targets), validate_only=validate_only
        )
        return submission_from_message(
            self._replicas.call(lambda peer, seconds: _stub(peer).SubmitReassignment(request, timeout=seconds), timeout)
        )

    def estimate_reassignment(
        self,
        targets: Mapping[Partition, Sequence[int]],
        max_ratio: float | None = None,
        within: timedelta | None = None,
        timeout: timedelta = ESTIMATE_TIMEOUT,
    ) -> Estimate:
        """Return how long a reassignment would take, or which throttles it would need; nothing is changed.

        Args:
            targets: (topic, partition) -> the broker ids that it shall be on, the preferred leader first.
            max_ratio: the share of every link's capacity that replication may take, in (0, 1]; not with `within`.
            within: when it is to be done, 1 s to 365 days; neither: the present headrooms count.
            timeout: for all of it, which takes some seconds.

        Raises:
            Invalid: when a number is out of range, or a broker is unknown or down.
            Missing: when a topic or partition does not exist.
            Conflict: when a partition is being reassigned to other replicas.
        """
        if max_ratio is not None and not 0 < max_ratio <= 1:
            raise Invalid(f"max_ratio {max_ratio!r} is outside of (0, 1]; give for example 0.3 for 30 %")
        span = None if within is None else Duration()
        if span is not None and within is not None:
            span.FromTimedelta(within)
        request = admin_pb2.EstimateReassignmentRequest(
            partitions=targets_to_messages(targets), max_ratio=max_ratio or 0.0, within=span
        )
        return estimate_from_message(
            self._replicas.call(
                lambda peer, seconds: _stub(peer).EstimateReassignment(request, timeout=seconds), timeout
            )
        )

    def cancel_reassignment(
        self, partitions: Collection[Partition], timeout: timedelta = SUBMIT_TIMEOUT
    ) -> tuple[int, Mapping[Partition, str]]:
        """Cancel the reassignment of partitions; return (how many were cancelled, those that were not and why).

        Never sent twice, as the second answer would be Missing.

        Args:
            partitions: those that shall stay where they are.
            timeout: for all of it: Kafka's controller takes its time with many.

        Raises:
            Missing: when none of them is being reassigned.
            Invalid: when the backend cannot do it.
            Unavailable: when no replica can be reached, or the connection broke, so that it may have been done.
        """
        request = admin_pb2.CancelReassignmentRequest(partitions=partitions_to_messages(partitions))
        response = self._call_once(
            lambda peer, seconds: _stub(peer).CancelReassignment(request, timeout=seconds), timeout
        )
        return response.cancelled, refused_from_messages(response.refused)

    def watch_cycles(
        self,
        outage: timedelta = DEFAULT_OUTAGE,
        silence: timedelta = DEFAULT_SILENCE,
        on_loss: Callable[[AutothrottleError], None] = lambda error: None,
    ) -> CycleWatch:
        """Return the cycles of whichever planner leads; its address must be reachable from here.

        Args:
            outage: the longest time without a leader, > 0; longer raises Unavailable.
            silence: how long nothing may come before the leader is asked for anew, > 0.
            on_loss: told once whenever the leader is lost.
        """
        return self._watching(CycleWatch(self._again(), _locate, outage, silence, on_loss))


def _setting(request: admin_pb2.SetOverrideRequest) -> Rpc[admin_pb2.SetOverrideResponse]:
    return lambda peer, seconds: _stub(peer).SetOverride(request, timeout=seconds)


def _timestamp(time: datetime) -> Timestamp:
    if time.tzinfo is None:
        raise Invalid(f"expire_time {time.isoformat()} has no zone; give for example datetime.now(UTC) + a timedelta")
    found = Timestamp()
    found.FromDatetime(time)
    return found


def _stub(peer: Peer) -> AdminServiceStub:
    return AdminServiceStub(peer.channel)


def _optional(broker_id: int | None) -> int | None:
    return None if broker_id is None else validate_broker_id(broker_id)


def _state(
    replicas: Replicas, timeout: timedelta | None = None, without_cycle: bool = False
) -> admin_pb2.GetClusterStateResponse:
    request = admin_pb2.GetClusterStateRequest(without_cycle=without_cycle)
    return replicas.call(lambda peer, seconds: _stub(peer).GetClusterState(request, timeout=seconds), timeout)


def _locate(replicas: Replicas, timeout: timedelta) -> str:
    address = _state(replicas, timeout, without_cycle=True).leader_address
    if not address:
        raise NotLeader("nobody knows the leader's address")
    return address
