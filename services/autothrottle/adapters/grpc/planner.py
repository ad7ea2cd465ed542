"""Client of the planner; calls reach the leader even if they start at another replica."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import TypeVar

import grpc

from autothrottle.adapters.grpc.client import ServiceClient
from autothrottle.adapters.grpc.endpoints import Endpoints
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.control.cycle import CycleRecord, PlannerState
from autothrottle.core.control.submission import Submitted, Targets
from autothrottle.core.errors import AutothrottleError, NotLeader, Unavailable
from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.wire.common import (
    from_rpc_error,
    partitions_to_messages,
    refusals_from_messages,
    submitted_from_message,
    targets_to_messages,
)
from autothrottle.wire.planner import cycle_from_message, state_from_message

_T = TypeVar("_T")


class PlannerClient(ServiceClient):
    """Client of the planners (a `LeadingPlanner`): one leads, and the others know its address."""

    service = "planner"

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Request a cycle from the leader; returns at once. Idempotent.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Unavailable: no planner answers in time, or the leader does not.
        """
        request = planner_pb2.RunCycleRequest(reason=reason)
        self._call_leader(
            lambda channel, seconds: PlannerServiceStub(channel).RunCycle(request, timeout=seconds), timeout
        )

    def submit_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submitted:
        """Have the leader set the throttles of a reassignment and then submit it. Idempotent.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Invalid, Missing, Conflict: the reassignment cannot be submitted; nothing was submitted.
            Unavailable: the request timed out, or it is unknown whether it took effect.
        """
        request = planner_pb2.PlannerServiceSubmitReassignmentRequest(
            partitions=targets_to_messages(wanted), validate_only=validate_only
        )
        return submitted_from_message(
            self._call_leader(
                lambda channel, seconds: PlannerServiceStub(channel).SubmitReassignment(request, timeout=seconds),
                timeout,
            )
        )

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Have the leader cancel reassignments; return the partitions whose cancellation Kafka refused -> why.

        The request is never repeated, because a repeated one fails with Missing.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Missing: none of the partitions is being reassigned.
            Unavailable: it is unknown whether the request took effect.
        """
        request = planner_pb2.PlannerServiceCancelReassignmentRequest(partitions=partitions_to_messages(rows))
        response = self._call_leader(
            lambda channel, seconds: PlannerServiceStub(channel).CancelReassignment(request, timeout=seconds),
            timeout,
            once=True,
        )
        return refusals_from_messages(response.refused)

    def _call_leader(self, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta, once: bool = False) -> _T:
        """Call the leader; if another planner answers with the leader's address, call that."""
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            return self._endpoints.call(rpc, timeout, once)
        except NotLeader as refusal:
            if not refusal.leader_address:
                raise
            left = timedelta(seconds=deadline - time.monotonic())
            return self._call_at(refusal.leader_address, rpc, left, once)

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer.

        Args:
            timeout: for all attempts together.
            with_cycle: whether to include the last cycle, which has hundreds of kB on a large cluster.

        Raises:
            Unavailable: no planner answers in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        rpc = _state(with_cycle)
        found = self._endpoints.call(rpc, timeout)
        if found.leading or not found.leader_address:
            return found
        try:
            return self._call_at(found.leader_address, rpc, timedelta(seconds=deadline - time.monotonic()))
        except AutothrottleError:
            return found

    def watch_cycles(self, timeout: timedelta) -> CycleStream:
        """Return a stream of the leader's cycles as they end, starting with the last one.

        Args:
            timeout: for finding the leader.

        Raises:
            Unavailable: no planner answers in time, or no planner leads.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        state = self.state(timeout, with_cycle=False)
        if not (state.leading and state.leader_address):
            raise Unavailable("no planner leads at the moment; try again in some seconds")
        leader = Endpoints(self.service, (state.leader_address,), self._interceptors, tls=self._tls)
        try:
            # A stream has one attempt. This call finds out which IP address of the leader's name answers.
            leader.call(_state(with_cycle=False), timedelta(seconds=deadline - time.monotonic()))
            return CycleStream(leader)
        except AutothrottleError:
            leader.close()
            raise

    def _call_at(
        self, address: str, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta, once: bool = False
    ) -> _T:
        # A channel for one call: leaders change, and their addresses need not be configured.
        endpoints = Endpoints(f"the leading {self.service}", (address,), self._interceptors, tls=self._tls)
        try:
            return endpoints.call(rpc, timeout, once)
        finally:
            endpoints.close()


def _state(with_cycle: bool) -> Callable[[grpc.Channel, float], PlannerState]:
    request = planner_pb2.GetStateRequest(without_cycle=not with_cycle)

    def rpc(channel: grpc.Channel, seconds: float) -> PlannerState:
        return state_from_message(PlannerServiceStub(channel).GetState(request, timeout=seconds))

    return rpc


class CycleStream:
    """An iterator over the cycles of one planner, until `close`."""

    def __init__(self, endpoints: Endpoints) -> None:
        """Start the stream; `close` also closes the endpoints."""
        self._endpoints = endpoints
        self._candidates = endpoints.candidates(time.monotonic())
        self._replica = next(self._candidates)
        self._call = PlannerServiceStub(self._replica.channel).WatchCycles(planner_pb2.WatchCyclesRequest())
        self._closed = False

    def __iter__(self) -> Iterator[CycleRecord]:
        return self

    def __next__(self) -> CycleRecord:
        """Wait for the next cycle.

        Raises:
            Unavailable: the planner stopped or is unreachable; watch again to find the leader.
        """
        try:
            return cycle_from_message(next(self._call).cycle)
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise from_rpc_error(error, peer=self._replica.name) from error

    def close(self) -> None:
        """End the stream. Idempotent; may be called from another thread while one waits in `next`."""
        self._closed = True
        self._call.cancel()
        self._endpoints.close()
