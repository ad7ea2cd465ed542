"""The znodes of a Kafka cluster under their own prefix, written as Kafka's controller, tools and users write them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.codec import parse_config, parse_ledger_entry
from autothrottle.adapters.zookeeper.mirror import Key, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.security import OtherClients, SecurityFiles, ZooKeeperSecurity
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle_lab.servers.zookeeper import ZooKeeperServer

BROKERS = (1001, 1002, 1003, 1004)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def address_of(server: ZooKeeperServer) -> str:
    """Return the address for sessions: with TLS if the server has it."""
    return server.secure_connect if server.security else server.connect


def security_of(server: ZooKeeperServer, others: OtherClients = OtherClients.NONE) -> ZooKeeperSecurity:
    """Return TLS and the login of the server's first user, to whom all nodes belong; neither if the server has none."""
    if server.security is None:
        return ZooKeeperSecurity()
    login = server.directory / "zk-sasl"
    login.write_text(":".join(next(iter(server.security.users.items()))))
    files = SecurityFiles(authorities=str(server.security.authorities), sasl=str(login))
    return ZooKeeperSecurity(files, others, OwnPaths(""))


@contextmanager
def session(server: ZooKeeperServer, seconds: float = 10.0) -> Iterator[SecuredClient]:
    duration, patience = timedelta(seconds=seconds), timedelta(seconds=30)
    client = connect(address_of(server), duration, patience, security=security_of(server))
    try:
        yield client
    finally:
        disconnect(client)


def read_all_changes(mirror: ZnodeMirror, seconds: float = 30.0) -> set[Key]:
    """Let a mirror read everything written before this call; return the keys that it read."""
    mirror.sync(seconds)
    read: set[Key] = set()
    while some := mirror.read_changed(seconds):
        read |= some
    return read


def ledger_entries(client: KazooClient, own: OwnPaths) -> list[str]:
    """Return the entity paths of all ledger entries."""
    found = []
    with suppress(NoNodeError):
        for kind in sorted(client.get_children(own.ledger)):
            found += [f"{kind}/{name}" for name in sorted(client.get_children(f"{own.ledger}/{kind}"))]
    return found


def freeze(server: ZooKeeperServer) -> None:
    server.freeze()


