"""Child processes: their limits, their errors, and their end when the caller has left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.runtime import child_processes
from autothrottle.runtime.child_processes import MOST_MEMORY, ChildProcesses
from tests.resources import open_descriptors, usage

PROGRAM = """
import os, resource, signal, sys, time
from autothrottle.core.errors import Missing
from autothrottle.runtime.child_processes import answer_work

def work(order):
    name, path = order
    if name == "limits":
        memory, niceness = resource.getrlimit(resource.RLIMIT_AS)[0], os.getpriority(os.PRIO_PROCESS, 0)
        score = int(open("/proc/self/oom_score_adj").read())
        return repr((memory, niceness, os.getsid(0) == os.getpid(), score)).encode()
    if name == "missing":
        raise Missing("no topic matches x")
    if name == "memory":
        return b"x" * 2_000_000_000
    if name == "bug":
        raise KeyError("a bug")
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    deadline = time.monotonic() + 60
    while name == "hang" or time.monotonic() < deadline and not os.path.exists(path + ".go"):
        time.sleep(0.01)
    return b"a" * 3_000_000

answer_work(work)
"""


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChildProcesses:
    (tmp_path / "worker_of_a_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return ChildProcesses("worker_of_a_test", "plans", "name fewer topics")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_a_process_has_limits_and_its_errors_are_those_of_the_work(processes: ChildProcesses) -> None:
    def answer(name: str) -> bytes | Exception:
        try:
            return processes.run((name, ""), timedelta(seconds=60))
        except Exception as error:
            return error

    with ThreadPoolExecutor() as threads:
        limits, missing, memory, bug, killed = threads.map(answer, ["limits", "missing", "memory", "bug", "killed"])
    limit = child_processes.memory_limit() // 10**6
    niceness = max(5, os.getpriority(os.PRIO_PROCESS, 0))
    assert limits == repr((child_processes.memory_limit(), niceness, True, 900)).encode()
    assert isinstance(missing, Missing) and str(missing) == "no topic matches x"
    assert (
        isinstance(memory, Invalid)
        and str(memory) == f"this needs more than {limit} MB of memory. Fix: name fewer topics"
    )
    assert isinstance(bug, Unavailable) and str(bug) == "the process for plans ended with status 1: KeyError: 'a bug'"
    assert isinstance(killed, Unavailable) and "ended with status -9: it printed nothing" in str(killed)


def test_two_processes_run_at_a_time_and_the_others_wait(processes: ChildProcesses, tmp_path: Path) -> None:
    """Twelve plans at a time took all of the memory, and Python's only running thread from the loop."""
    path = tmp_path / "pids"
    path.touch()
    descriptors, _ = usage()
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(processes.run, ("wait", str(path)), timedelta(seconds=60)) for _ in range(4)]
        wait_for(lambda: len(path.read_text().splitlines()) == 2)
        with pytest.raises(Unavailable, match="2 plans are in progress, which is the limit; try again later"):
            processes.run(("wait", str(path)), timedelta(seconds=0.05))
        with pytest.raises(Unavailable, match="2 plans are in progress"):
            processes.run(("wait", str(path)), timedelta(seconds=60), lambda: False)
        assert len(path.read_text().splitlines()) == 2
        path.with_name("pids.go").touch()
        assert [len(answer.result()) for answer in answers] == [3_000_000] * 4
    assert len(path.read_text().splitlines()) == 4
    assert open_descriptors() <= descriptors


def test_a_process_ends_when_its_caller_has_left(processes: ChildProcesses, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    path.touch()
    gone = threading.Event()
    with ThreadPoolExecutor() as threads:
        left = threads.submit(processes.run, ("hang", str(path)), timedelta(seconds=60), lambda: not gone.is_set())
        wait_for(lambda: bool(path.read_text()))
        gone.set()
        with pytest.raises(Unavailable, match="the caller has left"):
            left.result()
    with pytest.raises(Unavailable, match=r"plans did not end within 0 s. Fix: name fewer topics"):
        processes.run(("hang", str(path)), timedelta(seconds=0.2))
    for pid in path.read_text().split():
        assert not Path(f"/proc/{pid}").exists(), "it is ended, and its status is read"


@pytest.mark.parametrize(
    ("largest", "limit"),
    [("max", MOST_MEMORY), ("512000000", 206_000_000), ("50000000", 0), ("8000000000", MOST_MEMORY)],
)
@pytest.mark.parametrize(
    ("name", "limited"),
    [("/", "."), ("/system.slice/a.service", "system.slice/a.service"), ("/system.slice/a.service", "system.slice")],
    ids=["container", "unit", "slice"],
)
def test_two_processes_fit_into_a_container_or_unit(
    name: str, limited: str, largest: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that reaches its limit of memory may be ended as a whole.

    Only the outermost group was read, so that `MemoryMax` of a unit of systemd did not count.
    """
    groups, own_group = tmp_path / "groups", tmp_path / "own"
    own_group.write_text(f"4:memory:/elsewhere\n0::{name}\n")
    (groups / name[1:]).mkdir(parents=True)
    (groups / limited / "memory.max").write_text(f"{largest}\n")
    (groups / limited / "memory.stat").write_text("file 5\nanon 100000000\n")
    monkeypatch.setattr(child_processes, "_CONTROL_GROUPS", groups)
    monkeypatch.setattr(child_processes, "_OWN_CONTROL_GROUP", own_group)
    assert child_processes.memory_limit() == limit
