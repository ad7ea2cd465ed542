"""The growth of logs travels from discovery to the planner, and the adaptive policy decides on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryElection
from autothrottle.adapters.rpc import DiscoveryClient
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Basis
from autothrottle.discovery.servicer import DiscoveryServicer
from autothrottle.planner.settings import Ports
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import discovery_pb2_grpc
from tests import builders
from tests.builders import NOON, mb
from tests.planner.bench import FOLLOWER, Bench

INTERVAL = 10


class Remote(Bench):
    """A planner that reads the cluster from discovery, over gRPC; a metric covers the 30 s before the last 30 s."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        super().__init__(policy=AdaptivePolicy(), interval=timedelta(seconds=INTERVAL))
        self.cluster.tell_progress(self.now)
        self.cluster.tell_growth()
        self.cluster.add_topic("clients", {0: (1003,)})
        self.begin_move()
        self.cluster.grow(1001, "t1", 0, mb(1_000_000))
        self.cluster.grow(1003, "t1", 0, 0)
        self.produced = 10.0
        """MB/s, to 1003."""
        self.burst: tuple[float, ...] = ()
        """In place of that, in each 2 s of a cycle; the same in the mean."""
        self.past: list[float] = []

    def ports(self, election: MemoryElection) -> Ports:
        add = discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server
        service = (add, DiscoveryServicer(self.cluster), "autothrottle.v1.DiscoveryService")
        server = self.stack.enter_context(ServiceServer("discovery", [service]))
        client = DiscoveryClient([server.address])
        self.stack.callback(client.close)
        return replace(super().ports(election), snapshots=client)

    def play(self, cycles: int, read_every: int = INTERVAL) -> set[Basis | None]:
        """Run cycles, the logs being read so often; return the bases of the last one's decisions of 1003."""
        bases: set[Basis | None] = set()
        for _ in range(cycles):
            standing = self.rate(1003, FOLLOWER) or 0.0
            for second in range(0, INTERVAL, read_every):
                self.seconds += read_every
                produced = self.burst[second // 2] if self.burst else self.produced
                self.cluster.grow(1003, "t1", 0, round(mb(standing) * read_every))
                self.cluster.grow(1003, "clients", 0, round(mb(produced) * read_every))
                self.cluster.fetch_snapshot(timeout=timedelta(seconds=1))
            self.past.append(self.produced + standing)
            self._measure()
            record = self.cycle(after=0)
            bases = {one.basis for one in record.decisions if one.broker_id == 1003}
            self.rise()
            self.seconds -= 30
        return bases

    def _measure(self) -> None:
        known = self.past[:-3][-3:]
        rx = sum(known) / len(known) if known else self.produced
        end = NOON + timedelta(seconds=self.seconds - 30)
        self.metrics.set_loads(builders.load(1003, tx=0, rx=mb(rx), end=end))
        self.metrics.set_loads(builders.load(1001, tx=mb(20), rx=0, end=end))


@pytest.fixture
def remote() -> Iterator[Remote]:
    with ExitStack() as stack:
        made = Remote(stack)
        stack.enter_context(made)
        yield made


def test_a_step_in_the_load_is_known_at_the_next_cycle_long_before_a_metric_says_so(remote: Remote) -> None:
    assert remote.play(12) == {Basis.GROWTH}
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 10), rel=0.05)
    remote.produced = 60.0
    remote.play(1)
    first = remote.rate(1003, FOLLOWER)
    remote.play(2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 60), rel=0.1), "no metric covers the step yet"
    assert first is not None and first < 0.9 * (100 - 20)


def test_where_logs_are_read_often_the_rate_is_right_at_the_first_cycle_after_the_step(remote: Remote) -> None:
    remote.play(12, read_every=2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 10), rel=0.05)
    remote.produced = 60.0
    remote.play(1, read_every=2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 60), rel=0.1)


def test_clients_that_make_up_for_a_stall_do_not_lower_the_rate(remote: Remote) -> None:
    remote.produced = 30.0
    remote.play(12, read_every=2)
    before = remote.rate(1003, FOLLOWER)
    assert before == pytest.approx(0.9 * (100 - 30), rel=0.05)
    remote.burst = (10.0, 10.0, 30.0, 50.0, 50.0)
    remote.play(1, read_every=2)
    assert remote.rate(1003, FOLLOWER) == before


def test_clients_that_leave_are_believed_when_they_have_been_away_for_half_a_minute(remote: Remote) -> None:
    remote.produced = 60.0
    remote.play(12, read_every=2)
    remote.produced = 10.0
    remote.play(1, read_every=2)
    first = remote.rate(1003, FOLLOWER)
    assert first is not None and first < 0.9 * (100 - 35), "a pause for breath is no reason for a burst"
    remote.play(2, read_every=2)
    assert remote.rate(1003, FOLLOWER) == pytest.approx(0.9 * (100 - 10), rel=0.1)
