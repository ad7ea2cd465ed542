"""Text files that are read whole, files that may change while the process runs, and files that command lines write."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import select
import stat
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

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
"""Largest file that may change while the process runs, since it is read twice a second. A larger one counts as
unreadable, such as an endless one."""

LARGEST_FILE = 256_000_000
"""Largest text file, bytes; a plan of 1,000,000 partitions has 80 MB."""

READ_SECONDS = 30.0
"""How long a pipe may take until its end."""

_DEEPEST = 20
"""Deepest nesting of TOML. Our own files have 3 levels."""

_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){100}""")
"""A TOML key of so many parts that `tomllib` needs the square of their number."""

_CHUNK = 1 << 20


def read_text(path: str | Path, encoding: str = "utf-8-sig", seconds: float = READ_SECONDS) -> str:
    """Return the content of a text file; line ends are `\\n`.

    All text files that are read whole are read here, except for PEM files and files of several tokens: of those, the
    valid part counts.

    Args:
        path: a file, or a pipe whose writer may begin later.
        encoding: utf-8-sig is UTF-8 with or without a byte order mark, which editors of Windows write.
        seconds: how long a pipe may take, >= 0.

    Raises:
        OSError: the file cannot be read, has more than `LARGEST_FILE` bytes, or does not end in time.
        ValueError: the content is not text of this encoding.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = _content(descriptor, str(path), seconds)
    finally:
        os.close(descriptor)
    if encoding.startswith("utf-8") and content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError("it is UTF-16 text, as PowerShell writes it; save it as UTF-8")
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _content(descriptor: int, path: str, seconds: float) -> bytes:
    status, deadline = os.fstat(descriptor), time.monotonic() + seconds
    if stat.S_ISREG(status.st_mode) and status.st_size > LARGEST_FILE:
        raise _too_large(path)
    poll, content = select.poll(), bytearray()
    poll.register(descriptor, select.POLLIN)
    while len(content) <= LARGEST_FILE:
        seconds_left = deadline - time.monotonic()
        if seconds_left < 0 or not poll.poll(seconds_left * 1000):
            raise OSError(errno.ETIMEDOUT, f"it did not end within {seconds:g} s", path)
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue
        if not chunk:
            return bytes(content)
        content += chunk
    raise _too_large(path)


def _too_large(path: str) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {LARGEST_FILE // 10**6} MB", path)


def read_standard_input() -> str:
    """Return the text of the standard input, for which a person or another program may take any time.

    Raises:
        OSError: it has more than `LARGEST_FILE` characters.
    """
    text = sys.stdin.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        raise _too_large("the standard input")
    return text.removeprefix("\ufeff")


def read_toml(path: str | Path) -> tuple[dict[str, Any], str]:
    """Return the tables of a TOML file, and its text.

    Raises:
        OSError: as for `read_text`.
        ValueError: the file is not TOML, or is nested too deeply.
    """
    text = read_text(path)
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 100 parts")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    values: list[Any] = [tables]
    for _ in range(_DEEPEST):
        values = [
            inner
            for value in values
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not values:
            return tables, text
    raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


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
        for problem in _problems(self._reading):  # `load` accepts larger files
            raise invalid(problem)

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
        previous, previous_reading = self._contents, self._reading
        self._reading = reading
        try:
            for problem in _problems(reading):
                raise self._invalid(problem)
            value, problem = self._loaded(lambda: self._changed(previous.value))
            if self._thread is not None and self._read_all() != self._reading:
                self._reading = previous_reading  # a writer began meanwhile: the value may be a part of its content
                return
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
    """Write a file and replace its content, but not through a symbolic link. On a full disk the old content stays.

    In a directory that others may write to, such a link makes this user overwrite another file.

    Args:
        path: the file.
        text: its content.
        mode: its permissions; None: those of the existing file, or as the umask gives them.

    Raises:
        OSError: the file cannot be written, or is a symbolic link.
    """
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    if path.is_file() and mode is None:
        mode = stat.S_IMODE(path.stat().st_mode)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise PermissionError  # a link is refused below, and a pipe is written to
        _write(part, text, mode)
        part.replace(path)
    except PermissionError:  # this user may change the file, and not its directory
        _write(path, text, mode)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _write(path: Path, text: str, mode: int | None) -> None:
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
