"""Paths in ZooKeeper."""

from __future__ import annotations

import pytest

from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import ConfigResource

BROKER, TOPIC = ConfigResource.broker(1001), ConfigResource.topic("t1")


def test_kafka_paths_are_those_of_kafka() -> None:
    kafka = KafkaPaths()
    assert kafka.reassign_partitions == "/admin/reassign_partitions"
    assert kafka.broker_ids == "/brokers/ids"
    assert kafka.topic("t1") == "/brokers/topics/t1"
    assert kafka.state("t1", 12) == "/brokers/topics/t1/partitions/12/state"
    assert [kafka.config(BROKER), kafka.config(TOPIC)] == ["/config/brokers/1001", "/config/topics/t1"]
    assert kafka.change_notification == "/config/changes/config_change_"


@pytest.mark.parametrize("prefix", ["kafka/main", "/kafka/main", "kafka/main/", "//kafka//main//"])
def test_prefix_is_normalised(prefix: str) -> None:
    kafka = KafkaPaths(prefix)
    assert kafka.topics == "/kafka/main/brokers/topics"
    assert kafka.reassign_partitions == "/kafka/main/admin/reassign_partitions"
    assert kafka.config(BROKER) == "/kafka/main/config/brokers/1001"
    assert kafka.change_notification == "/kafka/main/config/changes/config_change_"


@pytest.mark.parametrize("prefix", ["", "/", "//"])
def test_empty_prefix_means_the_root(prefix: str) -> None:
    assert KafkaPaths(prefix).broker_ids == "/brokers/ids"


@pytest.mark.parametrize("prefix", ["autothrottle", "/autothrottle", "autothrottle/"])
def test_own_paths_are_below_one_root(prefix: str) -> None:
    own = OwnPaths(prefix)
    assert own.root == "/autothrottle"
    assert own.term == "/autothrottle/term"
    assert own.election == "/autothrottle/election"
    assert own.ledger_entry(BROKER) == "/autothrottle/ledger/brokers/1001"
    assert own.ledger_entry(TOPIC) == "/autothrottle/ledger/topics/t1"


def test_override_paths_are_those_of_the_original() -> None:
    assert OwnPaths().override(None) == "/autothrottle/override_rate"
    assert OwnPaths().override(1001) == "/autothrottle/override_rate/1001"
