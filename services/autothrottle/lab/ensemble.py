"""A real ZooKeeper ensemble on 127.0.0.1: servers that elect a leader, and go on while most of them answer.

`ZooKeeperEnsemble` starts it and ends it; its `servers` can be frozen, killed and started again one by one.

Source: the administrator's guide of ZooKeeper 3.9.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from autothrottle.core.errors import Unavailable
from autothrottle.lab.processes import free_ports
from autothrottle.lab.zookeeper import Membership, Transaction, ZooKeeperServer

_CONFIGURATION = ("initLimit=20", "syncLimit=6")
"""Ticks of 0.5 s: 10 s to join, 3 s of silence until a member is given up."""

_POLL_SECONDS = 0.05


class ZooKeeperEnsemble:
    """Some ZooKeeper servers that are one; a context manager that starts them and ends them."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        """Keep each server's data in a directory of its own below `directory`."""
        ports = free_ports(3 * size)
        members = [
            f"server.{number}=127.0.0.1:{ports[size + number - 1]}:{ports[2 * size + number - 1]}"
            for number in range(1, size + 1)
        ]
        configuration = (*_CONFIGURATION, *members)
        self.servers = [
            ZooKeeperServer(directory / f"server-{number}", ports[number - 1], Membership(number, configuration))
            for number in range(1, size + 1)
        ]

    def __enter__(self) -> ZooKeeperEnsemble:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def connect(self) -> str:
        """Connection string, `host:port` of all by comma."""
        return ",".join(server.connect for server in self.servers)

    def start(self, within_seconds: float = 120.0) -> None:
        """Start those that do not run, and return when all serve; their ports and data are those of the last time.

        Raises:
            TimeoutError: one of them ends, or does not serve in time.
        """
        for server in self.servers:
            server.process.start()
        for server in self.servers:
            server.start(within_seconds)

    def kill(self) -> None:
        """End all by SIGKILL; every transaction that they have confirmed is in their logs."""
        for server in self.servers:
            server.kill()

    def leader(self, within_seconds: float = 30.0) -> ZooKeeperServer:
        """Return the server that leads; one that was just thawed may believe it for a moment.

        Raises:
            Unavailable: none of them says that it leads in time.
        """
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.process.running and server.mode() == "leader":
                    return server
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"no server of {self.connect} leads after {within_seconds:g} s: most of them must answer")

    def transactions(self, after_zxid: int = 0, refused: bool = False) -> Iterator[Transaction]:
        """Yield what was written after `after_zxid`, in the order in which it became true.

        What is in the logs of most servers: everything that any client was told, and nothing that only a leader
        proposed that was then given up, which stays in its log. With `refused` also the writes that were not carried
        out. Also works on servers that are frozen or have ended.
        """
        logs = [{t.zxid: t for t in server.transactions(after_zxid, refused)} for server in self.servers]
        holders = Counter(zxid for log in logs for zxid in log)
        every = {zxid: transaction for log in logs for zxid, transaction in log.items()}
        yield from (every[zxid] for zxid in sorted(holders) if 2 * holders[zxid] > len(self.servers))

    def last_zxid(self) -> int:
        """Return the zxid of the last transaction that most servers have, 0 when there is none."""
        return max((transaction.zxid for transaction in self.transactions(refused=True)), default=0)
