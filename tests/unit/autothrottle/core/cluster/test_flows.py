"""The sums of each link side's flows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress, link_sides_of
from tests.builders import NOON

COUNTS = st.builds(
    lambda copied, produced, left, seconds: FlowProgress(
        copied, produced, left, NOON, NOON - timedelta(seconds=seconds)
    ),
    *[st.integers(0, 10**12)] * 3,
    st.integers(0, 1000),
)


@given(st.dictionaries(st.builds(Flow, st.integers(1, 4), st.integers(5, 8)), COUNTS))
def test_link_traffic_is_the_sum_over_the_flows_of_a_link_side(counts: dict[Flow, FlowProgress]) -> None:
    found = Progress(counts).link_traffic
    assert found.keys() == link_sides_of(counts)
    for side, traffic in found.items():
        own = [count for flow, count in counts.items() if side in flow.sides]
        assert list(traffic.counts) == own
        assert traffic.bytes_copied == sum(count.bytes_copied for count in own)
        assert traffic.bytes_left == sum(count.bytes_left for count in own)
        copying = [count for count in own if count.bytes_left]
        seconds = [(count.at - count.since).total_seconds() for count in copying]
        rates = [count.bytes_produced / span for count, span in zip(copying, seconds, strict=True) if span]
        assert traffic.produced == pytest.approx(sum(rates))
