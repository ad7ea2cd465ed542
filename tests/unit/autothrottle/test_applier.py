"""The applier checks every change of a request before it writes any."""

from __future__ import annotations

from typing import Any

from autothrottle.adapters.memory import MemoryCluster, MemoryElectorate
from autothrottle.applier import ApplierServicer
from autothrottle.core.cluster.configs import LEADER_RATE
from autothrottle.v1 import applier_pb2, types_pb2
from autothrottle.wire.applier import change_to_message
from tests import builders


class Context:
    """The context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None


def test_one_invalid_change_is_refused_and_the_others_are_written() -> None:
    """An impossible value in the ledger made one change invalid. The applier then refused those of all brokers."""
    electorate = MemoryElectorate()
    electorate.begin_term()
    cluster = MemoryCluster(electorate, (1001, 1002))
    valid = builders.change("brokers/1001", (LEADER_RATE, None, None))
    without_record = builders.change("brokers/1002", (LEADER_RATE, None, "5"), ledger=None)
    request = applier_pb2.ApplyRequest(fence=1, changes=map(change_to_message, (valid, without_record)))
    context: Any = Context()
    written, refused = ApplierServicer(cluster, cluster).Apply(request, context).outcomes
    assert (written.resource, written.status) == ("brokers/1001", types_pb2.Outcome.STATUS_UNCHANGED)
    assert (refused.resource, refused.status) == ("brokers/1002", types_pb2.Outcome.STATUS_REFUSED)
    assert "without a record in the ledger" in refused.reason
    assert cluster.writes == []
