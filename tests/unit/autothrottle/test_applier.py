"""The applier checks every change of a request before it writes any."""

from __future__ import annotations

from typing import Any

import pytest

from autothrottle.adapters.memory import MemoryCluster, MemoryElectorate
from autothrottle.applier import ApplierServicer
from autothrottle.core.cluster.configs import LEADER_RATE
from autothrottle.core.errors import Invalid
from autothrottle.v1 import applier_pb2
from autothrottle.wire.applier import change_to_message
from tests import builders


class Context:
    """The context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None


def test_nothing_is_written_if_one_change_is_invalid() -> None:
    """The applier wrote whatever a caller sent. A throttle without a ledger entry stayed forever."""
    cluster = MemoryCluster(MemoryElectorate(), (1001, 1002))
    valid = builders.change("brokers/1001", (LEADER_RATE, None, None))
    without_record = builders.change("brokers/1002", (LEADER_RATE, None, "5"), ledger=None)
    request = applier_pb2.ApplyRequest(fence=1, changes=map(change_to_message, (valid, without_record)))
    context: Any = Context()
    with pytest.raises(Invalid, match="without a record in the ledger"):
        ApplierServicer(cluster, cluster).Apply(request, context)
    assert cluster.writes == []
