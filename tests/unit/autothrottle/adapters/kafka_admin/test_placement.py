"""The cluster of a plan from the Admin API, storage from DescribeLogDirs, and cordons on brokers in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from autothrottle.adapters.kafka_admin.messages import log_dirs
from autothrottle.adapters.kafka_admin.placement import (
    CORDONED_LOG_DIRS,
    AdminClusterSource,
    KafkaCordons,
    storage_metrics,
)
from autothrottle.adapters.kafka_admin.values import Answers, ConfigEdit, ConfigValue, LogDirs
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.errors import Conflict, Invalid, Missing, Unavailable
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka

TIMEOUT = timedelta(seconds=1)
NOW = datetime(2026, 11, 24, tzinfo=UTC)


def directory(total: int, usable: int, cordoned: bool = False, **sizes: int) -> SimpleNamespace:
    topics = [
        SimpleNamespace(
            name=topic, partitions=[SimpleNamespace(partition_index=0, partition_size=size, is_future_key=False)]
        )
        for topic, size in sizes.items()
    ]
    return SimpleNamespace(error_code=0, topics=topics, total_bytes=total, usable_bytes=usable, is_cordoned=cordoned)


def answer(*directories: SimpleNamespace) -> LogDirs:
    return log_dirs(1, SimpleNamespace(error_code=0, results=list(directories)))


def test_directories_of_one_volume_count_once() -> None:
    assert answer(directory(100, 40), directory(100, 40)).usable_bytes == 40
    assert answer(directory(100, 40), directory(100, 39)).usable_bytes == 79


def test_a_cordoned_directory_has_no_free_storage() -> None:
    found = answer(directory(100, 40, cordoned=True, t=5), directory(200, 50))
    assert (found.total_bytes, found.usable_bytes, found.cordoned) == (300, 50, False)


def test_a_broker_is_cordoned_if_all_its_directories_are() -> None:
    found = answer(directory(100, 40, cordoned=True), directory(200, 50, cordoned=True))
    assert (found.usable_bytes, found.cordoned) == (0, True)


def test_kafka_before_3_3_reports_no_free_storage() -> None:
    assert answer(directory(-1, -1, t=5)) == LogDirs({("t", 0): 5}, None, None, False)


def test_a_sample_has_the_largest_replica_and_names_what_is_unknown() -> None:
    found = storage_metrics(
        {1: answer(directory(100, 40, t=5)), 2: answer(directory(-1, -1, t=9))}, NOW, ["broker 3 does not answer"]
    )
    assert found.sizes == {("t", 0): 9}
    assert found.storage_free == {1: 40}
    assert found.problems == ("broker 2 does not report its free storage; it needs Kafka 3.3",)
    assert found.unanswered == ("broker 3 does not answer",)


class PlacedKafka(MemoryKafka):
    """Brokers with racks; one is cordoned, one does not report its configs."""

    def racks(self, *, timeout: timedelta | None = None) -> Mapping[int, str]:
        return {1001: "a", 1002: "", 1003: "b", 1004: "c"}

    def broker_configs(
        self, broker_ids: Collection[int], *_: object, **__: object
    ) -> Answers[int, Mapping[str, ConfigValue]]:
        directories = {"log.dirs": ConfigValue("/data1, /data2")}
        configs: Mapping[int, Mapping[str, ConfigValue]] = {
            1001: {},
            1002: {CORDONED_LOG_DIRS: ConfigValue("*"), **directories},
            1003: {CORDONED_LOG_DIRS: ConfigValue("/data2,/data1"), **directories},
            1004: {CORDONED_LOG_DIRS: ConfigValue("/data2"), **directories},
        }
        return Answers({id: configs[id] for id in broker_ids}, {})


def test_a_plan_starts_from_the_end_of_reassignments_in_progress() -> None:
    """A plan made during a reassignment counted its adding and removing replicas, so that it undid half of it.

    A plan starts from the replicas that the reassignment ends with (T11)."""
    cluster = MemoryCluster(brokers=(1001, 1002, 1003, 1004))
    cluster.add_topic("t", {0: (1001, 1002), 1: (1002, 1001)})
    cluster.submit_reassignment("t", {0: (1003, 1001)})
    found = AdminClusterSource(PlacedKafka(cluster)).fetch_cluster(TIMEOUT).complete()
    assert [(one.topic, one.partition, one.replicas) for one in found.partitions] == [
        ("t", 0, (1003, 1001)),
        ("t", 1, (1002, 1001)),
    ]


def test_brokers_have_their_racks_and_cordons() -> None:
    found = AdminClusterSource(PlacedKafka(MemoryCluster())).fetch_cluster(TIMEOUT).complete().brokers
    assert {id: (one.rack, one.cordoned) for id, one in found.items()} == {
        1001: ("a", False),
        1002: ("", True),
        1003: ("b", True),
        1004: ("c", False),
    }


def test_racks_are_read_without_the_partitions_and_only_some_cordons() -> None:
    source = AdminClusterSource(PlacedKafka(MemoryCluster()))
    brokers = source.fetch_brokers({1002, 1004, 1009}, TIMEOUT)
    assert {id: (broker.rack, broker.cordoned) for id, broker in brokers.items()} == {
        1001: ("a", False),
        1002: ("", True),
        1003: ("b", False),
        1004: ("c", False),
    }


KEY = "cordoned.log.dirs"


class CordonableKafka(MemoryKafka):
    """Brokers with their values of the key; a broker that is absent does not answer."""

    def __init__(self, values: Mapping[int, str | None]) -> None:
        super().__init__(MemoryCluster(brokers=values))
        self.values = dict(values)
        self.old: set[int] = set()
        """Brokers of Kafka before 4.3, which do not know the key."""
        self.failing: set[int] = set()

    def broker_configs(
        self, broker_ids: Collection[int], keys: Collection[str] | None = None, **_: object
    ) -> Answers[int, Mapping[str, ConfigValue]]:
        known = {id: {} if id in self.old else {KEY: ConfigValue("", self.values[id])} for id in self.values}
        return Answers(
            {id: known[id] for id in broker_ids if id in known},
            {id: Unavailable(f"broker {id} is down") for id in broker_ids if id not in known},
        )

    def alter_broker_configs(self, broker_id: int, edits: Sequence[ConfigEdit], *, until: float | None = None) -> None:
        if broker_id in self.failing:
            raise Unavailable(f"broker {broker_id} does not answer")
        (edit,) = edits
        assert edit.key == KEY
        self.values[broker_id] = edit.value


def test_a_cordon_is_set_and_removed() -> None:
    kafka = CordonableKafka({1: None, 2: "*", 3: None})
    assert KafkaCordons(kafka).cordon([1, 2]) == (1,)
    assert kafka.values == {1: "*", 2: "*", 3: None}
    assert KafkaCordons(kafka).uncordon([1, 3]) == (1,)
    assert kafka.values == {1: None, 2: "*", 3: None}


def test_cordons_of_single_directories_stay() -> None:
    kafka = CordonableKafka({1: None, 2: "/data1"})
    for change in (KafkaCordons(kafka).cordon, KafkaCordons(kafka).uncordon):
        with pytest.raises(Conflict, match=r"broker 2 has cordoned\.log\.dirs=/data1"):
            change([1, 2])
    assert kafka.values == {1: None, 2: "/data1"}


def test_a_failure_leaves_every_broker_as_it_was() -> None:
    kafka = CordonableKafka({1: None, 2: None})
    kafka.failing = {2}
    with pytest.raises(Unavailable):
        KafkaCordons(kafka).cordon([1, 2])
    assert kafka.values == {1: None, 2: None}


def test_old_and_stopped_brokers_are_refused() -> None:
    kafka = CordonableKafka({1: None, 2: None})
    kafka.old = {2}
    with pytest.raises(Invalid, match=r"broker 2 .*Kafka 4.3"):
        KafkaCordons(kafka).cordon([1, 2])
    with pytest.raises(Missing, match="broker 9"):
        KafkaCordons(kafka).cordon([1, 9])
    assert kafka.values == {1: None, 2: None}
