"""Heavy work in processes of their own, so that no request slows the loop that decides throttles.

A thread would not do: Python runs one thread at a time, so a plan for 100,000 partitions delays a cycle by seconds. A
process is started anew for each piece of work (never forked), and two of a kind run at a time. It yields to every other
process, has a limit of memory, and is the first one that the kernel ends when memory is short. The types to know are
`ChildProcesses` and, in the process itself, `answer_work`.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from autothrottle.core import errors
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.texts import first_line
from autothrottle.runtime.tuning import give_way

MOST_PROCESSES = 2
"""Processes of one kind at a time."""

MOST_MEMORY = 1_000_000_000
"""Largest address space of a process, bytes. A plan of 100,000 partitions takes 0.14 GB, one of 400,000 0.32 GB."""

LEAST_MEMORY = 100_000_000
"""Address space below which no process is started, bytes: the modules of a plan alone take as much."""

_POLL_SECONDS = 0.1
_SPARE_SECONDS = 5
"""Time after its time limit at which a process whose parent was killed ends by itself."""

_NICENESS = 5
"""Beside a process of normal priority it gets a quarter of a CPU. With less, no plan ends in time on a busy host."""

_OOM_SCORE_ADJUSTMENT = "900"

# numpy and glibc otherwise reserve memory for each core and each thread.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class ChildProcesses:
    """Runs one kind of work in child processes. Thread-safe."""

    def __init__(self, module: str, kind: str, fix: str) -> None:
        """Prepare; no process is started yet.

        Args:
            module: its program calls `answer_work`.
            kind: the work in the plural, for errors.
            fix: what a caller can do if it needs too much memory or time.
        """
        self._module, self._kind, self._fix = module, kind, fix
        self._slots = threading.BoundedSemaphore(MOST_PROCESSES)

    def run(self, work: object, timeout: timedelta, has_caller: Callable[[], bool] = lambda: True) -> bytes:
        """Return the answer to a piece of work; it waits for its turn first.

        Args:
            work: the argument of the function in the process; it can be pickled.
            timeout: for the wait and the work.
            has_caller: whether a caller still waits; otherwise the process is ended.

        Raises:
            AutothrottleError: that of the work.
            Invalid: the work needs more memory than `memory_limit`.
            Unavailable: it was not done in time, the process was killed, or the container has no memory left for one.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._slots.acquire(timeout=_POLL_SECONDS):
            if not has_caller() or time.monotonic() >= deadline:
                raise Unavailable(f"{MOST_PROCESSES} {self._kind} are in progress, which is the limit; try again later")
        try:
            return self._answer(work, deadline, has_caller)
        finally:
            self._slots.release()

    def _answer(self, work: object, deadline: float, has_caller: Callable[[], bool]) -> bytes:
        seconds = max(deadline - time.monotonic(), _POLL_SECONDS)
        if (limit := memory_limit()) < LEAST_MEMORY:
            raise Unavailable(
                f"{self._kind} need {LEAST_MEMORY // 10**6} MB of memory each, and {limit // 10**6} MB are left for "
                "one. Fix: raise the limit of memory of the container or of the process"
            )
        try:
            process = self._started(pickle.dumps((seconds, work)))
        except OSError as error:
            raise Unavailable(f"no process for {self._kind} can be started: {error.strerror}") from None
        with process:
            try:
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        output, problems = process.communicate(timeout=_POLL_SECONDS)
                        return self._parsed(output, process.returncode, problems)
                    if not has_caller():
                        raise Unavailable("the caller has left")
                    if time.monotonic() >= deadline:
                        raise Unavailable(f"{self._kind} did not end within {seconds:.0f} s. Fix: {self._fix}")
            finally:
                process.kill()  # no effect on one that has ended

    def _started(self, work: bytes) -> subprocess.Popen[bytes]:
        """Start a process. Its input is a file in memory: `communicate` loses the rest of a pipe after a time-out."""
        command, environment = [sys.executable, "-P", "-m", self._module], os.environ | _ENVIRONMENT
        with open(os.memfd_create("work"), "w+b") as content:
            content.write(work)
            content.seek(0)
            pipe = subprocess.PIPE
            return subprocess.Popen(
                command, stdin=content, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
            )

    def _parsed(self, output: bytes, status: int, problems: bytes) -> bytes:
        kind, _, rest = output.partition(b"\n")
        if status == 0 and kind == b"answer":
            return rest
        if status == 0 and (error := _ERRORS.get(kind.decode("ascii", "replace"))):
            raise error(rest.decode())
        if kind == b"MemoryError" or status == -signal.SIGABRT:
            raise Invalid(f"this needs more than {memory_limit() // 10**6} MB of memory. Fix: {self._fix}")
        lines = problems.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:300] if lines else "it printed nothing"
        raise Unavailable(f"the process for {self._kind} ended with status {status}: {reason}")


_ERRORS: Mapping[str, type[AutothrottleError]] = {
    name: error
    for name, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, AutothrottleError)
}
"""Name -> error that a caller can act on."""

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_CONTROL_GROUP = Path("/proc/self/cgroup")


def memory_limit() -> int:
    """Return the largest address space of a process now, bytes.

    It is `MOST_MEMORY`, the process's share of what its container or unit of systemd has left, or the limit of this
    process (`ulimit -v`), whichever is least. A container that reaches its limit may end as a whole, and the loop with
    it.
    """
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    most = MOST_MEMORY if own == resource.RLIM_INFINITY else min(MOST_MEMORY, own)
    return min([most, *(left // MOST_PROCESSES for left in _memory_left())])


def _memory_left() -> Iterator[int]:
    """Yield the bytes that are left in the control group (version 2) of this process, and in each one around it."""
    try:
        lines = _OWN_CONTROL_GROUP.read_text().splitlines()
    except OSError:
        return
    name = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for path in (group := _CONTROL_GROUPS / name, *group.parents):
        if not path.is_relative_to(_CONTROL_GROUPS):
            return
        # A group without a limit has the text "max", and the outermost one may lack the files.
        with suppress(OSError, ValueError, StopIteration):
            largest = int((path / "memory.max").read_text())
            counts = (path / "memory.stat").read_text().splitlines()
            yield max(largest - next(int(line.split()[1]) for line in counts if line.startswith("anon ")), 0)


def answer_work(function: Callable[[Any], bytes]) -> None:
    """Do the work of this process, within the limits, and print the answer: the whole program of a child process.

    `function` imports what it needs itself, so that the limits also hold for its imports.
    """
    give_way(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (limit := memory_limit(), limit))
    threading.stack_size(1 << 20)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT)
    try:
        seconds, work = pickle.load(sys.stdin.buffer)  # from our own process, which started this one
        signal.setitimer(signal.ITIMER_REAL, seconds + _SPARE_SECONDS)
        kind, answer = "answer", function(work)
    except AutothrottleError as error:
        # An adapter's own subclass is to the caller what its nearest base in `errors` is.
        kind = next(base.__name__ for base in type(error).__mro__ if base in _ERRORS.values())
        answer = str(error).encode(errors="backslashreplace")
    except MemoryError as error:
        kind, answer = "MemoryError", first_line(error).encode()
    sys.stdout.buffer.write(kind.encode() + b"\n")
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
