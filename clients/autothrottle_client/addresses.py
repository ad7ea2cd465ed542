"""Addresses of replicas: validation, and name resolution in the background. The type to know is `ResolvedNames`."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence

from autothrottle_client.errors import Invalid

Resolve = Callable[[str], Sequence[str]]
"""Resolves `host:port` to a list of `ip:port`; raises OSError if the lookup fails."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[1-9][0-9]{0,4})|unix:(?P<path>[^\s,]+)")


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return addresses, each `host:port` or `unix:path`. A string is a comma-separated list.

    >>> parse_addresses("10.0.0.1:8090, [::1]:8090,unix:/run/autothrottle")
    ('10.0.0.1:8090', '[::1]:8090', 'unix:/run/autothrottle')

    Raises:
        Invalid: an address is malformed, or the list is empty.
    """
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    distinct = tuple(dict.fromkeys(address.strip() for address in given))
    for address in distinct or ("",):
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"] or 1) > 65535 or not address.isprintable():
            raise Invalid(
                f"address {address[:200]!r} is neither host:port (port 1 to 65535) nor a printable unix:path; "
                "give for example 127.0.0.1:8090, or several separated by commas"
            )
    return distinct


def resolved(address: str) -> Sequence[str]:
    """Resolve `host:port` to all its `ip:port`, in the order in which to try them.

    Raises:
        OSError: the lookup fails.
        ValueError: the port is not a number.
    """
    host, _, port = address.rpartition(":")
    ips = [str(info[4][0]) for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in ips]


def _is_name(address: str) -> bool:
    """Whether an address needs a name lookup."""
    if address.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return True
    return False


def is_loopback_host(host: str) -> bool:
    """Whether a host, without port and brackets, is this host's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback(target: str) -> bool:
    """Whether a target is a unix socket or a loopback address, so that no other host can reach or read it."""
    return target.startswith("unix:") or is_loopback_host(target.rpartition(":")[0].strip("[]"))


class ResolvedNames:
    """Lookups of addresses; each runs in its own thread, because name servers may be slow."""

    def __init__(self, addresses: Sequence[str], resolve: Resolve | None) -> None:
        """Store the addresses; the first `look_up` resolves them.

        Args:
            addresses: `host:port` or `unix:path`.
            resolve: resolves names; None: every address is its own target.
        """
        self._resolve: Resolve = resolve or (lambda address: (address,))
        names = [address for address in addresses if resolve and _is_name(address)]
        self._targets_of_addresses: dict[str, Sequence[str]] = {a: () if a in names else (a,) for a in addresses}
        self._looked_up = dict.fromkeys(names, float("-inf"))
        self._running: set[str] = set()
        self._problems: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False

    def close(self) -> None:
        """Let all waits for lookups end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def look_up(self, older_than: float) -> None:
        """Start to look up names whose last lookup is older than `older_than` seconds."""
        with self._changed:
            limit = time.monotonic() - older_than
            due = [a for a, at in self._looked_up.items() if at <= limit and a not in self._running]
            self._running.update(due)
        for address in due:
            threading.Thread(target=self._run, args=(address,), name=f"lookup-{address}", daemon=True).start()

    def wait_for_any(self, seconds: float) -> None:
        """Wait until an address has a target, or no lookup is running."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(self._targets_of_addresses.values()) or not self._running or self._closed, max(seconds, 0)
            )

    def wait_for_all(self, seconds: float) -> None:
        """Wait until no lookup is running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running or self._closed, max(seconds, 0))

    def targets(self) -> dict[str, str]:
        """Return target (`ip:port` or `unix:path`) -> its address, in the order of the addresses."""
        with self._changed:
            targets: dict[str, str] = {}
            for address, names in self._targets_of_addresses.items():
                for target in names:
                    targets.setdefault(target, address)
            return targets

    def problems(self) -> list[str]:
        """Return one sentence for each address without a target."""
        with self._changed:
            return [
                f"{a}: {self._problems.get(a, 'the lookup is still running')}"
                for a, f in self._targets_of_addresses.items()
                if not f
            ]

    def _run(self, address: str) -> None:
        try:
            targets, problem = tuple(self._resolve(address)), "the name has no address"
        except Exception as error:  # any, such as an invalid address of a member: otherwise no lookup would follow
            # An unreachable name server says nothing about the replicas: keep the known ones.
            targets, problem = (), f"the name cannot be resolved: {error}"
        with self._changed:
            self._looked_up[address] = time.monotonic()
            self._running.discard(address)
            self._targets_of_addresses[address] = targets or self._targets_of_addresses[address]
            self._problems[address] = problem
            self._changed.notify_all()
