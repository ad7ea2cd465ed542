"""A Datadog of one's own: the HTTP routes that the production adapter calls (and validate), with their faults.

What it answers comes from counters of real traffic (`datadog_series`), never from what a planner decided. The type to
know is `DatadogEmulator`.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from autothrottle.lab.datadog_series import Counters, Host, series_of

API_KEY = "lab-api-key"
APP_KEY = "lab-app-key"

RETRY_AFTER_SECONDS = 60
"""What an answer of 429 asks its client to wait."""


@dataclass(frozen=True, slots=True)
class Late:
    """A fault: the right answer comes so late, or when the fault is healed."""

    seconds: float


Fault = int | bytes | Late | Literal["hang", "garbage", "half", "dribble"]
"""What goes wrong: an HTTP status, another body with status 200, an answer that is late or never comes, no JSON, a
connection that ends in mid-body, or a body that comes byte by byte and never ends."""

_ROLLUP = re.compile(r"(?P<query>.*)\.rollup\(avg, (?P<seconds>[1-9]\d*)\)", re.DOTALL)
_DRIBBLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came in; headers are left out, since they hold the keys."""

    method: str
    target: str
    """Path and query as sent."""
    path: str
    query: Mapping[str, str]
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PostedEvent:
    """One event that was posted."""

    title: str
    text: str
    tags: tuple[str, ...]
    time: float
    """When it came in, seconds since the epoch."""


@dataclass(slots=True)
class _Armed:
    fault: Fault
    times: int | None
    path: str


class DatadogEmulator:
    """A server on a free port of 127.0.0.1 that answers as Datadog does; a context manager."""

    def __init__(
        self,
        api_key: str = API_KEY,
        app_key: str = APP_KEY,
        broker_id_tag: str = "broker_id",
        instance_type_tag: str = "instance-type",
        keep_seconds: float = 900,
    ) -> None:
        self.api_key = api_key
        self.app_key = app_key
        self.tag_delay_seconds = 0.0
        """How long each request for tags takes."""
        self.events: list[PostedEvent] = []
        """Posted events, oldest first."""
        self.requests: deque[Request] = deque(maxlen=10_000)
        """The last requests, oldest first."""
        self._broker_id_tag = broker_id_tag
        self._instance_type_tag = instance_type_tag
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._counters: dict[int, Counters] = {}
        self._armed: list[_Armed] = []
        self._healed = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="datadog-emulator")
        self._thread.start()

    @property
    def url(self) -> str:
        """What `--datadog-url` should be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> DatadogEmulator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, every connection and every thread."""
        self.heal()
        self._server.shutdown()
        self._server.cut_connections()
        self._server.server_close()
        self._thread.join()

    def add_host(
        self,
        host: str,
        broker_id: int,
        instance_type: str | None = None,
        extra_tags: Sequence[str] = (),
        *,
        is_listed: bool = True,
        is_tagged: bool = True,
    ) -> None:
        """Add a host, or replace its tags.

        Args:
            host: its name.
            broker_id: whose counters it reports.
            instance_type: its tag; None: no such tag.
            extra_tags: `name:value`.
            is_listed: False: the list of all tags lacks it, and it must be asked for by name.
            is_tagged: False: it has no broker id tag.
        """
        tags = [f"{self._broker_id_tag}:{broker_id}"] if is_tagged else []
        tags += [f"{self._instance_type_tag}:{instance_type}"] if instance_type is not None else []
        with self._lock:
            counters = self._counters_of(broker_id)
            self._hosts[host] = Host(host, broker_id, (*tags, *extra_tags), is_listed, counters)

    def record(self, broker_id: int, at: float, tx_total_bytes: float, rx_total_bytes: float) -> None:
        """Take a sample of a broker's counters, at `at` seconds since the epoch."""
        with self._lock:
            self._counters_of(broker_id).add(at, tx_total_bytes, rx_total_bytes)

    def fail(self, fault: Fault, times: int | None = None, path: str = "") -> None:
        """Let requests fail: the next `times` (None: until `heal`) whose path starts with `path`."""
        with self._lock:
            self._healed.clear()
            self._armed.append(_Armed(fault, times, path))

    def heal(self) -> None:
        """End every fault, those in hand as well."""
        with self._lock:
            self._armed.clear()
            self._healed.set()

    def drop_host(self, broker_id: int, direction: Literal["tx", "rx"] | None = None) -> None:
        """Let a broker's series vanish; None: both directions. Its tags stay."""
        with self._lock:
            for host in self._of_broker(broker_id):
                host.dropped |= {direction} if direction else {"tx", "rx"}

    def restore_host(self, broker_id: int) -> None:
        """Take `drop_host` and `null_points` back."""
        with self._lock:
            for host in self._of_broker(broker_id):
                host.dropped.clear()
                host.has_null_points = False

    def null_points(self, broker_id: int) -> None:
        """Let every point of a broker be null."""
        with self._lock:
            for host in self._of_broker(broker_id):
                host.has_null_points = True

    def _of_broker(self, broker_id: int) -> Iterator[Host]:
        return (host for host in self._hosts.values() if host.broker_id == broker_id)

    def _counters_of(self, broker_id: int) -> Counters:
        return self._counters.setdefault(broker_id, Counters(self._keep_seconds))

    # --- What the request handler asks

    def take_fault(self, path: str) -> Fault | None:
        """Return the fault of a request, if one is armed, and count it."""
        with self._lock:
            for armed in self._armed:
                if path.startswith(armed.path):
                    if armed.times is not None:
                        armed.times -= 1
                        if armed.times <= 0:
                            self._armed.remove(armed)
                    return armed.fault
        return None

    def wait_for_heal(self, seconds: float | None = None) -> bool:
        """Return whether faults have ended, after waiting for it."""
        return self._healed.wait(seconds)

    def tags_by_host(self, host: str) -> tuple[str, ...] | None:
        """Return the tags of a host; None when there is no such host."""
        with self._lock:
            found = self._hosts.get(host)
            return None if found is None else found.tags

    def hosts_by_tag(self) -> dict[str, list[str]]:
        """Return tag -> names of the listed hosts that have it."""
        by_tag: dict[str, list[str]] = {}
        with self._lock:
            for host in self._hosts.values():
                for tag in host.tags if host.is_listed else ():
                    by_tag.setdefault(tag, []).append(host.name)
        return by_tag

    def series(self, query: str, rollup_seconds: int, start: float, end: float) -> list[dict[str, Any]]:
        """Return the series of a query as Datadog writes them: one per host with a point."""
        direction = "tx" if "bytes_sent" in query else "rx"
        with self._lock:
            answered = [
                series_of(host, direction, query, rollup_seconds, start, end)
                for host in self._hosts.values()
                if direction not in host.dropped
            ]
        return [series for series in answered if series["pointlist"]]

    def take_event(self, body: Mapping[str, Any]) -> PostedEvent:
        """Keep a posted event."""
        event = PostedEvent(str(body["title"]), str(body["text"]), tuple(body.get("tags", ())), time.time())
        with self._lock:
            self.events.append(event)
        return event


