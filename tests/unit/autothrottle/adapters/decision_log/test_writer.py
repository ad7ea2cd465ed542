from __future__ import annotations

import errno
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from operator import le
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.adapters.decision_log import writer
from autothrottle.adapters.decision_log.files import DECISIONS, REASSIGNMENTS
from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits, batch_of, read_spool
from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.errors import Invalid
from autothrottle.core.scoring.decision_records import DecisionRecord, PathRecord, ReassignmentRecord
from tests.builders import eventually
from tests.examples import examples
from tests.paths import ROOT
from tests.unit.autothrottle.planner.bench import Bench

KILLS = examples(1, 8)
LONG_PATIENCE = LogLimits(patience=timedelta(minutes=3))


def logged_records(cycles: int = 3) -> MemoryDecisions:
    """What a planner logs in some cycles of a reassignment and its end."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        for _ in range(cycles - 1):
            bench.cycle()
        bench.cluster.finish("t1")
        bench.cycle()
    return log


def of_cycle(log: MemoryDecisions, number: int) -> tuple[list[DecisionRecord], list[ReassignmentRecord]]:
    return [d for d in log.decisions if d.cycle == number], [r for r in log.reassignments if r.cycle == number]


def opened(directory: Path, limits: LogLimits = LONG_PATIENCE, waiting: int = 256) -> DecisionLog:
    """A log whose `close` waits for all files."""
    return DecisionLog(str(directory), limits=replace(limits, patience=LONG_PATIENCE.patience), waiting=waiting)


def write_cycles(directory: Path, log: MemoryDecisions) -> None:
    """Write the records cycle by cycle."""
    with closing(opened(directory)) as sink:
        for number in range(1, max(r.cycle for r in log.reassignments) + 1):
            sink.append(*of_cycle(log, number))


def files(directory: Path, kind: str = "decisions") -> list[Path]:
    return sorted((directory / kind).rglob("*.parquet"))


def rows(paths: Sequence[Path]) -> list[dict[str, object]]:
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def test_columns_are_the_fields_of_the_records() -> None:
    assert DECISIONS.names == [field.name for field in fields(DecisionRecord)]
    assert REASSIGNMENTS.names == [field.name for field in fields(ReassignmentRecord)]
    assert not DECISIONS.field("cycle_id").nullable and DECISIONS.field("capacity").nullable


def test_records_are_in_files_named_by_cluster_date_term_and_sequence(tmp_path: Path) -> None:
    log = logged_records()
    write_cycles(tmp_path, log)
    (path,) = files(tmp_path)
    assert path.parent == tmp_path / "decisions" / "cluster=kafka" / "date=2026-11-02"
    assert path.name.startswith("kafka-0000000001-")
    assert rows([path]) == [asdict(record) for record in log.decisions]
    assert rows(files(tmp_path, "reassignments")) == [asdict(record) for record in log.reassignments]
    assert list((tmp_path / "_spool").iterdir()) == []


def test_each_date_and_term_has_its_own_file(tmp_path: Path) -> None:
    first, second = of_cycle(logged_records(), 1)[0], of_cycle(logged_records(), 2)[0]
    tomorrow = [replace(record, time=record.time + timedelta(days=1)) for record in second]
    with closing(opened(tmp_path)) as log:
        log.append(first, [])
        log.append(tomorrow, [])
        log.append([replace(record, term=2) for record in tomorrow], [])
    found = [(path.parent.name, path.name.split("-")[1]) for path in files(tmp_path)]
    assert found == [
        ("date=2026-11-02", "0000000001"),
        ("date=2026-11-03", "0000000001"),
        ("date=2026-11-03", "0000000002"),
    ]


def test_long_spool_is_rolled_into_a_file(tmp_path: Path) -> None:
    with closing(opened(tmp_path, limits=LogLimits(rows=2))) as log:
        log.append(*of_cycle(logged_records(), 1))
        eventually(lambda: files(tmp_path))


def test_truncated_spool_keeps_all_whole_batches(tmp_path: Path) -> None:
    source = logged_records(4)
    log = opened(tmp_path)
    for number in (1, 2, 3):
        log.append(*of_cycle(source, number))
    eventually(lambda: log.written == 3)
    (spool,) = (tmp_path / "_spool").glob("decisions~*.arrows")
    whole = spool.read_bytes()
    log.close()
    counts = set()
    for length in (*range(0, len(whole), 97), len(whole)):
        spool.write_bytes(whole[:length])
        counts.add(read_spool(spool, DECISIONS).num_rows)
    assert counts == {0, 2, 4, 6}


def test_unreadable_spool_is_an_error_and_not_an_empty_spool(tmp_path: Path) -> None:
    """A process without free file descriptors took its spools for truncated at the first byte, and removed them."""
    records, spool = logged_records().decisions, tmp_path / "decisions~lab~2026-11-02~0000000001~1.arrows"
    with pa.ipc.new_stream(str(spool), DECISIONS) as writer:
        writer.write_batch(batch_of(records, DECISIONS))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            read_spool(spool, DECISIONS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert read_spool(spool, DECISIONS).num_rows == len(records)


def test_abandoned_spool_is_rolled_exactly_once_by_the_next_start(tmp_path: Path) -> None:
    source = logged_records(4)
    log = opened(tmp_path)
    log.append(*of_cycle(source, 1))
    eventually(lambda: log.written == 1)
    (spool,) = (tmp_path / "_spool").glob("decisions~*.arrows")
    kept = spool.read_bytes()
    log.close()
    before = files(tmp_path)
    spool.write_bytes(kept)  # as if the process had been killed between the file's rename and the spool's removal
    opened(tmp_path).close()
    assert files(tmp_path) == before
    assert len(rows(before)) == 2
    assert not spool.exists()


def test_spool_of_another_version_is_rolled_and_does_not_block_others(tmp_path: Path) -> None:
    """After an update added a column, the old spool failed every 30 s. All other spools waited behind it."""
    source = logged_records(4)
    older = DECISIONS.remove(DECISIONS.get_field_index("policy"))
    spool = tmp_path / "_spool" / "decisions~kafka~2026-11-02~0000000001~1.arrows"
    spool.parent.mkdir()
    with pa.ipc.new_stream(str(spool), older) as writer:
        writer.write_batch(batch_of(of_cycle(source, 1)[0], older))
    with closing(opened(tmp_path)) as log:
        log.append(*of_cycle(source, 2))
    before, after = files(tmp_path)
    assert (before.name, pq.ParquetFile(before).schema_arrow.names) == ("kafka-0000000001-1.parquet", older.names)
    assert len(rows([before])) == len(rows([after])) == 2
    assert list((tmp_path / "_spool").iterdir()) == []


def test_spool_of_a_running_process_is_not_rolled(tmp_path: Path) -> None:
    running = opened(tmp_path)
    running.append(*of_cycle(logged_records(), 1))
    eventually(lambda: running.written == 1)
    opened(tmp_path).close()
    assert files(tmp_path) == []
    running.close()
    assert len(rows(files(tmp_path))) == 2


def test_full_queue_drops_and_counts_cycles_without_blocking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    log = opened(tmp_path, waiting=2)
    append = log._append
    monkeypatch.setattr(log, "_append", lambda kind, records: (gate.wait(60), append(kind, records)))
    cycle = of_cycle(logged_records(), 1)
    log.append(*cycle)
    eventually(lambda: log._waiting.empty())  # the background thread has taken it and hangs
    for _ in range(5):
        log.append(*cycle)
    assert log.dropped == 3
    assert {metric.name: value for metric, value, _ in log.samples()}["autothrottle_decision_log_dropped_total"] == 3
    gate.set()
    log.close()
    assert log.written == 3


def test_stuck_disk_delays_neither_a_cycle_nor_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, log = threading.Event(), opened(tmp_path, waiting=5)
    monkeypatch.setattr(os, "fsync", lambda _: gate.wait(60))
    cycle, started = of_cycle(logged_records(), 1), time.monotonic()
    for _ in range(20):
        log.append(*cycle)
    log.close(timedelta(seconds=0.2))
    assert time.monotonic() - started < 2
    assert log.dropped >= 14
    gate.set()


def test_unwritable_file_stays_in_the_spool_until_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "decisions").write_text("a file where a directory should be")
    with closing(opened(tmp_path)) as log:
        log.append(of_cycle(logged_records(), 1)[0], [])
    assert files(tmp_path) == []
    (tmp_path / "decisions").unlink()
    opened(tmp_path).close()
    assert len(rows(files(tmp_path))) == 2


FULL_DISK = """
import resource, sys, time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tests.builders import eventually
from tests.unit.autothrottle.adapters.decision_log.test_writer import LONG_PATIENCE, logged_records, of_cycle, opened


