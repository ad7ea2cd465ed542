import random
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.adapters.decision_log import DecisionLog, LogLimits, batch_of, read_spool
from autothrottle.adapters.decision_schema import DECISIONS, REASSIGNMENTS
from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord
from autothrottle.core.errors import Invalid
from tests.builders import eventually
from tests.planner.bench import Bench

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8
PATIENT = LogLimits(patience=timedelta(minutes=3))


def logged(cycles: int = 3) -> MemoryDecisions:
    """What a planner logs of some cycles of a move and of its end."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_move()
        for _ in range(cycles - 1):
            bench.cycle()
        bench.cluster.finish("t1")
        bench.cycle()
    return log


def of_cycle(log: MemoryDecisions, number: int) -> tuple[list[DecisionRecord], list[ReassignmentRecord]]:
    """The records of one cycle."""
    return [d for d in log.decisions if d.cycle == number], [r for r in log.reassignments if r.cycle == number]


def opened(directory: Path, limits: LogLimits = PATIENT, waiting: int = 256) -> DecisionLog:
    """A log that is given all the time it needs to end."""
    return DecisionLog(str(directory), limits=replace(limits, patience=PATIENT.patience), waiting=waiting)


def write(directory: Path, log: MemoryDecisions) -> None:
    """Write all that was logged, a cycle at a time."""
    with opened(directory) as sink:
        for number in range(1, max(r.cycle for r in log.reassignments) + 1):
            sink.append(*of_cycle(log, number))


def files(directory: Path, kind: str = "decisions") -> list[Path]:
    """All files of the log."""
    return sorted((directory / kind).rglob("*.parquet"))


def rows(paths: Sequence[Path]) -> list[dict[str, object]]:
    """The rows of files, in their order."""
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def test_the_columns_are_the_fields_of_the_records() -> None:
    assert DECISIONS.names == [field.name for field in fields(DecisionRecord)]
    assert REASSIGNMENTS.names == [field.name for field in fields(ReassignmentRecord)]
    assert not DECISIONS.field("cycle_id").nullable and DECISIONS.field("capacity").nullable


def test_what_was_appended_is_in_files_that_name_cluster_date_term_and_sequence(tmp_path: Path) -> None:
    log = logged()
    write(tmp_path, log)
    (path,) = files(tmp_path)
    assert path.parent == tmp_path / "decisions" / "cluster=kafka" / "date=2026-11-02"
    assert path.name.startswith("kafka-0000000001-")
    assert rows([path]) == [asdict(record) for record in log.decisions]
    assert rows(files(tmp_path, "reassignments")) == [asdict(record) for record in log.reassignments]
    assert list((tmp_path / "_spool").iterdir()) == []


def test_a_date_and_a_term_have_files_of_their_own(tmp_path: Path) -> None:
    first, second = of_cycle(logged(), 1)[0], of_cycle(logged(), 2)[0]
    tomorrow = [replace(record, time=record.time + timedelta(days=1)) for record in second]
    with opened(tmp_path) as log:
        log.append(first, [])
        log.append(tomorrow, [])
        log.append([replace(record, term=2) for record in tomorrow], [])
    found = [(path.parent.name, path.name.split("-")[1]) for path in files(tmp_path)]
    assert found == [
        ("date=2026-11-02", "0000000001"),
        ("date=2026-11-03", "0000000001"),
        ("date=2026-11-03", "0000000002"),
    ]


def test_a_spool_becomes_a_file_when_it_is_long_enough(tmp_path: Path) -> None:
    with opened(tmp_path, limits=LogLimits(rows=2)) as log:
        log.append(*of_cycle(logged(), 1))
        eventually(lambda: files(tmp_path))


def test_of_a_spool_that_was_cut_off_all_whole_batches_count(tmp_path: Path) -> None:
    source = logged(4)
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


def test_a_spool_that_cannot_be_opened_now_is_not_one_without_rows(tmp_path: Path) -> None:
    """A process without a file descriptor left took its spools for cut off at the first byte, and removed them."""
    records, spool = logged().decisions, tmp_path / "decisions~lab~2026-11-02~0000000001~1.arrows"
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


def test_a_spool_that_was_left_behind_becomes_a_file_at_the_next_start_and_only_once(tmp_path: Path) -> None:
    source = logged(4)
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


def test_a_spool_that_another_version_left_behind_becomes_a_file_and_holds_up_no_other(tmp_path: Path) -> None:
    """After an update that added a column the old spool was tried every 30 s for ever, and all others waited for it."""
    source = logged(4)
    older = DECISIONS.remove(DECISIONS.get_field_index("policy"))
    spool = tmp_path / "_spool" / "decisions~kafka~2026-11-02~0000000001~1.arrows"
    spool.parent.mkdir()
    with pa.ipc.new_stream(str(spool), older) as writer:
        writer.write_batch(batch_of(of_cycle(source, 1)[0], older))
    with opened(tmp_path) as log:
        log.append(*of_cycle(source, 2))
    before, after = files(tmp_path)
    assert (before.name, pq.ParquetFile(before).schema_arrow.names) == ("kafka-0000000001-1.parquet", older.names)
    assert len(rows([before])) == len(rows([after])) == 2
    assert list((tmp_path / "_spool").iterdir()) == []


def test_the_spool_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    living = opened(tmp_path)
    living.append(*of_cycle(logged(), 1))
    eventually(lambda: living.written == 1)
    opened(tmp_path).close()
    assert files(tmp_path) == []
    living.close()
    assert len(rows(files(tmp_path))) == 2


def test_what_is_too_much_is_dropped_and_counted_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    log = opened(tmp_path, waiting=2)
    take = log._take
    monkeypatch.setattr(log, "_take", lambda kind, records: (gate.wait(60), take(kind, records)))
    cycle = of_cycle(logged(), 1)
    log.append(*cycle)
    eventually(lambda: log._waiting.empty())  # the thread has it in hand, and hangs
    for _ in range(5):
        log.append(*cycle)
    assert log.dropped == 3
    gate.set()
    log.close()
    assert log.written == 3


def test_what_cannot_be_written_now_waits_in_the_spool_for_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "decisions").write_text("a file where a directory should be")
    with opened(tmp_path) as log:
        log.append(of_cycle(logged(), 1)[0], [])
    assert files(tmp_path) == []
    (tmp_path / "decisions").unlink()
    opened(tmp_path).close()
    assert len(rows(files(tmp_path))) == 2


FULL_DISK = """
import resource, sys, time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tests.adapters.test_decision_log import PATIENT, eventually, logged, of_cycle, opened

