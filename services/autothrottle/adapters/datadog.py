"""Datadog as the source of loads and the sink of events, through its official client.

What is asked, and how an answer is read:

- Two queries per reading, `<query>.rollup(avg, <window seconds>)` from now - window to now, at the same time.
  Values are bytes/s. A series belongs to the host in its scope.
- `newest_point` says which point of a series counts and which interval it covers.
- A host's tags give its broker id, instance type and capacity: one list call for all hosts, then one call for
  each host that the list lacks. What has a broker id is remembered for
  `tag_ttl`; what has none is asked again.
- Data of one broker that cannot be used is that broker's problem; the others are returned.

No call outlives its deadline, not even one to a server that sends a byte now and then: each exchange runs in
a thread of a pool, and its socket is shut when its time is over. Nothing is retried, no redirect is followed.
Keys travel in headers only, and no text that leaves this module holds one.

The type to know is `DatadogMetrics`.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlsplit

import urllib3
from datadog_api_client import ApiClient, Configuration
from datadog_api_client.exceptions import ApiException, OpenApiException
from datadog_api_client.rest import RESTClientObject
from datadog_api_client.v1.api.authentication_api import AuthenticationApi
from datadog_api_client.v1.api.events_api import EventsApi
from datadog_api_client.v1.api.metrics_api import MetricsApi
from datadog_api_client.v1.api.tags_api import TagsApi
from datadog_api_client.v1.model.event_create_request import EventCreateRequest
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Retry
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse

from autothrottle.core.capacity import CapacityLimits, capacity_of, parse_capacity
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.core.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.topology import parse_broker_id
from autothrottle.ports.metrics import Event

EVENT_TITLE_PREFIX = "[kafka-autothrottle] "
EVENT_TAGS = ("name:kafka-autothrottle", "name:autothrottle")
MAX_EVENT_TEXT = 4_000
"""Datadog refuses a longer text, in characters."""

_CONCURRENT_READS = 16
_CONCURRENT_POSTS = 2
_TIME_FOR_CALLS = 0.95
"""Share of a time-out that calls may use; the rest is for reading what they brought."""
_WIRE_SECOND = 1.0
"""Begin and end of a query are whole seconds: a bucket is complete to within one."""
_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class DatadogSettings:
    """Where Datadog is and what to ask it; its text form never shows a key."""

    api_key: str = field(repr=False)
    app_key: str = field(repr=False)
    url: str | None = None
    """Another server, `https://host[:port][/path]`; None: Datadog's own."""
    net_tx_query: str = "avg:system.net.bytes_sent{service:kafka} by {host}"
    """Bytes/s sent, by host."""
    net_rx_query: str = "avg:system.net.bytes_rcvd{service:kafka} by {host}"
    """Bytes/s received, by host."""
    broker_id_tag: str = "broker_id"
    instance_type_tag: str = "instance-type"
    capacity_tag: str | None = None
    """Host tag that holds MB/s; None: no such tag."""
    metrics_window: timedelta = timedelta(seconds=120)
    """Span of a query, and its rollup: whole seconds, >= 1."""
    event_tags: tuple[str, ...] = ()
    """Go with every event, beside `EVENT_TAGS`."""
    tag_ttl: timedelta = timedelta(hours=1)
    """How long a host's tags are remembered, > 0."""

    def __post_init__(self) -> None:
        problems = [*_key_problems(self), *_query_problems(self), *_url_problems(self.url)]
        seconds = self.metrics_window.total_seconds()
        if seconds < 1 or seconds % 1:
            problems.append(f"metrics-window is {seconds:g} s; give whole seconds >= 1")
        if self.tag_ttl <= timedelta(0):
            problems.append(f"tag-ttl is {self.tag_ttl.total_seconds():g} s; give a time > 0")
        if problems:
            raise Invalid("; ".join(problems))

    @property
    def window_seconds(self) -> int:
        """The span of a query in seconds."""
        return int(self.metrics_window.total_seconds())


