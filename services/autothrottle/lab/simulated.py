"""A simulated Kafka cluster that lives in a real ZooKeeper in real time, so that no service can tell.

The model itself is `core.simulation`, its znodes are in `simulated_znodes`; here are its clock, and `GET /counters` for
an observer. The type to know is `SimulatedKafka`; `python -m autothrottle.lab.simulated` runs one as a process of its
own.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.core.errors import AutothrottleError, Invalid, Missing, Unavailable
from autothrottle.core.simulation import Cluster
from autothrottle.core.topology import TopicPartition
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.scenario import Document, demo_scenario, parse_reassignment, read_cluster
from autothrottle.lab.simulated_znodes import Znodes, encode, parse_object

log = logging.getLogger(__name__)

SampleCallback = Callable[[int, float, int, int], None]
"""(broker id, seconds since the epoch, tx total, rx total); totals are cumulative bytes of the interface."""

STEP_SECONDS = 0.1
"""How finely the model divides time."""

SAMPLE_SECONDS = 0.2
"""How often `on_sample` is told the counters."""

PAST_SECONDS = 60.0
"""What the emulated Datadog of `main` knows of the time before: a window of metrics is full from the start."""

MAX_STEPS_LATE = 50
"""What a machine that stood still makes up for; beyond that the cluster's time stood still as well."""


# The cluster in ZooKeeper


class SimulatedKafka:
    """A `Cluster` that runs in real time and lives in a ZooKeeper; a context manager."""

    def __init__(
        self,
        zookeeper_connect: str,
        cluster: Cluster,
        prefix: str = "",
        on_sample: SampleCallback | None = None,
        *,
        step_seconds: float = STEP_SECONDS,
        sample_seconds: float = SAMPLE_SECONDS,
        session_timeout_seconds: float = 6.0,
        connect_timeout_seconds: float = 15.0,
        past_seconds: float = 0.0,
    ) -> None:
        """Say where to live.

        Args:
            zookeeper_connect: `host:port`, or several by comma.
            cluster: belongs to this object from `start` on.
            prefix: Kafka's chroot, "" for none.
            on_sample: is told the counters of each broker, from the thread of the model; must not block.
            step_seconds: how finely the model divides time.
            sample_seconds: time between samples; a multiple of the step.
            session_timeout_seconds: how long the brokers stay registered without contact.
            connect_timeout_seconds: how long `start` waits for ZooKeeper.
            past_seconds: how long the cluster has run already when it starts; its samples of that time are told
                at the start.
        """
        self._cluster = cluster
        self._lock = threading.Lock()
        self._connect = zookeeper_connect
        self._connect_timeout_seconds = connect_timeout_seconds
        self._client = KazooClient(hosts=zookeeper_connect, timeout=session_timeout_seconds)
        self._znodes = Znodes(self._client, prefix, cluster, self._lock)
        self._on_sample = on_sample
        self._step_seconds = step_seconds
        self._steps_per_sample = max(round(sample_seconds / step_seconds), 1)
        self._steps_done = 0
        self._past_seconds = past_seconds
        self._begin = 0.0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> SimulatedKafka:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Write the znodes and let time run; returns when everything stands.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        try:
            self._client.start(timeout=self._connect_timeout_seconds)
        except KazooTimeoutError as error:
            self._client.close()
            raise Unavailable(f"ZooKeeper at {self._connect} does not answer: start it first") from error
        try:
            self._znodes.begin()
        except BaseException:
            self._close()
            raise
        self._begin = time.monotonic() - self._cluster.now - self._past_seconds
        for _ in range(round(self._past_seconds / self._step_seconds)):
            self._step()
        self._threads = [
            threading.Thread(target=self._run_model, name="simulated-brokers", daemon=True),
            threading.Thread(target=self._znodes.run, args=(self._stopping,), name="simulated-controller", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop time and unregister the brokers; the other znodes stay, as those of a real cluster do."""
        self._stopping.set()
        self._znodes.wake()
        for thread in self._threads:
            thread.join(timeout=5)
        # A call that waits for a ZooKeeper that is gone ends with the session.
        self._close()
        for thread in self._threads:
            thread.join()

    def _close(self) -> None:
        self._client.stop()
        self._client.close()

    def reassign(self, moves: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Start moves as `--bootstrap-server` does (KIP-455): they show in the topic nodes only.

        Raises:
            Missing: there is no such partition.
            Invalid: a target makes no sense.
        """
        with self._lock:
            self._cluster.start_reassignment(moves)
        self._znodes.wake()

    def counters(self) -> Document:
        """Return what an observer may know: cumulative bytes, and how the reassignment stands.

        `at` is in seconds since the epoch; `ideal_seconds` is null when clients leave nothing free.
        """
        with self._lock:
            cluster = self._cluster
            ideal = cluster.ideal_seconds()
            return {
                "at": self._epoch_seconds(),
                "virtual_seconds": cluster.now,
                "moving_partitions": len(cluster.moving()),
                "bytes_left": cluster.bytes_left(),
                "unthrottled_bytes": round(cluster.unthrottled_bytes),
                "ideal_seconds": ideal if math.isfinite(ideal) else None,
                "brokers": {str(i): asdict(broker.counters()) for i, broker in cluster.brokers.items()},
                "flows": [
                    {"leader": flow.leader, "follower": flow.follower, "bytes_landed": round(amount)}
                    for flow, amount in cluster.flow_bytes.items()
                ],
            }

    def _epoch_seconds(self) -> float:
        """Return the moment of the world that the cluster's time stands for."""
        return time.time() - (time.monotonic() - self._begin - self._cluster.now)

    def _run_model(self) -> None:
        while not self._stopping.wait(self._seconds_until_next_step()):
            for _ in range(self._steps_due()):
                self._step()

    def _step(self) -> None:
        with self._lock:
            self._cluster.step(self._step_seconds)
        self._steps_done += 1
        if self._on_sample and self._steps_done % self._steps_per_sample == 0:
            self._sample(self._on_sample)

    def _seconds_until_next_step(self) -> float:
        return max(self._begin + self._cluster.now + self._step_seconds - time.monotonic(), 0.0)

    def _steps_due(self) -> int:
        late = math.floor((time.monotonic() - self._begin - self._cluster.now) / self._step_seconds + 1e-6)
        if late > MAX_STEPS_LATE:
            lost = (late - MAX_STEPS_LATE) * self._step_seconds
            log.warning("The simulated cluster stood still for %.1f s: the machine is too slow.", lost)
            self._begin += lost
        return min(late, MAX_STEPS_LATE)

    def _sample(self, on_sample: SampleCallback) -> None:
        with self._lock:
            at = self._epoch_seconds()
            totals = [(i, broker.tx.total, broker.rx.total) for i, broker in self._cluster.brokers.items()]
        for broker_id, tx, rx in totals:
            on_sample(broker_id, at, tx, rx)


# As a process of its own


class CountersEndpoint:
    """`GET /counters` and `POST /reassignments` of a simulated cluster over HTTP; a context manager.

    A reassignment that is posted, in the form of /admin/reassign_partitions, shows in the topic nodes only.
    """

    def __init__(self, kafka: SimulatedKafka, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = ThreadingHTTPServer((host, port), _requests(kafka))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="counters", daemon=True)

    def __enter__(self) -> CountersEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"


def _requests(kafka: SimulatedKafka) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/counters":
                self._answer(200, kafka.counters())
            else:
                self._answer(404, {"error": f"{self.path} is unknown: GET /counters"})

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                if self.path != "/reassignments":
                    raise Missing(f"{self.path} is unknown: POST /reassignments")
                kafka.reassign(parse_reassignment(content))
            except (Invalid, Missing) as error:
                self._answer(400 if isinstance(error, Invalid) else 404, {"error": str(error)})
            else:
                self._answer(202, {})

        def _answer(self, status: int, document: Document) -> None:
            content = encode(document)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing: an observer asks several times a second."""

    return Requests


def main(argv: Sequence[str] | None = None) -> int:
    """Run a simulated cluster until SIGTERM or SIGINT; the first line that it prints is its address.

    With `--datadog` a Datadog emulator, fed from the brokers' counters, runs beside it; the second line has its
    address. Returns 0, or 2 when the scenario or ZooKeeper cannot be used.
    """
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        cluster = read_cluster(_scenario(arguments.scenario))
        host, _, port = arguments.listen.rpartition(":")
        with ExitStack() as stack:
            datadog = stack.enter_context(DatadogEmulator()) if arguments.datadog else None
            on_sample = _reporting(cluster, datadog, arguments.datadog) if datadog else None
            past_seconds = PAST_SECONDS if datadog else 0.0
            kafka = SimulatedKafka(arguments.zookeeper, cluster, arguments.prefix, on_sample, past_seconds=past_seconds)
            stack.enter_context(kafka)
            print(f"Simulated Kafka: {stack.enter_context(CountersEndpoint(kafka, host, int(port))).url}", flush=True)
            if datadog:
                print(f"Datadog: {datadog.url}", flush=True)
            stopping.wait()
    except (AutothrottleError, OSError, ValueError) as error:
        print(f"simulated Kafka: {error}", file=sys.stderr)
        return 2
    return 0


def _reporting(cluster: Cluster, datadog: DatadogEmulator, instance_type: str) -> SampleCallback:
    """Let every broker have a host in Datadog, and return what takes its counters there."""
    for broker_id in cluster.brokers:
        datadog.add_host(f"broker-{broker_id}", broker_id, instance_type)
    return datadog.record


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m autothrottle.lab.simulated", description=main.__doc__)
    parser.add_argument("--zookeeper", required=True, help="connection string, host:port")
    parser.add_argument("--scenario", type=Path, help="JSON file in the form of demo_scenario(), the default")
    parser.add_argument("--prefix", default="", help="Kafka's chroot")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port of the counters; port 0: a free one")
    parser.add_argument("--datadog", metavar="TYPE", help="emulate Datadog too; TYPE: instance type of the hosts")
    return parser.parse_args(argv)


def _scenario(path: Path | None) -> Document:
    if path is None:
        return demo_scenario()
    document = parse_object(path.read_bytes())
    if not document:
        raise Invalid(f"{path} holds no JSON object: write one in the form of demo_scenario()")
    return document


if __name__ == "__main__":
    sys.exit(main())
