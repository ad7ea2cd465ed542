"""The door of metrics servers: answers of Prometheus and Datadog, with the series of one broker beside another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings
from autothrottle.adapters.datadog.client import RateLimit
from autothrottle.adapters.datadog.storage_metrics import DatadogStorageMetrics, StorageQueries
from autothrottle.adapters.http.client import Failure, ServerClock
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.prometheus import PrometheusMetrics, PrometheusSettings
from autothrottle.adapters.prometheus.storage_metrics import PrometheusStorageMetrics
from autothrottle.adapters.zookeeper_state.storage_metrics import format_partition_sizes, format_storage_free
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity, Loads
from tests.fuzz import hostile
from tests.fuzz.exporter_texts import NOW, canned, check_loads
from tests.fuzz.hostile import Choices
from tests.fuzz.series import require, require_bytes, require_ids, require_same

TIMEOUT = timedelta(seconds=20)
CLEAN, ATTACKED = 1, 2
LIMITS = CapacityLimits(default=Capacity(100_000_000, 100_000_000))
MOST_SILENCE = 300
"""Seconds for which a server may stop our requests."""
MOST_OFFSET = 3_600
"""Seconds by which a server's clock may be believed to differ."""


def _prometheus(series: Sequence[Any], kind: str = "matrix") -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": list(series)}}


def _counter(pod: int, name: str = "x") -> dict[str, Any]:
    values = [[NOW - 30 + 15 * n, str(15e6 * n)] for n in range(3)]
    return {"metric": {"__name__": name, "pod": f"kafka-{pod}", "device": "eth0"}, "values": values}


def _gauge(labels: Mapping[str, str], value: str) -> dict[str, Any]:
    return {"metric": dict(labels), "value": [NOW, value]}


def _datadog(series: Sequence[Any]) -> dict[str, Any]:
    return {"status": "ok", "series": list(series)}


def _points(broker: int) -> dict[str, Any]:
    scope = f"host:h{broker},broker_id:{broker},instance-type:d2"
    return {"scope": scope, "pointlist": [[(NOW - 120) * 1000, 5e6], [(NOW - 60) * 1000, 6e6]], "interval": 60}


def _sizes(topic: str) -> dict[str, Any]:
    return {
        "scope": f"topic:{topic},partition:0",
        "pointlist": [[NOW * 1000, 5e6]],
        "tag_set": [f"topic:{topic}", "partition:0"],
    }


def _free(broker: int) -> dict[str, Any]:
    return {"scope": f"broker_id:{broker}", "pointlist": [[NOW * 1000, 5e6]]}


class Answer(NamedTuple):
    """A valid answer to one query: the items of two brokers, and how they are wrapped."""

    clean: Any
    attacked: Any
    wrap: Callable[[Sequence[Any]], Any]


_QUOTA_RATE = "kafka_server_LeaderReplication_byte_rate"
_SIZE = {"topic": "t", "partition": "0"}
PROMETHEUS: Mapping[str, Answer] = {
    "LeaderReplication": Answer(_counter(CLEAN, _QUOTA_RATE), _counter(ATTACKED, _QUOTA_RATE), _prometheus),
    "transmit": Answer(_counter(CLEAN), _counter(ATTACKED), _prometheus),
    "receive": Answer(_counter(CLEAN), _counter(ATTACKED), _prometheus),
    "speed": Answer(
        _gauge({"pod": "kafka-1"}, "1e9"),
        _gauge({"pod": "kafka-2"}, "1e9"),
        lambda series: _prometheus(series, "vector"),
    ),
    "kafka_broker_info": Answer(
        _gauge({"id": "7", "address": "b7"}, "1"),
        _gauge({"id": "8", "address": "b8"}, "1"),
        lambda s: _prometheus(s, "vector"),
    ),
}
PROMETHEUS_STORAGE: Mapping[str, Answer] = {
    "node_filesystem": Answer(
        _gauge({"pod": "kafka-1"}, "1e9"),
        _gauge({"pod": "kafka-2", "device": "d"}, "1e9"),
        lambda s: _prometheus(s, "vector"),
    ),
    "max by": Answer(
        _gauge({**_SIZE, "topic": "clean"}, "7"), _gauge(_SIZE, "7.5"), lambda series: _prometheus(series, "vector")
    ),
    "kafka_broker_info": PROMETHEUS["kafka_broker_info"],
}
DATADOG: Mapping[str, Answer] = {
    "sent": Answer(_points(CLEAN), _points(ATTACKED), _datadog),
    "rcvd": Answer(_points(CLEAN), _points(ATTACKED), _datadog),
    "tags": Answer("a:b", "broker_id:3", lambda tags: {"tags": list(tags)}),
}
DATADOG_STORAGE: Mapping[str, Answer] = {
    "sizes": Answer(_sizes("clean"), _sizes("t"), _datadog),
    "free": Answer(_free(CLEAN), _free(ATTACKED), _datadog),
    "validate": Answer("a", "b", lambda series: {"valid": True}),
}
KINDS = {
    "prometheus": PROMETHEUS,
    "datadog": DATADOG,
    "prometheus storage": PROMETHEUS_STORAGE,
    "datadog storage": DATADOG_STORAGE,
}
HEADERS = (
    "date",
    "x-ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-period",
    "retry-after",
    "x-ratelimit-name",
)
HEADER_TEXTS = (
    *(text for text in hostile.TEXTS if text.isascii() and not {*text} & {*"\r\n\0"}),
    *("Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 02 Nov 2026 12:00:00 +9999", "99999", "9" * 5, "1e9", "-1", "0"),
)
"""Texts of a header as a client receives it."""


