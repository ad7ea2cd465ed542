"""A simulated Kafka cluster in a real ZooKeeper and in real time: services cannot distinguish it from a real one.

`simulation` has the model and `kafka_znodes` the znodes. This module has the clock, and `GET /counters` for an
observer. The type to know is `SimulatedKafka`. `python -m autothrottle_lab.emulators.kafka` runs one as a process.
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

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.emulators.http_server import EmulatorRoutes, EmulatorServer
from autothrottle_lab.emulators.kafka_scenario import Document, demo_cluster
from autothrottle_lab.emulators.kafka_znodes import Znodes
from autothrottle_lab.simulation.cluster import Cluster

log = logging.getLogger(__name__)

SampleCallback = Callable[[int, float, int, int], None]
"""(broker id, seconds since the epoch, tx total, rx total); totals are cumulative bytes of the interface."""

STEP_SECONDS = 0.1
"""Step of the model."""

STEPS_PER_SAMPLE = 2
"""Steps between two calls of `on_sample`."""

PAST_SECONDS = 60.0
"""History that the Datadog emulator of `main` has at the start, so that the first metrics window is full."""

MAX_STEPS_LATE = 50
"""Most steps to catch up after a pause of the machine; after a longer pause the cluster's time is behind."""


# The cluster in ZooKeeper


class SimulatedKafka:
    """A `Cluster` that runs in real time with its state in ZooKeeper; a context manager. It is thread-safe."""

    def __init__(
        self,
        zookeeper_connect: str,
        cluster: Cluster,
        prefix: str = "",
        on_sample: SampleCallback | None = None,
        *,
        session_timeout_seconds: float = 6.0,
        connect_timeout_seconds: float = 15.0,
        past_seconds: float = 0.0,
    ) -> None:
        """Prepare the cluster.

        Args:
            zookeeper_connect: `host:port`, or several separated by commas.
            cluster: the model; from `start` on, only this object may use it.
            prefix: Kafka's chroot; "": none.
            on_sample: receives the counters of each broker in the model's thread; it must not block.
            session_timeout_seconds: session timeout of the brokers.
            connect_timeout_seconds: how long `start` waits for ZooKeeper.
            past_seconds: history before the start; `start` passes the samples of this time to `on_sample`.
        """
        self._cluster = cluster
        self._lock = threading.Lock()
        self._connect = zookeeper_connect
        self._connect_timeout_seconds = connect_timeout_seconds
        self._client = KazooClient(hosts=zookeeper_connect, timeout=session_timeout_seconds)
        self._znodes = Znodes(self._client, prefix, cluster, self._lock)
        self._on_sample = on_sample
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
        """Write the znodes and start the clock; return when all znodes exist.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        try:
            self._client.start(timeout=self._connect_timeout_seconds)
        except KazooTimeoutError as error:
            self._client.close()
            raise Unavailable(f"ZooKeeper at {self._connect} does not answer. Fix: start it first") from error
        try:
            self._znodes.begin()
        except BaseException:
            self._close()
            raise
        self._begin = time.monotonic() - self._cluster.now - self._past_seconds
        for _ in range(round(self._past_seconds / STEP_SECONDS)):
            self._step()
        self._threads = [
            threading.Thread(target=self._run_model, name="simulated-brokers", daemon=True),
            threading.Thread(target=self._znodes.run, args=(self._stopping,), name="simulated-controller", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the clock and unregister the brokers; other znodes stay, as in a real cluster."""
        self._stopping.set()
        self._znodes.poll_now()
        for thread in self._threads:
            thread.join(timeout=5)
        # A call that waits for an unreachable ZooKeeper ends with the session.
        self._close()
        for thread in self._threads:
            thread.join()

    def _close(self) -> None:
        self._client.stop()
        self._client.close()

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Start reassignments as `--bootstrap-server` does (KIP-455): only the topic znodes show them.

        Args:
            targets: partition -> broker ids of its new replicas, in order.

        Raises:
            Missing: a partition does not exist.
            Invalid: a target is invalid.
        """
        with self._lock:
            self._cluster.submit_reassignment(targets)
        self._znodes.poll_now()

    def counters(self) -> Document:
        """Return the cumulative bytes and the progress of the reassignment, for an observer.

        `at` is in seconds since the epoch; `ideal_seconds` is null if clients leave nothing free.
        """
        with self._lock:
            cluster = self._cluster
            ideal = cluster.ideal_seconds
            return {
                "at": self._epoch_seconds(),
                "virtual_seconds": cluster.now,
                "moving_partitions": len(cluster.moving()),
                "bytes_left": cluster.bytes_left(),
                "unthrottled_bytes": round(cluster.unthrottled_bytes),
                "ideal_seconds": ideal if math.isfinite(ideal) else None,
                "brokers": {str(i): asdict(broker.counters()) for i, broker in cluster.brokers.items()},
                "flows": [
                    {"leader": flow.leader, "follower": flow.follower, "bytes_copied": round(amount)}
                    for flow, amount in cluster.flow_bytes.items()
                ],
            }

    def _epoch_seconds(self) -> float:
        """Return the wall-clock time of the cluster's current virtual time."""
        return time.time() - (time.monotonic() - self._begin - self._cluster.now)

    def _run_model(self) -> None:
        while not self._stopping.wait(self._seconds_until_next_step()):
            for _ in range(self._steps_due()):
                self._step()

    def _step(self) -> None:
        with self._lock:
            self._cluster.step(STEP_SECONDS)
        self._steps_done += 1
        if self._on_sample and self._steps_done % STEPS_PER_SAMPLE == 0:
            self._sample(self._on_sample)

    def _seconds_until_next_step(self) -> float:
        return max(self._begin + self._cluster.now + STEP_SECONDS - time.monotonic(), 0.0)

    def _steps_due(self) -> int:
        late = math.floor((time.monotonic() - self._begin - self._cluster.now) / STEP_SECONDS + 1e-6)
        if late > MAX_STEPS_LATE:
            lost = (late - MAX_STEPS_LATE) * STEP_SECONDS
            log.warning("The simulated cluster skipped %.1f s because the machine is too slow.", lost)
            self._begin += lost
        return min(late, MAX_STEPS_LATE)

    def _sample(self, on_sample: SampleCallback) -> None:
        with self._lock:
            at = self._epoch_seconds()
            totals = [(i, broker.outbound.total, broker.inbound.total) for i, broker in self._cluster.brokers.items()]
        for broker_id, outbound, inbound in totals:
            on_sample(broker_id, at, outbound, inbound)


