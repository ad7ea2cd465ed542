"""The other clusters of `--clusters`: one thread for each, so that a dead cluster delays no other."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from autothrottle.core.records import Cycle
from autothrottle.core.texts import excerpt
from autothrottle_client.admin import AdminClient
from autothrottle_client.contexts import Contexts, admin_client
from autothrottle_client.errors import AutothrottleError
from autothrottle_client.model import ClusterState

_TIMEOUT = timedelta(seconds=3)
_SECONDS = 5.0
"""Time between two readings of a cluster while a page is open."""

_IDLE_SECONDS = 60.0
"""The same while no page is open."""

_TOPICS_SHOWN = 3

_CLIENT_ID = "autothrottle-page"


class _Cluster:
    """One cluster and its last reading."""

    def __init__(self, name: str, admin: AdminClient) -> None:
        self.name, self.admin = name, admin
        self._last_cycle: Cycle | None = None
        self.row: Mapping[str, Any] = cluster_row(name, None, "not read yet")

    def read(self) -> None:
        try:
            self.row = cluster_row(self.name, self._state(), "")
        except AutothrottleError as error:
            self.row = cluster_row(self.name, None, str(error))

    def _state(self) -> ClusterState:
        """Return the state. The last cycle is fetched only when there is a new one."""
        state = self.admin.state(with_cycle=False)
        last = self._last_cycle
        if state.last_cycle_end is None or last is None or last.end_time != state.last_cycle_end:
            state = self.admin.state()
            self._last_cycle = state.last_cycle
        return replace(state, last_cycle=self._last_cycle)


class FollowedClusters:
    """Reads the state of each cluster from `start` to `close`: every few seconds while a page is open.

    It changes nothing.
    """

    def __init__(self, contexts: Contexts) -> None:
        """Create the clients; nothing connects yet.

        Raises:
            Invalid: a certificate or a token of a context cannot be read.
        """
        self._clusters = [
            _Cluster(name, admin_client(values, _TIMEOUT, _CLIENT_ID)) for name, values in contexts.values.items()
        ]
        self._end, self._opened = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(cluster,), name=f"gateway-cluster-{cluster.name}", daemon=True)
            for cluster in self._clusters
        ]

    def start(self, opened: threading.Event) -> None:
        """Start to read. `opened` is set while a page is open, and also when `close` is called."""
        self._opened = opened
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop. Idempotent."""
        self._end.set()
        for cluster in self._clusters:
            cluster.admin.close()

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the last reading of each cluster, in the order of the file."""
        return [cluster.row for cluster in self._clusters]

    def _run(self, cluster: _Cluster) -> None:
        while not self._end.is_set():
            cluster.read()
            if self._opened.is_set():
                self._end.wait(_SECONDS)
            else:
                self._opened.wait(_IDLE_SECONDS)


def cluster_row(name: str, state: ClusterState | None, problem: str) -> Mapping[str, Any]:
    """Return one cluster as JSON.

    Args:
        name: its name in the file.
        state: its state; None: it could not be read.
        problem: why it could not be read; empty: it was read.
    """
    cycle = state.last_cycle if state else None
    return {
        "name": name,
        "leader": state.leader_address if state else "",
        "moving": excerpt(cycle.topics, _TOPICS_SHOWN) if cycle else "",
        "bytesLeft": cycle.bytes_left if cycle else None,
        "eta": cycle.eta if cycle else None,
        "findings": [*cycle.findings, *([f"the last cycle failed: {cycle.error}"] if cycle.error else [])]
        if cycle
        else [],
        "problem": problem,
    }
