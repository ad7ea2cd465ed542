"""The load of each broker, from the series of a metrics source.

Unusable series of one broker are a problem of that broker; the loads of the others are returned. The type to know is
`SeriesReading`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.broker_matching import BrokerMatching
from autothrottle.core.traffic.capacity import CapacityLimits, capacity_of
from autothrottle.core.traffic.counters import Series, largest, utilization
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization, by_broker

_PART_LABELS = frozenset({"__name__", "device", "interface", "name", "id", "image"})
"""Labels that differ between series of one broker, which are summed up; all others name the target."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SeriesReading:
    """All series of one read."""

    matching: BrokerMatching
    limits: CapacityLimits
    now: float
    """Time of the read, seconds since the epoch, on the clock of the samples."""
    series: Mapping[str, Sequence[Series]]
    """Name of the query for sent and for received bytes, in this order, -> its series."""
    speeds: Sequence[Series] = ()
    """Speed of each device, bytes/s."""

    def loads(self) -> Loads:
        """Return the loads. A registered broker without a series is a problem."""
        found = {query: self._by_broker(series) for query, series in self.series.items()}
        speeds = self._by_broker(self.speeds)
        matched = (broker_id for series in found.values() for broker_id in series if broker_id is not None)

        def load(broker_id: int) -> BrokerLoad:
            outbound, inbound = (self._utilization(broker_id, query, found[query]) for query in self.series)
            return broker_load(broker_id, outbound, inbound, largest(speeds.get(broker_id, ())), self.limits)

        brokers, problems = by_broker(sorted({*self.matching.registered, *matched}), load)
        return Loads(brokers, problems, self._warnings(found))

    def _by_broker(self, series: Iterable[Series]) -> dict[int | None, list[Series]]:
        """Return broker id -> its series; None -> the series without a broker."""
        found: dict[int | None, list[Series]] = {}
        for one in series:
            found.setdefault(self.matching.broker_of(one.labels), []).append(one)
        return found

    def _utilization(self, broker_id: int, query: str, found: Mapping[int | None, Sequence[Series]]) -> Utilization:
        targets: dict[str, list[Series]] = {}
        for one in found.get(broker_id, ()):
            targets.setdefault(_target(one), []).append(one)
        if not targets:
            raise Missing(self._no_series(broker_id, query, found.get(None, ())))
        rates: dict[str, Utilization] = {}
        problems = []
        for target, series in targets.items():
            try:
                rates[target] = broker_utilization(broker_id, f"{target} in --{query}", series, self.now)
            except Missing as error:  # for example a pod that now runs on another host
                problems.append(error)
        if len(rates) > 1:
            raise Invalid(
                f"broker {broker_id} has {len(rates)} targets in --{query}: {_shown(rates)}. Fix: select one with "
                "--prometheus-selector or another query"
            )
        if not rates:
            raise problems[0]
        return next(iter(rates.values()))

    def _no_series(self, broker_id: int, query: str, unmatched: Sequence[Series]) -> str:
        hosts = ", ".join(self.matching.registered.get(broker_id, ())) or "unknown"
        targets = dict.fromkeys(map(_target, unmatched))
        others = f"{len(targets)} targets match no broker: {_shown(targets)}" if targets else "check the query"
        fix = ". Fix: name the target in --broker-map, or set --broker-label" if targets else ""
        return f"broker {broker_id} (hosts: {hosts}) matches no series of --{query}; {others}{fix}"

    def _warnings(self, found: Mapping[str, Mapping[int | None, Sequence[Series]]]) -> tuple[str, ...]:
        """Name unmatched targets and empty queries if the registered brokers are unknown: no broker's problem does."""
        if self.matching.registered:
            return ()
        empty = tuple(f"--{query} returns no series; check the query" for query, series in found.items() if not series)
        unmatched = {query: series[None] for query, series in found.items() if None in series}
        return empty + tuple(
            f"series of --{query} match no broker: {_shown(dict.fromkeys(map(_target, series)))}. Fix: name them in "
            "--broker-map, or set --broker-label"
            for query, series in unmatched.items()
        )


def broker_utilization(broker_id: int, where: str, series: Sequence[Series], now: float) -> Utilization:
    """Return the traffic of one direction; errors name the broker and `where` its series are."""
    try:
        return utilization(series, now)
    except (Invalid, Missing) as error:
        raise type(error)(f"broker {broker_id} ({where}) {error}") from None


def broker_load(
    broker_id: int, outbound: Utilization, inbound: Utilization, speed: float, limits: CapacityLimits
) -> BrokerLoad:
    """Return the load of a broker; `speed` of its device is bytes/s, 0 if unknown.

    Raises:
        Missing: the capacity is unknown.
    """
    device = Capacity(round(speed), round(speed)) if speed >= 1 else None
    return BrokerLoad(broker_id, capacity_of(broker_id, None, device, limits), outbound, inbound)


def _target(series: Series) -> str:
    labels = {name: value for name, value in sorted(series.labels.items()) if name not in _PART_LABELS}
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _shown(targets: Iterable[str]) -> str:
    names = list(targets)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
