"""A Datadog emulator: the HTTP routes that the production adapter calls, plus `validate`, with faults on request.

Its data are counters of real traffic, never the decisions of a planner. The type to know is `DatadogEmulator`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from autothrottle.core.texts import datadog_tag
from autothrottle_lab.emulators.http_server import EmulatorRoutes, EmulatorServer

API_KEY = "lab-api-key"
APP_KEY = "lab-app-key"

RETRY_AFTER_SECONDS = 1
"""Value of the Retry-After header of status 429."""


@dataclass(frozen=True, slots=True)
class Late:
    """A fault: the correct response is delayed by `seconds`, or until `heal`."""

    seconds: float


Fault = int | bytes | Late | Literal["hang", "garbage", "half", "dribble"]
"""A fault of a request.

- int: an HTTP status; bytes: another body with status 200; `Late`: a late response;
- hang: no response; garbage: a body that is not JSON; half: the connection ends within the body;
- dribble: an endless body, byte by byte.
"""

MIN_COVERED_SECONDS = 0.3
"""Buckets that cover less time are omitted: their mean would be noise."""

_AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {"avg": mean, "sum": sum, "min": min, "max": max}
"""Space aggregations of Datadog."""

_ROLLUP = re.compile(r"(?P<query>.*)\.rollup\(avg, (?P<seconds>[1-9]\d*)\)", re.DOTALL)
_KEEP_SECONDS = 900.0
_DRIBBLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Request:
    """One received request, without headers, because they contain the keys."""

    method: str
    target: str
    """Path and query as sent."""
    path: str
    query: Mapping[str, str]
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PostedEvent:
    """One posted event."""

    title: str
    text: str
    tags: tuple[str, ...]
    time: float
    """Arrival, in seconds since the epoch."""


class CumulativeCounters:
    """Two cumulative counters of one broker over time, in bytes."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._times: list[float] = []
        self._totals: list[tuple[float, float]] = []

    def add(self, at: float, tx_total_bytes: float, rx_total_bytes: float) -> None:
        """Add a sample, and drop samples older than `keep_seconds`."""
        index = bisect_right(self._times, at)
        self._times.insert(index, at)
        self._totals.insert(index, (tx_total_bytes, rx_total_bytes))
        # Delete in blocks, because each deletion shifts all other samples. Keep the last sample before the limit,
        # because the oldest mean starts there.
        old = bisect_left(self._times, self._times[-1] - self._keep_seconds) - 1
        if old > 64:
            del self._times[:old]
            del self._totals[:old]

    def mean(self, direction: int, start: float, end: float) -> float | None:
        """Return the mean rate between two times, bytes/s, over the part that samples cover.

        Return None if they cover less than `MIN_COVERED_SECONDS`.

        Args:
            direction: 0 for tx, 1 for rx.
            start: seconds since the epoch.
            end: seconds since the epoch.
        """
        if not self._times:
            return None
        start, end = max(start, self._times[0]), min(end, self._times[-1])
        if end - start < MIN_COVERED_SECONDS:
            return None
        return (self._total(direction, end) - self._total(direction, start)) / (end - start)

    def _total(self, direction: int, at: float) -> float:
        later = bisect_left(self._times, at)
        if self._times[later] == at:
            return self._totals[later][direction]
        earlier = later - 1
        t0, t1 = self._times[earlier], self._times[later]
        v0, v1 = self._totals[earlier][direction], self._totals[later][direction]
        return v0 + (v1 - v0) * (at - t0) / (t1 - t0)


@dataclass(slots=True)
class Host:
    """A host in Datadog, and the counters of its broker."""

    name: str
    broker_id: int
    tags: tuple[str, ...]
    has_tagged_series: bool
    counters: CumulativeCounters
    dropped: Collection[str] = ()
    """Settable: the directions, `tx` and `rx`, whose series are missing; the tags stay."""
    has_null_points: bool = False
    """Settable: whether all points of its series are null."""
    devices: Mapping[str, float] = field(default_factory=dict)
    """Settable: network device -> its share of the counters; empty: the series have no device."""


@dataclass(slots=True)
class _ActiveFault:
    fault: Fault
    times: int | None
    path: str


@dataclass(slots=True)
class _RateLimit:
    remaining: int
    reset_seconds: int
    path: str