directory, source = Path(sys.argv[1]), logged()
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
log = opened(directory, replace(PATIENT, age=timedelta(seconds=2)))
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


def test_a_disk_that_is_full_when_a_spool_ends_does_not_end_the_log(tmp_path: Path) -> None:
    """The last bytes of a spool did not fit: the thread that writes the log ended, and nothing was written any more."""
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], cwd=ROOT, check=True, timeout=120)
    assert len(rows(files(tmp_path))) == 4


def test_dates_that_are_long_over_are_removed(tmp_path: Path) -> None:
    today = datetime.now(UTC)
    record = of_cycle(logged(), 1)[0][0]
    with opened(tmp_path) as log:
        for days in (0, 5, 40):
            log.append([replace(record, time=today - timedelta(days=days))], [])
    assert len(files(tmp_path)) == 3
    opened(tmp_path, limits=LogLimits(retention=timedelta(days=30))).close()
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("uri", ["nothing://there", "s3://bucket/path"])
def test_a_place_that_is_none_or_has_no_spool_is_refused(uri: str) -> None:
    with pytest.raises(Invalid, match="decisions"):
        DecisionLog(uri)


def test_after_kills_at_any_moment_at_most_the_last_cycle_is_missing_and_nothing_is_there_twice(tmp_path: Path) -> None:
    chance = random.Random(8)
    for term in range(1, KILLS + 1):
        cycles = killed(tmp_path, term, chance.randint(1, 25), chance.random() * 0.01)
        opened(tmp_path).close()
        found = Counter((row["cycle_id"], row["broker_id"], row["role"]) for row in rows(files(tmp_path)))
        assert set(found.values()) == {1}
        there = {cycle_id for cycle_id, _, _ in found}
        assert set(cycles[:-1]) <= there
        # One more than was told of may be there: the process died before it could tell.
        assert len({c for c in there if str(c).startswith(f"kafka/{term}/")} - set(cycles)) <= 1
    assert list((tmp_path / "_spool").glob("*.arrows")) == []


def killed(directory: Path, term: int, cycles: int, seconds: float) -> list[str]:
    """Run a planner, kill it so long after so many cycles, and return the ids of those that it told of."""
    command = [sys.executable, "-m", "tests.adapters.logging_planner", str(directory), str(term)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(cycles)]
        threading.Event().wait(seconds)
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read().split()
    assert told[-1].startswith(f"kafka/{term}/"), told
    return told
