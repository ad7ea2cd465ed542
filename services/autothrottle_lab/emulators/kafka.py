"""A simulated Kafka cluster in a real ZooKeeper and in real time: services cannot distinguish it from a real one.

`simulation` has the model. This module has the clock (`SimulatedKafka`) and the znodes (`Znodes`), in the format of
Kafka 3.9 in ZooKeeper mode:

    /brokers/ids/<id>                             ephemeral, one per broker
    /brokers/topics/<t>                           replicas, adding_replicas, removing_replicas, version 3
    /brokers/topics/<t>/partitions/<p>/state      leader and ISR
    /config/brokers, /config/topics               read at the start, and when a notification names them
    /config/changes                               polled: without a notification a config has no effect
    /admin/reassign_partitions                    polled: starts reassignments, shrinks with them, then deleted

Source: ZkData.scala of Kafka 3.9, KIP-455. The type to know is `SimulatedKafka`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.codec import compact_json, format_config, parse_reassignments
from autothrottle.core.cluster.configs import (
    THROTTLED_TYPES,
    ConfigResource,
    ReplicaRole,
    ResourceType,
    parse_rate,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import Assignment, TopicPartition
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle_lab.servers.processes import Startable
from autothrottle_lab.simulation.cluster import Cluster

T = TypeVar("T")
log = logging.getLogger(__name__)

SampleCallback = Callable[[int, float, int, int], None]
"""(broker id, seconds since the epoch, tx total, rx total); totals are cumulative bytes of the interface."""

STEP_SECONDS = 0.1
"""Step of the model."""

STEPS_PER_SAMPLE = 2
"""Steps between two calls of `on_sample`."""

MAX_STEPS_LATE = 50
"""Most steps to catch up after a pause of the machine; after a longer pause the cluster's time is behind."""

Document = dict[str, Any]
"""A JSON object."""

DEFAULT_ENTITY = "<default>"
"""The znode under /config/brokers with the cluster-wide default of broker configs."""

_PARENTS = ("brokers/ids", "brokers/topics", "config/brokers", "config/topics", "config/changes", "admin")
_CHANGE_PREFIX = "config_change_"


