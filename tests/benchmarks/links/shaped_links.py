"""Rate-limited links between the brokers of the lab: network namespaces, veth pairs and `tc`.

Every broker has a network namespace with one interface. The other end of its veth pair is attached to a bridge on this
machine, where clients and services run. A token bucket shapes each direction at the entrance of the link: one for all
bytes that the broker sends, one for all bytes that it receives.

    with ShapedLinks({1001: 20_000_000, 1002: 10_000_000}) as links:
        KraftCluster(directory, (1001, 1002), places=links.places)
        links.counters()       bytes that each broker has sent and received

It needs Linux, root and the commands `ip` and `tc`; `missing_requirements()` checks them.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from autothrottle.core.errors import Invalid, Unavailable
from autothrottle_lab.servers.kafka import Place
from autothrottle_lab.servers.kafka_kraft import CONTROLLER_ID
from autothrottle_lab.servers.processes import network_cleanup

MTU_BYTES = 9000
"""Large packets, to save CPU time."""

BURST_BYTES = 128 * 1024
"""Bytes sent at once after a pause: a few milliseconds, and more than the largest packet before segmentation."""

QUEUE_SECONDS = 0.05
"""Length of the queue of a full link; packets beyond it are dropped, and TCP slows down."""

_MOST_BROKERS = 200

_RX, _TX = "tx_bytes", "rx_bytes"
"""Kernel counters of bytes that a broker receives and sends: at the other end of the link, directions are swapped."""


class Count(NamedTuple):
    """The bytes transferred in one direction until a point in time."""

    at: float
    """`time.monotonic()`."""
    total: int
    """Bytes."""

    def rate_since(self, earlier: Count) -> float:
        """Return the mean rate since an earlier count, bytes/s."""
        return (self.total - earlier.total) / (self.at - earlier.at)


class CardCounts(NamedTuple):
    """The bytes that a broker's interface has received and sent, without queued and dropped packets."""

    rx: Count
    tx: Count


