"""TLS, logins and ACLs on a real ZooKeeper: who may do what, what a refusal says, and the way there and back."""

from __future__ import annotations

import logging
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Id, Permissions

from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.state_store.operator_stores import NodeOverrides
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.adapters.zookeeper.security import OPEN_ACL, OtherClients, SecurityFiles, ZooKeeperSecurity
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.adapters.zookeeper_state.access import secure_tree
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.composition.cluster import new_state
from autothrottle.core.cluster.configs import LEADER_RATE, ConfigResource
from autothrottle.core.errors import Conflict, Invalid, NotLeader, Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import OutcomeStatus
from autothrottle.ports.kafka import Term
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown
from autothrottle_lab.servers.processes import Process, run_command, scratch_directory
from autothrottle_lab.servers.zookeeper import ServerSecurity, ZooKeeperEnsemble, ZooKeeperServer
from tests.builders import change, eventually, ledger_entry
from tests.paths import CERTIFICATES
from tests.server_fixtures import USERS
from tests.system.simulated_recovery import SimulatedRecovery
from tests.system.zookeeper_tree import Tree

SESSION = timedelta(seconds=6)
TIMEOUT = timedelta(seconds=15)
CA = str(CERTIFICATES / "ca.pem")
PASSWORD = "canary-password"
"""A wrong one."""
BROKER = ConfigResource.broker(1001)
LEDGER_ENTRY = ledger_entry(leader_replication_throttled_rate="5")


@pytest.fixture
def login(tmp_path: Path) -> Callable[..., str]:
    """Write a file of users and return its path."""

    def write(*users: str) -> str:
        path = tmp_path / uuid.uuid4().hex
        path.write_text("\n".join(users))
        path.chmod(0o600)
        return str(path)

    return write


@pytest.fixture
def sasl(login: Callable[..., str]) -> str:
    return login(f"autothrottle:{USERS['autothrottle']}")


Open = Callable[..., SecuredClient]


@pytest.fixture
def opened(secured_zookeeper: ZooKeeperServer) -> Iterator[Open]:
    """Open a session with TLS."""
    with ExitStack() as stack:

        def open_session(own: OwnPaths | None = None, others: OtherClients = OtherClients.READ, **files: str) -> Any:
            security = ZooKeeperSecurity(SecurityFiles(authorities=CA, **files), others, own)
            client = connect(secured_zookeeper.secure_connect, SESSION, TIMEOUT, security=security)
            stack.callback(disconnect, client)
            return client

        yield open_session


