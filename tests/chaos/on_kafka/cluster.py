"""A real Kafka 4 cluster of three brokers and a controller, with a proxy in front of every listener but the harness's.

A broker has one listener for each service process, one for the other brokers, and one for the harness. What a listener
advertises is the proxy's port. So a fault can hit the connections of one process to all brokers, of all processes to
one broker, or of the other brokers to one broker.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from autothrottle.adapters.kafka_state.topic import MIN_IN_SYNC
from autothrottle_lab.servers.kafka import Partition
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Startable, free_ports
from tests.chaos.proxy import Framing, Link, reserved_port
from tests.chaos.schedule import FaultKind

BROKERS = (1001, 1002, 1003)
SLOTS = 6
"""Most service processes of a run that connect to Kafka."""

BROKER_SESSION_SECONDS = 9
"""After this time without a heartbeat, the controller gives a broker's leaderships to others."""

_PROPERTIES = {
    # The throttles are a few MB/s, so one fetch brings a fraction of a second of them.
    "replica.fetch.max.bytes": 128 * 1024,
    "replica.fetch.response.max.bytes": 512 * 1024,
    "replica.lag.time.max.ms": 4000,
    "replica.fetch.wait.max.ms": 100,
    "inter.broker.listener.name": "PEERS",
    "num.network.threads": 1,
    "file.delete.delay.ms": 1000,
}


class ProxiedCluster(Startable):
    """Three brokers behind proxies; serves many runs, one after the other."""

    def __init__(self, directory: Path) -> None:
        """Prepare the brokers and the proxies; logs go to `directory`."""
        self._stack = ExitStack()
        self._reserved: list[socket.socket] = []
        self.kafka = KraftCluster(directory, BROKERS, broker_properties=_PROPERTIES)
        ports = self._ports = {broker_id: free_ports(SLOTS + 1) for broker_id in BROKERS}
        self.slots = [
            Link([ports[b][slot] for b in BROKERS], Framing.KAFKA, free_ports(len(BROKERS))) for slot in range(SLOTS)
        ]
        """The links of the service processes, each to all brokers."""
        self.peers = {broker_id: Link([ports[broker_id][SLOTS]], None) for broker_id in BROKERS}
        """Broker id -> the link of the other brokers to it."""
        for index, broker_id in enumerate(BROKERS):
            advertised = {f"SLOT{n}": link.connect.split(",")[index] for n, link in enumerate(self.slots)}
            advertised["PEERS"] = self.peers[broker_id].connect
            broker = self.kafka.brokers[broker_id]
            advertised["PLAINTEXT"] = broker.address
            names = [*(f"SLOT{n}" for n in range(SLOTS)), "PEERS"]
            addresses = [f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports[broker_id], strict=True)]
            broker.configure(
                {
                    "listeners": ",".join([*addresses, f"PLAINTEXT://{broker.address}"]),
                    "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
                    "listener.security.protocol.map": ",".join(f"{n}:PLAINTEXT" for n in [*advertised, "CONTROLLER"]),
                }
            )
        self.kafka.controller.configure({"broker.session.timeout.ms": BROKER_SESSION_SECONDS * 1000})

    def start(self) -> None:
        """Start the proxies, the controller and the brokers."""
        for link in [*self.slots, *self.peers.values()]:
            self._stack.enter_context(link)
        self._stack.callback(self.kafka.close)
        self.kafka.start()

    def close(self) -> None:
        """Kill the brokers, and remove their directories."""
        self.release_ports()
        self._stack.close()
        self.kafka.close()

    def leader(self, partition: Partition) -> int:
        """Return the broker that leads a partition; -1: none, or the topic does not exist."""
        state = self.kafka.partitions([partition[0]]).get(partition)
        return state.leader if state else -1

    def hold_clients(self, broker_id: int) -> None:
        """Stop forwarding between the services and a broker."""
        for link in self.slots:
            link.hold(BROKERS.index(broker_id))

    def resume_clients(self, broker_id: int) -> None:
        """Forward between the services and a broker again."""
        for link in self.slots:
            link.resume(BROKERS.index(broker_id))

    def end_all(self, kind: FaultKind) -> None:
        """Kill all brokers at once, or freeze them; connections to killed ones are refused."""
        for broker_id, broker in self.kafka.brokers.items():
            if kind is FaultKind.KILL:
                broker.kill()
                self._reserved += map(reserved_port, [broker.port, *self._ports[broker_id]])
                for link in self.slots:
                    link.refuse(BROKERS.index(broker_id))
            else:
                broker.freeze()

    def return_all(self, kind: FaultKind) -> None:
        """Start all brokers again, or thaw them."""
        for broker_id, broker in self.kafka.brokers.items():
            if kind is FaultKind.KILL:
                for link in self.slots:
                    link.accept(BROKERS.index(broker_id))
                broker.start()
            else:
                broker.thaw()

    def release_ports(self) -> None:
        """Close what keeps the ports of killed brokers for them; they listen again."""
        while self._reserved:
            self._reserved.pop().close()

    def serves(self, partition: Partition) -> bool:
        """Whether all brokers are in the cluster, and a partition can commit records."""
        state = self.kafka.partitions([partition[0]]).get(partition)
        return state is not None and not self.away() and state.leader >= 0 and len(state.isr) >= MIN_IN_SYNC

    def away(self) -> set[int]:
        """Return the brokers that do not run, or that the controller has fenced."""
        registered = self.kafka.metadata.brokers()
        return {b for b, broker in self.kafka.brokers.items() if not broker.running or b not in registered}
