"""Real servers that tests share: ZooKeeper, Kafka with ZooKeeper, and Kafka without; and a browser.

A missing Java or jar fails.

Each process of pytest-xdist starts a shared server at most once; `tests/conftest.py` sends all tests of one Kafka
cluster to the same process.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.prometheus import missing_programs
from autothrottle_lab.servers.zookeeper import ServerSecurity, ZooKeeperServer
from tests import browser
from tests.paths import CERTIFICATES
from tests.system.zookeeper_tree import session

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """The shared ZooKeeper. Each test uses its own path; Kafka uses the root."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A session with the shared ZooKeeper."""
    with session(zookeeper) as client:
        yield client


@pytest.fixture
def other(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A second session beside `client`, for changes by another party."""
    with session(zookeeper) as client:
        yield client


@pytest.fixture
def fresh_zookeeper() -> Iterator[ZooKeeperServer]:
    """A new ZooKeeper for one test, which may freeze or kill it."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


@pytest.fixture(scope="module")
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    """A new ZooKeeper for one module, which may use the root, and freeze or kill the server."""
    with scratch_directory() as directory, ZooKeeperServer(directory) as server:
        yield server


USERS = {"autothrottle": "correct horse", "kafka": "battery staple", "other": "other password"}
"""The users of a secured ZooKeeper and their passwords."""


@pytest.fixture(scope="module")
def secured_zookeeper() -> Iterator[ZooKeeperServer]:
    """A new ZooKeeper for one module, with TLS at a second port and with users."""
    security = ServerSecurity(CERTIFICATES / "server.pem", CERTIFICATES / "ca.pem", USERS)
    with scratch_directory() as directory, ZooKeeperServer(directory, security=security) as server:
        yield server


def skip_without_prometheus() -> None:
    """Skip a test visibly if Debian's packages with Prometheus and node_exporter are not installed."""
    if names := " ".join(missing_programs()):
        pytest.skip(f"these programs are not installed: {names}. Fix on Debian and Ubuntu: apt-get install {names}")


SCALED_FETCHES = {"replica.fetch.max.bytes": 128 * 1024, "replica.fetch.response.max.bytes": 512 * 1024}
"""The tests throttle to about 10 MB/s, a tenth of what brokers have, so one fetch brings a tenth of the default too.

With the default of 10 MB, a response is a second of such a throttle, and every fetch is a burst.
"""

BROKERS = (1001, 1002, 1003, 1004, 1005)

_CLUSTERS = pytest.StashKey[dict[str, KafkaCluster]]()
"""The shared clusters that run now, by the name of their fixture."""


@pytest.fixture(scope="session")
def shared_clusters(request: pytest.FixtureRequest) -> dict[str, KafkaCluster]:
    """The shared clusters that run now, by the name of their fixture."""
    return request.session.stash.setdefault(_CLUSTERS, {})


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop a shared cluster after the last test of its group: five idle brokers use up to a tenth of two CPUs."""
    group = item.get_closest_marker("xdist_group")
    following = nextitem.get_closest_marker("xdist_group") if nextitem else None
    if "PYTEST_XDIST_WORKER" not in os.environ or group is None or group == following:
        return
    if cluster := item.session.stash.get(_CLUSTERS, {}).pop(group.args[0], None):
        cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remove all throttles after a failure: the test did not remove its own, and the next tests would fail too."""
    report = yield
    if report.when == "teardown" and item.stash.get(_FAILED, False):
        for cluster in item.session.stash.get(_CLUSTERS, {}).values():
            remove_throttles(cluster)
    elif report.when == "call" and report.failed:
        item.stash[_FAILED] = True
    return report


_FAILED = pytest.StashKey[bool]()


def remove_throttles(cluster: KafkaCluster) -> None:
    """Remove every throttle of a cluster, also those set by another party."""
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
def kafka_cluster(
    zookeeper: ZooKeeperServer, shared_clusters: dict[str, KafkaCluster]
) -> Iterator[ZooKeeperModeCluster]:
    """Five brokers of Kafka 3.9 in ZooKeeper mode.

    Each test uses its own topics and removes the configs that it sets.
    """
    with (
        scratch_directory() as directory,
        ZooKeeperModeCluster(zookeeper.connect, directory, BROKERS, broker_properties=SCALED_FETCHES) as cluster,
    ):
        shared_clusters["kafka_cluster"] = cluster
        yield cluster
        shared_clusters.pop("kafka_cluster", None)


@pytest.fixture(scope="session")
def kraft_cluster(shared_clusters: dict[str, KafkaCluster]) -> Iterator[KraftCluster]:
    """Five brokers of Kafka 4 and their controller. Each test uses its own topics and removes the configs it sets."""
    with (
        scratch_directory() as directory,
        KraftCluster(directory, BROKERS, broker_properties=SCALED_FETCHES) as cluster,
    ):
        shared_clusters["kraft_cluster"] = cluster
        yield cluster
        shared_clusters.pop("kraft_cluster", None)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("kafka_cluster", id="zookeeper", marks=pytest.mark.repeat),
        pytest.param("kraft_cluster", id="kraft"),
    ],
)
def each_cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """A shared cluster: without ZooKeeper in `make test`, and in ZooKeeper mode, too, in `make test-all`."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


repeat_on_kraft = pytest.mark.parametrize(
    "each_cluster",
    [
        pytest.param("kafka_cluster", id="zookeeper"),
        pytest.param("kraft_cluster", id="kraft", marks=pytest.mark.repeat),
    ],
    indirect=True,
)
"""For `each_cluster`: `make test` runs the test in ZooKeeper mode, `make test-all` without ZooKeeper, too."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A headless Chromium; without an installed one, the test is skipped."""
    if browser.find() is None:
        pytest.skip(browser.ABSENT)
    with browser.driven() as driven:
        yield driven