class Attack(NamedTuple):
    """Answers of a server, one of which is hostile."""

    kind: str
    """A key of `KINDS`, or `headers`."""
    query: str
    body: bytes
    is_inside: bool
    """Whether only the item of one broker is hostile."""
    headers: Mapping[str, str]
    status: int = 200


class CannedPools:
    """Stands for the connections of a client: answers each request from memory."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self.pools: dict[str, Any] = {}
        self._name_of = name_of
        self.attack: Attack | None = None
        self.answers: Mapping[str, Answer] = {}

    def request(self, method: str, url: str, *arguments: Any, **keywords: Any) -> Any:
        name, attack = self._name_of(f"{url}?{keywords.get('fields') or ''}" if "?" not in url else url), self.attack
        if attack is not None and attack.query == name:
            return canned(attack.body, attack.status, attack.headers)
        answer = self.answers[name]
        return canned(hostile.encoded(answer.wrap([answer.clean, answer.attacked])))

    def clear(self) -> None:
        """Do nothing: no connection is open."""


def _prometheus_name(url: str) -> str:
    query = parse_qs(urlsplit(url).query)["query"][0]
    return next(name for name in (*PROMETHEUS, *PROMETHEUS_STORAGE) if name in query)


def _datadog_name(url: str) -> str:
    for text, name in {
        "/tags/": "tags",
        "/validate": "validate",
        "sent": "sent",
        "rcvd": "rcvd",
        "size": "sizes",
    }.items():
        if text in url:
            return name
    return "free"


class MetricsAnswers:
    """Both sources of loads and both sources of storage metrics, over answers from memory."""

    name = "metrics answers"

    def __init__(self) -> None:
        label = parse_broker_label("pod=kafka-([0-9]+)", "broker-label")
        settings = PrometheusSettings("http://p", EXPORTERS["node_exporter"], broker_label=label)
        self._prometheus_pools, self._datadog_pools = CannedPools(_prometheus_name), CannedPools(_datadog_name)
        self._prometheus = PrometheusMetrics(settings, LIMITS, BrokerHosts(MemoryCluster()), lambda: NOW)
        self._prometheus_storage = PrometheusStorageMetrics(settings, clock=lambda: NOW)
        for source in (self._prometheus, self._prometheus_storage):
            setattr(source._client, "_pools", self._prometheus_pools)  # noqa: B010
        keys = DatadogSettings("k1", "k2", "http://d")
        self._datadog = DatadogMetrics(keys, LIMITS, lambda: NOW)
        queries = StorageQueries("avg:free{*}", "broker_id", "max:size{*} by {topic,partition}", 60)
        self._datadog_storage = DatadogStorageMetrics(keys, queries, clock=lambda: NOW)
        for datadog in (self._datadog._reads, self._datadog_storage._client):
            setattr(datadog, "_pools", self._datadog_pools)  # noqa: B010
        self._clean = {kind: self._read(Attack(kind, "", b"", False, {})) for kind in KINDS}

    def make(self, choices: Choices) -> Attack:
        if choices.one_in(8):
            return Attack("headers", "", b"", False, _headers(choices), choices.of((200, 429)))
        kind = choices.of(("prometheus", "datadog", "prometheus", "datadog", "prometheus storage", "datadog storage"))
        query = choices.of(tuple(KINDS[kind]))
        answer = KINDS[kind][query]
        if choices.one_in(4):
            whole = [answer.wrap([answer.clean, answer.attacked])]
            return Attack(
                kind, query, hostile.json_text(whole, choices), False, {}, choices.of((200, 200, 200, 500, 429))
            )
        items = [answer.clean, hostile.mutated(answer.attacked, choices)]
        # Broken JSON around an item is an error of the whole answer.
        is_inside = not isinstance(items[1], hostile.Verbatim) and kind != "headers"
        body = hostile.encoded(answer.wrap(items))
        return Attack(kind, query, body, is_inside and hostile.is_json(body), {})

    def check(self, attack: Attack) -> None:
        if attack.kind == "headers":
            check_headers(attack)
            return
        found, clean = self._read(attack), self._clean[attack.kind]
        if isinstance(found, Loads) and isinstance(clean, Loads):
            check_loads(found)
            if attack.is_inside and attack.query in (
                "LeaderReplication",
                "transmit",
                "receive",
                "speed",
                "sent",
                "rcvd",
            ):
                require_same("the load of another broker", clean.brokers.get(CLEAN), found.brokers.get(CLEAN))
        elif isinstance(found, StorageMetrics) and isinstance(clean, StorageMetrics):
            check_storage(found)
            if attack.is_inside and attack.query != "kafka_broker_info":
                require_same("the storage of another broker", clean.storage_free[CLEAN], found.storage_free.get(CLEAN))
                require_same("the size of another log", clean.sizes["clean", 0], found.sizes.get(("clean", 0)))

    def _read(self, attack: Attack) -> Loads | StorageMetrics:
        pools = self._prometheus_pools if attack.kind.startswith("prometheus") else self._datadog_pools
        pools.attack, pools.answers = attack, KINDS[attack.kind]
        self._datadog._query_limit = self._datadog._tags_limit = RateLimit()  # a refusal would stop later inputs
        match attack.kind:
            case "prometheus":
                return self._prometheus.fetch_loads(TIMEOUT)
            case "datadog":
                return self._datadog.fetch_loads(TIMEOUT)
            case "prometheus storage":
                return self._prometheus_storage.fetch_storage_metrics(TIMEOUT)
        return self._datadog_storage.fetch_storage_metrics(TIMEOUT)

    def close(self) -> None:
        """End the threads of all sources."""
        for source in (self._prometheus, self._prometheus_storage, self._datadog, self._datadog_storage):
            source.close()


def _headers(choices: Choices) -> Mapping[str, str]:
    return {choices.of(HEADERS): choices.of(HEADER_TEXTS) for _ in range(1 + choices.below(3))}


def check_headers(attack: Attack) -> None:
    """The effects of headers on later requests end soon."""
    limit, clock = RateLimit(), ServerClock(lambda: NOW)
    limit.note(attack.status, attack.headers)
    try:
        limit.check()
    except Failure as failure:
        seconds = int(failure.reason.partition(" for ")[2].partition(" s")[0])
        require(seconds <= MOST_SILENCE, f"a header stops requests for more than {MOST_SILENCE} s")
        require(failure.reason.isprintable(), "a header forges lines of the log")
    clock.note(attack.headers)
    clock.corrected()
    require(abs(clock.offset) <= MOST_OFFSET, f"a header moves the clock by more than {MOST_OFFSET} s")


def check_storage(metrics: StorageMetrics) -> None:
    """Check that storage metrics are within their ranges and can be stored."""
    require_ids("the free storage", metrics.storage_free)
    require_ids("the log sizes", (partition for _, partition in metrics.sizes))
    require_bytes("free storage", metrics.storage_free.values())
    require_bytes("a log size", metrics.sizes.values())
    format_partition_sizes(metrics.sizes)
    format_storage_free(metrics.storage_free)
    "".join((*metrics.problems, *metrics.unanswered)).encode()
