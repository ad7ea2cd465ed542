"""Sessions that cannot begin, and the log lines of kazoo."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss
from kazoo.protocol.states import KazooState

from autothrottle.adapters.zookeeper.client import ClientLog, PatientHandler, SecuredClient
from autothrottle.adapters.zookeeper.security import ZooKeeperSecurity
from autothrottle.adapters.zookeeper.session import (
    connect,
    connect_in_background,
    disconnect,
    drop,
    read_after_outage,
)
from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.processes import free_ports
from tests.builders import AT_ONCE, Stopwatch


def test_zookeeper_down_at_start_raises_with_the_address_and_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """kazoo logged a warning for each of ten attempts, none of which named the server."""
    (port,) = free_ports(1)
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable) as caught:
        connect(f"127.0.0.1:{port}", timedelta(seconds=1), timedelta(seconds=1))
    assert str(caught.value) == (
        f"no ZooKeeper server of '127.0.0.1:{port}' answers within 1 s; check --zk-addr and that the servers run"
    )
    assert caplog.messages == [f"Waiting for ZooKeeper at 127.0.0.1:{port} ..."]


def test_later_warnings_name_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("[fe80::1%eth0]:2181,zk2:2181")
    with caplog.at_level(logging.WARNING):
        log.warning("Connection dropped: %s", "refused")
        assert caplog.messages == []
        log.connected = True
        log.warning("Connection dropped: %s", "refused")
        log.info("Zookeeper connection established")
    assert caplog.messages == ["ZooKeeper ([fe80::1%eth0]:2181,zk2:2181): Connection dropped: refused"]


def test_errors_are_logged_before_the_first_connection(caplog: pytest.LogCaptureFixture) -> None:
    ClientLog("zk1:2181").error("Unhandled exception in connection loop")
    assert caplog.messages == ["ZooKeeper (zk1:2181): Unhandled exception in connection loop"]


@pytest.fixture
def frozen_zookeeper() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_stop_ends_the_wait_for_the_first_connection(frozen_zookeeper: str) -> None:
    """A service that was stopped during its start waited 15 s for ZooKeeper, and 10 s more to close the connection."""
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Unavailable):
        connect(frozen_zookeeper, timedelta(seconds=60), timedelta(seconds=60), stop)
    assert time.monotonic() - start < 5


def test_dropped_session_fails_requests_in_progress_and_later_ones(frozen_zookeeper: str) -> None:
    client = connect_in_background(frozen_zookeeper, timedelta(seconds=60))
    answer = client.get_async("/")
    start = time.monotonic()
    drop(client)
    for pending in (answer, client.get_async("/")):
        with pytest.raises((ConnectionLoss, ConnectionClosedError)):
            pending.get(timeout=60)
    assert read_after_outage(client, lambda: 1, start + 60) is None
    disconnect(client)
    assert time.monotonic() - start < 5


def test_session_without_connection_ends_at_once(frozen_zookeeper: str) -> None:
    """kazoo waited for the answer to its handshake: 10 s for each of the sessions of a process."""
    client = connect_in_background(frozen_zookeeper, timedelta(seconds=60))
    stopwatch = Stopwatch()
    disconnect(client)
    disconnect(client)
    assert stopwatch.seconds < AT_ONCE


def test_late_answer_to_a_heartbeat_does_not_cost_the_connection() -> None:
    """kazoo waited for a third of the session. A server that was busy for 2 s then lost all its clients at once."""
    handler = PatientHandler(timedelta(seconds=3))
    handler.awaits_heartbeat = lambda: True
    server, client = socket.socketpair()
    with server, client:
        threading.Timer(0.3, server.send, [b"pong"]).start()
        assert handler.select([client], [], [], 0.05)[0] == [client]
        client.recv(4)
        began = time.monotonic()
        assert not any(handler.select([client], [], [], 0.05))
        assert 1.8 < time.monotonic() - began < 5  # two thirds of the session after the last answer


def test_select_without_a_heartbeat_keeps_its_timeout() -> None:
    server, client = socket.socketpair()
    with server, client:
        began = time.monotonic()
        assert not any(PatientHandler(timedelta(seconds=60)).select([client], [], [], 0.01))
        assert time.monotonic() - began < 5


def test_select_tells_readable_sockets_from_writable_ones() -> None:
    handler = PatientHandler(timedelta(seconds=60))
    server, client = socket.socketpair()
    with server, client:
        assert handler.select([client], [client], [], 1) == ([], [client], [])
        server.send(b"answer")
        assert handler.select([client], [], [], 1) == ([client], [], [])
        assert handler.select([client], [client], [], 1) == ([client], [client], [])
        server.close()
        assert handler.select([client], [], [], 1)[0] == [client]
    with pytest.raises((TypeError, ValueError)):
        handler.select([client], [], [], 1)


def test_a_caller_hears_soon_of_a_connection_that_was_lost_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls waited as long as those of operators last, 5 s. Each command said that admin does not answer."""
    client = SecuredClient("zk1:2181,zk2:2181", timedelta(seconds=6), ZooKeeperSecurity())
    client.require_connection()
    client._note_state(KazooState.SUSPENDED)
    client.require_connection()
    monkeypatch.setattr(client, "_loss_time", time.monotonic() - 30)
    client._note_state(KazooState.LOST)
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"no ZooKeeper server of zk1:2181, zk2:2181 has answered for 30 s. Fix: "):
        client.require_connection()
    assert 0.9 < time.monotonic() - began < 5
    client._note_state(KazooState.CONNECTED)
    client.require_connection()
