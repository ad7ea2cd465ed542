"""A simulated Kafka cluster that lives in a real ZooKeeper in real time, so that no service can tell.

It writes and watches the znodes of a cluster of Kafka 3.9 in ZooKeeper mode:

    /brokers/ids/<id>                             ephemeral, one for each broker
    /brokers/topics/<t>                           replicas, adding_replicas, removing_replicas, version 3
    /brokers/topics/<t>/partitions/<p>/state      leader and ISR
    /config/brokers, /config/topics               read when a notification names them, and at the start
    /config/changes                               watched: without a notification a config has no effect
    /admin/reassign_partitions                    watched: starts moves, shrinks as they finish, and goes away

The model itself is `core.simulation`; here are its clock, its znodes, and `GET /counters` for an observer.
The type to know is `SimulatedKafka`; `python -m autothrottle.lab.simulated` runs one as a process of its own.

Source: ZkData.scala of Kafka 3.9, KIP-455.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import logging
import math
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from autothrottle.core.configs import ConfigResource, ReplicaRole, ResourceType, parse_rate, parse_replicas
from autothrottle.core.errors import AutothrottleError, Invalid, Missing, Unavailable
from autothrottle.core.simulation import Cluster, SimulatedPartition, TopicPartition
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.scenario import (
    Document,
    demo_scenario,
    parse_reassignment,
    read_cluster,
    reassignment_document,
)

log = logging.getLogger(__name__)

SampleCallback = Callable[[int, float, int, int], None]
"""(broker id, seconds since the epoch, tx total, rx total); totals are cumulative bytes of the interface."""

STEP_SECONDS = 0.1
"""How finely the model divides time."""

SAMPLE_SECONDS = 0.2
"""How often `on_sample` is told the counters."""

PAST_SECONDS = 60.0
"""What the emulated Datadog of `main` knows of the time before: a window of metrics is full from the start."""

MAX_STEPS_LATE = 50
"""What a machine that stood still makes up for; beyond that the cluster's time stood still as well."""

DEFAULT_ENTITY = "<default>"
"""The name under /config/brokers of what holds for brokers without a value of their own."""

_PARENTS = ("brokers/ids", "brokers/topics", "config/brokers", "config/topics", "config/changes", "admin")
_CHANGE_PREFIX = "config_change_"


# The cluster in ZooKeeper