class Tree:
    """A cluster with brokers 1001 to 1004 and no topic, and autothrottle's own znodes."""

    def __init__(self, client: KazooClient, zk_prefix: str | None = None) -> None:
        name = f"test-{uuid.uuid4().hex}"
        self.client = client
        self.kafka = KafkaPaths(f"{name}/kafka" if zk_prefix is None else zk_prefix)
        self.own = OwnPaths(f"{name}/autothrottle")
        for broker_id in BROKERS:
            self.write(f"{self.kafka.broker_ids}/{broker_id}", b"{}")
        for path in (self.kafka.topics, f"{self.kafka.configs}/brokers", f"{self.kafka.configs}/topics"):
            client.ensure_path(path)
        client.ensure_path(f"{self.kafka.configs}/changes")

    # Znodes.

    def write(self, path: str, data: bytes) -> None:
        try:
            self.client.set(path, data)
        except NoNodeError:
            self.client.create(path, data, makepath=True)

    def read(self, path: str) -> bytes | None:
        try:
            data: bytes = self.client.get(path)[0]
        except NoNodeError:
            return None
        return data

    def nodes(self, path: str = "") -> set[str]:
        """Return the paths of all of autothrottle's own znodes, relative to their root."""
        found: set[str] = set()
        try:
            children = self.client.get_children(f"{self.own.root}{path}")
        except NoNodeError:
            return found
        for child in children:
            found |= {f"{path}/{child}"} | self.nodes(f"{path}/{child}")
        return found

    # Changes by Kafka's controller.

    def add_topic(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        self.set_topic(topic, assignment)
        for partition, replicas in assignment.items():
            self.set_state(topic, partition, replicas[0], replicas)
        self.write(self.kafka.config(ConfigResource.topic(topic)), encoded({"version": 1, "config": {}}))

    def add_large_topic(self, topic: str, partitions: int, replicas: Sequence[int]) -> None:
        """Create a topic whose partitions have the same replicas, in one transaction."""
        self.set_topic(topic, dict.fromkeys(range(partitions), replicas))
        transaction = self.client.transaction()
        transaction.create(f"{self.kafka.topic(topic)}/partitions", b"")
        for partition in range(partitions):
            path = self.kafka.state(topic, partition)
            transaction.create(path.rpartition("/")[0], b"")
            transaction.create(path, encoded(_state(replicas[0], replicas)))
        transaction.create(self.kafka.config(ConfigResource.topic(topic)), encoded({"version": 1, "config": {}}))
        assert not [result for result in transaction.commit() if isinstance(result, Exception)]

    def set_topic(
        self,
        topic: str,
        assignment: Mapping[int, Sequence[int]],
        adding: Mapping[int, Sequence[int]] | None = None,
        removing: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        columns = {"partitions": assignment, "adding_replicas": adding or {}, "removing_replicas": removing or {}}
        node: dict[str, Any] = {name: {str(p): list(r) for p, r in column.items()} for name, column in columns.items()}
        self.write(self.kafka.topic(topic), encoded({"version": 3, "topic_id": "x", **node}))

    def set_state(self, topic: str, partition: int, leader: int, isr: Sequence[int]) -> None:
        self.write(self.kafka.state(topic, partition), encoded(_state(leader, isr)))

    def delete_topic(self, topic: str) -> None:
        self.client.delete(self.kafka.topic(topic), recursive=True)
        self.client.delete(self.kafka.config(ConfigResource.topic(topic)))

    def topic(self, topic: str) -> dict[str, dict[int, list[int]]]:
        data = self.read(self.kafka.topic(topic))
        assert data is not None
        value = json.loads(data)
        names = ("partitions", "adding_replicas", "removing_replicas")
        return {name: {int(p): r for p, r in value[name].items()} for name in names}

    def state(self, topic: str, partition: int) -> dict[str, Any]:
        data = self.read(self.kafka.state(topic, partition))
        assert data is not None
        state: dict[str, Any] = json.loads(data)
        return state

    def submit_reassignment(self, topic: str, target: Mapping[int, Sequence[int]]) -> None:
        node = self.topic(topic)
        for partition, replicas in target.items():
            old = node["partitions"][partition]
            node["adding_replicas"][partition] = [b for b in replicas if b not in old]
            node["removing_replicas"][partition] = [b for b in old if b not in replicas]
            node["partitions"][partition] = [*replicas, *node["removing_replicas"][partition]]
        self.set_topic(topic, node["partitions"], node["adding_replicas"], node["removing_replicas"])

    def join_isr(self, topic: str, partition: int, broker_id: int) -> None:
        state = self.state(topic, partition)
        self.set_state(topic, partition, state["leader"], [*state["isr"], broker_id])

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        self.set_state(topic, partition, broker_id, self.state(topic, partition)["isr"])

    def finish(self, topic: str, *partitions: int) -> None:
        node = self.topic(topic)
        for partition in partitions or list(node["adding_replicas"]):
            node["adding_replicas"].pop(partition)
            gone = node["removing_replicas"].pop(partition)
            left = node["partitions"][partition] = [b for b in node["partitions"][partition] if b not in gone]
            self.set_state(topic, partition, left[0], left)
        self.set_topic(topic, node["partitions"], node["adding_replicas"], node["removing_replicas"])

    def reassign_by_znode(self, targets: Mapping[tuple[str, int], Sequence[int]]) -> None:
        entries = [{"topic": t, "partition": p, "replicas": list(r)} for (t, p), r in targets.items()]
        self.write(self.kafka.reassign_partitions, encoded({"version": 1, "partitions": entries}))

    # Configs, ledger and term.

    def set_config(self, resource: ConfigResource, config: Mapping[str, str]) -> None:
        self.write(self.kafka.config(resource), encoded({"version": 1, "config": dict(config)}))

    def current(self, resource: ConfigResource) -> Mapping[str, str]:
        data = self.read(self.kafka.config(resource))
        return parse_config(data) if data else {}

    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None:
        config = {**self.current(resource), key: value}
        self.set_config(resource, {k: v for k, v in config.items() if v is not None})

    def set_default_as_user(self, key: str, value: str | None) -> None:
        data = self.read(self.kafka.default_broker_config)
        config = {**(parse_config(data) if data else {}), key: value}
        left = {k: v for k, v in config.items() if v is not None}
        self.write(self.kafka.default_broker_config, encoded({"version": 1, "config": left}))

    def ledger(self, resource: ConfigResource) -> LedgerEntry | None:
        data = self.read(self.own.ledger_entry(resource))
        return parse_ledger_entry(data) if data else None

    def notifications(self) -> list[str]:
        parent = f"{self.kafka.configs}/changes"
        found = []
        for name in sorted(self.client.get_children(parent)):
            notification = json.loads(self.client.get(f"{parent}/{name}")[0])
            assert notification["version"] == 2
            found.append(notification["entity_path"])
        return found

    def begin_term(self) -> int:
        self.client.ensure_path(self.own.term)
        return int(self.client.set(self.own.term, b"{}").version)


def _state(leader: int, isr: Sequence[int]) -> dict[str, Any]:
    return {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 0, "isr": list(isr)}
