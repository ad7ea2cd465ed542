"""A process is listed as a member during its session, and again after each lost session."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kazoo.client import KazooClient

from autothrottle import __version__
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect_in_background, disconnect
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.membership import ZooKeeperMembership, remove_own_tree
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.membership_contract import TIMEOUT, MembershipContract, member, wait_for_members
from tests.system.zookeeper_tree import Tree, address_of, security_of, session

SESSION_SECONDS = 20.0
QUICK_SECONDS = 3.0
"""Session timeout. A process checks its own node every third of it."""

ONE = member("admin")
LOCAL_PLANNER = replace(member("run", 2), roles=("planner", "admin"), address="127.0.0.1:4003")


class Subject:
    """Processes that share one member list, each with its own session."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.server, self._stack = server, stack
        self.tree = Tree(stack.enter_context(session(server)))
        self._clients: dict[int, KazooClient] = {}

    def membership(self, seconds: float = SESSION_SECONDS) -> ZooKeeperMembership:
        duration = timedelta(seconds=seconds)
        client = connect_in_background(address_of(self.server), duration, security_of(self.server))
        self._stack.callback(disconnect, client)
        membership = ZooKeeperMembership(client, self.tree.own, duration)
        self._stack.callback(membership.leave)
        self._clients[id(membership)] = client
        eventually(lambda: client.connected)
        return membership

    def lose_session(self, membership: ZooKeeperMembership) -> None:
        """Take the session over with a second connection and close it, like an expiry."""
        second_connection = KazooClient(self.server.connect, client_id=self._clients[id(membership)].client_id)
        second_connection.start(timeout=30)
        second_connection.stop()
        second_connection.close()

    def session_id(self, membership: ZooKeeperMembership) -> int:
        """Return the id of the current session; 0 without a session."""
        session = self._clients[id(membership)].client_id
        return int(session[0]) if session else 0

    def owner(self) -> int | None:
        """Return the session id of the only member node; None unless exactly one node exists."""
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


def test_process_is_listed_again_after_a_lost_session(subject: Subject) -> None:
    membership = subject.membership()
    membership.join(ONE)
    eventually(lambda: subject.owner() == subject.session_id(membership))
    lost = subject.session_id(membership)
    subject.lose_session(membership)
    eventually(lambda: subject.session_id(membership) != lost and subject.owner() == subject.session_id(membership))
    wait_for_members(membership, ONE)


def test_a_deleted_node_is_created_again(subject: Subject) -> None:
    membership = subject.membership(QUICK_SECONDS)
    membership.join(ONE)
    wait_for_members(membership, ONE)
    subject.tree.client.delete(subject.tree.own.members, recursive=True)
    wait_for_members(membership, ONE)


