"""`autothrottle check` over sources in memory: one that fails is one finding."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from autothrottle import check as check_module
from autothrottle.adapters.memory import MemoryCluster, MemoryMetrics, MemoryPermissions, MemoryPlacementCluster
from autothrottle.check import CheckSources, check, findings_text
from autothrottle.core.cluster.configs import ClusterSettings, FetchSettings
from autothrottle.core.errors import Unavailable, Unready
from autothrottle.core.inspection import Finding
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.traffic.loads import BrokerLoad, Loads
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from tests import builders
from tests.builders import mb

LIMIT = timedelta(seconds=5)
CLUSTER = PlacementCluster(
    {id: PlacementBroker(id, rack) for id, rack in ((1, "a"), (2, "b"))}, (PartitionReplicas("t", 0, (1, 2)),)
)


def load(broker_id: int) -> BrokerLoad:
    return builders.load(broker_id, mb(1), mb(1), capacity=mb(1000), end=datetime.now(UTC))


def sources(
    cluster: PlacementCluster = CLUSTER, denied: Mapping[str, str] | None = None, metrics: MemoryMetrics | None = None
) -> CheckSources:
    kafka = MemoryCluster(brokers=(1, 2))
    kafka.settings = ClusterSettings({1: FetchSettings(), 2: FetchSettings()})
    return CheckSources(
        cluster=lambda: MemoryPlacementCluster(cluster),
        snapshots=lambda: kafka,
        loads=lambda: metrics or MemoryMetrics(load(1), load(2)),
        settings=kafka,
        permissions={"state store": lambda: MemoryPermissions(denied)},
    )


def warnings(
    checked: CheckSources, limit: timedelta = LIMIT, configuration: Configuration | None = None
) -> list[tuple[str, str]]:
    lines = check(checked, configuration or Configuration(), limit)
    return [(line.subject, line.value) for line in lines if line.fix]


def refuse(*_: object) -> Any:
    raise Unavailable("no server answers; check --zk-addr")


def test_sound_deployment_has_facts_and_no_findings() -> None:
    lines = check(sources(), Configuration(), LIMIT)
    assert not [line for line in lines if line.fix]
    assert {"state store", "racks", "Kafka", "metrics", "broker 1", "broker 2"} == {line.subject for line in lines}


def test_new_source_is_compared_with_the_growth_of_the_logs() -> None:
    grown = builders.load(1, mb(0), mb(50), capacity=mb(1000), end=datetime.now(UTC))
    checked = replace(sources(), log_growth=lambda: MemoryMetrics(grown))
    value = "inbound load is 1.00 MB/s, and the growth of the logs shows at least 50.00 MB/s"
    assert warnings(checked) == [("broker 1", value)]
    assert warnings(replace(checked, log_growth=refuse)) == []


@pytest.mark.parametrize("name", ["cluster", "snapshots", "loads", "settings"])
def test_source_that_is_unreachable_is_one_finding(name: str) -> None:
    changed: Any = {name: SimpleNamespace(fetch_settings=refuse) if name == "settings" else refuse}
    findings = warnings(replace(sources(denied={"topic t": "this client may not x. Fix: allow it"}), **changed))
    others = [("topic t", "this client may not x")]
    assert [line for line in findings if line in others] == others
    assert [value for _, value in findings if value not in "this client may not x"] == ["no server answers"]


def test_two_sources_that_fail_for_one_reason_are_one_finding() -> None:
    checked = replace(sources(), snapshots=refuse, permissions={"state store": refuse})
    assert warnings(checked) == [("state store", "no server answers")]


def test_sources_that_say_what_they_could_not_do_have_one_cause() -> None:
    """Without a reachable Kafka, three lines named one cause, each after another beginning."""

    def fail(*_: object) -> Any:
        raise Unavailable("the state topic s cannot be read: no server answers; check --zk-addr")

    checked = replace(sources(), cluster=fail, snapshots=refuse, permissions={"state store": fail})
    assert warnings(checked) == [("Kafka, throttles", "no server answers")]


def test_source_that_hangs_is_one_finding_after_the_limit() -> None:
    """A metrics source that accepted the connection and never answered would block a check for ever."""
    released = threading.Event()

    def hang() -> Any:
        released.wait()
        refuse()

    findings = warnings(replace(sources(), loads=hang), timedelta(seconds=0.1))
    released.set()
    assert findings == [("metrics", "no answer within 0.1 s, so it is not checked")]


def test_broker_that_does_not_answer_costs_half_of_the_limit() -> None:
    """A frozen broker took the whole limit, so that the racks of all brokers were reported as not checked."""
    waits: list[timedelta] = []

    class Frozen(MemoryPlacementCluster):
        def fetch_cluster(self, timeout: timedelta) -> PlacementCluster:
            waits.append(timeout)
            return super().fetch_cluster(timeout)

    assert warnings(replace(sources(), cluster=lambda: Frozen(CLUSTER))) == []
    assert waits == [LIMIT / 2]


def test_defect_in_one_source_does_not_end_the_others() -> None:
    def fail() -> Any:
        raise ZeroDivisionError("odd")

    assert warnings(replace(sources(), cluster=fail)) == [
        ("Kafka", "an unexpected ZeroDivisionError ended this check: odd")
    ]


def test_unreadable_broker_does_not_hide_the_racks_of_the_others() -> None:
    cluster = replace(CLUSTER, problems=("broker 3: its registration is not an object; correct it",))
    shared = replace(cluster, partitions=(PartitionReplicas("t", 0, (1, 4)), *cluster.partitions))
    broker = PlacementBroker(4, "a")
    metrics = MemoryMetrics(load(1), load(2), load(4))
    findings = warnings(sources(replace(shared, brokers={**shared.brokers, 4: broker}), metrics=metrics))
    assert [subject for subject, _ in findings] == ["broker 3", "topic t", "broker 4"]
    assert findings[2] == ("broker 4", "does not report its fetch sizes")


def test_metrics_source_that_collects_samples_gets_time_for_them() -> None:
    """The first rounds of a scraper had one sample, which every broker then had as a finding."""
    metrics = MemoryMetrics(load(1))
    metrics.lose(2, "broker 2 has one sample; a rate needs two")
    timer = threading.Timer(0.2, metrics.set_loads, [load(2)])
    timer.start()
    configuration = Configuration(metrics_source="scrape", scrape_interval=timedelta(seconds=2))
    assert warnings(sources(metrics=metrics), configuration=configuration) == []
    timer.join()


LINES = [Finding("broker 1", "capacity 5 MB/s"), Finding("topic a\x1b", "is odd", "rename it")]


def test_findings_are_one_line_each_without_control_characters() -> None:
    text = findings_text(LINES, "text")
    assert text == "INFO broker 1: capacity 5 MB/s\nWARN topic a\\x1b: is odd. Fix: rename it"


def test_json_has_the_same_findings() -> None:
    assert json.loads(findings_text(LINES, "json")) == [
        {"level": "info", "subject": "broker 1", "value": "capacity 5 MB/s", "fix": ""},
        {"level": "warn", "subject": "topic a\x1b", "value": "is odd", "fix": "rename it"},
    ]


def test_a_source_that_has_not_two_samples_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host the first answer came too late, and the check warned of a source that works."""
    monkeypatch.setattr(check_module, "_PATIENCE", timedelta(0))

    class Late(MemoryMetrics):
        answers = 0

        def fetch_loads(self, timeout: timedelta) -> Loads:
            self.answers += 1
            if self.answers == 1:
                raise Unready("there are no two samples yet")
            return super().fetch_loads(timeout)

    configuration = Configuration(metrics_source="kafka", scrape_interval=timedelta(0))
    metrics = Late(load(1), load(2))
    assert not [w for w in warnings(sources(metrics=metrics), configuration=configuration) if w[0] == "metrics"]
    assert metrics.answers == 2


def test_a_problem_of_the_configuration_that_two_sources_have_is_one_finding() -> None:
    """The second one had the text of an error of several lines, with a visible line break."""

    def fail() -> Any:
        raise InvalidConfiguration(["topic s has 3 partitions and must have 1. Fix: choose another name"])

    checked = replace(sources(), cluster=fail, snapshots=fail)
    assert warnings(checked) == [("Kafka", "topic s has 3 partitions and must have 1")]
