"""Processes, ports and directories that never outlive the Python process that made them.

A `Process` is a program in a session of its own. While any is running, one small guard (this very file, run
as a program) waits at the end of a pipe: however the parent ends, also by SIGKILL, the pipe closes, and the
guard kills what is left and removes the scratch directories. This works from any thread and needs no fork,
unlike PR_SET_PDEATHSIG, which fires when the *thread* that started a child ends.

Only the standard library is imported here: the guard starts in milliseconds.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

PORTS = range(20_000, 32_000)
"""Ports that the lab listens on: below the usual range of outgoing connections, so that a stopped server
finds its port still free when it starts again."""


def free_ports(count: int) -> list[int]:
    """Return that many different ports on which nothing listens on 127.0.0.1 now."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"Only {len(ports)} of {count} ports in {PORTS} are free.")


@contextlib.contextmanager
def scratch_directory(prefix: str = "autothrottle-", parent: Path | None = None) -> Iterator[Path]:
    """Give a new temporary directory that is removed at the end, however this process ends."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    _guard.take_in(f"directory {path}")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _guard.let_go(f"directory {path}")


@contextlib.contextmanager
def network_pieces(links: Sequence[str], namespaces: Sequence[str]) -> Iterator[None]:
    """Take away these links and network namespaces at the end, however this process ends; some may not exist."""
    wards = [*(f"link {name}" for name in links), *(f"netns {name}" for name in namespaces)]
    for ward in wards:
        _guard.take_in(ward)
    try:
        yield
    finally:
        for ward in wards:
            _take_away(*ward.split())
            _guard.let_go(ward)


class Process:
    """A program in its own session, with a log file; a context manager that starts and stops it.

    Started again after its end it is a new process under the same name.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Say what will run; `environment` is added to that of this process."""
        self.name = name
        self.log = log
        """Standard output and standard error, appended."""
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._directory = directory
        self._popen: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Process:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Id of the process, which is also that of its group; 0 before the first start."""
        return self._popen.pid if self._popen else 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended; a frozen process is running."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it is running or before the first start."""
        return self._popen.poll() if self._popen else None

    def start(self) -> None:
        """Start it; does nothing while it is running."""
        if self.running:
            return
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
        _guard.take_in(f"group {self._popen.pid}")

    def wait_until(self, ready: Callable[[], bool], within_seconds: float, poll_seconds: float = 0.05) -> None:
        """Return as soon as `ready` says so.

        Raises:
            TimeoutError: it does not become ready, or the process ends first; has the end of its log.
        """
        deadline = time.monotonic() + within_seconds
        while not ready():
            if not self.running:
                raise TimeoutError(f"{self.name} ended with {self.returncode} before it was ready.\n{self.log_end()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is not ready after {within_seconds:.0f} s.\n{self.log_end()}")
            time.sleep(poll_seconds)

    def wait(self, within_seconds: float) -> int:
        """Return the exit status once it has ended.

        Raises:
            TimeoutError: it is still running then.
        """
        if self._popen is None:
            raise TimeoutError(f"{self.name} was never started.")
        try:
            status = self._popen.wait(within_seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} is still running after {within_seconds:.0f} s.") from None
        _guard.let_go(f"group {self._popen.pid}")
        return status

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), and do not wait."""
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it where it is (SIGSTOP), and return when it is: its connections stay open and nothing answers.

        On a loaded machine its threads still run a moment after the signal.

        Raises:
            TimeoutError: it runs on for 30 s.
        """
        self._signal(signal.SIGSTOP)
        self.wait_until(lambda: not self.running or _is_stopped(self.pid), 30.0, poll_seconds=0.001)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """End it by SIGTERM, and by SIGKILL when it has not ended after the grace."""
        self.terminate()
        self.thaw()
        with contextlib.suppress(TimeoutError):
            self.wait(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """End it and every process of its group by SIGKILL."""
        if self._popen is None:
            return
        if self._popen.returncode is None:
            _kill_group(self._popen.pid)
        self.wait(30.0)

    def log_end(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped (state T)."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _take_away(kind: str, name: str) -> None:
    """Delete a `link` or a `netns`; one that is gone is fine."""
    command = ["ip", kind, "delete", name]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)


class _Guard:
    """The parent's end of the guard; the guard runs while there is anything to look after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wards: set[str] = set()
        self._popen: subprocess.Popen[bytes] | None = None

    def take_in(self, ward: str) -> None:
        """Begin to look after `group <id>`, `directory <path>`, `link <name>` or `netns <name>`."""
        with self._lock:
            self._wards.add(ward)
            if self._popen is None:
                self._popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                )
            self._say(f"+{ward}")

    def let_go(self, ward: str) -> None:
        """Forget a ward that has ended; forgetting it twice is allowed."""
        with self._lock:
            if ward not in self._wards:
                return
            self._wards.discard(ward)
            self._say(f"-{ward}")
            if not self._wards and self._popen is not None:
                assert self._popen.stdin is not None
                self._popen.stdin.close()
                self._popen.wait()
                self._popen = None

    def _say(self, line: str) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()


_guard = _Guard()


def _stand_guard(lines: IO[str]) -> None:
    """Follow what the parent says until it is gone, then end and remove what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wards: dict[str, None] = {}
    for line in lines:
        sign, ward = line[0], line[1:].rstrip("\n")
        if sign == "+":
            wards[ward] = None
        else:
            wards.pop(ward, None)
    for ward in wards:
        kind, _, name = ward.partition(" ")
        if kind == "group":
            _kill_group(int(name))
    for ward in wards:
        kind, _, name = ward.partition(" ")
        if kind == "directory":
            shutil.rmtree(name, ignore_errors=True)
        elif kind in ("link", "netns"):
            _take_away(kind, name)


if __name__ == "__main__":
    _stand_guard(sys.stdin)
