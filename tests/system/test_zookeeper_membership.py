"""Who runs is listed for as long as its session lasts, and again after every session that was lost."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kazoo.client import KazooClient

from autothrottle import __version__
from autothrottle.adapters.zookeeper.membership import ZooKeeperMembership
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.removal import remove_own_tree
from autothrottle.adapters.zookeeper.session import connect_in_background, disconnect_soon
from autothrottle.lab.processes import Process, scratch_directory
from autothrottle.lab.services import Deployment
from autothrottle.lab.zookeeper import ZooKeeperServer
from tests.adapters.contract_membership import TIMEOUT, MembershipContract, listed, member
from tests.builders import eventually
from tests.system.zookeeper_tree import Tree, session

SESSION_SECONDS = 20.0
QUICK_SECONDS = 3.0
"""A third of it passes between two looks of a process at its own node."""

ONE = member("admin")


class Subject:
    """Processes that share one list, each with a session of its own."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.server, self._stack = server, stack
        self.tree = Tree(stack.enter_context(session(server)))
        self._clients: dict[int, KazooClient] = {}

    def membership(self, seconds: float = SESSION_SECONDS) -> ZooKeeperMembership:
        duration = timedelta(seconds=seconds)
        client = connect_in_background(self.server.connect, duration)
        self._stack.callback(disconnect_soon, client)
        membership = ZooKeeperMembership(client, self.tree.own, duration)
        self._stack.callback(membership.leave)
        self._clients[id(membership)] = client
        eventually(lambda: client.connected)
        return membership

    def lose_session(self, membership: ZooKeeperMembership) -> None:
        """A second connection takes the session over and closes it, as an expiry does."""
        thief = KazooClient(self.server.connect, client_id=self._clients[id(membership)].client_id)
        thief.start(timeout=30)
        thief.stop()
        thief.close()

    def session_id(self, membership: ZooKeeperMembership) -> int:
        """The session of now; 0: none."""
        session = self._clients[id(membership)].client_id
        return int(session[0]) if session else 0

    def owner(self) -> int | None:
        """The session of the only node; None when there is not one."""
        nodes = [node for node in self.tree.nodes() if node.startswith("/members/")]
        if len(nodes) != 1:
            return None
        stat = self.tree.client.exists(f"{self.tree.own.root}{nodes[0]}")
        return int(stat.ephemeralOwner) if stat else None


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperMembership(MembershipContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


def test_after_a_lost_session_a_process_is_listed_again(subject: Subject) -> None:
    membership = subject.membership()
    membership.join(ONE)
    eventually(lambda: subject.owner() == subject.session_id(membership))
    lost = subject.session_id(membership)
    subject.lose_session(membership)
    eventually(lambda: subject.session_id(membership) != lost and subject.owner() == subject.session_id(membership))
    listed(membership, ONE)


def test_a_node_that_somebody_deleted_stands_again(subject: Subject) -> None:
    membership = subject.membership(QUICK_SECONDS)
    membership.join(ONE)
    listed(membership, ONE)
    subject.tree.client.delete(subject.tree.own.members, recursive=True)
    listed(membership, ONE)


def test_the_node_of_an_earlier_session_gives_way(subject: Subject) -> None:
    """Until the server ends that session the old node stands under our name, and would go with it."""
    membership, client = subject.membership(QUICK_SECONDS), subject.tree.client
    membership.join(ONE)
    eventually(lambda: subject.owner() == subject.session_id(membership))
    (name,) = client.get_children(subject.tree.own.members)
    transaction = client.transaction()
    transaction.delete(f"{subject.tree.own.members}/{name}")
    transaction.create(f"{subject.tree.own.members}/{name}", b"{}", ephemeral=True)
    assert not any(isinstance(result, Exception) for result in transaction.commit())
    eventually(lambda: subject.owner() == subject.session_id(membership))
    listed(membership, ONE)


def test_a_node_that_describes_no_member_hides_nobody(subject: Subject) -> None:
    membership = subject.membership()
    membership.join(ONE)
    listed(membership, ONE)
    subject.tree.write(f"{subject.tree.own.members}/somebody", b"[")
    assert membership.members(TIMEOUT) == (ONE,)


def test_a_process_is_listed_once_zookeeper_appears_and_again_after_it_was_away() -> None:
    with scratch_directory() as directory, ZooKeeperServer(directory) as server, contextlib.ExitStack() as stack:
        server.kill()
        duration = timedelta(seconds=SESSION_SECONDS)
        client = connect_in_background(server.connect, duration)
        stack.callback(disconnect_soon, client)
        membership = ZooKeeperMembership(client, OwnPaths(), duration)
        stack.callback(membership.leave)
        membership.join(ONE)
        for _ in range(2):
            server.start()
            eventually(lambda: client.connected)
            listed(membership, ONE)
            server.kill()
            eventually(lambda: not client.connected)


# Uninstalling.


def test_an_empty_list_is_removed_and_one_of_running_services_is_left_to_them(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    membership = subject.membership()
    membership.join(ONE)
    listed(membership, ONE)
    remove_own_tree(subject.tree.client, subject.tree.own)
    assert "services still run, and stay listed until they end: admin-" in caplog.text
    assert membership.members(TIMEOUT) == (ONE,)
    leaving = threading.Thread(target=membership.leave)
    leaving.start()
    remove_own_tree(subject.tree.client, subject.tree.own, patience=timedelta(seconds=60))
    leaving.join()
    assert subject.tree.nodes() == set()


# Processes.


def test_a_service_is_listed_while_it_runs_and_gone_at_once_when_it_is_stopped(subject: Subject) -> None:
    with scratch_directory() as directory:
        options = {"zk-config-prefix": subject.tree.own.prefix, "zk-session-timeout": "60", "listen": "127.0.0.1:0"}
        deployment = Deployment(subject.server.connect, "http://127.0.0.1:1", directory, options)
        process = deployment.process("metrics", "metrics", {})
        process.start()
        try:
            watching = subject.membership()
            eventually(lambda: watching.members(TIMEOUT))
            (one,) = watching.members(TIMEOUT)
            assert (one.service, one.roles, one.version) == ("metrics", ("metrics",), __version__)
            assert f"Metrics listens on {one.address}" in process.log_end()
            process.terminate()
            assert process.wait(within_seconds=60.0) == 0
        finally:
            process.stop()
        assert watching.members(TIMEOUT) == ()  # long before its session would be over


def answer(gateway: Process) -> dict[str, Any] | None:
    """The state of the cluster as a gateway tells it; None while it cannot."""
    found = re.search(r"Admin API: (\S+)", gateway.log_end())
    if not found:
        return None
    try:
        with urllib.request.urlopen(f"http://{found[1]}/v1/state", timeout=30) as response:
            state: dict[str, Any] = json.load(response)
            return state
    except (urllib.error.URLError, TimeoutError):
        return None


def test_services_without_any_address_find_each_other(subject: Subject) -> None:
    with scratch_directory() as directory, contextlib.ExitStack() as stack:
        options = {"zk-config-prefix": subject.tree.own.prefix, "zk-prefix": subject.tree.kafka.prefix}
        deployment = Deployment(subject.server.connect, "http://127.0.0.1:1", directory, options)
        services = ("gateway", "admin", "planner", "discovery")
        processes = {name: deployment.process(name, name, {"api-listen": "127.0.0.1:0"}) for name in services}
        for process in processes.values():
            stack.callback(process.stop)
            process.start()
        eventually(lambda: (state := answer(processes["gateway"])) and len(state["members"]) == len(services))
        state = answer(processes["gateway"])
        assert state is not None
        addresses = {m["service"]: m["address"] for m in state["members"]}
        assert addresses.keys() == set(services)
        assert state["leaderAddress"] == addresses["planner"]
