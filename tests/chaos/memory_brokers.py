"""Brokers in memory that answer Kafka's requests as frames, and a network in virtual time between them and a client.

The client, its event loop, its sockets and the encoding of all messages are the real ones. Only time is not: it goes on
when all wait, to the next event. So an answer that is 20 s late takes a millisecond.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin import backoff, connections, topic_log
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.state_store import ledger
from autothrottle.core.cluster.configs import RATE_KEYS, REPLICAS_KEYS
from tests.chaos.lies import API_VERSIONS, PRODUCE, REQUESTS, Liar, encoded_answer, response_type
from tests.chaos.proxy import Framing
from tests.fuzz.admin_responses import built

TOPIC, BROKER = 2, 4
BROKERS = (1, 2, 3)
STATE_TOPIC = "state"
_LENGTH, _HEADER = struct.Struct(">i"), struct.Struct(">hhi")
_BASE_OFFSET, _EPOCH = struct.Struct(">q"), struct.Struct(">i")
_SET, _DELETE, _APPEND = 0, 1, 2
_FIXED = {
    TOPIC: {"min.insync.replicas": "2", "cleanup.policy": "delete"},
    BROKER: {"replica.fetch.response.max.bytes": "10485760", "log.dirs": "/a"},
}
"""Type of a resource -> configs that it always has."""
_LAST_VERSION = {PRODUCE: 12}


class MemoryBrokers:
    """The state of a cluster, and its answers."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        """Broker id -> TCP port."""
        self.replicas = {("a", n): [1, 2] for n in range(3)} | {("b", 0): [2, 3], (STATE_TOPIC, 0): [1, 2, 3]}
        self.adding = {("a", 0): [3]}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        """(type of a resource, name) -> its own configs."""
        self.quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {(("user", "x"),): {_QUOTA: 5.0}}
        self.groups = {1: ["g1", "g2"], 2: ["g3"], 3: []}
        """Broker id -> the groups that it coordinates."""
        self.log: list[bytes] = []
        """The batches of the state topic."""
        self.end = 0
        """Offset after its last record."""
        self.topic_ids = {name: uuid.uuid4() for name, _ in self.replicas}

    def answer(self, broker_id: int, frame: bytes) -> tuple[bytes, float]:
        """Return the frame of the answer, and its delay in seconds."""
        api, version, correlation = _HEADER.unpack_from(frame)
        kind = REQUESTS[api]
        request = kind.decode(frame, version=version, header=True)
        document = getattr(self, f"_{kind.__name__.removesuffix('Request')}")(broker_id, request)
        seconds = document.pop("seconds", 0.001)
        response = built(response_type(api), document, version) if api != API_VERSIONS else document["response"]
        return encoded_answer(response, version, correlation), seconds

    def _ApiVersions(self, broker_id: int, request: Any) -> dict[str, Any]:
        kind = response_type(API_VERSIONS)
        key = kind.fields["api_keys"].data_class
        served = {k: v for k, v in REQUESTS.items() if hasattr(self, f"_{v.__name__.removesuffix('Request')}")}
        keys = [
            key(api_key=k, min_version=0, max_version=min(_LAST_VERSION.get(k, 99), v.max_version))
            for k, v in served.items()
        ]
        return {"response": kind(api_keys=keys)}

    def _Metadata(self, broker_id: int, request: Any) -> dict[str, Any]:
        names = {topic for topic, _ in self.replicas}
        topics = names if request.topics is None else [topic.name for topic in request.topics]
        return {
            "brokers": [
                {"node_id": b, "host": "127.0.0.1", "port": port, "rack": f"r{b}"} for b, port in self.ports.items()
            ],
            "controller_id": 1,
            "authorized_operations": _ALL_OPERATIONS,
            "cluster_id": "c",
            "topics": [self._topic(name) if name in names else {"name": name, "error_code": 3} for name in topics],
        }

    def _topic(self, name: str) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": number,
                "leader_id": replicas[0],
                "leader_epoch": 5,
                "replica_nodes": [*replicas, *self.adding.get((topic, number), ())],
                "isr_nodes": replicas,
            }
            for (topic, number), replicas in self.replicas.items()
            if topic == name
        ]
        row = {"name": name, "topic_id": self.topic_ids[name], "authorized_operations": _ALL_OPERATIONS}
        return {**row, "partitions": partitions}

    def described(self, kind: int, name: str) -> dict[str, str | None]:
        """Return the configs that a broker describes: those of a topic's lists also if they are not set."""
        always = dict.fromkeys(REPLICAS_KEYS, "") if kind == TOPIC else {}
        return {**always, **(_FIXED[kind] if name else {}), **self.configs.get((kind, name), {})}

    def _DescribeConfigs(self, broker_id: int, request: Any) -> dict[str, Any]:
        return {
            "results": [
                {
                    "resource_type": r.resource_type,
                    "resource_name": r.resource_name,
                    "configs": [
                        _config(r.resource_type, r.resource_name, key, value, self.configs)
                        for key, value in self.described(r.resource_type, r.resource_name).items()
                        if r.configuration_keys is None or key in r.configuration_keys
                    ],
                }
                for r in request.resources
            ]
        }

    def _IncrementalAlterConfigs(self, broker_id: int, request: Any) -> dict[str, Any]:
        for r in request.resources:
            configs = self.configs.setdefault((r.resource_type, r.resource_name), {})
            for edit in r.configs:
                current = [part for part in configs.get(edit.name, "").split(",") if part]
                named = (edit.value or "").split(",")
                if edit.config_operation == _SET:
                    configs[edit.name] = edit.value
                elif edit.config_operation == _DELETE:
                    configs.pop(edit.name, None)
                elif edit.config_operation == _APPEND:
                    configs[edit.name] = ",".join([*current, *(part for part in named if part not in current)])
                else:
                    configs[edit.name] = ",".join(part for part in current if part not in named)
        names = [(r.resource_type, r.resource_name) for r in request.resources]
        return {"responses": [{"resource_type": kind, "resource_name": name} for kind, name in names]}

    def _ListPartitionReassignments(self, broker_id: int, request: Any) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        partitions = None
        if request.topics is not None:
            partitions = {(topic.name, number) for topic in request.topics for number in topic.partition_indexes}
        for (topic, number), adding in self.adding.items():
            if partitions is None or (topic, number) in partitions:
                row = {"partition_index": number, "replicas": [*self.replicas[topic, number], *adding]}
                topics.setdefault(topic, []).append({**row, "adding_replicas": adding, "removing_replicas": []})
        return {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}

    def _AlterPartitionReassignments(self, broker_id: int, request: Any) -> dict[str, Any]:
        for topic in request.topics:
            for row in topic.partitions:
                self.adding.pop((topic.name, row.partition_index), None)
                current = self.replicas[topic.name, row.partition_index]
                if added := [b for b in row.replicas or () if b not in current]:
                    self.adding[topic.name, row.partition_index] = added
        rows = {t.name: [{"partition_index": row.partition_index} for row in t.partitions] for t in request.topics}
        return {"responses": [{"name": name, "partitions": row} for name, row in rows.items()]}

    def _DescribeLogDirs(self, broker_id: int, request: Any) -> dict[str, Any]:
        partitions = None if request.topics is None else {(t.topic, n) for t in request.topics for n in t.partitions}
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, number), replicas in self.replicas.items():
            if broker_id in replicas and (partitions is None or (topic, number) in partitions):
                topics.setdefault(topic, []).append({"partition_index": number, "partition_size": 100 + number})
        topic_rows = [{"name": name, "partitions": rows} for name, rows in topics.items()]
        return {"results": [{"log_dir": "/a", "topics": topic_rows, "total_bytes": 1_000, "usable_bytes": 500}]}

    def _DescribeClientQuotas(self, broker_id: int, request: Any) -> dict[str, Any]:
        return {
            "entries": [
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
                for entity, values in self.quotas.items()
            ]
        }

    def _AlterClientQuotas(self, broker_id: int, request: Any) -> dict[str, Any]:
        entities = []
        for entry in request.entries:
            entity = tuple((part.entity_type, part.entity_name) for part in entry.entity)
            entities.append([{"entity_type": kind, "entity_name": name} for kind, name in entity])
            self.quotas.setdefault(entity, {}).update({op.key: op.value for op in entry.ops if not op.remove})
        return {"entries": [{"entity": entity} for entity in entities]}

    def _ListGroups(self, broker_id: int, request: Any) -> dict[str, Any]:
        row = {"protocol_type": "consumer", "group_state": "Stable"}
        kinds = {"g1": "Classic", "g2": "Consumer", "g3": "Classic"}
        return {"groups": [{**row, "group_id": g, "group_type": kinds[g]} for g in self.groups[broker_id]]}

    def _DescribeGroups(self, broker_id: int, request: Any) -> dict[str, Any]:
        names = request.groups if "groups" in request.fields else request.group_ids
        return {"groups": [{"group_id": g, "members": [{"member_id": "m", "client_id": f"of-{g}"}]} for g in names]}

    def _ConsumerGroupDescribe(self, broker_id: int, request: Any) -> dict[str, Any]:
        return {"groups": [{"group_id": g, "group_state": "Stable"} for g in request.group_ids]}

    def _Produce(self, broker_id: int, request: Any) -> dict[str, Any]:
        (topic,) = request.topic_data
        (row,) = topic.partition_data
        batch, start = bytearray(row.records), self.end
        (last_delta,) = _EPOCH.unpack_from(batch, 23)
        batch[:8], batch[12:16] = _BASE_OFFSET.pack(start), _EPOCH.pack(5)
        self.log.append(bytes(batch))
        self.end += last_delta + 1
        partition = {"index": 0, "base_offset": start, "log_append_time_ms": -1, "log_start_offset": 0}
        return {"responses": [{"name": topic.name, "partition_responses": [partition]}]}

    def _Fetch(self, broker_id: int, request: Any) -> dict[str, Any]:
        (topic,) = request.topics
        (row,) = topic.partitions
        after = [batch for batch in self.log if _last_offset(batch) >= row.fetch_offset]
        partition: dict[str, Any] = {"partition_index": 0, "high_watermark": self.end, "last_stable_offset": self.end}
        partition |= {"log_start_offset": 0, "records": b"".join(after), "aborted_transactions": []}
        rows = [{"topic": topic.topic, "topic_id": topic.topic_id, "partitions": [partition]}]
        return {"responses": rows, "seconds": 0.001 if after else max(0.001, request.max_wait_ms / 1000)}

    def _ListOffsets(self, broker_id: int, request: Any) -> dict[str, Any]:
        rows = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": r.partition_index, "offset": 0 if r.timestamp == -2 else self.end}
                    for r in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return {"topics": rows}

    def _DeleteRecords(self, broker_id: int, request: Any) -> dict[str, Any]:
        rows = {t.name: [{"partition_index": r.partition_index} for r in t.partitions] for t in request.topics}
        return {"topics": [{"name": name, "partitions": row} for name, row in rows.items()]}

    def _CreateTopics(self, broker_id: int, request: Any) -> dict[str, Any]:
        return {"topics": [{"name": topic.name, "error_code": 36} for topic in request.topics]}


_QUOTA = "producer_byte_rate"
_ALL_OPERATIONS = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12}


def _config(
    kind: int, name: str, key: str, value: str | None, configs: Mapping[tuple[int, str], Mapping[str, str]]
) -> dict[str, Any]:
    is_own = key in configs.get((kind, name), {})
    source = (1 if kind == TOPIC else 2 if name else 3) if is_own else 5
    return {"name": key, "value": value, "config_source": source, "synonyms": [_synonym(key, value, source)]}


def _synonym(key: str, value: str | None, source: int) -> dict[str, Any]:
    return {"name": key, "value": value, "source": source}


def _last_offset(batch: bytes) -> int:
    return int(_BASE_OFFSET.unpack_from(batch)[0] + _EPOCH.unpack_from(batch, 23)[0])


class Clock:
    """Virtual monotonic time, which goes on while a thread waits for the network."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.changed = threading.Condition()
        self._waiters: dict[int, tuple[float, Callable[[], bool]]] = {}
        """Number of a wait -> when it ends at the latest, and whether it is over."""
        self._numbers = count()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.wait(seconds, lambda: False)

    def wait(self, seconds: float | None, is_over: Callable[[], bool]) -> bool:
        """Wait until something is over, at most some virtual seconds; return whether it is."""
        deadline, number = self.now + (60.0 if seconds is None else max(seconds, 0.0)), next(self._numbers)
        with self.changed:
            self._waiters[number] = deadline, is_over
            while not (result := is_over()) and self.now < deadline:
                self.changed.wait(0.002)
            del self._waiters[number]
        return result

    def advance(self, next_event: Callable[[], float | None]) -> bool:
        """Go on to the next event, or to the end of the first wait before it, if all is idle.

        Args:
            next_event: returns when it is; None: not all is idle.

        Returns:
            Whether a thread waits.
        """
        with self.changed:
            deadlines = [deadline for deadline, is_over in self._waiters.values() if not is_over()]
            if not deadlines:
                return False
            if (limit := next_event()) is None:
                return True
            self.now = max(self.now, min(limit, *deadlines))
            self.changed.notify_all()
            return True


class VirtualEvent:
    """An event whose waits end in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._is_set = clock, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._clock.changed:
            self._is_set = True
            self._clock.changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        return self._clock.wait(timeout, lambda: self._is_set)


