"""The planners, of which one leads; the others say where it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle_client.client import Client
from autothrottle_client.errors import AutothrottleError, NotLeader
from autothrottle_client.model import PlannerState, planner_state_from_message
from autothrottle_client.replicas import Peer, Replicas
from autothrottle_client.watch import DEFAULT_OUTAGE, DEFAULT_SILENCE, CycleWatch


class PlannerClient(Client):
    """The planner that leads, whichever of the addresses it has, or another that one of them names."""

    service = "planner"

    def state(self) -> PlannerState:
        """Return the leader's state, or another planner's while the leader is unknown or does not answer.

        Raises:
            Unavailable: when no planner answers in time.
        """
        found = self._replicas.call(_state)
        if found.leading or not found.leader_address:
            return found
        leader = Replicas("the leading planner", (found.leader_address,), self._replicas.timeout, self._replicas.tls)
        try:
            return leader.call(_state, _FOLLOW_TIMEOUT)
        except AutothrottleError:
            return found
        finally:
            leader.close()

    def run_cycle(self, reason: str = "") -> None:
        """Ask the leader for a cycle; does not wait for it. Idempotent: several requests may share one cycle.

        Args:
            reason: why, for the log.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Unavailable: when no planner, or not the leader, answers in time.
        """
        request = planner_pb2.RunCycleRequest(reason=reason)
        self._replicas.call(lambda peer, seconds: PlannerServiceStub(peer.channel).RunCycle(request, timeout=seconds))

    def watch_cycles(
        self,
        outage: timedelta = DEFAULT_OUTAGE,
        silence: timedelta = DEFAULT_SILENCE,
        on_loss: Callable[[AutothrottleError], None] = lambda error: None,
    ) -> CycleWatch:
        """Return the cycles of whichever planner leads.

        Args:
            outage: the longest time without a leader, > 0; longer raises Unavailable.
            silence: how long nothing may come before the leader is asked for anew, > 0.
            on_loss: told once whenever the leader is lost.

        Raises:
            Unavailable: when no leader is found in time.
        """
        return self._watching(CycleWatch(self._again(), _locate, outage, silence, on_loss))


_FOLLOW_TIMEOUT = timedelta(seconds=2)
"""For the leader's own word: without it a follower's does."""


def _state(peer: Peer, seconds: float, without_cycle: bool = False) -> PlannerState:
    request = planner_pb2.GetStateRequest(without_cycle=without_cycle)
    return planner_state_from_message(PlannerServiceStub(peer.channel).GetState(request, timeout=seconds))


def _locate(replicas: Replicas, timeout: timedelta) -> str:
    """The leader's address; that under which it was asked, if it was the one."""

    def ask(peer: Peer, seconds: float) -> str:
        state = _state(peer, seconds, without_cycle=True)
        if not state.leading and not state.leader_address:
            raise NotLeader("this planner knows of no leader")
        return peer.address if state.leading else state.leader_address

    return replicas.call(ask, timeout)