class SimulatedKafka(Startable):
    """A `Cluster` that runs in real time with its state in ZooKeeper; a context manager. It is thread-safe."""

    def __init__(
        self,
        zookeeper_connect: str,
        cluster: Cluster,
        prefix: str = "",
        on_sample: SampleCallback | None = None,
        *,
        session_timeout_seconds: float = 6.0,
        connect_timeout_seconds: float = 15.0,
        past_seconds: float = 0.0,
    ) -> None:
        """Prepare the cluster.

        Args:
            zookeeper_connect: `host:port`, or several separated by commas.
            cluster: the model; from `start` on, only this object may use it.
            prefix: Kafka's chroot; "": none.
            on_sample: receives the counters of each broker in the model's thread; it must not block.
            session_timeout_seconds: session timeout of the brokers.
            connect_timeout_seconds: how long `start` waits for ZooKeeper.
            past_seconds: history before the start; `start` passes the samples of this time to `on_sample`.
        """
        self._cluster = cluster
        self._lock = threading.Lock()
        self._connect = zookeeper_connect
        self._connect_timeout_seconds = connect_timeout_seconds
        self._client = KazooClient(hosts=zookeeper_connect, timeout=session_timeout_seconds)
        self._znodes = Znodes(self._client, prefix, cluster, self._lock)
        self._on_sample = on_sample
        self._steps_done = 0
        self._past_seconds = past_seconds
        self._begin = 0.0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Write the znodes and start the clock; return when all znodes exist.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        try:
            self._client.start(timeout=self._connect_timeout_seconds)
        except KazooTimeoutError as error:
            raise Unavailable(f"ZooKeeper at {self._connect} does not answer. Fix: start it first") from error
        self._znodes.begin()
        self._begin = time.monotonic() - self._cluster.now - self._past_seconds
        for _ in range(round(self._past_seconds / STEP_SECONDS)):
            self._step()
        self._threads = [
            threading.Thread(target=self._run_model, name="simulated-brokers", daemon=True),
            threading.Thread(target=self._znodes.run, args=(self._stopping,), name="simulated-controller", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the clock and unregister the brokers; other znodes stay, as in a real cluster."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)
        # A call that waits for an unreachable ZooKeeper ends with the session.
        self._client.stop()
        self._client.close()
        for thread in self._threads:
            thread.join()

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Start reassignments as `--bootstrap-server` does (KIP-455): only the topic znodes show them.

        Args:
            targets: partition -> broker ids of its new replicas, in order.

        Raises:
            Missing: a partition does not exist.
            Invalid: a target is invalid.
        """
        with self._lock:
            self._cluster.submit_reassignment(targets)

    def inspect(self, value: Callable[[Cluster], T]) -> T:
        """Return a value of the model, which does not change meanwhile."""
        with self._lock:
            return value(self._cluster)

    def _run_model(self) -> None:
        while not self._stopping.wait(self._seconds_until_next_step()):
            for _ in range(self._steps_due()):
                self._step()

    def _step(self) -> None:
        with self._lock:
            self._cluster.step(STEP_SECONDS)
        self._steps_done += 1
        if self._on_sample and self._steps_done % STEPS_PER_SAMPLE == 0:
            self._sample(self._on_sample)

    def _seconds_until_next_step(self) -> float:
        return max(self._begin + self._cluster.now + STEP_SECONDS - time.monotonic(), 0.0)

    def _steps_due(self) -> int:
        late = math.floor((time.monotonic() - self._begin - self._cluster.now) / STEP_SECONDS + 1e-6)
        if late > MAX_STEPS_LATE:
            lost = (late - MAX_STEPS_LATE) * STEP_SECONDS
            log.warning("The simulated cluster skipped %.1f s because the machine is too slow.", lost)
            self._begin += lost
        return min(late, MAX_STEPS_LATE)

    def _sample(self, on_sample: SampleCallback) -> None:
        with self._lock:
            # The wall-clock time of the cluster's current virtual time.
            at = time.time() - (time.monotonic() - self._begin - self._cluster.now)
            totals = [(i, broker.outbound.total, broker.inbound.total) for i, broker in self._cluster.brokers.items()]
        for broker_id, outbound, inbound in totals:
            on_sample(broker_id, at, outbound, inbound)


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
        self._published: dict[TopicPartition, Assignment] = {}
        self._submitted: dict[TopicPartition, tuple[int, ...]] = {}
        self._removals: set[TopicPartition] = set()

    def begin(self) -> None:
        """Write the cluster's znodes, apply the current configs, and set the watches."""
        for path in _PARENTS:
            self._client.ensure_path(f"{self._root}/{path}")
        for topic in self._cluster.controller.topics:
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
        is_broker = kind == ResourceType.BROKER.value and (name == DEFAULT_ENTITY or name.isdecimal())
        if not is_broker and not (kind == ResourceType.TOPIC.value and name and "/" not in name):
            log.info("Ignoring the change of %s: the simulated brokers do not use it.", entity_path)
            return
        try:
            config = self._config(entity_path)
            for role in ReplicaRole:
                parse_replicas(config.get(role.replicas_key, ""))
                if parse_rate(config.get(role.rate_key, "0")) < 0:
                    # Measured: a real broker does not throttle at a negative rate.
                    log.warning("Ignoring the negative %s of %s: %s", role.rate_key, entity_path, config[role.rate_key])
        except Invalid as error:
            log.warning("Refusing the config of %s; the old one stays in effect: %s", entity_path, error)
            return
        resource = None if name == DEFAULT_ENTITY else ConfigResource(entity_path)
        with self._lock:
            self._cluster.controller.replace_config(resource, config)

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
        controller = self._cluster.controller
        with self._lock:
            changed = {
                key: (assignment, controller.leader_epochs[key])
                for key in self._cluster.logs
                if self._published.get(key) is not (assignment := self._cluster.assignment(key))
            }
            topics = {topic: dict(controller.topics[topic]) for topic in sorted({topic for topic, _ in changed})}
        for (topic, partition), (assignment, leader_epoch) in changed.items():
            state = compact_json(_state(assignment, leader_epoch))
            self._write(f"{self._root}/brokers/topics/{topic}/partitions/{partition}/state", state)
        for topic, partitions in topics.items():
            self._write(f"{self._root}/brokers/topics/{topic}", compact_json(_topic(topic, partitions)))
        self._published.update({key: assignment for key, (assignment, _) in changed.items()})

    def _collect_finished(self) -> None:
        # As a real controller, update the topic znode first.
        with self._lock:
            rows = {key: self._cluster.assignment(key) for key in self._submitted}
        finished = [key for key, row in rows.items() if not row.moves and self._published[key] is row]
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


def _topic(topic: str, partitions: Mapping[int, Assignment]) -> Document:
    identity = base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_DNS, topic).bytes).decode().rstrip("=")
    return {
        "removing_replicas": {
            str(n): list(row.removing_replicas) for n, row in partitions.items() if row.removing_replicas
        },
        "partitions": {str(n): list(row.replicas) for n, row in partitions.items()},
        "topic_id": identity,
        "adding_replicas": {str(n): list(row.adding_replicas) for n, row in partitions.items() if row.adding_replicas},
        "version": 3,
    }


def _state(assignment: Assignment, leader_epoch: int) -> Document:
    return {
        "controller_epoch": 1,
        "leader": assignment.leader,
        "version": 1,
        "leader_epoch": leader_epoch,
        "isr": list(assignment.isr),
    }


def _entity_path(content: bytes) -> str:
    """Return the config that a notification names; version 1 has the type and the name in two fields."""
    document = parse_object(content)
    if document.get("version") == 2 and isinstance(document.get("entity_path"), str):
        return str(document["entity_path"])
    if document.get("version") == 1 and document.get("entity_type") and document.get("entity_name"):
        return f"{document['entity_type']}/{document['entity_name']}"
    raise Invalid(f'{content[:200]!r} is not {{"version":2,"entity_path":"brokers/1001"}}')
