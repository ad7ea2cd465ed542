"""Datadog's address, keys and queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from autothrottle.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class DatadogSettings:
    """Datadog's address, keys and queries, which the options of the program have checked; `repr` hides the keys."""

    api_key: str = field(repr=False)
    app_key: str = field(repr=False)
    url: str = "https://api.datadoghq.com"
    """`https://host[:port][/path]`."""
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
        keys = {"api-key": self.api_key, "app-key": self.app_key}
        # http.client would include the whole key in its own message.
        names = [name for name, key in keys.items() if not all("!" <= character <= "~" for character in key)]
        if names:
            raise Invalid(
                f"{' and '.join(names)} contains characters that are not allowed in a header (a line end?); give only "
                "the key"
            )

    @property
    def window_seconds(self) -> int:
        return int(self.metrics_window.total_seconds())

    @property
    def delay_seconds(self) -> int:
        return int(self.metrics_delay.total_seconds())
