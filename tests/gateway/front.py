"""The gateway over real HTTP, in front of all services over gRPC and the in-memory twins."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from autothrottle.adapters.memory import MemoryMetrics, MemoryOverrides
from autothrottle.adapters.rpc import AdminClient
from autothrottle.gateway.server import GatewayServer
from autothrottle.gateway.tokens import Tokens
from tests import builders
from tests.builders import mb
from tests.services.house import BROKERS, House

SLACK = 60.0
"""Seconds that anything may take on a busy machine."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    text: str
    headers: Mapping[str, str]
    """By name in lower case."""

    @property
    def json(self) -> Any:
        """The body of a JSON answer."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.text)


class Front:
    """A gateway and whom it asks; no planner stands for election before `house.start_planners`."""

    def __init__(
        self, header_seconds: float = SLACK, body_seconds: float = SLACK, tokens: Tokens | None = None
    ) -> None:
        self._stack = ExitStack()
        metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
        self.house = self._stack.enter_context(House(metrics, metrics))
        admin = AdminClient([self.house.address("admin")])
        self._stack.callback(admin.close)
        self.server = GatewayServer(admin, "127.0.0.1:0", header_seconds, body_seconds, tokens)
        self._stack.enter_context(self.server)

    def __enter__(self) -> Front:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def overrides(self) -> MemoryOverrides:
        """Where overrides stand."""
        return self.house.overrides

    def clear(self) -> Front:
        """Make everything as it was at first: no overrides, all of them readable."""
        self.overrides.unavailable(False)
        self.overrides.unreadable.clear()
        for broker_id in self.standing():
            self.overrides.remove_override(broker_id)
        return self

    def standing(self) -> dict[int | None, tuple[int, bool]]:
        """Broker id (None: the cluster) -> (bytes/s, autoremove) of all overrides."""
        found = self.overrides.read_overrides()
        cluster = [] if found.cluster is None else [(None, found.cluster)]
        return {b: (o.rate, o.autoremove) for b, o in (*cluster, *found.brokers.items())}

    def ask(
        self, verb: str, target: str, body: bytes | str | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.server.address, timeout=SLACK)
        try:
            connection.request(verb, target, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, response.read().decode(), found)
        finally:
            connection.close()
