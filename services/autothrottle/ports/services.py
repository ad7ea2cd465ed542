"""The services that other services call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Protocol

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.operators.submission import Targets
from autothrottle.core.records import PlannerState, Submission


class LeadingPlanner(Protocol):
    """The leading planner, wherever it runs.

    Every method raises Unavailable when no planner answers in time. All methods except `state` raise NotLeader when the
    planners that answer do not lead and do not know the leader.
    """

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Request a cycle and return without waiting for it."""

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer."""

    def submit_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submission:
        """Set the throttles of a reassignment and then submit it to Kafka. Idempotent.

        Args:
            wanted: partition -> broker ids of its target replicas.
            validate_only: check the request only; set no throttle and submit nothing.
            timeout: > 0.

        Raises:
            Invalid, Missing: the request is wrong.
            Conflict: nothing was submitted: a partition is already being reassigned to other replicas, another
                submission is in progress, a throttle could not be set, or the planner is paused or in shadow mode.
            Unavailable: the request timed out, or it is unknown whether Kafka accepted it.
        """

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Cancel reassignments; return the partitions whose cancellation Kafka refused -> why.

        Raises:
            Missing: none of the partitions is being reassigned.
            Invalid: the backend cannot cancel reassignments.
            Conflict: the planner is in shadow mode.
            Unavailable: it is unknown whether the request took effect.
        """
