"""The other clusters of `--clusters`: one line each, and a dead one delays no other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.gateway import clusters
from autothrottle.gateway.clusters import FollowedClusters, cluster_row
from autothrottle_client import AdminClient, ClusterState, Cycle, Invalid
from autothrottle_client.contexts import read_contexts_file
from tests.builders import NOON, eventually
from tests.unit.autothrottle.gateway.front import Front

CYCLE = Cycle(3, 1, NOON, NOON, "interval", "s", ("a", "b", "c", "d", "e"), findings=("f",), bytes_left=7, eta=NOON)
STATE = ClusterState(3, "h1:8090", CYCLE, ())


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_dead_cluster_delays_no_other(front: Front, silent: str, tmp_path: Path) -> None:
    front.services.start_planners()
    alive = front.services.address("admin")
    file = tmp_path / "clusters.toml"
    file.write_text(f'[dead]\naddr = "{silent}"\n[prod]\naddr = "{alive}"\n[gone]\naddr = "127.0.0.1:1"\n')
    followed = FollowedClusters(read_contexts_file(file))
    begin = time.monotonic()
    opened = threading.Event()
    opened.set()
    followed.start(opened)
    try:
        eventually(lambda: followed.rows()[1]["leader"] == front.services.address("planner-1"))
        assert time.monotonic() - begin < clusters._TIMEOUT.total_seconds()
        assert [row["name"] for row in followed.rows()] == ["dead", "prod", "gone"]
        assert (followed.rows()[0]["leader"], followed.rows()[0]["problem"]) == ("", "not read yet")
        eventually(lambda: "unavailable" in followed.rows()[0]["problem"])
        eventually(lambda: "unavailable" in followed.rows()[2]["problem"])
    finally:
        followed.close()


def test_the_last_cycle_of_a_cluster_is_fetched_once() -> None:
    """It has hundreds of kilobytes on a large cluster, and most readings find the same one."""

    class Admin(AdminClient):
        def __init__(self, *states: ClusterState) -> None:
            super().__init__("127.0.0.1:1")
            self.states, self.fetched = list(states), 0

        def state(self, with_cycle: bool = True) -> ClusterState:
            self.fetched += with_cycle
            return self.states[0] if with_cycle else replace(self.states[0], last_cycle=None)

    later = replace(CYCLE, topics=("t",), end_time=NOON + timedelta(seconds=1))
    first, second = (replace(STATE, last_cycle=c, last_cycle_end=c.end_time) for c in (CYCLE, later))
    with Admin(first) as admin:
        cluster = clusters._Cluster("prod", admin)
        for _ in range(3):
            cluster.read()
        assert (admin.fetched, cluster.row["moving"]) == (1, "a, b, c and 2 more")
        admin.states = [second]
        cluster.read()
        assert (admin.fetched, cluster.row["moving"]) == (2, "t")
        admin.states = [replace(second, last_cycle_end=None)]  # an earlier version does not tell it
        cluster.read()
        assert admin.fetched == 3


def test_a_cluster_says_who_leads_what_moves_until_when_and_what_is_wrong() -> None:
    assert cluster_row("prod", STATE, "") == {
        "name": "prod",
        "leader": "h1:8090",
        "moving": "a, b, c and 2 more",
        "bytesLeft": 7,
        "eta": NOON,
        "findings": ["f"],
        "problem": "",
    }
    failed = replace(CYCLE, topics=(), bytes_left=None, eta=None, error="no snapshot")
    row = cluster_row("prod", replace(STATE, last_cycle=failed), "")
    assert (row["moving"], row["findings"]) == ("", ["f", "the last cycle failed: no snapshot"])
    assert cluster_row("prod", None, "gone")["problem"] == "gone"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[prod]\n", "has no admin-addr"),
        ('[prod]\naddr = "h:1"\npassword = "x"\n', "'password' of context 'prod'"),
        ('[prod]\naddr = "h:1"\ntoken-file = "/does/not/exist"\n', "token-file '/does/not/exist' cannot be read"),
        ('[prod]\naddr = "h:1"\ntls-cert = "c"\n', "TLS is mutual"),
        ("no toml", "cannot be read"),
    ],
)
def test_a_faulty_file_is_refused_at_the_start(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match=problem):
        FollowedClusters(read_contexts_file(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read_contexts_file(tmp_path / "absent.toml")
