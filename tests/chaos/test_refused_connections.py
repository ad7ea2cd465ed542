"""Thousands of refused connections of the clients of Kafka and ZooKeeper use up nothing. Work goes on after them."""

from __future__ import annotations

import logging
import resource
import socket
import time
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import _DirectConnection
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.zookeeper.client import PatientHandler, SecuredClient
from autothrottle.adapters.zookeeper.security import ZooKeeperSecurity
from autothrottle.adapters.zookeeper.session import disconnect
from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.processes import free_ports
from tests.builders import eventually
from tests.chaos.lies import Liar
from tests.chaos.memory_brokers import BROKERS, STATE_TOPIC, MemoryBrokers, virtual_network
from tests.chaos.proxy import Framing
from tests.resources import usage

COUNTS = [pytest.param(300, id="300"), pytest.param(10_000, id="10,000", marks=pytest.mark.repeat)]
MOST_LINES = 5
MOST_MEGABYTES = 20
WARM_UP = 100
"""Refused connections before the first measurement."""


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("count", COUNTS)
def test_refused_connections_of_the_kafka_clients_use_up_nothing(
    count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0
    create = _DirectConnection.socket

    def counted(self: _DirectConnection, family: int, sock_type: int, proto: int) -> Any:
        nonlocal attempts
        attempts += 1
        return create(self, family, sock_type, proto)

    monkeypatch.setattr(_DirectConnection, "socket", counted)
    with virtual_network(MemoryBrokers(), Liar(Framing.KAFKA)) as network, caplog.at_level(logging.INFO):
        settings = KafkaSettings(network.servers, request_timeout=timedelta(seconds=5))
        with closing(KafkaAdmin(settings)) as admin, closing(TopicLog(settings, STATE_TOPIC)) as log:
            assert admin.brokers() == {*BROKERS}
            topic_id, _ = log.locate(time.monotonic() + 5)
            network.refuse()
            before, megabytes = (0, 0), 0.0
            while attempts < count:
                for call in (admin.brokers, lambda: log.read(topic_id, 0, -1, 0.1, time.monotonic() + 5)):
                    with suppress(Unavailable):
                        call()
                if before == (0, 0) and attempts >= WARM_UP:
                    before, megabytes = usage(), peak_megabytes()
            after = usage()
            assert after[0] <= before[0] + 3 and after[1] <= before[1] + 2
            assert peak_megabytes() - megabytes <= MOST_MEGABYTES
            assert len(caplog.messages) <= MOST_LINES
            network.accept()
            returned = time.monotonic()
            while True:
                with suppress(Unavailable):
                    assert admin.brokers() == {*BROKERS}
                    assert log.locate(time.monotonic() + 5)[0] == topic_id
                    break
            assert time.monotonic() - returned <= 10.0


@pytest.mark.parametrize("count", COUNTS)
def test_refused_connections_of_the_zookeeper_client_use_up_nothing(
    count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0
    create = PatientHandler.create_connection

    def counted(self: PatientHandler, *arguments: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return create(self, *arguments, **options)

    monkeypatch.setattr(PatientHandler, "create_connection", counted)
    (port,) = free_ports(1)
    with caplog.at_level(logging.INFO):
        client = SecuredClient(f"127.0.0.1:{port}", timedelta(seconds=2), ZooKeeperSecurity())
        client._connection.retry_sleeper.sleep_func = lambda seconds: None
        client.start_async()
        try:
            eventually(lambda: attempts >= WARM_UP)
            before, megabytes = usage(), peak_megabytes()
            eventually(lambda: attempts >= count, 300.0)
            after = usage()
            assert after[0] <= before[0] + 3 and after[1] <= before[1] + 1
            assert peak_megabytes() - megabytes <= MOST_MEGABYTES
            assert len(caplog.messages) <= MOST_LINES
            with socket.create_server(("127.0.0.1", port)) as listener:
                listener.settimeout(10.0)
                listener.accept()[0].close()
        finally:
            disconnect(client)
