"""The targets of reassignments in the nodes of topics."""

from __future__ import annotations

import pytest

from autothrottle.adapters.kafka_zookeeper.placement import _rack, _targets
from autothrottle.adapters.zookeeper.codec import TopicNode
from autothrottle.core.errors import Incomplete


def test_a_reassigning_partition_ends_without_its_removing_replicas() -> None:
    node = TopicNode({0: (3, 1, 2), 1: (1, 2), 2: (2, 1)}, {0: (3,)}, {0: (2,), 2: (1,)})
    assert dict(_targets({"t": node})) == {("t", 0): (3, 1), ("t", 2): (2,)}


def test_a_rack_is_read_from_the_registration() -> None:
    assert (_rack(1, b'{"rack":"a"}'), _rack(1, b'{"rack":null}'), _rack(1, b"{}")) == ("a", "", "")
    with pytest.raises(Incomplete, match="broker 7"):
        _rack(7, b"[]")