class VirtualNetwork:
    """Listeners of brokers in memory, and the deliveries of their answers in virtual time."""

    def __init__(self, brokers: MemoryBrokers, liar: Liar, clock: Clock) -> None:
        self._brokers, self._liar, self.clock = brokers, liar, clock
        self._lock = threading.RLock()
        self._listeners = {b: socket.create_server(("127.0.0.1", 0), backlog=100) for b in BROKERS}
        brokers.ports = {b: listener.getsockname()[1] for b, listener in self._listeners.items()}
        self._connections: dict[socket.socket, tuple[int, bytearray]] = {}
        self._deliveries: list[tuple[float, int, socket.socket, bytes | None]] = []
        self._last_due: dict[socket.socket, float] = {}
        """Connection -> when its last answer is delivered: they keep the order of the requests."""
        self._numbers = count()
        self.loops: dict[VirtualSelector, float] = {}
        """Event loops that wait -> when their next timer is due."""
        self.selectors: set[VirtualSelector] = set()
        self.errors: list[BaseException] = []
        for listener in self._listeners.values():
            listener.setblocking(False)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self._brokers.ports.values())

    def close(self) -> None:
        for end in [*self._listeners.values(), *self._connections]:
            end.close()

    def refuse(self) -> None:
        """Refuse connections, and close those that are open."""
        with self._lock:
            self.close()
            self._connections.clear()
            self._deliveries.clear()
            self._listeners.clear()

    def accept(self) -> None:
        """Accept connections again."""
        with self._lock:
            for broker_id, port in self._brokers.ports.items():
                self._listeners[broker_id] = socket.create_server(("127.0.0.1", port), backlog=100)
                self._listeners[broker_id].setblocking(False)

    def pump(self) -> bool:
        """Accept, read, answer and deliver what is due; return whether anything was sent or received."""
        with self._lock:
            is_busy = False
            for broker_id, listener in list(self._listeners.items()):
                with suppress(BlockingIOError):
                    end = listener.accept()[0]
                    end.setblocking(False)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise answers wait in real time
                    self._connections[end] = broker_id, bytearray()
                    is_busy = True
            for end, (broker_id, data) in list(self._connections.items()):
                is_busy |= self._receive(end, broker_id, data)
            while self._deliveries and self._deliveries[0][0] <= self.clock.now:
                _, _, end, frame = heapq.heappop(self._deliveries)
                is_busy = True
                with suppress(OSError):
                    if frame is None:
                        self._connections.pop(end, None)
                        end.close()
                    else:
                        end.setblocking(True)
                        end.sendall(_LENGTH.pack(len(frame)) + frame)
                        end.setblocking(False)
            return is_busy

    def _receive(self, end: socket.socket, broker_id: int, data: bytearray) -> bool:
        try:
            piece = end.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._connections.pop(end, None)
            end.close()
            return True
        data += piece
        while len(data) >= 4 and len(data) >= 4 + (length := _LENGTH.unpack_from(data)[0]):
            frame = bytes(data[4 : 4 + length])
            del data[: 4 + length]
            try:
                answer, seconds = self._brokers.answer(broker_id, frame)
            except Exception as error:  # a request that these brokers do not understand
                self.errors.append(error)
                continue
            changed = self._liar.answer(frame, answer)
            due = max(self.clock.now + seconds + changed.seconds, self._last_due.get(end, 0.0))
            self._last_due[end] = due
            heapq.heappush(self._deliveries, (due, next(self._numbers), end, changed.frame))
        return True

    def next_event(self) -> float | None:
        """Return when the next delivery or timer is due; None: an event loop is busy, or has something to read."""
        with self._lock:
            if len(self.loops) == len(self.selectors) and not any(loop.is_ready for loop in self.selectors):
                times = [*self.loops.values(), *(delivery[0] for delivery in self._deliveries[:1])]
                return min(times, default=self.clock.now + 1.0)
        _yield()
        return None


