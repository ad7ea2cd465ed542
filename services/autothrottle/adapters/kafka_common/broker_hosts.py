"""The hosts in the brokers' registrations, for sources of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.kafka import BrokerRegistry


class BrokerHosts:
    """The last hosts that could be read."""

    def __init__(self, registry: BrokerRegistry) -> None:
        self._registry = registry
        self._hosts: Mapping[int, tuple[str, ...]] = {}

    def read(self, timeout: timedelta) -> tuple[Mapping[int, tuple[str, ...]], tuple[str, ...]]:
        """Return broker id -> hosts, and a warning if they are not current."""
        try:
            hosts_of_brokers = self._registry.fetch_hosts(timeout)
        except Exception as error:  # also an odd registration: metrics with a label for the broker need no hosts
            reason = str(error) if isinstance(error, AutothrottleError) else f"{type(error).__name__}: {error}"
            fallback = f"the {len(self._hosts)} brokers read before are used" if self._hosts else "no hosts are known"
            return self._hosts, (f"the brokers' hosts cannot be read: {reason}; {fallback}",)
        self._hosts = {broker_id: tuple(hosts) for broker_id, hosts in hosts_of_brokers.items()}
        return self._hosts, ()
