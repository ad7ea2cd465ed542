"""Writes the files that the command lines produce."""

from __future__ import annotations

import errno
import os
from pathlib import Path


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
