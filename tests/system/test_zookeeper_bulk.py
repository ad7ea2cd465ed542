"""Bulk reads of znodes return the same as single reads: fresh data, watches, and None for missing znodes."""

import time
import uuid

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.bulk import BATCH_NODES, get_many_async, watch_many_async
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import AT_ONCE, SERVER_SECONDS, at_once
from tests.system.zookeeper_tree import read_all_changes, session

MANY = BATCH_NODES + 300
"""More znodes than fit into one request."""

SECONDS = 30.0


def created(client: KazooClient, count: int) -> list[str]:
    """Create `count` znodes that contain their numbers, and return their paths."""
    root = f"/bulk-{uuid.uuid4().hex}"
    client.create(root)
    for start in range(0, count, 500):
        transaction = client.transaction()
        for number in range(start, min(start + 500, count)):
            transaction.create(f"{root}/{number}", str(number).encode())
        assert not any(isinstance(result, Exception) for result in transaction.commit())
    return [f"{root}/{number}" for number in range(count)]


def mirrored(client: KazooClient, paths: list[str]) -> ZnodeMirror:
    mirror = ZnodeMirror(client)
    mirror.track([(Part.DATA, path) for path in paths])
    read_all_changes(mirror)
    return mirror


def test_bulk_read_returns_the_same_as_single_reads(client: KazooClient) -> None:
    paths = created(client, 3)
    client.set(paths[1], b"")
    client.set(paths[2], "é".encode() * 1000)
    single = [client.get(path) for path in paths]
    found = get_many_async(client, paths).get(timeout=SECONDS)
    assert found == [(data, stat.mzxid, stat.version) for data, stat in single]


def test_missing_node_is_none_among_existing_ones(client: KazooClient) -> None:
    first, second = created(client, 2)
    found = get_many_async(client, [first, f"{first}-gone", second]).get(timeout=SECONDS)
    assert [node and node[0] for node in found] == [b"0", None, b"1"]


def test_watch_fires_at_once_for_nodes_changed_since_the_read(client: KazooClient, other: KazooClient) -> None:
    paths = created(client, 4)
    get_many_async(client, paths).get(timeout=SECONDS)
    zxid = client.last_zxid
    other.set(paths[1], b"new")
    other.delete(paths[2])
    fired: list[str] = []
    watch_many_async(client, paths, lambda event: fired.append(event.path), zxid).get(timeout=SECONDS)
    other.set(paths[3], b"new")
    at_once(lambda: len(fired) == 3, AT_ONCE + SERVER_SECONDS)
    assert sorted(fired) == sorted(paths[1:])


def test_mirror_of_many_nodes_reads_all_and_then_only_the_changed_ones(client: KazooClient, other: KazooClient) -> None:
    paths = created(client, MANY)
    mirror = mirrored(client, paths)
    assert [mirror.data(path) for path in paths] == [str(number).encode() for number in range(MANY)]
    assert read_all_changes(mirror) == set()
    for data in (b"once", b"twice"):
        other.set(paths[7], data)
        assert read_all_changes(mirror) == {(Part.DATA, paths[7])}
        assert mirror.data(paths[7]) == data
    mirror.close()


def test_mirror_sees_deletion_and_recreation_of_one_of_many_nodes(client: KazooClient, other: KazooClient) -> None:
    paths = created(client, MANY)
    missing = f"{paths[0]}-later"
    mirror = mirrored(client, [*paths, missing])
    assert mirror.data(missing) is None
    other.delete(paths[3])
    other.create(missing, b"here")
    read_all_changes(mirror)
    assert (mirror.data(paths[3]), mirror.data(missing)) == (None, b"here")
    other.create(paths[3], b"back")
    read_all_changes(mirror)
    assert mirror.data(paths[3]) == b"back"
    mirror.close()


def test_mirror_of_many_nodes_is_fresh_after_a_restart_of_the_server(fresh_zookeeper: ZooKeeperServer) -> None:
    with session(fresh_zookeeper) as client:
        paths = created(client, MANY)
        mirror = mirrored(client, paths)
        fresh_zookeeper.kill()
        fresh_zookeeper.start()
        with session(fresh_zookeeper) as other:
            other.set(paths[5], b"new")
            deadline = time.monotonic() + SECONDS
            while not client.connected and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(read_all_changes(mirror)) == MANY
            other.set(paths[6], b"newer")
            assert read_all_changes(mirror) == {(Part.DATA, paths[6])}
        assert (mirror.data(paths[5]), mirror.data(paths[6])) == (b"new", b"newer")
        mirror.close()
