"""Sessions that cannot begin, and the log lines of kazoo."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper.session import ClientLog, connect
from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.processes import free_ports


def test_zookeeper_down_at_start_raises_with_the_address_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """kazoo logged a warning for each of ten attempts, none of which named the server."""
    (port,) = free_ports(1)
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable) as caught:
        connect(f"127.0.0.1:{port}", timedelta(seconds=1), timedelta(seconds=1))
    assert str(caught.value) == (
        f"no ZooKeeper server of '127.0.0.1:{port}' answers within 1 s; check --zk-addr and that the servers run"
    )
    assert caplog.messages == []


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
