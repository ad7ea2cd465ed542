"""A real ZooKeeper ensemble on 127.0.0.1.

`ZooKeeperEnsemble` starts and kills it. Tests may freeze, kill and restart its `servers` one by one.

Source: the administrator's guide of ZooKeeper 3.9.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.processes import free_ports
from autothrottle_lab.servers.zookeeper import Transaction, ZooKeeperServer

_CONFIGURATION = ("initLimit=20", "syncLimit=6")
"""In ticks of 0.5 s: 10 s to join; the leader drops a follower after 3 s without contact."""

_POLL_SECONDS = 0.05


class ZooKeeperEnsemble:
    """The servers of one ensemble; a context manager that starts and kills them."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        """Prepare `size` servers, each with its own subdirectory of `directory`."""
        ports = free_ports(3 * size)
        members = [
            f"server.{number}=127.0.0.1:{ports[size + number - 1]}:{ports[2 * size + number - 1]}"
            for number in range(1, size + 1)
        ]
        configuration = (*_CONFIGURATION, *members)
        self.servers = [
            ZooKeeperServer(directory / f"server-{number}", ports[number - 1], number, configuration)
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
        """Connection string: `host:port` of all servers, separated by commas."""
        return ",".join(server.connect for server in self.servers)

    def start(self, within_seconds: float = 120.0) -> None:
        """Start the servers that do not run; return when all serve clients. Ports and data are the same each time.

        Raises:
            TimeoutError: a server ends, or does not serve clients in time.
        """
        for server in self.servers:
            server.process.start()
        for server in self.servers:
            server.start(within_seconds)

    def kill(self) -> None:
        """Kill all servers by SIGKILL; all confirmed transactions are in their logs."""
        for server in self.servers:
            server.kill()

    def leader(self, within_seconds: float = 30.0) -> ZooKeeperServer:
        """Return the leader; a former leader may report itself for a moment after `thaw`.

        Raises:
            Unavailable: no server reports that it leads in time.
        """
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.process.running and server.mode() == "leader":
                    return server
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"no server of {self.connect} leads after {within_seconds:g} s: a majority must be running")

    def transactions(self, after_zxid: int = 0, refused: bool = False) -> Iterator[Transaction]:
        """Yield the transactions after `after_zxid` in commit order.

        These are the transactions in the logs of a majority of servers. They include every write that was confirmed to
        a client. They exclude proposals of a former leader that were never committed, which stay in its own log. With
        `refused`, failed writes are included. This works on frozen and stopped servers, too.
        """
        logs = [{t.zxid: t for t in server.transactions(after_zxid, refused)} for server in self.servers]
        holders = Counter(zxid for log in logs for zxid in log)
        every = {zxid: transaction for log in logs for zxid, transaction in log.items()}
        yield from (every[zxid] for zxid in sorted(holders) if 2 * holders[zxid] > len(self.servers))

    def last_zxid(self) -> int:
        """Return the zxid of the last transaction that a majority of servers has; 0: no such transaction."""
        return max((transaction.zxid for transaction in self.transactions(refused=True)), default=0)
