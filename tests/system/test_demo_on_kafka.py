"""`make demo KAFKA=4`: the demo on real brokers, and its complete cleanup however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autothrottle_lab.demo.kafka_stage import CAPACITY, bytes_to_copy, targets
from tests.system.test_demo import Demo, running


@pytest.mark.repeat
def test_demo_replaces_a_failed_broker_of_a_real_cluster_under_throttles(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    with running(tmp_path, "--kafka", "4", "--json", str(file)) as demo:
        demo.wait_until(lambda: "replaces it" in demo.text(), 300)
        demo.record_processes()
        # The demo, its guard, ZooKeeper, the controller, four live brokers, two planners, four other services.
        assert demo.process_count >= 14
        assert demo.process.wait(timeout=400) == 0, demo.text()
        assert demo.leftovers(within_seconds=30) == []
        output = demo.text()
    found = json.loads(file.read_text())
    assert found["kafka"] == "4.3.1"
    # An unthrottled reassignment takes a few seconds.
    assert found["recovery_seconds"] > bytes_to_copy() / CAPACITY, output
    assert found["client_failures"] == 0, output
    assert found["client_bytes"] > 0
    assert (found["first_throttle_seconds"], found["bytes_before_throttle"]) == (0, 0), output
    assert found["clean_seconds"] is not None, output
    assert found["leader_changes"] >= 1
    assert found["cycles"] > 5
    # 4 rates and 8 lists at the start, and the same number of removals at the end.
    assert found["writes"] >= 24
    assert_log_lines_are_in_order(output)


def assert_log_lines_are_in_order(output: str) -> None:
    lines = [
        "demo: broker 1000 is killed (SIGKILL)",
        "Autothrottle Running",
        f"demo: broker 1000 has failed; broker 1006 replaces it: {len(targets())} partitions",
        "Topics with ongoing reassignments: [clickstream orders payments telemetry]",
        "Source brokers participating in replication: [1001 1002 1003]",
        "Destination brokers participating in replication: [1006]",
        "demo: client load doubles on every broker",
        "the leader, is killed (SIGKILL)",
        "Leading in term ",
        "demo: client load returns to its initial rate",
        "demo: the reassignment is done",
        "demo: no throttle is left",
        "recovery / shortest",
    ]
    at = 0
    for line in lines:
        assert line in output[at:], f"{line!r} is missing, or too early:\n{output}"
        at = output.index(line, at)
    rate = "Replication throttle rate for broker 1006 [follower] (based on a 90% max free capacity utilization): "
    assert rate in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda demo: demo.process_count >= 5, id="start"),
        pytest.param(lambda demo: "filling" in demo.text(), id="filling", marks=pytest.mark.repeat),
        pytest.param(lambda demo: "throttle rate for broker" in demo.text(), id="copying", marks=pytest.mark.repeat),
    ],
)
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, moment: Callable[[Demo], bool]) -> None:
    with running(tmp_path, "--kafka", "4") as demo:
        demo.wait_until(lambda: moment(demo), 300)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(timeout=120) == 130
        assert demo.leftovers(within_seconds=30) == []
        assert "Traceback" not in demo.text()


def test_unknown_kafka_version_is_refused_before_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    assert subprocess.run([sys.executable, "-m", "autothrottle", "demo", "--kafka", "5"], check=False).returncode == 2
    assert "invalid choice: '5'" in capfd.readouterr().err
