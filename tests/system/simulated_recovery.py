"""A reassignment on a simulated cluster, for tests in which services stop, freeze and restart.

A simulated Kafka keeps its znodes in a real ZooKeeper. The services are separate processes. Tests check the znodes and
the order of transactions in ZooKeeper's log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.grpc import PlannerServiceClient
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import read_origin
from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_REPLICAS, THROTTLE_KEYS
from autothrottle.core.records import Cycle
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.emulators.kafka import SimulatedKafka
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import Operation, ZooKeeperEnsemble, ZooKeeperServer
from autothrottle_lab.simulation.cluster import Cluster, SimulatedBroker, SimulatedPartition
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep
from tests.system.zookeeper_tree import ledger_entries

SESSION_SECONDS = 2.0
INTERVAL_SECONDS = 2.0
POLL_SECONDS = 0.05

FAILED = 1000
SURVIVORS = (1001, 1002, 1003)
NEW = 1004
BROKERS = (*SURVIVORS, NEW)
LINK = 300 * MEGABYTE
"""Bytes/s of the simulated links. The services assume `CAPACITY`, so an override above it can speed up copying."""
CAPACITY = 100 * MEGABYTE
"""Capacity in the services' configuration, bytes/s."""
CLIENTS = 20 * MEGABYTE
"""Steady client load of every broker in each direction, bytes/s."""
THROTTLE = 72 * MEGABYTE
"""Headroom under the steady load, bytes/s: 90 % of the capacity minus the client load."""
SPED_UP_MEGABYTES = 400

STEADY = ClientTraffic.constant(CLIENTS, CLIENTS)
RESTLESS = ClientTraffic(tuple(TrafficStep(at, r, r) for at in range(600) for r in [(20 + at % 3 * 15) * MEGABYTE]))
"""The client load changes every second, so that most cycles write rates."""