class _Server(ThreadingHTTPServer):
    # Not daemons, so that server_close() joins them.
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, emulator: DatadogEmulator) -> None:
        self.emulator = emulator
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Routes)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def cut_connections(self) -> None:
        """End the wait of each thread for the next request of its client."""
        with self._connections_lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the client may have been faster
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client may go away in mid-answer; anything else is a defect of ours and shall be seen.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Routes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body go out as two packets; without this the second waits for the client's acknowledgement.
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: `requests` is the log."""

    def _serve(self, body: bytes) -> None:
        emulator = self.server.emulator
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        emulator.requests.append(Request(self.command, self.path, parts.path, query, time.time()))
        fault = emulator.take_fault(parts.path)
        if isinstance(fault, Late):
            emulator.wait_for_heal(fault.seconds)
            fault = None
        if fault is not None:
            self._misbehave(fault)
        elif (refusal := self._refusal(parts.path, query)) is not None:
            self._answer(refusal[0], {"errors": [refusal[1]]})
        else:
            self._answer(*self._route(parts.path, query, body))

    def _refusal(self, path: str, query: Mapping[str, str]) -> tuple[int, str] | None:
        emulator = self.server.emulator
        if {"api_key", "application_key"} & query.keys():
            return 400, "Bad Request: keys do not belong into a URL"
        needed = {"DD-API-KEY": emulator.api_key}
        if path not in ("/api/v1/validate", "/api/v1/events"):
            needed["DD-APPLICATION-KEY"] = emulator.app_key
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
        if self.command == "GET" and path.startswith("/api/v1/tags/hosts"):
            return self._tags(unquote(path.removeprefix("/api/v1/tags/hosts").removeprefix("/")))
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
            return 400, {"errors": ["Invalid query: give from, to and query=<query>.rollup(avg, <seconds>)"]}
        series = self.server.emulator.series(rollup["query"], int(rollup["seconds"]), start, end)
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
            "group_by": ["host"],
        }

    def _tags(self, host: str) -> tuple[int, dict[str, Any]]:
        emulator = self.server.emulator
        time.sleep(emulator.tag_delay_seconds)
        if not host:
            return 200, {"tags": emulator.hosts_by_tag()}
        tags = emulator.tags_by_host(host)
        if tags is None:
            return 404, {"errors": [f"Could not find {host}"]}
        return 200, {"host": host, "tags": list(tags)}

    def _event(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            event = self.server.emulator.take_event(json.loads(body))
        except (KeyError, TypeError, ValueError):
            return 400, {"errors": ["The parameters 'title' and 'text' are required"]}
        answered = {"title": event.title, "text": event.text, "tags": list(event.tags)}
        return 202, {"status": "ok", "event": {"id": len(self.server.emulator.events), **answered}}

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if status == 429:
            self.send_header("Retry-After", str(RETRY_AFTER_SECONDS))
        if 300 <= status < 400:
            self.send_header("Location", f"{self.server.emulator.url}/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def _misbehave(self, fault: int | bytes | str) -> None:
        if isinstance(fault, int):
            self._answer(fault, {"errors": [f"Fault {fault}"]})
        elif isinstance(fault, bytes):
            self._send(200, fault)
        elif fault == "garbage":
            self._send(200, b"<html>\xff\xfe no JSON")
        else:
            self.close_connection = True
            if fault == "hang":
                self.server.emulator.wait_for_heal()
            elif fault == "half":
                self._send(200, b'{"status": "ok", "series": [', length=1_000)
            else:
                self._dribble()

    def _dribble(self) -> None:
        self._send(200, b"", length=1_000_000)
        while not self.server.emulator.wait_for_heal(_DRIBBLE_SECONDS):
            self.wfile.write(b" ")
