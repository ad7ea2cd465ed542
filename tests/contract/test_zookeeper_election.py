"""At most one planner leads during failures of ZooKeeper and planners, and fences only increase."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError
from kazoo.protocol.states import KazooState

from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.zookeeper.session import connect, disconnect, term_check
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Election
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import AT_ONCE, SERVER_SECONDS, eventually
from tests.contract.election_contract import ElectionContract, fence_of, leading, nothing
from tests.system.zookeeper_tree import Tree, address_of, freeze, security_of, session

SESSION_SECONDS = 1.5
"""Tolerance of asserted durations on a loaded machine."""

CANDIDATE = """
import sys, threading
from datetime import timedelta
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect
hosts, prefix, seconds = sys.argv[1], sys.argv[2], timedelta(seconds=float(sys.argv[3]))
election = ZooKeeperElection(connect(hosts, seconds, timedelta(seconds=30)), OwnPaths(prefix), seconds)
election.join("process:1", lambda: print(election.term.fence if election.term else "over", flush=True))
threading.Event().wait()
"""


class Subject:
    """Candidates of one election, each with its own session."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack, seconds: float = SESSION_SECONDS) -> None:
        self.server, self.seconds, self._stack = server, seconds, stack
        self.tree = Tree(stack.enter_context(session(server)))
        self._clients: dict[int, KazooClient] = {}

    def candidate(self) -> ZooKeeperElection:
        duration = timedelta(seconds=self.seconds)
        patience = timedelta(seconds=30)
        client = connect(address_of(self.server), duration, patience, security=security_of(self.server))
        self._stack.callback(disconnect, client)
        election = ZooKeeperElection(client, self.tree.own, duration)
        self._stack.callback(election.leave)
        self._clients[id(election)] = client
        return election

    def client(self, election: Election) -> KazooClient:
        return self._clients[id(election)]

    def depose(self, leader: Election) -> None:
        """Take the session over with a second connection and close it, like an expiry."""
        session_id, password = self.client(leader).client_id
        second_connection = KazooClient(self.server.connect, client_id=(session_id, password))
        second_connection.start(timeout=15)
        second_connection.stop()
        second_connection.close()

    def wipe(self) -> None:
        while True:
            with contextlib.suppress(NotEmptyError):  # a candidate has joined meanwhile
                self.tree.client.delete(self.tree.own.root, recursive=True)
                return

    def candidates(self) -> int:
        return sum(node.startswith("/election/") for node in self.tree.nodes())


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


