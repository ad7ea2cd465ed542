"""The exporters of the brokers as the source of loads: their targets, samples and rates."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families
from urllib3 import BaseHTTPResponse

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.http.client import Call, Failure, HttpClient, read_body, server_of
from autothrottle.adapters.http.login import CurrentLogin, HttpLogin
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.core.errors import AutothrottleError, Missing, Unavailable
from autothrottle.core.traffic.broker_matching import host_of
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import Series
from autothrottle.core.traffic.exporters import QUOTA_SECONDS, Exporter
from autothrottle.core.traffic.loads import Loads, Utilization, by_broker
from autothrottle.core.traffic.series_loads import HostLoad, HostSeries, broker_utilization, loads_of, with_quota_rates

log = logging.getLogger(__name__)

CONCURRENT_REQUESTS = 64
MAX_TARGETS = 10_000
_FIRST_SCRAPES = 2
"""A rate needs two samples; the first read waits for them."""
_FIRST_PAUSE_SECONDS = 1.0
"""Time between the first two rounds: a cycle waits a few seconds for its loads."""
_HOSTS_TIMEOUT = timedelta(seconds=2)
"""Also the time that a stopping service may wait for the brokers' hosts."""

_Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""`tx`, `rx`, `speed`, `fact` or `quota`; name of the metric; its labels."""

Scrape = Mapping[_Key, tuple[float, float]]
"""The samples of one response that count: key -> (time, value)."""

_WHOLE_CHARACTERS = 1_000_000
"""Of a longer text only the lines of our metrics are parsed: 1 MB takes 0.5 s, in which the other targets wait."""
_MAX_CHARACTERS = 4_000_000
"""Limit of these lines."""


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """What to request, and how often."""

    url: str
    """With {host} for the host in a broker's registration and {broker} for its id."""
    exporter: Exporter
    interval: timedelta = timedelta(seconds=5)
    window: timedelta = timedelta(seconds=12)
    """Length of the interval that the rates cover, rounded up to whole scrape intervals."""
    broker_map: Mapping[str, int] = field(default_factory=dict)
    """Host -> broker id, instead of the host in the broker's registration."""
    ca_file: str = ""
    """PEM file with the authorities of the exporters' certificates; "": those of the system."""
    token_file: str = ""
    """File with a bearer token, read again when it changes; "": none."""
    user_file: str = ""
    """File with `user:password` for basic authentication; "": none."""


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
    """The newest ones."""

    @property
    def server(self) -> str:
        """Scheme, host and port."""
        return server_of(self.url)

    def series(
        self, kind: str, mean_seconds: Callable[[Mapping[str, str]], float | None] = lambda labels: None
    ) -> Sequence[Series]:
        """Return the series of a kind, `tx`, `rx`, `speed`, `fact` or `quota`, that the newest scrape contains.

        The name of the metric is the label `__name__`.

        Samples of an exporter that stamps them are repeated until it reads its counters again.
        """
        newest = self.scrapes[-1] if self.scrapes else {}
        labels = {key: {**dict(key[2]), "__name__": key[1]} for key in newest if key[0] == kind}
        return [Series(its_labels, self._samples(key), mean_seconds(its_labels)) for key, its_labels in labels.items()]

    def _samples(self, key: _Key) -> list[tuple[float, float]]:
        found = (scrape[key] for scrape in self.scrapes if key in scrape)
        return list(dict(found).items())


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


