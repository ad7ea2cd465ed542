"""A catch-up as an operator asks for it: from the command through every service to the lists and back."""

from __future__ import annotations

import json

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.configs import ConfigResource
from autothrottle_client import AdminClient, Invalid, Missing
from autothrottle_client.throttlectl import main
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import House


def test_a_broker_catches_up_under_throttle_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with House(metrics, metrics) as house:
        house.cluster.add_topic("t", {0: (1001, 1003)})
        house.cluster.leave_isr("t", 0, 1003)
        house.start_planners()
        at = ["--addr", house.address("admin")]
        assert main(["catchup", "1003", *at]) == 0
        assert capsys.readouterr().out == "broker 1003 catches up under throttle, which goes when it is in sync\n"
        topic = ConfigResource.topic("t")
        eventually(lambda: "0:1003" in house.cluster.configs.get(topic, {}).values())
        assert main(["state", *at]) == 0
        assert "catches up  broker 1003, since 20" in capsys.readouterr().out
        house.cluster.join_isr("t", 0, 1003)
        eventually(lambda: not house.catch_ups.read_catch_ups())
        eventually(lambda: not house.cluster.ledger and not any(house.cluster.configs.values()))


def test_it_is_stopped_and_a_broker_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = MemoryMetrics()
    with House(metrics, metrics) as house, AdminClient([house.address("admin")]) as admin:
        at = ["--addr", house.address("admin")]
        assert main(["catchup", "1009", "--output", "json", *at]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["catch_up"]["broker_id"] == 1009
        assert (
            "broker 1009 is not registered: replicas of it are throttled from the first fetch; without any it is over"
            in said.err
        )
        assert main(["catchup", "1009", "--stop", *at]) == 0
        assert main(["catchup", "1009", "--stop", *at]) == 3
        assert "does not catch up under throttle" in capsys.readouterr().err
        with pytest.raises(Missing):
            admin.stop_catch_up(1009)
        with pytest.raises(Invalid):
            admin.start_catch_up(0)
