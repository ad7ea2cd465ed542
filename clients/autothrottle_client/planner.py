"""Client of the planners. One of them leads; the others name the leader's address."""

from __future__ import annotations

from datetime import timedelta

from autothrottle.core.records import PlannerState
from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle_client.client import Client
from autothrottle_client.errors import NotLeader
from autothrottle_client.model import from_message
from autothrottle_client.replicas import Replica, Replicas


class PlannerClient(Client[PlannerServiceStub]):
    """Client of the leading planner. The leader may be at any given address, or at an address that a planner names."""

    service = "planner"
    stub = PlannerServiceStub

    def state(self) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer.

        Raises:
            Unavailable: no planner answers in time.
        """
        return self._replicas.leader_state(_state, leader_timeout=_LEADER_TIMEOUT)

    def run_cycle(self, reason: str = "") -> None:
        """Ask the leader for a cycle without waiting for it. Idempotent: several requests may share one cycle.

        Args:
            reason: shown in the log.

        Raises:
            NotLeader: no planner that answers leads or knows the leader.
            Unavailable: no planner answers in time, or the leader does not.
        """
        self._unary(lambda planner: planner.RunCycle, planner_pb2.RunCycleRequest(reason=reason))

    def _locate(self, replicas: Replicas, timeout: timedelta) -> str:
        def ask(peer: Replica, seconds: float) -> str:
            state = _state(peer, seconds, without_cycle=True)
            if not state.leading and not state.leader_address:
                raise NotLeader("this planner does not know the leader")
            return peer.target if state.leading else state.leader_address

        return replicas.call(ask, timeout)


_LEADER_TIMEOUT = timedelta(seconds=2)
"""Timeout of the leader's own answer; without one, the follower's answer is returned."""


def _state(peer: Replica, seconds: float, without_cycle: bool = False) -> PlannerState:
    request = planner_pb2.GetStateRequest(without_cycle=without_cycle)
    return from_message(PlannerState, PlannerServiceStub(peer.channel).GetState(request, timeout=seconds))
