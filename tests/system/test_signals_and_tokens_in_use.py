"""`autothrottle run`: a token that leaves its file, signals, and what a killed process leaves behind."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.simulated_recovery import SimulatedRecovery

ANNAS, BERTS = "a" * 32, "b" * 32


def status(http: str, token: str) -> int:
    request = urllib.request.Request(f"http://{http}/v1/overrides", headers={"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@contextmanager
def leading(recovery: SimulatedRecovery, tokens: Path, temporary: str) -> Iterator[tuple[Process, str]]:
    """Run all services in one process; yield it and the address of its HTTP API."""
    deployment = recovery.deployment(api_tokens_file=str(tokens), api_listen="127.0.0.1:0")
    process = deployment.process("run", "run", {})
    process._environment["TMPDIR"] = temporary
    with process:
        process.wait_until(lambda: "Autothrottle Running" in process.log.read_text(), 60)
        yield process, re.findall(r" Admin API: (\S+)$", process.log.read_text(), re.MULTILINE)[-1]


def sockets(temporary: str) -> int:
    """Return the number of directories of sockets."""
    return len([*Path(temporary).glob("autothrottle-*")])


@pytest.fixture
def hang_up_is_heeded() -> Iterator[None]:
    """A process inherits that SIGHUP is ignored, also from nohup and these tests."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.usefixtures("hang_up_is_heeded")
def test_a_running_leader_refuses_a_removed_token_and_stops_in_order_at_a_signal(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """A removed token wrote on beside a faulty line, and SIGHUP and SIGUSR1 ended the leader at once."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"anna {ANNAS}\nbert {BERTS}\n")
    with (
        TemporaryDirectory(dir="/tmp") as temporary,  # pytest's directories are too long for sockets
        SimulatedRecovery(fresh_zookeeper, tmp_path, {"t": [10]}) as recovery,
    ):
        with leading(recovery, tokens, temporary) as (process, http):
            tokens.write_text(f"bert {BERTS}\ncarl\n")
            eventually(lambda: status(http, ANNAS) == 401, 30)
            assert status(http, BERTS) == 200
            os.kill(process.pid, signal.SIGHUP)
            process.wait_until(lambda: "SIGHUP: reading the files of credentials" in process.log.read_text(), 60)
            assert status(http, BERTS) == 200
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        assert sockets(temporary) == 1
        tokens.write_text(f"bert {BERTS}\n")
        with leading(recovery, tokens, temporary) as (process, _):
            assert sockets(temporary) == 1
            os.kill(process.pid, signal.SIGUSR1)
            assert process.wait(30) == 0
        assert "SIGUSR1: stopping, as at SIGTERM" in process.log.read_text()
        assert sockets(temporary) == 0
