"""`topicmappr capacity`: output, measured workloads, and a message for each fault of its files."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.runtime.configuration_reader import parse_command
from autothrottle.topicmappr.capacity import with_measured, workload_of
from autothrottle.topicmappr.command_line import main
from autothrottle.topicmappr.options import PREFIX, CapacityOptions
from autothrottle.topicmappr.sources import log_growth
from tests.pages import code
from tests.paths import ROOT

INSTANCES = str(ROOT / "deploy/instances.csv")
WORKLOAD = str(ROOT / "deploy/workload.toml")
EXAMPLE = ("capacity", "--config", WORKLOAD, "--instances", INSTANCES)


def options(*flags: str) -> CapacityOptions:
    parsed, _, _ = parse_command(CapacityOptions, flags, {}, PREFIX)
    assert parsed
    return parsed


def test_the_example_prints_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EXAMPLE) == 0
    assert capsys.readouterr().out == code("", "docs/capacity.md")[0]


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*EXAMPLE, "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    small = value["instances"][0]
    assert value["cheapest"] == small["name"] == "small"
    assert (small["brokers"], small["limit"], small["price_per_month"]) == (41, "storage", 20_500)
    assert value["larger"]["retention"]["2"]["brokers"] == 81


def test_a_flag_beats_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*EXAMPLE, "--retention", "24", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["instances"][0]["brokers"] == 81


def test_a_workload_file_of_windows_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Editors of Windows begin a file with a byte order mark. It was an invalid statement in line 1."""
    path = tmp_path / "workload.toml"
    path.write_bytes(b'\xef\xbb\xbfbytes-in = "1GB/s"\r\nretention = 12\r\n')
    assert main(("capacity", "--config", str(path), "--instances", INSTANCES, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["instances"][0]["brokers"] == 41


def test_bytes_out_stands_for_a_fan_out() -> None:
    workload = workload_of(options("--bytes-in=200MB/s", "--bytes-out=4.8Gbit/s", "--retention=1"))
    assert workload.fan_out == 3


def test_an_instance_type_or_a_larger_input_that_is_out_of_range_hides_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One instance type of the table that was too small ended the command, and so did an input at 2 times its value.

    The other types and the workload itself had an answer.
    """
    path = tmp_path / "instances.csv"
    path.write_text(HEAD + "small,4TB,5Gbit/s,5Gbit/s,590MB/s,500\ntiny,1GB,1Mbit/s,1Mbit/s,1MB/s,5\n")
    flags = ("capacity", "--instances", str(path), "--bytes-in=100GB/s", "--retention=24")
    assert main(flags) == 0
    output = capsys.readouterr().out
    assert "tiny: more than 10000 brokers would be needed" in output
    assert "more than 10,000 brokers" in output
    assert main((*flags, "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["cheapest"], value["larger"]["retention"]["2"]) == ("small", None)


FAULTS = {
    "no retention": (["--bytes-in=1GB/s"], "retention is not given"),
    "no rate": (["--retention=1"], "bytes-in is not given"),
    "a rate without a unit": (["--retention=1", "--bytes-in=200"], "'200' is not a rate with its unit"),
    "two forms of reads": (
        ["--retention=1", "--bytes-in=1MB/s", "--fan-out=1", "--bytes-out=1MB/s"],
        "fan-out and bytes-out are both given",
    ),
    "a mean above the peak": (
        ["--retention=1", "--bytes-in=1MB/s", "--mean-bytes-in=2MB/s"],
        "mean-bytes-in is larger than bytes-in",
    ),
}


@pytest.mark.parametrize(("flags", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_workload_is_named_with_its_fix(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("capacity", "--instances", INSTANCES, *flags)) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("1 problem") and "Fix: " in error


def test_an_unknown_key_of_the_workload_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "workload.toml"
    path.write_text('# ours\nbytes-in = "1GB/s"\nretentoin = 12\n')
    assert main(("capacity", "--config", str(path), "--instances", INSTANCES)) == 2
    assert f"key retentoin of {path}, line 3 is unknown. Fix: did you mean retention?" in capsys.readouterr().err


HEAD = "name,storage,network_in,network_out,disk,price\n"
TABLES = {
    "no column": ("# types\nname,storage,network_in,network_out,disk\n", ["line 2: no column price"]),
    "nothing": ("", ["is empty"]),
    "no type": (HEAD, ["has no instance type"]),
    "values": (
        HEAD + "a,1,1Gbit/s,1Gbit/s,1MB/s,2\nb,1TB,1Gbit,1Gbit/s,1MB/s,-2\nc,1TB\n",
        [
            "line 2, column storage: '1' is not a size",
            "line 3, column network_in: '1Gbit' is not a rate",
            "line 3, column price: '-2' is not a price",
            "line 4 has 2 values for 6 columns",
        ],
    ),
    "twice": (HEAD + "a,1TB,1Gbit/s,1Gbit/s,1MB/s,2\n" * 2, ["'a' is there twice"]),
}


@pytest.mark.parametrize(("table", "messages"), TABLES.values(), ids=TABLES.keys())
def test_each_fault_of_the_instance_types_has_a_message_with_its_line(
    table: str, messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "instances.csv"
    path.write_text(table)
    assert main(("capacity", "--config", WORKLOAD, "--instances", str(path))) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert all(message in output.err for message in messages)
    assert output.err.count("\n  - ") == len(messages)


def samples(seconds: int) -> tuple[list[PartitionReplicas], list[PartitionReplicas]]:
    """Ten partitions of 1 GB that each grow by 1 MB/s, one that is cut, and one that is new."""
    earlier = [PartitionReplicas("orders", number, (1, 2, 3), 10**9) for number in range(11)]
    later = [partition._replace(size=10**9 + seconds * 10**6) for partition in earlier[:10]]
    return earlier, [*later, earlier[10]._replace(size=5 * 10**8), PartitionReplicas("orders", 11, (1, 2, 3), 7)]


def test_a_cluster_shows_its_rate_retention_and_partitions() -> None:
    earlier, later = samples(30)
    measured, (note,) = with_measured(options(), later, log_growth(earlier, later, 30.0), 30.0)
    workload = workload_of(measured)
    assert workload.bytes_in == pytest.approx(10e6)
    assert workload.stored == pytest.approx(10.5e9 + 300e6, rel=1e-6)
    assert (workload.replication, workload.partitions) == (3, 12)
    assert "12 partitions with 10.80 GB grew by 10.00 MB/s" in note


def test_a_given_peak_and_retention_beat_what_is_measured() -> None:
    earlier, later = samples(30)
    growth = log_growth(earlier, later, 30.0)
    measured, _ = with_measured(options("--bytes-in=50MB/s", "--retention=2"), later, growth, 30.0)
    workload = workload_of(measured)
    assert (workload.bytes_in, workload.retention) == (50e6, timedelta(hours=2))


def test_a_given_replication_factor_beats_what_is_measured() -> None:
    """The measured factor replaced the one of --replication without a word."""
    earlier, later = samples(30)
    measured, _ = with_measured(options("--replication=2"), later, log_growth(earlier, later, 30.0), 30.0)
    assert workload_of(measured).replication == 2
    assert workload_of(options("--bytes-in=1MB/s", "--retention=1")).replication == 3


def test_a_cluster_without_producers_is_named_with_the_fix() -> None:
    earlier, _ = samples(0)
    with pytest.raises(Invalid, match=r"no log grew in 30 s.* give --bytes-in"):
        with_measured(options(), earlier, {}, 30.0)
