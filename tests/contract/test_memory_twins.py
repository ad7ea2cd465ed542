from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.memory import (
    MemoryAuditedMap,
    MemoryClientQuotas,
    MemoryCluster,
    MemoryElection,
    MemoryElectorate,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
)
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem, TopicPartition
from autothrottle.core.errors import Incomplete, NotLeader, Unavailable
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, StoredAuditRecord
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import AuditAction, OutcomeStatus
from autothrottle.core.throttles.changes import changes
from autothrottle.core.throttles.plan import plan
from autothrottle.ports.kafka import ConfigWriter, SnapshotSource, Term
from autothrottle.ports.state_store import Election, OverrideStore
from autothrottle.ports.telemetry import Event, EventSink, LoadSource
from tests import builders
from tests.contract.audited_map_contract import AuditedMapContract, MapCase
from tests.contract.client_quotas_contract import ClientQuotasContract
from tests.contract.config_writer_contract import ConfigWriterContract, rate
from tests.contract.election_contract import ElectionContract, nothing
from tests.contract.override_store_contract import OverrideStoreContract
from tests.contract.pause_store_contract import KEEP, PauseStoreContract
from tests.contract.reassigner_contract import ReassignerContract
from tests.contract.snapshot_source_contract import SnapshotSourceContract

TIMEOUT = timedelta(seconds=1)
BROKERS = (1001, 1002, 1003, 1004)
BROKER = ConfigResource.broker(1001)