def _key_problems(settings: DatadogSettings) -> Iterable[str]:
    # http.client would name the whole key in its own message.
    for name, key in (("api-key", settings.api_key), ("app-key", settings.app_key)):
        if not all("!" <= character <= "~" for character in key):
            yield f"{name} holds characters that no header can carry (a line end?); give the key alone"


def _query_problems(settings: DatadogSettings) -> Iterable[str]:
    for name, query in (("net-tx-query", settings.net_tx_query), ("net-rx-query", settings.net_rx_query)):
        if not query.strip():
            yield f'{name} is {query!r}; give a Datadog query that groups by host, ending in "by {{host}}"'


def _url_problems(url: str | None) -> Iterable[str]:
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    # The rest is not shown: what is misplaced in a URL may well be a key.
    shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0]
    if not is_server:
        yield f"datadog-url is {shown!r}; give https://host[:port]"
    elif shown != url:
        yield f"datadog-url of {shown!r} holds more than a server and a path; give https://host[:port]"


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series and the interval, in seconds since the epoch, that it is the mean of."""

    value: float
    start: float
    end: float


def newest_point(
    points: Iterable[tuple[float, float | None]], interval: float | None, start: float, end: float
) -> Point | None:
    """Return the newest complete point of a series, else the best partial one; None when all are null.

    A point is the mean over its bucket: from its time stamp on, `interval` long. Buckets are aligned to
    multiples of their length, not to the query, so that a query as long as its rollup meets two buckets and
    sees a part of each; a point covers that part of its bucket which lies within the query. Of the points
    that are not null:

    1. the newest that covers its bucket (to within a second, which is what the wire can say);
    2. else two that adjoin and together cover a bucket's length, as one, each by the part that it covers: the
       mean of the window until now, where "always the first" may be a window old, and "always the last" the
       mean of a moment;
    3. else the newest that covers at least half of its bucket;
    4. else the newest that covers anything;
    5. else one that is stamped by the end of the query: a server that stamps ends instead of starts.

    What lies before the query is stale and does not count.

    Args:
        points: (seconds since the epoch, value), in any order.
        interval: length of a bucket in seconds; never more than the spacing of the points; None: that
            spacing, else the length of the query.
        start: begin of the query, seconds since the epoch.
        end: end of the query, seconds since the epoch.
    """
    series = sorted(points, key=lambda point: point[0], reverse=True)
    length = _bucket_length([stamp for stamp, _ in series], interval, end - start)
    newest_first = [(stamp, value) for stamp, value in series if value is not None]
    seen = [Point(value, max(stamp, start), min(stamp + length, end)) for stamp, value in newest_first]
    covering = [point for point in seen if point.end > point.start]
    joined = [_joined(older, newer) for newer, older in pairwise(covering) if newer.start <= older.end]
    tries = (
        (covering, length - _WIRE_SECOND),
        (joined, length - _WIRE_SECOND),
        (covering, length / 2),
        (covering, 0.0),
    )
    for candidates, enough in tries:
        for point in candidates:
            if point.end - point.start >= enough:
                return point
    stamped_by_end = [value for stamp, value in newest_first if end <= stamp < end + length]
    return Point(stamped_by_end[0], max(end - length, start), end) if stamped_by_end else None


def _joined(older: Point, newer: Point) -> Point:
    lengths = older.end - older.start, newer.end - newer.start
    value = (older.value * lengths[0] + newer.value * lengths[1]) / sum(lengths)
    return Point(value, older.start, newer.end)


def _bucket_length(stamps_newest_first: Sequence[float], interval: float | None, window: float) -> float:
    pairs = pairwise(stamps_newest_first)
    lengths = [newer - older for newer, older in pairs if newer > older]
    if interval is not None and interval > 0:
        lengths.append(interval)
    return min(lengths, default=window)


class DatadogMetrics:
    """Datadog, as LoadSource and EventSink; a context manager that ends its threads."""

    def __init__(
        self,
        settings: DatadogSettings,
        capacity_limits: CapacityLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._limits = capacity_limits
        self._clock = clock
        self._client = _Client(_configuration(settings))
        self._reads = _Exchanges(_CONCURRENT_READS, "datadog-read")
        self._posts = _Exchanges(_CONCURRENT_POSTS, "datadog-post")
        self._tags = _TagCache(settings)

    def __enter__(self) -> DatadogMetrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End every call in hand and every thread."""
        self._reads.close()
        self._posts.close()
        self._client.close()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        deadline = _deadline(timeout)
        end = int(self._clock())
        window = _Window(end - self._settings.window_seconds, end)
        try:
            tx, rx = self._fetch_series(window, deadline)
            hosts = {*tx.by_host, *rx.by_host}
            unreadable = self._fetch_missing_tags(hosts, deadline)
        finally:
            self._client.drop_idle_connections()
        tags = {host: self._tags.of(host) for host in hosts}
        return _Reading(self._settings, self._limits, window, tx, rx, tags, unreadable).loads()

    def post_event(self, event: Event, timeout: timedelta) -> None:
        tags = list(dict.fromkeys([*EVENT_TAGS, *self._settings.event_tags, *event.tags]))
        text = event.text if len(event.text) <= MAX_EVENT_TEXT else event.text[: MAX_EVENT_TEXT - 4] + " ..."
        body = EventCreateRequest(title=EVENT_TITLE_PREFIX + event.title, text=text, tags=tags)
        call = _Call("event", lambda: EventsApi(self._client).create_event(body=body))
        self._post(call, timeout)

    def validate_keys(self, timeout: timedelta) -> None:
        """Ask Datadog whether it knows the API key.

        Raises:
            Invalid: when it refuses the key.
            Unavailable: when it does not answer within `timeout`.
        """
        self._post(_Call("key check", lambda: AuthenticationApi(self._client).validate()), timeout)

    def _post(self, call: _Call, timeout: timedelta) -> None:
        try:
            answers = self._posts.run([call], _deadline(timeout), stop_at_failure=True)
        finally:
            self._client.drop_idle_connections()
        self._raise_failure([call], answers)

    def _fetch_series(self, window: _Window, deadline: float) -> tuple[_Series, _Series]:
        """Fetch both queries, and the tags of all hosts when they are due, at the same time."""
        queries = {"net-tx-query": self._settings.net_tx_query, "net-rx-query": self._settings.net_rx_query}
        calls = [self._query(name, query, window) for name, query in queries.items()]
        if self._tags.is_due():
            calls.append(_Call("host tags", lambda: TagsApi(self._client).list_host_tags()))
        answers = self._reads.run(calls, deadline, stop_at_failure=True)
        self._raise_failure(calls, answers)
        try:
            if len(answers) > len(queries):
                self._tags.replace(_tags_by_host(answers[2]))
            tx, rx = (_Series.of(name, answer) for name, answer in zip(queries, answers[:2], strict=True))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            # The kind only: the text could quote whatever was sent.
            kind = type(error).__name__
            raise Unavailable(f"Datadog answers in a form that is not its own ({kind})") from None
        return tx, rx

    def _query(self, name: str, query: str, window: _Window) -> _Call:
        rolled_up = f"{query}.rollup(avg, {self._settings.window_seconds})"
        metrics = MetricsApi(self._client)
        return _Call(name, lambda: metrics.query_metrics(_from=window.start, to=window.end, query=rolled_up))

    def _fetch_missing_tags(self, hosts: set[str], deadline: float) -> dict[str, str]:
        """Look up the hosts whose broker id is unknown; return host -> why it could not be read."""
        missing = sorted(host for host in hosts if not self._tags.of(host).broker_ids)
        calls = [self._host_tags(host) for host in missing]
        unreadable: dict[str, str] = {}
        for host, answer in zip(missing, self._reads.run(calls, deadline, stop_at_failure=False), strict=True):
            if isinstance(answer, _Failure):
                if answer.status != 404:
                    unreadable[host] = self._without_keys(answer.reason)
                continue
            found = answer.get("tags") if isinstance(answer, dict) else None
            if isinstance(found, list):
                self._tags.put(host, [str(tag) for tag in found])
            else:
                unreadable[host] = "it answers in a form that is not its own"
        return unreadable

    def _host_tags(self, host: str) -> _Call:
        return _Call(host, lambda: TagsApi(self._client).get_host_tags(host_name=host))

    def _raise_failure(self, calls: Sequence[_Call], answers: Sequence[object]) -> None:
        failures = [(call, a) for call, a in zip(calls, answers, strict=True) if isinstance(a, _Failure)]
        if failures:
            # One that failed by itself is the cause; the others were cut because of it.
            raise self._error(*min(failures, key=lambda failed: isinstance(failed[1], _Late)))

    def _error(self, call: _Call, failure: _Failure) -> Invalid | Unavailable:
        reason = self._without_keys(failure.reason)
        if failure.status in (401, 403):
            reason += "; check api-key and app-key, and that they may read metrics and host tags"
        if call.name == "key check" and failure.status in (401, 403):
            return Invalid(f"Datadog ({call.name}) {reason}")
        return Unavailable(f"Datadog ({call.name}) {reason}")

    def _without_keys(self, text: str) -> str:
        # A server may quote the headers it got.
        for key in (self._settings.api_key, self._settings.app_key):
            text = text.replace(key, "***") if key else text
        return text[:_MAX_REASON]


