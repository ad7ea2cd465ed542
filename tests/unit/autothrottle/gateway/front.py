"""The gateway over real HTTP, with all services over gRPC and in-memory twins behind it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from autothrottle.adapters.exposition.prometheus import PrometheusText
from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.adapters.memory import MemoryMetrics, MemoryOverrides
from autothrottle.core.exported_metrics import BUILD_INFO
from autothrottle.gateway.live import AdminReading, LiveView
from autothrottle.gateway.server import GatewayServer
from autothrottle.runtime.access import Access
from autothrottle.runtime.health import Health
from tests import builders
from tests.builders import mb
from tests.in_process_services import BROKERS, InProcessServices

SLACK = 60.0
"""Time limit of any operation on a busy machine, in seconds."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response."""

    status: int
    text: str
    headers: Mapping[str, str]
    """Lower-case name -> value."""

    @property
    def json(self) -> Any:
        """The decoded JSON body."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.text)


class Front:
    """A gateway with the services behind it. Planners join the election on `services.start_planners`."""

    def __init__(
        self,
        header_seconds: float = SLACK,
        body_seconds: float = SLACK,
        access: Access | None = None,
        hosts: Collection[str] = (),
        health: Health | None = None,
        planners: int = 1,
    ) -> None:
        self._stack = ExitStack()
        metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
        self.services = self._stack.enter_context(InProcessServices(metrics, metrics, planners))
        admin = AdminServiceClient([self.services.address("admin")])
        self._stack.callback(admin.close)
        self.server = GatewayServer(
            admin,
            "127.0.0.1:0",
            header_seconds,
            body_seconds,
            access,
            hosts,
            health=health,
            metrics=PrometheusText(lambda: [BUILD_INFO.sample(1, "gateway", "1.2")], "kafka").render,
            quotas=self.services.enforced_request_quotas,
            live=LiveView(AdminReading(admin)),
        )
        self._stack.enter_context(self.server)

    def __enter__(self) -> Front:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def overrides(self) -> MemoryOverrides:
        """The store of overrides."""
        return self.services.overrides

    def clear(self) -> Front:
        """Remove all overrides, quotas and yield rules, and make the store of overrides readable again."""
        self.services.quotas.quotas.clear()
        for name in self.services.yield_rules.read():
            self.services.yield_rules.remove(name)
        self.overrides.unavailable(False)
        self.overrides.unreadable.clear()
        for broker_id in self.current():
            self.overrides.remove_override(broker_id)
        return self

    def current(self) -> dict[int | None, tuple[int, bool]]:
        """Broker id (None: the cluster) -> (bytes/s, autoremove) of every override."""
        found = self.overrides.read_overrides()
        cluster = [] if found.cluster is None else [(None, found.cluster)]
        return {b: (o.rate, o.autoremove) for b, o in (*cluster, *found.brokers.items())}

    def ask(
        self, verb: str, target: str, body: bytes | str | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request on a new connection."""
        connection = http.client.HTTPConnection(self.server.address, timeout=SLACK)
        try:
            connection.request(verb, target, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, response.read().decode(), found)
        finally:
            connection.close()
