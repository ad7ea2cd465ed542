"""The help of a service lists the options that the service reads when it starts."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import pytest

from autothrottle.__main__ import _SERVICES
from autothrottle.composition.cluster import validate_kafka_settings
from autothrottle.composition.services import Composition
from autothrottle.runtime.command_line import BROKER_OPTIONS, COMMANDS
from autothrottle.runtime.configuration import OPTIONS, Configuration
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown
from autothrottle_lab.servers.zookeeper import ZooKeeperServer

READ_BEFORE = {"config", "version", "log-format", "log-level", "max-rate", "kafka-native-mode"}
READ_BEFORE |= {"insecure-listen", "capacity", "zk-session-timeout"}
"""Options that the process reads before it builds its service."""
WITH_TLS = {"tls-server-name"}
"""Options that are read only with certificates."""
WITH_STATE_IN_KAFKA = {"state-topic"}
"""Options that are read only with the state in Kafka; without it these services have no connection with brokers."""
WITHOUT_BROKERS = {service: BROKER_OPTIONS for service in ("planner", "gateway")}
IN_PASSING = {
    "metrics": {"kafka-bootstrap-controllers"},
    "admin": {"change-threshold", "failure-threshold", "skip-auto-delete-throttles"},
    "gateway": {"open-endpoints"},
    "run": {f"{service}-addr" for service in ("discovery", "metrics", "planner", "applier", "admin")},
}
"""Service -> options that it reads together with others and does not use; `run` reads addresses that it has set."""


class RecordingConfiguration(Configuration):
    """Remembers the names of the options that were read; `dataclasses.replace` reads all of them and does not count."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> object:
        if sys._getframe(1).f_globals["__name__"] != "dataclasses":
            RecordingConfiguration.read.add(name.replace("_", "-"))
        return super().__getattribute__(name)


@pytest.mark.parametrize("service", _SERVICES)
def test_a_service_reads_the_options_that_its_help_lists(
    service: str, own_zookeeper: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autothrottle.__main__.give_way", lambda: None)  # it is for the rest of the process
    client_config = tmp_path / "client.properties"
    client_config.touch()
    flags = [
        f"--zk-addr={own_zookeeper.connect}",
        "--api-key=a",
        "--app-key=b",
        "--policy=static",
        "--prometheus-url=http://127.0.0.1:1",
        "--api-listen=localhost:0",
        "--grpc-listen=localhost:0",
        "--metrics-listen=localhost:0",
    ]
    flags += [f"--decisions={tmp_path}", f"--kafka-client-config={client_config}", "--bootstrap-servers=127.0.0.1:1"]
    read: set[str] = set()
    # Datadog is built, too, since its keys are given.
    for backend, source in (("zookeeper", "prometheus"), ("admin", "scrape"), ("admin", "kafka")):
        given = parse([*flags, f"--kafka-backend={backend}", f"--metrics-source={source}"], {})
        recording = RecordingConfiguration(**{field.name: getattr(given, field.name) for field in fields(given)})
        RecordingConfiguration.read.clear()
        with Shutdown() as shutdown:
            if "zk-prefix" in COMMANDS[service].options:
                validate_kafka_settings(recording)
            _SERVICES[service](Composition(recording, shutdown))
            read |= RecordingConfiguration.read & OPTIONS.keys()
    listed = COMMANDS[service].options
    unread = READ_BEFORE | WITH_TLS | WITH_STATE_IN_KAFKA | WITHOUT_BROKERS.get(service, frozenset())
    assert listed - read == listed & unread
    assert read - listed == IN_PASSING.get(service, set())
