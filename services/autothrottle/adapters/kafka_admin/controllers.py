"""Sends requests to the KRaft controllers directly (KIP-919), for configs of a broker that is down.

kafka-python has no option for this: it bootstraps from metadata, which controllers do not serve. So the configured
controllers are asked for the active one, which then gets the request. Each call opens new connections: it is rare.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from autothrottle.adapters.concurrency.deadlines import time_left
from autothrottle.adapters.kafka_admin.connections import Connections, NoResponse, kafka
from autothrottle.adapters.kafka_admin.errors import code_error, no_response_error
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable

_CONTROLLERS = 2
"""Kafka's number for controllers as the endpoint type of DescribeCluster."""


def alter_through_controller(
    servers: Sequence[str], options: Mapping[str, Any], build: Callable[[], Any], deadline: float
) -> Any:
    """Send a request once to the active controller, and return its response.

    Raises:
        Unavailable: no controller answers, or none is active.
        Invalid: the controllers refuse our credentials, or are older than Kafka 3.7.
    """
    active = _active(servers, options, deadline)
    with closing(Connections([active], options, time_left(deadline))) as connections:
        (node,) = connections.bootstrap_nodes
        answer = connections.exchange({node: build()}, deadline)[node]
        if isinstance(answer, NoResponse):
            raise no_response_error(answer, f"controller {active}")
        return answer


def _active(servers: Sequence[str], options: Mapping[str, Any], deadline: float) -> str:
    """Find `host:port` of the active controller."""
    with closing(Connections(servers, options, time_left(deadline))) as connections:
        half = time.monotonic() + time_left(deadline).total_seconds() / 2
        request_type = kafka.protocol.admin.DescribeClusterRequest
        fields = {"include_cluster_authorized_operations": False, "endpoint_type": _CONTROLLERS, "min_version": 1}
        requests = {node: request_type(**fields) for node in connections.bootstrap_nodes}
        problems: list[AutothrottleError] = []
        for node, answer in connections.exchange(requests, half, first=True).items():
            if isinstance(answer, NoResponse):
                problems.append(no_response_error(answer, f"controller {connections.name(node)}"))
            elif answer.error_code:
                problems.append(code_error(answer.error_code, answer.error_message, connections.name(node)))
            elif endpoint := _endpoint(answer):
                return endpoint
    for problem in problems:
        if isinstance(problem, Invalid):
            raise problem
    why = problems[0] if problems else "none of them knows the active controller"
    raise Unavailable(
        f"no controller of {', '.join(servers)} is available: {why}. Fix: check kafka-bootstrap-controllers"
    )


def _endpoint(answer: Any) -> str | None:
    for controller in answer.brokers:
        if controller.broker_id == answer.controller_id:
            host = f"[{controller.host}]" if ":" in controller.host else controller.host
            return f"{host}:{controller.port}"
    return None