class SimulatedKafka:
    """A `Cluster` that runs in real time and lives in a ZooKeeper; a context manager."""

    def __init__(
        self,
        zookeeper_connect: str,
        cluster: Cluster,
        prefix: str = "",
        on_sample: SampleCallback | None = None,
        *,
        step_seconds: float = STEP_SECONDS,
        sample_seconds: float = SAMPLE_SECONDS,
        session_timeout_seconds: float = 6.0,
        connect_timeout_seconds: float = 15.0,
        past_seconds: float = 0.0,
    ) -> None:
        """Say where to live.

        Args:
            zookeeper_connect: `host:port`, or several by comma.
            cluster: belongs to this object from `start` on.
            prefix: Kafka's chroot, "" for none.
            on_sample: is told the counters of each broker, from the thread of the model; must not block.
            step_seconds: how finely the model divides time.
            sample_seconds: time between samples; a multiple of the step.
            session_timeout_seconds: how long the brokers stay registered without contact.
            connect_timeout_seconds: how long `start` waits for ZooKeeper.
            past_seconds: how long the cluster has run already when it starts; its samples of that time are told
                at the start.
        """
        self._cluster = cluster
        self._lock = threading.Lock()
        self._connect = zookeeper_connect
        self._connect_timeout_seconds = connect_timeout_seconds
        self._client = KazooClient(hosts=zookeeper_connect, timeout=session_timeout_seconds)
        self._znodes = _Znodes(self._client, prefix, cluster, self._lock)
        self._on_sample = on_sample
        self._step_seconds = step_seconds
        self._steps_per_sample = max(round(sample_seconds / step_seconds), 1)
        self._steps_done = 0
        self._past_seconds = past_seconds
        self._begin = 0.0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> SimulatedKafka:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Write the znodes and let time run; returns when everything stands.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        try:
            self._client.start(timeout=self._connect_timeout_seconds)
        except KazooTimeoutError as error:
            self._client.close()
            raise Unavailable(f"ZooKeeper at {self._connect} does not answer: start it first") from error
        try:
            self._znodes.begin()
        except BaseException:
            self._close()
            raise
        self._begin = time.monotonic() - self._cluster.now - self._past_seconds
        for _ in range(round(self._past_seconds / self._step_seconds)):
            self._step()
        self._threads = [
            threading.Thread(target=self._run_model, name="simulated-brokers", daemon=True),
            threading.Thread(target=self._znodes.run, args=(self._stopping,), name="simulated-controller", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop time and unregister the brokers; the other znodes stay, as those of a real cluster do."""
        self._stopping.set()
        self._znodes.wake()
        for thread in self._threads:
            thread.join(timeout=5)
        # A call that waits for a ZooKeeper that is gone ends with the session.
        self._close()
        for thread in self._threads:
            thread.join()

    def _close(self) -> None:
        self._client.stop()
        self._client.close()

    def reassign(self, moves: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Start moves as `--bootstrap-server` does (KIP-455): they show in the topic nodes only.

        Raises:
            Missing: there is no such partition.
            Invalid: a target makes no sense.
        """
        with self._lock:
            self._cluster.start_reassignment(moves)
        self._znodes.wake()

    def counters(self) -> Document:
        """Return what an observer may know: cumulative bytes, and how the reassignment stands.

        `at` is in seconds since the epoch; `ideal_seconds` is null when clients leave nothing free.
        """
        with self._lock:
            cluster = self._cluster
            ideal = cluster.ideal_seconds()
            return {
                "at": self._epoch_seconds(),
                "virtual_seconds": cluster.now,
                "moving_partitions": len(cluster.moving()),
                "bytes_left": cluster.bytes_left(),
                "unthrottled_bytes": round(cluster.unthrottled_bytes),
                "ideal_seconds": ideal if math.isfinite(ideal) else None,
                "brokers": {str(i): asdict(broker.counters()) for i, broker in cluster.brokers.items()},
                "flows": [
                    {"leader": flow.leader, "follower": flow.follower, "bytes_landed": round(amount)}
                    for flow, amount in cluster.flow_bytes.items()
                ],
            }

    def _epoch_seconds(self) -> float:
        """Return the moment of the world that the cluster's time stands for."""
        return time.time() - (time.monotonic() - self._begin - self._cluster.now)

    def _run_model(self) -> None:
        while not self._stopping.wait(self._seconds_until_next_step()):
            for _ in range(self._steps_due()):
                self._step()

    def _step(self) -> None:
        with self._lock:
            self._cluster.step(self._step_seconds)
        self._steps_done += 1
        if self._on_sample and self._steps_done % self._steps_per_sample == 0:
            self._sample(self._on_sample)

    def _seconds_until_next_step(self) -> float:
        return max(self._begin + self._cluster.now + self._step_seconds - time.monotonic(), 0.0)

    def _steps_due(self) -> int:
        late = math.floor((time.monotonic() - self._begin - self._cluster.now) / self._step_seconds + 1e-6)
        if late > MAX_STEPS_LATE:
            lost = (late - MAX_STEPS_LATE) * self._step_seconds
            log.warning("The simulated cluster stood still for %.1f s: the machine is too slow.", lost)
            self._begin += lost
        return min(late, MAX_STEPS_LATE)

    def _sample(self, on_sample: SampleCallback) -> None:
        with self._lock:
            at = self._epoch_seconds()
            totals = [(i, broker.tx.total, broker.rx.total) for i, broker in self._cluster.brokers.items()]
        for broker_id, tx, rx in totals:
            on_sample(broker_id, at, tx, rx)


class _Znodes:
    """What the controller and the brokers do in ZooKeeper.

    Watches only say that there is something to look at; everything is read and written by one thread, in
    `run`. Whatever fails because of the connection is done again in a later turn.
    """

    TURN_SECONDS = 0.05

    def __init__(self, client: Any, prefix: str, cluster: Cluster, lock: threading.Lock) -> None:
        self._client = client
        self._root = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
        self._cluster = cluster
        self._lock = lock
        self._wake = threading.Event()
        self._registered = False
        self._changes_seen = threading.Event()
        self._reassignment_seen = threading.Event()
        self._last_change = -1
        self._rates: dict[str, dict[ReplicaRole, int | None]] = {}
        self._published: dict[TopicPartition, int] = {}
        self._submitted: dict[TopicPartition, tuple[int, ...]] = {}
        self._leaving_node: set[TopicPartition] = set()

    def wake(self) -> None:
        """Look at once instead of at the next turn."""
        self._wake.set()

    def begin(self) -> None:
        """Write what a cluster has, read the configs that stand, and begin to watch."""
        for path in _PARENTS:
            self._client.ensure_path(f"{self._root}/{path}")
        for topic in {topic for topic, _ in self._cluster.partitions}:
            self._create_config(topic)
        self._publish()
        self._last_change = max((sequence for sequence, _ in self._changes()), default=-1)
        for kind in ResourceType:
            for name in self._client.get_children(f"{self._root}/config/{kind.value}"):
                self._apply(f"{kind.value}/{name}")
        self._register()
        self._watch()

    def _create_config(self, topic: str) -> None:
        path = f"{self._root}/config/topics/{topic}"
        with contextlib.suppress(NodeExistsError):
            self._client.create(path, _encode({"version": 1, "config": {}}))

    def run(self, stopping: threading.Event) -> None:
        """Take turns until told to stop."""
        while not stopping.is_set():
            self._wake.wait(self.TURN_SECONDS)
            self._wake.clear()
            if not self._client.connected:
                continue
            try:
                self._turn()
            except KazooException as error:
                log.warning("ZooKeeper did not take part (%r); it is tried again.", error)
                self._changes_seen.set()
                self._reassignment_seen.set()

    def _turn(self) -> None:
        if not self._registered:
            self._register()
        if self._changes_seen.is_set():
            self._changes_seen.clear()
            self._follow_changes()
        if self._reassignment_seen.is_set():
            self._reassignment_seen.clear()
            self._take_reassignment()
        self._publish()
        self._note_finished()
        if self._leaving_node:
            self._shrink_reassignment_node()

    def _watch(self) -> None:
        def connection(state: str) -> None:
            if state == KazooState.LOST:
                self._registered = False

        def changes(_: Sequence[str]) -> None:
            self._changes_seen.set()
            self._wake.set()

        def reassignment(*_: object) -> None:
            self._reassignment_seen.set()
            self._wake.set()

        self._client.add_listener(connection)
        self._client.ChildrenWatch(f"{self._root}/config/changes", changes)
        self._client.DataWatch(f"{self._root}/admin/reassign_partitions", reassignment)

    def _register(self) -> None:
        for broker_id in self._cluster.brokers:
            path, content = f"{self._root}/brokers/ids/{broker_id}", _encode(_registration())
            try:
                self._client.create(path, content, ephemeral=True)
            except NodeExistsError:
                # What an earlier session left would go with it.
                self._client.delete(path)
                self._client.create(path, content, ephemeral=True)
        self._registered = True

    def _changes(self) -> list[tuple[int, str]]:
        names = self._client.get_children(f"{self._root}/config/changes")
        numbers = [(name.removeprefix(_CHANGE_PREFIX), name) for name in names]
        return sorted((int(number), name) for number, name in numbers if number.isdecimal())

    def _follow_changes(self) -> None:
        for sequence, name in self._changes():
            if sequence <= self._last_change:
                continue
            try:
                content, _ = self._client.get(f"{self._root}/config/changes/{name}")
                self._apply(_entity_path(content))
            except NoNodeError:
                pass  # purged meanwhile
            except Invalid as error:
                log.warning("Notification %s is refused: %s", name, error)
            self._last_change = sequence

    def _apply(self, entity_path: str) -> None:
        """Let a config take effect; one that makes no sense is refused as a whole, and the old one stands."""
        kind, _, name = entity_path.partition("/")
        try:
            if kind == ResourceType.BROKER.value and (name == DEFAULT_ENTITY or name.isdecimal()):
                self._apply_broker(name)
            elif kind == ResourceType.TOPIC.value and name and "/" not in name:
                self._apply_topic(name)
            else:
                log.info("A change of %s is none of the simulated brokers' business.", entity_path)
        except Invalid as error:
            log.warning("The config of %s is refused, and the old one stands: %s", entity_path, error)

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
        config = _object(content).get("config")
        if content and not isinstance(config, dict):
            # As a real broker does it: what cannot be read is an empty config.
            log.warning("/config/%s holds %r, which is no config: read as empty.", entity_path, content[:200])
            return {}
        if not all(isinstance(value, str) for value in (config or {}).values()):
            raise Invalid(f"{config} has a value that is no string: write numbers as strings")
        return config or {}

    def _take_reassignment(self) -> None:
        try:
            content, _ = self._client.get(f"{self._root}/admin/reassign_partitions")
            wanted = parse_reassignment(content)
        except NoNodeError:
            return
        except Invalid as error:
            log.warning("The reassignment is ignored: %s", error)
            return
        for key, target in wanted.items():
            if self._submitted.get(key) != target:
                self._start(key, target)

    def _start(self, key: TopicPartition, target: tuple[int, ...]) -> None:
        try:
            with self._lock:
                self._cluster.start_reassignment({key: target})
        except (Invalid, Missing) as error:
            log.warning("The reassignment of %s-%d is refused: %s", *key, error)
            self._leaving_node.add(key)
        else:
            self._submitted[key] = target

    def _publish(self) -> None:
        with self._lock:
            changed = {
                key: (p.version, _encode(_state(p)))
                for key, p in self._cluster.partitions.items()
                if self._published.get(key) != p.version
            }
            topics = sorted({topic for topic, _ in changed})
            documents = {t: _encode(_topic(t, self._cluster.partitions.values())) for t in topics}
        for (topic, partition), (_, state) in changed.items():
            self._write(f"{self._root}/brokers/topics/{topic}/partitions/{partition}/state", state)
        for topic, document in documents.items():
            self._write(f"{self._root}/brokers/topics/{topic}", document)
        self._published.update({key: version for key, (version, _) in changed.items()})

    def _note_finished(self) -> None:
        # The topic node says so first, as a controller writes it.
        with self._lock:
            moved = [self._cluster.partitions[key] for key in self._submitted]
            finished = [p.key for p in moved if not p.reassigning and self._published[p.key] == p.version]
        for key in finished:
            del self._submitted[key]
            self._leaving_node.add(key)

    def _shrink_reassignment_node(self) -> None:
        path = f"{self._root}/admin/reassign_partitions"
        try:
            content, stat = self._client.get(path)
            moves = parse_reassignment(content)
            left = {key: target for key, target in moves.items() if key not in self._leaving_node}
            if left:
                self._client.set(path, _encode(reassignment_document(left)), version=stat.version)
            else:
                self._client.delete(path, version=stat.version)
        except BadVersionError:
            return
        except (NoNodeError, Invalid) as error:
            log.info("%s is not there to be shortened (%r).", path, error)
        self._leaving_node.clear()

    def _write(self, path: str, content: bytes) -> None:
        try:
            self._client.set(path, content)
        except NoNodeError:
            self._client.create(path, content, makepath=True)


def _encode(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _object(content: bytes) -> Document:
    """Return a JSON object, or an empty one when it is none."""
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
    """Return which config a notification is about; version 1 names type and entity apart."""
    document = _object(content)
    if document.get("version") == 2 and isinstance(document.get("entity_path"), str):
        return str(document["entity_path"])
    if document.get("version") == 1 and document.get("entity_type") and document.get("entity_name"):
        return f"{document['entity_type']}/{document['entity_name']}"
    raise Invalid(f'{content[:200]!r} is not {{"version":2,"entity_path":"brokers/1001"}}')


def _rate(value: str, broker: str) -> int | None:
    rate = parse_rate(value)
    if rate < 0:
        # Measured: a real broker then does not throttle.
        log.warning("Throttle %d bytes/s of broker %s is negative: it counts as none.", rate, broker)
        return None
    return rate


# As a process of its own


class CountersEndpoint:
    """`GET /counters` and `POST /reassignments` of a simulated cluster over HTTP; a context manager.

    A reassignment that is posted, in the form of /admin/reassign_partitions, shows in the topic nodes only.
    """

    def __init__(self, kafka: SimulatedKafka, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = ThreadingHTTPServer((host, port), _requests(kafka))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="counters", daemon=True)

    def __enter__(self) -> CountersEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"


def _requests(kafka: SimulatedKafka) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/counters":
                self._answer(200, kafka.counters())
            else:
                self._answer(404, {"error": f"{self.path} is unknown: GET /counters"})

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                if self.path != "/reassignments":
                    raise Missing(f"{self.path} is unknown: POST /reassignments")
                kafka.reassign(parse_reassignment(content))
            except (Invalid, Missing) as error:
                self._answer(400 if isinstance(error, Invalid) else 404, {"error": str(error)})
            else:
                self._answer(202, {})

        def _answer(self, status: int, document: Document) -> None:
            content = _encode(document)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing: an observer asks several times a second."""

    return Requests


def main(argv: Sequence[str] | None = None) -> int:
    """Run a simulated cluster until SIGTERM or SIGINT; the first line that it prints is its address.

    With `--datadog` a Datadog emulator, fed from the brokers' counters, runs beside it; the second line has its
    address. Returns 0, or 2 when the scenario or ZooKeeper cannot be used.
    """
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        cluster = read_cluster(_scenario(arguments.scenario))
        host, _, port = arguments.listen.rpartition(":")
        with ExitStack() as stack:
            datadog = stack.enter_context(DatadogEmulator()) if arguments.datadog else None
            on_sample = _reporting(cluster, datadog, arguments.datadog) if datadog else None
            past_seconds = PAST_SECONDS if datadog else 0.0
            kafka = SimulatedKafka(arguments.zookeeper, cluster, arguments.prefix, on_sample, past_seconds=past_seconds)
            stack.enter_context(kafka)
            print(f"Simulated Kafka: {stack.enter_context(CountersEndpoint(kafka, host, int(port))).url}", flush=True)
            if datadog:
                print(f"Datadog: {datadog.url}", flush=True)
            stopping.wait()
    except (AutothrottleError, OSError, ValueError) as error:
        print(f"simulated Kafka: {error}", file=sys.stderr)
        return 2
    return 0


def _reporting(cluster: Cluster, datadog: DatadogEmulator, instance_type: str) -> SampleCallback:
    """Let every broker have a host in Datadog, and return what takes its counters there."""
    for broker_id in cluster.brokers:
        datadog.add_host(f"broker-{broker_id}", broker_id, instance_type)
    return datadog.record


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m autothrottle.lab.simulated", description=main.__doc__)
    parser.add_argument("--zookeeper", required=True, help="connection string, host:port")
    parser.add_argument("--scenario", type=Path, help="JSON file in the form of demo_scenario(), the default")
    parser.add_argument("--prefix", default="", help="Kafka's chroot")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port of the counters; port 0: a free one")
    parser.add_argument("--datadog", metavar="TYPE", help="emulate Datadog too; TYPE: instance type of the hosts")
    return parser.parse_args(argv)


def _scenario(path: Path | None) -> Document:
    if path is None:
        return demo_scenario()
    document = _object(path.read_bytes())
    if not document:
        raise Invalid(f"{path} holds no JSON object: write one in the form of demo_scenario()")
    return document


if __name__ == "__main__":
    sys.exit(main())
