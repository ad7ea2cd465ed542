"""A model of the network: links that clients and replication share, in steps of a second, for many runs at once.

It is a fluid model. Flows share links max-min fair under throttles and link capacity. On an overloaded link, clients
and replication are cut in proportion, and deferred client bytes wait. One array holds the link sides of all runs, and
one array holds their flows. Runs share no link, so a step costs hardly more for fifty runs than for one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indexes = NDArray[np.int64]


class Flows(NamedTuple):
    """The flows with bytes left to copy."""

    source: Indexes
    """Index of the outbound link side of the leader."""
    target: Indexes
    """Index of the inbound link side of the follower."""
    want: Array
    """Maximum rate of each flow, MB/s."""


def fair_shares(flows: Flows, limit: Array) -> Array:
    """Return the max-min fair rate of each flow: a flow can only get more at the expense of a slower one.

    Each round fills all link sides whose share is the smallest along all of their flows. Filling one link side per
    round would take as many rounds as there are link sides.
    """
    sides, count = len(limit), len(flows.want)
    rates, left, open_ = np.zeros(count), np.maximum(limit, 0.0), np.arange(count)
    source, target, want = flows
    while len(open_):
        using = np.bincount(source, minlength=sides) + np.bincount(target, minlength=sides)
        share = np.divide(left, using, out=np.full(sides, np.inf), where=using > 0)
        out, into = share[source], share[target]
        least = np.minimum(out, into)
        demand_met = want <= least
        blocked = np.bincount(source[(least < out * (1 - 1e-9)) | demand_met], minlength=sides)
        blocked += np.bincount(target[(least < into * (1 - 1e-9)) | demand_met], minlength=sides)
        full = (blocked == 0) & (using > 0)
        done = full[source] | full[target] | demand_met
        granted = np.minimum(least[done], want[done])
        rates[open_[done]] = granted
        left -= np.bincount(source[done], granted, sides) + np.bincount(target[done], granted, sides)
        np.maximum(left, 0.0, out=left)
        remaining = ~done
        open_, source, target, want = open_[remaining], source[remaining], target[remaining], want[remaining]
    return rates


def traffic(flows: Flows, rates: Array, sides: int) -> Array:
    """Return the replication traffic of each link side, MB/s."""
    total: Array = np.bincount(flows.source, rates, sides).astype(float) + np.bincount(flows.target, rates, sides)
    return total


def contended_shares(flows: Flows, wished: Array, allowed: Array, capacity: Array, clients: Array) -> Array:
    """Return the rate of each flow on overloaded links, MB/s.

    Args:
        flows: flows with bytes left.
        wished: fair rates under the throttles, without clients, MB/s.
        allowed: limit of each link side by its throttle and capacity, MB/s.
        capacity: capacity of each link side, MB/s.
        clients: current client demand on each link side, MB/s.
    """
    wanted = traffic(flows, wished, len(capacity))
    demand = clients + wanted
    fair = np.where(demand > capacity, capacity * wanted / np.maximum(demand, 1e-9), capacity - clients)
    return fair_shares(flows, np.minimum(allowed, fair))
