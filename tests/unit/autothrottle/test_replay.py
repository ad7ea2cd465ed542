"""The command `replay`: its exit status, its output, and logs that are old, damaged or empty."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle import replay
from autothrottle.__main__ import main
from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Decision
from autothrottle.core.throttles import plan
from tests.builders import NOON, mb
from tests.unit.autothrottle.planner.bench import Bench

LIMITS = LogLimits(patience=timedelta(minutes=3))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log of two terms with missing metrics."""
    directory = tmp_path_factory.mktemp("decisions")
    write_log(directory)
    yield directory


def write_log(directory: Path) -> None:
    with closing(DecisionLog(str(directory), limits=LIMITS)) as log, Bench(decisions=log) as bench:
        bench.begin_reassignment()
        for _ in range(3):
            bench.cycle()
        bench.metrics.unavailable(True)
        for _ in range(3):
            bench.cycle()
        bench.metrics.unavailable(False)
        bench.planner.stop()
        bench.planner = bench.new_planner()
        bench.term = replace(bench.term, fence=bench.electorate.begin_term("another"))
        bench.cycle()
        bench.cluster.finish("t1")
        bench.cycle()


def run(log: Path, *arguments: str) -> int:
    return main(["replay", "--decisions", str(log), *arguments])


def test_the_same_version_ends_with_status_0(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log) == 0
    output = capsys.readouterr()
    assert output.out == ("0 differences in 0 of 8 cycles with 14 decisions of 2 terms; 0 cycles were not compared\n")
    assert output.err == ""


def test_other_settings_end_with_status_1_and_every_difference(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log, "--set", "max-rate=45", "--term", "1", "--to", "2026-11-02T12:02:30Z") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "kafka/1/1 2026-11-02T12:01:00Z broker 1001 [leader]: then 72 MB/s (headroom), now 36 MB/s (headroom)"
    )
    assert lines[-1].startswith("4 differences in 2 of 2 cycles with 4 decisions of 1 terms")


def test_json_has_the_same_differences(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log, "--policy", "static", "--set", "static-rate=30", "-o", "json", "--from", "2026-11-02T12:02:30") == 1
    document = json.loads(capsys.readouterr().out)
    first = document["differences"][0]
    assert (first["cycle"], first["broker_id"], first["role"]) == (3, 1001, "leader")
    assert first["rate_now_bytes_per_second"] == mb(30)
    assert document["summary"]["cycles"] == 6
    assert document["findings"] == []


def test_a_changed_version_ends_with_status_1(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression in the fail-safe rate must be found before the upgrade."""

    def unsafe(snapshot: Snapshot, limits: Limits, failures: int, broker_id: int, role: ReplicaRole) -> Decision:
        return plan._static(snapshot, limits, mb(1), broker_id, role)

    monkeypatch.setattr(plan, "_without_load", unsafe)
    assert run(log) == 1
    assert "3 of 8 cycles" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "interval=30"], "--set 'interval=30' is unknown"),
        (["--set", "max-rate"], "--set 'max-rate' is unknown"),
        (["--set", "max-rate=200"], "max-rate: '200'"),
        (["--term", "77"], "no term 77"),
        (["--cluster", "other"], "cluster other"),
        (["--from", "2030-01-01T00:00:00Z"], "no cycle could be compared"),
    ],
)
def test_wrong_usage_ends_with_status_2(
    log: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(log, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_log_of_an_older_version_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path)
    for path in (tmp_path / "cycles").rglob("*.parquet"):
        path.unlink()
    assert run(tmp_path) == 2
    assert "written by an older version" in capsys.readouterr().err


def test_terms_of_an_older_version_are_named_and_the_others_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path)
    first, *_ = sorted((tmp_path / "cycles").rglob("*.parquet"))
    first.unlink()
    assert run(tmp_path) == 0
    output = capsys.readouterr()
    assert output.err.startswith("kafka term 1: it cannot be replayed: written by an older version")
    assert "0 of 2 cycles" in output.out


def test_a_damaged_file_is_left_out_with_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path)
    first, *_ = sorted((tmp_path / "cycles").rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:100])
    assert run(tmp_path) == 0
    output = capsys.readouterr()
    assert "cannot be read and is left out" in output.err
    assert "0 of 2 cycles" in output.out


@pytest.mark.parametrize("content", [None, "elsewhere"])
def test_a_location_without_a_log_ends_with_status_2(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content:
        (tmp_path / content).mkdir()
    assert run(tmp_path / "missing" if content is None else tmp_path) == 2
    assert "Fix: give" in capsys.readouterr().err


def test_help_names_the_options_that_can_be_set() -> None:
    assert "max-rate" in replay.make_parser().format_help()
    changed = replay.changed_settings(["policy=adaptive", "finish-by=2030-01-31T06:00:00Z"])
    with Bench() as bench:
        settings = changed(bench.settings)
    assert isinstance(settings.policy, AdaptivePolicy)
    assert settings.finish_by is not None and settings.finish_by > NOON


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("packed", pa.array([b"\xff" * 400_000] * 6)),
        ("packed", pa.array([b"\x01" * 9] * 6)),
        ("packed", pa.array([None] * 6, pa.binary())),
        ("packed", pa.array(range(6))),
        ("cycle", pa.array([None] * 6, pa.int64())),
        ("cycle", pa.array([[1]] * 6)),
        ("layout", pa.array(["\n" * 5000] * 6)),
        ("previous", pa.array([99] * 6)),
        ("time", pa.array(["noon"] * 6)),
    ],
)
def test_hostile_columns_only_harm_their_own_term(
    column: str, values: pa.Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path)
    first, *_ = sorted((tmp_path / "cycles").rglob("*.parquet"))
    table = pq.read_table(first, partitioning=None)
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, values), first)
    assert run(tmp_path) in (0, 1)
    output = capsys.readouterr()
    assert "kafka term 1" in output.err
    assert "kafka term 2" not in output.err