# The command


class CountersEndpoint(EmulatorServer):
    """`GET /counters` of a simulated cluster over HTTP."""

    def __init__(self, kafka: SimulatedKafka, host: str = "127.0.0.1", port: int = 0) -> None:
        self.kafka = kafka
        super().__init__(_CounterRoutes, host, port)


class _CounterRoutes(EmulatorRoutes):
    server: CountersEndpoint

    def do_GET(self) -> None:
        if self.path == "/counters":
            self.send(200, compact_json(self.server.kafka.counters()), {})
        else:
            self.send(404, compact_json({"error": f"unknown path {self.path}; use GET /counters"}), {})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo's simulated cluster until SIGTERM or SIGINT. The first line of output is its address.

    With `--datadog` it also runs a Datadog emulator, fed by the brokers' counters; the second line is its address.
    Return 0, or 2 if the cluster cannot start, for example because ZooKeeper is unavailable.
    """
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        cluster = demo_cluster()
        host, _, port = arguments.listen.rpartition(":")
        with ExitStack() as stack:
            datadog = stack.enter_context(DatadogEmulator()) if arguments.datadog else None
            if datadog:
                for broker_id in cluster.brokers:
                    datadog.add_host(f"broker-{broker_id}", broker_id, arguments.datadog)
            on_sample = datadog.record if datadog else None
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


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m autothrottle_lab.emulators.kafka", description=main.__doc__)
    parser.add_argument("--zookeeper", required=True, help="connection string, host:port")
    parser.add_argument("--prefix", default="", help="Kafka's chroot")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port of the counters; port 0: any free port")
    parser.add_argument("--datadog", metavar="TYPE", help="also emulate Datadog; TYPE: instance type of the hosts")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
