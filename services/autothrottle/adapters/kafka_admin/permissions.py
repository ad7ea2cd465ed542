"""What Kafka's authorizer lets this client do; asking changes nothing (KIP-430)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.core.errors import Missing

READING = ("Describe", "DescribeConfigs")
WRITING = ("Alter", "AlterConfigs")
"""Operations on the cluster to write throttles and to submit reassignments; topics need all but Alter."""


class KafkaPermissions:
    """The operations on the cluster and on topics; a `PermissionSource`."""

    def __init__(self, kafka: KafkaAdmin, writes_configs: bool) -> None:
        """Prepare.

        Args:
            kafka: the client whose permissions are read.
            writes_configs: whether throttles are written through it.
        """
        self._kafka = kafka
        self._of_cluster = (*READING, *WRITING) if writes_configs else (*READING, "Alter")
        self._of_topics = (*READING, "AlterConfigs") if writes_configs else READING

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        cluster, topics = self._kafka.permitted_operations(timeout=timeout)
        missing = {}
        if operations := _absent(self._of_cluster, cluster):
            missing["Kafka, cluster"] = _sentence(operations, "--cluster")
        denied = {topic: _absent(self._of_topics, allowed) for topic, allowed in sorted(topics.values.items())}
        if len(denied) > 1 and all(denied.values()) and len({*denied.values()}) == 1:
            missing["all topics"] = _sentence(next(iter(denied.values())), "--topic '*'")
        else:
            of_topics = ((topic, operations) for topic, operations in denied.items() if operations)
            missing |= {f"topic {topic}": _sentence(operations, f"--topic {topic}") for topic, operations in of_topics}
        failures = {f"topic {t}": str(e) for t, e in topics.failures.items() if not isinstance(e, Missing)}
        return missing | failures


def _absent(operations: Collection[str], allowed: Collection[str]) -> tuple[str, ...]:
    return tuple(operation for operation in operations if operation not in allowed)


def _sentence(operations: Collection[str], resource: str) -> str:
    options = " ".join(f"--operation {operation}" for operation in operations)
    return (
        f"this client may not {', '.join(operations)}. Fix: kafka-acls.sh --add --allow-principal User:... {options} "
        f"{resource}, see docs/security.md"
    )