class ScrapedMetrics:
    """The brokers' exporters (a `LoadSource`). `close` ends its threads."""

    def __init__(
        self,
        settings: ScrapeSettings,
        capacity_limits: CapacityLimits,
        hosts: BrokerHosts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._limits = capacity_limits
        self._hosts = hosts
        self._clock = clock
        self._interval = settings.interval.total_seconds()
        self._keep = math.ceil(settings.window / settings.interval) + 1
        login = HttpLogin("scrape", settings.token_file, settings.user_file)
        self._login, self._advice = CurrentLogin(login), login.advice
        self._client = HttpClient("scrape", CONCURRENT_REQUESTS, ca_file=settings.ca_file, most_servers=MAX_TARGETS)
        self._changed = threading.Condition()
        self._targets: dict[int, Target] = {}
        self._rounds = 0
        self._warnings: tuple[str, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrape-rounds", daemon=True)
        self._thread.start()

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files that are read again when they change."""
        return self._login.credentials(self._client)

    def close(self) -> None:
        """End all running requests and threads."""
        self._stopped.set()
        self._client.close()
        self._thread.join()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        """Return the loads of the newest window; only the first read waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._rounds >= _FIRST_SCRAPES, timeout.total_seconds() * 0.95)
            return self._loads()

    def _loads(self) -> Loads:
        hosts, problems = by_broker(sorted(self._targets), self._load)
        quotas = {b: target.series("quota", lambda labels: QUOTA_SECONDS) for b, target in self._targets.items()}
        loads = loads_of(hosts, problems, self._warnings)
        return with_quota_rates(loads, quotas, self._settings.exporter, self._clock())

    def _load(self, broker_id: int) -> HostLoad:
        target, exporter = self._targets[broker_id], self._settings.exporter
        traffic = {kind: target.series(kind, exporter.mean_seconds) for kind in ("tx", "rx")}
        host = HostSeries(traffic, target.series("speed"), target.series("fact"), target.hosts)

        def measured(kind: str, series: Sequence[Series]) -> Utilization:
            return self._utilization(broker_id, target, kind, series)

        try:
            _check_owner(broker_id, target)
            return host.load(broker_id, exporter, measured, self._limits.of_device(broker_id), self._clock())
        except AutothrottleError as error:
            raise type(error)(_with_cause(str(error), target.problem)) from None

    def _utilization(self, broker_id: int, target: Target, kind: str, series: Sequence[Series]) -> Utilization:
        names = self._settings.exporter.names_of(kind)
        if not series:
            raise Missing(
                f"broker {broker_id} ({target.server}) has no sample of {' or '.join(map(str, names))}; check "
                "--scrape-url and --broker-exporter"
            )
        return broker_utilization(broker_id, f"{target.server}, {kind}", series, self._clock(), names)

    # The background thread.

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stopped.is_set():
            try:
                self._scrape_all(begin + self._interval)
            except Exception as error:  # a bug must not end the thread: all samples would become stale
                log.exception("Reading the exporters failed unexpectedly; the next round tries again")
                kind = type(error).__name__
                with self._changed:
                    self._warnings = (f"the last round of reading the exporters failed unexpectedly ({kind})",)
            pause = self._interval if self._rounds >= _FIRST_SCRAPES else min(self._interval, _FIRST_PAUSE_SECONDS)
            begin = max(begin + pause, time.monotonic())
            self._stopped.wait(begin - time.monotonic())

    def _scrape_all(self, deadline: float) -> None:
        registered, warnings = self._hosts.read(min(self._settings.interval / 4, _HOSTS_TIMEOUT))
        targets = self._targets_of(registered)
        try:
            headers, problem = self._login.headers(), ""
        except Unavailable as error:  # at the start; later the last good content counts
            headers, problem = {}, str(error)
        with self._changed:
            self._targets, self._warnings = targets, (*warnings, *filter(None, [problem]))
            self._rounds += bool(problem)
            self._changed.notify_all()
        if problem:
            return
        # Those that failed come last, so that they cannot occupy all threads.
        order = sorted((t for t in targets.values() if not t.shared_with), key=lambda target: bool(target.problem))
        try:
            answers = self._client.run([self._call(t, headers) for t in order], deadline, stop_at_failure=False)
        except Unavailable:
            return  # closed
        finally:
            self._client.drop_idle_connections()
        with self._changed:
            for target, answer in zip(order, answers, strict=True):
                target.problem = answer.reason if isinstance(answer, Failure) else ""
            self._rounds += 1
            self._changed.notify_all()

    def _targets_of(self, registered: Mapping[int, Sequence[str]]) -> dict[int, Target]:
        """Return broker id -> target, with the samples of targets that are known."""
        hosts = {b: some[0] if some else "" for b, some in registered.items()}
        hosts |= {broker_id: host_of(name) for name, broker_id in self._settings.broker_map.items()}
        template = self._settings.url
        urls = {b: template.replace("{host}", _in_url(h)).replace("{broker}", str(b)) for b, h in hosts.items()}
        counts = Counter(urls.values())
        found = {}
        for broker_id, url in urls.items():
            known = self._targets.get(broker_id)
            shared = tuple(b for b in urls if urls[b] == url) if counts[url] > 1 else ()
            same = known is not None and (known.url, known.shared_with) == (url, shared)
            found[broker_id] = known if known and same else Target(url, shared, scrapes=deque(maxlen=self._keep))
            found[broker_id].hosts = tuple(registered.get(broker_id, ()))
        return found

    def _call(self, target: Target, headers: Mapping[str, str]) -> Call:
        send = partial(self._client.send, target.url, {"accept": "text/plain", **headers})
        return Call(target.server, send, partial(self._read, target))

    def _read(self, target: Target, response: BaseHTTPResponse) -> object:
        """Enter a scrape as soon as it is complete: a target that hangs delays the others' samples no longer."""
        if response.status != 200:
            raise Failure(f"answers {response.status}{self._advice.get(response.status, '')}", response.status)
        text = read_body(response)
        try:
            scrape = scraped(text.decode(), self._settings.exporter, self._clock())
        except Exception as error:  # the parser of the text format raises many kinds of errors
            raise Failure(f"answers with a malformed text ({error})"[:200]) from None
        with self._changed:
            target.scrapes.append(scrape)
        return None


def _check_owner(broker_id: int, target: Target) -> None:
    if target.shared_with:
        ids = ", ".join(map(str, target.shared_with))
        raise Missing(
            f"broker {broker_id}: {target.server} is the target of the brokers {ids}. Fix: use {{broker}} in "
            "--scrape-url, or give their hosts in --broker-map"
        )


def _with_cause(sentence: str, problem: str) -> str:
    """Insert the problem of the target before the fix."""
    end = sentence.find(". Fix: ") if ". Fix: " in sentence else sentence.rfind("; ")
    return f"{sentence[:end]}; the target {problem}{sentence[end:]}" if problem else sentence


def _in_url(host: str) -> str:
    """Return a host as a part of a URL; an odd one cannot change the other parts."""
    quoted = quote(host, safe="%:", errors="replace")
    return f"[{quoted}]" if ":" in host else quoted
