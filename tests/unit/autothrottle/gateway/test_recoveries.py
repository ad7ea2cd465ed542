"""The last recoveries on the page: the scorer's results, also absent, damaged or of another program."""

from __future__ import annotations

import http.client
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.adapters.credentials import Tokens
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.gateway import recoveries
from autothrottle.gateway.recoveries import Recoveries, read_recoveries
from autothrottle.gateway.server import GatewayServer
from autothrottle.runtime.access import Access
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.local import LocalScorer
from autothrottle.scorer.scoring import find_work, score
from autothrottle.scorer.tables import RECOVERIES
from tests.unit.autothrottle.runtime.test_access import Refusing
from tests.unit.autothrottle.scorer.logs import write_log
from tests.unit.autothrottle.scorer.test_hostile_files import nested, parquet, rows_declared

DATE = "2026-11-03"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `autothrottle score` writes for two recoveries of each of two clusters."""
    directory = tmp_path_factory.mktemp("scores")
    write_log(directory / "log")
    files = ArrowFiles(str(directory / "log"), str(directory / "out"))
    score(files, LocalScorer(), find_work(files), REFERENCE_RATIO, lambda line: None)
    return directory / "out"


@pytest.fixture
def scores(example: Path, tmp_path: Path) -> Path:
    return shutil.copytree(example, tmp_path / "out")


def file_of(scores: Path, table: str, date: str = DATE) -> Path:
    return scores / table / "cluster=east" / f"date={date}" / "part-0.parquet"


def test_the_newest_recoveries_of_the_cluster_come_first(example: Path) -> None:
    answer = read_recoveries(example, "east")
    rows = {row["date"]: row for row in ArrowFiles("", str(example)).table("recoveries", RECOVERIES).to_pylist()}
    assert answer["problem"] == ""
    assert [recovery["start"][:10] for recovery in answer["recoveries"]] == [DATE, "2026-11-01"]
    newest = answer["recoveries"][0]
    assert newest["timesBest"] == pytest.approx(rows[DATE]["seconds"] / rows[DATE]["bound_seconds"])
    assert newest | {"timesBest": 0, "lostTo": ""} == {
        "start": "2026-11-03T12:00:00Z",
        "end": "2026-11-03T12:03:00Z",
        "brokers": [1, 2],
        "bytesCopied": rows[DATE]["bytes"],
        "timesBest": 0,
        "deferral": 0.0,
        "lostTo": "",
    }
    assert newest["lostTo"].startswith("Rate kept by the change threshold: ")


def test_deferral_is_the_share_of_client_bytes_beside_a_link_that_is_too_small(scores: Path) -> None:
    path = file_of(scores, "timeline")
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        row |= {"seconds": 10.0, "capacity": 100.0, "client": 80.0, "achieved": 30.0}
    rows[0]["client"] = None
    rows[1]["achieved"] = 20.0
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    measured = len(rows) - 1
    expected = 10.0 * (measured - 1) / (80.0 * measured)
    assert read_recoveries(scores, "east")["recoveries"][0]["deferral"] == pytest.approx(expected)


def problem(directory: Path, cluster: str = "east") -> str:
    answer = read_recoveries(directory, cluster)
    assert answer["recoveries"] == []
    return str(answer["problem"])


def test_absent_scores_are_a_sentence(scores: Path, tmp_path: Path) -> None:
    assert "this gateway has no scores" in Recoveries("", "east").read()["problem"]
    assert "does not exist on this host" in problem(tmp_path / "absent")
    assert "has no recoveries yet. Fix: run `autothrottle score`" in problem(tmp_path)
    assert problem(scores, "kafka").startswith("the scores are those of east, west, and cluster-name is kafka")
    assert problem(scores, "../cluster=east").startswith("the scores are those of")


def test_scores_without_ports_and_timelines_have_no_brokers_and_no_deferral(scores: Path) -> None:
    shutil.rmtree(scores / "ports")
    shutil.rmtree(scores / "timeline")
    answer = read_recoveries(scores, "east")
    assert [(r["brokers"], r["deferral"]) for r in answer["recoveries"]] == [([], None)] * 2
    assert answer["problem"] == ""


def replaced(**columns: Any) -> Callable[[pa.Table], bytes]:
    def build(table: pa.Table) -> bytes:
        for name, value in columns.items():
            table = table.set_column(table.column_names.index(name), name, pa.array([value] * len(table)))
        return parquet(table)

    return build


HOSTILE: dict[str, Callable[[pa.Table], bytes]] = {
    "a number instead of an id": replaced(recovery_id=1),
    "a record instead of an id": replaced(recovery_id={"a": [1]}),
    "an id that is null": replaced(recovery_id=None),
    "2^40 rows": rows_declared,
    "1,000 levels": nested,
    "a truncated footer": lambda table: parquet(table)[:-12],
    "a truncated file": lambda table: parquet(table)[:100],
    "a text that is not UTF-8": lambda table: parquet(table).replace(b"east", b"e\xffst"),
    "a footer before the file": lambda table: parquet(table)[:-8] + b"\xff\xff\xff\x7fPAR1",
    "nothing": lambda table: b"",
    "no rows": lambda table: parquet(table.slice(0, 0)),
    "a table of another program": lambda table: parquet(pa.table({"name": ["x"]})),
    "a text file": lambda table: b"recovery_id,start\n1,2\n",
    "1,000 columns": lambda table: parquet(pa.table({f"c{n}": [1] for n in range(1_000)})),
    "a huge file": lambda table: bytes(17 << 20),
}


def test_hostile_files_leave_the_other_recoveries(scores: Path) -> None:
    for table in ("recoveries", "ports", "timeline"):
        path = file_of(scores, table)
        rows = pq.read_table(path)
        for number, build in enumerate(HOSTILE.values()):
            path.with_name(f"hostile-{number}.parquet").write_bytes(build(rows))
        path.with_name("directory.parquet").mkdir()
    answer = Recoveries(str(scores), "east").read()
    assert [recovery["start"][:10] for recovery in answer["recoveries"]] == [DATE, "2026-11-01"]
    assert answer["recoveries"][0]["brokers"] == [1, 2]
    assert f"recoveries/cluster=east/date={DATE}/directory.parquet cannot be read" in answer["problem"]
    assert str(scores) not in answer["problem"], "a viewer need not know the paths of the host"


@pytest.mark.parametrize(
    "values",
    [
        {"start": None},
        {"finish": "2026"},
        {"bytes": "many", "seconds": float("nan"), "bound_seconds": float("inf")},
        {"bound_seconds": 0.0},
        {"bound_seconds": "x", "regret_elsewhere": "<b>"},
        {"regret_elsewhere": float("nan"), "regret_headroom_unused": float("-inf")},
    ],
)
def test_odd_values_concern_their_recovery_alone(scores: Path, values: dict[str, Any]) -> None:
    path = file_of(scores, "recoveries")
    path.write_bytes(replaced(**values)(pq.read_table(path)))
    answer = read_recoveries(scores, "east")
    *odd, normal = answer["recoveries"]
    assert normal["start"].startswith("2026-11-01") and normal["timesBest"] > 1
    if "start" in values or "finish" in values:
        assert (odd, answer["problem"]) == ([], "1 recoveries without an id or a time are left out")
    else:
        assert odd[0]["lostTo"] == "" or odd[0]["lostTo"].endswith(" s")


def test_a_reader_that_dies_hangs_or_cannot_start_is_a_sentence(
    scores: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Arrow ended its process on some damage. In `autothrottle run` that is the planner's."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    assert "the scores cannot be read: No such file" in Recoveries(str(scores), "east").read()["problem"]
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    assert "ended with status -11" in Recoveries(str(scores), "east").read()["problem"]
    program.write_text("#!/bin/sh\necho x\n")
    assert "did not answer in JSON" in Recoveries(str(scores), "east").read()["problem"]
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(recoveries, "_TIMEOUT_SECONDS", 0.2)
    assert "were not read within 0.2 s" in Recoveries(str(scores), "east").read()["problem"]


def test_results_are_read_at_most_once_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, times = tmp_path / "python", iter([0.0, 0.0, 59.0, 60.0, 60.0])
    monkeypatch.setattr(sys, "executable", str(program))
    program.write_text("#!/bin/sh\necho x >>$0.runs; echo '{}'\n")
    program.chmod(0o755)
    subject = Recoveries(str(tmp_path), "east", lambda: next(times))
    for runs in (1, 1, 2):
        subject.read()
        assert (tmp_path / "python.runs").read_text() == runs * "x\n"


def test_without_pyarrow_the_page_says_so(
    scores: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    recoveries.main(str(scores), "east")
    assert "without pyarrow. Fix: install the extra `decisions`" in capsys.readouterr().out


@pytest.fixture
def gateway(scores: Path, tmp_path: Path) -> Iterator[GatewayServer]:
    (tmp_path / "tokens").write_text(f"bert {'b' * 32} viewer\n")
    access = Access(tokens=Tokens(str(tmp_path / "tokens")))
    with GatewayServer(
        Refusing(), "127.0.0.1:0", access=access, recoveries=Recoveries(str(scores), "east").read
    ) as gateway:
        yield gateway


def test_a_viewer_sees_recoveries_and_a_stranger_does_not(gateway: GatewayServer) -> None:
    def ask(headers: dict[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(gateway.address, timeout=60)
        connection.request("GET", "/page/recoveries", headers=headers)
        response = connection.getresponse()
        document = json.loads(response.read())
        connection.close()
        return response.status, document

    status, document = ask({"authorization": f"Bearer {'b' * 32}"})
    assert (status, len(document["recoveries"])) == (200, 2)
    assert ask({})[0] == 401
