"""Where the settings come from that bound how replicas are fetched: the brokers themselves."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

from autothrottle.core.fetching import ClusterSettings


class FetchSettingsSource(Protocol):
    """Reads settings of brokers and topics."""

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        """Return the settings; a broker or topic that does not tell its own in time is not among them.

        Raises:
            Unavailable: when nobody can be asked.
        """
        ...
