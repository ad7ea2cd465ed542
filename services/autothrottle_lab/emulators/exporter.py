"""Exporters of brokers in one HTTP server, with faults on request: a path for each broker.

Their counters are those of real traffic, or grow at a fixed rate. The type to know is `ExporterEmulator`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from autothrottle_lab.observation.traffic import TrafficCounters

Answer = Callable[[], str] | int | bytes | Literal["hang"]
"""The text at the time of a request; or a fault: an HTTP status, another body, or no answer until `close`."""


class ExporterEmulator:
    """An HTTP server with the exporters of some brokers; a context manager."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        """Settable: broker id -> answer; absent: status 404."""
        self.faults: dict[str, Answer] = {}
        """Settable: a part of the path -> answer in place of the broker's."""
        self.headers: Mapping[str, str] = {}
        """Headers of the last request, their names in lower case."""
        self.closing = threading.Event()
        self._server = _ExporterServer(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="exporters")

    def __enter__(self) -> ExporterEmulator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """The value of `--scrape-url`."""
        return f"http://{self.address}/{{broker}}/metrics"


def steady(tx_rate: float, rx_rate: float) -> Callable[[], str]:
    """Return the text of a node_exporter whose counters grow at these rates, bytes/s."""
    start = time.time()
    return lambda: node_text((time.time() - start) * tx_rate, (time.time() - start) * rx_rate)


def node_text(tx_bytes: float, rx_bytes: float) -> str:
    """Return the text of node_exporter's netdev collector with one device."""
    counters = {"transmit": tx_bytes, "receive": rx_bytes}
    return "".join(
        f'# TYPE node_network_{way}_bytes_total counter\nnode_network_{way}_bytes_total{{device="eth0"}} {total!r}\n'
        for way, total in counters.items()
    )


def jmx_text(counters: TrafficCounters) -> str:
    """Return the text of a JMX exporter with Strimzi's rules, all traffic being that of clients."""
    totals: Mapping[str, float] = {
        "bytesin": counters.rx_bytes,
        "bytesout": counters.tx_bytes,
        "replicationbytesin": 0.0,
        "replicationbytesout": 0.0,
    }
    return "".join(
        f"# TYPE kafka_server_brokertopicmetrics_{name}_total counter\n"
        f"kafka_server_brokertopicmetrics_{name}_total {total!r}\n"
        for name, total in totals.items()
    )


class _ExporterServer(ThreadingHTTPServer):
    daemon_threads = False  # server_close() joins them
    request_queue_size = 128

    def __init__(self, emulator: ExporterEmulator) -> None:
        self.emulator = emulator
        super().__init__(("127.0.0.1", 0), _ExporterRoutes)

    def handle_error(self, request: object, client_address: object) -> None:
        """Report nothing: a client may disconnect during a response."""


class _ExporterRoutes(BaseHTTPRequestHandler):
    server: _ExporterServer

    def do_GET(self) -> None:
        emulator, broker = self.server.emulator, self.path.split("/")[1]
        emulator.headers = {name.lower(): value for name, value in self.headers.items()}
        answer = emulator.answers.get(int(broker), 404) if broker.isdigit() else 404
        answer = next((fault for part, fault in emulator.faults.items() if part in self.path), answer)
        if answer == "hang":
            emulator.closing.wait()
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            self._send(answer if isinstance(answer, bytes) else answer().encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
