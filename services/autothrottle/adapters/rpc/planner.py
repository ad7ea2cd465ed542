"""The planners behind their port: calls go to the one that leads, whoever was asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import TypeVar

import grpc

from autothrottle.adapters.endpoints import Endpoints
from autothrottle.adapters.rpc.client import Client
from autothrottle.core.cycle import CycleRecord, PlannerState
from autothrottle.core.errors import AutothrottleError, NotLeader, Unavailable
from autothrottle.core.reassignment import Submitted, Targets
from autothrottle.core.topology import TopicPartition
from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.wire.cycles import cycle_from_message, state_from_message
from autothrottle.wire.errors import from_rpc_error
from autothrottle.wire.reassignments import (
    partitions_to_messages,
    refusals_from_messages,
    submitted_from_message,
    targets_to_messages,
)

_T = TypeVar("_T")


class PlannerClient(Client):
    """The planners, of which one leads; the others say where it is."""

    service = "planner"

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Ask the leader for a cycle; returns at once. Idempotent.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Unavailable: when no planner, or the leader, does not answer in time.
        """
        request = planner_pb2.RunCycleRequest(reason=reason)
        self._led(lambda channel, seconds: PlannerServiceStub(channel).RunCycle(request, timeout=seconds), timeout)

    def start_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submitted:
        """Let the leader set the throttles of a reassignment and then submit it; idempotent.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Invalid, Missing, Conflict: when it cannot be submitted; nothing was.
            Unavailable: when it was not done in time, or it is unknown whether it was.
        """
        request = planner_pb2.StartReassignmentRequest(
            partitions=targets_to_messages(wanted), validate_only=validate_only
        )
        return submitted_from_message(
            self._led(
                lambda channel, seconds: PlannerServiceStub(channel).StartReassignment(request, timeout=seconds),
                timeout,
            )
        )

    def stop_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Let the leader cancel the reassignment of partitions; return those that Kafka did not cancel, and why.

        Never sent twice, as the second answer would be Missing.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Missing: when none of them is being reassigned.
            Unavailable: when it is unknown whether it was done.
        """
        request = planner_pb2.StopReassignmentRequest(partitions=partitions_to_messages(rows))
        response = self._led(
            lambda channel, seconds: PlannerServiceStub(channel).StopReassignment(request, timeout=seconds),
            timeout,
            once=True,
        )
        return refusals_from_messages(response.refused)

    def _led(self, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta, once: bool = False) -> _T:
        """Return what the leader answers, also when only another planner knows where it is."""
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            return self._endpoints.call(rpc, timeout, once)
        except NotLeader as refusal:
            if not refusal.leader_address:
                raise
            left = timedelta(seconds=deadline - time.monotonic())
            return self._at(refusal.leader_address, rpc, left, once)

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's while the leader is unknown or does not answer.

        Args:
            timeout: for all of it.
            with_cycle: whether the last cycle is wanted; of a large cluster it has hundreds of kB.

        Raises:
            Unavailable: when no planner answers in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        ask = _state(with_cycle)
        found = self._endpoints.call(ask, timeout)
        if found.leading or not found.leader_address:
            return found
        try:
            return self._at(found.leader_address, ask, timedelta(seconds=deadline - time.monotonic()))
        except AutothrottleError:
            return found

    def watch_cycles(self, timeout: timedelta) -> CycleStream:
        """Return the leader's cycles as they end, beginning with the last one.

        Args:
            timeout: for finding the leader.

        Raises:
            Unavailable: when no planner answers in time, or none leads.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        state = self.state(timeout, with_cycle=False)
        if not (state.leading and state.leader_address):
            raise Unavailable("no planner leads at the moment; try again in some seconds")
        leader = Endpoints(self.service, (state.leader_address,), self._interceptors, tls=self._tls)
        try:
            # A stream has one attempt: by now it is known which IP address of the leader's name answers.
            leader.call(_state(with_cycle=False), timedelta(seconds=deadline - time.monotonic()))
            return CycleStream(leader)
        except AutothrottleError:
            leader.close()
            raise

    def _at(self, address: str, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta, once: bool = False) -> _T:
        # A channel for one call: leaders change, and their addresses need not be among those given.
        endpoints = Endpoints(f"the leading {self.service}", (address,), self._interceptors, tls=self._tls)
        try:
            return endpoints.call(rpc, timeout, once)
        finally:
            endpoints.close()


def _state(with_cycle: bool) -> Callable[[grpc.Channel, float], PlannerState]:
    request = planner_pb2.GetStateRequest(without_cycle=not with_cycle)

    def ask(channel: grpc.Channel, seconds: float) -> PlannerState:
        return state_from_message(PlannerServiceStub(channel).GetState(request, timeout=seconds))

    return ask


class CycleStream:
    """The cycles of one planner; ends when it is closed, raises when the planner goes away."""

    def __init__(self, endpoints: Endpoints) -> None:
        """Take over the endpoints and close them at the end."""
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
            Unavailable: when the planner went away; watch again to find the leader.
        """
        try:
            return cycle_from_message(next(self._call).cycle)
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise from_rpc_error(error, peer=self._replica.name) from error

    def close(self) -> None:
        """End the stream; also from another thread, and while one waits. Idempotent."""
        self._closed = True
        self._call.cancel()
        self._endpoints.close()