class MemorySubject:
    """An in-memory cluster as the subject of the contracts."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(brokers=BROKERS)
        self.writer: ConfigWriter = self.cluster
        self.source: SnapshotSource = self.cluster
        self.begin_term = self.cluster.begin_term
        self.set_config_as_user = self.cluster.set_config_as_user

    def current(self, resource: ConfigResource) -> Mapping[str, str]:
        return self.cluster.configs.get(resource, {})

    def ledger(self, resource: ConfigResource) -> LedgerEntry | None:
        return self.cluster.ledger.get(resource)

    def notifications(self) -> Sequence[str]:
        return self.cluster.notifications


class TestMemoryConfigWriter(ConfigWriterContract):
    @pytest.fixture
    def subject(self) -> MemorySubject:
        return MemorySubject()


class MemoryClientQuotasSubject:
    """An in-memory store without quotas."""

    def __init__(self) -> None:
        self.store = MemoryClientQuotas()


class TestMemoryClientQuotas(ClientQuotasContract):
    @pytest.fixture
    def subject(self) -> MemoryClientQuotasSubject:
        return MemoryClientQuotasSubject()


class MemoryReassignerSubject:
    """An in-memory reassigner with three partitions on 1001 and 1002."""

    def __init__(self) -> None:
        self.reassigner = MemoryCluster(brokers=BROKERS)
        self.reassigner.add_topic("t1", dict.fromkeys(range(3), (1001, 1002)))
        self.begin_term = self.reassigner.begin_term

    def started(self) -> Mapping[TopicPartition, Sequence[int]]:
        reassigning = {("t1", number): p for number, p in self.reassigner.topics["t1"].items() if p.moves}
        return {row: [b for b in p.replicas if b not in p.removing_replicas] for row, p in reassigning.items()}


class TestMemoryReassigner(ReassignerContract):
    @pytest.fixture
    def subject(self) -> MemoryReassignerSubject:
        return MemoryReassignerSubject()


class TestMemorySnapshotSource(SnapshotSourceContract):
    @pytest.fixture
    def subject(self) -> MemorySubject:
        return MemorySubject()


class MemoryOverridesSubject:
    def __init__(self) -> None:
        electorate = MemoryElectorate()
        self.store: OverrideStore = MemoryOverrides(electorate)
        self.records_kept = MAX_AUDIT_RECORDS
        self.begin_term = electorate.begin_term


class TestMemoryOverrides(OverrideStoreContract):
    @pytest.fixture
    def subject(self) -> MemoryOverridesSubject:
        return MemoryOverridesSubject()


class MemoryElectionSubject:
    def __init__(self) -> None:
        self.electorate = MemoryElectorate()

    def candidate(self) -> Election:
        return MemoryElection(self.electorate)

    def candidates(self) -> int:
        return len(self.electorate._candidates)

    def wipe(self) -> None:
        self.electorate.wipe()

    def depose(self, leader: Election) -> None:
        assert leader.term is not None
        self.electorate.depose()


class TestMemoryPauses(PauseStoreContract):
    @pytest.fixture
    def store(self) -> MemoryPauses:
        return MemoryPauses()


def test_pause_and_overrides_share_the_audit_records() -> None:
    overrides = MemoryOverrides()
    pauses = MemoryPauses(overrides.audit)
    overrides.set_override(1001, StoredOverride(7))
    pauses.set_pause(KEEP)
    assert pauses.remove_pause("operator") and not pauses.remove_pause("operator")
    recorded = [(r.number, r.action, r.who, r.pause) for r in overrides.read_audit_records(10).records]
    assert recorded == [
        (3, AuditAction.RESUME, "operator", KEEP),
        (2, AuditAction.PAUSE, KEEP.author, KEEP),
        (1, AuditAction.SET, "", None),
    ]


class TestMemoryAuditedMap(AuditedMapContract):
    @pytest.fixture
    def electorate(self) -> MemoryElectorate:
        return MemoryElectorate()

    @pytest.fixture
    def fence(self, electorate: MemoryElectorate) -> int:
        return electorate.begin_term("")

    @pytest.fixture
    def store(self, case: MapCase, electorate: MemoryElectorate) -> MemoryAuditedMap[Any, Any]:
        return MemoryAuditedMap(case.codec, electorate)

    @pytest.fixture
    def newest(self, store: MemoryAuditedMap[Any, Any]) -> Callable[[], Sequence[StoredAuditRecord]]:
        return lambda: store.audit.newest(10)


class TestMemoryElection(ElectionContract):
    @pytest.fixture
    def subject(self) -> Iterator[MemoryElectionSubject]:
        yield MemoryElectionSubject()


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(brokers=BROKERS)
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1003]})
    return cluster


def test_complete_reassignment_leaves_the_configs_unchanged(cluster: MemoryCluster) -> None:
    cluster.set_config_as_user(BROKER, "log.cleaner.threads", "2")
    before = {r: dict(c) for r, c in cluster.configs.items()}
    fence = cluster.begin_term()
    cluster.submit_reassignment("t1", {0: [1004, 1002]})
    for phase in ("throttle", "finish"):
        snapshot = cluster.fetch_snapshot(timeout=TIMEOUT)
        loads = builders.loads(*(builders.load(b) for b in BROKERS))
        todo = changes(plan(snapshot, loads, builders.limits()), snapshot, builders.NOON, fence)
        outcomes = cluster.apply(Term(fence), todo.changes, TIMEOUT)
        assert outcomes and {o.status for o in outcomes} == {OutcomeStatus.APPLIED}, phase
        if phase == "throttle":
            assert {r.path for r in cluster.ledger} == {"brokers/1001", "brokers/1004", "topics/t1"}
            cluster.join_isr("t1", 0, 1004)
            cluster.finish("t1")
    assert {r: c for r, c in cluster.configs.items() if c} == before
    assert cluster.ledger == {}
    assert cluster.notifications[:2] == ["brokers/1001", "brokers/1004"]


def test_finished_reassignment_has_the_new_replicas_and_a_leader_among_them(cluster: MemoryCluster) -> None:
    cluster.submit_reassignment("t1", {0: [1004, 1002]})
    cluster.finish("t1")
    partition = cluster.topics["t1"][0]
    assert partition.replicas == (1004, 1002)
    assert partition.leader in partition.isr
    assert set(partition.isr) == {1002, 1004}
    assert not partition.moves


def test_cancelled_reassignment_restores_the_replicas(cluster: MemoryCluster) -> None:
    before = cluster.topics["t1"][0]
    cluster.submit_reassignment("t1", {0: [1004, 1003]})
    cluster.cancel("t1")
    assert set(cluster.topics["t1"][0].replicas) == set(before.replicas)
    assert cluster.topics["t1"][0].leader == before.leader
    assert not cluster.topics["t1"][0].moves


def test_second_submission_replaces_the_first(cluster: MemoryCluster) -> None:
    cluster.submit_reassignment("t1", {0: [1004, 1002]})
    cluster.submit_reassignment("t1", {0: [1003, 1002]})
    (reassignment,) = cluster.fetch_snapshot(timeout=TIMEOUT).reassignments
    assert reassignment.adding_replicas == ((1003,),)
    assert reassignment.removing_replicas == ((1001,),)


def test_deleted_topic_has_no_reassignment(cluster: MemoryCluster) -> None:
    cluster.submit_reassignment("t1", {0: [1004, 1002]})
    cluster.set_config_as_user(ConfigResource.topic("t1"), "retention.ms", "1")
    cluster.delete_topic("t1")
    assert cluster.fetch_snapshot(timeout=TIMEOUT).reassignments == ()
    assert cluster.configs == {}


def test_refuse_makes_changes_of_a_resource_fail(cluster: MemoryCluster) -> None:
    fence = cluster.begin_term()
    cluster.refused[BROKER] = "no permission"
    (outcome,) = cluster.apply(Term(fence), [rate("5")], TIMEOUT)
    assert (outcome.status, outcome.reason) == (OutcomeStatus.REFUSED, "no permission")
    assert cluster.writes == []
    cluster.refused[BROKER] = ""
    (outcome,) = cluster.apply(Term(fence), [rate("5")], TIMEOUT)
    assert outcome.status is OutcomeStatus.APPLIED
    assert cluster.writes == [rate("5")]


def test_unavailable_cluster_rejects_reads_and_writes(cluster: MemoryCluster) -> None:
    fence = cluster.begin_term()
    cluster.unavailable(True)
    with pytest.raises(Unavailable):
        cluster.apply(Term(fence), [rate("5")], TIMEOUT)
    with pytest.raises(Unavailable):
        cluster.fetch_snapshot(timeout=TIMEOUT)
    cluster.unavailable(False)
    assert cluster.fetch_snapshot(timeout=TIMEOUT).throttles == {}


def test_unreadable_configs_are_reported(cluster: MemoryCluster) -> None:
    problem = Problem("brokers/1001", "invalid JSON")
    cluster.set_config_as_user(BROKER, "leader.replication.throttled.rate", "5")
    cluster.unreadable_configs[BROKER] = problem
    cluster.problems.append(problem)
    snapshot = cluster.fetch_snapshot(timeout=TIMEOUT)
    assert (snapshot.unreadable_configs, snapshot.problems) == ({BROKER: problem}, (problem,))
    assert snapshot.throttles == {}
    cluster.incomplete = "the topics cannot be listed"
    with pytest.raises(Incomplete, match="the topics cannot be listed"):
        cluster.fetch_snapshot(timeout=TIMEOUT)


def test_snapshot_is_immutable(cluster: MemoryCluster) -> None:
    cluster.set_config_as_user(BROKER, "leader.replication.throttled.rate", "5")
    snapshot = cluster.fetch_snapshot(timeout=TIMEOUT)
    cluster.set_config_as_user(BROKER, "leader.replication.throttled.rate", "6")
    assert snapshot.throttles[BROKER] == {"leader.replication.throttled.rate": "5"}


def test_writes_are_fenced_by_the_shared_election() -> None:
    electorate = MemoryElectorate()
    cluster = MemoryCluster(electorate, BROKERS)
    first, second = MemoryElection(electorate), MemoryElection(electorate)
    first.join("host1:1", nothing)
    second.join("host2:1", nothing)
    assert first.term is not None
    earlier = first.term.fence
    electorate.depose()
    with pytest.raises(NotLeader) as refused:
        cluster.apply(Term(earlier), [rate("5")], TIMEOUT)
    assert refused.value.leader_address == "host2:1"
    assert second.term is not None
    assert len(cluster.apply(Term(second.term.fence), [rate("5")], TIMEOUT)) == 1


def test_deposed_leader_without_rivals_leads_again_in_a_new_term() -> None:
    electorate = MemoryElectorate()
    candidate = MemoryElection(electorate)
    terms: list[int] = []
    candidate.join("host1:1", lambda: terms.append(candidate.term.fence if candidate.term else 0))
    electorate.depose()
    assert terms == [1, 0, 2]


def test_unavailable_election_raises_unavailable() -> None:
    electorate = MemoryElectorate()
    electorate.unavailable(True)
    with pytest.raises(Unavailable):
        MemoryElection(electorate).leader()


def test_memory_metrics_return_the_given_loads_and_events() -> None:
    metrics = MemoryMetrics(builders.load(1001), builders.load(1002))
    source: LoadSource = metrics
    sink: EventSink = metrics
    metrics.lose(1001, "no host has the tag broker_id:1001")
    assert source.fetch_loads(TIMEOUT).brokers.keys() == {1002}
    assert source.fetch_loads(TIMEOUT).problems.keys() == {1001}
    metrics.set_loads(builders.load(1001, outbound=5))
    assert source.fetch_loads(TIMEOUT).brokers[1001].outbound.rate == 5
    assert source.fetch_loads(TIMEOUT).problems == {}
    sink.post_event(Event("a", "b"), TIMEOUT)
    assert metrics.events == [Event("a", "b")]


def test_unavailable_metrics_reject_reads_and_events() -> None:
    metrics = MemoryMetrics()
    metrics.unavailable(True)
    with pytest.raises(Unavailable):
        metrics.fetch_loads(TIMEOUT)
    with pytest.raises(Unavailable):
        metrics.post_event(Event("a", "b"), TIMEOUT)
    assert metrics.events == []


def test_unreadable_and_marked_overrides_have_no_effect() -> None:
    store = MemoryOverrides()
    store.set_override(1001, StoredOverride(5))
    store.unreadable[1001] = "invalid JSON"
    store.mark_for_removal(1002)
    read = store.read_overrides()
    assert read.unreadable == {1001: "invalid JSON"}
    assert read.brokers[1002].rate == 0
    assert read.active_brokers == frozenset()
    store.unavailable(True)
    with pytest.raises(Unavailable):
        store.read_overrides()
