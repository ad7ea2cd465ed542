"""Hosts for a test: network namespaces with their own host name, that reach one another and servers by names.

It needs Linux, root and Debian's iproute2, see `NEEDS_HOSTS`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from autothrottle_lab.servers.kafka import Place
from autothrottle_lab.servers.kafka_kraft import CONTROLLER_ID
from tests.benchmarks.links.shaped_links import ShapedLinks, missing_requirements

_PROBLEM = missing_requirements(os.geteuid(), shutil.which)
NEEDS_HOSTS = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM or "-")

_LINK_BYTES_PER_SECOND = 100_000_000
_ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
"""The mount is visible inside the namespace only: `ip netns exec` has made a mount namespace of its own."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host; its processes see its own name, and the names of all hosts and servers."""

    name: str
    place: Place
    """Its address, and the words before a command that runs there with this process's environment."""

    def command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the command that runs a program there with exactly these variables."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        return [*self.place.command_prefix, "/usr/bin/env", "-i", *variables, *arguments]


@dataclass(frozen=True, slots=True)
class Network:
    """Some hosts, and the machine that they reach."""

    machine: Place
    """This machine, where servers can listen."""
    hosts: tuple[Host, ...]


@contextmanager
def network(directory: Path, names: Sequence[str], servers: Sequence[str] = ()) -> Iterator[Network]:
    """Create hosts with these names; the names of `servers` stand for this machine."""
    with ShapedLinks(dict.fromkeys(range(len(names)), _LINK_BYTES_PER_SECOND)) as links:
        places = links.places
        machine = places[CONTROLLER_ID]
        addresses = {name: places[number].host for number, name in enumerate(names)}
        addresses |= dict.fromkeys(servers, machine.host)
        file = directory / "hosts"
        lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **addresses}.items()]
        file.write_text("".join(lines))

        def host(number: int, name: str) -> Host:
            enter = ("unshare", "--uts", "sh", "-c", _ENTER, name, str(file))
            return Host(name, Place(places[number].host, (*places[number].command_prefix, *enter)))

        yield Network(machine, tuple(host(number, name) for number, name in enumerate(names)))
