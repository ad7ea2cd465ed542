"""Real servers for the tests in this directory. A missing Java or jar is an error here, never a skip."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.lab.kafka import KafkaCluster
from autothrottle.lab.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle.lab.kraft import KraftCluster
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


BROKERS = (1001, 1002, 1003, 1004, 1005)


@pytest.fixture(scope="session")
def kafka_cluster(zookeeper: ZooKeeperServer) -> Iterator[ZooKeeperModeCluster]:
    """Five brokers of Kafka 3.9 that keep their metadata in ZooKeeper.

    A test uses topics of its own and takes back what it sets.
    """
    with (
        scratch_directory() as directory,
        ZooKeeperModeCluster(zookeeper.connect, directory, BROKERS, broker_properties=SCALED_FETCHES) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session")
def kraft_cluster() -> Iterator[KraftCluster]:
    """Five brokers of Kafka 4 and their controller; a test uses topics of its own and takes back what it sets."""
    with (
        scratch_directory() as directory,
        KraftCluster(directory, BROKERS, broker_properties=SCALED_FETCHES) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session", params=["kafka_cluster", "kraft_cluster"], ids=["zookeeper", "kraft"])
def each_cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """The two clusters above, one after the other."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster
