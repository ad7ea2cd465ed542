"""Client quotas on real Kafka 3.9 (ZooKeeper) and 4: Kafka's own tool shows them, and producers are held to them."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.adapters.kafka_admin.routing import Routing
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    QuotaKey,
    QuotaValues,
    effective_quotas,
    keys_of,
    levels,
    levels_of_ip,
)
from autothrottle.ports.kafka import ClientQuotaChange, ClientQuotaStore
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import run_command
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.client_quotas_contract import CONNECTIONS, ODD_NAMES, PRODUCER, TIMEOUT
from tests.system.zookeeper_tree import session

MB = 1_000_000
ANONYMOUS = "ANONYMOUS"
"""The user of the brokers' listener, which has no authentication."""
TOPIC = "quotas"
TINY, HUGE = 1_000, 10**12
WINDOW_SECONDS = 11
"""The brokers limit the mean over this time."""
PROBE_BYTES = 20_000
"""Above `TINY` even as a mean over the whole window of 11 s."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """A cluster with a store of its quotas."""

    cluster: KafkaCluster
    store: ClientQuotaStore
    admin: AdminClientQuotas
    """Reads what the brokers report, also if the store writes to ZooKeeper."""

    def write(self, wanted: Mapping[ClientQuotaEntity, QuotaValues]) -> None:
        for entity, values in wanted.items():
            self.store.alter_quota(ClientQuotaChange(entity, values), TIMEOUT)

    def clear(self) -> None:
        for entity in self.store.fetch_quotas(TIMEOUT).quotas:
            self.store.alter_quota(ClientQuotaChange(entity, dict.fromkeys(keys_of(entity))), TIMEOUT)

    def shown_by_kafka(self) -> set[str]:
        """Run kafka-configs of the release; return its lines, one for each entity."""
        command = next(iter(self.cluster.brokers.values())).command
        arguments = ["kafka.admin.ConfigCommand", "--bootstrap-server", self.cluster.bootstrap_servers, "--describe"]
        lines = set()
        for kinds in (("users", "clients"), ("users",), ("clients",), ("ips",)):
            types = [word for kind in kinds for word in ("--entity-type", kind)]
            status, output = run_command([*command, *arguments, *types], 120)
            assert status == 0, output
            lines |= {line for line in output.splitlines() if line.startswith("Quota configs for")}
        return lines


def kafka_line(entity: ClientQuotaEntity, values: QuotaValues) -> tuple[str, frozenset[str]]:
    """What kafka-configs shows of an entity: (its name, its quotas)."""
    kinds = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
    parts = [
        f"the default {kinds[kind]}" if name is DEFAULT else f"{kinds[kind]} '{name}'"
        for kind, name in entity.parts.items()
    ]
    return ", ".join(parts), frozenset(f"{key}={float(value)}" for key, value in values.items())


def read_line(line: str) -> tuple[str, frozenset[str]]:
    name, _, shown = line.removeprefix("Quota configs for ").rpartition(" are ")
    found = (pair.split("=") for pair in shown.split(", "))
    return name, frozenset(f"{key}={float(value)}" for key, value in found)


@pytest.fixture
def quotas(each_cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Quotas]:
    """The cluster through its own backend: ZooKeeper, or the Admin API."""
    with (
        closing(KafkaAdmin(KafkaSettings(tuple(each_cluster.bootstrap_servers.split(","))))) as kafka_admin,
        session(zookeeper) as client,
    ):
        admin = AdminClientQuotas(kafka_admin)
        by_zookeeper = isinstance(each_cluster, ZooKeeperModeCluster)
        found = Quotas(each_cluster, ZooKeeperClientQuotas(client, KafkaPaths()) if by_zookeeper else admin, admin)
        each_cluster.create_topic(TOPIC, {0: [1001]})
        try:
            yield found
        finally:
            found.clear()
            each_cluster.delete_topic(TOPIC)


@pytest.mark.timeout(900)
def test_kafka_s_own_tool_shows_the_quotas_of_every_level_and_of_odd_names(quotas: Quotas) -> None:
    wanted: dict[ClientQuotaEntity, QuotaValues] = {
        entity: {CONNECTIONS if entity.ip else PRODUCER: number}
        for number, entity in enumerate((*levels("alice", "app"), *levels_of_ip("10.0.0.7")), start=1)
    }
    wanted |= {
        ClientQuotaEntity(name, name): {PRODUCER: 7 * MB, QuotaKey.REQUEST_PERCENTAGE: 12.5} for name in ODD_NAMES
    }
    quotas.write(wanted)
    assert quotas.admin.fetch_quotas(TIMEOUT).quotas == wanted, "as the brokers report it"
    assert set(map(read_line, quotas.shown_by_kafka())) == {
        kafka_line(entity, values) for entity, values in wanted.items()
    }
    quotas.clear()
    assert quotas.admin.fetch_quotas(TIMEOUT).quotas == {}


@pytest.mark.timeout(300)
def test_an_unlimited_quota_of_kafka_s_own_tool_is_listed_kept_and_removed(quotas: Quotas) -> None:
    """The brokers report 2^63 as a double. The list of all quotas failed, and so did every change of the user's."""
    command = next(iter(quotas.cluster.brokers.values())).command
    arguments = ["kafka.admin.ConfigCommand", "--bootstrap-server", quotas.cluster.bootstrap_servers, "--alter"]
    options = ["--entity-type", "users", "--entity-name", "alice", "--add-config", f"producer_byte_rate={2**63 - 1}"]
    status, output = run_command([*command, *arguments, *options], 120)
    assert status == 0, output
    alice, consumer = ClientQuotaEntity("alice"), QuotaKey.CONSUMER_BYTE_RATE
    unlimited: QuotaValues = {PRODUCER: 2**63 - 1}
    eventually(lambda: quotas.admin.fetch_quotas(TIMEOUT).quotas == {alice: unlimited})
    assert quotas.store.alter_quota(ClientQuotaChange(alice, {consumer: 2**63 - 1}), TIMEOUT) == unlimited
    assert quotas.store.alter_quota(ClientQuotaChange(alice, {PRODUCER: None}), TIMEOUT) == {
        **unlimited,
        consumer: 2**63 - 1,
    }
    eventually(lambda: quotas.admin.fetch_quotas(TIMEOUT).quotas == {alice: {consumer: 2**63 - 1}})


