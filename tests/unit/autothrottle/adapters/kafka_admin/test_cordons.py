"""Cordons of brokers, on brokers in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from autothrottle.adapters.kafka_admin.cordons import KafkaCordons
from autothrottle.adapters.kafka_admin.values import Answers, ConfigEdit, ConfigValue
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.errors import Conflict, Invalid, Missing, Unavailable
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka

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
