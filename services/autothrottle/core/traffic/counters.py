"""Series of samples, and the utilization of a link that they show.

A rate is computed from the first and the last sample since the last reset of a counter, so its interval is exact. A
series without a fresh sample is a missing metric. The types to know are `Series` and `utilization`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.loads import (
    Utilization,
    is_byte_count,
    is_time,
    measured_utilization,
)

STALE_SAMPLES = 3
"""A series is stale when its newest sample is older than this many intervals between its samples."""
MIN_STALE_SECONDS = 10.0
"""A series with a younger sample is not stale."""
MAX_FUTURE_SECONDS = 5.0
"""A sample stamped later than this after the current time comes from a clock that is wrong."""

MIN_RATE_SECONDS = 0.1
"""Samples closer together than this give no rate."""


class SeriesKind(StrEnum):
    """What the samples of a series are."""

    COUNTER = "counter"
    """Bytes since the start of a process or host."""
    RATE = "rate"
    """Bytes per second."""


_RATE_SECONDS = 60.0
"""A rate whose name does not say so is the mean of this many seconds, as OneMinuteRate."""
_COUNTERS = re.compile(
    r".*(?:^|[_:])(total|counte?r?)|net_bytes_(sent|recv)|(node|container)_network_(transmit|receive)_bytes"
)
"""Names that end with the word, those of Telegraf, and those of node_exporter before 0.16."""
_RATES = re.compile(
    r".*?(?:(?P<words>one|five|fifteen)_?minute_?rate|(?:^|[_:])(?P<before>1|5|15)_?m(in(ute)?)?_?rate"
    r"|(?:^|[_:])i?rate_?(?P<number>\d*)(?P<unit>[smh]?)|_per_s(ec(ond)?s?)?)(?:[_:].*)?"
)
_LIFETIME_MEAN = re.compile(r".*mean_?rate")
_MINUTES = {"one": 1, "five": 5, "fifteen": 15}
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class SeriesName:
    """The name of the series that are one member of a sum."""

    metric: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label -> its whole value."""
    mean_seconds: float | None = None
    """None: a counter. Otherwise the series are rates, each the mean of this many seconds."""

    @property
    def said(self) -> SeriesKind | None:
        """What the name says of the samples; None: nothing.

        Count beats PerSec: the counter of the MBean BytesInPerSec may be `bytes_in_per_sec{attribute="Count"}`.
        """
        kinds = set(map(_said, self._words))
        return next((kind for kind in SeriesKind if kind in kinds), None)

    @property
    def _words(self) -> list[str]:
        values = (value for label, value in self.labels.items() if label != "topic")
        return [_words(text) for text in (self.metric, *values)]

    def of_kind(self, kind: SeriesKind | None) -> SeriesName:
        """Return this name as that of a counter or a rate; None: as the name says.

        The type in an exporter's text does not decide: JMX exporters report counters as gauges and untyped ones, and
        the answers of Prometheus have no type. MBeans such as BytesInPerSec have a counter and rates.

        Raises:
            Invalid: the name does not say it, or is a mean since the start of the broker. The message is a predicate.
        """
        words, said = self._words, self.said
        if (kind or said) is SeriesKind.COUNTER:
            return replace(self, mean_seconds=None)
        if any(map(_LIFETIME_MEAN.fullmatch, words)):
            raise Invalid(
                "is a mean since the start of the broker, which does not follow the load. Fix: name its Count"
            )
        if kind or said:
            return replace(self, mean_seconds=next(filter(None, map(_seconds_of_mean, words)), _RATE_SECONDS))
        raise Invalid(
            "is a counter or a rate, and its name does not say which. Fix: --broker-series-kind=counter for bytes "
            "since a start, --broker-series-kind=rate for bytes per second"
        )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels, its `__name__` among them, has this name."""
        return labels.get("__name__") == self.metric and self.labels.items() <= labels.items()

    def __str__(self) -> str:
        labels = ",".join(f'{label}="{value}"' for label, value in self.labels.items())
        return f"{self.metric}{{{labels}}}" if labels else self.metric


def _words(name: str) -> str:
    """Return a name in lower case, with `_` between the words of CamelCase but for the MBeans' suffix PerSec."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])(?!PerSec)(?<!Per(?=Sec))", "_", name).lower()


def _said(words: str) -> SeriesKind | None:
    """Return what a name says of its samples."""
    if _COUNTERS.fullmatch(words):
        return SeriesKind.COUNTER
    return SeriesKind.RATE if _RATES.fullmatch(words) or _LIFETIME_MEAN.fullmatch(words) else None


