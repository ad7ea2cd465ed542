from __future__ import annotations

import pytest

from autothrottle.gateway import large_answers, rest
from autothrottle.gateway.responses import document
from autothrottle.v1 import placement_pb2, types_pb2


@pytest.mark.repeat
def test_another_process_converts_a_large_answer_to_the_same_document() -> None:
    """JSON of a plan for 100,000 partitions took seconds of the process in which cycles run."""
    targets = [types_pb2.PartitionTarget(topic="orders-ä" * 5, partition=n, replicas=[n, 2, 3]) for n in range(9_000)]
    message = placement_pb2.RebuildResponse(plan=placement_pb2.PlacementPlan(partitions=targets))
    answer = large_answers.answer(message)
    expected = document(200, *rest.response(message))
    assert (answer.status_code, answer.body) == (200, expected.body)
    assert dict(answer.headers) == dict(expected.headers)
