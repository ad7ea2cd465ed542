"""Processes, ports and directories that never outlive the Python process that created them.

A `Process` is a program in its own session. While any process runs, a small guard process (this file, run as a
program) reads from a pipe. When the parent ends, even by SIGKILL, the pipe closes. The guard then kills the remaining
processes and removes the scratch directories. This works from any thread and without fork. PR_SET_PDEATHSIG, in
contrast, fires when the *thread* that started a child ends.

This file imports only the standard library, so that the guard starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Self

PORTS = range(20_000, 32_000)
"""Ports that the lab listens on. They are below the usual range of outgoing connections, so that the port of a stopped
server is still free when it starts again."""

_given_ports: set[int] = set()
"""Ports that this process has given to servers, which may not listen yet, or not at the moment."""


def free_ports(count: int) -> list[int]:
    """Return `count` ports that are free on 127.0.0.1 now, and that no earlier call in this process has returned."""
    ports: list[int] = []
    first = random.randrange(len(PORTS))
    for port in chain(PORTS[first:], PORTS[:first]):
        if port in _given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            _given_ports.update(ports)
            return ports
    raise OSError(f"Only {len(ports)} of {count} ports in {PORTS} are free.")


def free_address() -> str:
    """Return `127.0.0.1:port` with a free port. No other server gets this port, not even after a stop of this one."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def run_command(command: Sequence[str], within_seconds: float | None = None) -> tuple[int, str]:
    """Run a program to its end; return its exit status and its output, standard output first.

    Raises:
        subprocess.TimeoutExpired: it still runs at the deadline.
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=within_seconds
    )
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def scratch_directory(prefix: str = "autothrottle-", parent: Path | None = None) -> Iterator[Path]:
    """Create a temporary directory. It is removed at the end, even if this process is killed."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with _watched([f"directory {path}"]):
        yield path


