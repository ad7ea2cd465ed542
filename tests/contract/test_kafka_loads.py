"""The metrics source `kafka` on real Kafka 4, compared with the rates of a real producer."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.sources import KafkaLogSizes
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_common.log_loads import LogLoads
from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Capacity, Loads
from autothrottle_lab.observation.traffic import ProducerLoad
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.builders import eventually, mb

TIMEOUT = timedelta(seconds=30)
LIMITS = CapacityLimits(default=Capacity(mb(100), mb(100)))
FANOUT = 0.5
WINDOW = timedelta(seconds=6)


@pytest.mark.measures
def test_loads_are_the_rates_of_producers_followers_and_assumed_consumers(kraft_cluster: KraftCluster) -> None:
    copied, single = "loads-with-a-follower", "loads-without-a-follower"
    kraft_cluster.create_topic(copied, {0: [1001, 1002]})
    kraft_cluster.create_topic(single, {0: [1003]})
    settings = KafkaSettings(bootstrap_servers=tuple(kraft_cluster.bootstrap_servers.split(",")))
    rates = {(copied, 0): 2.0 * mb(1), (single, 0): 1.0 * mb(1)}
    with (
        ProducerLoad(kraft_cluster, rates, acks=1),
        closing(KafkaAdmin(settings)) as kafka,
        closing(LogLoads(KafkaLogSizes(kafka), LIMITS, FANOUT, WINDOW)) as loads,
    ):
        assert loads.fetch_loads(TIMEOUT).brokers.keys() == set(kraft_cluster.brokers)
        steady = datetime.now(UTC)
        eventually(lambda: loads.fetch_loads(TIMEOUT).brokers[1001].outbound.start >= steady)
        found = loads.fetch_loads(TIMEOUT)
    for topic in (copied, single):
        kraft_cluster.delete_topic(topic)
    assert not found.problems
    # (outbound, inbound) in MB/s
    assert shown(found, 1001) == pytest.approx([2 * (1 + FANOUT), 2], rel=0.1)
    assert shown(found, 1002) == pytest.approx([0, 2], rel=0.1)
    assert shown(found, 1003) == pytest.approx([FANOUT, 1], rel=0.1)
    load = found.brokers[1001].outbound
    assert WINDOW <= load.end - load.start <= WINDOW + timedelta(seconds=6)


def test_a_cluster_that_does_not_answer_is_unavailable() -> None:
    settings = KafkaSettings(bootstrap_servers=("127.0.0.1:1",), request_timeout=timedelta(seconds=1))
    with (
        closing(KafkaAdmin(settings)) as kafka,
        closing(LogLoads(KafkaLogSizes(kafka), LIMITS, FANOUT, timedelta(seconds=5))) as loads,
        pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"),
    ):
        loads.fetch_loads(TIMEOUT)


def shown(loads: Loads, broker_id: int) -> list[float]:
    load = loads.brokers[broker_id]
    return [load.outbound.rate / mb(1), load.inbound.rate / mb(1)]
