"""Log growth reaches the planner through discovery, and the adaptive policy uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.grpc import DiscoveryClient
from autothrottle.adapters.memory import MemoryElection
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.records import Basis
from autothrottle.discovery import DiscoveryServicer
from autothrottle.planner.calls import PlannerDependencies
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import discovery_pb2_grpc
from tests import builders
from tests.builders import NOON, mb
from tests.unit.autothrottle.planner.bench import FOLLOWER, Bench

INTERVAL = 10


class RemoteBench(Bench):
    """A planner that reads the cluster through discovery over gRPC. A metric covers the 30 s before the last 30 s."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        super().__init__(policy=AdaptivePolicy(), interval=timedelta(seconds=INTERVAL))
        self.cluster.tell_progress(self.now)
        self.cluster.tell_growth()
        self.cluster.add_topic("clients", {0: (1003,)})
        self.begin_reassignment()
        self.cluster.grow(1001, "t1", 0, mb(1_000_000))
        self.cluster.grow(1003, "t1", 0, 0)
        self.produced = 10.0
        """Produce rate to 1003, MB/s."""
        self.burst: tuple[float, ...] = ()
        """If not empty, replaces `produced` in each 2 s of a cycle, with the same mean."""
        self.past: list[float] = []

    def dependencies(self, election: MemoryElection) -> PlannerDependencies:
        add = discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server
        service = (add, DiscoveryServicer(self.cluster), "autothrottle.v1.DiscoveryService")
        server = self.stack.enter_context(ServiceServer("discovery", [service]))
        client = DiscoveryClient([server.address])
        self.stack.callback(client.close)
        return replace(super().dependencies(election), snapshots=client)

    def play(self, cycles: int, read_every: int = INTERVAL) -> set[Basis | None]:
        """Run cycles and read logs every `read_every` seconds; return the bases of the last decisions for 1003."""
        bases: set[Basis | None] = set()
        for _ in range(cycles):
            current = self.rate(1003, FOLLOWER) or 0.0
            for second in range(0, INTERVAL, read_every):
                self.seconds += read_every
                produced = self.burst[second // 2] if self.burst else self.produced
                self.cluster.grow(1003, "t1", 0, round(mb(current) * read_every))
                self.cluster.grow(1003, "clients", 0, round(mb(produced) * read_every))
                self.cluster.fetch_snapshot(timeout=timedelta(seconds=1))
            self.past.append(self.produced + current)
            self._set_loads()
            record = self.cycle(after=0)
            bases = {one.basis for one in record.decisions if one.broker_id == 1003}
            self.finish_ramps()
            self.seconds -= 30
        return bases

    def _set_loads(self) -> None:
        known = self.past[:-3][-3:]
        inbound = sum(known) / len(known) if known else self.produced
        end = NOON + timedelta(seconds=self.seconds - 30)
        self.metrics.set_loads(builders.load(1003, outbound=0, inbound=mb(inbound), end=end))
        self.metrics.set_loads(builders.load(1001, outbound=mb(20), inbound=0, end=end))


@pytest.fixture
def remote() -> Iterator[RemoteBench]:
    with ExitStack() as stack:
        made = RemoteBench(stack)
        stack.enter_context(made)
        yield made


def test_log_growth_shows_a_load_step_in_the_next_cycle_before_the_metric_does(remote: RemoteBench) -> None:
    assert remote.play(12) == {Basis.GROWTH}
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 10), rel=0.05)
    remote.produced = 60.0
    remote.play(1)
    first = remote.rate(1003, FOLLOWER)
    remote.play(2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 60), rel=0.1), "no metric covers the step yet"
    assert first is not None and first < 0.9 * (100 - 20)


def test_frequent_log_reads_give_the_right_rate_in_the_first_cycle_after_a_load_step(remote: RemoteBench) -> None:
    remote.play(12, read_every=2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 10), rel=0.05)
    remote.produced = 60.0
    remote.play(1, read_every=2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 60), rel=0.1)


def test_clients_that_catch_up_after_a_stall_do_not_lower_the_rate(remote: RemoteBench) -> None:
    remote.produced = 30.0
    remote.play(12, read_every=2)
    before = remote.rate(1003, FOLLOWER)
    assert before == pytest.approx(0.9 * (100 - 30), rel=0.05)
    remote.burst = (10.0, 10.0, 30.0, 50.0, 50.0)
    remote.play(1, read_every=2)
    assert remote.rate(1003, FOLLOWER) == before


def test_the_rate_follows_a_load_drop_only_after_half_a_minute(remote: RemoteBench) -> None:
    remote.produced = 60.0
    remote.play(12, read_every=2)
    remote.produced = 10.0
    remote.play(1, read_every=2)
    first = remote.rate(1003, FOLLOWER)
    assert first is not None and first < 0.9 * (100 - 35), "a short pause of the clients must not cause a burst"
    remote.play(2, read_every=2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 10), rel=0.1)