directory, source = Path(sys.argv[1]), logged_records()
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
log = opened(directory, replace(LONG_PATIENCE, age=timedelta(seconds=2)))
log.append(*of_cycle(source, 1))
eventually(lambda: log.written == 1)
(spool,) = (directory / "_spool").glob("decisions~*.arrows")
resource.setrlimit(resource.RLIMIT_FSIZE, (spool.stat().st_size, unlimited[1]))
eventually(lambda: not log._spools)
time.sleep(0.5)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
log.append(*of_cycle(source, 2))
eventually(lambda: log.written == 2, 20)
log.close()
"""


def test_full_disk_at_the_end_of_a_spool_does_not_stop_the_log(tmp_path: Path) -> None:
    """The last bytes of a spool did not fit on the disk. The background thread ended, and later cycles were lost."""
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], cwd=ROOT, check=True, timeout=120)
    assert len(rows(files(tmp_path))) == 4


INTEGERS = [f.name for f in fields(DecisionRecord) if f.type in ("int", "int | None")]
FLOATS = [f.name for f in fields(DecisionRecord) if f.type == "float"]
REASSIGNMENT_INTEGERS = [f.name for f in fields(ReassignmentRecord) if f.type in ("int", "int | None")]


def set_aside(directory: Path) -> list[str]:
    return (directory / "_spool" / "set-aside.txt").read_text().splitlines()


def test_record_with_a_number_that_has_no_place_in_its_column_is_kept_as_text(tmp_path: Path) -> None:
    """A throttle above 2^63-1 in ZooKeeper ended the background thread. All later cycles were lost silently."""
    source = logged_records()
    (first, second), reassignments = of_cycle(source, 1)
    (opening,) = reassignments
    bad = [replace(first, **{name: 2**63}) for name in INTEGERS]  # type: ignore[arg-type]
    bad += [replace(first, **{name: 10**400}) for name in FLOATS]  # type: ignore[arg-type]
    bad_openings = [replace(opening, **{name: -(2**63) - 1}) for name in REASSIGNMENT_INTEGERS]  # type: ignore[arg-type]
    bad_openings.append(replace(opening, paths=[PathRecord(1, 2, 2**63, 0)]))
    with closing(opened(tmp_path)) as log:
        for record in bad:
            log.append([record, second], [])
        for bad_opening in bad_openings:
            log.append([], [bad_opening, opening])
        log.append(*of_cycle(source, 2))
    assert (log.written, log.dropped, log.errors) == (len(bad) + len(bad_openings) + 1, 0, 0)
    assert rows(files(tmp_path)) == [asdict(second)] * len(bad) + [asdict(one) for one in of_cycle(source, 2)[0]]
    assert rows(files(tmp_path, "reassignments")) == [asdict(opening)] * len(bad_openings)
    kept = set_aside(tmp_path)
    assert log.set_aside == len(kept) == len(bad) + len(bad_openings)
    assert [line.partition(") ")[2] for line in kept] == [repr(record) for record in (*bad, *bad_openings)]


class Failing(datetime):
    """A time that raises the error of this test whenever it is used."""

    error: type[Exception] = Exception

    def astimezone(self, tz: object = None) -> Failing:
        raise self.error("a bug")


@pytest.mark.parametrize("error", [OverflowError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, OSError])
def test_no_error_of_a_record_ends_the_log(
    tmp_path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Failing, "error", error)
    source = logged_records()
    bad = replace(of_cycle(source, 1)[0][0], time=Failing(2026, 11, 2))
    with closing(opened(tmp_path)) as log:
        log.append([bad, bad], [])
        log.append(of_cycle(source, 2)[0], [])
    assert len(rows(files(tmp_path))) == 2
    assert (log.set_aside, len(set_aside(tmp_path))) == (2, 2)
    (line,) = [line for line in caplog.messages if "cannot store" in line]
    assert f"{error.__name__}('a bug')" in line and "set-aside.txt" in line


@pytest.mark.parametrize("error", [KeyError, RuntimeError, MemoryError])
def test_error_while_a_spool_is_written_keeps_the_records_as_text(
    tmp_path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, append = logged_records(), writer._Spool.append
    failures = iter([error("a bug")])

    def failing(spool: writer._Spool, batch: pa.RecordBatch) -> None:
        for failure in failures:
            raise failure
        append(spool, batch)

    monkeypatch.setattr(writer._Spool, "append", failing)
    with closing(opened(tmp_path)) as log:
        for number in (1, 2):
            log.append(of_cycle(source, number)[0], [])
    assert len(rows(files(tmp_path))) == len(set_aside(tmp_path)) == 2


def test_records_set_aside_are_bounded_in_size_and_then_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = replace(of_cycle(logged_records(), 1)[0][0], standing=2**63)
    with closing(opened(tmp_path, limits=LogLimits(max_set_aside_bytes=3_000))) as log:
        for _ in range(20):
            log.append([bad], [])
    assert 1_000 < (tmp_path / "_spool" / "set-aside.txt").stat().st_size <= 3_000
    assert log.set_aside == 20
    unkept = [line for line in caplog.messages if "is full, so they are only here" in line]
    assert len(unkept) == 20 - len(set_aside(tmp_path)) and str(2**63) in unkept[0]


def test_spool_that_cannot_be_rolled_is_kept_and_does_not_end_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = logged_records()
    log = opened(tmp_path, limits=LogLimits(rows=2))
    roll, failures = log._roll, iter([RuntimeError("a bug")])

    def failing(path: Path) -> None:
        for failure in failures:
            raise failure
        roll(path)

    monkeypatch.setattr(log, "_roll", failing)
    log.append(of_cycle(source, 1)[0], [])
    eventually(lambda: log.errors == 1)
    log.append(of_cycle(source, 2)[0], [])
    log.close()
    (failed,) = (tmp_path / "_spool").iterdir()
    assert failed.name.endswith(".arrows.failed") and read_spool(failed, DECISIONS).num_rows == 2
    failed.rename(failed.with_suffix(""))
    opened(tmp_path).close()
    assert len(rows(files(tmp_path))) == 4


def test_unexpected_error_between_cycles_does_not_end_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path, limits=LogLimits(age=timedelta(milliseconds=10)))
    monkeypatch.setattr(writer, "_abandoned", lambda _: 1 / 0)
    eventually(lambda: log.errors >= 2)
    monkeypatch.undo()
    log.append(*of_cycle(logged_records(), 1))
    log.close()
    assert len(rows(files(tmp_path))) == 2


def test_nothing_is_written_while_the_disk_is_almost_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log filled the disk, which other programs on the host needed, too."""
    source, limit = logged_records(5), LogLimits().min_free_bytes
    free = [limit]
    cycles = [of_cycle(source, number)[0] for number in (1, 2, 3, 4)]
    with closing(DecisionLog(str(tmp_path), limits=LONG_PATIENCE, free_space=lambda _: free[0])) as log:
        log.append(cycles[0], [])
        eventually(lambda: log.written == 1)
        for space in (limit - 1, 0, limit):  # the last one is not enough to resume
            free[0] = space
            log.append(cycles[1], [])
            eventually(log._waiting.empty)
        eventually(lambda: log.dropped == 3)
        free[0] = 2 * limit
        log.append(cycles[2], [])
        eventually(lambda: log.written == 2)
        free[0] = 0
        log.append(cycles[3], [])
    assert rows(files(tmp_path)) == [asdict(record) for record in (*cycles[0], *cycles[2])]
    assert log.dropped == 4
    lines = lines_of(caplog, log)
    assert [line.split(":")[0] for line in lines] == [
        "The decision log stops",
        "The decision log resumes",
        "The decision log stops",
    ]
    assert "3 cycles were dropped so far" in lines[1]


