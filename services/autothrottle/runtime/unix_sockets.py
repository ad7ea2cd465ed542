"""Unix sockets: the directory of those between the services of one process, and the limit of their paths.

The functions to know are `socket_directory` and `long_path_problem`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autothrottle.core.errors import Unavailable
from autothrottle_client.replicas import MOST_PATH_BYTES

_PREFIX = "autothrottle-"
_LOCK = "lock"
"""File that a living process holds a lock on."""

_LONGEST_NAME = f"/{_PREFIX}12345678/discovery.sock"


def long_path_problem(address: str) -> str:
    """Return what is wrong with an address `unix:PATH` whose path the system does not accept; "": nothing."""
    size = len(os.fsencode(address.removeprefix("unix:")))
    if not address.startswith("unix:") or size <= MOST_PATH_BYTES:
        return ""
    return f"the path has {size} bytes, and those of Unix sockets have at most {MOST_PATH_BYTES}"


@contextmanager
def socket_directory() -> Iterator[str]:
    """Yield a directory for sockets, with access for this user only, and remove it at the end.

    Directories of processes that were killed are removed first.

    Raises:
        Unavailable: no directory for temporary files has a path that is short enough.
    """
    base = _base()
    _remove_left_over(base)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=base) as directory:
        lock = os.open(f"{directory}/{_LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(f"{directory}/{_LOCK}.new", f"{directory}/{_LOCK}")  # it has never existed without its lock
            yield directory
        finally:
            os.close(lock)


def _base() -> str:
    """Return the directory for temporary files, or a usual one with a shorter path."""
    temporary = tempfile.gettempdir()
    for base in filter(None, (temporary, os.environ.get("XDG_RUNTIME_DIR"), "/tmp")):
        is_short = len(os.fsencode(base + _LONGEST_NAME)) <= MOST_PATH_BYTES
        if is_short and os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK):
            return base
    size, longest = len(os.fsencode(temporary)), MOST_PATH_BYTES - len(_LONGEST_NAME)
    raise Unavailable(
        f"the directory for temporary files, {temporary!r}, is too long for sockets: it has {size} bytes, and paths of "
        f"Unix sockets have at most {MOST_PATH_BYTES}. Fix: set TMPDIR to a directory of at most {longest} bytes"
    )


def _remove_left_over(base: str) -> None:
    """Remove the directories of this user's processes that were killed. Whatever cannot be removed stays."""
    for directory in Path(base).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = directory.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_left_over(directory):
                shutil.rmtree(directory)


def _is_left_over(directory: Path) -> bool:
    """Whether a directory has nothing but sockets, and no living process uses them."""
    entries = [*directory.iterdir()]
    sockets = [entry for entry in entries if stat.S_ISSOCK(entry.lstat().st_mode)]
    others = [entry.name for entry in entries if entry not in sockets]
    if others == [_LOCK]:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True
    # Earlier versions have no lock.
    return bool(sockets) and not others and not any(map(_accepts, sockets))


def _accepts(path: Path) -> bool:
    """Whether a process listens at a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # its queue is full, for example
    return True
