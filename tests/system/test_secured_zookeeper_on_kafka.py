"""Throttles of a real Kafka that closes its znodes to others (`zookeeper.set.acl=true`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Id, Permissions

from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.adapters.zookeeper.security import OtherClients, SecurityFiles, ZooKeeperSecurity
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.adapters.zookeeper_state.access import secure_tree
from autothrottle.core.cluster.configs import LEADER_RATE, LEADER_REPLICAS, ConfigResource
from autothrottle.core.records import OutcomeStatus
from autothrottle.ports.kafka import Term
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import change, eventually, ledger_entry
from tests.paths import CERTIFICATES
from tests.server_fixtures import USERS

pytestmark = pytest.mark.repeat

TIMEOUT = timedelta(seconds=30)
BROKER, TOPIC = ConfigResource.broker(1001), ConfigResource.topic("orders")
OF_KAFKA = ACL(Permissions.ALL, Id("sasl", "kafka"))

JAAS = """\
Client {
  org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="%s";
};
"""


@pytest.fixture(scope="module")
def cluster(
    secured_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperModeCluster]:
    directory = tmp_path_factory.mktemp("kafka")
    (directory / "jaas.conf").write_text(JAAS % USERS["kafka"])
    java = {"JAVA_TOOL_OPTIONS": f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"}
    address, properties = secured_zookeeper.connect, {"zookeeper.set.acl": "true"}
    with (
        mock.patch.dict(os.environ, java),
        ZooKeeperModeCluster(address, directory, (1001, 1002), broker_properties=properties) as cluster,
    ):
        cluster.create_topic("orders", {0: (1001, 1002)})
        yield cluster


def session(server: ZooKeeperServer, user: str, directory: Path, stack: ExitStack) -> SecuredClient:
    login = directory / user
    login.write_text(f"{user}:{USERS[user]}")
    files = SecurityFiles(authorities=str(CERTIFICATES / "ca.pem"), sasl=str(login))
    security = ZooKeeperSecurity(files, OtherClients.READ, OwnPaths())
    client = connect(server.secure_connect, timedelta(seconds=10), TIMEOUT, security=security)
    stack.callback(disconnect, client)
    return client


def test_throttles_reach_kafka_and_its_nodes_keep_its_acls(
    cluster: ZooKeeperModeCluster, secured_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Before the login, Kafka's nodes refused each write; an open config would have let everyone change the broker."""
    kafka, own = KafkaPaths(), OwnPaths()
    with ExitStack() as stack:
        client = session(secured_zookeeper, "kafka", tmp_path, stack)
        client.create(own.term, makepath=True)
        fence = client.set(own.term, b"{}").version
        assert ZooKeeperPermissions(client, kafka).fetch_missing_permissions(TIMEOUT) == {}
        assert client.exists(kafka.config(BROKER)) is None
        entry = ledger_entry(leader_replication_throttled_rate="5000000")
        changes = [
            change(BROKER.path, (LEADER_RATE, None, "5000000"), ledger=entry),
            change(TOPIC.path, (LEADER_REPLICAS, None, "0:1001")),
        ]
        outcomes = ZooKeeperConfigWriter(client, kafka, own).apply(Term(fence), changes, TIMEOUT)
        assert [outcome.status for outcome in outcomes] == [OutcomeStatus.APPLIED] * 2
        eventually(lambda: cluster.described_configs(1001).get(LEADER_RATE) == "5000000")
        eventually(lambda: cluster.described_topic_configs("orders").get(LEADER_REPLICAS) == "0:1001")
        parent = kafka.change_notification.rpartition("/")[0]
        notifications = [f"{parent}/{name}" for name in client.get_children(parent)]
        assert notifications
        before = {path: client.get_acls(path)[0] for path in (kafka.config(TOPIC), kafka.broker_ids, kafka.topics)}
        for path in (kafka.config(TOPIC), *notifications):
            assert {*client.get_acls(path)[0]} == {OF_KAFKA, ACL(Permissions.READ, ANYONE_ID_UNSAFE)}, path
        assert client.get_acls(kafka.config(BROKER))[0] == [OF_KAFKA]  # it may have passwords
        secure_tree(client, own)
        assert before == {path: client.get_acls(path)[0] for path in before}

        other = session(secured_zookeeper, "other", tmp_path, stack)
        missing = ZooKeeperPermissions(other, kafka).fetch_missing_permissions(TIMEOUT)
        assert missing[kafka.config(TOPIC)] == (
            "the login sasl:other may not write: its ACL is sasl:kafka rwcda, world:anyone r. Fix: correct "
            "zk-sasl-file, or allow it in the znode's ACL, see docs/security.md"
        )
        with pytest.raises(NoAuthError):
            other.set(kafka.config(BROKER), b"{}")
