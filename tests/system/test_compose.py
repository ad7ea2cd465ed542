"""deploy/compose.yaml without a container daemon: each service's command and environment, on a host with its name."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from autothrottle_lab.servers.kafka import KafkaServer, java_command
from autothrottle_lab.servers.processes import Process, run_command
from tests.builders import eventually
from tests.paths import ROOT
from tests.system.dockerfile import read_image
from tests.system.hosts import NEEDS_HOSTS, Host, network

pytestmark = [NEEDS_HOSTS, pytest.mark.repeat, pytest.mark.timeout(600)]

COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text("utf-8"))
REPLICAS = ("autothrottle-1", "autothrottle-2")
RELEASE = COMPOSE["services"]["kafka"]["image"].partition(":-apache/kafka:")[2].removesuffix("}")
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
"""The cluster id that Kafka's image sets by default."""


def kafka_server(host: Host, directory: Path) -> KafkaServer:
    """Return the broker, formatted; Kafka's image makes a property of each KAFKA_ variable in the same way."""
    variables = COMPOSE["services"]["kafka"]["environment"]
    properties = {name.removeprefix("KAFKA_").replace("_", ".").lower(): value for name, value in variables.items()}
    server = KafkaServer("kafka", directory / "kafka", 9092, java_command(RELEASE, 256), properties, host.place)
    arguments = ["format", f"--cluster-id={CLUSTER_ID}", "--config", str(server.configuration)]
    status, output = run_command([*server.command, "kafka.tools.StorageTool", *arguments])
    assert status == 0, output
    return server


def replica(host: Host, directory: Path) -> Process:
    service, image = COMPOSE["services"][host.name], read_image(ROOT / "deploy/Dockerfile")
    variables = {"HEALTH_URL": image.environment["HEALTH_URL"], **service["environment"]}
    entrypoint = Path(sys.executable).parent / image.entrypoint[0]
    return Process(
        host.name, host.command([str(entrypoint), *service["command"]], variables), directory / f"{host.name}.log"
    )


def get(host: Host, path: str, name: str) -> tuple[int, str]:
    """Return status and body of a request to a replica by a name of it; (0, ""): it does not listen."""
    connection = http.client.HTTPConnection(host.place.host, 8080, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": name})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def test_replicas_of_the_compose_file_become_healthy_and_agree_on_the_leader(tmp_path: Path) -> None:
    image = read_image(ROOT / "deploy/Dockerfile")
    (scrape,) = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["scrape_configs"]
    (targets,) = (config["targets"] for config in scrape["static_configs"])
    with network(tmp_path, ["kafka", *REPLICAS]) as network_hosts:
        kafka_host, *hosts = network_hosts.hosts
        server = kafka_server(kafka_host, tmp_path)
        with server:
            server.wait_until(lambda: server.listening, 120)
            first, second = (replica(host, tmp_path) for host in hosts)
            with first, second:
                for host, process, target in zip(hosts, (first, second), targets, strict=True):
                    process.wait_until(lambda host=host: get(host, "/readyz", "localhost")[0] == 200, 120)  # type: ignore[misc]
                    check = host.command(image.health_command, {"PATH": "/usr/bin:/bin", **image.environment})
                    assert run_command(check) == (0, "")
                    status, metrics = get(host, scrape.get("metrics_path", "/metrics"), target)
                    assert status == 200 and "autothrottle_" in metrics
                leaders = {f"{name}:8090" for name in REPLICAS}

                def known() -> set[str]:
                    return {json.loads(get(host, "/v1/state", host.name)[1]).get("leaderAddress") for host in hosts}

                eventually(lambda: len(known()) == 1 and known() <= leaders)
                for process in (first, second):
                    process.terminate()
                    assert process.wait(10.0) == 0  # Docker kills a container 10 s after SIGTERM
