"""The lab's ZooKeeper ensemble: it survives the loss of one server, stops without a quorum, and loses no data."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import _CONNECTION_DROP

from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.core.errors import Unavailable
from autothrottle.runtime.configuration_reader import parse
from autothrottle_lab.servers.processes import free_ports, scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.builders import eventually

LIMIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with scratch_directory() as directory, ZooKeeperEnsemble(directory) as ensemble:
        yield ensemble


@contextmanager
def client_of(ensemble: ZooKeeperEnsemble | ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(ensemble.connect, timeout=10.0)
    client.start(timeout=LIMIT_SECONDS)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def written(client: KazooClient, path: str) -> bool:
    """Try to create a znode; return whether it exists now. After a connection error, the result is unknown: False."""
    try:
        client.create_async(path).get(timeout=5)
    except NodeExistsError:
        return True
    except (KazooException, KazooTimeoutError):
        return False
    return True


def created(ensemble: ZooKeeperEnsemble | ZooKeeperServer) -> list[str]:
    operations = [o for t in ensemble.transactions() for o in t.operations]
    return [o.path for o in operations if o.kind == "create" and o.path.startswith("/kept")]


def test_one_of_three_servers_leads_and_all_have_the_same_log(ensemble: ZooKeeperEnsemble) -> None:
    assert sorted(server.mode() for server in ensemble.servers) == ["follower", "follower", "leader"]
    with client_of(ensemble) as client:
        client.create("/seen", b"by all")
    last = ensemble.last_zxid()
    eventually(lambda: all(server.last_zxid() == last for server in ensemble.servers))
    first, *others = [list(server.transactions()) for server in ensemble.servers]
    assert "/seen" in [o.path for t in first for o in t.operations if o.kind == "create"]
    assert all(other == first for other in others)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_ensemble_continues_without_its_leader_and_readmits_it(ensemble: ZooKeeperEnsemble, how: str) -> None:
    away = ensemble.leader()
    with client_of(ensemble) as client:
        if how == "killed":
            away.kill()
        else:
            away.freeze()
        eventually(lambda: written(client, f"/kept-{how}"))
        if how == "killed":
            away.start()
        else:
            away.thaw()
        eventually(lambda: away.mode() == "follower")
    assert f"/kept-{how}" in created(ensemble)
    eventually(lambda: away.last_zxid() == ensemble.last_zxid())


def test_ensemble_without_a_quorum_serves_no_client(ensemble: ZooKeeperEnsemble) -> None:
    with client_of(ensemble) as client:
        client.create("/kept-before")
        gone = [server for server in ensemble.servers if server is not ensemble.leader()]
        for server in gone:
            server.kill()
        with pytest.raises(Unavailable, match=r"no server of .* leads after 0\.1 s: a majority must be running"):
            eventually(lambda: not ensemble.leader(within_seconds=0.1))
        ensemble.start()
        eventually(lambda: written(client, "/kept-after"))
    assert created(ensemble)[-2:] == ["/kept-before", "/kept-after"]


def test_transaction_in_the_log_of_only_one_server_is_not_committed(tmp_path: Path) -> None:
    """A leader that is cut off after a proposal has such a transaction, and the others continue without it."""
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        with client_of(ensemble) as client:
            client.create("/kept-by-most")
        # Wait until all servers have written the transaction; the followers may lag for a moment.
        eventually(lambda: len({server.last_zxid() for server in ensemble.servers}) == 1)
        ensemble.kill()
        with ZooKeeperServer(ensemble.servers[0].directory) as alone, client_of(alone) as client:
            client.create("/kept-by-one")
        assert created(alone) == ["/kept-by-most", "/kept-by-one"]
        assert created(ensemble) == ["/kept-by-most"]


def test_session_with_a_damaged_number_of_the_last_transaction_connects_again_and_reads_nothing_older(
    ensemble: ZooKeeperEnsemble,
) -> None:
    """All servers refuse a client that names a transaction of the future: a process had no ZooKeeper for a session.

    The number is forgotten at once now, and the next server first applies all that the session has written.
    """
    client = connect(ensemble.connect, timedelta(seconds=6), timedelta(seconds=15))
    try:
        client.create("/numbered", b"0")
        session = client.client_id
        for number in range(1, 21):
            client.set("/numbered", str(number).encode())
            client.last_zxid += 2**40
            client._call(_CONNECTION_DROP, client.handler.async_result())
            began = time.monotonic()
            eventually(lambda: client.connected and client.last_zxid < 2**40)
            assert client.get("/numbered")[0] == str(number).encode()
            assert time.monotonic() - began < 3.0
        assert client.client_id == session
    finally:
        disconnect(client)


def test_a_comma_list_of_zookeeper_servers_works_while_one_is_down(zookeeper: ZooKeeperServer) -> None:
    """D29: the original takes a comma list of ZooKeeper servers for one host name and exits at once with status 1."""
    (closed_port,) = free_ports(1)
    hosts = f"127.0.0.1:{closed_port},{zookeeper.connect}"
    configuration = parse(["--zk-addr", hosts], {})
    assert ",".join(configuration.zk_addr) == hosts
    client = connect(hosts, timedelta(seconds=6), timedelta(seconds=15))
    try:
        assert "zookeeper" in client.get_children("/")
    finally:
        disconnect(client)
