"""Files that may change while the process runs (certificates, tokens), and files that the command lines write."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from autothrottle_client.errors import Invalid

log = logging.getLogger(__name__)

T = TypeVar("T")


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
