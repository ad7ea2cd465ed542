"""The targets of reassignments in the nodes of topics."""

from __future__ import annotations

from autothrottle.adapters.kafka_zookeeper.placement import _parsed, running_targets
from autothrottle.adapters.zookeeper.codec import TopicNode, registered_rack


def test_a_reassigning_partition_ends_without_its_removing_replicas() -> None:
    node = TopicNode({0: (3, 1, 2), 1: (1, 2), 2: (2, 1)}, {0: (3,)}, {0: (2,), 2: (1,)})
    assert dict(running_targets({"t": node})) == {("t", 0): (3, 1), ("t", 2): (2,)}


def test_an_unreadable_registration_is_a_problem_of_its_broker_alone() -> None:
    """One broker with a malformed registration hid the racks of all others."""
    nodes = {1: b'{"rack":"a"}', 2: b'{"rack":null}', 3: b"{}", 7: b"[]"}
    racks, problems = _parsed(nodes, lambda id: registered_rack(nodes[id]), "broker {}".format)
    assert racks == {1: "a", 2: "", 3: ""}
    assert [problem.partition(":")[0] for problem in problems] == ["broker 7"]
