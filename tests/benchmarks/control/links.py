"""The model of the network: links that clients and replication share, second by second, for many moves at once.

A fluid one: shares between flows are max-min fair under throttles and links; where a link is asked for more than it
has, clients and replication give way in proportion, and what clients did not get waits. The ports and flows of all
moves stand in one row each: moves do not touch, so that a step costs hardly more for fifty than for one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indexes = NDArray[np.int64]


class Flows(NamedTuple):
    """The flows that still have something to send."""

    source: Indexes
    """Port of the leader."""
    target: Indexes
    """Port of the destination."""
    want: Array
    """What each could send at most, MB/s."""


def fair_shares(flows: Flows, limit: Array) -> Array:
    """Return the max-min fair rate of each flow: none can grow but by a smaller one's loss.

    In every turn all ports fill up at once that have the smallest share among those that their flows go through; to
    fill one port after the other takes as many turns as there are ports.
    """
    ports, count = len(limit), len(flows.want)
    rates, left, open_ = np.zeros(count), np.maximum(limit, 0.0), np.arange(count)
    source, target, want = flows
    while len(open_):
        using = np.bincount(source, minlength=ports) + np.bincount(target, minlength=ports)
        share = np.divide(left, using, out=np.full(ports, np.inf), where=using > 0)
        out, into = share[source], share[target]
        least = np.minimum(out, into)
        modest = want <= least
        waits = np.bincount(source[(least < out * (1 - 1e-9)) | modest], minlength=ports)
        waits += np.bincount(target[(least < into * (1 - 1e-9)) | modest], minlength=ports)
        full = (waits == 0) & (using > 0)
        done = full[source] | full[target] | modest
        given = np.minimum(least[done], want[done])
        rates[open_[done]] = given
        left -= np.bincount(source[done], given, ports) + np.bincount(target[done], given, ports)
        np.maximum(left, 0.0, out=left)
        stays = ~done
        open_, source, target, want = open_[stays], source[stays], target[stays], want[stays]
    return rates


def through(flows: Flows, rates: Array, ports: int) -> Array:
    """Return what goes through each port."""
    total: Array = np.bincount(flows.source, rates, ports).astype(float) + np.bincount(flows.target, rates, ports)
    return total


def contended_shares(flows: Flows, wished: Array, allowed: Array, capacity: Array, clients: Array) -> Array:
    """Return the rate of each flow where links are asked for more than they have.

    Args:
        flows: what still sends.
        wished: fair rates under throttles alone, as if there were no clients.
        allowed: what throttle and link leave each port, MB/s.
        capacity: of each port.
        clients: what clients ask of each port now, MB/s.
    """
    wanted = through(flows, wished, len(capacity))
    asked = clients + wanted
    fair = np.where(asked > capacity, capacity * wanted / np.maximum(asked, 1e-9), capacity - clients)
    return fair_shares(flows, np.minimum(allowed, fair))