@pytest.fixture
def stranger(secured_zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A client without a login, at the port without TLS."""
    client = KazooClient(secured_zookeeper.connect)
    client.start()
    yield client
    client.stop()
    client.close()


class Secured:
    """The nodes of a session with a term, an override and a ledger entry."""

    def __init__(self, client: SecuredClient, own: OwnPaths, kafka_client: KazooClient, stack: ExitStack) -> None:
        self.client, self.own, self.tree = client, own, Tree(kafka_client)
        self.election = ZooKeeperElection(client, own, SESSION)
        stack.callback(self.election.leave)
        self.election.join("127.0.0.1:1", lambda: None)
        eventually(lambda: self.election.term is not None)
        self.writer = ZooKeeperConfigWriter(client, self.tree.kafka, own)
        overrides = NodeOverrides(ZooKeeperNodeStore(client, own))
        overrides.set_override(None, StoredOverride(5_000_000))
        overrides.set_override(1001, StoredOverride(7_000_000))
        overrides.close()
        assert self.write("5") is OutcomeStatus.APPLIED
        self.entry = own.ledger_entry(BROKER)

    @property
    def fence(self) -> int:
        assert self.election.term is not None
        return self.election.term.fence

    def write(self, rate: str, expected: str | None = None) -> OutcomeStatus:
        """Write a throttle and its ledger entry in the current term."""
        throttle = change(BROKER.path, (LEADER_RATE, expected, rate), ledger=LEDGER_ENTRY)
        (outcome,) = self.writer.apply(Term(self.fence), [throttle], TIMEOUT)
        return outcome.status


@pytest.fixture(params=[OtherClients.READ, OtherClients.NONE])
def secured(
    request: pytest.FixtureRequest, opened: Open, login: Callable[..., str], stranger: KazooClient
) -> Iterator[Secured]:
    own = OwnPaths(f"test-{uuid.uuid4().hex}/autothrottle")
    others: OtherClients = request.param
    scheme = "sasl" if others is OtherClients.READ else "digest"
    client = opened(own, others, **{scheme: login(f"autothrottle:{USERS['autothrottle']}")})
    with ExitStack() as stack:
        yield Secured(client, own, stranger, stack)


def test_a_caller_without_the_login_changes_nothing(
    secured: Secured,
    stranger: KazooClient,
    opened: Open,
    login: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every client of the ensemble could set overrides, delete the ledger and begin a term."""
    own = secured.own
    another = opened(own, digest=login(f"autothrottle:{PASSWORD}"))
    attempts: list[Callable[[KazooClient], object]] = [
        lambda client: client.set(own.overrides, b'{"rate":1}'),
        lambda client: client.set(own.override(1001), b'{"rate":1}'),
        lambda client: client.create(own.override(1002), b'{"rate":1}'),
        lambda client: client.create(own.pause, b"{}"),
        lambda client: client.set(secured.entry, b"{}"),
        lambda client: client.delete(secured.entry),
        lambda client: client.delete(own.root, recursive=True),
        lambda client: client.set(own.term, b"{}"),
        lambda client: client.create(f"{own.election}/a-", sequence=True, ephemeral=True),
        lambda client: client.set_acls(own.root, OPEN_ACL),
    ]
    for client in (stranger, another):
        for attempt in attempts:
            with pytest.raises(NoAuthError):
                attempt(client)
    candidate = ZooKeeperElection(another, own, SESSION)
    candidate.join("127.0.0.1:2", lambda: None)
    assert secured.write("6", "5") is OutcomeStatus.APPLIED
    denial = "ZooKeeper denies this planner the election, so that it cannot lead: the ACL of a node does not admit"
    eventually(lambda: denial in caplog.text)
    time.sleep(2)  # it tries again after a second
    assert caplog.text.count(denial) == 1
    assert candidate.term is None
    candidate.leave()
    with pytest.raises(Unavailable, match=r"^ZooKeeper denies access while .*Fix: give it the login of"):
        NodeOverrides(ZooKeeperNodeStore(another, own)).set_override(1001, StoredOverride(1))


def test_others_read_what_the_mode_says_and_kafka_kit_reads_overrides_in_each(
    secured: Secured, stranger: KazooClient
) -> None:
    own = secured.own
    assert b'"rate":5' in stranger.get(own.overrides)[0]
    assert stranger.get_children(own.overrides) == ["1001"]
    assert b'"rate":7' in stranger.get(own.override(1001))[0]
    for path in (own.root, own.term, secured.entry, own.audit):
        if secured.client.security.others is OtherClients.READ:
            assert stranger.get(path)
        else:
            with pytest.raises(NoAuthError):
                stranger.get(path)


def test_the_fence_holds_with_acls(secured: Secured) -> None:
    earlier = Term(secured.fence)
    secured.client.set(secured.own.term, b"{}")
    throttle = change(BROKER.path, (LEADER_RATE, "5", "9"), ledger=LEDGER_ENTRY)
    with pytest.raises(NotLeader):
        secured.writer.apply(earlier, [throttle], TIMEOUT)
    assert secured.tree.current(BROKER) == {LEADER_RATE: "5"}


def test_new_nodes_of_kafka_have_the_acl_of_their_parent(opened: Open, sasl: str, stranger: KazooClient) -> None:
    """On a cluster with zookeeper.set.acl=true, an open config of a broker would let everyone change that config."""
    tree, own = Tree(stranger), OwnPaths(f"test-{uuid.uuid4().hex}/autothrottle")
    client = opened(own, sasl=sasl)
    identity, everyone = Id("sasl", "autothrottle"), ACL(Permissions.READ, ANYONE_ID_UNSAFE)
    of_kafka = [ACL(Permissions.ALL, Id("sasl", "kafka")), ACL(Permissions.ALL, identity), everyone]
    for path in (f"{tree.kafka.configs}/brokers", f"{tree.kafka.configs}/changes"):
        stranger.set_acls(path, of_kafka)
    client.create(own.term, makepath=True)
    fence = client.set(own.term, b"{}").version
    throttle = change(BROKER.path, (LEADER_RATE, None, "5"), ledger=LEDGER_ENTRY)
    ZooKeeperConfigWriter(client, tree.kafka, own).apply(Term(fence), [throttle], TIMEOUT)
    (notification,) = stranger.get_children(f"{tree.kafka.configs}/changes")
    for path in (tree.kafka.config(BROKER), f"{tree.kafka.configs}/changes/{notification}"):
        assert set(stranger.get_acls(path)[0]) == {*of_kafka}
    assert set(stranger.get_acls(own.ledger_entry(BROKER))[0]) == {ACL(Permissions.ALL, identity), everyone}
    parent = own.root.rpartition("/")[0]
    assert stranger.get_acls(parent)[0] == OPEN_ACL  # others may use it, too


def acls(client: KazooClient, root: str) -> Mapping[str, frozenset[ACL]]:
    """Return path -> ACL of a tree."""
    acl_of = {root: frozenset(client.get_acls(root)[0])}
    for name in client.get_children(root):
        acl_of |= acls(client, f"{root}/{name}")
    return acl_of


def test_existing_nodes_are_secured_and_opened_again_and_others_stay_as_they_are(
    opened: Open, sasl: str, stranger: KazooClient
) -> None:
    tree = Tree(stranger)
    tree.begin_term()
    stranger.ensure_path(tree.own.override(1001))
    stranger.ensure_path(tree.own.ledger_entry(BROKER))
    prefix = tree.own.root.rpartition("/")[0]
    neighbour = f"{prefix}/autothrottle-2"  # it begins with the name of our root
    stranger.create(neighbour)
    before = acls(stranger, prefix)
    client = opened(tree.own, sasl=sasl)
    assert secure_tree(client, tree.own).changed == sum(path.startswith(f"{tree.own.root}/") for path in before) + 1
    assert secure_tree(client, tree.own).changed == 0
    closed = {ACL(Permissions.ALL, Id("sasl", "autothrottle")), ACL(Permissions.READ, ANYONE_ID_UNSAFE)}
    for path, entries in acls(stranger, prefix).items():
        is_ours = path == tree.own.root or path.startswith(f"{tree.own.root}/")
        assert entries == (closed if is_ours else before[path]), path
    assert ZooKeeperPermissions(client, tree.own).fetch_missing_permissions(TIMEOUT) == {}
    secure_tree(client, tree.own, undo=True)
    assert acls(stranger, prefix) == before
    (sentence,) = {*ZooKeeperPermissions(client, tree.own).fetch_missing_permissions(TIMEOUT).values()}
    assert sentence == (
        "other clients may do more than zk-acl read says: its ACL is world:anyone rwcda. Fix: autothrottle state secure"
    )


def test_the_password_of_a_digest_changes_in_two_steps(opened: Open, login: Callable[..., str]) -> None:
    """The identity of a digest contains the password. With the new password alone, no node could be opened."""
    own = OwnPaths(f"test-{uuid.uuid4().hex}/autothrottle")
    opened(own, digest=login("a:old")).create(own.term, makepath=True)
    with pytest.raises(Conflict, match="the ACLs of 2 nodes do not admit digest:a, and were not changed"):
        secure_tree(opened(own, digest=login("a:new")), own)
    both = opened(own, digest=login("a:new", "a:old"))
    member = f"{own.members}/run-1"
    opened(own, OtherClients.NONE, digest=login("a:old")).create(member, makepath=True)
    with pytest.raises(Conflict, match=r"the login digest:a and would be locked out; .*: run-1\. Fix: restart"):
        secure_tree(both, own)
    both.delete(member)
    secure_tree(both, own)
    assert secure_tree(opened(own, digest=login("a:new")), own).changed == 0


def autothrottle(*arguments: str) -> tuple[int, str]:
    """Run a command to its end; return its exit status and its output."""
    return run_command([sys.executable, "-m", "autothrottle", *arguments], within_seconds=60)


def test_acls_change_only_for_a_process_with_a_login_and_a_closed_mode(opened: Open, sasl: str) -> None:
    own = OwnPaths(f"test-{uuid.uuid4().hex}")
    with pytest.raises(Invalid, match=r"needs a login\. Fix: --zk-digest-file or --zk-sasl-file"):
        secure_tree(opened(own), own)
    with pytest.raises(Invalid, match=r"zk-acl is open, so there is nothing to secure\. Fix: --zk-acl=read or"):
        secure_tree(opened(own, OtherClients.OPEN, sasl=sasl), own)
    status, output = autothrottle("state", "secure", "--bootstrap-servers=localhost:1", f"--zk-sasl-file={sasl}")
    assert (status, "the ACLs of the state topic say who may write it. Fix: kafka-acls.sh" in output) == (1, True), (
        output
    )


REFUSALS = {
    "plain to TLS": ("secure", {}, "accepts only TLS at this port. Fix: give zk-tls-ca, or "),
    "TLS to plain": (
        "plain",
        {"zk-tls-ca": CA},
        "closes the connection when TLS begins. Fix: give its secureClientPort",
    ),
    "authority": (
        "secure",
        {"zk-tls-ca": str(CERTIFICATES / "elsewhere.pem")},
        "is not trusted: unable to get local issuer certificate. Fix: give the certificates of its authorities with",
    ),
    "password": (
        "secure",
        {"zk-tls-ca": CA, "zk-sasl-file": f"autothrottle:{PASSWORD}"},
        "refuses the login sasl:autothrottle: the user or the password is wrong, or the server has no users for sasl. "
        "Fix: correct zk-sasl-file",
    ),
    "digest": (
        "secure",
        {"zk-tls-ca": CA, "zk-digest-file": f"autothrottle:{PASSWORD}"},
        "ZooKeeper denies this process the nodes below /autothrottle: its login digest:autothrottle is not in their "
        "ACLs, or its password is wrong. Fix: correct zk-digest-file",
    ),
    "no login": (
        "secure",
        {"zk-tls-ca": CA},
        "ZooKeeper denies this process the nodes below /autothrottle: it has no login. Fix: give the login of the "
        "others with --zk-digest-file or --zk-sasl-file",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_start_that_is_refused_says_why_and_what_to_do(
    case: str,
    secured_zookeeper: ZooKeeperServer,
    opened: Open,
    login: Callable[..., str],
    sasl: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = OwnPaths()
    opened(own, sasl=sasl).ensure_path(own.term)
    port, options, sentence = REFUSALS[case]
    address = secured_zookeeper.secure_connect if port == "secure" else secured_zookeeper.connect
    given = {name: login(text) if name.endswith("-file") else text for name, text in options.items()}
    configuration = parse([f"--zk-addr={address}", *(f"--{name}={text}" for name, text in given.items())], {})
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG), Shutdown() as shutdown, pytest.raises(Unavailable) as refusal:
        new_state(configuration, shutdown).ledger_reader()
    assert time.monotonic() - began < 5
    assert sentence in str(refusal.value)
    assert PASSWORD not in caplog.text + str(refusal.value)
    opened(own, sasl=sasl).delete(own.root, recursive=True)


def test_a_session_survives_a_restart_of_the_server_and_logs_in_with_the_file_of_that_moment(
    secured_zookeeper: ZooKeeperServer, opened: Open, login: Callable[..., str]
) -> None:
    file = login(f"autothrottle:{USERS['autothrottle']}")
    own = OwnPaths(f"test-{uuid.uuid4().hex}")
    client = opened(own, sasl=file)
    client.create(f"{own.root}/ours", makepath=True)
    session_id = client.client_id
    secured_zookeeper.stop()
    Path(file).write_text(f"other:{USERS['other']}")
    secured_zookeeper.start()
    eventually(lambda: client.connected and client.login is not None and client.login.name == "sasl:other")
    client.retry = None
    with pytest.raises(NoAuthError):
        client.set(f"{own.root}/ours", b"")
    assert client.client_id == session_id


def test_acls_change_and_change_back_while_a_reassignment_runs(
    secured_zookeeper: ZooKeeperServer,
    sasl: str,
    stranger: KazooClient,
    tmp_path: Path,
) -> None:
    """A replica without a login is named before it is locked out; those with it keep their term and their cycles."""
    with_login = {"zk-addr": secured_zookeeper.secure_connect, "zk-tls-ca": CA, "zk-sasl-file": sasl, "zk-acl": "none"}
    flags = [f"--{name}={value}" for name, value in with_login.items()]
    own = OwnPaths()

    def state(*arguments: str) -> tuple[int, str]:
        return autothrottle("state", "secure", *arguments, *flags)

    with SimulatedRecovery(secured_zookeeper, tmp_path, {"orders": [30_000] * 3}) as recovery, ExitStack() as stack:

        def run(name: str, **options: str) -> Process:
            process = recovery.deployment(api_listen="localhost:0", interval="1", **options).process("run", name, {})
            stack.callback(process.stop)
            process.start()
            return process

        before = recovery.configs()
        without_login = run("without-login")
        first = recovery.wait_for_term()
        recovery.start_reassignment()
        recovery.wait_until_throttled()
        status, output = state()
        assert status == 1
        assert "do not have the login sasl:autothrottle and would be locked out; nothing was changed: run on " in output
        assert f", pid {without_login.pid}. Fix: restart them with zk-sasl-file" in output
        assert {*acls(stranger, own.root).values()} == {frozenset(OPEN_ACL)}

        options = {name.replace("-", "_"): value for name, value in with_login.items()}
        process = run("with-login", **options)
        warning = "and are locked out of the nodes that it creates: run on "
        pid = f", pid {without_login.pid}. Fix: restart them with the same login"
        eventually(lambda: warning in process.log.read_text() and pid in process.log.read_text())
        eventually(lambda: len(stranger.get_children(own.election)) == 2)
        without_login.stop()
        leader = recovery.wait_for_term(first.fence)
        last = recovery.wait_for_cycle(leader)
        status, output = state()
        assert (status, "of 0 nodes" in output) == (0, False), output
        assert "Changed the ACLs of 0 nodes" in state()[1]
        for path in (own.root, own.term, own.ledger, own.members):
            with pytest.raises(NoAuthError):
                stranger.get(path)
        status, output = autothrottle("uninstall", f"--zk-addr={secured_zookeeper.connect}")
        denial = "ZooKeeper denies this process the nodes below /autothrottle: it has no login"
        assert (status, denial in output) == (1, True), output
        # Other clients cannot read the term any more. Only the leader shows that the term continues.
        secured = recovery.wait_for_cycle(leader, last.number + 2)
        assert secured.term == leader.fence

        status, output = state("--undo")
        assert status == 0
        assert "New nodes of run on " in output
        assert {*acls(stranger, own.root).values()} == {frozenset(OPEN_ACL)}
        assert recovery.wait_for_cycle(leader, secured.number + 2).term == leader.fence == recovery.leader().fence
        assert recovery.is_throttled()
        recovery.cancel_reassignment("orders")
        recovery.wait_until_clean(before)


@pytest.mark.timeout(600)
def test_an_ensemble_restarts_with_certificates_of_another_authority(sasl: str, tmp_path: Path) -> None:
    """Each server in turn dies and returns with another authority's certificate, first the one of the term's session.

    The session moves to another server and logs in there. The new authority is in the file before the first restart.
    """
    authorities, certificate, own = tmp_path / "ca.pem", tmp_path / "server.pem", OwnPaths()
    shutil.copy(CA, authorities)
    shutil.copy(CERTIFICATES / "server.pem", certificate)
    options = {"zk_tls_ca": str(authorities), "zk_sasl_file": sasl, "zk_acl": "read"}
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        security = ServerSecurity(certificate, CERTIFICATES / "ca.pem", USERS)
        ensemble = stack.enter_context(ZooKeeperEnsemble(directory, security=security))
        # The reassignments outlast the test; a further topic begins after each loss of a server.
        topics = ("orders", "after-1", "after-2", "after-3")
        recovery = stack.enter_context(SimulatedRecovery(ensemble, tmp_path, dict.fromkeys(topics, [200_000] * 3)))
        # A restart of the ensemble's leader interrupts all sessions, on a busy machine for seconds.
        deployment = recovery.deployment(
            zk_addr=ensemble.secure_connect, session_timeout="15", interval="1", api_listen="localhost:0", **options
        )
        process = deployment.process("run", "run", {})
        stack.callback(process.stop)
        process.start()
        leader = recovery.wait_for_term(within_seconds=60)
        recovery.start_reassignment("orders")
        recovery.wait_until_throttled("orders")
        session_id = session_of_candidate(recovery.client, own)

        shutil.copy(CERTIFICATES / "renewed.pem", certificate)
        authorities.write_text("".join((CERTIFICATES / f"{name}.pem").read_text() for name in ("ca", "renewed")))
        first = ensemble.servers[(session_id >> 56) - 1]  # the first byte is the number of the session's first server
        others = (server for server in ensemble.servers if server is not first)
        for server, topic in zip((first, *others), topics[1:], strict=True):
            zxid = ensemble.last_zxid()
            server.kill()
            recovery.start_reassignment(topic)
            recovery.wait_until_throttled(topic)
            assert {write.fence for write in recovery.writes(zxid)} == {leader.fence}
            with pytest.raises(NoAuthError):
                recovery.client.retry(recovery.client.set, own.term, b"{}")
            server.start()
        assert session_of_candidate(recovery.client, own) == session_id
        closed = {ACL(Permissions.ALL, Id("sasl", "autothrottle")), ACL(Permissions.READ, ANYONE_ID_UNSAFE)}
        assert {*recovery.client.retry(acls, recovery.client, own.root).values()} == {frozenset(closed)}
        assert "stepped down" not in process.log.read_text()


def session_of_candidate(client: KazooClient, own: OwnPaths) -> int:
    """Return the session of the only candidate."""
    (candidate,) = client.retry(client.get_children, own.election)
    return int(client.retry(client.get, f"{own.election}/{candidate}")[1].ephemeralOwner)
