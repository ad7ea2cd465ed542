"""Requests to the KRaft controllers themselves (KIP-919), for what a broker that is down cannot take.

kafka-python has no option for it: it bootstraps from metadata, which controllers do not serve. So the configured
controllers are asked who is active, and that one gets the request, over connections of their own: this is rare.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from autothrottle.adapters.deadlines import time_left
from autothrottle.adapters.kafka_admin.connections import Connections, Silence, kafka
from autothrottle.adapters.kafka_admin.translation import code_error, silence_error
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable

_CONTROLLERS = 2
"""Kafka's number of the kind of endpoints that DescribeCluster is asked for."""


def alter_through_controller(
    servers: Sequence[str], options: Mapping[str, Any], build: Callable[[], Any], deadline: float
) -> Any:
    """Return the active controller's response to a request that is sent once.

    Raises:
        Unavailable: none of the controllers answers, or none is active.
        Invalid: they refuse who we are, or are older than Kafka 3.7.
    """
    active = _active(servers, options, deadline)
    with closing(Connections([active], options, time_left(deadline))) as connections:
        (node,) = connections.bootstrap_nodes
        answer = connections.exchange({node: build()}, deadline)[node]
        if isinstance(answer, Silence):
            raise silence_error(answer, f"controller {active}")
        return answer


def _active(servers: Sequence[str], options: Mapping[str, Any], deadline: float) -> str:
    """`host:port` of the active controller."""
    with closing(Connections(servers, options, time_left(deadline))) as connections:
        half = time.monotonic() + time_left(deadline).total_seconds() / 2
        asked = {node: _who_is_active() for node in connections.bootstrap_nodes}
        problems: list[AutothrottleError] = []
        for node, answer in connections.exchange(asked, half, first=True).items():
            if isinstance(answer, Silence):
                problems.append(silence_error(answer, f"controller {connections.name(node)}"))
            elif answer.error_code:
                problems.append(code_error(answer.error_code, answer.error_message, connections.name(node)))
            elif endpoint := _endpoint(answer):
                return endpoint
    for problem in problems:
        if isinstance(problem, Invalid):
            raise problem
    why = problems[0] if problems else "none of them knows an active one"
    raise Unavailable(
        f"no controller of {', '.join(servers)} is of use: {why}. Fix: look at kafka-bootstrap-controllers"
    )


def _endpoint(answer: Any) -> str | None:
    for controller in answer.brokers:
        if controller.broker_id == answer.controller_id:
            host = f"[{controller.host}]" if ":" in controller.host else controller.host
            return f"{host}:{controller.port}"
    return None


def _who_is_active() -> Any:
    return kafka.protocol.admin.DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=_CONTROLLERS, min_version=1
    )
