"""Datadog's address, keys and queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

from autothrottle.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class DatadogSettings:
    """Datadog's address, keys and queries; `repr` hides the keys."""

    api_key: str = field(repr=False)
    app_key: str = field(repr=False)
    url: str | None = None
    """URL of another server, `https://host[:port][/path]`; None: Datadog's own."""
    net_tx_query: str = "avg:system.net.bytes_sent{service:kafka} by {host}"
    """Query for the bytes per second sent, by host."""
    net_rx_query: str = "avg:system.net.bytes_rcvd{service:kafka} by {host}"
    """Query for the bytes per second received, by host."""
    broker_id_tag: str = "broker_id"
    instance_type_tag: str = "instance-type"
    capacity_tag: str | None = None
    """Host tag with the capacity in MB/s; None: no such tag."""
    metrics_window: timedelta = timedelta(seconds=120)
    """Length of a query and its rollup: whole seconds, >= 1."""
    metrics_delay: timedelta = timedelta(0)
    """How long ago a query ends, which is the delay of the newest points: whole seconds, >= 0."""
    event_tags: tuple[str, ...] = ()
    """Tags of every event, in addition to `metrics.EVENT_TAGS`."""
    tag_ttl: timedelta = timedelta(hours=1)
    """How long a host's tags are cached, > 0."""

    def __post_init__(self) -> None:
        problems = [*_key_problems(self), *_query_problems(self), *_url_problems(self.url)]
        seconds = self.metrics_window.total_seconds()
        if seconds < 1 or seconds % 1:
            problems.append(f"metrics-window is {seconds:g} s; give whole seconds >= 1")
        delay = self.metrics_delay.total_seconds()
        if delay < 0 or delay % 1:
            problems.append(f"metrics-delay is {delay:g} s; give whole seconds >= 0")
        if self.tag_ttl <= timedelta(0):
            problems.append(f"tag-ttl is {self.tag_ttl.total_seconds():g} s; give a time > 0")
        if problems:
            raise Invalid("; ".join(problems))

    @property
    def window_seconds(self) -> int:
        return int(self.metrics_window.total_seconds())

    @property
    def delay_seconds(self) -> int:
        return int(self.metrics_delay.total_seconds())


def _key_problems(settings: DatadogSettings) -> Iterable[str]:
    # http.client would include the whole key in its own message.
    for name, key in (("api-key", settings.api_key), ("app-key", settings.app_key)):
        if not all("!" <= character <= "~" for character in key):
            yield f"{name} contains characters that are not allowed in a header (a line end?); give only the key"


def _query_problems(settings: DatadogSettings) -> Iterable[str]:
    for name, query in (("net-tx-query", settings.net_tx_query), ("net-rx-query", settings.net_rx_query)):
        if not query.strip():
            yield f'{name} is {query!r}; give a Datadog query that groups by host, ending in "by {{host}}"'


def _url_problems(url: str | None) -> Iterable[str]:
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    # The rest is not shown: misplaced text in a URL may be a key.
    shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0]
    if not is_server:
        yield f"datadog-url is {shown!r}; give https://host[:port]"
    elif shown != url:
        yield f"datadog-url of {shown!r} contains more than a server and a path; give https://host[:port]"
