"""Files that may change while the process runs (certificates, tokens), and files that the command lines write."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from autothrottle_client.errors import Invalid

log = logging.getLogger(__name__)

T = TypeVar("T")

PERIOD_SECONDS = 0.5
"""Time between two readings of followed files."""

SETTLE_SECONDS = 1.0
"""Changed content of followed files counts after two equal readings this far apart: a writer may not be done yet."""

OLD_SECONDS = 10.0
"""Age from which files that cannot be read any more are a finding."""

_MOST_BYTES = 16 << 20
"""Largest file. An endless one, such as /dev/zero, counts as unreadable."""


@dataclass(frozen=True, slots=True)
class _Contents(Generic[T]):
    value: T
    generation: int
    confirmed: float
    """Monotonic time of the last reading of the files that succeeded."""
    last_reading: datetime
    """The same as wall-clock time, UTC."""
    problem: str = ""
    is_partial: bool = False
    """Whether the value is the valid part of faulty files; otherwise a problem leaves the previous value in use."""


class ReloadedFiles(Generic[T]):
    """The parsed contents of some files, read again when one of them has changed. Thread-safe.

    `current` reads the files, until `follow` lets a thread read them. From then on it returns the thread's last result:
    no caller waits for a disk, or for a mount that hangs. `age_seconds` tells how old that result is.

    If the changed files are invalid, the previous contents stay in use. This also covers a renewal in progress, when
    only one of two matching files is new. With `changed`, the valid part of faulty files may count instead.
    """

    def __init__(
        self,
        paths: Sequence[str],
        load: Callable[[], T],
        invalid: type[Exception] = Invalid,
        named: Callable[[T], Sequence[str]] = lambda contents: (),
        changed: Callable[[T], tuple[T, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files.

        Args:
            paths: the files to check for changes.
            load: returns their parsed contents.
            invalid: what `load` raises if they are invalid.
            named: returns further files that the contents name, and that `load` reads, too.
            changed: gets the previous contents and returns the valid part of the changed files, and what is wrong with
                the rest ("": nothing); None: `load` does it, and nothing of faulty files counts.
            clock: monotonic seconds.

        Raises:
            Invalid: the files are invalid now.
        """
        self._first_paths, self._load, self._invalid, self._named = tuple(paths), load, invalid, named
        self._changed = changed or (lambda previous: (load(), ""))
        self._clock = clock
        self._paths = self._first_paths
        self._lock = threading.Lock()
        """Of readers: only they wait for the disk while they hold it."""
        self._thread: threading.Thread | None = None
        self._due = threading.Event()
        self._candidate: tuple[Sequence[str], float] | None = None
        """A changed reading, and when it was made first."""
        self._static = {path for path in paths if not _is_regular(path)}
        start = clock()
        self._reading = self._read_all()
        """The reading that `_contents` comes from: SHA-256 of each file, or why it cannot be read."""
        self._contents = _Contents(self._loaded(lambda: (load(), ""))[0], 1, start, datetime.now(UTC))

    def current(self) -> tuple[T, int]:
        """Return the contents and their generation: 1, plus 1 for each change."""
        if self._thread is None:
            self.check()
        contents = self._contents
        return contents.value, contents.generation

    @property
    def problem(self) -> str:
        """Why the contents are not those of the files at the last reading; "": they are."""
        return self._contents.problem

    @property
    def is_partial(self) -> bool:
        """Whether the contents are the valid part of faulty files; False: a problem leaves the previous ones in use."""
        return self._contents.is_partial

    @property
    def age_seconds(self) -> float:
        """Time since the files could be read: now one is unreadable, changes all the time, or a reading hangs."""
        return max(0.0, self._clock() - self._contents.confirmed)

    @property
    def last_reading(self) -> datetime:
        """When the files could be read last, UTC."""
        return self._contents.last_reading

    def follow(self, stop: threading.Event) -> None:
        """Let a thread of these files alone read them until `stop` is set, so that no mount delays another. Idempotent.

        From now on, changed content counts after two equal readings `SETTLE_SECONDS` apart.
        """
        if self._thread is None:
            name = f"files-{Path(self._first_paths[0]).name}"
            self._thread = threading.Thread(target=self._run, args=(stop,), name=name, daemon=True)
            self._thread.start()

    def request_check(self) -> None:
        """Let the thread read now."""
        self._due.set()

    def check(self) -> None:
        """Read the files now, and use changed contents."""
        with self._lock:
            start = self._clock()
            reading = self._read_all()
            if reading == self._reading:
                self._candidate = None
                if self._contents.problem and not self._contents.is_partial:
                    self._use(reading, start)  # the cause may be gone: a file that the contents name, or memory
                elif not _problems(reading):
                    self._contents = replace(self._contents, confirmed=start, last_reading=datetime.now(UTC))
                return
            if self._candidate is None or self._candidate[0] != reading:
                self._candidate = reading, start
            if self._thread is None or start - self._candidate[1] >= SETTLE_SECONDS:
                self._candidate = None
                self._use(reading, start)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.check()
            self._due.wait(PERIOD_SECONDS)
            self._due.clear()

    def _use(self, reading: Sequence[str], start: float) -> None:
        """Use the contents of a changed reading as far as they are valid."""
        previous = self._contents
        self._reading = reading
        try:
            for problem in _problems(reading):
                raise self._invalid(problem)
            value, problem = self._loaded(lambda: self._changed(previous.value))
        except Exception as error:  # a bug in a parser must not end the thread either
            is_invalid = isinstance(error, self._invalid)
            problem = str(error) if is_invalid else f"unexpected {type(error).__name__}; the log has the traceback"
            if is_invalid and not _problems(reading):
                previous = replace(previous, confirmed=start, last_reading=datetime.now(UTC))
            self._contents = replace(previous, problem=problem, is_partial=False)
            if problem != previous.problem:
                traceback = None if is_invalid else error
                log.warning("%s. The previous contents stay in use", problem, exc_info=traceback)
            return
        is_new = value != previous.value
        generation = previous.generation + is_new
        contents = value if is_new else previous.value
        self._contents = _Contents(contents, generation, start, datetime.now(UTC), problem, bool(problem))
        if problem and problem != previous.problem:
            log.warning("%s. Only the valid part is in use", problem)
        if is_new:
            log.info("Reloaded: %s", ", ".join(self._paths))

    def _loaded(self, load: Callable[[], tuple[T, str]]) -> tuple[T, str]:
        """Load the files; once more if the contents name others than so far: a reading is older than its contents."""
        contents = load()
        paths = (*self._first_paths, *self._named(contents[0]))
        if paths != self._paths:
            self._paths = paths
            self._reading = self._read_all()
            contents = load()
        return contents

    def _read_all(self) -> Sequence[str]:
        return [_STATIC if path in self._static and not _is_regular(path) else _digest(path) for path in self._paths]


