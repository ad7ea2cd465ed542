"""A leader without contact to ZooKeeper writes nothing after its lease, however slow the way to Kafka is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.grpc import ApplierClient
from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.reassignments import AdminReassigner
from autothrottle.adapters.kafka_admin.values import ConfigEdit
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.applier import ApplierServicer
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.ports.kafka import Term
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import applier_pb2, applier_pb2_grpc
from autothrottle.wire.applier import change_to_message
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.chaos.proxy import Framing, Link
from tests.contract.config_writer_contract import rate
from tests.system.zookeeper_tree import Tree, session
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka

TIMEOUT = timedelta(seconds=20)
SESSION = timedelta(seconds=3)
SLOWNESS = 1.5
"""Seconds from the request to the write in Kafka; less than our own check of the term admits."""
ROW: TopicPartition = ("t1", 0)

Write = Callable[[ApplierClient, Term], object]


class SlowKafka(MemoryKafka):
    """A Kafka that carries out each write some seconds after the request, unless the request is given up before."""

    def __init__(self) -> None:
        cluster = MemoryCluster(brokers=(1001, 1002))
        cluster.add_topic("t1", {0: (1002,)})
        cluster.submit_reassignment("t1", {0: (1001,)})
        super().__init__(cluster)
        self.writes: list[float] = []
        """When writes were carried out, on the monotonic clock."""

    def alter_broker_configs(self, broker_id: int, edits: Sequence[ConfigEdit], *, until: float | None = None) -> None:
        self._carry_out(until)
        values = {edit.key: edit.value for edit in edits if edit.value is not None}
        self.cluster.configs[ConfigResource.broker(broker_id)] = values

    def alter_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], *, until: float | None = None
    ) -> Mapping[TopicPartition, AutothrottleError]:
        self._carry_out(until)
        return {}

    def _carry_out(self, until: float | None) -> None:
        assert until is not None
        left = until - time.monotonic()
        time.sleep(min(left, SLOWNESS))
        if left <= SLOWNESS:
            raise Unavailable("the broker did not answer in time")
        self.writes.append(time.monotonic())


@contextlib.contextmanager
def applier(kafka: SlowKafka, client: KazooClient, own: OwnPaths) -> Iterator[ApplierClient]:
    ledger = ZooKeeperLedger(client, own)
    writer, reassigner = AdminConfigWriter(kafka, ledger, SESSION), AdminReassigner(kafka, ledger, SESSION)
    with serving(ApplierServicer(writer, reassigner)) as remote:
        yield remote


@contextlib.contextmanager
def serving(servicer: ApplierServicer) -> Iterator[ApplierClient]:
    add = applier_pb2_grpc.add_ApplierServiceServicer_to_server
    with ServiceServer("applier", [(add, servicer, "autothrottle.v1.ApplierService")]) as server:
        client = ApplierClient([server.address])
        try:
            yield client
        finally:
            client.close()


WRITES: dict[str, Write] = {
    "config": lambda client, term: client.apply(term, [rate("5")], TIMEOUT),
    "submission": lambda client, term: client.submit_reassignments(term, {ROW: (1001,)}, TIMEOUT),
    "cancellation": lambda client, term: client.cancel_reassignments(term, [ROW], TIMEOUT),
}
CASES = [
    pytest.param(write, id=name, marks=[pytest.mark.repeat] * (name == "cancellation"))
    for name, write in WRITES.items()
]


@pytest.mark.parametrize("write", CASES)
def test_a_partitioned_leader_writes_nothing_after_its_lease(zookeeper: ZooKeeperServer, write: Write) -> None:
    """Only the applier's own check of the term limited a write, but the leader's last contact was older.

    A slow broker then carried the write out after the next leader's first writes.
    """
    kafka = SlowKafka()
    port = int(zookeeper.connect.rpartition(":")[2])
    with session(zookeeper) as client, Link([port], framing=Framing.ZOOKEEPER) as link:
        own = Tree(client).own
        connected = connect(link.connect, SESSION, timedelta(seconds=30))
        election = ZooKeeperElection(connected, own, SESSION)
        try:
            election.join("127.0.0.1:1", lambda: None)
            eventually(lambda: election.term, 30)
            link.hold()
            # The term goes on, and its lease gets shorter than a write takes.
            eventually(lambda: (term := election.term) and term.lease_end < time.monotonic() + SLOWNESS - 0.5, 30)
            term = election.term
            assert term is not None
            with applier(kafka, client, own) as remote, contextlib.suppress(Unavailable):
                write(remote, term)
            assert kafka.writes == []
        finally:
            link.resume()
            election.leave()
            disconnect(connected)


class RecordingCluster(MemoryCluster):
    """A twin that records the terms of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: list[Term] = []

    def _check(self, term: Term) -> None:
        self.terms.append(term)
        super()._check(term)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("seconds", [2.0, 60.0, float("inf")])
def test_a_lease_never_grows_on_its_way_to_the_applier(write: Write, seconds: float) -> None:
    cluster = RecordingCluster()
    term = Term(cluster.begin_term(), time.monotonic() + seconds)
    with serving(ApplierServicer(cluster, cluster)) as remote:
        write(remote, term)
    assert cluster.terms == [term]
    assert cluster.terms[0].lease_end <= term.lease_end


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_lease_that_has_ended_writes_nothing(write: Write) -> None:
    cluster = MemoryCluster()
    cluster.add_topic("t1", {0: (1001,)})
    with serving(ApplierServicer(cluster, cluster)) as remote, pytest.raises(Unavailable, match="lease has ended"):
        write(remote, Term(cluster.begin_term(), time.monotonic() - 1))
    assert not cluster.ledger and not any(cluster.configs.values()) and cluster.submissions == []


@pytest.mark.parametrize(("seconds", "is_written"), [(2**62, False), (-(2**62), True)])
def test_a_lease_margin_of_any_size_is_understood(seconds: int, is_written: bool) -> None:
    """A margin that does not fit into a timedelta ended the call with an unexpected error."""
    cluster = RecordingCluster()
    request = applier_pb2.ApplyRequest(fence=cluster.begin_term(), changes=[change_to_message(rate("5"))])
    request.lease_margin.seconds = seconds
    expected = contextlib.nullcontext() if is_written else pytest.raises(Unavailable, match="lease has ended")
    with serving(ApplierServicer(cluster, cluster)) as remote, expected:
        remote._unary(lambda applier: applier.Apply, request, TIMEOUT)
    assert cluster.terms[0].lease_end <= time.monotonic() + TIMEOUT.total_seconds()
