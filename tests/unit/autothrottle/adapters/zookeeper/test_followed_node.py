"""The thread of a followed node continues after every error."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.state_store import nodes
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.security import ZooKeeperSecurity
from autothrottle.core.retries import STORED_STATE


@pytest.mark.parametrize("failing", ["refresh", "notify"])
def test_a_bug_does_not_end_the_thread(
    failing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any other error than ours ended the thread. The planner then heard of no override or pause until the interval."""
    monkeypatch.setattr(nodes, "STORED_STATE", replace(STORED_STATE, first=0.01))
    bugs, notified = iter([KeyError("a bug")]), threading.Event()

    def fail_once(where: str) -> None:
        for bug in bugs if where == failing else ():
            raise bug

    def refresh() -> bool:
        fail_once("refresh")
        return True

    def notify() -> None:
        fail_once("notify")
        notified.set()

    with closing(
        FollowedNode(
            SecuredClient("h:1", timedelta(seconds=1), ZooKeeperSecurity()),
            "/overrides",
            "overrides",
            timedelta(seconds=1),
        )
    ) as node:
        monkeypatch.setattr(node, "_refresh", refresh)
        node.watch(notify)
        assert notified.wait(30)
    assert caplog.messages.count("Following the overrides failed unexpectedly, trying again") == 1
