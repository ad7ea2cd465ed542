"""The znodes of a simulated cluster, in the format of Kafka 3.9 in ZooKeeper mode.

    /brokers/ids/<id>                             ephemeral, one per broker
    /brokers/topics/<t>                           replicas, adding_replicas, removing_replicas, version 3
    /brokers/topics/<t>/partitions/<p>/state      leader and ISR
    /config/brokers, /config/topics               read at the start, and when a notification names them
    /config/changes                               polled: without a notification a config has no effect
    /admin/reassign_partitions                    polled: starts reassignments, shrinks with them, then deleted

Source: ZkData.scala of Kafka 3.9, KIP-455. The type to know is `Znodes`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from autothrottle.adapters.zookeeper.codec import compact_json, format_config, parse_reassignments
from autothrottle.core.cluster.configs import (
    THROTTLED_TYPES,
    ConfigResource,
    ReplicaRole,
    ResourceType,
    parse_rate,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Invalid, Missing
from autothrottle_lab.simulation.cluster import Cluster, SimulatedPartition

log = logging.getLogger(__name__)

Document = dict[str, Any]
"""A JSON object."""

DEFAULT_ENTITY = "<default>"
"""The znode under /config/brokers with the cluster-wide default of broker configs."""

_PARENTS = ("brokers/ids", "brokers/topics", "config/brokers", "config/topics", "config/changes", "admin")
_CHANGE_PREFIX = "config_change_"


class Znodes:
    """The controller's and the brokers' use of ZooKeeper.

    One thread reads and writes all znodes in `run`. After a connection error, the next poll retries.
    """

    POLL_SECONDS = 0.05

    def __init__(self, client: Any, prefix: str, cluster: Cluster, lock: threading.Lock) -> None:
        self._client = client
        self._root = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
        self._cluster = cluster
        self._lock = lock
        self._session: tuple[int, bytes] | None = None
        """The session that registered the brokers."""
        self._last_change = -1
        self._last_reassignment_zxid = 0
        self._rates: dict[str, dict[ReplicaRole, int | None]] = {}
        self._published: dict[TopicPartition, int] = {}
        self._submitted: dict[TopicPartition, tuple[int, ...]] = {}
        self._removals: set[TopicPartition] = set()

    def begin(self) -> None:
        """Write the cluster's znodes, apply the current configs, and set the watches."""
        for path in _PARENTS:
            self._client.ensure_path(f"{self._root}/{path}")
        for topic in {topic for topic, _ in self._cluster.partitions}:
            with contextlib.suppress(NodeExistsError):
                self._client.create(f"{self._root}/config/topics/{topic}", format_config({}))
        self._publish()
        self._last_change = max((sequence for sequence, _ in self._changes()), default=-1)
        for kind in THROTTLED_TYPES:
            for name in self._client.get_children(f"{self._root}/config/{kind.value}"):
                self._apply(f"{kind.value}/{name}")
        self._register()

    def run(self, stopping: threading.Event) -> None:
        """Poll until `stopping` is set."""
        while not stopping.wait(self.POLL_SECONDS):
            if not self._client.connected:
                continue
            try:
                self._poll()
            except KazooException as error:
                log.warning("A ZooKeeper request failed (%r); the next poll retries it.", error)

    def _poll(self) -> None:
        if self._session != self._client.client_id:
            self._register()
        self._apply_changes()
        self._submit_reassignment()
        self._publish()
        self._collect_finished()
        if self._removals:
            self._shrink_reassignment_node()

    def _register(self) -> None:
        session = self._client.client_id
        for broker_id in self._cluster.brokers:
            path, content = f"{self._root}/brokers/ids/{broker_id}", compact_json(_registration())
            try:
                self._client.create(path, content, ephemeral=True)
            except NodeExistsError:
                # The znode of an earlier session would disappear with that session.
                self._client.delete(path)
                self._client.create(path, content, ephemeral=True)
        self._session = session

    def _changes(self) -> list[tuple[int, str]]:
        names = self._client.get_children(f"{self._root}/config/changes")
        numbers = [(name.removeprefix(_CHANGE_PREFIX), name) for name in names]
        return sorted((int(number), name) for number, name in numbers if number.isdecimal())

    def _apply_changes(self) -> None:
        for sequence, name in self._changes():
            if sequence <= self._last_change:
                continue
            try:
                content, _ = self._client.get(f"{self._root}/config/changes/{name}")
                self._apply(_entity_path(content))
            except NoNodeError:
                pass  # already purged
            except Invalid as error:
                log.warning("Ignoring the notification %s: %s", name, error)
            self._last_change = sequence

    def _apply(self, entity_path: str) -> None:
        """Apply a config. An invalid config is refused as a whole, and the old one stays in effect."""
        kind, _, name = entity_path.partition("/")
        try:
            if kind == ResourceType.BROKER.value and (name == DEFAULT_ENTITY or name.isdecimal()):
                self._apply_broker(name)
            elif kind == ResourceType.TOPIC.value and name and "/" not in name:
                self._apply_topic(name)
            else:
                log.info("Ignoring the change of %s: the simulated brokers do not use it.", entity_path)
        except Invalid as error:
            log.warning("Refusing the config of %s; the old one stays in effect: %s", entity_path, error)

    def _apply_broker(self, name: str) -> None:
        config = self._config(f"brokers/{name}")
        self._rates[name] = {
            role: _rate(config[role.rate_key], name) for role in ReplicaRole if role.rate_key in config
        }
        default = self._rates.get(DEFAULT_ENTITY, {})
        with self._lock:
            for broker_id in self._cluster.brokers:
                own = self._rates.get(str(broker_id), {})
                for role in ReplicaRole:
                    self._cluster.set_rate(broker_id, role, own.get(role, default.get(role)))

    def _apply_topic(self, name: str) -> None:
        config = self._config(str(ConfigResource.topic(name)))
        lists = {role: parse_replicas(config.get(role.replicas_key, "")) for role in ReplicaRole}
        with self._lock:
            for role, entries in lists.items():
                self._cluster.set_throttled_replicas(name, role, entries)

    def _config(self, entity_path: str) -> dict[str, str]:
        try:
            content, _ = self._client.get(f"{self._root}/config/{entity_path}")
        except NoNodeError:
            return {}
        config = parse_object(content).get("config")
        if content and not isinstance(config, dict):
            # A real broker treats unreadable content as an empty config, too.
            log.warning("/config/%s holds %r, which is not a config; treating it as empty.", entity_path, content[:200])
            return {}
        if not all(isinstance(value, str) for value in (config or {}).values()):
            raise Invalid(f"{config} has a value that is not a string: write numbers as strings")
        return config or {}

    def _submit_reassignment(self) -> None:
        try:
            content, stat = self._client.get(f"{self._root}/admin/reassign_partitions")
            if stat.mzxid == self._last_reassignment_zxid:
                return
            self._last_reassignment_zxid = stat.mzxid
            targets = parse_reassignments(content)
        except NoNodeError:
            return
        except Invalid as error:
            log.warning("Ignoring the reassignment: %s", error)
            return
        for key, target in targets.items():
            if self._submitted.get(key) != target:
                self._start(key, target)

    def _start(self, key: TopicPartition, target: tuple[int, ...]) -> None:
        try:
            with self._lock:
                self._cluster.submit_reassignment({key: target})
        except (Invalid, Missing) as error:
            log.warning("Refusing the reassignment of %s-%d: %s", *key, error)
            self._removals.add(key)
        else:
            self._submitted[key] = target

    def _publish(self) -> None:
        with self._lock:
            changed = {
                key: (p.version, compact_json(_state(p)))
                for key, p in self._cluster.partitions.items()
                if self._published.get(key) != p.version
            }
            topics = sorted({topic for topic, _ in changed})
            documents = {t: compact_json(_topic(t, self._cluster.partitions.values())) for t in topics}
        for (topic, partition), (_, state) in changed.items():
            self._write(f"{self._root}/brokers/topics/{topic}/partitions/{partition}/state", state)
        for topic, document in documents.items():
            self._write(f"{self._root}/brokers/topics/{topic}", document)
        self._published.update({key: version for key, (version, _) in changed.items()})

    def _collect_finished(self) -> None:
        # As a real controller, update the topic znode first.
        with self._lock:
            submitted = [self._cluster.partitions[key] for key in self._submitted]
            finished = [p.key for p in submitted if not p.reassigning and self._published[p.key] == p.version]
        for key in finished:
            del self._submitted[key]
            self._removals.add(key)

    def _shrink_reassignment_node(self) -> None:
        path = f"{self._root}/admin/reassign_partitions"
        try:
            content, stat = self._client.get(path)
            targets = parse_reassignments(content)
            unfinished = {key: target for key, target in targets.items() if key not in self._removals}
            if unfinished:
                self._client.set(path, format_reassignment(unfinished), version=stat.version)
            else:
                self._client.delete(path, version=stat.version)
        except BadVersionError:
            return
        except (NoNodeError, Invalid) as error:
            log.info("Cannot remove finished partitions from %s (%r).", path, error)
        self._removals.clear()

    def _write(self, path: str, content: bytes) -> None:
        try:
            self._client.set(path, content)
        except NoNodeError:
            self._client.create(path, content, makepath=True)


