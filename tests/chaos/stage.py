"""The environment of one run: a cluster in the ensemble, the services behind links, and the user who edits configs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.codec import format_change_notification, format_config, parse_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    format_replicas,
    parse_replicas,
)
from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.emulators.kafka import SimulatedKafka
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble
from autothrottle_lab.simulation.cluster import Cluster, SimulatedBroker, SimulatedPartition
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep
from tests.chaos.proxy import Framing, Link
from tests.chaos.schedule import SESSION_SECONDS, Edit, Schedule
from tests.chaos.services import StagedServices

FAILED, SURVIVORS, NEW, IDLE = 1000, (1001, 1002, 1003), 1004, 1005
BROKERS = (*SURVIVORS, NEW, IDLE)
"""1004 replaces 1000; 1005 takes no part in the reassignment."""

LINK, CAPACITY = 300 * MEGABYTE, 100 * MEGABYTE
"""Bytes/s of the simulated links, and the capacity in the services' configuration."""

_CHANGING_LOAD = ClientTraffic(
    tuple(TrafficStep(at, r, r) for at in range(900) for r in [(10 + at // 2 % 3 * 20) * MEGABYTE])
)
"""The client load changes every two seconds, so that most cycles write throttles."""

_SIZES = {"orders": [6 * n * MEGABYTE for n in range(1, 9)], "bulk": [30_000 * MEGABYTE] * 3}
"""Replicas of `orders` join the ISR throughout a run; those of `bulk` are never finished."""
_UNMOVED_PARTITION = 3
"""The partition of `bulk` that is not reassigned."""

BEFORE = {
    "brokers/1001": {FOLLOWER_RATE: "31000000", "log.cleaner.threads": "2"},
    f"brokers/{NEW}": {LEADER_RATE: "32000000", FOLLOWER_RATE: "33000000"},
    f"brokers/{IDLE}": {FOLLOWER_RATE: "34000000"},
    "topics/orders": {"retention.ms": "86400000"},
    "topics/bulk": {FOLLOWER_REPLICAS: f"{_UNMOVED_PARTITION}:1001", "retention.ms": "3600000"},
}
"""Configs of other parties: rates on brokers inside and outside the reassignment, a list entry of a partition that is
not reassigned, and keys that are not throttles."""

_USER_RATE = "47000000"


def _without(current: str, entry: str) -> str:
    return format_replicas(parse_replicas(current) - {entry})


def _with(current: str, entry: str) -> str:
    return format_replicas(parse_replicas(current) | {entry})


_EDITS: Mapping[Edit, tuple[str, str, Callable[[str], str | None]]] = {
    Edit.RATE: (f"brokers/{NEW}", FOLLOWER_RATE, lambda _: _USER_RATE),
    Edit.NO_RATE: (f"brokers/{NEW}", FOLLOWER_RATE, lambda _: None),
    Edit.ENTRY_REMOVED: ("topics/bulk", FOLLOWER_REPLICAS, lambda current: _without(current, f"0:{NEW}")),
    Edit.ENTRY_ADDED: ("topics/bulk", FOLLOWER_REPLICAS, lambda current: _with(current, f"{_UNMOVED_PARTITION}:1002")),
    Edit.FOREIGN_RATE: (f"brokers/{IDLE}", FOLLOWER_RATE, lambda _: "55000000"),
    Edit.FOREIGN_KEY: ("topics/bulk", "retention.ms", lambda _: "7200000"),
}
"""Edit -> (entity, key, function from the current value ("": none) to the new one (None: delete the key))."""

_USER_EDITS = (Edit.ENTRY_ADDED, Edit.FOREIGN_RATE, Edit.FOREIGN_KEY)
"""The edits that must stay. The others change autothrottle's throttles, and autothrottle must repair them."""
_CALL_SECONDS = 5.0


class Stage(StagedServices):
    """A cluster with a reassignment, and the services; a context manager that starts the cluster and the user."""

    def __init__(self, ensemble: ZooKeeperEnsemble, plan: Schedule, directory: Path) -> None:
        """Prepare a run with its own paths in the ensemble; logs go to `directory`."""
        super().__init__(plan, directory)
        self.ensemble = ensemble
        self.kafka_paths, self.own = KafkaPaths(f"/chaos-{plan.seed}"), OwnPaths(f"chaos-{plan.seed}-own")
        self.expected: dict[str, dict[str, str]] = {entity: dict(config) for entity, config in BEFORE.items()}
        """The required final configs."""
        self.sessions: set[int] = set()
        """Session ids of the user."""
        self.since = ensemble.last_zxid()
        """The last zxid before this stage."""
        self.begin = 0
        """The last zxid before the start of the services."""
        self._stack = ExitStack()
        brokers = [SimulatedBroker(broker_id, Capacity(LINK, LINK), _CHANGING_LOAD) for broker_id in BROKERS]
        self._cluster = Cluster(brokers, _partitions())

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            datadog = stack.enter_context(DatadogEmulator())
            for broker_id in BROKERS:
                datadog.add_host(f"host-{broker_id}", broker_id, "lab")
            port = int(datadog.url.rpartition(":")[2])
            self.links["datadog"] = stack.enter_context(Link([port], framing=None))
            self.client = KazooClient(self.ensemble.connect, timeout=10.0)
            self.client.add_listener(self._record_session)
            self.client.start(timeout=60)
            stack.callback(self.client.close)
            stack.callback(self.client.stop)
            for entity, config in BEFORE.items():
                self.client.ensure_path(f"{self.kafka_paths.configs}/{entity}")
                self.client.set(f"{self.kafka_paths.configs}/{entity}", format_config(config))
            self.kafka = SimulatedKafka(
                self.ensemble.connect,
                self._cluster,
                self.kafka_paths.prefix,
                datadog.record,
                session_timeout_seconds=20.0,
                connect_timeout_seconds=60.0,
            )
            stack.enter_context(self.kafka)
            self.begin = self.ensemble.last_zxid()
            self._prepare_services(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _record_session(self, _state: str) -> None:
        if self.client.client_id is not None:
            self.sessions.add(self.client.client_id[0])

    # Services

    def _prepare_services(self, stack: ExitStack) -> None:
        names = (
            ("discovery", "metrics", "applier", "planner-1", "planner-2")
            if self.plan.separate_services
            else ("run-1", "run-2")
        )
        common = {
            "zk-prefix": self.kafka_paths.prefix,
            "zk-config-prefix": self.own.prefix,
            "interval": "1",
            "metrics-window": "2",
            "change-threshold": "0",
            "cap-map": f'{{"lab":{CAPACITY // MEGABYTE}}}',
            "log-level": "debug",
        }
        deployment = Deployment("", f"http://{self.links['datadog'].connect}", self.directory, common)
        for name in names:
            link = stack.enter_context(
                Link([server.port for server in self.ensemble.servers], framing=Framing.ZOOKEEPER)
            )
            session = self.plan.session_seconds if name == "applier" else SESSION_SECONDS
            options = {"zk-addr": link.connect, "session-timeout": str(session), **self.addresses(name)}
            self.links[name] = link
            self.processes[name] = deployment.process(name.partition("-")[0], name, options)
            stack.callback(self.processes[name].stop)

    def leader(self) -> tuple[int, str]:
        try:
            data, stat = self.request(lambda: self.client.get_async(self.own.term))
        except NoNodeError:
            return 0, ""
        address = json.loads(data)["address"] if data else ""
        return stat.version, address.rpartition("/")[2]

    # Reassignment

    def submit_reassignment(self) -> None:
        """Reassign all replicas of the failed broker to the new one."""
        self.kafka.reassign({(t, p): (NEW, *_alive(p)) for t, sizes in _SIZES.items() for p in range(len(sizes))})

    def finish_reassignment(self) -> None:
        """Cancel the reassignment of `bulk`, which never finishes; the rest finishes."""
        self.kafka.reassign({("bulk", p): (FAILED, *_alive(p)) for p in range(len(_SIZES["bulk"]))})

    def is_reassigning(self) -> bool:
        return bool(self.kafka.inspect(Cluster.moving))

    def is_throttled(self) -> bool:
        """Whether the throttle and the list that the user may edit are as the reassignment needs them."""
        rate = self.config(f"brokers/{NEW}")[0].get(FOLLOWER_RATE)
        entries = parse_replicas(self.config("topics/bulk")[0].get(FOLLOWER_REPLICAS, ""))
        others = BEFORE[f"brokers/{NEW}"][FOLLOWER_RATE]
        return rate not in (None, others, _USER_RATE) and f"0:{NEW}" in entries

    # User

    def edit(self, edit: Edit) -> None:
        """Edit a config as a user does; add an edit that must stay to the expected configs."""
        entity, key, changed = _EDITS[edit]
        while not self._try_edit(entity, key, changed):
            pass
        if (own := changed(self.expected[entity].get(key, ""))) and edit in _USER_EDITS:
            self.expected[entity][key] = own

    def _try_edit(self, entity: str, key: str, changed: Callable[[str], str | None]) -> bool:
        """Change one key of one config; return False if a concurrent write prevented it."""
        config, version = self.config(entity)
        value = changed(config.pop(key, ""))
        config |= {} if value is None else {key: value}
        transaction = self.client.transaction()
        transaction.set_data(f"{self.kafka_paths.configs}/{entity}", format_config(config), version)
        notification = format_change_notification(entity)
        transaction.create(self.kafka_paths.change_notification, notification, sequence=True)
        try:
            results = transaction.commit_async().get(timeout=_CALL_SECONDS)
        except (KazooException, KazooTimeoutError):
            return self.config(entity)[0] == config  # the transaction may have been committed
        return not any(isinstance(result, Exception) for result in results)

    def config(self, entity: str) -> tuple[dict[str, str], int]:
        """Return a config and its version."""
        data, stat = self.request(lambda: self.client.get_async(f"{self.kafka_paths.configs}/{entity}"))
        return parse_config(data), stat.version

    def configs(self) -> dict[str, dict[str, str]]:
        """Return entity path -> config."""
        found: dict[str, dict[str, str]] = {}
        for kind in ("brokers", "topics"):
            names = self.request(partial(self.client.get_children_async, f"{self.kafka_paths.configs}/{kind}"))
            found |= {f"{kind}/{name}": self.config(f"{kind}/{name}")[0] for name in names}
        return found

    def ledger(self) -> list[str]:
        """Return the entities that have a ledger entry."""
        found = []
        for kind in ("brokers", "topics"):
            try:
                names = self.request(partial(self.client.get_children_async, f"{self.own.ledger}/{kind}"))
            except NoNodeError:
                continue
            found += [f"{kind}/{name}" for name in names]
        return found

    def request(self, send: Callable[[], Any], within_seconds: float = 120.0) -> Any:
        """Send a request to ZooKeeper, retry it after connection errors, and return the response.

        Raises:
            NoNodeError: the znode does not exist.
            Unavailable: ZooKeeper does not answer in time.
        """
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            try:
                return send().get(timeout=_CALL_SECONDS)
            except NoNodeError:
                raise
            except (KazooException, KazooTimeoutError):
                time.sleep(0.05)
        raise Unavailable(f"the ensemble does not answer within {within_seconds:g} s; see its logs")


def _alive(partition: int) -> tuple[int, int]:
    return SURVIVORS[partition % 3], SURVIVORS[(partition + 1) % 3]


def _partitions() -> list[SimulatedPartition]:
    reassigned = [
        SimulatedPartition(topic=topic, partition=p, size=size, replicas=(FAILED, *_alive(p)), isr=_alive(p))
        for topic, sizes in _SIZES.items()
        for p, size in enumerate(sizes)
    ]
    unmoved = SimulatedPartition(topic="bulk", partition=_UNMOVED_PARTITION, size=MEGABYTE, replicas=(1001, 1002))
    return [*reassigned, unmoved]
