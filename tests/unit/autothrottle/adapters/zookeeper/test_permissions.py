"""ACLs of znodes when ZooKeeper is slow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, Id

from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.adapters.zookeeper.security import ZooKeeperSecurity

PATHS = KafkaPaths()
READABLE = [ACL(1, Id("world", "anyone"))]


class BusyZooKeeper:
    """Answers the first requests for ACLs, and none afterwards."""

    login = None
    security = ZooKeeperSecurity()

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def exists_async(self, path: str) -> Any:
        return SimpleNamespace(get=lambda timeout: object())

    def get_children_async(self, path: str) -> Any:
        return SimpleNamespace(get=lambda timeout: ["a"])

    def get_acls_async(self, path: str) -> Any:
        return SimpleNamespace(get=self._acls)

    def _acls(self, timeout: float) -> tuple[Sequence[ACL], object]:
        self.answers -= 1
        if self.answers < 0:
            raise KazooTimeoutError
        return READABLE, object()


def test_znodes_that_are_not_read_in_time_do_not_hide_the_others() -> None:
    """On a cluster with 100,000 topics the check would end without a word about the first znodes."""
    client: Any = BusyZooKeeper(3)
    sentences = ZooKeeperPermissions(client, PATHS).fetch_missing_permissions(timedelta(seconds=1))
    assert {path: text.partition(". Fix:")[0] for path, text in sentences.items()} == {
        "/config/changes": "this client may not create: its ACL is world:anyone r",
        "/admin and later znodes": "their ACLs cannot be read in time",
    }
