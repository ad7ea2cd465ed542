"""Clients that yield to a recovery on real Kafka: the backfill is slowed and released, and the customer is not."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, QuotaValues
from autothrottle.v1 import admin_pb2_grpc
from autothrottle_client import AdminClient, PlannerClient, YieldRule
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import run_command, scratch_directory
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from tests.builders import eventually
from tests.server_fixtures import repeat_on_kraft
from tests.system.paced_job import PacedJob
from tests.system.recovery_watch import (
    RecoveryWatch,
    admin_channel,
    exported_state,
    feed,
    state_options,
    submit,
)

MB = 1_000_000
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
TOPIC, CUSTOMER_TOPIC, BACKFILL_TOPIC = "yielding", "customer-orders", "backfill"
DESTINATION = 1005
"""It leads the partitions of both clients."""
BACKFILL, LIMIT, CUSTOMER = 2 * MB, 1_300_000, MB // 2
"""Rates in bytes/s: of the backfill without a quota of ours, the limit of the rule, and of the customer."""
FREE = 1.2 * LIMIT
"""A higher rate of the backfill shows that no quota of ours limits it, also on a busy machine."""
RECORD = bytes(20_000)
IN_FLIGHT = 20
"""Records of the backfill that are not acknowledged yet."""
WINDOW_SECONDS = 11
"""Brokers limit the mean over this time."""

QUOTAS: Mapping[ClientQuotaEntity, QuotaValues] = {
    ClientQuotaEntity(client_id="backfill-1"): {PRODUCER: 20 * MB},
    ClientQuotaEntity(client_id="customer"): {PRODUCER: 30 * MB},
}
"""Without a quota or a consumer group, Kafka does not know the name of a client."""
YIELDING = ClientQuotaEntity(DEFAULT, "backfill-1")
RULE = YieldRule("backfill", floor_bytes_per_second=MB // 2, client_id="backfill-*", at_most_bytes_per_second=LIMIT)


class Backfill:
    """A bulk job that sends as fast as the brokers let it, up to its rate."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._sent: deque[Any] = deque()
        self._due = time.monotonic()

    def move(self) -> int:
        """Send one record; return the bytes that were acknowledged meanwhile."""
        self._due = max(self._due, time.monotonic() - 1.0) + len(RECORD) / BACKFILL
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._sent.append(self._producer.send(BACKFILL_TOPIC, RECORD, partition=0))
        if len(self._sent) <= IN_FLIGHT:
            return 0
        self._sent.popleft().get(60)
        return len(RECORD)


@contextmanager
def running_backfill(cluster: KafkaCluster) -> Iterator[PacedJob]:
    made = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        client_id="backfill-1",
        acks=1,
        enable_idempotence=False,
        batch_size=2 * len(RECORD),
        linger_ms=5,
        **CLIENT,
    )
    with closing(made), PacedJob(Backfill(made).move) as job:
        yield job


@contextmanager
def running_services(
    of_cluster: Mapping[str, str], cluster: KafkaCluster, directory: Path, more: Mapping[str, str] | None = None
) -> Iterator[ServiceProcesses]:
    """Two planners and the other services, with metrics of the real traffic."""
    options = {
        **(more or {}),
        "interval": "5",
        "metrics-window": "10",
        "cap-map": '{"lab":60}',
        "min-rate": "1",
        "session-timeout": "3",
        **of_cluster,
    }
    with DatadogEmulator() as datadog, BrokerCounters(cluster) as counters:
        for broker_id in cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, datadog)
        deployment = Deployment("", datadog.url, directory, options)
        with ServiceProcesses(deployment, planners=2) as services:
            yield services


@contextmanager
def topics(cluster: KafkaCluster, assignment: Mapping[int, list[int]]) -> Iterator[None]:
    cluster.create_topic(TOPIC, assignment)
    for topic in (CUSTOMER_TOPIC, BACKFILL_TOPIC):
        cluster.create_topic(topic, {0: [DESTINATION]})
    try:
        fill(cluster, TOPIC, 14 * MB)
        yield
    finally:
        for topic in (TOPIC, CUSTOMER_TOPIC, BACKFILL_TOPIC):
            cluster.delete_topic(topic)