class DatadogEmulator(EmulatorServer):
    """A server on a free port of 127.0.0.1 that responds like Datadog. It is thread-safe."""

    def __init__(self, api_key: str = API_KEY) -> None:
        self.api_key = api_key
        self.clock: Callable[[], float] = time.time
        """Clock of the server in its Date headers, seconds since the epoch."""
        self.tag_delay_seconds = 0.0
        """Delay of each request for tags."""
        self.events: list[PostedEvent] = []
        """Posted events, oldest first."""
        self.requests: deque[Request] = deque(maxlen=10_000)
        """The last 10,000 requests, oldest first."""
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._counters: dict[int, CumulativeCounters] = {}
        self._written_tags: dict[str, dict[str, tuple[str, ...]]] = {}
        self._faults: list[_ActiveFault] = []
        self._rate_limit: _RateLimit | None = None
        self._healed = threading.Event()
        super().__init__(_DatadogRoutes)

    def close(self) -> None:
        self.heal()
        super().close()

    def add_host(
        self,
        host: str,
        broker_id: int,
        instance_type: str | None = None,
        extra_tags: Sequence[str] = (),
        *,
        has_tagged_series: bool = True,
        is_tagged: bool = True,
    ) -> None:
        """Add a host, or replace its tags.

        Args:
            host: host name.
            broker_id: the broker whose counters it reports.
            instance_type: value of its instance type tag; None: it has no such tag.
            extra_tags: more tags, `name:value`.
            has_tagged_series: False: only a request for the host's tags returns them; its series do not carry them.
            is_tagged: False: it has no broker id tag.
        """
        tags = [f"broker_id:{broker_id}"] if is_tagged else []
        tags += [f"instance-type:{instance_type}"] if instance_type is not None else []
        with self._lock:
            counters = self._counters_of(broker_id)
            self._hosts[host] = Host(host, broker_id, (*tags, *extra_tags), has_tagged_series, counters)

    def record(self, broker_id: int, at: float, tx_total_bytes: float, rx_total_bytes: float) -> None:
        """Add a sample of a broker's counters, taken `at` seconds since the epoch."""
        with self._lock:
            self._counters_of(broker_id).add(at, tx_total_bytes, rx_total_bytes)

    def fail(self, fault: Fault, times: int | None = None, path: str = "") -> None:
        """Make the next `times` requests (None: all until `heal`) fail whose path starts with `path`."""
        with self._lock:
            self._healed.clear()
            self._faults.append(_ActiveFault(fault, times, path))

    def limit_rate(self, requests: int, reset_seconds: int, path: str) -> None:
        """Refuse requests whose path starts with `path` after this many of them, until `heal`.

        Args:
            requests: number of requests until then.
            reset_seconds: value of the header X-RateLimit-Reset.
            path: start of the path.
        """
        with self._lock:
            self._rate_limit = _RateLimit(requests, reset_seconds, path)

    def heal(self) -> None:
        """End every fault, including those in progress, and the rate limit."""
        with self._lock:
            self._faults.clear()
            self._rate_limit = None
            self._healed.set()

    def host_of(self, broker_id: int) -> Host:
        """Return the host of a broker; faults of its series are settable."""
        return next(host for host in self._hosts.values() if host.broker_id == broker_id)

    def _counters_of(self, broker_id: int) -> CumulativeCounters:
        return self._counters.setdefault(broker_id, CumulativeCounters(_KEEP_SECONDS))

    # Called by the request handler

    def take_fault(self, path: str) -> Fault | None:
        """Return the active fault for a request and count it; None: no fault."""
        with self._lock:
            for active in self._faults:
                if path.startswith(active.path):
                    if active.times is not None:
                        active.times -= 1
                        if active.times <= 0:
                            self._faults.remove(active)
                    return active.fault
        return None

    def take_request(self, path: str) -> tuple[bool, Mapping[str, str]]:
        """Count a request; return whether the rate limit allows it, and the headers of its response."""
        with self._lock:
            limit = self._rate_limit
            if limit is None or not path.startswith(limit.path):
                return True, {}
            is_allowed = limit.remaining > 0
            limit.remaining -= is_allowed
            fields = {"Remaining": limit.remaining, "Reset": limit.reset_seconds, "Name": "lab"}
            return is_allowed, {f"X-RateLimit-{name}": str(value) for name, value in fields.items()}

    def wait_for_heal(self, seconds: float | None = None) -> bool:
        """Wait for `heal`, at most `seconds`; return whether it happened."""
        return self._healed.wait(seconds)

    def tags_by_host(self, host: str, source: str = "") -> tuple[str, ...] | None:
        """Return the tags of a host; `source`: only those that were written with it; None: unknown host."""
        with self._lock:
            if host not in self._hosts:
                return None
            written = self._written_tags.get(host, {})
            if source:
                return written.get(source, ())
            return tuple(dict.fromkeys((*self._hosts[host].tags, *(tag for tags in written.values() for tag in tags))))

    def hosts_by_tag(self, source: str = "") -> dict[str, list[str]]:
        """Return tag -> the hosts that have it; `source`: only tags that were written with it."""
        hosts: dict[str, list[str]] = {}
        for host in list(self._hosts):
            for tag in self.tags_by_host(host, source) or ():
                hosts.setdefault(tag, []).append(host)
        return hosts

    def write_tags(self, host: str, source: str, tags: Sequence[str]) -> tuple[str, ...] | None:
        """Replace the tags of a source, as Datadog does: with its names; None: unknown host."""
        with self._lock:
            if host not in self._hosts:
                return None
            stored = tuple(datadog_tag(str(tag)) for tag in tags)
            self._written_tags.setdefault(host, {})[source] = stored
            return stored

    def series(self, query: str, rollup_seconds: int, start: float, end: float) -> list[dict[str, Any]]:
        """Return the series of a query in Datadog's format: one per host that has a point."""
        direction = "tx" if "bytes_sent" in query else "rx"
        with self._lock:
            return [
                series
                for host in self._hosts.values()
                if direction not in host.dropped
                for series in _series_of(host, direction, query, rollup_seconds, start, end)
            ]

    def take_event(self, body: Mapping[str, Any]) -> PostedEvent:
        """Store a posted event.

        Raises:
            KeyError, TypeError: the body is not an event.
        """
        event = PostedEvent(str(body["title"]), str(body["text"]), tuple(body.get("tags", ())), time.time())
        with self._lock:
            self.events.append(event)
        return event