def format_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Return the content of `/admin/reassign_partitions`.

    >>> format_reassignment({("t", 0): (1, 2)})
    b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
    """
    entries = [{"topic": t, "partition": p, "replicas": list(replicas)} for (t, p), replicas in targets.items()]
    return compact_json({"version": 1, "partitions": entries})


def parse_object(content: bytes) -> Document:
    """Parse a JSON object; return {} for any other content."""
    try:
        document = json.loads(content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _registration() -> Document:
    return {
        "features": {},
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": ["PLAINTEXT://127.0.0.1:9092"],
        "jmx_port": -1,
        "port": 9092,
        "host": "127.0.0.1",
        "version": 5,
        "timestamp": str(round(time.time() * 1000)),
    }


def _topic(topic: str, partitions: Iterable[SimulatedPartition]) -> Document:
    own = [p for p in partitions if p.topic == topic]
    identity = base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_DNS, topic).bytes).decode().rstrip("=")
    return {
        "removing_replicas": {str(p.partition): list(p.removing) for p in own if p.removing},
        "partitions": {str(p.partition): list(p.replicas) for p in own},
        "topic_id": identity,
        "adding_replicas": {str(p.partition): list(p.adding) for p in own if p.adding},
        "version": 3,
    }


def _state(partition: SimulatedPartition) -> Document:
    return {
        "controller_epoch": 1,
        "leader": partition.leader,
        "version": 1,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
    }


def _entity_path(content: bytes) -> str:
    """Return the config that a notification names; version 1 has the type and the name in two fields."""
    document = parse_object(content)
    if document.get("version") == 2 and isinstance(document.get("entity_path"), str):
        return str(document["entity_path"])
    if document.get("version") == 1 and document.get("entity_type") and document.get("entity_name"):
        return f"{document['entity_type']}/{document['entity_name']}"
    raise Invalid(f'{content[:200]!r} is not {{"version":2,"entity_path":"brokers/1001"}}')


def _rate(value: str, broker: str) -> int | None:
    rate = parse_rate(value)
    if rate < 0:
        # Measured: a real broker does not throttle at a negative rate.
        log.warning("Ignoring the negative throttle %d bytes/s of broker %s.", rate, broker)
        return None
    return rate
