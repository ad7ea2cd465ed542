"""A catch-up from the operator's command through all services to the throttled replicas."""

from __future__ import annotations

import json

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle_client import AdminClient, Invalid, Missing
from autothrottle_client.throttlectl import main
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import InProcessServices


def test_a_catch_up_throttles_a_broker_and_is_cleaned_up(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with InProcessServices(metrics, metrics) as services:
        services.cluster.add_topic("t", {0: (1001, 1003)})
        services.cluster.leave_isr("t", 0, 1003)
        services.start_planners()
        at = ["--addr", services.address("admin")]
        assert main(["catchup", "1003", *at]) == 0
        assert capsys.readouterr().out == "broker 1003 catches up under throttle until it is in sync\n"
        topic = ConfigResource.topic("t")
        eventually(lambda: "0:1003" in services.cluster.configs.get(topic, {}).values())
        assert main(["state", *at]) == 0
        assert "catches up  broker 1003, since 20" in capsys.readouterr().out
        services.cluster.join_isr("t", 0, 1003)
        eventually(lambda: not services.catch_ups.read())
        eventually(lambda: not services.cluster.ledger and not any(services.cluster.configs.values()))


def test_a_catch_up_of_an_unregistered_broker_gives_a_warning_and_can_be_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = MemoryMetrics()
    with InProcessServices(metrics, metrics) as services, AdminClient([services.address("admin")]) as admin:
        at = ["--addr", services.address("admin")]
        assert main(["catchup", "1009", "--output", "json", *at]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out)["catch_up"]["broker_id"] == 1009
        assert "broker 1009 is not registered: its replicas are throttled from its start" in output.err
        assert "replica.fetch.response.max.bytes (10.5 MB by default) from each leader" in output.err
        assert main(["catchup", "1009", "--stop", *at]) == 0
        assert main(["catchup", "1009", "--stop", *at]) == 3
        assert "has no catch-up under throttle" in capsys.readouterr().err
        with pytest.raises(Missing):
            admin.stop_catch_up(1009)
        with pytest.raises(Invalid):
            admin.start_catch_up(-1)
