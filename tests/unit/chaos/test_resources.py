"""The watch over descriptors and threads finds a process that has more of them than the bound allows."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path

from autothrottle_lab.servers.processes import Process
from tests.chaos.resources import EXTRA, ResourceCount, ResourceWatch, resource_count


class ThisProcess(Process):
    """This process, which needs no start."""

    def __init__(self) -> None:
        super().__init__("this process", [], Path(os.devnull))

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def running(self) -> bool:
        return True


def test_descriptors_beyond_the_bound_are_named_until_they_are_closed() -> None:
    watch = ResourceWatch({"run-1": ThisProcess()})
    watch.begin_faults()
    with ExitStack() as stack:
        for _ in range(EXTRA):
            stack.enter_context(open(os.devnull))
        assert list(watch.excess()) == []
        stack.enter_context(open(os.devnull))
        assert [sentence.partition(" ")[0] for sentence in watch.excess()] == ["run-1"]
    assert list(watch.excess()) == []


def test_threads_beyond_the_bound_are_named() -> None:
    watch, ending = ResourceWatch({"run-1": ThisProcess()}), threading.Event()
    watch.begin_faults()
    threads = [threading.Thread(target=ending.wait) for _ in range(EXTRA + 1)]
    for thread in threads:
        thread.start()
    try:
        assert len(list(watch.excess())) == 1
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def test_process_that_has_ended_uses_nothing() -> None:
    assert resource_count(2**22 + 1) == ResourceCount()  # above the largest process id
