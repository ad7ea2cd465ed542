"""Exporters of brokers in one HTTP server, with faults on request: a path for each broker.

Their counters are those of real traffic, or grow at a fixed rate. The type to know is `ExporterEmulator`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from autothrottle_lab.emulators.http_server import EmulatorRoutes, EmulatorServer
from autothrottle_lab.observation.traffic import TrafficCounters

Answer = Callable[[], str] | int | bytes | Literal["hang"]
"""The text at the time of a request; or a fault: an HTTP status, another body, or no answer until `close`."""


class ExporterEmulator(EmulatorServer):
    """An HTTP server with the exporters of some brokers."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        """Settable: broker id -> answer; absent: status 404."""
        self.faults: dict[str, Answer] = {}
        """Settable: a part of the path -> answer in place of the broker's."""
        self.headers: Mapping[str, str] = {}
        """Headers of the last request, their names in lower case."""
        super().__init__(_ExporterRoutes)

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
    totals = {"node_network_transmit_bytes_total": tx_bytes, "node_network_receive_bytes_total": rx_bytes}
    return _text(totals, '{device="eth0"}')


def jmx_text(counters: TrafficCounters) -> str:
    """Return the text of a JMX exporter with Strimzi's rules, all traffic being that of clients."""
    totals: Mapping[str, float] = {
        "bytesin": counters.rx_bytes,
        "bytesout": counters.tx_bytes,
        "replicationbytesin": 0.0,
        "replicationbytesout": 0.0,
    }
    return _text({f"kafka_server_brokertopicmetrics_{name}_total": total for name, total in totals.items()})


def _text(totals: Mapping[str, float], labels: str = "") -> str:
    return "".join(f"# TYPE {name} counter\n{name}{labels} {total!r}\n" for name, total in totals.items())


class _ExporterRoutes(EmulatorRoutes):
    server: ExporterEmulator

    def do_GET(self) -> None:
        emulator, broker = self.server, self.path.split("/")[1]
        emulator.headers = {name.lower(): value for name, value in self.headers.items()}
        answer = emulator.answers.get(int(broker), 404) if broker.isdigit() else 404
        answer = next((fault for part, fault in emulator.faults.items() if part in self.path), answer)
        if answer == "hang":
            emulator.closing.wait()
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            body = answer if isinstance(answer, bytes) else answer().encode()
            self.send(200, body, {}, "text/plain; version=0.0.4")