def network_cleanup(links: Sequence[str], namespaces: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Delete these links and network namespaces at the end, even if this process is killed; some may not exist."""
    return _watched([*(f"link {name}" for name in links), *(f"netns {name}" for name in namespaces)])


@contextlib.contextmanager
def _watched(resources: Sequence[str]) -> Iterator[None]:
    """Remove the resources at the end, even if this process is killed."""
    for resource in resources:
        _guard.watch(resource)
    try:
        yield
    finally:
        for resource in resources:
            _remove(resource)
            _guard.release(resource)


class Startable(ABC):
    """A context manager that starts one or more processes, and ends them if the start fails."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self) -> None:
        """Start the processes that do not run."""

    @abstractmethod
    def close(self) -> None:
        """End all processes; nothing happens if none runs."""


class Process(Startable):
    """A program in its own session, with a log file.

    A second start after its end creates a new process with the same name and log file.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        own_log: Path | None = None,
    ) -> None:
        """Prepare a process.

        Args:
            name: name for messages.
            command: program and arguments.
            log: file for its output.
            environment: variables in addition to those of this process.
            directory: working directory; None: that of this process.
            own_log: log file that the program itself writes; None: it has none.
        """
        self.name = name
        self.log = log
        """Standard output and standard error, appended."""
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._directory = directory
        self._logs = [log] if own_log is None else [own_log, log]
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id, which is also the process group id; 0 before the first start."""
        return self._popen.pid if self._popen else 0

    @property
    def running(self) -> bool:
        """Whether it has started and not ended; a frozen process is running."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs or before the first start."""
        return self._popen.poll() if self._popen else None

    def start(self) -> None:
        """Start the process, unless it is running."""
        if self.running:
            return
        if self._popen is not None:
            _guard.release(f"group {self._popen.pid}")  # it ended, and nothing has waited for it
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )
        _guard.watch(f"group {self._popen.pid}")

    def wait_until(self, ready: Callable[[], bool], within_seconds: float, poll_seconds: float = 0.05) -> None:
        """Return as soon as `ready` returns true.

        Raises:
            TimeoutError: it does not become ready, or the process ends first; the message has the end of its log.
        """
        deadline = time.monotonic() + within_seconds
        while not ready():
            if not self.running:
                raise TimeoutError(f"{self.name} ended with {self.returncode} before it was ready.\n{self.log_end()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is not ready after {within_seconds:.0f} s.\n{self.log_end()}")
            time.sleep(poll_seconds)

    def wait(self, within_seconds: float) -> int:
        """Wait for the end of the process; return its exit status.

        Raises:
            TimeoutError: it still runs at the deadline.
        """
        if self._popen is None:
            raise TimeoutError(f"{self.name} was never started.")
        try:
            status = self._popen.wait(within_seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} is still running after {within_seconds:.0f} s.") from None
        _guard.release(f"group {self._popen.pid}")
        return status

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Suspend the process (SIGSTOP): its connections stay open, but it does not answer.

        Return when all its threads are stopped: on a busy machine they run on for a moment after the signal.

        Raises:
            TimeoutError: a thread still runs after 30 s.
        """
        self._signal(signal.SIGSTOP)
        self.wait_until(lambda: not self.running or _is_stopped(self.pid), 30.0, poll_seconds=0.001)

    def thaw(self) -> None:
        """Resume a frozen process (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """Send SIGTERM, and SIGKILL if it still runs after the grace period."""
        self.terminate()
        self.thaw()
        with contextlib.suppress(TimeoutError):
            self.wait(grace_seconds)
        self.kill()

    def close(self) -> None:
        self.stop()

    def kill(self) -> None:
        """Send SIGKILL to the process and its group, and wait for its end."""
        if self._popen is None:
            return
        if self._popen.returncode is None:
            _kill_group(self._popen.pid)
        self.wait(30.0)

    def log_end(self, lines: int = 30) -> str:
        """Return the last lines of each of its logs."""
        texts = [log.read_text(errors="replace") for log in self._logs if log.exists()]
        return "\n".join(line for text in texts for line in text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped (state T)."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread ended during the scan
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _remove(resource: str) -> None:
    """Kill `group <id>`, or remove `directory <path>`, `link <name>` or `netns <name>`; it may not exist."""
    kind, _, name = resource.partition(" ")
    if kind == "group":
        _kill_group(int(name))
    elif kind == "directory":
        shutil.rmtree(name, ignore_errors=True)
    else:
        run_command(["ip", kind, "delete", name])


class _Guard:
    """The parent's side of the guard process, which runs while there are resources to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resources: set[str] = set()
        self._popen: subprocess.Popen[bytes] | None = None

    def watch(self, resource: str) -> None:
        """Watch `group <id>`, `directory <path>`, `link <name>` or `netns <name>`."""
        with self._lock:
            self._resources.add(resource)
            if self._popen is None:
                self._popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                )
            self._send(f"+{resource}")

    def release(self, resource: str) -> None:
        """Stop watching a resource; a second call has no effect."""
        with self._lock:
            if resource not in self._resources:
                return
            self._resources.discard(resource)
            self._send(f"-{resource}")
            if not self._resources and self._popen is not None:
                assert self._popen.stdin is not None
                self._popen.stdin.close()
                self._popen.wait()
                self._popen = None

    def _send(self, line: str) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()


_guard = _Guard()


def _run_guard(lines: IO[str]) -> None:
    """Read the parent's messages until it ends; then kill and remove all resources that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resources: set[str] = set()
    for line in lines:
        sign, resource = line[0], line[1:].rstrip("\n")
        if sign == "+":
            resources.add(resource)
        else:
            resources.discard(resource)
    # End the processes before their directories and devices disappear.
    for resource in sorted(resources, key=lambda resource: not resource.startswith("group ")):
        _remove(resource)


if __name__ == "__main__":
    _run_guard(sys.stdin)
