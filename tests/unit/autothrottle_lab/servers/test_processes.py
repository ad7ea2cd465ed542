"""Start, freeze and end of real processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from autothrottle_lab.servers import processes
from autothrottle_lab.servers.processes import Process, free_ports

BUSY = "import threading\nfor _ in range(4): threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()\n"


def states(process: Process) -> set[str]:
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks}


def test_all_threads_are_stopped_when_freeze_returns(tmp_path: Path) -> None:
    with Process("busy", [sys.executable, "-c", BUSY], tmp_path / "log") as process:
        for _ in range(10):
            process.freeze()
            assert states(process) == {"T"}
            process.thaw()


def test_freeze_of_an_ended_process_does_nothing(tmp_path: Path) -> None:
    process = Process("short", [sys.executable, "-c", ""], tmp_path / "log")
    process.freeze()
    with process:
        assert process.wait(30) == 0
        process.freeze()


def test_a_process_that_ended_unwatched_is_forgotten_at_its_next_start(tmp_path: Path) -> None:
    """The guard kept its group. Linux may give that id to another program, which the guard would have killed."""
    with Process("short", [sys.executable, "-c", ""], tmp_path / "log") as process:
        first = f"group {process.pid}"
        while process.running:
            time.sleep(0.01)
        process.start()
        assert first not in processes._guard._resources


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster asks several times before its servers listen. A repeated port then stopped one of them at its start."""
    monkeypatch.setattr(processes, "PORTS", processes.PORTS[:200])
    monkeypatch.setattr(processes, "_given_ports", set())
    given = [port for _ in range(15) for port in free_ports(10)]
    assert len(set(given)) == 150