def _seconds_of_mean(words: str) -> float:
    """Return the seconds in the name of a rate; 0: it names none."""
    match = _RATES.fullmatch(words)
    if match is None:
        return 0.0
    minutes = _MINUTES.get(match["words"] or "", 0) or int(match["before"] or 0)
    return minutes * 60.0 or int(match["number"] or 0) * float(_UNIT_SECONDS.get(match["unit"] or "", 0))


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one direction of one device or process."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]
    """(seconds since the epoch, value), oldest first."""
    mean_seconds: float | None = None
    """None: a counter of bytes. Otherwise each sample is the mean rate, bytes/s, of this many seconds before it."""
    fault: str = ""
    """Why the samples cannot be used, as a predicate; "": they can."""

    @property
    def newest(self) -> float:
        """The newest value; 0 without a sample."""
        return self.samples[-1][1] if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class _Rate:
    value: float
    start: float
    end: float


def utilization(series: Sequence[Series], now: float, names: Sequence[SeriesName] = ()) -> Utilization:
    """Return the traffic of one direction of a link: the sum over its devices or processes.

    A stale series does not count beside a fresh one of the same name: it belongs to a device or process that has gone.
    A fresh one without a rate makes the sum unknown.

    Args:
        series: at least one.
        now: seconds since the epoch, on the clock of the samples.
        names: the members of the sum, each of which must have a fresh rate; (): the series may have any names.

    Raises:
        Missing: no series, or none of one name, is fresh, or a fresh one has no rate yet. The message is a predicate.
        Invalid: a sample is not a number of bytes or has no usable time, or the rate is more than a link carries.
    """
    rates = _rates_of_members(series, now, names) if names else _rates(series, now)
    start, end = max(rate.start for rate in rates), max(rate.end for rate in rates)
    start = start if start < end else min(rate.start for rate in rates)
    return measured_utilization(sum(rate.value for rate in rates), start, end)


def _rates_of_members(series: Sequence[Series], now: float, names: Sequence[SeriesName]) -> list[_Rate]:
    rates = []
    for name in names:
        member = [one for one in series if name.matches(one.labels)]
        if not member:
            raise Missing(
                f"has no series {name}, so the sum of its traffic is unknown. Fix: let the exporter report this "
                "series, or set --broker-exporter, or --broker-tx-series and --broker-rx-series"
            )
        try:
            rates += _rates(member, now)
        except Missing as error:
            raise Missing(f"has the series {name}, which {error}" if len(names) > 1 else str(error)) from None
    return rates


def _rates(series: Sequence[Series], now: float) -> list[_Rate]:
    rates: list[_Rate] = []
    problems: list[Missing] = []
    for device in series:
        try:
            _check_samples(device, now)
        except Missing as error:
            problems.append(error)
        else:
            rates.append(_rate(device))
    if not rates:
        raise problems[0]
    return rates


def _rate(series: Series) -> _Rate:
    samples = series.samples
    end, value = samples[-1]
    if series.mean_seconds is not None:
        return _Rate(value, end - series.mean_seconds, end)
    since_reset = _since_reset(samples)
    start, first = since_reset[0]
    if end <= start:
        what = "has one sample" if len(samples) == len(since_reset) else "has a counter that was reset, and one sample"
        raise Missing(f"{what}; a rate needs two")
    if end - start < MIN_RATE_SECONDS:
        raise Missing(f"has samples {end - start:.4f} s apart; a rate needs {MIN_RATE_SECONDS} s")
    return _Rate((value - first) / (end - start), start, end)


def _check_samples(series: Series, now: float) -> None:
    if series.fault:
        raise Invalid(series.fault)
    samples, stamps = series.samples, [stamp for stamp, _ in series.samples]
    if bad_values := [value for _, value in samples if not is_byte_count(value)]:
        raise Invalid(f"has a sample of {bad_values[-1]} bytes{'/s' if series.mean_seconds else ''}; it must be >= 0")
    if bad_times := [stamp for stamp in stamps if not is_time(stamp)]:
        raise Invalid(f"has a sample stamped {bad_times[-1]}; a time is in seconds since 1970, until the year 9999")
    if not samples:
        raise Missing("has no sample")
    spacing = median(later - earlier for earlier, later in pairwise(stamps)) if len(stamps) > 1 else 0.0
    age, limit = now - stamps[-1], max(STALE_SAMPLES * spacing, MIN_STALE_SECONDS)
    if age > limit:
        raise Missing(
            f"has no fresh sample: the newest is stamped {age:.0f} s ago, and {limit:.0f} s are allowed. Fix: check "
            "that the target answers and that its clock is right"
        )
    if age < -MAX_FUTURE_SECONDS:
        raise Missing(f"has a sample stamped {-age:.0f} s in the future. Fix: correct the clock of the target")


def _since_reset(samples: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return the samples since the last reset: a smaller value than before means that the counter started again."""
    for index in range(len(samples) - 1, 0, -1):
        if samples[index][1] < samples[index - 1][1]:
            return samples[index:]
    return samples


def newest_rate(series: Iterable[Series], now: float) -> Utilization | None:
    """Return the newest fresh rate of some series that report the same; None: none of them is fresh.

    Raises:
        Invalid: a sample is not a rate or has no usable time. The message is a predicate.
    """
    rates: list[Utilization] = []
    for one in series:
        with suppress(Missing):
            rates.append(utilization([one], now))
    return max(rates, key=lambda rate: rate.end, default=None)
