"""The in-memory twin of every port, shipped so that nobody needs a mock: same contract, no outside.

What a controller, a user or a fault would do to the real thing is a method here. Callbacks run in the thread
of whoever made the change, after it is made. The types to know are `MemoryCluster` and `MemoryElectorate`.
"""

from autothrottle.adapters.memory.audit import MemoryAudit
from autothrottle.adapters.memory.catch_ups import MemoryCatchUps
from autothrottle.adapters.memory.cluster import MemoryCluster, MemoryPartition
from autothrottle.adapters.memory.decisions import MemoryDecisions
from autothrottle.adapters.memory.election import MemoryElection, MemoryElectorate
from autothrottle.adapters.memory.membership import MemoryMembers, MemoryMembership
from autothrottle.adapters.memory.metrics import MemoryMetrics
from autothrottle.adapters.memory.overrides import MemoryOverrides
from autothrottle.adapters.memory.pauses import MemoryPauses
from autothrottle.adapters.memory.tracing import MemorySpan, MemoryTracer

__all__ = [
    "MemoryAudit",
    "MemoryCatchUps",
    "MemoryCluster",
    "MemoryDecisions",
    "MemoryElection",
    "MemoryElectorate",
    "MemoryMembers",
    "MemoryMembership",
    "MemoryMetrics",
    "MemoryOverrides",
    "MemoryPartition",
    "MemoryPauses",
    "MemorySpan",
    "MemoryTracer",
]
