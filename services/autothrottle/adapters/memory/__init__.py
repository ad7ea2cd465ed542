"""In-memory fakes of every port, with the same contract as the real adapters. Use them in tests instead of mocks.

Actions of the controller, of users and of faults are methods. Callbacks run after a change, in the thread that made it.
The types to know are `MemoryCluster` and `MemoryElectorate`.
"""

from autothrottle.adapters.memory.audit import MemoryAudit
from autothrottle.adapters.memory.audited_map import MemoryAuditedMap
from autothrottle.adapters.memory.client_quotas import MemoryClientQuotas
from autothrottle.adapters.memory.cluster import MemoryCluster
from autothrottle.adapters.memory.decisions import MemoryDecisions
from autothrottle.adapters.memory.election import MemoryElection, MemoryElectorate
from autothrottle.adapters.memory.membership import MemoryMembers, MemoryMembership
from autothrottle.adapters.memory.metrics import MemoryMetrics
from autothrottle.adapters.memory.overrides import MemoryOverrides
from autothrottle.adapters.memory.pauses import MemoryPauses
from autothrottle.adapters.memory.permissions import MemoryPermissions
from autothrottle.adapters.memory.placement import MemoryPlacementCluster, MemoryStorageMetrics
from autothrottle.adapters.memory.tracing import MemorySpan, MemoryTracer

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