def _deadline(timeout: timedelta) -> float:
    return time.monotonic() + timeout.total_seconds() * _TIME_FOR_CALLS


# --- What an answer means


@dataclass(frozen=True, slots=True)
class _Window:
    """The span of a query, seconds since the epoch."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _HostSeries:
    points: tuple[tuple[float, float | None], ...]
    interval: float | None


@dataclass(frozen=True, slots=True)
class _Series:
    """The answer to one query."""

    query_name: str
    by_host: Mapping[str, Sequence[_HostSeries]]
    without_host: tuple[str, ...]
    """Scopes of series that name no host."""

    @classmethod
    def of(cls, query_name: str, answer: Any) -> _Series:
        """Read an answer; raises TypeError, ValueError and the like when it has another form."""
        if answer.get("status", "ok") != "ok":
            raise Unavailable(f"Datadog ({query_name}) answers status {str(answer['status'])[:20]!r}")
        by_host: dict[str, list[_HostSeries]] = {}
        without_host = []
        for series in answer["series"] or ():
            scope = str(series.get("scope", ""))
            host = _host_of(scope)
            if host is None:
                without_host.append(scope)
            else:
                points = tuple((stamp / 1000, _number(value)) for stamp, value in series["pointlist"] or ())
                by_host.setdefault(host, []).append(_HostSeries(points, _number(series.get("interval"))))
        return cls(query_name, by_host, tuple(without_host))

    def utilization(self, broker_id: int, host: str, window: _Window) -> Utilization:
        """Return what the host's one series says; raises Missing or Invalid when it says nothing usable."""
        who = f"broker {broker_id} (host {host})"
        found = self.by_host.get(host, ())
        if not found:
            raise Missing(f"{who} has no series in --{self.query_name}: check its Datadog agent and the query")
        if len(found) > 1:
            raise Invalid(f"{who} has {len(found)} series in --{self.query_name}: group it by {{host}} alone")
        point = newest_point(found[0].points, found[0].interval, window.start, window.end)
        if point is None:
            seconds = window.end - window.start
            raise Missing(
                f"{who} has no point but null in --{self.query_name} over the last {seconds} s: "
                "check its Datadog agent, or use a longer --metrics-window"
            )
        if not (0 <= point.value < 2**63):
            raise Invalid(f"{who} has {point.value} bytes/s in --{self.query_name}; a rate is >= 0: check the query")
        return Utilization(round(point.value), _utc(point.start), _utc(point.end))