@contextmanager
def quotas_of_the_operator(admin: KafkaAdmin) -> Iterator[None]:
    for entity, values in QUOTAS.items():
        admin.alter_client_quotas(entity, values)
    eventually(lambda: admin.client_quotas() == QUOTAS)
    try:
        yield
    finally:
        for entity, values in admin.client_quotas().items():
            admin.alter_client_quotas(entity, dict.fromkeys(values))


def kill_the_leader(services: ServiceProcesses) -> None:
    with closing(PlannerClient(services.addresses["planner-1"])) as planner:
        services.planner(planner.state().leader_address).kill()


@pytest.mark.timeout(600)
@repeat_on_kraft
def test_a_backfill_yields_to_a_recovery_although_its_leader_is_killed_and_a_customer_keeps_its_rate(
    each_cluster: KafkaCluster, tmp_path: Path
) -> None:
    assignment = {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(6)}
    servers = tuple(each_cluster.bootstrap_servers.split(","))
    with (
        closing(KafkaAdmin(KafkaSettings(servers))) as admin,
        topics(each_cluster, assignment),
        quotas_of_the_operator(admin),
        ProducerLoad(each_cluster, {(CUSTOMER_TOPIC, 0): CUSTOMER}, acks=1, client_id="customer") as customer,
        running_backfill(each_cluster) as backfill,
        state_options(each_cluster) as of_cluster,
        running_services(of_cluster, each_cluster, tmp_path) as services,
        closing(AdminClient(services.addresses["admin"])) as autothrottle,
        admin_channel(services.addresses["admin"]) as channel,
        RecoveryWatch(each_cluster, TOPIC) as watch,
    ):
        before = each_cluster.stored_configs()

        def quota() -> float | None:
            return admin.client_quotas().get(YIELDING, {}).get(PRODUCER)

        autothrottle.quotas.set_rule(RULE)
        autothrottle.set_override(MB)
        time.sleep(WINDOW_SECONDS)  # as long as the metrics' window, too
        began = time.monotonic()
        assert backfill.rate(began - WINDOW_SECONDS, began) > FREE
        sent = sum(customer.sent_bytes.values())
        submit(
            admin_pb2_grpc.AdminServiceStub(channel),
            {(TOPIC, p): [ids[0], DESTINATION] for p, ids in assignment.items()},
        )
        eventually(lambda: quota() is not None)
        first = quota()
        assert first is not None and LIMIT < first < 20 * MB, "the first quota is about what the clients use"
        kill_the_leader(services)
        steps = [(time.monotonic() - began, first)]
        while steps[-1][1] != LIMIT:
            value = quota()
            assert value is not None, steps
            assert time.monotonic() < began + 120, steps
            if value != steps[-1][1]:
                assert value >= steps[-1][1] / 2, "a quota is halved at most"
                steps.append((time.monotonic() - began, value))
            time.sleep(0.1)
        limited = time.monotonic()
        # It uses its quota of a window within some seconds, and pauses until the window has moved on.
        time.sleep(2 * WINDOW_SECONDS)
        yielded = backfill.rate(limited, limited + 2 * WINDOW_SECONDS)
        assert watch.samples[-1].moving, "the recovery ended too early to measure anything"
        assert quota() == LIMIT
        autothrottle.remove_override()
        watch.wait_until(lambda s: not s.moving, 120, "the recovery ends")
        ended = time.monotonic()
        served = (sum(customer.sent_bytes.values()) - sent) / (ended - began)
        eventually(lambda: admin.client_quotas() == QUOTAS)
        restored = time.monotonic()
        released = backfill.seconds_until(restored, lambda rate: rate > FREE)
        print(f"""
{each_cluster.version}: quotas {" ".join(f"{at:.1f}s:{value / MB:.2f}" for at, value in steps)} MB/s
  backfill {yielded / MB:.2f} MB/s of {LIMIT / MB}, restored {restored - ended:.1f} s after the end, \
released {released:.1f} s later
  customer {served / MB:.3f} MB/s of {CUSTOMER / MB}, recovery {ended - began:.1f} s, failures {customer.failures}""")
        assert 0.6 * LIMIT <= yielded <= 1.1 * LIMIT, "it is limited, and not stopped"
        assert served >= 0.9 * CUSTOMER
        assert customer.failures == []
        autothrottle.quotas.remove_rule(RULE.name)
        eventually(lambda: each_cluster.stored_configs() == before)
        state = exported_state(of_cluster, tmp_path)
        assert [path for path in state if path.startswith("ledger/")] == []


SLOW = {"max-tx-rate": "2", "max-rx-rate": "2"}
"""Shares of the free capacity for a long recovery, in %. With an override, no client load is computed."""
PLUG_IN = "NoQuotas"
SOURCE = f"""
import java.util.Map;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.quota.*;

public class {PLUG_IN} implements ClientQuotaCallback {{
    public Map<String, String> quotaMetricTags(ClientQuotaType type, KafkaPrincipal user, String clientId) {{
        return Map.of("user", user.getName(), "client-id", clientId);
    }}
    public Double quotaLimit(ClientQuotaType type, Map<String, String> tags) {{ return 1e12; }}
    public void updateQuota(ClientQuotaType type, ClientQuotaEntity entity, double value) {{}}
    public void removeQuota(ClientQuotaType type, ClientQuotaEntity entity) {{}}
    public boolean quotaResetRequired(ClientQuotaType type) {{ return false; }}
    public boolean updateClusterMetadata(Cluster cluster) {{ return false; }}
    public void configure(Map<String, ?> configs) {{}}
    public void close() {{}}
}}
"""
"""A quota plug-in (KIP-257) that ignores Kafka's quotas, as Strimzi's did."""


@contextmanager
def cluster_with_a_plug_in(directory: Path) -> Iterator[KafkaCluster]:
    """Two brokers whose plug-in ignores Kafka's quotas."""
    properties = {"client.quota.callback.class": PLUG_IN}
    with scratch_directory() as scratch:
        cluster = KraftCluster(scratch, (1001, DESTINATION), broker_properties=properties)
        source = directory / f"{PLUG_IN}.java"
        source.write_text(SOURCE)
        for broker in cluster.brokers.values():
            at = broker.command.index("-cp") + 1
            jars = broker.command[at]
            status, output = run_command(["javac", "-cp", jars, "-d", str(directory), str(source)], 120)
            assert status == 0, output
            command = [*broker.command[:at], f"{jars}:{directory}", *broker.command[at + 1 :]]
            broker._command = [*command, "kafka.Kafka", str(broker.configuration)]
        with cluster:
            yield cluster


@pytest.mark.measures
@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_a_plug_in_that_ignores_quotas_is_reported(tmp_path: Path) -> None:
    assignment = {p: [1001] for p in range(6)}
    with (
        cluster_with_a_plug_in(tmp_path) as cluster,
        closing(KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))))) as admin,
        topics(cluster, assignment),
        quotas_of_the_operator(admin),
        running_backfill(cluster) as backfill,
        state_options(cluster) as of_cluster,
        running_services(of_cluster, cluster, tmp_path, SLOW) as services,
        closing(AdminClient(services.addresses["admin"])) as autothrottle,
        closing(PlannerClient(services.addresses["planner-1"])) as planner,
        admin_channel(services.addresses["admin"]) as channel,
        RecoveryWatch(cluster, TOPIC) as watch,
    ):
        autothrottle.quotas.set_rule(RULE)
        time.sleep(10)  # the metrics' window
        submit(admin_pb2_grpc.AdminServiceStub(channel), {(TOPIC, p): [DESTINATION] for p in assignment})

        def finding(text: str) -> str:
            cycle = planner.state().last_cycle
            return next((one for one in (cycle.findings if cycle else ()) if text in one), "")

        eventually(lambda: finding("use the plug-in"), 120)
        print(f"\n{finding('use the plug-in')}")
        eventually(lambda: finding("seems to ignore"), 120)
        print(finding("seems to ignore"))
        assert watch.samples[-1].moving
        assert admin.client_quotas()[YIELDING][PRODUCER] == LIMIT
        now = time.monotonic()
        assert backfill.rate(now - WINDOW_SECONDS, now) > FREE, "the plug-in does not ignore the quota"
        autothrottle.set_override(50 * MB)
        watch.wait_until(lambda s: not s.moving, 120, "the recovery ends")
        eventually(lambda: admin.client_quotas() == QUOTAS)
        autothrottle.quotas.remove_rule(RULE.name)
