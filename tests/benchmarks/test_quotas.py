"""Listing 10,000 client quotas of a real ZooKeeper and a real Kafka over gRPC, and the cost of 1,000 in a cycle."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import grpc
import pytest

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas, fetch_group_clients
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.adapters.kafka_admin.routing import Routing
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.memory import (
    MemoryAuditedMap,
    MemoryCluster,
    MemoryOverrides,
)
from autothrottle.adapters.zookeeper.codec import format_config
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, TEMPORARY_QUOTAS, YIELD_RULES
from autothrottle.admin.quotas import QuotaServicer
from autothrottle.core.cluster.configs import LedgerEntry, LedgerKey, ResourceType
from autothrottle.core.cycle.client_quotas import quota_changes
from autothrottle.core.cycle.decision import CycleResults
from autothrottle.core.cycle.input import ControllerState, CycleObservation, KnownLoads, PlannerSettings
from autothrottle.core.cycle.step import settle, step
from autothrottle.core.operators.sources import KnownSources, Overrides, SourceReadings, adopted
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    ClientReading,
    QuotaKey,
    QuotaState,
    TemporaryQuota,
)
from autothrottle.core.quotas.yielding import YieldRule, YieldRules
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import with_changes
from autothrottle.ports.kafka import ClientQuotaStore
from autothrottle.runtime.access import Access, AccessInterceptor
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import quotas_pb2, quotas_pb2_grpc
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.big_cluster import LARGE
from tests.benchmarks.figures import Figures
from tests.benchmarks.test_pure import LIMITS, NOW, loads, reassigning_snapshot, timed
from tests.builders import eventually
from tests.system.zookeeper_tree import Tree, session

ENTITIES, TEMPORARY, GROUPS = 10_000, 1_000, 3_000
RULES = 100
LIMIT = 20_000_000
AT_ONCE = 1_000
"""Entities in one request to Kafka."""
RUNS = 5
SETTINGS = PlannerSettings(LIMITS, policy=HeadroomPolicy())
VALUES = {QuotaKey.PRODUCER_BYTE_RATE: 1_000_000}


def entity(number: int) -> ClientQuotaEntity:
    """A third are users, a third pairs of different users, and a third client ids."""
    user, client = f"user {number}", f"client {number}"
    return (ClientQuotaEntity(user), ClientQuotaEntity(user, client), ClientQuotaEntity(client_id=client))[number % 3]


def listed_seconds(store: ClientQuotaStore) -> list[float]:
    """Measure how long a client waits for the list over gRPC."""
    servicer = QuotaServicer(
        store,
        MemoryAuditedMap(TEMPORARY_QUOTAS),
        MemoryAuditedMap(YIELD_RULES),
        MemoryCluster(),
        MemoryAuditedMap(CATCH_UPS),
        MemoryOverrides(),
    )
    served = (quotas_pb2_grpc.add_QuotaServiceServicer_to_server, servicer, "autothrottle.v1.QuotaService")
    samples = []
    with (
        ServiceServer("admin", [served], access=AccessInterceptor(Access())) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = quotas_pb2_grpc.QuotaServiceStub(channel)
        for _ in range(RUNS):
            started = time.monotonic()
            found = stub.ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=60)
            samples.append(time.monotonic() - started)
            assert len(found.quotas) == ENTITIES and not found.warnings
    return samples


def test_time_to_list_the_quotas_of_ten_thousand_entities(figures: Figures, fresh_zookeeper: ZooKeeperServer) -> None:
    with session(fresh_zookeeper) as client:
        tree = Tree(client)
        paths = dict.fromkeys(p for n in range(ENTITIES) for p in tree.kafka.entity_parents(entity(n).path))
        created = [client.create_async(path, format_config({}), makepath=True) for path in paths]
        data = format_config({"producer_byte_rate": "1000000"})
        created += [client.create_async(tree.kafka.entity_config(entity(n).path), data) for n in range(ENTITIES)]
        for answer in created:
            answer.wait(60)
        samples = listed_seconds(ZooKeeperClientQuotas(client, tree.kafka))
    figures.add("listing client quotas through ZooKeeper and gRPC", f"{ENTITIES} entities", "s", samples)


def set_quotas(cluster: KraftCluster, entities: Sequence[ClientQuotaEntity]) -> None:
    """Set quotas of many entities in one request: one by one they take minutes."""
    requests = [messages.alter_client_quotas(one, VALUES, validate_only=False) for one in entities]
    requests[0].entries = [entry for request in requests for entry in request.entries]
    with closing(Routing((cluster.bootstrap_servers,), KafkaLogin(), timedelta(seconds=60))) as routing:
        answer = routing.ask_any(lambda: requests[0], time.monotonic() + 60, again=False)
    assert not any(entry.error_code for entry in answer.entries)


def test_time_to_list_the_quotas_of_ten_thousand_entities_without_zookeeper(figures: Figures) -> None:
    with (
        scratch_directory() as directory,
        KraftCluster(directory, (1001,)) as cluster,
        closing(KafkaAdmin(KafkaSettings((cluster.bootstrap_servers,)))) as admin,
    ):
        for start in range(0, ENTITIES, AT_ONCE):
            set_quotas(cluster, [entity(n) for n in range(start, start + AT_ONCE)])
        eventually(lambda: len(admin.client_quotas()) == ENTITIES)
        samples = listed_seconds(AdminClientQuotas(admin))
    figures.add("listing client quotas through the Admin API and gRPC", f"{ENTITIES} entities", "s", samples)


def join_group(number: int) -> Any:
    """Build the request of a consumer that joins a group of its own."""
    request = kafka.protocol.consumer.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=bytes(200))
    return request(
        group_id=f"group-{number}",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
        max_version=3,
    )


def test_time_to_read_the_members_of_three_thousand_groups(figures: Figures) -> None:
    request = kafka.protocol.metadata.FindCoordinatorRequest
    login = KafkaLogin({"client.id": "member"})
    with (
        scratch_directory() as directory,
        KraftCluster(directory, (1001,)) as cluster,
        closing(KafkaAdmin(KafkaSettings((cluster.bootstrap_servers,)))) as admin,
        closing(Routing((cluster.bootstrap_servers,), login, timedelta(seconds=60))) as routing,
    ):

        def succeeds(build: Callable[[], Any]) -> bool:
            answer = routing.each({1001: build}, time.monotonic() + 60)[1001]
            return getattr(answer, "error_code", None) == 0

        # The first request for a coordinator creates the topic of the groups.
        eventually(lambda: succeeds(lambda: request(key="group", key_type=0, coordinator_keys=[], max_version=3)))
        for number in range(GROUPS):
            eventually(lambda n=number: succeeds(partial(join_group, n)))  # type: ignore[misc]
        assert len(admin.groups([1001]).values[1001]) == GROUPS
        samples = []
        for _ in range(RUNS):
            started = time.monotonic()
            found = fetch_group_clients(admin, timedelta(seconds=60))
            samples.append(time.monotonic() - started)
            assert found == ClientReading(frozenset({ClientQuotaEntity(DEFAULT, "member")}))
    figures.add("reading the members of groups of one broker", f"{GROUPS} groups", "s", samples)


@pytest.mark.usefixtures("collected_rarely")
def test_cost_of_temporary_quotas_in_a_cycle(figures: Figures) -> None:
    now = datetime.now(UTC)
    values = {QuotaKey.PRODUCER_BYTE_RATE: 5_000_000}
    entities = [ClientQuotaEntity(DEFAULT, f"client {n}") for n in range(TEMPORARY)]
    quotas = {e: TemporaryQuota(e, values, "anna", now, now + timedelta(hours=1)) for e in entities}
    state = QuotaState({e.resource: {"producer_byte_rate": "70000000"} for e in entities})
    samples = []
    for _ in range(RUNS):
        seconds, found = timed(lambda: quota_changes(quotas, state, now, True, 1, 1))
        assert len(found.changes) == TEMPORARY
        samples.append(seconds)
    figures.add("quota_changes(), all temporary quotas new", f"{TEMPORARY} entities", "CPU s", samples)


@pytest.mark.usefixtures("collected_rarely")
def test_cost_of_yield_rules_in_a_cycle(figures: Figures) -> None:
    """Each of 100 rules limits ten clients; the quotas have reached their limits, or are halved in this cycle."""
    made = {f"r{n}": rule(n) for n in range(RULES)}
    limited = [ClientQuotaEntity(DEFAULT, f"c{n % RULES:02}-{n}") for n in range(TEMPORARY)]
    without = [deciding_seconds({}, [], 0) for _ in range(RUNS)]
    figures.add("step() without yield rules, nothing changes", str(LARGE), "CPU s", without)
    for name, quota in (("nothing changes", LIMIT), ("all quotas step", 4 * LIMIT)):
        samples = [deciding_seconds(made, limited, quota) for _ in range(RUNS)]
        where = f"{LARGE}, {RULES} rules, {TEMPORARY} clients"
        figures.add(f"step() with yield rules, {name}", where, "CPU s", samples)


def rule(number: int) -> YieldRule:
    return YieldRule(
        f"r{number}", 1, None, f"c{number:02}-*", LIMIT, None, frozenset({QuotaKey.PRODUCER_BYTE_RATE}), "anna", NOW
    )


def deciding_seconds(rules: YieldRules, limited: Sequence[ClientQuotaEntity], quota: int) -> float:
    """Return the CPU seconds of `step` in a cycle in which no throttle changes; the quotas are ours."""
    state = ControllerState().begin_term(1)
    key, entries = QuotaKey.PRODUCER_BYTE_RATE, {}
    for entity in limited:
        entries[entity.resource] = LedgerEntry({key.value: LedgerKey(None, str(quota))}, 1, 1)
    quotas = QuotaState({r: {key.value: str(quota)} for r in entries}, entries)
    snapshot, seconds = reassigning_snapshot(), list[float]()
    for number in range(5):
        observation = CycleObservation(
            at=NOW + timedelta(minutes=number),
            clock=60.0 * number,
            scheduled=True,
            sources=adopted(KnownSources(), SourceReadings(None, Overrides(), {}, {}, rules)),
            snapshot=snapshot,
            loads=KnownLoads(loads(300), 60.0 * number),
            quotas=QuotaState(dict(quotas.configs), dict(quotas.ledger)),
            clients=ClientReading(frozenset(limited)),
        )
        taken, decision = timed(lambda observation=observation, state=state: step(SETTINGS, state, observation))  # type: ignore[misc]
        assert decision.error is None
        seconds.append(taken)
        outcomes = tuple(Outcome(change.resource, OutcomeStatus.APPLIED) for change in decision.changes)
        state, _ = settle(SETTINGS, decision, CycleResults(observation.at, observation.clock, outcomes))
        snapshot = with_changes(snapshot, [c for c in decision.changes if c.resource.type is not ResourceType.QUOTA])
    # The first cycles throttle and read the clients.
    changes = [change for change in decision.changes if change.resource.type is ResourceType.QUOTA]
    assert len(changes) == (len(limited) if quota > LIMIT else 0)
    return seconds[-1]
