"""The environment of one run: a reassignment on real brokers, the services behind links, and the operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    THROTTLE_KEYS,
    parse_replicas,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.units import MEGABYTE
from autothrottle_client import AdminClient
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.metadata_log import MetadataRecord, PartitionWritten
from autothrottle_lab.observation.traffic import BrokerCounters, TrafficCounters, fill
from autothrottle_lab.servers.processes import Startable
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.chaos.on_kafka.cluster import BROKERS, ProxiedCluster
from tests.chaos.on_kafka.state import StateLog, ZooKeeperState
from tests.chaos.on_kafka.state_topic import KafkaState, SentRecord, record_ids
from tests.chaos.proxy import Link, kafka_api
from tests.chaos.schedule import Edit, Schedule
from tests.chaos.services import StagedServices

SOURCES, NEW = BROKERS[:2], BROKERS[2]
CAPACITY_MB = 6
"""Capacity of each link in the services' configuration."""

BULK = "bulk"
_BULK_BYTES = 150 * MEGABYTE
"""Size of a partition of `bulk`; few runs have the time to copy it."""
_ORDERS_BYTES = 3 * MEGABYTE
_UNMOVED_PARTITION = 2
"""The partition of `bulk` that is not reassigned."""
_FIRST_CYCLE_SECONDS = 2.0
"""Longest time from a planner's claim to the end of its first cycle on a quiet machine."""

_LOAD = (1, 3, 2)
"""The client load in MB/s; it changes every two seconds, so that most cycles write throttles."""

USER_RATE = "5000000"
OVERRIDE_RATE = 1_200_000
"""Lower than every rate that the policy decides, because lower rates are written at once, and higher ones in steps."""

PRODUCE, FETCH, ALTER_CONFIGS, ALTER_REASSIGNMENTS = 0, 1, 44, 45
"""API keys."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that changes Kafka, when it reached the proxy."""

    at: float
    """Seconds since the epoch."""
    process: str
    frame: bytes


class SharedCluster(Startable):
    """What the runs of one lane share: the brokers, perhaps a ZooKeeper, Datadog, and the topic `bulk`."""

    def __init__(self, directory: Path, state: str) -> None:
        """Prepare the servers; the state is in `kafka` or `zookeeper`, and logs go to `directory`."""
        self._stack, self.state = ExitStack(), state
        self.brokers = ProxiedCluster(directory / "kafka")
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")

    def start(self) -> None:
        """Start the servers, and fill `bulk`."""
        kafka_cluster = self._stack.enter_context(self.brokers).kafka
        if self.state == "zookeeper":
            self._stack.enter_context(self.zookeeper)
        self.datadog = self._stack.enter_context(DatadogEmulator())
        for broker_id in BROKERS:
            self.datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        kafka_cluster.create_topic(BULK, {p: _alive(p) for p in range(3)})
        fill(kafka_cluster, BULK, _BULK_BYTES, among=lambda partition: partition != _UNMOVED_PARTITION)
        counters = self._stack.enter_context(BrokerCounters(kafka_cluster))
        begin, clients = time.monotonic(), 0.0

        def record(sample: Mapping[int, TrafficCounters]) -> None:
            nonlocal begin, clients
            now = time.monotonic()
            clients += (now - begin) * _LOAD[int(now / 2) % len(_LOAD)] * MEGABYTE
            begin, at = now, time.time()
            for broker_id, traffic in sample.items():
                self.datadog.record(broker_id, at, traffic.tx_bytes + clients, traffic.rx_bytes + clients)

        counters.call_every(0.25, record)

    def close(self) -> None:
        self._stack.close()


