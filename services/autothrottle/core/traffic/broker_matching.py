"""Finds the broker that a series of a metrics source belongs to.

The rules, in this order: the operator's map; a label whose value contains the broker id; the address that
`kafka_broker_info` reports for a broker id; the host in the broker's registration.

The type to know is `BrokerMatching`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.texts import ip_address_of

HOST_LABELS = ("instance", "host", "hostname", "node", "nodename", "node_name", "pod", "kubernetes_pod_name")
"""Labels with the host of a target, in order of precedence."""


@dataclass(frozen=True, slots=True)
class BrokerLabel:
    """A label with the broker id."""

    name: str
    pattern: re.Pattern[str]
    """Must match the whole value; its last group is the broker id."""


@dataclass(frozen=True)
class BrokerMatching:
    """Finds the broker of a series by its labels and the brokers' hosts."""

    by_value: Mapping[str, int] = field(default_factory=dict)
    """Value of a label, or the host in it, -> broker id."""
    label: BrokerLabel | None = None
    """None: no label has the broker id."""
    reported: Mapping[str, int] = field(default_factory=dict)
    """Address in `kafka_broker_info` -> broker id."""
    registered: Mapping[int, Collection[str]] = field(default_factory=dict)
    """Broker id -> the hosts in its registration; empty: unknown."""

    def broker_of(self, labels: Mapping[str, str]) -> int | None:
        """Return the broker of a series with these labels; None: no rule finds exactly one.

        >>> BrokerMatching(registered={1: ["b1.example"], 2: ["b2.example"]}).broker_of({"instance": "b2.example:9100"})
        2
        """
        results = (rule(labels) for rule in (self._mapped, self._labelled, self._hosted))
        return next((broker_id for broker_id in results if broker_id is not None), None)

    def _mapped(self, labels: Mapping[str, str]) -> int | None:
        brokers = self._brokers_by_value
        keys = (k for text in labels.values() for k in (text, _address_of(text), host_of(text))) if brokers else ()
        return next((brokers[key] for key in keys if key in brokers), None)

    def _labelled(self, labels: Mapping[str, str]) -> int | None:
        found = self.label and self.label.pattern.fullmatch(labels.get(self.label.name, ""))
        try:
            return parse_broker_id(found[found.re.groups] or "") if found else None
        except Invalid:
            return None

    def _hosted(self, labels: Mapping[str, str]) -> int | None:
        hosts = [host_of(labels[name]) for name in HOST_LABELS if name in labels]
        return next((brokers[host] for brokers in self._brokers_by_host for host in hosts if host in brokers), None)

    @cached_property
    def _brokers_by_value(self) -> Mapping[str, int]:
        return {**{_address_of(value): broker_id for value, broker_id in self.by_value.items()}, **self.by_value}

    @cached_property
    def _brokers_by_host(self) -> Sequence[Mapping[str, int]]:
        """Host -> its broker: by the addresses in `kafka_broker_info`, then by the registrations."""
        registered = ((host, broker_id) for broker_id, hosts in self.registered.items() for host in hosts)
        return _unique(self.reported.items()), _unique(registered)


def _unique(addresses: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    """Return host -> its only broker; a host of several brokers, such as a load balancer, is left out."""
    brokers: dict[str, set[int]] = {}
    for address, broker_id in addresses:
        brokers.setdefault(host_of(address), set()).add(broker_id)
    return {host: next(iter(ids)) for host, ids in brokers.items() if len(ids) == 1}


def host_of(address: str) -> str:
    """Return the host of `host:port`, `[host]:port` or `host`: a name in lower case, or an IP address in short form.

    >>> host_of("B1.example.:9100"), host_of("[2001:DB8:0:0::1]:9100"), host_of("::ffff:10.0.0.7")
    ('b1.example', '2001:db8::1', '10.0.0.7')
    """
    host = _split(address)[0]
    ip = ip_address_of(host)
    return host.rstrip(".").lower() if ip is None else str(getattr(ip, "ipv4_mapped", None) or ip)


def _address_of(text: str) -> str:
    """Return an address in its only form, with its port if it has one."""
    host, port = host_of(text), _split(text)[1]
    return f"[{host}]:{port}" if port else host


def _split(address: str) -> tuple[str, str]:
    """Return host and port; "": no port."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = address.partition(":") if address.count(":") == 1 else (address, "", "")
    return host, port


def parse_broker_map(text: str, option_name: str) -> dict[str, int]:
    """Return label value or host -> broker id from a JSON object.

    >>> parse_broker_map('{"b1.example:9100": 1001}', "--broker-map")
    {'b1.example:9100': 1001}

    Raises:
        Invalid: the text is not such an object.
    """
    form = '{"host": broker id}'
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Invalid(f"{option_name} is {text[:100]!r}; give {form}")
    try:
        return {name: parse_broker_id(json.dumps(broker_id)) for name, broker_id in value.items()}
    except Invalid as error:
        raise Invalid(f"{option_name}: {error}") from None


def parse_broker_label(text: str, option_name: str) -> BrokerLabel | None:
    """Return the label in `LABEL=REGEX`; "" is None.

    Raises:
        Invalid: the text has another form, or the regular expression is wrong or has no group.
    """
    if not text:
        return None
    name, equals, pattern = text.partition("=")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError) as error:
        raise Invalid(f"{option_name} is {text[:100]!r}, whose regular expression is wrong ({error})") from None
    if not equals or not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) or not compiled.groups:
        raise Invalid(f"{option_name} is {text[:100]!r}; give LABEL=REGEX with one group, for example pod=.*-([0-9]+)")
    return BrokerLabel(name, compiled)
