"""What 100 open pages cost a process that runs all services, during a reassignment of a simulated cluster."""

from __future__ import annotations

import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import SimulatedRecovery, wait_for

PAGES, HOSTS = 100, 4
SECONDS = 4.0
MOST_OF_A_CORE = 0.20
"""Limit of the additional CPU time of the whole process, per second."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def core_share(pid: int) -> float:
    """Return the share of a core that a process uses over some seconds."""
    begin, used = time.monotonic(), cpu_seconds(pid)
    time.sleep(SECONDS)
    return (cpu_seconds(pid) - used) / (time.monotonic() - begin)


class Pages:
    """Open event streams of several hosts, which a thread reads."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._end = threading.Event()
        self.events: dict[socket.socket, int] = {}
        """Page -> number of its events `now`."""
        for number in range(PAGES):
            page = socket.create_connection((host, int(port)), source_address=(f"127.0.0.{number % HOSTS + 1}", 0))
            page.sendall(b"GET /page/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            self._selector.register(page, selectors.EVENT_READ)
            self._sockets.append(page)
        self._thread = threading.Thread(target=self._read)

    @contextmanager
    def open(self) -> Iterator[Pages]:
        self._thread.start()
        try:
            yield self
        finally:
            self._end.set()
            self._thread.join()
            for page in self._sockets:
                page.close()
            self._selector.close()

    def _read(self) -> None:
        while not self._end.is_set():
            for key, _ in self._selector.select(0.1):
                page = key.fileobj
                assert isinstance(page, socket.socket)
                self.events[page] = self.events.get(page, 0) + page.recv(1 << 20).count(b"event: now\r\n")


@pytest.mark.measures
def test_100_open_pages_cost_less_than_a_fifth_of_a_core(fresh_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """The process runs planner, admin and gateway, so its CPU time also bounds what the pages take from a cycle."""
    sizes = {f"topic-{number}": [100_000] * 10 for number in range(10)}
    with SimulatedRecovery(fresh_zookeeper, tmp_path, sizes) as recovery:
        process = recovery.deployment(api_listen="127.0.0.1:0", log_level="info").process("run", "run", {})
        try:
            process.start()
            process.wait_until(lambda: "Admin API:" in process.log_end(400), 60.0)
            (address,) = re.findall(r"Admin API: (\S+)", process.log_end(400))
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            without = core_share(process.pid)
            with Pages(address).open() as pages:
                wait_for(lambda: len(pages.events) == PAGES or None, 10.0, "every page has events")
                first = dict(pages.events)
                with_pages = core_share(process.pid)
                last = dict(pages.events)
        finally:
            process.stop()
    print(f"{without:.1%} of a core without pages, {with_pages:.1%} with {PAGES} pages")
    assert min(last[page] - first[page] for page in first) >= SECONDS / 2
    assert with_pages - without < MOST_OF_A_CORE
