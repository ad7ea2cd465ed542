"""Idle connections and bursts of one host on the ports of a real process, which keeps throttling and answers others.

The hosts are addresses of the loopback interface: a client chooses its own by binding its socket.
"""

from __future__ import annotations

import http.client
import re
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC
from itertools import pairwise
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, ConfigResource
from autothrottle.v1 import planner_pb2, planner_pb2_grpc
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.paths import CERTIFICATES
from tests.system.zookeeper_tree import Tree, session

pytestmark = pytest.mark.measures

BUSY_HOST, PROBING_HOST = "127.0.0.2", "127.0.0.3"
IDLE, BURST = 1_400, 2_000
SOFT_LIMIT = 1_024
"""systemd's soft limit of open descriptors, which a process inherits unless its unit says otherwise."""

ANSWER_SECONDS = THROTTLE_SECONDS = 1.0
INTERVAL_SECONDS = 1.0
SLACK_SECONDS = 1.0
"""Longest delay of a cycle on a loaded machine."""
GROWTH_BYTES = 100_000_000
LOG_BYTES_PER_MINUTE = 100_000
RATE = "10000000"

OPTIONS = {
    "metrics-source": "none",
    "policy": "static",
    "static-rate": "10",
    "interval": f"{INTERVAL_SECONDS:g}",
    "session-timeout": "4",
    "api-listen": "127.0.0.1:0",
}
TLS_OPTIONS = {
    "tls-cert": f"{CERTIFICATES}/server.pem",
    "tls-key": f"{CERTIFICATES}/server.pem",
    "tls-ca": f"{CERTIFICATES}/ca.pem",
    "certificate-roles": '{"autothrottle":"service"}',
}


@contextmanager
def soft_limit(limit: int) -> Iterator[None]:
    """Change the soft limit of open descriptors of this process and of those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Run:
    """`autothrottle run` and a client of it on another host than the busy one."""

    def __init__(self, stack: ExitStack, server: ZooKeeperServer, tree: Tree, tls: bool) -> None:
        self.tls = tls
        prefixes = {"zk-prefix": tree.kafka.prefix, "zk-config-prefix": tree.own.prefix}
        options = OPTIONS | prefixes | (TLS_OPTIONS if tls else {})
        deployment = Deployment(server.connect, "", stack.enter_context(scratch_directory()), options)
        self.process = deployment.process("run", "run", {})
        stack.callback(self.process.stop)
        with soft_limit(SOFT_LIMIT):
            self.process.start()
        self.process.wait_until(lambda: "gRPC API:" in self.process.log_end(200), 60.0)
        addresses = dict(re.findall(r"(gRPC|Admin) API: (\S+)", self.process.log_end(200)))
        self.grpc, self.http = addresses["gRPC"], addresses["Admin"]

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A new connection to the gRPC port."""
        # A connection that is refused in the first moment of a burst is tried again soon.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
        if not self.tls:
            opened = grpc.insecure_channel(self.grpc, options)
        else:
            pem = (CERTIFICATES / "client.pem").read_bytes()
            credentials = grpc.ssl_channel_credentials((CERTIFICATES / "ca.pem").read_bytes(), pem, pem)
            opened = grpc.secure_channel(self.grpc, credentials, options)
        with opened as channel:
            yield channel

    def probe(self) -> None:
        """Send a probe over HTTP on a new connection of the probing host."""
        source, limit = (PROBING_HOST, 0), 2 * ANSWER_SECONDS
        if self.tls:
            context = ssl._create_unverified_context()
            connection: Any = http.client.HTTPSConnection(
                self.http, timeout=limit, source_address=source, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.http, timeout=limit, source_address=source)
        try:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        finally:
            connection.close()

    def check(self) -> None:
        """Call gRPC health on a new connection."""
        with self.channel() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=2 * ANSWER_SECONDS, wait_for_ready=True)

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            (kilobytes,) = [line.split()[1] for line in status if line.startswith("VmRSS")]
        return int(kilobytes) * 1024


