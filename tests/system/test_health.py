"""Health of real processes while ZooKeeper is frozen."""

from __future__ import annotations

import http.client
import json
import re
import time
from contextlib import ExitStack
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.zookeeper_tree import Tree, session

ANSWER_SECONDS = 1.0
SESSION_SECONDS = 3.0


def probe(address: str, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and body of a probe. Its answer takes at most a second."""
    connection = http.client.HTTPConnection(address, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.load(response)
    finally:
        connection.close()


def failed(address: str, path: str) -> set[str]:
    """Return the names of the failed checks."""
    status, body = probe(address, path)
    names = {check["name"] for check in body["checks"] if not check["ok"]}
    assert body["ok"] is (status == 200) is (not names)
    return names


def address_of(process: Process, label: str) -> str:
    process.wait_until(lambda: re.search(rf"{label}: \S+", process.log_end(200)) is not None, 60.0)
    return str(re.findall(rf"{label}: (\S+)", process.log_end(200))[-1])


def test_readiness_follows_zookeeper_and_health_answers_while_it_is_frozen(fresh_zookeeper: ZooKeeperServer) -> None:
    """gRPC health reported SERVING from start to stop, and the HTTP API had no probe.

    A load balancer therefore kept sending calls to a process that could not reach ZooKeeper.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        tree = Tree(stack.enter_context(session(fresh_zookeeper)))
        options = {
            "zk-prefix": tree.kafka.prefix,
            "zk-config-prefix": tree.own.prefix,
            "session-timeout": f"{SESSION_SECONDS:g}",
            "interval": "1",
            "api-listen": "127.0.0.1:0",
        }
        process = Deployment(fresh_zookeeper.connect, "http://127.0.0.1:1", directory, options).process(
            "run", "run", {}
        )
        stack.callback(process.stop)
        process.start()
        http_address, grpc_address = address_of(process, "Admin API"), address_of(process, "gRPC API")
        channel = stack.enter_context(grpc.insecure_channel(grpc_address))
        stub: Any = health_pb2_grpc.HealthStub(channel)

        def status(service: str = "") -> int:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=ANSWER_SECONDS)
            return int(answer.status)

        eventually(lambda: not failed(http_address, "/readyz"))
        eventually(
            lambda: status() == status("autothrottle.v1.PlannerService") == health_pb2.HealthCheckResponse.SERVING
        )
        names = {one["name"] for one in probe(http_address, "/readyz")[1]["checks"]}
        assert names == {"descriptors", "state store", "kafka", "discovery", "planner", "admin"}
        fresh_zookeeper.freeze()
        frozen = time.monotonic()
        eventually(lambda: "state store" in failed(http_address, "/readyz"))
        assert time.monotonic() - frozen < SESSION_SECONDS * 2
        assert failed(http_address, "/healthz") == set()
        eventually(lambda: status("autothrottle.v1.AdminService") == health_pb2.HealthCheckResponse.NOT_SERVING)
        fresh_zookeeper.thaw()
        eventually(lambda: not failed(http_address, "/readyz"))
        eventually(lambda: status() == health_pb2.HealthCheckResponse.SERVING)
