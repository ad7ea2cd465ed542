"""Links of given speed between the brokers of the lab: network namespaces, veth pairs and `tc`.

Every broker has a namespace with one network card; the other end of its link is plugged into a bridge on this
machine, where clients and services are. Either direction is shaped by a token bucket where it enters the link: what
a broker sends, to whom ever, shares one, and what it receives the other.

    with ShapedLinks({1001: 20_000_000, 1002: 10_000_000}) as links:
        KraftCluster(directory, (1001, 1002), places=links.places)
        links.counters()       what each broker's card has sent and received

It needs Linux, root and the commands `ip` and `tc`; `unmet()` says what is missing.
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
from autothrottle.lab.kafka_server import Place
from autothrottle.lab.kraft import CONTROLLER_ID
from autothrottle.lab.processes import network_pieces

MTU_BYTES = 9000
"""Few large packets: the machine has better things to do."""

BURST_BYTES = 128 * 1024
"""What goes out at once after a pause: a few milliseconds, and more than the largest packet before it is cut."""

QUEUE_SECONDS = 0.05
"""What waits in front of a full link; more is dropped, and TCP slows down."""

_MOST_BROKERS = 200

_RX, _TX = "tx_bytes", "rx_bytes"
"""Kernel's names of what a broker receives and sends: the other end of its link counts the other way round."""


class Count(NamedTuple):
    """What has passed one way until a moment."""

    at: float
    """`time.monotonic()`."""
    total: int
    """Bytes."""

    def rate_since(self, earlier: Count) -> float:
        """Return what has passed since an earlier count, bytes/s."""
        return (self.total - earlier.total) / (self.at - earlier.at)


class CardCounts(NamedTuple):
    """What a broker's card has received and sent; what waits or was dropped is not in it."""

    rx: Count
    tx: Count


class ShapedLinks:
    """One link for each broker, as fast in one direction as in the other; a context manager.

    Names and addresses are new each time, so that several may stand side by side. All of it is taken away at the
    end, also when building it failed, and when this process is killed.
    """

    def __init__(self, rates: Mapping[int, int]) -> None:
        """Prepare links; `rates`: broker id -> bytes/s, what crosses the wire with all headers.

        Raises:
            Invalid: no broker, too many, or a rate that is not positive.
        """
        if not 0 < len(rates) <= _MOST_BROKERS or min(rates.values()) <= 0:
            raise Invalid(f"Links {dict(rates)} cannot be. Fix: 1 to {_MOST_BROKERS} brokers with rates > 0 bytes/s.")
        token = secrets.token_hex(2)
        self.rates = dict(rates)
        self._bridge = f"at{token}"
        self._names = {broker_id: f"at{token}-{number}" for number, broker_id in enumerate(rates)}
        """Both of the namespace and of the link's end on this machine, at most 15 characters."""
        self._hosts: dict[int, str] = {}
        self._gateway = ""
        self._counters: dict[int, tuple[int, int]] = {}
        """Broker id -> open files of what it receives and sends: opening them each time would make moments inexact."""
        self._stack = ExitStack()

    def __enter__(self) -> ShapedLinks:
        """Build them.

        Raises:
            Unavailable: something is missing, or the system refuses; says what to do.
        """
        if problem := unmet(os.geteuid(), shutil.which):
            raise Unavailable(problem)
        try:
            self._stack.enter_context(network_pieces([self._bridge, *self._names.values()], list(self._names.values())))
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def places(self) -> dict[int, Place]:
        """Where each broker runs, and the controller: on this machine, whose end of a link is not shaped."""
        brokers = {
            broker_id: Place(self._hosts[broker_id], ("ip", "netns", "exec", name))
            for broker_id, name in self._names.items()
        }
        return {CONTROLLER_ID: Place(self._gateway), **brokers}

    def counters(self) -> dict[int, CardCounts]:
        """Return what each broker's card has received and sent."""
        return {broker_id: CardCounts(_count(rx), _count(tx)) for broker_id, (rx, tx) in self._counters.items()}

    def _build(self) -> None:
        self._gateway, *hosts = _addresses(1 + len(self.rates))
        _run("ip", "link", "add", self._bridge, "mtu", str(MTU_BYTES), "type", "bridge")
        _run("ip", "address", "add", f"{self._gateway}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for (broker_id, name), host in zip(self._names.items(), hosts, strict=True):
            self._hosts[broker_id] = host
            self._plug(name, host, self.rates[broker_id])
            self._counters[broker_id] = (self._open(name, _RX), self._open(name, _TX))

    def _open(self, link: str, counter: str) -> int:
        opened = os.open(Path("/sys/class/net", link, "statistics", counter), os.O_RDONLY)
        self._stack.callback(os.close, opened)
        return opened

    def _plug(self, name: str, host: str, rate: int) -> None:
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
    """Return what `tc` is told so that a device sends no more than `rate` bytes/s.

    >>> " ".join(shaping("eth0", 20_000_000))
    'qdisc add dev eth0 root tbf rate 160000000bit burst 131072 limit 1131072'
    """
    limit = BURST_BYTES + round(rate * QUEUE_SECONDS)
    buckets = ("rate", f"{8 * rate}bit", "burst", str(BURST_BYTES), "limit", str(limit))
    return ("qdisc", "add", "dev", device, "root", "tbf", *buckets)


def _count(opened: int) -> Count:
    # The moment is that before the reading: after it this thread may have to wait for others of its process.
    at = time.monotonic()
    return Count(at, int(os.pread(opened, 32, 0)))


def unmet(user_id: int, find: Callable[[str], str | None]) -> str:
    """Return what is missing for shaped links and the fix, in a sentence; "" if nothing is.

    Args:
        user_id: of this process.
        find: command -> where it is, None if nowhere; `shutil.which`.
    """
    if missing := [command for command in ("ip", "tc") if find(command) is None]:
        return f"Shaped links need {' and '.join(missing)}. Fix on Debian and Ubuntu: apt-get install iproute2."
    if user_id != 0:
        return f"Shaped links need root, and this is user {user_id}. Fix: run the command with sudo."
    return ""


def free_network(taken: Sequence[str], choose: Callable[[int], int] = secrets.randbelow) -> ipaddress.IPv4Network:
    """Return a network of 10.128.0.0/9 with 254 addresses that touches none of those taken.

    >>> free_network(["10.128.0.0/24", "192.0.2.2/24"], choose=lambda most: 1)
    IPv4Network('10.128.1.0/24')

    Raises:
        Unavailable: none was found.
    """
    networks = [ipaddress.IPv4Network(one, strict=False) for one in taken]
    for _ in range(1000):
        found = ipaddress.IPv4Network((int(ipaddress.IPv4Address("10.128.0.0")) + 256 * choose(2**15), 24))
        if not any(found.overlaps(network) for network in networks):
            return found
    raise Unavailable(f"No network of 10.128.0.0/9 is free beside {list(taken)}. Fix: take one of them away.")


def _addresses(count: int) -> list[str]:
    """Return so many addresses of a network that this machine has no route to."""
    routes = json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    taken = [route["dst"] for route in routes if route["dst"] != "default"]
    return [str(host) for host, _ in zip(free_network(taken).hosts(), range(count), strict=False)]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        fix = "Fix: run it where root may make network namespaces (a container needs CAP_NET_ADMIN and CAP_SYS_ADMIN)."
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}. {fix}")
    return done.stdout
