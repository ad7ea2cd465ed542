from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.core.errors import Unavailable
from autothrottle.runtime import unix_sockets
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle.runtime.server import ServiceServer
from autothrottle.runtime.unix_sockets import socket_directory
from autothrottle_client import errors
from autothrottle_client.replicas import MOST_PATH_BYTES, parse_addresses


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files; those of pytest are too long for sockets."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


KILLED = """
import sys, tempfile, time
from autothrottle.runtime.unix_sockets import socket_directory
tempfile.tempdir = sys.argv[1]
with socket_directory() as directory:
    print(directory, flush=True)
    time.sleep(60)
"""


def test_the_directory_of_a_killed_process_is_removed_by_the_next_start_and_that_of_a_living_one_is_not(
    temporary: Path,
) -> None:
    """Each SIGKILL left a directory of sockets, 60 of them after an hour of restarts."""
    command = [sys.executable, "-c", KILLED, str(temporary)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        directory = Path(child.stdout.readline().strip())
        with socket_directory():
            assert directory.exists()
        child.send_signal(signal.SIGKILL)
    with socket_directory() as own:
        assert not directory.exists()
        with socket_directory():
            assert Path(own).exists()
    assert [*temporary.iterdir()] == []


def test_of_directories_without_a_lock_only_those_with_dead_sockets_alone_are_removed(temporary: Path) -> None:
    living, dead, other, empty = (temporary / f"autothrottle-{name}" for name in ("living", "dead", "other", "empty"))
    for directory in (living, dead, other, empty):
        directory.mkdir()
    (temporary / "autothrottle-link").symlink_to(dead)
    (other / "notes.txt").touch()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as closed:
        for each, directory in ((listening, living), (closed, dead)):
            each.bind(str(directory / "admin.sock"))
        closed.close()
        listening.listen()
        with socket_directory():
            pass
    left = {path.name for path in temporary.iterdir()}
    assert left == {"autothrottle-living", "autothrottle-other", "autothrottle-empty", "autothrottle-link"}


def test_a_long_directory_for_temporary_files_gives_way_to_a_shorter_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TMPDIR of 100 characters ended the start with "the address is in use"."""
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with socket_directory() as directory, socket.socket(socket.AF_UNIX) as listening:
        assert directory.startswith("/tmp/autothrottle-")
        listening.bind(f"{directory}/discovery.sock")
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused = pytest.raises(
        Unavailable, match=f"is too long for sockets: .* at most {MOST_PATH_BYTES}. Fix: set TMPDIR"
    )
    with refused, socket_directory():
        pass


def test_an_address_with_a_long_path_is_refused_with_its_cause(temporary: Path) -> None:
    address = f"unix:/{'x' * MOST_PATH_BYTES}"
    problem = f"the path has {MOST_PATH_BYTES + 1} bytes, and those of Unix sockets have at most {MOST_PATH_BYTES}"
    assert unix_sockets.long_path_problem(address) == problem
    assert unix_sockets.long_path_problem(address[:-1]) == unix_sockets.long_path_problem("127.0.0.1:80") == ""
    for option in ("--listen", "--discovery-addr"):
        with pytest.raises(InvalidConfiguration, match=problem):
            parse([f"{option}={address}"], {})
    with pytest.raises(errors.Invalid, match=f"has a path of {MOST_PATH_BYTES + 1} bytes"):
        parse_addresses(address)
    with pytest.raises(Unavailable, match=problem):
        ServiceServer("admin", [], address)


def test_a_socket_that_cannot_be_made_names_its_directory(temporary: Path) -> None:
    with pytest.raises(Unavailable, match=r"the directory '/nowhere' does not exist\. Fix: make it"):
        ServiceServer("admin", [], "unix:/nowhere/s")