class ShapedLinks:
    """One symmetric link for each broker; a context manager.

    Names and addresses are unique, so several instances may coexist. The end removes all devices, even if the setup
    failed or this process is killed.
    """

    def __init__(self, rates: Mapping[int, int]) -> None:
        """Prepare links; `rates`: broker id -> bytes/s on the wire, headers included.

        Raises:
            Invalid: the number of brokers is 0 or too large, or a rate is not positive.
        """
        if not 0 < len(rates) <= _MOST_BROKERS or min(rates.values()) <= 0:
            raise Invalid(f"Invalid links {dict(rates)}. Fix: 1 to {_MOST_BROKERS} brokers with rates > 0 bytes/s.")
        token = secrets.token_hex(2)
        self.rates = dict(rates)
        self._bridge = f"at{token}"
        self._names = {broker_id: f"at{token}-{number}" for number, broker_id in enumerate(rates)}
        """Broker id -> name of its namespace and of the link's end on this machine, at most 15 characters."""
        self._hosts: dict[int, str] = {}
        self._gateway = ""
        self._counters: dict[int, tuple[int, int]] = {}
        """Broker id -> open files of its receive and send counters. They stay open so that timestamps are exact."""
        self._stack = ExitStack()

    def __enter__(self) -> ShapedLinks:
        """Set up the links.

        Raises:
            Unavailable: a requirement is missing, or a command failed; the message has the fix.
        """
        if problem := missing_requirements(os.geteuid(), shutil.which):
            raise Unavailable(problem)
        try:
            self._stack.enter_context(
                network_cleanup([self._bridge, *self._names.values()], list(self._names.values()))
            )
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def places(self) -> dict[int, Place]:
        """Where each broker and the controller run. The controller runs on this machine, outside the shaped links."""
        brokers = {
            broker_id: Place(self._hosts[broker_id], ("ip", "netns", "exec", name))
            for broker_id, name in self._names.items()
        }
        return {CONTROLLER_ID: Place(self._gateway), **brokers}

    def counters(self) -> dict[int, CardCounts]:
        """Return the counters of each broker's interface."""
        return {broker_id: CardCounts(_count(rx), _count(tx)) for broker_id, (rx, tx) in self._counters.items()}

    def _build(self) -> None:
        self._gateway, *hosts = _addresses(1 + len(self.rates))
        _run("ip", "link", "add", self._bridge, "mtu", str(MTU_BYTES), "type", "bridge")
        _run("ip", "address", "add", f"{self._gateway}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for (broker_id, name), host in zip(self._names.items(), hosts, strict=True):
            self._hosts[broker_id] = host
            self._add_link(name, host, self.rates[broker_id])
            self._counters[broker_id] = (self._open(name, _RX), self._open(name, _TX))

    def _open(self, link: str, counter: str) -> int:
        descriptor = os.open(Path("/sys/class/net", link, "statistics", counter), os.O_RDONLY)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _add_link(self, name: str, host: str, rate: int) -> None:
        mtu, inside = str(MTU_BYTES), ("ip", "-netns", name)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", name, "mtu", mtu, "type", "veth", "peer", "name", "eth0", "mtu", mtu, "netns", name)
        _run(*inside, "address", "add", f"{host}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run(*inside, "link", "set", device, "up")
        _run("ip", "link", "set", name, "master", self._bridge, "up")
        _run("tc", "-netns", name, *shaping("eth0", rate))
        _run("tc", *shaping(name, rate))


def shaping(device: str, rate: int) -> tuple[str, ...]:
    """Return the arguments of `tc` that limit the egress of a device to `rate` bytes/s.

    >>> " ".join(shaping("eth0", 20_000_000))
    'qdisc add dev eth0 root tbf rate 160000000bit burst 131072 limit 1131072'
    """
    limit = BURST_BYTES + round(rate * QUEUE_SECONDS)
    buckets = ("rate", f"{8 * rate}bit", "burst", str(BURST_BYTES), "limit", str(limit))
    return ("qdisc", "add", "dev", device, "root", "tbf", *buckets)


def _count(descriptor: int) -> Count:
    # Take the time before the read: after it, this thread may wait for the interpreter lock.
    at = time.monotonic()
    return Count(at, int(os.pread(descriptor, 32, 0)))


def missing_requirements(user_id: int, find: Callable[[str], str | None]) -> str:
    """Return the missing requirement of shaped links and its fix, as text; "": all are met.

    Args:
        user_id: user id of this process.
        find: command -> its path, None if not found; for example `shutil.which`.
    """
    if missing := [command for command in ("ip", "tc") if find(command) is None]:
        return f"Shaped links need {' and '.join(missing)}. Fix on Debian and Ubuntu: apt-get install iproute2."
    if user_id != 0:
        return f"Shaped links need root, and this is user {user_id}. Fix: run the command with sudo."
    return ""


def free_network(taken: Sequence[str], choose: Callable[[int], int] = secrets.randbelow) -> ipaddress.IPv4Network:
    """Return a network of 10.128.0.0/9 with 254 addresses that does not overlap the taken ones.

    >>> free_network(["10.128.0.0/24", "192.0.2.2/24"], choose=lambda most: 1)
    IPv4Network('10.128.1.0/24')

    Raises:
        Unavailable: no network is free.
    """
    networks = [ipaddress.IPv4Network(one, strict=False) for one in taken]
    for _ in range(1000):
        found = ipaddress.IPv4Network((int(ipaddress.IPv4Address("10.128.0.0")) + 256 * choose(2**15), 24))
        if not any(found.overlaps(network) for network in networks):
            return found
    raise Unavailable(f"No network of 10.128.0.0/9 is free besides {list(taken)}. Fix: remove one of them.")


def _addresses(count: int) -> list[str]:
    """Return `count` addresses of a network to which this machine has no route."""
    routes = json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    taken = [route["dst"] for route in routes if route["dst"] != "default"]
    return [str(host) for host, _ in zip(free_network(taken).hosts(), range(count), strict=False)]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        fix = "Fix: allow root to create network namespaces (a container needs CAP_NET_ADMIN and CAP_SYS_ADMIN)."
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}. {fix}")
    return done.stdout
