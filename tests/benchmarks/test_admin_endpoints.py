"""Reading and writing rates of distant brokers over the Admin API: concurrent requests against sequential ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE
from autothrottle.core.records import OutcomeStatus
from autothrottle.ports.kafka import Term
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.admin_endpoints import AdminEndpoints
from tests.benchmarks.figures import Figures
from tests.builders import change, ledger_entry

DELAY = timedelta(milliseconds=45)
"""Round trip to another region."""
RUNS = 5
PATIENCE = timedelta(seconds=60)


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


def milliseconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1000


@pytest.mark.parametrize("count", [3, 10, 50])
def test_concurrent_requests_to_distant_brokers(figures: Figures, own_zookeeper: ZooKeeperServer, count: int) -> None:
    own, brokers = OwnPaths(uuid.uuid4().hex), range(1, count + 1)
    client = connect(own_zookeeper.connect, timedelta(seconds=60), timedelta(seconds=30))
    with AdminEndpoints(count, DELAY) as endpoints:
        kafka = KafkaAdmin(KafkaSettings(endpoints.bootstrap_servers))
        try:
            client.ensure_path(own.term)
            fence = client.set(own.term, b"{}").version
            writer = AdminConfigWriter(kafka, ZooKeeperLedger(client, own), timedelta(seconds=60), patience=PATIENCE)

            def write(rate: int, each: int) -> None:
                """Set all rates, for `each` brokers per call."""
                value = str(rate)
                entry = ledger_entry(leader_replication_throttled_rate=value, follower_replication_throttled_rate=value)
                wanted = [
                    change(
                        f"brokers/{b}",
                        *((key, endpoints.configs[b].get(key), value) for key in (LEADER_RATE, FOLLOWER_RATE)),
                        ledger=entry,
                    )
                    for b in brokers
                ]
                for start in range(0, count, each):
                    outcomes = writer.apply(Term(fence), wanted[start : start + each], timedelta(seconds=120))
                    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.APPLIED}
                assert {keys[LEADER_RATE] for keys in endpoints.configs.values()} == {value}

            write(1, each=count)  # opens the connections
            size = f"{count} brokers, {DELAY.total_seconds() * 1000:.0f} ms each"
            concurrent = [milliseconds(lambda: kafka.broker_configs(brokers, timeout=PATIENCE)) for _ in range(RUNS)]
            sequential = [
                milliseconds(lambda: [kafka.broker_configs([b], timeout=PATIENCE) for b in brokers])
                for _ in range(RUNS)
            ]
            figures.add("rates read, concurrent", size, "ms", concurrent)
            figures.add("rates read, one by one", size, "ms", sequential)
            concurrent = [milliseconds(lambda n=n: write(100 + n, each=count)) for n in range(RUNS)]  # type: ignore[misc]
            sequential = [milliseconds(lambda n=n: write(200 + n, each=1)) for n in range(RUNS)]  # type: ignore[misc]
            figures.add("rates written, concurrent", size, "ms", concurrent)
            figures.add("rates written, one by one", size, "ms", sequential)
        finally:
            kafka.close()
            disconnect(client)
