"""Programs whose server does not answer: a sign of life first, then an error that says what is true."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.concurrency.announcements import PATIENCE
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.zookeeper.session import connect
from autothrottle.composition import state
from autothrottle.core.errors import Unavailable
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown
from autothrottle.topicmappr import metricsfetcher
from autothrottle.topicmappr.command_line import main as topicmappr
from autothrottle_client import AdminClient, waiting

pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")

CLOSED = "127.0.0.1:1"
LIMIT = timedelta(seconds=1.7)
"""Longer than the patience, and short enough for a sign of life within 2 s of the start."""


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a port that accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_all_connections_of_a_process_announce_a_silent_kafka_once(
    silent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A start with an unreachable Kafka was silent for 15.6 s. An operator could not tell that from a hang."""
    settings = KafkaSettings((silent,), login=KafkaLogin(None))
    for _ in range(2):
        with closing(KafkaAdmin(settings)) as admin, pytest.raises(Unavailable):
            admin.brokers(timeout=LIMIT)
    assert caplog.messages.count(f"Waiting for Kafka at {silent} ...") == 1


def test_a_silent_zookeeper_is_announced(silent: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable):
        connect(silent, timedelta(seconds=1), LIMIT)
    assert f"Waiting for ZooKeeper at {silent} ..." in caplog.messages


def test_a_default_zookeeper_that_does_not_answer_names_kafka_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_CONNECT_TIMEOUT", timedelta(seconds=0.1))
    with Shutdown() as shutdown:
        stores = state.ZooKeeperState(parse([f"--zk-addr={CLOSED}"], {}), shutdown)
        for is_default, suffix in (
            (False, "servers run"),
            (True, "On Kafka alone: --bootstrap-servers, and no option"),
        ):
            stores._is_default = is_default
            with pytest.raises(Unavailable, match=f"^no ZooKeeper server of '{CLOSED}' answers.*{suffix}"):
                stores.new_session()


def test_a_silent_admin_service_is_announced_once(silent: str) -> None:
    said: list[str] = []
    with AdminClient(silent, LIMIT, on_silence=said.append) as admin:
        for _ in range(2):
            with pytest.raises(Unavailable):
                admin.state()
    assert said == [f"waiting for autothrottle's admin service at {silent} ..."]


def test_a_watch_that_has_failed_announces_nothing_afterwards(silent: str) -> None:
    """The watch kept its connections after it had failed. Their line came later, in the output of another command."""
    said: list[str] = []
    with AdminClient(silent, timedelta(seconds=0.1), on_silence=said.append) as admin, pytest.raises(Unavailable):
        admin.watch_cycles()
    time.sleep(waiting.PATIENCE.total_seconds() + 0.1)
    assert said == []


def test_a_server_that_fails_at_once_is_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    settings = KafkaSettings(("127.0.0.1:2",), login=KafkaLogin(None))
    with closing(KafkaAdmin(settings)) as admin, pytest.raises(Unavailable):
        admin.brokers()
    time.sleep(PATIENCE.total_seconds() + 0.1)
    assert not any("Waiting" in message for message in caplog.messages)


@pytest.mark.parametrize(
    "arguments",
    [
        [
            "autothrottle",
            "run",
            "--capacity=100",
            "--api-listen=127.0.0.1:0",
            "--grpc-listen=127.0.0.1:0",
            "--bootstrap-servers",
        ],
        ["autothrottle", "uninstall", "--bootstrap-servers"],
        ["autothrottle.topicmappr.command_line", "export", "cluster.json", "--metrics-source=kafka", "--kafka-addr"],
    ],
)
def test_a_program_says_that_it_waits_for_kafka(arguments: Sequence[str], silent: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *arguments, silent]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stderr is not None
        try:
            assert any(f"Waiting for Kafka at {silent} ..." in line for line in running.stderr)
            assert running.poll() is None
        finally:
            running.kill()


def test_throttlectl_says_that_it_waits(silent: str) -> None:
    command = [sys.executable, "-m", "autothrottle_client.throttlectl", "state", "--addr", silent, "--timeout", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    waiting, error = ended.stderr.splitlines()
    assert waiting == f"throttlectl: waiting for autothrottle's admin service at {silent} ..."
    assert error.startswith("throttlectl: admin is unavailable: ")
    assert ended.returncode == 4


def test_a_command_that_ends_does_not_say_that_it_tries_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """topicmappr said "autothrottle tries again", and ended."""
    assert topicmappr(["export", str(tmp_path / "x"), "--kafka-addr", CLOSED]) == 1
    assert metricsfetcher.main(["--source=kafka", "--kafka-addr", CLOSED]) == 1
    for line in capsys.readouterr().err.splitlines():
        assert line == (
            f"{CLOSED} is unreachable: KafkaConnectionError: 111 ECONNREFUSED. "
            "Fix: start it, or check the network to it"
        )