_SHA256 = "sha256:"
"""Prefix of the result of a reading that succeeded."""

_STATIC = f"{_SHA256}pipe"
"""Reading of a pipe, such as bash's `<(...)`: it was read once, at the start, and cannot change."""


def _problems(reading: Sequence[str]) -> list[str]:
    """Return why files cannot be read."""
    return [text for text in reading if not text.startswith(_SHA256)]


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True  # `_digest` says why it cannot be read


def _digest(path: str) -> str:
    """Return the digest of a file, or why it cannot be read."""
    try:
        # Without O_NONBLOCK, a pipe in place of the file would block this thread for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) and not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return f"{path!r} is not a regular file. Fix: name a readable file"
            digest, size = hashlib.sha256(), 0
            while block := os.read(descriptor, 1 << 20):
                digest.update(block)
                size += len(block)
                if size > _MOST_BYTES:
                    return f"{path!r} has more than {_MOST_BYTES >> 20} MiB. Fix: name the right file"
            return _SHA256 + digest.hexdigest()
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{path!r} cannot be read: {error.strerror}. Fix: name a readable file"


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a file and replace its content, but not through a symbolic link.

    In a directory that others may write to, such a link makes this user overwrite another file.

    Args:
        path: the file.
        text: its content.
        mode: its permissions; None: those of the existing file, or as the umask gives them.

    Raises:
        OSError: the file cannot be written, or is a symbolic link.
    """
    with open(path, "w", encoding="utf-8", opener=_without_links) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(text)


def _without_links(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, and links are not followed", path) from None
        raise


@contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """A file that only this process can open, in memory where the system has such files, else with mode 0600."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("key"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile("wb", prefix="autothrottle-") as file:
        file.write(content)
        file.flush()
        yield file.name
