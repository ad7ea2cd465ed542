"""The server's address and credentials, and the queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import urllib3

from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.broker_matching import BrokerLabel
from autothrottle.core.traffic.exporters import Exporter


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """The server's address and credentials, and the queries."""

    url: str
    """`http[s]://host[:port][/path]`."""
    exporter: Exporter
    tx_query: str = ""
    """PromQL for the bytes sent by each broker: a range vector of counters, or an instant vector of rates in bytes/s.
    "": the query of the exporter."""
    rx_query: str = ""
    """The same for the bytes received."""
    selector: str = ""
    """Further matchers of the exporter's queries, for example `job="kafka"`."""
    ca_file: str = ""
    """PEM file with the authorities of the server's certificate; "": those of the system."""
    token_file: str = ""
    """File with a bearer token, read at each request, since it may expire; "": none."""
    user_file: str = ""
    """File with `user:password` for basic authentication; "": none."""
    window: timedelta = timedelta(seconds=120)
    """Length of the interval that the rates cover: whole seconds, >= 1."""
    delay: timedelta = timedelta(0)
    """Age of the newest samples: queries are made for this long ago."""
    broker_label: BrokerLabel | None = None
    broker_map: Mapping[str, int] = field(default_factory=dict)
    """Value of a label, or the host in it, -> broker id."""

    def queries(self) -> tuple[str, str]:
        """Return the queries for sent and for received bytes."""
        seconds = int(self.window.total_seconds())
        return (
            self.tx_query or self.exporter.query("tx", seconds, self.selector),
            self.rx_query or self.exporter.query("rx", seconds, self.selector),
        )

    def headers(self) -> Mapping[str, str]:
        """Return the headers with the credentials.

        Raises:
            Unavailable: a file with credentials cannot be read.
        """
        if self.token_file:
            return {"authorization": f"Bearer {_secret('prometheus-token-file', self.token_file)}"}
        if self.user_file:
            secret = _secret("prometheus-user-file", self.user_file)
            return urllib3.make_headers(basic_auth=secret)
        return {}


def _secret(option: str, path: str) -> str:
    try:
        text = Path(path).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"{option}: {path!r} cannot be read ({type(error).__name__}); give a readable file") from None
    if not text or not all(" " <= character <= "~" for character in text):
        raise Unavailable(f"{option}: {path!r} does not contain one line of printable ASCII; put only the secret there")
    return text
