"""In-memory fakes of every port, with the same contract as the real adapters. Use them in tests instead of mocks.

A module has the fakes of the ports in the module of the same name. Actions of the controller, of users and of faults
are methods. Callbacks run after a change, in the thread that made it. The types to know are `MemoryCluster` and
`MemoryElectorate`.
"""

from autothrottle.adapters.memory.kafka import MemoryClientQuotas, MemoryCluster, MemoryPermissions
from autothrottle.adapters.memory.placement import MemoryPlacementCluster, MemoryStorageMetrics
from autothrottle.adapters.memory.state_store import (
    MemoryAudit,
    MemoryAuditedMap,
    MemoryElection,
    MemoryElectorate,
    MemoryMembers,
    MemoryMembership,
    MemoryOverrides,
    MemoryPauses,
)
from autothrottle.adapters.memory.telemetry import MemoryDecisions, MemoryMetrics, MemorySpan, MemoryTracer

__all__ = [
    "MemoryAudit",
    "MemoryAuditedMap",
    "MemoryClientQuotas",
    "MemoryCluster",
    "MemoryDecisions",
    "MemoryElection",
    "MemoryElectorate",
    "MemoryMembers",
    "MemoryMembership",
    "MemoryMetrics",
    "MemoryOverrides",
    "MemoryPauses",
    "MemoryPermissions",
    "MemoryPlacementCluster",
    "MemorySpan",
    "MemoryStorageMetrics",
    "MemoryTracer",
]