def lines_of(caplog: pytest.LogCaptureFixture, log: DecisionLog) -> list[str]:
    """Return the lines of the thread of a log alone: other tests lower log levels, or leave a log running."""
    return [record.getMessage() for record in caplog.records if record.thread == log._thread.ident]


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, shortage: str, is_full: list[bool]) -> Iterator[None]:
    """Let files of the log fail while the disk is full: at their sync, at their creation, or within a batch."""
    sync, private, append = os.fsync, writer._private, writer._Spool.append

    def refuse(is_concerned: bool) -> None:
        if is_full[0] and is_concerned:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def synced(descriptor: int) -> None:
        refuse(shortage == "blocks")
        sync(descriptor)

    def opened(path: str, flags: int) -> int:
        refuse(shortage == "inodes" and bool(flags & os.O_CREAT))
        return private(path, flags)

    def appended(spool: writer._Spool, batch: pa.RecordBatch) -> None:
        if is_full[0] and shortage == "quota":
            spool._file.write(b"\xff\xff\xff\xff half of a batch")
            spool._file.flush()
        refuse(shortage == "quota")
        append(spool, batch)

    def written(table: pa.Table, stream: Any) -> None:
        refuse(True)
        write(table, stream)

    write = writer._write_parquet
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(writer, "_private", opened)
        patch.setattr(writer._Spool, "append", appended)
        patch.setattr(writer, "_write_parquet", written)
        yield