class VirtualSelector(selectors.DefaultSelector):
    """The selector of an event loop, whose timeouts are in virtual time."""

    network: VirtualNetwork

    def __init__(self) -> None:
        super().__init__()
        with self.network._lock:
            self.network.selectors.add(self)

    def close(self) -> None:
        with self.network._lock:
            self.network.selectors.discard(self)
            self.network.loops.pop(self, None)
        super().close()

    @property
    def is_ready(self) -> bool:
        return bool(super().select(0))

    def select(self, timeout: float | None = None) -> Any:
        network, clock = self.network, self.network.clock
        deadline = clock.now + (600.0 if timeout is None else max(timeout, 0.0))
        while True:
            is_busy = network.pump()
            if (ready := super().select(0)) or clock.now >= deadline:
                network.loops.pop(self, None)
                return ready
            network.loops[self] = deadline
            is_waiting = not is_busy and not clock.advance(network.next_event)
            if is_waiting and (ready := super().select(0.02)):
                network.loops.pop(self, None)
                return ready


_sleep = time.sleep


def _yield() -> None:
    """Let other threads run; this is real time."""
    _sleep(0.0002)


@contextmanager
def virtual_network(brokers: MemoryBrokers, liar: Liar) -> Iterator[VirtualNetwork]:
    """Let clients of Kafka in this process talk to these brokers, in virtual time."""
    clock = Clock()
    network = VirtualNetwork(brokers, liar, clock)
    selector = type("Selector", (VirtualSelector,), {"network": network})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock.monotonic)
        patch.setattr(time, "sleep", clock.sleep)
        for timed in (backoff.Backoff, ledger.Fence):
            patch.setattr(timed.__init__, "__defaults__", (clock.monotonic,))
        patch.setitem(kafka.net.selector.NetworkSelector.DEFAULT_CONFIG, "selector", selector)
        names = SimpleNamespace(**{**vars(threading), "Event": lambda: VirtualEvent(clock)})
        for module in (connections, topic_log):
            patch.setattr(module, "threading", names)
        try:
            yield network
        finally:
            network.close()


__all__ = ["BROKER", "BROKERS", "RATE_KEYS", "STATE_TOPIC", "TOPIC", "Framing", "MemoryBrokers", "virtual_network"]
