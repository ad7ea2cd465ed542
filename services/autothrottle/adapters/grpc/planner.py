"""Client of the planner; calls reach the leader even if they start at another replica."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from autothrottle.adapters.grpc.client import ServiceClient
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.operators.submission import Targets
from autothrottle.core.records import PlannerState, Submission
from autothrottle.messages import partitions_to_messages, refusals_from_messages, targets_to_messages
from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.wire.common import SAME_NAMES
from autothrottle.wire.planner import state_from_message
from autothrottle_client.replicas import Connection, Replica, check_health


class PlannerServiceClient(ServiceClient[PlannerServiceStub]):
    """Client of the planners (a `LeadingPlanner`): one leads, and the others know its address."""

    service = "planner"
    stub = PlannerServiceStub
    connection = Connection(has_leader=True)

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Request a cycle from the leader; returns at once. Idempotent.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Unavailable: no planner answers in time, or the leader does not.
        """
        self._unary(lambda planner: planner.RunCycle, planner_pb2.RunCycleRequest(reason=reason), timeout)

    def submit_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submission:
        """Have the leader set the throttles of a reassignment and then submit it. Idempotent.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Invalid, Missing, Conflict: the reassignment cannot be submitted; nothing was submitted.
            Unavailable: the request timed out, or it is unknown whether it took effect.
        """
        request = planner_pb2.PlannerServiceSubmitReassignmentRequest(
            partitions=targets_to_messages(wanted), validate_only=validate_only
        )
        response = self._unary(lambda planner: planner.SubmitReassignment, request, timeout)
        return SAME_NAMES.from_message(Submission, response)

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Have the leader cancel reassignments; return the partitions whose cancellation Kafka refused -> why.

        The request is never repeated, because a repeated one fails with Missing.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Missing: none of the partitions is being reassigned.
            Unavailable: it is unknown whether the request took effect.
        """
        request = planner_pb2.PlannerServiceCancelReassignmentRequest(partitions=partitions_to_messages(rows))
        response = self._unary(lambda planner: planner.CancelReassignment, request, timeout, probe=check_health)
        return refusals_from_messages(response.refused)

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer.

        Args:
            timeout: for all attempts together.
            with_cycle: whether to include the last cycle, which has hundreds of kB on a large cluster.

        Raises:
            Unavailable: no planner answers in time.
        """
        request = planner_pb2.GetStateRequest(without_cycle=not with_cycle)

        def fetch(replica: Replica, seconds: float) -> PlannerState:
            return state_from_message(PlannerServiceStub(replica.channel).GetState(request, timeout=seconds))

        return self._replicas.leader_state(fetch, timeout)
