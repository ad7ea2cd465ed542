"""The demo's scenario: its shortest duration, and what happens in it without throttles."""

from autothrottle.core.cluster.flows import Flow
from autothrottle_lab.demo.scenario import demo_cluster, demo_scenario
from autothrottle_lab.simulate.recording import bound


def test_shortest_duration_of_the_demos_reassignment_is_45_to_50_seconds() -> None:
    scenario = demo_scenario()
    cluster = demo_cluster(scenario)
    assert len(scenario.targets) == 40
    assert sorted(cluster.brokers) == [1001, 1002, 1003, 1004, 1005, 1006]
    for key, target in scenario.targets.items():
        moving = cluster.assignment(key)
        assert 1000 in moving.replicas
        assert moving.leader in range(1001, 1006)
        assert [1000 if b == 1006 else b for b in target] == list(moving.replicas)
    assert 45 <= bound(scenario) <= 50


def test_demos_replicas_join_the_isr_throughout_and_clients_wait_without_throttles() -> None:
    scenario = demo_scenario()
    cluster = demo_cluster(scenario)
    cluster.submit_reassignment(scenario.targets)
    left = {}
    while cluster.moving():
        cluster.step(0.1)
        left[int(cluster.now)] = len(cluster.moving())
    assert max(left) < 1.25 * bound(scenario)
    assert left[15] in range(25, 36)
    assert left[30] in range(10, 25)
    assert cluster.flow_bytes.keys() == {Flow(leader, 1006) for leader in range(1001, 1006)}
    offered = sum(side.client_offered for side in cluster.sides())
    assert sum(side.client_deferred for side in cluster.sides()) / offered > 0.005