T = TypeVar("T")
Lists = tuple[frozenset[str], frozenset[str]]
"""(leader list, follower list) of a topic."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The current leader, as the term's znode names it."""

    fence: int
    address: str


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction that touched configs or ledger entries."""

    zxid: int
    at: datetime
    paths: tuple[str, ...]
    fence: int | None
    """The term that its first operation checks; None: it does not check the term."""
    term: int
    """The current term at the time of the write."""
    session_id: int
    """Session of the writer."""


class SimulatedRecovery:
    """Broker 1004 replaces broker 1000; a context manager for the cluster and its Datadog."""

    def __init__(
        self,
        zookeeper: ZooKeeperServer | ZooKeeperEnsemble,
        directory: Path,
        sizes: Mapping[str, Sequence[int]],
        prefix: str = "",
        traffic: ClientTraffic = STEADY,
        link: int = LINK,
    ) -> None:
        """Define the cluster.

        Args:
            zookeeper: the server or ensemble to use.
            directory: for the logs of the services.
            sizes: topic -> megabytes of each of its partitions.
            prefix: Kafka's chroot in ZooKeeper.
            traffic: the client load of every broker.
            link: bytes/s of each simulated link.
        """
        self.zookeeper, self.paths, self.own = zookeeper, KafkaPaths(prefix), OwnPaths()
        self.targets = {(topic, p): (NEW, *_alive(p)) for topic, mb in sizes.items() for p in range(len(mb))}
        self._prefix, self._directory, self._deployments = prefix, directory, 0
        partitions = [
            SimulatedPartition(
                topic=topic,
                partition=p,
                size=megabytes * MEGABYTE,
                replicas=(FAILED, *_alive(p)),
                isr=_alive(p),
            )
            for topic, of_topic in sizes.items()
            for p, megabytes in enumerate(of_topic)
        ]
        brokers = [SimulatedBroker(broker_id, Capacity(link, link), traffic) for broker_id in BROKERS]
        self._cluster = Cluster(brokers, partitions)
        self._stack = ExitStack()

    def __enter__(self) -> SimulatedRecovery:
        with ExitStack() as stack:
            self.datadog = stack.enter_context(DatadogEmulator())
            for broker_id in BROKERS:
                self.datadog.add_host(f"host-{broker_id}", broker_id, "lab")
            kafka = SimulatedKafka(self.zookeeper.connect, self._cluster, self._prefix, self.datadog.record)
            self.kafka = stack.enter_context(kafka)
            # Another session of the client may expire right after an outage, in the middle of a read.
            self.client = KazooClient(self.zookeeper.connect, command_retry={"max_tries": 20, "max_delay": 1.0})
            self.client.start()
            stack.callback(self.client.close)
            stack.callback(self.client.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # The services.

    def deployment(self, **options: str) -> Deployment:
        """Return a new deployment with its own log directory; `_` in the name of an option stands for `-`."""
        self._deployments += 1
        directory = self._directory / f"start-{self._deployments}"
        directory.mkdir(parents=True)
        chosen = {
            "zk-prefix": self._prefix,
            "session-timeout": str(SESSION_SECONDS),
            "interval": str(INTERVAL_SECONDS),
            "metrics-window": "2",
            "cap-map": f'{{"lab":{CAPACITY // MEGABYTE}}}',
            "log-level": "debug",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        return Deployment(self.zookeeper.connect, self.datadog.url, directory, chosen)

    def services(self, *, planners: int = 2, **options: str) -> ServiceProcesses:
        """Return the processes of all services, not started; each call makes a new deployment."""
        return ServiceProcesses(self.deployment(**options), planners)

    def leader(self) -> Leader:
        """Return the current leader; fence 0: there was no term yet."""
        try:
            data, stat = self.client.retry(self.client.get, self.own.term)
        except NoNodeError:
            return Leader(0, "")
        fence = read_origin(self.client, self.own, 10.0) + stat.version
        return Leader(fence, json.loads(data)["address"] if data else "")

    def wait_for_term(self, after: int = 0, within_seconds: float = 20.0) -> Leader:
        """Wait for a term later than `after`, and return its leader."""

        def newer() -> Leader | None:
            leader = self.leader()
            return leader if leader.fence > after and leader.address else None  # a new node has no leader yet

        return wait_for(newer, within_seconds, f"a term after {after} begins")

    def wait_for_cycle(self, leader: Leader, number: int = 1, within_seconds: float = 20.0) -> Cycle:
        """Wait for cycle `number` of the leader's term or of a later term; return the last cycle."""
        planner = PlannerServiceClient((leader.address,))

        def cycle() -> Cycle | None:
            last = planner.state(timedelta(seconds=5)).last_cycle
            return last if last and last.term >= leader.fence and last.number >= number else None

        try:
            return wait_for(cycle, within_seconds, f"term {leader.fence} has run {number} cycles")
        finally:
            planner.close()

    # Actions of an operator.

    def start_reassignment(self, *topics: str) -> None:
        """Reassign some topics, or all topics if none is given."""
        self.kafka.reassign({key: target for key, target in self.targets.items() if not topics or key[0] in topics})

    def cancel_reassignment(self, topic: str) -> None:
        """Reassign the partitions of a topic back to their original replicas."""
        self.kafka.reassign({key: (FAILED, *_alive(key[1])) for key in self.targets if key[0] == topic})

    def speed_up(self) -> None:
        """Set a cluster override above the capacity of the links; it is removed when the reassignment ends."""
        override = {"rate": SPED_UP_MEGABYTES, "autoremove": True}
        self.client.ensure_path(self.own.overrides)
        self.client.set(self.own.overrides, json.dumps(override).encode())

    def set_config(self, entity_path: str, config: Mapping[str, str]) -> None:
        """Set a dynamic config as Kafka's own tools do."""
        path, document = f"{self.paths.configs}/{entity_path}", {"version": 1, "config": dict(config)}
        self.client.ensure_path(path)
        self.client.set(path, json.dumps(document).encode())
        notification = json.dumps({"version": 2, "entity_path": entity_path}).encode()
        self.client.create(self.paths.change_notification, notification, sequence=True)

    # State.

    def configs(self) -> dict[str, dict[str, str]]:
        """Return entity path -> dynamic config; entities with an empty config are absent."""
        found = {}
        for kind in ("brokers", "topics"):
            for name in self.client.retry(self.client.get_children, f"{self.paths.configs}/{kind}"):
                if config := self._json(f"{self.paths.configs}/{kind}/{name}")["config"]:
                    found[f"{kind}/{name}"] = config
        return found

    def config(self, entity_path: str) -> dict[str, str]:
        """Return the dynamic config of one entity path."""
        found: dict[str, str] = self._json(f"{self.paths.configs}/{entity_path}")["config"]
        return found

    def ledger(self) -> dict[str, dict[str, Any]]:
        """Return entity path -> keys of its ledger entry."""
        return {path: self._json(f"{self.own.ledger}/{path}")["keys"] for path in ledger_entries(self.client, self.own)}

    def ledger_mismatches(self) -> list[str]:
        """Return one line for each throttle that differs from the ledger. Foreign throttles would count as such."""
        current = {
            (entity, key): value
            for entity, config in self.configs().items()
            for key, value in config.items()
            if key in THROTTLE_KEYS
        }
        written = {
            (entity, key): known["written"] for entity, keys in self.ledger().items() for key, known in keys.items()
        }
        return [
            f"{entity} {key}: config {current.get((entity, key))!r}, ledger {written.get((entity, key))!r}"
            for entity, key in sorted(current.keys() | written.keys())
            if current.get((entity, key)) != written.get((entity, key))
        ]

    def rate(self, broker_id: int = NEW, key: str = FOLLOWER_RATE) -> int | None:
        """Return a current rate, bytes/s; None: the broker has no rate."""
        value = self.configs().get(f"brokers/{broker_id}", {}).get(key)
        return None if value is None else int(value)

    def lists(self) -> dict[str, Lists]:
        """Return topic -> current replica lists; topics without lists are absent."""
        return {
            entity.removeprefix("topics/"): (
                _entries(config.get(LEADER_REPLICAS)),
                _entries(config.get(FOLLOWER_REPLICAS)),
            )
            for entity, config in self.configs().items()
            if config.keys() & {LEADER_REPLICAS, FOLLOWER_REPLICAS}
        }

    def exact_lists(self, topic: str) -> Lists:
        """Return the replica lists that a topic needs, computed from its znode and its partitions' states."""
        leader, follower = set(), set()
        for partition, adding in self._json(self.paths.topic(topic))["adding_replicas"].items():
            isr = self._json(self.paths.state(topic, int(partition)))["isr"]
            if pending := [b for b in adding if b not in isr]:
                leader |= {f"{partition}:{b}" for b in isr}
                follower |= {f"{partition}:{b}" for b in pending}
        return frozenset(leader), frozenset(follower)

    def is_throttled(self, *topics: str) -> bool:
        """Whether the new broker has a rate, and all (or the given) topics have exactly the lists they need."""
        expected = {topic: self.exact_lists(topic) for topic in topics or sorted({t for t, _ in self.targets})}
        lists = self.lists()
        return self.rate() is not None and all(any(e) and lists.get(t) == e for t, e in expected.items())

    def is_reassigning(self) -> bool:
        """Whether any partition is still being reassigned."""
        return bool(self.kafka.inspect(Cluster.moving))

    def wait_until_throttled(self, *topics: str, within_seconds: float = 60.0) -> None:
        """Wait for `is_throttled`."""
        wait_for(lambda: self.is_throttled(*topics) or None, within_seconds, f"{topics or 'all topics'} are throttled")

    def wait_until_clean(self, before: Mapping[str, Mapping[str, str]], within_seconds: float = 60.0) -> float:
        """Wait for the end of the reassignment and the original configs; return the seconds between the two."""
        wait_for(lambda: not self.is_reassigning() or None, within_seconds, "the reassignment ends")
        over = time.monotonic()
        try:
            wait_for(lambda: (self.configs() == before and not self.ledger()) or None, 10.0, "throttles are removed")
        except AssertionError:
            assert (self.configs(), self.ledger()) == (before, {})
        return time.monotonic() - over

    # ZooKeeper's transaction log.

    def writes(self, after_zxid: int = 0) -> list[Write]:
        """Return the transactions that wrote configs or ledger entries, in commit order."""
        found = []
        term = 0
        for transaction in self.zookeeper.transactions():
            paths = tuple(o.path for o in transaction.operations if o.kind != "check" and self._is_fenced(o.path))
            if paths and transaction.zxid > after_zxid:
                fence = _fence(transaction.operations, self.own.term)
                found.append(Write(transaction.zxid, transaction.time, paths, fence, term, transaction.session_id))
            for operation in transaction.operations:
                if operation.path == self.own.term and operation.kind == "set":
                    term = _origin(transaction.operations, self.own.term) + (operation.version or 0)
        return found

    def assert_fenced(self, after_zxid: int, terms: int) -> list[Write]:
        """Assert that every write checked the current term and that at least `terms` terms wrote; return the writes."""
        writes = self.writes(after_zxid)
        assert [w for w in writes if w.fence is None] == []
        assert [w for w in writes if w.fence != w.term] == []
        fences = [w.fence or 0 for w in writes]
        assert fences == sorted(fences)
        assert len(set(fences)) >= terms, f"only the terms {sorted(set(fences))} wrote"
        return writes

    def _is_fenced(self, path: str) -> bool:
        kinds = ("brokers", "topics", "users", "clients", "quotas")
        parents = [f"{root}/{kind}/" for root in (self.paths.configs, self.own.ledger) for kind in kinds]
        return path.startswith(tuple(parents))

    def _json(self, path: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.client.retry(self.client.get, path)[0])
        return document


