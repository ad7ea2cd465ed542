from __future__ import annotations

import errno
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from autothrottle.topicmappr.cluster_file import parse_cluster
from autothrottle_client import files
from autothrottle_client.contexts import read_contexts_file
from autothrottle_client.errors import Invalid
from autothrottle_client.files import read_standard_input, read_text, read_toml, write_text
from autothrottle_client.instance_file import read_instance_file
from tests.resources import open_descriptors, usage


def test_a_file_is_replaced_and_gets_the_given_mode(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    for text in ("a long text", "short"):
        write_text(path, text, mode=0o644)
    assert path.read_text("utf-8") == "short"
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    write_text(path, "private")
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    """topicmappr wrote `orders.json` through a link that another user had put into a shared directory.

    The user's own file behind the link was replaced by a partition map, and made readable by all.
    """
    target, link = tmp_path / "precious", tmp_path / "orders.json"
    target.write_text("precious")
    link.symlink_to(target)
    with pytest.raises(OSError, match="it is a symbolic link"):
        write_text(link, "{}", mode=0o644)
    assert target.read_text("utf-8") == "precious"


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    """A file was emptied before its new content was written, so that a full disk left half a plan, or nothing.

    The kernel refuses what is beyond the largest file of this process in the same way.
    """
    path = tmp_path / "plan.json"
    write_text(path, "old")
    child = os.fork()
    if not child:  # the limit holds for the whole process
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
        try:
            write_text(path, "x" * 5_000)
        except OSError as error:
            os._exit(0 if error.errno == errno.EFBIG else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# Reading.


def test_text_of_windows_is_read(tmp_path: Path) -> None:
    """Editors of Windows write a byte order mark and other line ends; PowerShell's `>` writes UTF-16."""
    path = tmp_path / "plan.json"
    path.write_bytes(b'\xef\xbb\xbf{"a":\r\n1}\r')
    assert read_text(path) == '{"a":\n1}\n'
    path.write_bytes('{"a":1}'.encode("utf-16"))
    with pytest.raises(ValueError, match="UTF-16 text, as PowerShell writes it; save it as UTF-8"):
        read_text(path)


def test_a_pipe_may_begin_late(tmp_path: Path) -> None:
    """A pipe without a writer must not look like an empty file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Timer(0.05, path.write_text, ["content" * 20_000])
    writer.start()
    try:
        assert len(read_text(path)) == 140_000
    finally:
        writer.join()


def test_a_pipe_that_does_not_end_is_left(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    descriptors, _ = usage()
    begin = time.monotonic()
    with pytest.raises(OSError, match=r"it did not end within 0\.05 s"):
        read_text(path, seconds=0.05)
    holder = os.open(path, os.O_RDWR)
    os.write(holder, b"some")
    with pytest.raises(OSError, match=r"it did not end within 0\.05 s"):
        read_text(path, seconds=0.05)
    os.close(holder)
    assert time.monotonic() - begin < 10
    assert open_descriptors() <= descriptors


def test_an_endless_file_and_a_large_one_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--cluster-file /dev/zero` took all memory of the host."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(files.LARGEST_FILE + 1)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="it has more than 256 MB"):
            read_text(large)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, "refused by its size, not read"
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(files, "LARGEST_FILE", 3_000_000)
    with pytest.raises(OSError, match="it has more than 3 MB"):
        read_text("/dev/zero")
    with open("/dev/zero", encoding="latin-1") as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        with pytest.raises(OSError, match="it has more than 3 MB"):
            read_standard_input()


def test_a_loop_of_links_and_a_directory_are_errors_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path, problem in ((tmp_path / "a", errno.ELOOP), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError) as error:
            read_text(path)
        assert error.value.errno == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 5_000, "it is nested too deeply"),
        ("a = " + "[" * 30 + "]" * 30, "nested more than 20 levels deep"),
        ("[" + ".".join("a" * 90) + "]", "nested more than 20 levels deep"),
        (".".join("a" * 100_000) + " = 1", "a key has more than 100 parts"),
        ("a = {" + " . ".join(["'b'"] * 100_000) + " = 1}", "a key has more than 100 parts"),
    ],
)
def test_deep_toml_is_refused_in_linear_time(text: str, problem: str, tmp_path: Path) -> None:
    """Deep TOML in --clusters was a traceback, and a key of 100,000 parts took hours."""
    path = tmp_path / "clusters.toml"
    path.write_text(text)
    begin = time.process_time()
    with pytest.raises(ValueError, match=problem):
        read_toml(path)
    with pytest.raises(Invalid, match=problem):
        read_contexts_file(path)
    assert time.process_time() - begin < 2


def test_a_long_field_of_a_csv_file_is_one_line(tmp_path: Path) -> None:
    """A field of 131,073 characters was a traceback."""
    path = tmp_path / "instances.csv"
    path.write_text(f"name,storage,network_in,network_out,disk,price\n{'x' * 131_073},1TB,1Gbit/s,1Gbit/s,1MB/s,1\n")
    assert read_instance_file(str(path)) == (
        (),
        (f"instances {str(path)!r} cannot be read: field larger than field limit (131072). Fix: name a CSV file",),
    )


@pytest.mark.parametrize("text", ["na\0me", '"', '"a\nb",c', "name\r\n\r\n", "﻿name"])
def test_no_csv_file_is_a_traceback(text: str, tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    path.write_text(text, newline="")
    instances, problems = read_instance_file(str(path))
    assert not instances and problems


def test_many_instances_take_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    rows = [f"n{number},1TB,1Gbit/s,1Gbit/s,1MB/s,1\n" for number in range(20_000)]
    path.write_text("".join(["name,storage,network_in,network_out,disk,price\n", *rows, rows[7]]))
    begin = time.process_time()
    assert read_instance_file(str(path))[1] == (f"{path}: 'n7' is there twice. Fix: name each once",)
    assert time.process_time() - begin < 3


@pytest.mark.repeat
def test_a_plan_of_1_000_000_partitions_passes(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    rows = [
        {"topic": f"topic-{n // 100}", "partition": n % 100, "replicas": [1, 2, 3], "size": n} for n in range(10**6)
    ]
    path.write_text(json.dumps({"brokers": [{"id": 1, "rack": "a"}], "partitions": rows}))
    del rows
    assert len(parse_cluster(read_text(path)).partitions) == 10**6
