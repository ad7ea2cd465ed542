"""The admin service: overrides, who leads and what its last cycle did."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceStub
from autothrottle_client.client import Client
from autothrottle_client.errors import AutothrottleError, NotLeader
from autothrottle_client.model import (
    ClusterState,
    Override,
    cluster_state_from_message,
    override_from_message,
    validate_broker_id,
    validate_rate,
)
from autothrottle_client.replicas import Peer, Replicas
from autothrottle_client.watch import DEFAULT_OUTAGE, DEFAULT_SILENCE, CycleWatch


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
        self, rate_bytes_per_second: int, broker_id: int | None = None, autoremove: bool = False
    ) -> tuple[Override, tuple[str, ...]]:
        """Set an override, in place of one that stands, and return (it, warnings). A cycle starts at once.

        Args:
            rate_bytes_per_second: 1 to 2^63-1; 1 MB/s is 1,000,000.
            broker_id: the broker that it rules; None: every broker that takes part in a reassignment.
            autoremove: whether it ends when no reassignment is left; without effect on a broker's.

        Raises:
            Invalid: when a number is out of range.
        """
        wanted = admin_pb2.Override(
            broker_id=_optional(broker_id),
            rate_bytes_per_second=validate_rate(rate_bytes_per_second),
            autoremove=autoremove,
        )
        request = admin_pb2.SetOverrideRequest(override=wanted)
        response = self._replicas.call(lambda peer, seconds: _stub(peer).SetOverride(request, timeout=seconds))
        return override_from_message(response.override), tuple(response.warnings)

    def remove_override(self, broker_id: int | None = None) -> None:
        """Remove an override. Never sent twice, as the second answer would be Missing.

        Raises:
            Missing: when none is set.
            Invalid: when the broker id is not in 1..2^31-1.
            Unavailable: when no replica can be reached, or the connection broke, so that it may have been done.
        """
        request = admin_pb2.RemoveOverrideRequest(broker_id=_optional(broker_id))
        listing = admin_pb2.ListOverridesRequest()
        self._replicas.call_once(
            lambda peer, seconds: _stub(peer).RemoveOverride(request, timeout=seconds),
            probe=lambda peer, seconds: _stub(peer).ListOverrides(listing, timeout=seconds),
        )

    def request_cycle(self) -> None:
        """Ask the leading planner for a cycle; does not wait for it."""
        request = admin_pb2.RequestCycleRequest()
        self._replicas.call(lambda peer, seconds: _stub(peer).RequestCycle(request, timeout=seconds))

    def state(self) -> ClusterState:
        """Return who leads, its last cycle and all overrides."""
        return cluster_state_from_message(_state(self._replicas))

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