def wait_for(poll: Callable[[], T | None], within_seconds: float, event: str) -> T:
    """Call `poll` until it returns a value other than None; return that value."""
    deadline = time.monotonic() + within_seconds
    while (value := poll()) is None:
        assert time.monotonic() < deadline, f"not within {within_seconds:g} s: {event}"
        time.sleep(POLL_SECONDS)
    return value


def seconds_since(moment: datetime, until: datetime | None = None) -> float:
    """Return the seconds from a moment to another one, or to now."""
    return ((until or datetime.now(UTC)) - moment).total_seconds()


def broken_sessions(log: str) -> list[str]:
    """Return the log lines about interrupted ZooKeeper sessions, and tracebacks."""
    signs = ("Connection dropped", "SUSPENDED", "session is lost", "LOST", "Connection loss", "Traceback")
    return [line for line in log.splitlines() if any(sign in line for sign in signs)]


def _alive(partition: int) -> tuple[int, int]:
    """Return the in-sync replicas of a partition, the leader first."""
    first = partition % len(SURVIVORS)
    return SURVIVORS[first], SURVIVORS[(first + 1) % len(SURVIVORS)]


def _entries(value: str | None) -> frozenset[str]:
    return frozenset(value.split(",")) if value else frozenset()


def _fence(operations: Sequence[Operation], term: str) -> int | None:
    first = next(iter(operations), None)
    is_checked = first is not None and first.kind == "check" and first.path == term
    return _origin(operations, term) + (first.version or 0) if first is not None and is_checked else None


def _origin(operations: Sequence[Operation], term: str) -> int:
    """Return the origin of the store's terms that a transaction checks or creates."""
    names = [o.path.removeprefix(f"{term}/") for o in operations if o.path.startswith(f"{term}/")]
    return int(names[0]) if names else 0


def tree(client: KazooClient, path: str) -> Iterator[str]:
    """Yield the path of every znode below a path."""
    for name in sorted(client.get_children(path)):
        yield f"{path}/{name}"
        yield from tree(client, f"{path}/{name}")
