"""The health of discovery."""

from __future__ import annotations

import pytest

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.errors import Unavailable
from autothrottle.discovery import DiscoveryServicer


def test_check_fails_while_the_cluster_cannot_be_read_though_nobody_asks_for_a_snapshot() -> None:
    """Without a leader nobody reads snapshots. `/readyz` said that Kafka was fine two minutes after its last broker."""
    cluster, problems = MemoryCluster(), ["no broker of kafka1:9092 answers"]
    servicer = DiscoveryServicer(cluster, cluster, problem=lambda: "".join(problems))
    with pytest.raises(Unavailable, match="no broker of kafka1:9092 answers"):
        servicer.check()
    problems.clear()
    servicer.check()
