"""Simulated brokers that speak the part of Kafka's protocol for broker configs, and delay each response.

Benchmarks use them to measure the cost of many remote brokers. They store broker configs only: no topics, no data.
The type to know is `AdminEndpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.values import ConfigOperation
from autothrottle_lab.emulators.broker_endpoints import DESCRIBE_CONFIGS, BrokerEndpoints

_BROKER = 4
"""Kafka's number of the resource type."""
_ALTER_CONFIGS = 44


class AdminEndpoints(BrokerEndpoints):
    """Brokers 1 to N on 127.0.0.1, all in one thread; a context manager that starts and stops them."""

    versions: Mapping[int, tuple[int, int]] = {
        **BrokerEndpoints.versions,
        DESCRIBE_CONFIGS: (1, 3),
        _ALTER_CONFIGS: (0, 0),
    }

    def __init__(self, count: int, delay: timedelta) -> None:
        """Open the ports.

        Args:
            count: number of brokers, >= 1.
            delay: time between the arrival of a request and its response, >= 0.
        """
        self.configs: dict[int, dict[str, str]] = {broker_id: {} for broker_id in range(1, count + 1)}
        """Broker id -> its dynamic configs."""
        super().__init__(self.configs, delay)
        self.apis |= {
            DESCRIBE_CONFIGS: (kafka.protocol.admin.DescribeConfigsRequest, self._describe),
            _ALTER_CONFIGS: (kafka.protocol.admin.IncrementalAlterConfigsRequest, self._alter),
        }

    def _describe(self, broker_id: int, request: Any) -> Any:
        answer = kafka.protocol.admin.DescribeConfigsResponse
        return answer(throttle_time_ms=0, results=[self._described(broker_id, r) for r in request.resources])

    def _described(self, broker_id: int, resource: Any) -> Any:
        result = kafka.protocol.admin.DescribeConfigsResponse.DescribeConfigsResult
        described = result.DescribeConfigsResourceResult
        current = self.configs[broker_id] if resource.resource_name == str(broker_id) else {}
        source = messages.DYNAMIC_BROKER_CONFIG
        configs = [
            described(
                name=name,
                value=value,
                read_only=False,
                config_source=source,
                is_sensitive=False,
                synonyms=[described.DescribeConfigsSynonym(name=name, value=value, source=source)],
                documentation=None,
            )
            for name, value in current.items()
        ]
        return result(
            error_code=0,
            error_message=None,
            resource_type=_BROKER,
            resource_name=resource.resource_name,
            configs=configs,
        )

    def _alter(self, broker_id: int, request: Any) -> Any:
        answer = kafka.protocol.admin.IncrementalAlterConfigsResponse
        for resource in request.resources:
            for config in resource.configs:
                self.configs[broker_id].pop(config.name, None)
                if config.config_operation != ConfigOperation.DELETE.value:
                    self.configs[broker_id][config.name] = config.value
        return answer(
            throttle_time_ms=0,
            responses=[
                answer.AlterConfigsResourceResponse(
                    error_code=0, error_message=None, resource_type=_BROKER, resource_name=resource.resource_name
                )
                for resource in request.resources
            ],
        )
