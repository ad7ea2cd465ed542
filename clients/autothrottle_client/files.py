"""Text files that are read whole, files that may change while the process runs, and files that command lines write."""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import stat
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from autothrottle_client.errors import Invalid

log = logging.getLogger(__name__)

T = TypeVar("T")

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
    """Return the content of a text file; line ends are `\\n`. Every text file that is read whole is read here.

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


class ReloadedFiles(Generic[T]):
    """The parsed contents of some files, read again when one of them has changed. Thread-safe.

    If the changed files are invalid, the previous contents stay in use. This also covers a renewal in progress, when
    only one of two matching files is new.
    """

    def __init__(
        self,
        paths: Sequence[str],
        load: Callable[[], T],
        invalid: type[Exception] = Invalid,
        named: Callable[[T], Sequence[str]] = lambda contents: (),
    ) -> None:
        """Read the files.

        Args:
            paths: the files to check for changes.
            load: returns their parsed contents.
            invalid: what `load` raises if they are invalid.
            named: returns further files that the contents name, and that `load` reads, too.

        Raises:
            Invalid: the files are invalid now.
        """
        self._first_paths, self._load, self._invalid, self._named = tuple(paths), load, invalid, named
        self._paths = self._first_paths
        self._lock = threading.Lock()
        self._stamps = self._current_stamps()
        self._value, self._generation, self._problem = self._loaded(), 1, ""

    def current(self) -> tuple[T, int]:
        """Return the contents and their generation: 1, plus 1 for each change."""
        with self._lock:
            stamps = self._current_stamps()
            if stamps != self._stamps:
                self._stamps = stamps
                self._reload()
            return self._value, self._generation

    @property
    def problem(self) -> str:
        """Why the contents of the last check are not those of the files; "": they are."""
        with self._lock:
            return self._problem

    def _reload(self) -> None:
        try:
            contents, self._problem = self._loaded(), ""
        except self._invalid as error:
            self._problem = str(error)
            log.warning("%s. The previous contents stay in use", error)
            return
        if contents != self._value:
            self._value, self._generation = contents, self._generation + 1
            log.info("Reloaded: %s", ", ".join(self._paths))

    def _loaded(self) -> T:
        """Load the files; once more if the contents name others than so far: a stamp is older than its contents."""
        contents = self._load()
        paths = (*self._first_paths, *self._named(contents))
        if paths != self._paths:
            self._paths = paths
            self._stamps = self._current_stamps()
            contents = self._load()
        return contents

    def _current_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int] | None:
    """(mtime, size, inode), which changes when the file does; None: the file does not exist now."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


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
