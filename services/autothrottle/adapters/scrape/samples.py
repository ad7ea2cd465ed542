"""The samples of one target, parsed from Prometheus's text format."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from autothrottle.adapters.http.client import server_of
from autothrottle.core.traffic.counters import Series
from autothrottle.core.traffic.exporters import Exporter

_Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""`tx`, `rx`, `speed`, `fact` or `quota`; name of the metric; its labels."""


Scrape = Mapping[_Key, tuple[float, float]]
"""The samples of one response that count: key -> (time, value)."""


_WHOLE_CHARACTERS = 1_000_000
"""Of a longer text only the lines of our metrics are parsed: 1 MB takes 0.5 s, in which the other targets wait."""
_MAX_CHARACTERS = 4_000_000
"""Limit of these lines."""


def scraped(text: str, exporter: Exporter, received: float) -> Scrape:
    """Parse a text; raises ValueError or similar if it is malformed.

    Args:
        text: Prometheus's text format.
        exporter: the metrics to pick.
        received: when the text was received, seconds since the epoch; the time of samples without their own.
    """
    found: dict[_Key, tuple[float, float]] = {}
    for family in text_string_to_metric_families(_relevant(text, exporter)):
        for sample in family.samples:
            # The parser appends _total to the name of a counter that lacks it.
            name = sample.name if sample.name in exporter.names else sample.name.removesuffix("_total")
            if name not in exporter.names:
                continue
            kind = _kind(name, sample.labels, exporter)
            time = received if sample.timestamp is None else float(sample.timestamp)
            if kind:
                found[kind, name, tuple(sorted(sample.labels.items()))] = time, sample.value
    return found


def _kind(name: str, labels: Mapping[str, str], exporter: Exporter) -> str:
    if name == exporter.speed:
        return "speed"
    if name in exporter.facts:
        return "fact"
    named = {**labels, "__name__": name}
    return exporter.direction(named) or ("quota" if exporter.quota_role(named) else "")


def _relevant(text: str, exporter: Exporter) -> str:
    if len(text) <= _WHOLE_CHARACTERS:
        return text
    names = {form for name in exporter.names for form in (name, name.removesuffix("_total"))}
    pattern = rf"^(?:# TYPE )?(?:{'|'.join(map(re.escape, sorted(names)))})[{{ \t].*$"
    lines = "\n".join(re.findall(pattern, text, re.MULTILINE)) + "\n"
    if len(lines) > _MAX_CHARACTERS:
        raise ValueError(f"{len(lines)} characters of counters, and {_MAX_CHARACTERS} are allowed")
    return lines


@dataclass(slots=True)
class Target:
    """One exporter and its samples."""

    url: str
    """Messages show `server` instead: the URL may hold a token."""
    shared_with: Sequence[int] = ()
    """Ids of all brokers with this URL, if there are several. It is not requested."""
    hosts: Sequence[str] = ()
    """The hosts in the broker's registration."""
    problem: str = ""
    """Why the last request failed; "": it did not."""
    scrapes: deque[Scrape] = field(default_factory=deque)

    @property
    def server(self) -> str:
        """Scheme, host and port."""
        return server_of(self.url)

    def add(self, scrape: Scrape, keep: int) -> None:
        """Add a scrape, and drop all but the newest `keep`."""
        self.scrapes.append(scrape)
        while len(self.scrapes) > keep:
            self.scrapes.popleft()

    def series(self, kind: str, mean_seconds: float | None) -> Sequence[Series]:
        """Return the series of a kind, `tx`, `rx`, `speed`, `fact` or `quota`, that the newest scrape contains.

        The name of the metric is the label `__name__`.

        Samples of an exporter that stamps them are repeated until it reads its counters again.
        """
        newest = self.scrapes[-1] if self.scrapes else {}
        return [
            Series({**dict(key[2]), "__name__": key[1]}, self._samples(key), mean_seconds)
            for key in newest
            if key[0] == kind
        ]

    def _samples(self, key: _Key) -> list[tuple[float, float]]:
        found = (scrape[key] for scrape in self.scrapes if key in scrape)
        return list(dict(found).items())