def test_a_bug_does_not_end_the_registration(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread ended. After the next lost session the process was missing from the members."""
    membership = subject.membership(QUICK_SECONDS)
    register, bugs = membership._register, iter([KeyError("a bug")])

    def fail_once() -> bool:
        for bug in bugs:
            raise bug
        return register()

    monkeypatch.setattr(membership, "_register", fail_once)
    membership.join(ONE)
    wait_for_members(membership, ONE)
    assert "Registering this process as a member failed unexpectedly, trying again" in caplog.messages


def test_node_of_an_earlier_session_is_replaced(subject: Subject) -> None:
    """Until the server expires the old session, its node exists under our name and would disappear with it."""
    membership, client = subject.membership(QUICK_SECONDS), subject.tree.client
    membership.join(ONE)
    eventually(lambda: subject.owner() == subject.session_id(membership))
    (name,) = client.get_children(subject.tree.own.members)
    transaction = client.transaction()
    transaction.delete(f"{subject.tree.own.members}/{name}")
    transaction.create(f"{subject.tree.own.members}/{name}", b"{}", ephemeral=True)
    assert not any(isinstance(result, Exception) for result in transaction.commit())
    eventually(lambda: subject.owner() == subject.session_id(membership))
    wait_for_members(membership, ONE)


def test_an_unreadable_node_does_not_hide_other_members(subject: Subject) -> None:
    membership = subject.membership()
    membership.join(ONE)
    wait_for_members(membership, ONE)
    subject.tree.write(f"{subject.tree.own.members}/stranger", b"[")
    assert membership.members(TIMEOUT) == (ONE,)


def test_planner_on_loopback_warns_when_a_process_on_another_host_joins(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    planner, other = subject.membership(QUICK_SECONDS), subject.membership()
    planner.join(LOCAL_PLANNER)
    wait_for_members(planner, LOCAL_PLANNER)
    assert "cannot reach" not in caplog.text
    other.join(ONE)
    eventually(lambda: "host1 cannot reach this planner's address 127.0.0.1:4003" in caplog.text)


def test_process_is_listed_when_zookeeper_starts_and_after_each_outage(fresh_zookeeper: ZooKeeperServer) -> None:
    server = fresh_zookeeper
    server.kill()
    with contextlib.ExitStack() as stack:
        duration = timedelta(seconds=SESSION_SECONDS)
        client = connect_in_background(server.connect, duration)
        stack.callback(disconnect, client)
        membership = ZooKeeperMembership(client, OwnPaths(), duration)
        stack.callback(membership.leave)
        membership.join(ONE)
        for _ in range(2):
            server.start()
            eventually(lambda: client.connected)
            wait_for_members(membership, ONE)
            server.kill()
            eventually(lambda: not client.connected)


# Uninstalling.


def test_removal_waits_for_running_services_to_leave(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    membership = subject.membership()
    membership.join(ONE)
    wait_for_members(membership, ONE)
    remove_own_tree(subject.tree.client, subject.tree.own)
    assert "Some services still run and stay registered until they stop: admin-" in caplog.text
    assert membership.members(TIMEOUT) == (ONE,)
    leaving = threading.Thread(target=membership.leave)
    leaving.start()
    remove_own_tree(subject.tree.client, subject.tree.own, patience=timedelta(seconds=60))
    leaving.join()
    assert subject.tree.nodes() == set()


# Processes.


def test_service_is_listed_while_it_runs_and_removed_when_it_stops(subject: Subject) -> None:
    with scratch_directory() as directory:
        options = {"zk-config-prefix": subject.tree.own.prefix, "session-timeout": "60", "listen": "127.0.0.1:0"}
        deployment = Deployment(subject.server.connect, "http://127.0.0.1:1", directory, options)
        process = deployment.process("metrics", "metrics", {})
        process.start()
        try:
            watching = subject.membership()
            eventually(lambda: watching.members(TIMEOUT))
            (one,) = watching.members(TIMEOUT)
            assert (one.service, one.roles, one.version) == ("metrics", ("metrics",), __version__)
            eventually(lambda: f"Metrics listens on {one.address}" in process.log_end())
            process.terminate()
            assert process.wait(within_seconds=60.0) == 0
        finally:
            process.stop()
        assert watching.members(TIMEOUT) == ()  # long before its session expires


@pytest.mark.parametrize("service", ["planner", pytest.param("run", marks=pytest.mark.repeat)])
def test_planner_on_loopback_is_refused_beside_members_on_other_hosts(subject: Subject, service: str) -> None:
    """Two hosts ran the configuration of docs/deployment.md, and each published 127.0.0.1 as the leader's address.

    Requests that the standby passed to the leader then reached the standby itself.
    """
    other = subject.membership()
    other.join(ONE)
    wait_for_members(other, ONE)
    with scratch_directory() as directory:
        options = {"zk-config-prefix": subject.tree.own.prefix, "session-timeout": "1", "api-listen": "127.0.0.1:0"}
        deployment = Deployment(subject.server.connect, "http://127.0.0.1:1", directory, options)
        refused = deployment.process(service, service, {})
        refused.start()
        assert refused.wait(within_seconds=60.0) == 1
        log = refused.log_end()
        assert "Autothrottle also runs on host1, from where this planner's address 127.0.0.1:" in log
        assert f"--advertise={socket.gethostname()}" in log
        assert subject.tree.client.exists(subject.tree.own.election) is None
        accepted = deployment.process(service, "advertised", {"advertise": "planner.example"})
        accepted.start()
        try:
            eventually(
                lambda: (
                    (leader := ZooKeeperElection(subject.tree.client, subject.tree.own, TIMEOUT).leader())
                    and leader.address.startswith("planner.example:")
                    and leader.host == socket.gethostname()
                )
            )
        finally:
            accepted.stop()


def cluster_state(gateway: Process) -> dict[str, Any] | None:
    """Return the state of the cluster from a gateway; None while the gateway has no state."""
    found = re.search(r"Admin API: (\S+)", gateway.log_end())
    if not found:
        return None
    try:
        with urllib.request.urlopen(f"http://{found[1]}/v1/state", timeout=30) as response:
            state: dict[str, Any] = json.load(response)
            return state
    except (urllib.error.URLError, TimeoutError):
        return None


def test_services_without_configured_addresses_find_each_other(subject: Subject) -> None:
    with scratch_directory() as directory, contextlib.ExitStack() as stack:
        options = {"zk-config-prefix": subject.tree.own.prefix, "zk-prefix": subject.tree.kafka.prefix}
        deployment = Deployment(subject.server.connect, "http://127.0.0.1:1", directory, options)
        services = ("gateway", "admin", "planner", "discovery")
        processes = {name: deployment.process(name, name, {"api-listen": "127.0.0.1:0"}) for name in services}
        for process in processes.values():
            stack.callback(process.stop)
            process.start()
        eventually(lambda: (state := cluster_state(processes["gateway"])) and len(state["members"]) == len(services))
        state = cluster_state(processes["gateway"])
        assert state is not None
        addresses = {m["service"]: m["address"] for m in state["members"]}
        assert addresses.keys() == set(services)
        assert state["leaderAddress"] == addresses["planner"]