class Observation:
    """Answers of probes, starts of cycles, memory and log of a process while its context is open."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seconds: dict[str, list[float]] = {"HTTP probe": [0.0], "gRPC check": [0.0]}
        self.failures: list[str] = []
        self.starts: list[float] = []
        """Starts of cycles during this observation."""
        self._done = threading.Event()
        work: tuple[Callable[[], None], ...] = (
            lambda: self._ask("HTTP probe", run.probe),
            lambda: self._ask("gRPC check", run.check),
            self._watch,
        )
        self._threads = [threading.Thread(target=target) for target in work]

    def __enter__(self) -> Observation:
        self._began, self._began_at = time.monotonic(), time.time()
        self._log_size = self.run.process.log.stat().st_size
        self.memory = self.highest = self.run.memory()
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(self.starts) >= 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self.minutes = (time.monotonic() - self._began) / 60

    def verify(self) -> None:
        """Check the limits, and print what was measured."""
        gap = max(later - earlier for earlier, later in pairwise(self.starts))
        log_bytes = self.run.process.log.stat().st_size - self._log_size
        slowest = {name: max(seconds) for name, seconds in self.seconds.items()}
        shown = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest.items())
        print(f"{shown}, gap {gap:.2f} s, growth {self.highest - self.memory:,} bytes, log {log_bytes:,} bytes")
        assert not self.failures
        assert max(slowest.values()) < ANSWER_SECONDS
        assert gap < INTERVAL_SECONDS + SLACK_SECONDS
        assert self.highest - self.memory < GROWTH_BYTES
        assert log_bytes < LOG_BYTES_PER_MINUTE * max(1.0, self.minutes)

    def _ask(self, name: str, ask: Callable[[], None]) -> None:
        while not self._done.wait(0.1):
            began = time.monotonic()
            try:
                ask()
            except (OSError, AssertionError, http.client.HTTPException, grpc.RpcError) as error:
                self.failures.append(f"{name}: {error!r}")
            self.seconds[name].append(time.monotonic() - began)
            self.highest = max(self.highest, self.run.memory())

    def _watch(self) -> None:
        with self.run.channel() as channel:
            stub: Any = planner_pb2_grpc.PlannerServiceStub(channel)
            for answer in stub.WatchCycles(planner_pb2.WatchCyclesRequest()):
                start = answer.cycle.start_time.ToDatetime(UTC).timestamp()
                if start >= self._began_at:
                    self.starts.append(start)
                if self._done.is_set():
                    return


def connections(stack: ExitStack, address: str, count: int) -> None:
    """Open connections of the busy host that send nothing."""
    host, _, port = address.rpartition(":")
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.bind((BUSY_HOST, 0))
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.connect((host, int(port)))


def throttle_seconds(tree: Tree, topic: str, leader: int, follower: int) -> float:
    """Move a partition; return the time until both brokers have a throttle."""
    tree.add_topic(topic, {0: (leader,)})
    time.sleep(0.2)  # discovery reads the new topic
    began = time.monotonic()
    tree.submit_reassignment(topic, {0: (follower,)})
    eventually(lambda: tree.current(ConfigResource.broker(leader)).get(LEADER_RATE) == RATE)
    eventually(lambda: tree.current(ConfigResource.broker(follower)).get(FOLLOWER_RATE) == RATE)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("tls", "restart"),
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.repeat),
        pytest.param(False, True, marks=pytest.mark.repeat),
        pytest.param(True, True, marks=pytest.mark.repeat),
    ],
    ids=["plain", "tls", "plain-restart", "tls-restart"],
)
def test_idle_connections_and_bursts_of_one_host_change_nothing_for_others(
    fresh_zookeeper: ZooKeeperServer, tls: bool, restart: bool
) -> None:
    """1,024 idle connections took all descriptors: a new move was not throttled, and ZooKeeper was out of reach.

    A burst of 2,000 connections of one host was accepted in full, and all probes were answered with 503.
    """
    with ExitStack() as stack, soft_limit(1 << 20):
        tree = Tree(stack.enter_context(session(fresh_zookeeper, 30.0)))
        run = Run(stack, fresh_zookeeper, tree, tls)
        throttle_seconds(tree, "first", 1001, 1002)
        with Observation(run) as observation:
            for address in (run.grpc, run.http):
                connections(stack, address, IDLE)
            time.sleep(1.0)
            for address in (run.grpc, run.http):
                connections(stack, address, BURST)
            seconds = throttle_seconds(tree, "second", 1003, 1004)
            time.sleep(2 * INTERVAL_SECONDS)
        print(f"throttle within {seconds:.2f} s")
        observation.verify()
        assert seconds < THROTTLE_SECONDS
        assert tree.current(ConfigResource.broker(1001))[LEADER_RATE] == RATE
        assert "has too many connections" in run.process.log_end(500)
        if restart:
            restart_and_verify(stack, fresh_zookeeper, tree, run)


def restart_and_verify(stack: ExitStack, server: ZooKeeperServer, tree: Tree, run: Run) -> None:
    """Restart ZooKeeper among idle connections, and verify that the process reaches it again and throttles."""
    for address in (run.grpc, run.http):
        connections(stack, address, IDLE)
    server.kill()
    time.sleep(3.5)  # the leader gives up its term
    server.start()
    run.process.wait_until(lambda: "Leading in term 2" in run.process.log_end(1_000), 60.0)
    with Observation(run) as observation:
        for address in (run.grpc, run.http):
            connections(stack, address, IDLE)
        seconds = throttle_seconds(tree, "third", 1002, 1003)
        time.sleep(2 * INTERVAL_SECONDS)
    print(f"throttle after the restart within {seconds:.2f} s")
    observation.verify()
    assert seconds < THROTTLE_SECONDS