@pytest.fixture
def freezable(own_zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        stack.callback(own_zookeeper.thaw)
        yield subject


class TestZooKeeperElection(ElectionContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


class LeaderMonitor:
    """Context manager that counts concurrent leaders and collects their fences."""

    def __init__(self, *candidates: Election) -> None:
        self.max_leaders, self.fences = 0, list[int]()
        self._candidates, self._end = candidates, threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> LeaderMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(0.002):
            terms = [term for candidate in self._candidates if (term := candidate.term)]
            self.max_leaders = max(self.max_leaders, len(terms))
            self.fences += [t.fence for t in terms if not self.fences or t.fence != self.fences[-1]]


def test_killed_leader_is_succeeded_with_a_higher_fence(subject: Subject) -> None:
    arguments = [subject.server.connect, subject.tree.own.prefix, str(SESSION_SECONDS)]
    with subprocess.Popen([sys.executable, "-c", CANDIDATE, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            earlier = int(process.stdout.readline())
            successor, changed = subject.candidate(), threading.Event()
            successor.join("heir:1", changed.set)
            eventually(lambda: subject.candidates() == 2)
            leader = successor.leader()
            assert leader is not None and (leader.fence, leader.address) == (earlier, "process:1")
            assert successor.term is None
            died = time.monotonic()
        finally:
            process.kill()
    assert changed.wait(20)
    assert time.monotonic() - died < SESSION_SECONDS + 1 + SERVER_SECONDS
    assert fence_of(successor) > earlier
    leader = successor.leader()
    assert leader is not None and leader.address == "heir:1"


def test_leaving_leader_hands_over_at_once_and_two_never_lead(subject: Subject) -> None:
    def has_candidates(count: int) -> bool:
        return subject.candidates() == count

    candidates = [subject.candidate() for _ in range(4)]
    for number, candidate in enumerate(candidates):
        candidate.join(f"host{number}:1", nothing)
        eventually(partial(has_candidates, number + 1))
    eventually(lambda: leading(candidates[0]))
    with LeaderMonitor(*candidates) as monitor:
        for leaving, successor in itertools.pairwise(candidates):
            requested = time.monotonic()
            leaving.leave()
            assert leaving.term is None
            eventually(partial(leading, successor))
            assert time.monotonic() - requested < AT_ONCE + SERVER_SECONDS
    assert monitor.max_leaders == 1
    assert monitor.fences == sorted(set(monitor.fences))
    assert subject.candidates() == 1


def test_leader_steps_down_by_its_own_clock_while_zookeeper_is_frozen(freezable: Subject) -> None:
    """kazoo only reports SUSPENDED here, since no session expires while the server is frozen."""
    changes: list[bool] = []
    leader = freezable.candidate()
    leader.join("host1:1", lambda: changes.append(leading(leader)))
    eventually(lambda: changes == [True])
    states: list[str] = []
    freezable.client(leader).add_listener(states.append)
    earlier = fence_of(leader)
    freeze(freezable.server)
    frozen = time.monotonic()
    eventually(lambda: not leading(leader))
    assert time.monotonic() - frozen < SESSION_SECONDS * 2 / 3 + 0.3
    eventually(lambda: changes == [True, False])
    assert time.monotonic() - frozen < SESSION_SECONDS * 2 / 3 + SERVER_SECONDS
    assert KazooState.LOST not in states
    with pytest.raises(Unavailable):
        leader.leader()
    freezable.server.thaw()
    eventually(lambda: leading(leader))
    assert fence_of(leader) > earlier
    eventually(lambda: changes == [True, False, True])


def test_repeated_outages_leave_no_candidate_node_that_blocks_others(freezable: Subject) -> None:
    """A candidate whose node was created without confirmation would wait behind itself and block all others."""
    first, second = freezable.candidate(), freezable.candidate()
    with LeaderMonitor(first, second) as monitor:
        first.join("host1:1", nothing)
        second.join("host2:1", nothing)
        for seconds in (0.3, 2.0, 0.8, 1.2, 0.6):
            eventually(lambda: leading(first) or leading(second))
            freeze(freezable.server)
            time.sleep(seconds)
            freezable.server.thaw()
            thawed = time.monotonic()
            eventually(lambda: leading(first) or leading(second))
            assert time.monotonic() - thawed < 2 * SESSION_SECONDS + SERVER_SECONDS
        eventually(lambda: freezable.candidates() == 2)
        first.leave()
        eventually(lambda: leading(second))
    assert monitor.max_leaders == 1
    assert monitor.fences == sorted(set(monitor.fences))
    assert freezable.candidates() == 1


def test_candidate_that_joins_during_an_outage_leads_afterwards(freezable: Subject) -> None:
    candidate = freezable.candidate()
    freeze(freezable.server)
    candidate.join("host1:1", nothing)
    time.sleep(SESSION_SECONDS * 1.5)
    assert candidate.term is None
    freezable.server.thaw()
    eventually(lambda: leading(candidate))
    eventually(lambda: freezable.candidates() == 1)


def test_leaving_takes_a_few_seconds_at_most_during_an_outage(own_zookeeper: ZooKeeperServer) -> None:
    """Even if the session is so long that the outage is not noticed. The candidate node is removed after the outage."""
    with contextlib.ExitStack() as stack:
        freezable = Subject(own_zookeeper, stack, seconds=30.0)
        stack.callback(own_zookeeper.thaw)
        leader, *followers = candidates = [freezable.candidate() for _ in range(3)]
        leader.join("host1:1", nothing)
        eventually(lambda: leading(leader))
        for follower in followers:
            follower.join("host2:1", nothing)
        eventually(lambda: freezable.candidates() == 3)
        freeze(own_zookeeper)
        leaving = [threading.Thread(target=candidate.leave) for candidate in candidates[:2]]
        requested = time.monotonic()
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join()
        assert time.monotonic() - requested < 3 + SERVER_SECONDS
        assert leader.term is None
        own_zookeeper.thaw()
        eventually(lambda: freezable.candidates() == 1)
        eventually(lambda: leading(candidates[2]))


def test_deleting_the_leader_node_ends_the_term_and_a_new_one_begins(subject: Subject) -> None:
    leader = subject.candidate()
    leader.join("host1:1", nothing)
    eventually(lambda: leading(leader))
    earlier = fence_of(leader)
    (node,) = subject.tree.client.get_children(subject.tree.own.election)
    subject.tree.client.delete(f"{subject.tree.own.election}/{node}")
    eventually(lambda: leading(leader) and fence_of(leader) > earlier)
    assert subject.candidates() == 1


def test_a_bug_in_the_handling_of_a_term_does_not_end_the_candidacy(subject: Subject) -> None:
    """The thread of the election ended. This planner never led again."""
    bugs = iter([KeyError("a bug")])

    def fail_once() -> None:
        for bug in bugs:
            raise bug

    candidate = subject.candidate()
    candidate.join("host1:1", fail_once)
    eventually(lambda: leading(candidate) and fence_of(candidate) > 1)


def test_a_foreign_term_ends_the_current_term(subject: Subject) -> None:
    leader = subject.candidate()
    leader.join("host1:1", nothing)
    eventually(lambda: leading(leader))
    later = subject.tree.begin_term()
    eventually(lambda: leading(leader) and fence_of(leader) > later)


def test_leaving_without_joining_has_no_effect(subject: Subject) -> None:
    candidate = subject.candidate()
    candidate.leave()
    candidate.leave()
    assert candidate.term is None


def test_fence_of_an_unreadable_term_node_is_still_known(subject: Subject) -> None:
    subject.tree.begin_term()
    subject.tree.write(subject.tree.own.term, b"\xff")
    leader = subject.candidate().leader()
    assert leader is not None
    assert (leader.fence, leader.address) == (2, "")


def test_term_of_an_older_version_has_no_host(subject: Subject) -> None:
    subject.tree.begin_term()
    subject.tree.write(subject.tree.own.term, b'{"holder": "a", "address": "host1:1"}')
    leader = subject.candidate().leader()
    assert leader is not None
    assert (leader.address, leader.host) == ("host1:1", "")


def test_writes_of_a_term_before_the_wipe_are_refused_at_the_same_version_of_the_node(subject: Subject) -> None:
    """The version of the term node was the whole fence, so a write of the deleted store's term was carried out."""
    leader, own, client = subject.candidate(), subject.tree.own, subject.tree.client
    leader.join("host1:1", nothing)
    eventually(lambda: leading(leader))
    earlier = fence_of(leader)
    ledger, deadline = ZooKeeperLedger(client, own), time.monotonic() + 60
    ledger.check_term(earlier, deadline)
    in_time = term_check(client, own, earlier, 60.0, "")
    subject.wipe()
    eventually(lambda: leading(leader) and fence_of(leader) != earlier)
    assert client.get(own.term)[1].version == in_time.nodes[0][1]
    with pytest.raises(NotLeader):
        ledger.check_term(earlier, deadline)
    # Also a transaction that was prepared before the wipe.
    with pytest.raises(NotLeader):
        in_time.require(in_time.begin(client).commit(), "")
    with pytest.raises(NotLeader):
        ZooKeeperConfigWriter(client, subject.tree.kafka, own).apply(Term(earlier), (), timedelta(seconds=10))


def test_terms_of_older_and_newer_versions_of_autothrottle_have_one_order(subject: Subject) -> None:
    """An older version raises only the version of the term node, and its fence is that version."""
    older = subject.tree.begin_term()
    candidate = subject.candidate()
    ledger, deadline = ZooKeeperLedger(subject.tree.client, subject.tree.own), time.monotonic() + 60
    ledger.check_term(older, deadline)
    candidate.join("host1:1", nothing)
    eventually(lambda: leading(candidate))
    newer = fence_of(candidate)
    assert newer > older
    with pytest.raises(NotLeader):
        ledger.check_term(older, deadline)
    candidate.leave()
    older = subject.tree.begin_term()
    leader = candidate.leader()
    assert leader is not None and leader.fence > newer > older
    ledger.check_term(older, deadline)
    with pytest.raises(NotLeader):
        ledger.check_term(newer, deadline)


@pytest.mark.parametrize("name", ["x", "-5", "7", "9" * 5000, "\u0661" * 12])
def test_a_foreign_child_of_the_term_node_changes_no_number(subject: Subject, name: str) -> None:
    candidate = subject.candidate()
    subject.tree.client.create(f"{subject.tree.own.term}/{name}", makepath=True)
    candidate.join("host1:1", nothing)
    eventually(lambda: leading(candidate))
    assert 2**31 < fence_of(candidate) < 2**53
    ZooKeeperLedger(subject.tree.client, subject.tree.own).check_term(fence_of(candidate), time.monotonic() + 60)


def test_a_deleted_store_ends_the_term_at_the_next_heartbeat(subject: Subject) -> None:
    """The answer that the term node is missing counted as no answer, so the term lasted until its lease ended."""
    changed = threading.Event()
    slow = Subject(subject.server, subject._stack, seconds=12.0)
    leader = slow.candidate()
    leader.join("host1:1", changed.set)
    assert changed.wait(20)
    changed.clear()
    deleted = time.monotonic()
    slow.wipe()
    assert changed.wait(20)
    assert time.monotonic() - deleted < 12.0 / 6 + SERVER_SECONDS
