"""Real servers for the tests in this directory. A missing Java or jar is an error here, never a skip."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.lab.kafka import KafkaCluster
from autothrottle.lab.processes import scratch_directory
from autothrottle.lab.zookeeper import ZooKeeperServer

HERE = Path(__file__).parent
FIRST_FETCH_SECONDS = 1200
"""The first test on a machine fetches Kafka's jars, which has a deadline of its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FIRST_FETCH_SECONDS))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests that keep to a tree of their own; Kafka's is in its root."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


@pytest.fixture
def fresh_zookeeper() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of the test's own: empty, and free to be frozen or killed."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


SCALED_FETCHES = {"replica.fetch.max.bytes": 128 * 1024, "replica.fetch.response.max.bytes": 512 * 1024}
"""The tests throttle to about 10 MB/s, a tenth of what brokers have: so one fetch brings a tenth of the default too.

With the default of 10 MB a response is a second of such a throttle, and every fetch a burst.
"""


@pytest.fixture(scope="session")
def kafka_cluster(zookeeper: ZooKeeperServer) -> Iterator[KafkaCluster]:
    """Five brokers, 1001 to 1005; a test uses topics of its own and takes back what it sets."""
    brokers = (1001, 1002, 1003, 1004, 1005)
    with (
        scratch_directory() as directory,
        KafkaCluster(zookeeper.connect, directory, brokers, broker_properties=SCALED_FETCHES) as cluster,
    ):
        yield cluster