@pytest.mark.measures
@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_a_producer_is_held_to_its_quota_within_ten_percent(quotas: Quotas) -> None:
    quota, record = 500_000, bytes(5_000)
    quotas.write({ClientQuotaEntity(client_id="backfill"): {PRODUCER: quota}})
    made = kafka.KafkaProducer(
        bootstrap_servers=quotas.cluster.bootstrap_servers.split(","),
        client_id="backfill",
        acks=1,
        enable_idempotence=False,
        batch_size=100_000,
        linger_ms=20,
        **CLIENT,
    )
    waiting: deque[Any] = deque()
    acknowledged: list[float] = []
    with closing(made):
        began = time.monotonic()
        while time.monotonic() < began + 3 * WINDOW_SECONDS:
            waiting.append(made.send(TOPIC, record, partition=0))
            # Twice the quota, so that the first window does not let so much through at once that the next one is empty.
            while (
                len(acknowledged) + len(waiting) > (time.monotonic() - began) * 2 * quota / len(record)
                or len(waiting) > 100
            ):
                waiting.popleft().get(60)
                acknowledged.append(time.monotonic() - began)
                if not waiting:
                    time.sleep(0.01)
                    break
    mean = sum(at > WINDOW_SECONDS for at in acknowledged) * len(record) / (acknowledged[-1] - WINDOW_SECONDS)
    print(f"quota {quota / MB} MB/s, mean of {2 * WINDOW_SECONDS} s: {mean / MB:.3f} MB/s")
    assert mean == pytest.approx(quota, rel=0.1)


def is_throttled(cluster: KafkaCluster, client_id: str) -> bool:
    """Whether the broker delays the next request of a client after a small one, as its response says."""
    records = kafka.record.memory_records.MemoryRecordsBuilder(2, 0, 2 * PROBE_BYTES)
    records.append(int(time.time() * 1000), None, bytes(PROBE_BYTES))
    records.close()
    request = kafka.protocol.producer.ProduceRequest
    topic = request.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=records.buffer())

    def build() -> Any:
        data = [topic(name=TOPIC, partition_data=[partition])]
        return request(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=data, min_version=3, max_version=9)

    servers = tuple(cluster.bootstrap_servers.split(","))
    with closing(Routing(servers, KafkaLogin({"client.id": client_id}), timedelta(seconds=30))) as routing:
        answer = routing.each({1001: build}, time.monotonic() + 30)[1001]
        assert not isinstance(answer, AutothrottleError), answer
        (found,) = answer.responses[0].partition_responses
        assert found.error_code == 0
        return bool(answer.throttle_time_ms > 0)


def combinations(sample: bool) -> Sequence[tuple[bool, ...]]:
    """All non-empty combinations of the eight levels, or a random one for each deciding level."""
    every = [one for one in product((False, True), repeat=8) if any(one)]
    if not sample:
        return every
    chosen = random.Random(7)
    return [chosen.choice([one for one in every if one.index(True) == level]) for level in range(8)]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(combinations(sample=True), id="sample"),
        pytest.param(combinations(sample=False), id="all", marks=pytest.mark.repeat),
    ],
)
def test_the_broker_enforces_the_level_that_decides(quotas: Quotas, chosen: Sequence[tuple[bool, ...]]) -> None:
    """Of the levels that are set, first only the deciding one is tiny, then all others are."""
    for number, is_set in enumerate(chosen):
        client_id = f"app-{number}"
        entities = [entity for entity, used in zip(levels(ANONYMOUS, client_id), is_set, strict=True) if used]
        (decided,) = effective_quotas({entity: {PRODUCER: 1} for entity in entities}, ANONYMOUS, client_id)
        for tiny in (True, False):
            quotas.write({e: {PRODUCER: TINY if (e == decided.entity) is tiny else HUGE} for e in entities})
            deadline = time.monotonic() + 120
            while is_throttled(quotas.cluster, client_id) is not tiny:
                assert time.monotonic() < deadline, (is_set, decided, tiny)
        for entity in entities:
            quotas.store.alter_quota(ClientQuotaChange(entity, {PRODUCER: None}), TIMEOUT)
