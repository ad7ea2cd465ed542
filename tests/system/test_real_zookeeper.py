"""The lab's ZooKeeper server: its transaction log, its faults, and the cleanup of its process and files."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from autothrottle.core.errors import Missing, Unavailable
from autothrottle_lab.servers.jars import kafka_jars, require_java
from autothrottle_lab.servers.processes import free_address
from autothrottle_lab.servers.zookeeper import Operation, ZooKeeperServer
from tests.builders import eventually


@contextmanager
def client_of(server: ZooKeeperServer, session_seconds: float = 10.0) -> Iterator[KazooClient]:
    client = KazooClient(server.connect, timeout=session_seconds)
    client.start(timeout=15)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_transaction_log_contains_writes_in_commit_order(zookeeper: ZooKeeperServer) -> None:
    before = zookeeper.last_zxid()
    with client_of(zookeeper) as client:
        client.create("/order", b"1")
        client.set("/order", b"2", version=0)
        multi = client.transaction()
        multi.check("/order", 1)
        multi.create("/order/child", b"x", ephemeral=True)
        multi.set_data("/order", b"3", version=1)
        multi.delete("/order/child")
        multi.commit()
        client.delete("/order")
        session_id = client.client_id[0]
        logged = [t for t in zookeeper.transactions(after_zxid=before) if t.session_id == session_id]
    assert [t.kind for t in logged] == ["open_session", "create", "set", "multi", "delete"]
    assert [t.operations for t in logged[1:]] == [
        (Operation("create", "/order", b"1"),),
        (Operation("set", "/order", b"2", version=1),),
        (
            Operation("check", "/order", version=1),
            Operation("create", "/order/child", b"x", ephemeral=True),
            Operation("set", "/order", b"3", version=2),
            Operation("delete", "/order/child"),
        ),
        (Operation("delete", "/order"),),
    ]
    assert [t.zxid for t in logged] == sorted({t.zxid for t in logged})
    assert logged[0].zxid > before


def test_refused_multi_is_not_an_applied_transaction(zookeeper: ZooKeeperServer) -> None:
    before = zookeeper.last_zxid()
    with client_of(zookeeper) as client:
        client.create("/refused", b"kept")
        multi = client.transaction()
        multi.set_data("/refused", b"lost")
        multi.check("/refused", 7)
        multi.create("/refused/child")
        multi.commit()
        with pytest.raises(NodeExistsError):
            client.create("/refused")
        applied = [t for t in zookeeper.transactions(before) if t.kind != "open_session"]
        refused = [t for t in zookeeper.transactions(before, refused=True) if not t.applied]
        assert client.get("/refused")[0] == b"kept"
        client.delete("/refused")
    assert [operation.path for t in applied for operation in t.operations] == ["/refused"]
    assert [(t.kind, t.error) for t in refused] == [("multi", -103), ("error", -110)]


def test_ephemeral_znode_disappears_after_its_two_second_session_expires(
    fresh_zookeeper: ZooKeeperServer,
) -> None:
    with client_of(fresh_zookeeper) as watcher:
        # The client is killed without closing its session, so the server must let the session expire.
        code = (
            "import os, sys; from kazoo.client import KazooClient\n"
            "client = KazooClient(sys.argv[1], timeout=2.0); client.start()\n"
            "client.create('/mine', ephemeral=True)\n"
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code, fresh_zookeeper.connect], check=False, timeout=60)
        died = time.monotonic()
        eventually(lambda: watcher.exists("/mine") is None)
        assert time.monotonic() - died < 6.0
    last = next(t for t in fresh_zookeeper.transactions() if t.kind == "close_session")
    assert last.operations == (Operation("delete", "/mine"),)


def test_frozen_server_is_silent_and_continues_when_thawed(fresh_zookeeper: ZooKeeperServer) -> None:
    assert fresh_zookeeper.four_letter_word("ruok") == "imok"
    fresh_zookeeper.freeze()
    assert fresh_zookeeper.four_letter_word("ruok", timeout_seconds=0.5) == ""
    fresh_zookeeper.thaw()
    eventually(lambda: fresh_zookeeper.four_letter_word("ruok") == "imok")


def test_killed_server_restarts_with_all_confirmed_writes(fresh_zookeeper: ZooKeeperServer) -> None:
    with client_of(fresh_zookeeper) as client:
        for number in range(50):
            client.create(f"/kept-{number}")
        fresh_zookeeper.kill()
        assert not fresh_zookeeper.running
    created = [t.operations[0].path for t in fresh_zookeeper.transactions() if t.kind == "create"]
    assert created == [f"/kept-{number}" for number in range(50)]
    fresh_zookeeper.start()
    with client_of(fresh_zookeeper) as client:
        assert {f"kept-{number}" for number in range(50)} <= set(client.get_children("/"))


def test_a_server_maps_the_archive_of_loaded_classes(zookeeper: ZooKeeperServer) -> None:
    assert re.search(r"/zookeeper-\w+\.jsa\n", Path(f"/proc/{zookeeper.pid}/maps").read_text())


def test_server_ends_with_a_killed_parent_process() -> None:
    """A test run that CI ends by SIGKILL must not leave a process or a directory behind."""
    code = (
        "import time\n"
        "from autothrottle_lab.servers.processes import scratch_directory\n"
        "from autothrottle_lab.servers.zookeeper import ZooKeeperServer\n"
        "with scratch_directory() as directory, ZooKeeperServer(directory) as server:\n"
        "    print(server.pid, directory, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert Path(directory).is_dir()
        os.kill(int(pid), 0)
        os.kill(parent.pid, signal.SIGKILL)
    eventually(lambda: not Path(directory).exists())
    eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())


def test_missing_java_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"no java on the PATH.*Fix: install Java >= 17"):
        require_java()


def test_old_java_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Missing, match=r"is version 8, and the lab needs >= 17\. Fix"):
        require_java()


def test_failed_jar_download_is_reported_without_the_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AUTOTHROTTLE_MAVEN_REPOSITORY", f"http://user:secret@{free_address()}/")
    with pytest.raises(Unavailable, match=r"Kafka 3\.9\.2 could not be fetched.*Fix: ") as caught:
        kafka_jars("3.9.2")
    assert "secret" not in str(caught.value)
    assert [path.name for path in (tmp_path / "autothrottle" / "jars").glob("kafka-3.9.2*")] == ["kafka-3.9.2.lock"]
