"""`--execute`: plans go to the admin service, which submits them under throttle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.command_line import main
from autothrottle_client import AdminClient, Submission, Unavailable
from tests.builders import eventually
from tests.unit.autothrottle.gateway.front import Front


@pytest.fixture
def front() -> Iterator[Front]:
    with Front() as front:
        front.services.cluster.add_topic("t", {0: (1001, 1002)})
        front.services.start_planners()
        eventually(lambda: front.ask("GET", "/v1/state").status == 200)
        yield front


@pytest.fixture
def arguments(front: Front, tmp_path: Path) -> list[str]:
    path = tmp_path / "cluster.json"
    brokers = {id: PlacementBroker(id, f"r{id}") for id in (1001, 1002, 1003)}
    path.write_text(format_cluster(PlacementCluster(brokers, (PartitionReplicas("t", 0, (1001, 1002)),))))
    options = ["rebuild", "--topics", "t", f"--cluster-file={path}", f"--out-path={tmp_path}", "--execute"]
    return [*options, f"--admin-addr={front.services.address('admin')}"]


def test_a_plan_is_submitted_with_its_estimate(
    front: Front, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--brokers", "1001,1003"]) == 0
    out = capsys.readouterr().out
    assert "\nEstimate: " in out
    assert out.endswith("1 partitions submitted under throttle, 0 already move there\n")
    assert front.services.cluster.topics["t"][0].adding_replicas == (1003,)
    assert (tmp_path / "t.json").exists()


def test_a_submission_leaves_the_json_document_alone(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate and the result followed the document on the standard output, so no JSON parser could read it."""
    assert main([*arguments, "--brokers", "1001,1003", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["changes"]
    assert "1 partitions submitted under throttle" in output.err


def test_a_dry_run_only_validates(
    front: Front, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--brokers", "1001,1003", "--dry-run"]) == 0
    assert "1 partitions would be submitted" in capsys.readouterr().out
    assert not front.services.cluster.topics["t"][0].moves
    assert not (tmp_path / "t.json").exists()


def test_a_plan_without_changes_or_in_several_maps_is_not_submitted(
    front: Front, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--brokers", "-1"]) == 0
    assert "nothing to submit" in capsys.readouterr().out
    assert main([*arguments, "--brokers", "1001,1003", "--phased-reassignment"]) == 1
    assert "throttlectl reassign FILE" in capsys.readouterr().err
    assert not front.services.cluster.topics["t"][0].moves


def test_a_refusal_of_the_admin_service_is_a_failure(
    front: Front, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The client package has error classes of its own, so that a refusal ended the command with a traceback.

    The command prints the refusal and fails."""
    front.services.cluster.brokers.discard(1003)
    assert main([*arguments, "--brokers", "1001,1003"]) == 1
    assert "1003" in capsys.readouterr().err


CUT = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1001]}]}'


def test_a_map_that_cuts_replicas_needs_an_option(
    front: Front, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A map of a file with fewer replicas than the cluster was submitted without a word."""
    given_map = [argument for argument in arguments if argument not in ("--topics", "t")]
    command = [*given_map, f"--map-string={CUT}", "--brokers", "1003"]
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "t-0 would have 1 replica instead of 2; to submit it nevertheless: --allow-fewer-replicas\n"
    )
    assert not front.services.cluster.topics["t"][0].moves
    assert main([*command, "--allow-fewer-replicas"]) == 0
    assert front.services.cluster.topics["t"][0].target == (1003,)


def test_what_a_command_asks_for_needs_no_second_option(
    front: Front, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--brokers", "-1", "--replication", "1"]) == 0
    assert "1 partitions submitted under throttle" in capsys.readouterr().out
    assert len(front.services.cluster.topics["t"][0].target) == 1


def test_refused_partitions_are_left_out_on_request(
    front: Front, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = {id: PlacementBroker(id, f"r{id}") for id in (1001, 1002, 1003)}
    partitions = (PartitionReplicas("t", 0, (1001, 1002)), PartitionReplicas("u", 0, (1001, 1002)))
    (tmp_path / "cluster.json").write_text(format_cluster(PlacementCluster(brokers, partitions)))
    command = ["t,u" if argument == "t" else argument for argument in arguments] + ["--brokers", "1001,1003"]
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "u-0 does not exist; give a partition's name\n"
        "  to leave refused partitions out and submit the 1 other partition: --skip-refused\n"
    )
    assert main([*command, "--skip-refused"]) == 0
    out = capsys.readouterr().out
    assert "Left out: u-0 does not exist; give a partition's name\n1 partitions submitted under throttle" in out
    assert front.services.cluster.topics["t"][0].adding_replicas == (1003,)


def test_refusals_and_errors_of_the_service_cannot_control_the_terminal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reason from the service was printed as it is, with its escape sequences and line ends."""
    hostile = "a\x1b[2J\n\u202eforged"
    submission = Submission(0, 0, 0, refused={("t", 0): hostile}, warnings=(hostile,))
    monkeypatch.setattr(AdminClient, "submit_reassignment", lambda *_, **__: submission)
    assert main([*arguments, "--brokers", "1001,1003"]) == 1
    out = capsys.readouterr().out
    assert r"Warning: a\x1b[2J\n\u202eforged" in out and r"Kafka refused t p0: a\x1b[2J\n\u202eforged" in out

    def refuse(*_: object, **__: object) -> Submission:
        raise Unavailable(hostile)

    monkeypatch.setattr(AdminClient, "submit_reassignment", refuse)
    assert main([*arguments, "--brokers", "1001,1003"]) == 1
    assert capsys.readouterr().err == "a\\x1b[2J\n  \\u202eforged\n", "further lines are indented"
