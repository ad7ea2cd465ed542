"""Real servers for the tests in this directory. A missing Java or jar is an error here, never a skip."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from autothrottle.core.configs import THROTTLE_KEYS
from autothrottle.lab.kafka import KafkaCluster
from autothrottle.lab.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle.lab.kraft import KraftCluster
from autothrottle.lab.processes import scratch_directory
from autothrottle.lab.zookeeper import ZooKeeperServer
from tests.system.zookeeper_tree import session

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
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A session with the ZooKeeper for all tests."""
    with session(zookeeper) as client:
        yield client


@pytest.fixture
def other(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A session beside `client`, of whoever else writes there."""
    with session(zookeeper) as client:
        yield client


@pytest.fixture
def fresh_zookeeper() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of the test's own: empty, and free to be frozen or killed."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of a module's own: its root is free, and it may be frozen, or killed."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


SCALED_FETCHES = {"replica.fetch.max.bytes": 128 * 1024, "replica.fetch.response.max.bytes": 512 * 1024}
"""The tests throttle to about 10 MB/s, a tenth of what brokers have: so one fetch brings a tenth of the default too.

With the default of 10 MB a response is a second of such a throttle, and every fetch a burst.
"""


BROKERS = (1001, 1002, 1003, 1004, 1005)


_RAN = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_RAN] = report
    return report


@pytest.fixture(scope="session")
def shared_clusters() -> list[KafkaCluster]:
    """The clusters below that run by now."""
    return []


@pytest.fixture(autouse=True)
def no_failure_leaves_a_throttle(request: pytest.FixtureRequest, shared_clusters: list[KafkaCluster]) -> Iterator[None]:
    """A test that fails in the middle has not taken its throttles back: else each one after it would fail too."""
    yield
    ran = request.node.stash.get(_RAN, None)
    if ran is not None and ran.failed:
        for cluster in shared_clusters:
            remove_throttles(cluster)


def remove_throttles(cluster: KafkaCluster) -> None:
    """Remove every throttle of a cluster, whoever set it."""
    for entity, config in cluster.stored_configs().items():
        kind, _, name = entity.partition("/")
        if not (left := {key: None for key in config if key in THROTTLE_KEYS}):
            continue
        if kind == "topics":
            cluster.set_configs_as_a_user(left, topic=name)
        elif name == "<default>":
            cluster.set_configs_as_a_user(left, default=True)
        elif kind == "brokers":
            cluster.set_configs_as_a_user(left, broker_id=int(name))


@pytest.fixture(scope="session")
def kafka_cluster(zookeeper: ZooKeeperServer, shared_clusters: list[KafkaCluster]) -> Iterator[ZooKeeperModeCluster]:
    """Five brokers of Kafka 3.9 that keep their metadata in ZooKeeper.

    A test uses topics of its own and takes back what it sets.
    """
    with (
        scratch_directory() as directory,
        ZooKeeperModeCluster(zookeeper.connect, directory, BROKERS, broker_properties=SCALED_FETCHES) as cluster,
    ):
        shared_clusters.append(cluster)
        yield cluster
        shared_clusters.remove(cluster)


@pytest.fixture(scope="session")
def kraft_cluster(shared_clusters: list[KafkaCluster]) -> Iterator[KraftCluster]:
    """Five brokers of Kafka 4 and their controller; a test uses topics of its own and takes back what it sets."""
    with (
        scratch_directory() as directory,
        KraftCluster(directory, BROKERS, broker_properties=SCALED_FETCHES) as cluster,
    ):
        shared_clusters.append(cluster)
        yield cluster
        shared_clusters.remove(cluster)


@pytest.fixture(scope="session", params=["kafka_cluster", "kraft_cluster"], ids=["zookeeper", "kraft"])
def each_cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """The two clusters above, one after the other."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster
