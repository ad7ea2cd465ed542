"""A simulated Kafka cluster in a real ZooKeeper and in real time: services cannot distinguish it from a real one.

`simulation` has the model and `kafka_znodes` the znodes. This module has the clock. The type to know is
`SimulatedKafka`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Unavailable
from autothrottle_lab.emulators.kafka_znodes import Znodes
from autothrottle_lab.servers.processes import Startable
from autothrottle_lab.simulation.cluster import Cluster

T = TypeVar("T")
log = logging.getLogger(__name__)

SampleCallback = Callable[[int, float, int, int], None]
"""(broker id, seconds since the epoch, tx total, rx total); totals are cumulative bytes of the interface."""

STEP_SECONDS = 0.1
"""Step of the model."""

STEPS_PER_SAMPLE = 2
"""Steps between two calls of `on_sample`."""

MAX_STEPS_LATE = 50
"""Most steps to catch up after a pause of the machine; after a longer pause the cluster's time is behind."""


class SimulatedKafka(Startable):
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

    def start(self) -> None:
        """Write the znodes and start the clock; return when all znodes exist.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        try:
            self._client.start(timeout=self._connect_timeout_seconds)
        except KazooTimeoutError as error:
            raise Unavailable(f"ZooKeeper at {self._connect} does not answer. Fix: start it first") from error
        self._znodes.begin()
        self._begin = time.monotonic() - self._cluster.now - self._past_seconds
        for _ in range(round(self._past_seconds / STEP_SECONDS)):
            self._step()
        self._threads = [
            threading.Thread(target=self._run_model, name="simulated-brokers", daemon=True),
            threading.Thread(target=self._znodes.run, args=(self._stopping,), name="simulated-controller", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the clock and unregister the brokers; other znodes stay, as in a real cluster."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)
        # A call that waits for an unreachable ZooKeeper ends with the session.
        self._client.stop()
        self._client.close()
        for thread in self._threads:
            thread.join()

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

    def inspect(self, value: Callable[[Cluster], T]) -> T:
        """Return a value of the model, which does not change meanwhile."""
        with self._lock:
            return value(self._cluster)

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
