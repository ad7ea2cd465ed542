"""A default never moves state: a start that names no store is refused where an earlier version has left its state."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from kazoo.client import KazooClient

from autothrottle.composition.store_choice import refuse_state_left_behind
from autothrottle.core.errors import Invalid
from autothrottle.runtime.command_line import COMMANDS, EXIT_USAGE
from autothrottle.runtime.configuration import Configuration, StateStore
from autothrottle.runtime.configuration_reader import parse
from autothrottle_lab.servers.processes import free_address
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import AT_ONCE, Stopwatch

ALONE = ["--bootstrap-servers=127.0.0.1:1"]
ROOT = "/autothrottle"
PATIENCE = timedelta(seconds=30)
"""Longer than the limit of a start, for a busy machine."""


def configured(server: str, *flags: str) -> Configuration:
    """Return the configuration of a start; `server` stands for localhost:2181, the default."""
    return replace(parse([*ALONE, *flags], {}), zk_addr=(server,))


@pytest.fixture
def client(own_zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(own_zookeeper.connect)
    client.start()
    yield client
    client.delete(ROOT, recursive=True)
    client.stop()
    client.close()


def test_state_in_the_default_zookeeper_is_not_left_behind(own_zookeeper: ZooKeeperServer, client: KazooClient) -> None:
    server = own_zookeeper.connect
    refuse_state_left_behind(configured(server), PATIENCE)
    client.create(ROOT)
    with pytest.raises(Invalid) as caught:
        refuse_state_left_behind(configured(server), PATIENCE)
    assert str(caught.value) == (
        f"no state store is named, and the ZooKeeper at {server} has autothrottle's state ({ROOT}), which the "
        "default, state-store kafka, would leave behind. Fix: --state-store=zookeeper keeps it there, with "
        "--kafka-backend=zookeeper if that is Kafka's ZooKeeper, too; or move it with `autothrottle state export` and "
        "`autothrottle state import`, and give --state-store=kafka"
    )


@pytest.mark.parametrize(
    "flags",
    [["--state-store=kafka"], ["--state-store=zookeeper"], ["--kafka-backend=admin"], ["--kafka-backend=zookeeper"]],
)
def test_a_chosen_store_is_used_without_a_look_at_the_default_one(
    own_zookeeper: ZooKeeperServer, client: KazooClient, flags: list[str]
) -> None:
    client.ensure_path(ROOT)
    configuration = configured(own_zookeeper.connect, *flags)
    refuse_state_left_behind(configuration, PATIENCE)
    is_kafka = flags == ["--state-store=kafka"]
    assert configuration.state_store is (StateStore.KAFKA if is_kafka else StateStore.ZOOKEEPER)


def test_a_host_where_nothing_listens_has_no_state() -> None:
    stopwatch = Stopwatch()
    refuse_state_left_behind(configured(free_address()), PATIENCE)
    assert stopwatch.seconds < AT_ONCE


def test_a_server_that_does_not_answer_may_have_state() -> None:
    """A frozen ZooKeeper keeps its state. So does one without a quorum, which closes each connection."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        stopwatch = Stopwatch()
        with pytest.raises(Invalid) as caught:
            refuse_state_left_behind(configured(address))
        assert stopwatch.seconds < 1 + AT_ONCE
    assert str(caught.value) == (
        f"no state store is named, and the server at {address}, where earlier versions keep their state by default, "
        "does not answer as a ZooKeeper within 1 s, so that its state is unknown. "
        "Fix: --state-store=zookeeper, or --state-store=kafka"
    )


def test_each_command_ends_with_status_2_instead_of_a_start_without_its_state(
    own_zookeeper: ZooKeeperServer, client: KazooClient
) -> None:
    client.ensure_path(ROOT)
    commands = [name for name, command in COMMANDS.items() if "state-store" in command.options and name != "state"]
    assert {"run", "check", "planner", "admin", "uninstall"} <= {*commands}
    program = f"""
import sys
from dataclasses import replace
from datetime import timedelta
from autothrottle import __main__ as m
refuse = m.refuse_state_left_behind
m.refuse_state_left_behind = lambda c: refuse(
    replace(c, zk_addr=("{own_zookeeper.connect}",)), timedelta(seconds={PATIENCE.total_seconds()})
)
print(sorted({{m.main([command, *sys.argv[1:]]) for command in {commands}}}))
"""
    words = [sys.executable, "-c", program, *ALONE, "--capacity=1000MB/s"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == f"[{EXIT_USAGE}]\n", ended.stderr
    errors = [line for line in ended.stderr.splitlines() if "ERROR No state store is named" in line]
    assert len(errors) == len(commands)
    assert all("--state-store=zookeeper" in line and "`autothrottle state export`" in line for line in errors)
