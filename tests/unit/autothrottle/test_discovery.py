"""The health of discovery."""

from __future__ import annotations

import pytest

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.errors import Unavailable
from autothrottle.discovery import DiscoveryServicer


def test_check_fails_while_the_cluster_cannot_be_read() -> None:
    """`/readyz` said that Kafka was fine while no broker answered. Only the snapshots of a leader were checked."""
    cluster, problems = MemoryCluster(), ["no broker of kafka1:9092 answers"]
    servicer = DiscoveryServicer(cluster, cluster, problem=lambda: "".join(problems))
    with pytest.raises(Unavailable, match="no broker of kafka1:9092 answers"):
        servicer.check()
    problems.clear()
    servicer.check()