def _host_of(scope: str) -> str | None:
    for tag in scope.split(","):
        name, _, value = tag.strip().partition(":")
        if name == "host" and value:
            return value.lower()
    return None


def _number(value: object) -> float | None:
    """Return a number as it is and what is none as NaN, so that only the broker concerned is refused."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan  # type: ignore[arg-type]


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _tags_by_host(answer: Any) -> dict[str, list[str]]:
    by_host: dict[str, list[str]] = {}
    for tag, hosts in (answer["tags"] or {}).items():
        for host in hosts:
            by_host.setdefault(host, []).append(tag)
    return by_host


@dataclass(frozen=True, slots=True)
class _HostTags:
    """The tags of a host that say something to us; sources may disagree, so each has several values."""

    broker_ids: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    capacities: tuple[str, ...] = ()


class _TagCache:
    """What hosts with a broker id are tagged with, none of it older than the time to live.

    Each list of all hosts replaces everything, what was looked up since the last one as well; hosts without a
    broker id are not remembered, since the tag may come with the next reading.
    """

    def __init__(self, settings: DatadogSettings) -> None:
        self._names = (settings.broker_id_tag, settings.instance_type_tag, settings.capacity_tag)
        self._ttl_seconds = settings.tag_ttl.total_seconds()
        self._lock = threading.Lock()
        self._expiry = -math.inf
        self._hosts: dict[str, _HostTags] = {}

    def is_due(self) -> bool:
        with self._lock:
            return time.monotonic() >= self._expiry

    def replace(self, tags_by_host: Mapping[str, Sequence[str]]) -> None:
        expiry = time.monotonic() + self._ttl_seconds
        parsed = {host.lower(): self._parse(tags) for host, tags in tags_by_host.items()}
        with self._lock:
            self._expiry = expiry
            self._hosts = {host: tags for host, tags in parsed.items() if tags.broker_ids}

    def put(self, host: str, tags: Sequence[str]) -> None:
        parsed = self._parse(tags)
        if parsed.broker_ids:
            with self._lock:
                self._hosts[host] = parsed

    def of(self, host: str) -> _HostTags:
        with self._lock:
            return self._hosts.get(host, _HostTags())

    def _parse(self, tags: Sequence[str]) -> _HostTags:
        values: dict[str, set[str]] = {}
        for tag in tags:
            name, _, value = tag.partition(":")
            values.setdefault(name.lower(), set()).add(value)
        wanted = (sorted(values.get(name.lower(), ())) if name else () for name in self._names)
        broker_ids, instance_types, capacities = map(tuple, wanted)
        return _HostTags(broker_ids, instance_types, capacities)


class _Reading:
    """Everything that one reading brought, to be put together broker by broker."""

    def __init__(
        self,
        settings: DatadogSettings,
        limits: CapacityLimits,
        window: _Window,
        tx: _Series,
        rx: _Series,
        tags: Mapping[str, _HostTags],
        unreadable: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._window = window
        self._tx = tx
        self._rx = rx
        self._unreadable = unreadable
        self._tags = tags

    def loads(self) -> Loads:
        hosts, warnings = self._hosts_by_broker()
        brokers: dict[int, BrokerLoad] = {}
        problems: dict[int, str] = {}
        for broker_id, of_broker in sorted(hosts.items()):
            try:
                brokers[broker_id] = self._load(broker_id, of_broker)
            except (Invalid, Missing) as error:
                problems[broker_id] = str(error)
        return Loads(brokers, problems, tuple(warnings))

    def _hosts_by_broker(self) -> tuple[dict[int, list[str]], list[str]]:
        hosts: dict[int, list[str]] = {}
        warnings = [
            f"a series of --{series.query_name} has no host in its scope {scope!r}: group it by {{host}}"
            for series in (self._tx, self._rx)
            for scope in series.without_host
        ]
        for host in sorted(self._tags):
            broker_ids = self._tags[host].broker_ids
            if not broker_ids:
                warnings.append(self._no_broker_id(host))
            for text in broker_ids:
                try:
                    hosts.setdefault(parse_broker_id(text), []).append(host)
                except Invalid:
                    warnings.append(
                        f"host {host} has the tag {self._settings.broker_id_tag}:{text}; "
                        "the id of a broker is an integer > 0"
                    )
        return hosts, warnings

    def _no_broker_id(self, host: str) -> str:
        reason = self._unreadable.get(host)
        if reason is not None:
            return f"the tags of host {host} cannot be read: Datadog {reason}"
        return (
            f"host {host} has no tag {self._settings.broker_id_tag}: "
            "add it, or leave the host out of --net-tx-query and --net-rx-query"
        )

    def _load(self, broker_id: int, hosts: Sequence[str]) -> BrokerLoad:
        tag = self._settings.broker_id_tag
        if len(hosts) > 1:
            raise Invalid(f"hosts {', '.join(hosts)} all have the tag {tag}:{broker_id}: keep it on one")
        (host,) = hosts
        tags = self._tags[host]
        _only(tags.broker_ids, broker_id, host, tag)
        tx = self._tx.utilization(broker_id, host, self._window)
        rx = self._rx.utilization(broker_id, host, self._window)
        return BrokerLoad(broker_id, self._capacity(broker_id, host, tags), tx, rx)

    def _capacity(self, broker_id: int, host: str, tags: _HostTags) -> Capacity:
        own = self._limits.by_broker.get(broker_id)
        if own is not None:  # then tags may be as wrong as they like
            return own
        tagged = None
        if self._settings.capacity_tag is not None:
            text = _only(tags.capacities, broker_id, host, self._settings.capacity_tag)
            name = f"broker {broker_id}: the tag {self._settings.capacity_tag} of host {host}"
            tagged = None if text is None else parse_capacity(text, name)
        if tagged is not None:
            return tagged
        instance_type = _only(tags.instance_types, broker_id, host, self._settings.instance_type_tag)
        return capacity_of(broker_id, instance_type, tagged, self._limits)


def _only(values: Sequence[str], broker_id: int, host: str, tag: str) -> str | None:
    """Return the one value of a tag, None without one; raises Invalid when sources disagree."""
    if len(values) > 1:
        shown = ", ".join(values)
        raise Invalid(f"broker {broker_id}: host {host} has {len(values)} tags {tag} ({shown}): keep one")
    return values[0] if values else None


# --- Calls that keep their deadline


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    """What is asked, for messages."""
    send: Callable[[], object]
    """Calls the client, which returns an unread response (`preload_content` is off)."""


class _Failure(Exception):
    """A call that brought no answer."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        """Continues the sentence "Datadog ..."."""
        self.status = status
        """Of HTTP; None when there was no answer."""


class _Late(_Failure):
    """A call that had brought no answer when the waiting ended."""

    def __init__(self) -> None:
        super().__init__("does not answer in time")


class _Exchange:
    """One call in hand; its socket can be shut from outside, which ends any wait for the server."""

    _of_thread = threading.local()

    def __init__(self, call: _Call, deadline: float) -> None:
        self._call = call
        self._deadline = deadline
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    @classmethod
    def current(cls) -> _Exchange | None:
        return getattr(cls._of_thread, "exchange", None)

    def seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def run(self) -> object:
        if self._is_cut or time.monotonic() >= self._deadline:
            raise _Late
        self._of_thread.exchange = self
        try:
            response = cast(BaseHTTPResponse, self._call.send())
            return json.loads(response.data)
        except (OpenApiException, HTTPError, OSError, ValueError, RecursionError) as error:
            raise _failure_of(error) from None
        finally:
            self._of_thread.exchange = None
            with self._lock:
                self._socket = None

    def hold(self, connection: socket.socket | None) -> None:
        with self._lock:
            self._socket = connection
            if self._is_cut:
                self._shut()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            # Of the plain socket: the TLS one would take its state away from the thread that reads. It may be
            # closed already, which is what we want.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _failure_of(error: Exception) -> _Failure:
    if isinstance(error, ApiException) and error.status:
        return _Failure(f"answers {error.status}{_server_message(error.body)}", error.status)
    if isinstance(error, ApiException):
        return _Failure(f"cannot be trusted: {str(error.reason).splitlines()[-1]}")
    if isinstance(error, OpenApiException):
        return _Failure(f"cannot be asked: {error}; set api-key and app-key")
    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError):
        return _Late()  # the socket's time-out was a moment ahead of ours
    if isinstance(error, HTTPError | OSError):
        return _Failure(f"does not answer ({type(error).__name__})")
    return _Failure("answers something that is no JSON")


def _server_message(body: object) -> str:
    errors = body.get("errors") if isinstance(body, dict) else None
    return f": {errors[0]}" if isinstance(errors, list) and errors else ""


class _Exchanges:
    """Calls that run at the same time, in threads, each until a deadline."""

    def __init__(self, width: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(width, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._in_hand: set[_Exchange] = set()
        self._is_closed = False

    def run(self, calls: Sequence[_Call], deadline: float, *, stop_at_failure: bool) -> list[object | _Failure]:
        """Return what each call brought, in order; `stop_at_failure` cuts the rest at the first failure."""
        exchanges = [_Exchange(call, deadline) for call in calls]
        futures = self._start(exchanges)
        until = FIRST_EXCEPTION if stop_at_failure else ALL_COMPLETED
        wait(futures, max(deadline - time.monotonic(), 0), until)
        answers = [_answer(future) for future in futures]
        for exchange in exchanges:
            exchange.cut()
        with self._lock:
            self._in_hand.difference_update(exchanges)
        return answers

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            in_hand = list(self._in_hand)
        for exchange in in_hand:
            exchange.cut()
        self._threads.shutdown(wait=True)

    def _start(self, exchanges: Sequence[_Exchange]) -> list[Future[object]]:
        with self._lock:
            if self._is_closed:
                raise Unavailable("this client of Datadog is closed; make a new one")
            self._in_hand.update(exchanges)
            return [self._threads.submit(exchange.run) for exchange in exchanges]


def _answer(future: Future[object]) -> object | _Failure:
    if not future.done():
        return _Late()
    error = future.exception()
    return error if isinstance(error, _Failure) else future.result()


# --- The official client, made to keep deadlines


def _configuration(settings: DatadogSettings) -> Configuration:
    configuration = Configuration(
        host=None if settings.url is None else settings.url.rstrip("/"),
        preload_content=False,  # we read answers ourselves, so that one odd series does not spoil the others
        retry_policy=Retry(total=False),  # no retry and no redirect, which would carry the keys elsewhere
    )
    # Set here, since the client fills what is empty from DD_API_KEY, DD_APP_KEY and DD_SITE.
    configuration.api_key = {"apiKeyAuth": settings.api_key, "appKeyAuth": settings.app_key}
    configuration.server_variables = {}
    return configuration


class _Client(ApiClient):
    """The official client, whose calls end when their exchange ends."""

    def _build_rest_client(self) -> _Rest:
        return _Rest(self.configuration, maxsize=_CONCURRENT_READS + _CONCURRENT_POSTS)

    def drop_idle_connections(self) -> None:
        """Forget connections that wait for a next call; until then a firewall would have forgotten them."""
        self.rest_client.pool_manager.clear()


class _Rest(RESTClientObject):
    """The client's own HTTP, with the time-out of each call instead of one for all."""

    def __init__(self, configuration: Configuration, maxsize: int) -> None:
        super().__init__(configuration, maxsize=maxsize)  # type: ignore[no-untyped-call]
        self.pool_manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def request(self, *arguments: Any, **keywords: Any) -> Any:
        exchange = _Exchange.current()
        if exchange is not None:
            keywords["request_timeout"] = exchange.seconds_left()
        return super().request(*arguments, **keywords)  # type: ignore[no-untyped-call]


def _hold(connection: HTTPConnection) -> None:
    exchange = _Exchange.current()
    if exchange is not None:
        exchange.hold(connection.sock)


class _HttpConnection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        _hold(self)
        return super().getresponse()


class _HttpsConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        _hold(self)
        return super().getresponse()


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection
