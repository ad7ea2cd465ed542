"""A stub of the gateway's routes for the page, with data that a test can set: a large cluster, or hostile names."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.paths import ROOT

PAGE = ROOT / "services" / "autothrottle" / "gateway" / "page"
MB = 1_000_000
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_TOKENS = {"operators-token": ("anna", "operator"), "viewers-token": ("victor", "viewer")}
_CSRF = "csrf-of-the-session"

Json = dict[str, Any]


UNSAFE_PARTITION = 7
"""A partition whose cancellation is refused."""


def unsafe(partitions: list[Json]) -> list[Json]:
    """Return the refusals among partitions to cancel."""
    reason = "it needs 1 of its original replicas [1000] alive and in sync, and has 0. orders-7 goes on moving"
    return [{**row, "reason": reason} for row in partitions if row["partition"] == UNSAFE_PARTITION]


MOVES: list[Json] = [
    {"topic": "orders", "partitions": [0, 1], "addingReplicas": [1005], "removingReplicas": [1000]},
    {"topic": "orders", "partitions": [3, 7], "addingReplicas": [1006], "removingReplicas": [1000]},
    {"topic": "payments", "partitions": [0], "addingReplicas": [1006], "removingReplicas": [1000]},
]


def timestamp(seconds: float = 0, now: datetime | None = None) -> str:
    """The time some seconds after `now`, as the gateway writes it; None: the current time."""
    return (
        ((now or datetime.now(UTC)) + timedelta(seconds=seconds))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def side(broker: int, role: str, clients: float, replication: float, throttle: float | None, reason: str = "") -> Json:
    """A link side of 100 MB/s; rates in MB/s."""
    return {
        "broker": broker,
        "role": role,
        "capacity": 100 * MB,
        "clients": round(clients * MB),
        "replication": round(replication * MB),
        "throttle": None if throttle is None else round(throttle * MB),
        "headroom": round(max(0, 100 - clients - replication) * MB),
        "reason": reason or f"the policy's rate (90 % of the {100 - clients:g}MB/s that clients leave free)",
    }


def recovery(now: datetime | None = None) -> dict[str, Json]:
    """Events of a recovery like that of the demo; `now` None: the current time."""
    at = partial(timestamp, now=now)
    flows = [
        {
            "leader": 1001 + n,
            "follower": 1006,
            "partitions": 5 + n % 3,
            "bytesLeft": (310 + 60 * n) * MB,
            "rate": rate * MB,
        }
        for n, rate in enumerate((9, 7, 6, 8, 4))
    ]
    topics = [
        {
            "topic": name,
            "partitions": 10,
            "bytesCopied": copied * MB,
            "bytesLeft": left * MB,
            "eta": at(40 + left / 30),
        }
        for name, copied, left in (
            ("clickstream", 420, 510),
            ("orders", 380, 560),
            ("payments", 490, 520),
            ("telemetry", 460, 560),
        )
    ]
    return {
        "now": {
            "cluster": "prod-eu",
            "at": at(),
            "leader": {"address": "10.0.3.17:8085", "host": "planner-2", "since": at(-1860), "term": 7},
            "cycle": {
                **{"term": 7, "number": 62, "start": at(-3), "end": at(-2), "reason": "interval"},
                **{
                    "sentence": "4 topics in reassignment, left: 2.15 GB, about 63 s; 1 of 1 changes written",
                    "error": "",
                    "shadow": False,
                    "findings": [],
                },
            },
            **{
                "bytesLeft": 2150 * MB,
                "eta": at(63),
                "etaLow": at(58),
                "etaHigh": at(74),
                "etaIsStatic": False,
            },
            "limitedBy": "Broker 1006 [follower] has 2.15 GB to receive at a throttle of 34.12MB/s: at least 63 s",
            **{"pause": None, "overrides": [], "warnings": [], "topics": topics, "problem": ""},
        },
        "sides": {
            "sides": [
                *(
                    side(1001 + n, "leader", clients, copies, throttle)
                    for n, (clients, copies, throttle) in enumerate(
                        ((40, 9, 54), (50, 7, 45), (60, 6, 36), (44, 8, 50), (54, 4, 41))
                    )
                ),
                side(
                    1006,
                    "follower",
                    62.1,
                    33.6,
                    34.12,
                    "the policy's rate (90 % of the 37.91MB/s that clients leave free)",
                ),
            ]
        },
        "flows": {"flows": flows},
        "events": {
            "events": [
                {"time": at(-30 * n - 2), "text": text}
                for n, text in enumerate(
                    (
                        "Cycle 62 (interval): 4 topics in reassignment, left: 2.15 GB, about 63 s; "
                        "1 of 1 changes written",
                        "Cycle 61 (produce rate rose on broker 1006): 4 topics in reassignment, left: 3.08 GB; "
                        "6 of 6 changes written",
                        "10.0.3.17:8085 leads in term 7",
                        "Cycle 58 (reassignment started: [clickstream orders payments telemetry]): "
                        "10 of 10 changes written",
                    )
                )
            ]
        },
    }


def large(brokers: int, load: float = 0.0) -> dict[str, Json]:
    """Events of a cluster in which all brokers exchange replicas."""
    events = recovery()
    sides, flows = [], []
    for n in range(brokers):
        broker = 1000 + n
        clients = 20 + (n * 7 + load) % 50
        for role in ("follower", "leader"):
            sides.append(
                side(broker, role, clients, (n * 3 + load) % 30, 30 + n % 20, f"the policy's rate, number {n}")
            )
        flows += [
            {
                "leader": broker,
                "follower": 1000 + (n + hop) % brokers,
                "partitions": 3,
                "bytesLeft": (n + hop) * MB,
                "rate": round(((n * hop + load) % 9) * MB),
            }
            for hop in (1, 2, 3)
        ]
    events["sides"], events["flows"] = {"sides": sides}, {"flows": flows}
    events["now"]["topics"] = [
        {
            "topic": f"topic-{n:04}",
            "partitions": 12,
            "bytesCopied": n * MB,
            "bytesLeft": 2 * n * MB,
            "eta": timestamp(60 + n),
        }
        for n in range(brokers)
    ]
    return events


def lines_of_history() -> Json:
    """An hour of one side: a reassignment begins after 20 minutes, and clients need more after 42."""
    clients, throttle, replication = [], [], []
    for n in range(360):
        wave = 3 * math.sin(n / 11) + 2 * math.sin(n / 4.3)
        clients.append(round((20 + wave + 38 / (1 + math.exp((250 - n) / 2))) * MB))
        if n % 9 == 0:
            step = round(0.9 * (100 * MB - clients[-1]))
        throttle.append(step if n >= 120 else None)
        replication.append(round(step * (0.96 + 0.03 * math.sin(n / 3))) if n >= 120 else None)
    return {"capacity": [100 * MB] * 360, "clients": clients, "replication": replication, "throttle": throttle}


@dataclass
class Stub:
    """The data that the stub serves; a test changes it, and calls `publish`."""

    events: dict[str, Json] = field(default_factory=recovery)
    is_open: bool = True
    """Whether callers need no token."""
    explanation: tuple[str, ...] = (
        "Broker 1006 [follower] may receive 34.12MB/s of replication: the policy's rate (90 % of the 37.91MB/s that "
        "clients leave free).",
        "Broker 1006 [follower] had a throttle of 36.02MB/s before the cycle.",
        "Broker 1006 [follower]: the link has a capacity of 100MB/s, and clients use 62.09MB/s.",
        "Broker 1006 [follower]: the client load is measured from the growth of logs; it is current.",
        "What would change it: another client load or another amount of bytes left changes the policy's rate; set a "
        "fixed rate (throttlectl set RATE --broker 1006).",
    )
    audit: list[Json] = field(default_factory=list)
    recoveries: Json = field(
        default_factory=lambda: {"recoveries": [], "problem": "No scores: the gateway has no --scores."}
    )
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path and body of every request."""
    streams: int = 0
    address: str = ""
    _version: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    is_stopping: bool = False
    ended: int = 0
    silent: int = 0
    is_hanging: bool = False
    """Whether no stream sends anything, as behind a proxy that hangs."""
    age: float | None = 0.0
    """Age of the state in the event `alive`, in seconds; None: it has not been read yet."""
    now: datetime | None = None
    """The time of the history's end; None: the current one."""

    def publish(self, **events: Json) -> None:
        """Send new versions of events to all streams."""
        with self._changed:
            self.events.update(events)
            self._version += 1
            self._changed.notify_all()

    def change_now(self, **values: Any) -> None:
        """Send `now` with other values."""
        self.publish(now={**self.events["now"], "at": timestamp(), **values})

    def wait(self, version: int) -> int:
        """Wait for a newer version, or the end; return the current one."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self.is_stopping, 1)
            return self._version

    def silence_streams(self) -> None:
        """Let the open streams send nothing more, as connections do that died while the computer slept."""
        self.silent += 1

    def end_streams(self) -> None:
        """End all streams, as a restart of the gateway does."""
        self.ended += 1
        self.publish()

    def stop(self) -> None:
        self.is_stopping = True
        self.publish()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def log_message(self, *args: object) -> None:
        pass

    @property
    def session(self) -> tuple[str, str] | None:
        """Name and role of the caller; None: a stranger."""
        if self.stub.is_open:
            return "", "operator"
        cookie = self.headers.get("cookie", "").removeprefix("session=")
        return _TOKENS.get(cookie)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.stub.requests.append(("GET", self.path, None))
        if path == "/" or path.startswith("/page/static/"):
            self.send_file(path.removeprefix("/page/static/").strip("/") or "index.html")
        elif path == "/page/session":
            self.answer(200, self.session_document())
        elif self.session is None:
            self.answer(401, {"code": "UNAUTHENTICATED", "message": "log in with a token"})
        elif path == "/page/events":
            self.send_events()
        elif path.startswith("/page/explain/"):
            self.answer(200, {"lines": self.stub.explanation})
        elif path.startswith("/page/history/"):
            empty: Json = {name: [] for name in ("capacity", "clients", "replication", "throttle")}
            self.answer(
                200,
                {
                    "from": timestamp(-3590, self.stub.now),
                    "seconds": 10,
                    "follower": lines_of_history(),
                    "leader": empty,
                },
            )
        elif path == "/page/recoveries":
            self.answer(200, self.stub.recoveries)
        elif path == "/v1/reassignments":
            self.answer(200, {"topics": [], "moves": MOVES})
        elif path == "/v1/auditRecords":
            self.answer(200, {"records": self.stub.audit[::-1], "warnings": []})
        else:
            self.answer(404, {"code": "NOT_FOUND", "message": f"no route for {path}"})

    def do_POST(self) -> None:
        path, body = urlsplit(self.path).path, self.body()
        self.stub.requests.append(("POST", self.path, body))
        if path == "/page/login":
            if body["token"] not in _TOKENS:
                return self.answer(
                    401, {"code": "UNAUTHENTICATED", "message": "the token is not known; see the tokens file"}
                )
            cookie = f"session={body['token']}; HttpOnly; SameSite=Strict; Path=/"
            return self.answer(200, self.session_document(_TOKENS[body["token"]]), {"set-cookie": cookie})
        if path == "/page/logout":
            return self.answer(200, {}, {"set-cookie": "session=; Max-Age=0; Path=/"})
        self.act(path, body)

    def do_PUT(self) -> None:
        path, body = urlsplit(self.path).path, self.body()
        self.stub.requests.append(("PUT", self.path, body))
        self.act(path, body)

    def do_DELETE(self) -> None:
        path = urlsplit(self.path).path
        self.stub.requests.append(("DELETE", self.path, None))
        self.act(path, None)

    def act(self, path: str, body: Any) -> None:
        if self.session is None or self.session[1] != "operator":
            return self.answer(403, {"code": "PERMISSION_DENIED", "message": "SetOverride needs the role operator"})
        if self.headers.get("x-csrf-token") != _CSRF:
            return self.answer(
                403, {"code": "PERMISSION_DENIED", "message": "the request lacks the session's CSRF token"}
            )
        now = self.stub.events["now"]
        if path.endswith("/override"):
            broker = int(path.split("/")[3]) if "brokers" in path else None
            others = [override for override in now["overrides"] if override["broker"] != broker]
            if self.command == "DELETE":
                self.stub.change_now(overrides=others)
                return self.answer(200, {})
            rate = int(body["rateBytesPerSecond"])
            if not 1 <= rate <= 10**12:
                message = f"rate_bytes_per_second {rate} is out of range; give 1 to 1000000000000"
                return self.answer(400, {"code": "INVALID_ARGUMENT", "message": message})
            override = {
                "broker": broker,
                "rate": rate,
                "autoremove": False,
                "expires": body.get("expireTime"),
                "etag": "e1",
                "beyond": body.get("beyondCapacity", False),
                "effect": "acts now",
            }
            self.stub.change_now(overrides=[*others, override])
            return self.answer(200, {"override": {**body, "brokerId": broker, "etag": "e1"}, "warnings": []})
        if path == "/v1/pause":
            pause = None
            if self.command == "PUT":
                pause = {"mode": "keep", "reason": body["reason"], "author": "anna", "since": timestamp()}
            self.stub.change_now(pause=pause)
            return self.answer(200, {})
        if path == "/v1/reassignments":
            cut = [row for row in body["partitions"] if len(row["replicas"]) == 1]
            refused = [] if body.get("allow_fewer_replicas") else cut
            assert body.get("skip_refused") or not refused, "the page never submits what it has not asked about"
            reason = (
                f"{len(refused)} would have 1 replica instead of 2; to submit it nevertheless: --allow-fewer-replicas"
            )
            left_out = {"reason": reason, "partitions": refused, "allowedBy": "allow_fewer_replicas"}
            answer = {"alreadyInProgress": 0, "alreadyThere": 0, "refused": [], "warnings": []}
            submitted = len(body["partitions"]) - len(refused)
            return self.answer(200, {**answer, "submitted": submitted, "leftOut": [left_out] if refused else []})
        if path == "/v1/reassignments/estimate":
            side = {
                "brokerId": 1006,
                "role": "REPLICA_ROLE_FOLLOWER",
                "bytesToCopy": "3900000000",
                "rateBytesPerSecond": "80100000",
                "duration": "48.7s",
            }
            return self.answer(
                200,
                {
                    "partitions": 2,
                    "totalPartitions": 46,
                    "moveRatio": 0.043,
                    "bytesToCopy": "3900000000",
                    "duration": "48.7s",
                    "linkSides": [side],
                    "warnings": ["Other reassignments share the throttle of broker 1006."],
                },
            )
        if path == "/v1/reassignments/cancel/check":
            effects = [
                {**row, "replicas": [1000, 1001], "droppedReplicas": [1006], "bytesLost": "1500000000"}
                for row in body["partitions"]
                if row["partition"] != UNSAFE_PARTITION
            ]
            return self.answer(200, {"effects": effects, "refused": unsafe(body["partitions"])})
        if path == "/v1/reassignments/cancel":
            refused = unsafe(body["partitions"])
            return self.answer(200, {"cancelled": len(body["partitions"]) - len(refused), "refused": refused})
        if path == "/v1/placement/decommission":
            plan = {
                "partitions": [{"topic": "orders", "partition": 3, "replicas": [1002, 1004]}],
                "unchangedPartitions": 45,
                "copiedBytes": "780000000",
                "warnings": [],
                "notes": [],
                "steps": [],
            }
            return self.answer(200, {"plan": plan})
        if path.startswith("/v1/quota"):
            return self.answer(200, {"quota": body, "before": {}, "warnings": []})
        self.answer(404, {"code": "NOT_FOUND", "message": f"no route for {path}"})

    def session_document(self, caller: tuple[str, str] | None = None) -> Json:
        name, role = caller or self.session or ("", "")
        return {"name": name, "role": role, "login": not self.stub.is_open, "csrf": _CSRF if role else ""}

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")

    def answer(self, status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), "application/json", headers)

    def send(self, status: int, content: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": media_type, "content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_file(self, name: str) -> None:
        headers = {"content-security-policy": CSP, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
        self.send(200, (PAGE / name).read_bytes(), f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8", headers)

    def send_events(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        stub, version = self.stub, -1
        sent: dict[str, str] = {}
        ended, silent = stub.ended, stub.silent

        def is_sending() -> bool:
            return silent == stub.silent and not stub.is_hanging

        stub.streams += 1
        try:
            while not stub.is_stopping and ended == stub.ended:
                for name, value in list(stub.events.items()) if is_sending() else ():
                    data = json.dumps(value)
                    if sent.get(name) != data:
                        sent[name] = data
                        self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())
                if is_sending():
                    alive = json.dumps({"time": timestamp(now=stub.now), "age": stub.age})
                    self.wfile.write(f"event: alive\ndata: {alive}\n\n".encode())
                self.wfile.flush()
                version = stub.wait(version)
        except OSError:
            pass  # the page is closed
        finally:
            stub.streams -= 1


@contextmanager
def serving(stub: Stub, port: int = 0) -> Iterator[Stub]:
    """Serve the stub on a free port of 127.0.0.1."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("_Bound", (_Request,), {"stub": stub}))
    server.daemon_threads = True
    stub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.stop()
        server.shutdown()
        server.server_close()
        thread.join()
        time.sleep(0)