class KafkaStage(StagedServices):
    """A reassignment and the services; a context manager that prepares the topics."""

    def __init__(self, cluster: SharedCluster, plan: Schedule, directory: Path) -> None:
        """Prepare a run with its own topics and its own state; logs go to `directory`."""
        super().__init__(plan, directory)
        self.cluster, self.brokers, self.kafka = cluster, cluster.brokers, cluster.brokers.kafka
        self.orders, self.late = f"orders-{plan.seed}", f"late-{plan.seed}"
        self.sent_records: dict[str, SentRecord] = {}
        """Id of a record of the state topic -> who sent it when."""
        self.read_back: dict[tuple[str, str], float] = {}
        """(process, id of a record of the state topic) -> when the proxy forwarded the record to the process."""
        self.state = self._state()
        self.sent: list[SentRequest] = []
        """Requests of the services that change configs or reassignments."""
        self.expected: dict[str, dict[str, str]] = {}
        """The required final configs."""
        self.edits: list[tuple[float, str, str]] = []
        """(time, entity, key) of the operators' edits of configs."""
        self.since = -1
        """The last metadata record before the start of the services."""
        self._stack = ExitStack()

    def _state(self) -> StateLog:
        seed, session_seconds = self.plan.seed, self.plan.session_seconds
        if self.cluster.state == "zookeeper":
            return ZooKeeperState(self.cluster.zookeeper, f"chaos-{seed}", session_seconds)
        return KafkaState(self.kafka, f"__chaos-{seed}", session_seconds, self.sent_records, self.read_back)

    def __enter__(self) -> KafkaStage:
        with ExitStack() as stack:
            self._prepare_topics(stack)
            stack.enter_context(self.state)
            self._prepare_services(stack)
            addresses = [self.socket(n) for n in self.processes if n.startswith(("run", "admin"))]
            self.client = stack.enter_context(AdminClient(addresses, timedelta(seconds=10)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _prepare_topics(self, stack: ExitStack) -> None:
        for topic, size in ((self.orders, _ORDERS_BYTES), (self.late, _ORDERS_BYTES // 3)):
            self.kafka.create_topic(topic, {p: _alive(p) for p in range(4)})
            stack.callback(self.kafka.delete_topic, topic)
            fill(self.kafka, topic, size)
        initial = {
            f"brokers/{SOURCES[0]}": {FOLLOWER_RATE: "31000000", "log.cleaner.threads": "2"},
            f"brokers/{NEW}": {LEADER_RATE: "32000000", FOLLOWER_RATE: "33000000"},
            f"topics/{self.orders}": {"retention.ms": "86400000"},
            f"topics/{BULK}": {FOLLOWER_REPLICAS: f"{_UNMOVED_PARTITION}:{SOURCES[0]}", "retention.ms": "3600000"},
        }
        for entity in (f"topics/{BULK}", *(f"brokers/{broker_id}" for broker_id in BROKERS)):
            self._set(entity, {**dict.fromkeys(THROTTLE_KEYS & self.config(entity).keys()), **initial.get(entity, {})})
        self._set(f"topics/{self.orders}", dict(initial[f"topics/{self.orders}"]))
        # An earlier run may have copied `bulk`, or left a part of it.
        self.kafka.reassign_through_bootstrap({(BULK, p): _alive(p) for p in range(3)})
        self.kafka.wait_until_reassigned()
        self.expected = {entity: dict(config) for entity, config in self.configs().items()}
        self.since = self.kafka.metadata.last_offset()

    def _set(self, entity: str, configs: Mapping[str, str | None]) -> None:
        kind, _, name = entity.partition("/")
        if not configs:
            return
        if kind == "brokers":
            self.kafka.set_configs_as_a_user(configs, broker_id=int(name))
        else:
            self.kafka.set_configs_as_a_user(configs, topic=name)

    # Services

    def _prepare_services(self, stack: ExitStack) -> None:
        names = (
            ("discovery", "metrics", "applier", "planner-1", "planner-2", "admin")
            if self.plan.separate_services
            else ("run-1", "run-2", "run-3")
        )
        common = {
            "kafka-backend": "admin",
            "interval": "1",
            "metrics-window": "2",
            "change-threshold": "0",
            "min-rate": "1",
            "cap-map": f'{{"lab":{CAPACITY_MB}}}',
            "discovery-poll": "0.2",
            "log-level": "debug",
            "log-format": "json",
            **self.state.options,
        }
        datadog = Link([int(self.cluster.datadog.url.rpartition(":")[2])], framing=None)
        self.links["datadog"] = stack.enter_context(datadog)
        deployment = Deployment("", f"http://{datadog.connect}", self.directory, common)
        for name, link in zip(names, self.brokers.slots, strict=False):
            link.observe = self._observer(name)
            link.observe_response = self._response_observer(name)
            stack.callback(link.reset)
            self.links[name] = link
            options = {"bootstrap-servers": link.connect, **self.addresses(name)}
            if name == "admin":
                planners = ",".join(self.socket(n) for n in names if n.startswith("planner"))
                options |= {"planner-addr": planners, "discovery-addr": self.socket("discovery")}
            self.processes[name] = deployment.process(name.partition("-")[0], name, options)
            stack.callback(self.processes[name].stop)

    def _observer(self, name: str) -> Callable[[bytes], None]:
        def observe(frame: bytes) -> None:
            api = kafka_api(frame)
            if api in (ALTER_CONFIGS, ALTER_REASSIGNMENTS):
                self.sent.append(SentRequest(time.time(), name, frame))
            elif api == PRODUCE:
                for record_id in record_ids(frame):
                    self.sent_records.setdefault(record_id, SentRecord(name, time.time()))

        return observe

    def _response_observer(self, name: str) -> Callable[[bytes], None]:
        def observe(frame: bytes) -> None:
            at = time.time()
            for record_id in record_ids(frame):
                self.read_back.setdefault((name, record_id), at)

        return observe

    def leader(self) -> tuple[int, str]:
        claims = self.state.history().claims
        return (claims[-1].term, claims[-1].process) if claims else (0, "")

    # Reassignment

    def submit_through_api(self) -> None:
        """Reassign a replica of each partition of `bulk` to the new broker, under throttles from the first byte on."""
        self.client.submit_reassignment({(BULK, p): _target(p) for p in range(2)})

    def submit_through_kafka(self) -> None:
        """Reassign a replica of each of the orders to the new broker."""
        self.kafka.reassign_through_bootstrap({(self.orders, p): _target(p) for p in range(4)})

    def late_targets(self, *partitions: int) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return a reassignment that an operator submits later."""
        return {(self.late, p): _target(p) for p in partitions}

    def finish_reassignment(self) -> None:
        """Cancel the reassignment of `bulk`; the rest finishes."""
        for partition in range(2):
            with suppress(Invalid):  # it has finished
                self.kafka.reassign_through_bootstrap({(BULK, partition): None})

    def is_throttled(self) -> bool:
        """Whether the throttle and the list that an operator may edit are as the reassignment needs them."""
        rate = self.config(f"brokers/{NEW}").get(FOLLOWER_RATE)
        entries = parse_replicas(self.config(f"topics/{BULK}").get(FOLLOWER_REPLICAS, ""))
        others = self.expected[f"brokers/{NEW}"][FOLLOWER_RATE]
        return rate not in (None, others, USER_RATE) and f"0:{NEW}" in entries

    def is_copying(self) -> bool:
        """Whether the partition whose list an operator may edit is in reassignment."""
        return (BULK, 0) in self.kafka.reassigning()

    # Operators

    def edit(self, edit: Edit) -> None:
        """Edit a config as an operator does; add an edit that must stay to the expected configs.

        Raises:
            AutothrottleError: a broker does not answer; repeat the edit.
        """
        bulk, entry = f"topics/{BULK}", f"{_UNMOVED_PARTITION}:{SOURCES[1]}"
        if edit in (Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED):
            removed = edit is Edit.ENTRY_REMOVED
            self.edits.append((time.time(), bulk, FOLLOWER_REPLICAS))
            self.kafka.edit_list_as_a_user(BULK, FOLLOWER_REPLICAS, f"0:{NEW}" if removed else entry, remove=removed)
            if not removed:
                entries = parse_replicas(self.expected[bulk][FOLLOWER_REPLICAS]) | {entry}
                self.expected[bulk][FOLLOWER_REPLICAS] = ",".join(sorted(entries))
            return
        entity, key, value = {
            Edit.RATE: (f"brokers/{NEW}", FOLLOWER_RATE, USER_RATE),
            Edit.NO_RATE: (f"brokers/{NEW}", FOLLOWER_RATE, None),
            Edit.FOREIGN_RATE: (f"brokers/{SOURCES[0]}", FOLLOWER_RATE, "55000000"),
            Edit.FOREIGN_KEY: (bulk, "retention.ms", "7200000"),
        }[edit]
        self.edits.append((time.time(), entity, key))
        self._set(entity, {key: value})
        if edit in (Edit.FOREIGN_RATE, Edit.FOREIGN_KEY) and value:
            self.expected[entity][key] = value

    def accept_unrepaired_rate(self) -> None:
        """Expect an operator's change of our rate to stay if the copy ended before a planner led and ran a cycle.

        autothrottle then leaves what the operator wrote. Without the throttle, the copy may end within a second.
        """
        entity = f"brokers/{NEW}"
        rate = self.config(entity).get(FOLLOWER_RATE)
        edit_time = max((at for at, *place in self.edits if place == [entity, FOLLOWER_RATE]), default=None)
        if edit_time is None or self.is_copying() or rate not in (None, USER_RATE):
            return
        times = [
            record.time.timestamp()
            for record in self.config_records()
            if isinstance(record.change, PartitionWritten)
            and record.change.partition == (BULK, 0)
            and not record.change.state.adding_replicas
        ]
        end_time = min((at for at in times if at > edit_time), default=edit_time)
        if end_time > edit_time + self.plan.session_seconds + _FIRST_CYCLE_SECONDS:
            return
        if rate is None:
            del self.expected[entity][FOLLOWER_RATE]
        else:
            self.expected[entity][FOLLOWER_RATE] = rate

    # Observation

    def config(self, entity: str) -> dict[str, str]:
        """Return the dynamic config of a broker or topic."""
        return self.kafka.stored_configs().get(entity, {})

    def configs(self) -> dict[str, dict[str, str]]:
        """Return the dynamic configs of the brokers and of the run's topics."""
        topics = {f"topics/{topic}" for topic in (BULK, self.orders, self.late)}
        stored = self.kafka.stored_configs()
        return {entity: config for entity, config in stored.items() if entity in topics or entity.startswith("brokers")}

    def config_records(self) -> list[MetadataRecord]:
        """Return the metadata records since the start of the services."""
        return self.kafka.metadata.records(self.since)


def decoded_configs(frame: bytes) -> dict[str, dict[str, tuple[int, str | None]]]:
    """Return the edits of an IncrementalAlterConfigs request: entity -> key -> (operation, value)."""
    version = int.from_bytes(frame[2:4], "big")
    request = kafka.protocol.admin.IncrementalAlterConfigsRequest.decode(frame, version=version, header=True)
    kinds = {2: "topics", 4: "brokers"}
    return {
        f"{kinds[resource.resource_type]}/{resource.resource_name}": {
            config.name: (config.config_operation, config.value) for config in resource.configs
        }
        for resource in request.resources
        if resource.resource_type in kinds
    }


def _alive(partition: int) -> tuple[int, int]:
    return SOURCES[partition % 2], SOURCES[(partition + 1) % 2]


def _target(partition: int) -> tuple[int, int]:
    return NEW, _alive(partition)[1]