class _DatadogRoutes(EmulatorRoutes):
    protocol_version = "HTTP/1.1"
    # Headers and body are sent as two packets; without this the second waits for the client's acknowledgement.
    disable_nagle_algorithm = True
    server: DatadogEmulator
    _limit_headers: Mapping[str, str] = {}

    def do_GET(self) -> None:
        emulator, body = self.server, self.body()
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        emulator.requests.append(Request(self.command, self.path, parts.path, query, time.time()))
        fault = emulator.take_fault(parts.path)
        if isinstance(fault, Late):
            emulator.wait_for_heal(fault.seconds)
            fault = None
        is_allowed, self._limit_headers = emulator.take_request(parts.path)
        if fault is not None:
            self._send_fault(fault)
        elif not is_allowed:
            self._answer(429, {"errors": ["Rate limit of requests reached"]})
        elif (refusal := self._refusal(parts.path, query)) is not None:
            self._answer(refusal[0], {"errors": [refusal[1]]})
        else:
            self._answer(*self._route(parts.path, query, body))

    do_POST = do_PUT = do_GET

    def _refusal(self, path: str, query: Mapping[str, str]) -> tuple[int, str] | None:
        emulator = self.server
        if {"api_key", "application_key"} & query.keys():
            return 400, "Bad Request: send the keys in headers, not in the URL"
        needed = {"DD-API-KEY": emulator.api_key}
        if path not in ("/api/v1/validate", "/api/v1/events"):
            needed["DD-APPLICATION-KEY"] = APP_KEY
        if any(self.headers.get(name) is None for name in needed):
            return 401, "Unauthorized"
        if any(self.headers[name] != key for name, key in needed.items()):
            return 403, "Forbidden"
        return None

    def _route(self, path: str, query: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        route = (self.command, path)
        if route == ("GET", "/api/v1/validate"):
            return 200, {"valid": True}
        if route == ("GET", "/api/v1/query"):
            return self._query(query)
        if route == ("GET", "/api/v1/tags/hosts"):
            return 200, {"tags": self.server.hosts_by_tag(query.get("source", ""))}
        if path.startswith("/api/v1/tags/hosts/"):
            host = unquote(path.removeprefix("/api/v1/tags/hosts/"))
            if self.command == "PUT":
                return self._put_tags(host, query.get("source", "users"), body)
            if self.command == "GET":
                return self._tags(host)
        if route == ("POST", "/api/v1/events"):
            return self._event(body)
        return 404, {"errors": ["Not found"]}

    def _query(self, query: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        rollup = _ROLLUP.fullmatch(query.get("query", ""))
        try:
            start, end = int(query["from"]), int(query["to"])
        except (KeyError, ValueError):
            rollup = None
        if rollup is None:
            return 400, {"errors": ["Invalid query: it needs from, to and query=<query>.rollup(avg, <seconds>)"]}
        series = self.server.series(rollup["query"], int(rollup["seconds"]), start, end)
        return 200, {
            "status": "ok",
            "res_type": "time_series",
            "resp_version": 1,
            "query": query["query"],
            "from_date": start * 1000,
            "to_date": end * 1000,
            "series": series,
            "values": [],
            "times": [],
            "message": "",
            "group_by": _groups(rollup["query"]),
        }

    def _tags(self, host: str) -> tuple[int, dict[str, Any]]:
        emulator = self.server
        time.sleep(emulator.tag_delay_seconds)
        tags = emulator.tags_by_host(host)
        if tags is None:
            return 404, {"errors": [f"Could not find {host}"]}
        return 200, {"host": host, "tags": list(tags)}

    def _put_tags(self, host: str, source: str, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            tags = json.loads(body)["tags"]
        except (KeyError, TypeError, ValueError):
            return 400, {"errors": ["The parameter 'tags' is required"]}
        stored = self.server.write_tags(host, source, tags)
        if stored is None:
            return 404, {"errors": [f"Could not find {host}"]}
        return 201, {"host": host, "tags": list(stored)}

    def _event(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            event = self.server.take_event(json.loads(body))
        except (KeyError, TypeError, ValueError):
            return 400, {"errors": ["The parameters 'title' and 'text' are required"]}
        stored = {"title": event.title, "text": event.text, "tags": list(event.tags)}
        return 202, {"status": "ok", "event": {"id": len(self.server.events), **stored}}

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.server.clock() if timestamp is None else timestamp)

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, body: bytes, length: int | None = None) -> None:
        headers = {**self._limit_headers}
        if length is not None:
            headers["Content-Length"] = str(length)
        if status == 429:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        if 300 <= status < 400:
            headers["Location"] = f"{self.server.url}/elsewhere"
        self.send(status, body, headers)

    def _send_fault(self, fault: int | bytes | str) -> None:
        if isinstance(fault, int):
            self._answer(fault, {"errors": [f"Fault {fault}"]})
        elif isinstance(fault, bytes):
            self._send(200, fault)
        elif fault == "garbage":
            self._send(200, b"<html>\xff\xfe no JSON")
        else:
            self.close_connection = True
            if fault == "hang":
                self.server.wait_for_heal()
            elif fault == "half":
                self._send(200, b'{"status": "ok", "series": [', length=1_000)
            else:
                self._dribble()

    def _dribble(self) -> None:
        self._send(200, b"", length=1_000_000)
        while not self.server.wait_for_heal(_DRIBBLE_SECONDS):
            self.wfile.write(b" ")


def _series_of(
    host: Host, direction: str, query: str, rollup_seconds: int, start: float, end: float
) -> list[dict[str, Any]]:
    """Return the series of a host in Datadog's format, with a point for each bucket that has data.

    There is one for each combination of the values that the host has of the tags that the query groups by. The network
    devices of a group become one series by the aggregation at the start of the query.

    Args:
        host: the host.
        direction: tx or rx.
        query: the query without its rollup.
        rollup_seconds: length of a bucket.
        start: seconds since the epoch.
        end: seconds since the epoch.
    """
    points: list[list[float | None]] = []
    bucket = start // rollup_seconds * rollup_seconds
    while bucket < end:
        covered = max(bucket, start), min(bucket + rollup_seconds, end)
        rate = host.counters.mean(("tx", "rx").index(direction), *covered)
        if rate is not None:
            points.append([bucket * 1000.0, None if host.has_null_points else rate])
        bucket += rollup_seconds
    metric = "system.net.bytes_sent" if direction == "tx" else "system.net.bytes_rcvd"
    aggregation = next((name for name in _AGGREGATIONS if query.strip().startswith(f"{name}:")), "avg")

    def share(group: Collection[str]) -> float:
        chosen = [part for device, part in host.devices.items() if f"device:{device}" in group]
        return _AGGREGATIONS[aggregation](chosen or [*host.devices.values()] or [1.0])

    return [
        {
            "aggr": aggregation,
            "display_name": metric,
            "end": int(end * 1000) - 1,
            "expression": f"{query}.rollup(avg, {rollup_seconds})",
            "interval": rollup_seconds,
            "length": len(points),
            "metric": metric,
            "pointlist": [[at, None if rate is None else rate * share(group)] for at, rate in points],
            "query_index": 0,
            "scope": ",".join([*group, *_filters(query)]),
            "start": int(start * 1000),
            "tag_set": [*group],
            "unit": [{"family": "bytes", "id": 2, "name": "byte", "plural": "bytes", "scale_factor": 1.0}, None],
        }
        for group in product(*(_tags_named(name, host) for name in _groups(query)))
        if points
    ]


def _groups(query: str) -> list[str]:
    """Return the names of the tags that a query groups by."""
    match = re.search(r"\bby\s*\{([^}]*)\}", query)
    return [name.strip() for name in match.group(1).split(",")] if match else []


def _tags_named(name: str, host: Host) -> list[str]:
    if name == "host":
        return [f"host:{host.name}"]
    if name == "device" and host.devices:
        return [f"device:{device}" for device in host.devices]
    tags = [tag for tag in host.tags if tag.startswith(f"{name}:")] if host.has_tagged_series else []
    return tags or [f"{name}:N/A"]


def _filters(query: str) -> list[str]:
    match = re.search(r"\{([^}]*)\}", query)
    parts = match.group(1).split(",") if match else []
    return [part.strip() for part in parts if part.strip() not in ("", "*")]
