"""How long fetches of several sizes fill the link of a follower, in a model without jitter.

A follower copies from four leaders beside clients at half of its link, as in `make bench-links`. It checks its throttle
before each fetch, and counts a response when all of it has arrived.

Source: KIP-73, Kafka's ReplicaFetcherThread (one fetch per leader at a time).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autothrottle.core.cluster.configs import fitting_response, is_large_response
from autothrottle_lab.simulation.link import ThrottleMeter

LINK, CLIENTS, TOTAL = 10e6, 5e6, 480e6
"""Rates of the follower's link and of its clients, bytes/s, and the bytes to copy."""

LEADERS, CLIENT_CONNECTIONS = 4, 16
"""Numbers of connections that share the link. When it is full, each gets the same rate."""

STEP_MILLIS = 10


def follow(response: int, ratio: float) -> tuple[float, float, float]:
    """Return (share of full seconds of the link, share of full tenths of a second, duration in seconds).

    Args:
        response: `replica.fetch.response.max.bytes`.
        ratio: the throttle / what clients leave of the link.
    """
    throttle, meter, capacity = round(ratio * (LINK - CLIENTS)), ThrottleMeter(), LINK * STEP_MILLIS / 1000
    left, arriving, fetched = [TOTAL / LEADERS] * LEADERS, [0.0] * LEADERS, [0.0] * LEADERS
    millis, backlog, carried = 0, 0.0, list[float]()
    while any(left) or any(arriving):
        millis += STEP_MILLIS
        for n in range(LEADERS):
            if left[n] and not arriving[n] and meter.available_rate(millis, throttle) >= 0:
                arriving[n] = fetched[n] = min(response, left[n])
                left[n] -= fetched[n]
        busy, wanted = sum(map(bool, arriving)), CLIENTS * STEP_MILLIS / 1000 + backlog
        copied = min(sum(arriving), max(capacity - wanted, capacity * busy / (busy + CLIENT_CONNECTIONS)))
        backlog = wanted - min(wanted, capacity - copied)
        carried.append(copied + wanted - backlog)
        for n in range(LEADERS):
            if arriving[n]:
                arriving[n] -= min(arriving[n], copied / busy)
                if arriving[n] < 1:
                    arriving[n] = 0.0
                    meter.record(millis, fetched[n])
    return full_share(carried, 1000), full_share(carried, 100), millis / 1000


def full_share(carried: Sequence[float], millis: int) -> float:
    """Return the share of periods of this length in which the link carried 98 %."""
    steps = millis // STEP_MILLIS
    periods = [sum(carried[at : at + steps]) for at in range(0, len(carried) - steps, steps)]
    return sum(period >= 0.98 * LINK * millis / 1000 for period in periods) / len(periods)


@pytest.mark.parametrize("ratio", [0.9, 0.8, 0.7, 0.5])
def test_fetch_sizes(ratio: float) -> None:
    throttle = round(ratio * (LINK - CLIENTS))
    fitting = fitting_response(LEADERS, throttle)
    shares = {}
    print(f"\nratio {ratio:g}: response, share of full seconds, of full tenths, duration / bound")
    for response in (fitting, 512 * 1024, 1024 * 1024, 10 * 1024 * 1024):
        full, tenths, seconds = follow(response, ratio)
        shares[response] = tenths
        print(f"  {response / 1024:6.0f} kB  {full:.2f}  {tenths:.2f}  {seconds / (TOTAL / throttle):.2f}")
    assert not is_large_response(fitting, LEADERS, throttle)
    assert shares.pop(fitting) <= 0.1 < min(shares.values())