@pytest.mark.parametrize("shortage", ["blocks", "inodes", "quota"])
def test_an_hour_with_a_full_disk_leaves_nothing_behind(
    shortage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cycle left an empty spool, and a line followed every 30 s, while the disk could not be measured.

    The hour is virtual: 300 cycles, one each 12 s. What comes before and after it is in the log.
    """
    caplog.set_level(logging.INFO, writer.__name__)
    source, clock, is_full = logged_records(), [time.monotonic()], [False]
    virtual = SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns)
    limits = LogLimits(rows=2, patience=timedelta(seconds=60))
    with (
        full_disk(monkeypatch, shortage, is_full),
        closing(DecisionLog(str(tmp_path), limits=limits, free_space=lambda _: 1 // 0)) as log,
        monkeypatch.context() as patch,
    ):
        patch.setattr(writer, "time", virtual)

        def cycle(count: int, seconds: float = 12) -> None:
            expected = log.written + log.dropped + count
            for _ in range(count):
                clock[0] += 3
                log.append(of_cycle(source, 2)[0], [])
                eventually(lambda: log._waiting.qsize() < 200)
            eventually(lambda: log.written + log.dropped >= expected)
            eventually(log._waiting.empty)

        cycle(1)
        is_full[0] = True
        cycle(20)
        most = (*_resources(tmp_path), len(log._stale))
        lines = len(lines_of(caplog, log))
        cycle(280)
        eventually(lambda: all(map(le, (*_resources(tmp_path), len(log._stale)), most)))
        assert len(lines_of(caplog, log)) == lines
        is_full[0] = False
        written, dropped = log.written, log.dropped
        cycle(3, 3)  # 9 s
        assert log.written >= written + 3 and log.dropped == dropped
        eventually(lambda: not log._stale)
    assert log.errors == 0
    resumed = [line for line in lines_of(caplog, log) if "resumes" in line or "again" in line]
    assert 1 <= len(resumed) <= 2
    assert len(rows(files(tmp_path))) >= 4 * 2


def test_records_that_only_the_log_keeps_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beside a full disk, each record without a place was a line of 2,000 characters, for as long as it lasted."""
    bad = replace(of_cycle(logged_records(), 1)[0][0], standing=2**63)
    with closing(opened(tmp_path, limits=LogLimits(max_set_aside_bytes=0))) as log:
        for _ in range(150):
            log.append([bad], [])
    assert log.set_aside == 150
    assert len(lines_of(caplog, log)) == 100


def _resources(directory: Path) -> tuple[int, int, int]:
    """Return the numbers of files, of their descriptors, and of threads."""
    descriptors = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            descriptors += os.readlink(link).startswith(str(directory))
    return len(list(directory.rglob("*"))), descriptors, threading.active_count()


def test_unknown_free_space_does_not_stop_the_log(tmp_path: Path) -> None:
    with closing(DecisionLog(str(tmp_path), limits=LONG_PATIENCE, free_space=lambda _: 1 // 0)) as log:
        log.append(of_cycle(logged_records(), 1)[0], [])
    assert len(rows(files(tmp_path))) == 2


def test_dates_older_than_the_retention_are_removed(tmp_path: Path) -> None:
    today = datetime.now(UTC)
    record = of_cycle(logged_records(), 1)[0][0]
    with closing(opened(tmp_path)) as log:
        for days in (0, 5, 40):
            log.append([replace(record, time=today - timedelta(days=days))], [])
    assert len(files(tmp_path)) == 3
    opened(tmp_path, limits=LogLimits(retention=timedelta(days=30))).close()
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("uri", ["nothing://there", "s3://bucket/path"])
def test_unsupported_uri_or_missing_spool_is_refused(uri: str) -> None:
    with pytest.raises(Invalid, match="decisions"):
        DecisionLog(uri)


def test_kills_at_random_moments_lose_at_most_one_cycle_and_duplicate_none(tmp_path: Path) -> None:
    chance = random.Random(8)
    for term in range(1, KILLS + 1):
        cycles = killed(tmp_path, term, chance.randint(1, 25), chance.random() * 0.01)
        opened(tmp_path).close()
        found = Counter((row["cycle_id"], row["broker_id"], row["role"]) for row in rows(files(tmp_path)))
        assert set(found.values()) == {1}
        found_cycles = {cycle_id for cycle_id, _, _ in found}
        assert set(cycles[:-1]) <= found_cycles
        # One more cycle than printed may exist: the process died before it could print the id.
        assert len({c for c in found_cycles if str(c).startswith(f"kafka/{term}/")} - set(cycles)) <= 1
    assert list((tmp_path / "_spool").glob("*.arrows")) == []


def killed(directory: Path, term: int, cycles: int, seconds: float) -> list[str]:
    """Run a planner, kill it `seconds` after its first `cycles`, and return the ids that it printed."""
    command = [
        sys.executable,
        "-m",
        "tests.unit.autothrottle.adapters.decision_log.logging_planner",
        str(directory),
        str(term),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline().strip() for _ in range(cycles)]
        threading.Event().wait(seconds)
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.read().split()
    assert printed[-1].startswith(f"kafka/{term}/"), printed
    return printed


def test_spools_are_closed_to_other_users(tmp_path: Path) -> None:
    """A spool and its files had the modes of the umask, so every user of the host could read the decisions."""
    (tmp_path / "_spool").mkdir()  # as an earlier version left it
    (tmp_path / "_spool").chmod(0o755)
    with closing(opened(tmp_path)) as sink:
        sink.append(*of_cycle(logged_records(), 1))
        eventually(lambda: sink.written == 1)
        spool, *_ = (tmp_path / "_spool").iterdir()
        assert [path.stat().st_mode & 0o777 for path in (spool.parent, spool)] == [0o700, 0o600]
    assert len(files(tmp_path)) == 1


def test_a_spool_directory_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "_spool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="is a symbolic link"):
        DecisionLog(str(tmp_path))


def test_links_and_pipes_in_the_spool_are_skipped_and_other_spools_are_rolled(tmp_path: Path) -> None:
    """A link was read as a spool and a pipe stopped the thread for good. An error at one spool held back all others."""
    log, directory = logged_records(), tmp_path / "_spool"
    with closing(opened(tmp_path, waiting=9)) as sink:
        sink.append(*of_cycle(log, 1))
        eventually(lambda: sink.written == 1)
        (spool,) = directory.glob("decisions~*")
        content = spool.read_bytes()
    for path in files(tmp_path):
        path.unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(content)
    name = spool.name.rpartition("~")[0]
    (directory / f"{name}~1.arrows").symlink_to(outside)
    os.mkfifo(directory / f"{name}~2.arrows")
    (directory / f"{name}~3.arrows").write_bytes(content)
    (directory / "set-aside.txt").symlink_to(outside)
    with closing(opened(tmp_path)) as sink:
        eventually(lambda: bool(files(tmp_path)))
        sink.append([replace(log.decisions[0], cycle=2**63)], [])
    assert [path.name.rpartition("-")[2] for path in files(tmp_path)] == ["3.parquet"]
    assert outside.read_bytes() == content


def test_a_link_at_the_name_of_a_file_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    log = logged_records()
    folder = tmp_path / "decisions" / "cluster=kafka" / "date=2026-11-02"
    folder.mkdir(parents=True)
    with closing(opened(tmp_path)) as sink:
        sink.append(*of_cycle(log, 1))
        eventually(lambda: sink.written == 1)
        (spool,) = (tmp_path / "_spool").glob("decisions*")
        name = f"kafka-0000000001-{spool.stem.rpartition('~')[2]}.parquet"
        for link in (name, f".{name}.{os.getpid()}.tmp"):
            (folder / link).symlink_to(target)
    assert target.read_text("utf-8") == "precious"
    assert len(rows(files(tmp_path))) == len(of_cycle(log, 1)[0])


def test_removal_of_old_dates_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere" / "file"
    outside.parent.mkdir()
    outside.write_text("content")
    dates = tmp_path / "decisions" / "cluster=kafka"
    (dates / "date=2020-01-02").mkdir(parents=True)
    (dates / "date=2020-01-01").symlink_to(outside.parent)
    with closing(opened(tmp_path, LogLimits(retention=timedelta(days=1)))):
        eventually(lambda: not (dates / "date=2020-01-02").exists())
    assert outside.exists()
