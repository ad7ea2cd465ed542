"""The entities and the keys of client quotas, quotas that end by themselves, and which quota applies.

Entities are users, client ids, pairs of both, IP addresses, and their defaults. Keys have units and ranges. Kafka has
eight levels of users and client ids, and two of IP addresses. The types to know are `ClientQuotaEntity`, `QuotaKey`,
`QuotaValues` and `TemporaryQuota`.

Source: `DefaultQuotaCallback` in Kafka's ClientQuotaManager, and KIP-55 (the levels).
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any
from urllib.parse import quote, unquote

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.codec import GIVEN, ValueForm, stored, text
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.texts import ip_address_of
from autothrottle.core.units import MAX_INT32, MAX_RATE

MAX_NAME_BYTES = 4_096
"""Longest name of a user or client id in UTF-8; Kafka's own limit of a string is 32,767 bytes."""


class Default(Enum):
    """The part of an entity that stands for every name without an entity of its own."""

    DEFAULT = "<default>"


DEFAULT = Default.DEFAULT

Name = str | Default
"""A name, or the default. A user may really be called `<default>`, so the default is not a text."""


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """One entity with quotas: a user, a client id, a pair of both, or an IP address.

    >>> str(ClientQuotaEntity("alice", DEFAULT))
    'user "alice", default client-id'
    """

    user: Name | None = None
    """Name of the principal, without its type `User:`; None: the entity has no user."""
    client_id: Name | None = None
    """None: the entity has no client id."""
    ip: Name | None = None
    """IPv4 or IPv6 address; None: the entity has no address."""

    @property
    def parts(self) -> Mapping[str, Name]:
        """Kafka's entity type -> name, for each part that the entity has."""
        found = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name for kind, name in found.items() if name is not None}

    @property
    def order(self) -> tuple[tuple[bool, bool, str], ...]:
        """Sort key: users first, then client ids, then addresses; the default comes before any name."""
        parts = (self.user, self.client_id, self.ip)
        return tuple((name is None, isinstance(name, str), name if isinstance(name, str) else "") for name in parts)

    @property
    def path(self) -> str:
        """The entity path below `/config` in ZooKeeper and in change notifications.

        >>> ClientQuotaEntity("a b", "100%").path, ClientQuotaEntity(client_id=DEFAULT).path
        ('users/a%20b/clients/100%25', 'clients/<default>')
        >>> ClientQuotaEntity("<default>").path
        'users/%3Cdefault%3E'
        """
        if self.ip is not None:
            return f"ips/{self.ip.value if isinstance(self.ip, Default) else self.ip}"
        client = "" if self.client_id is None else f"clients/{_node(self.client_id)}"
        user = "" if self.user is None else f"users/{_node(self.user)}"
        return "/".join(filter(None, (user, client)))

    @property
    def resource(self) -> ConfigResource:
        """The config resource that holds its quotas."""
        return ConfigResource(self.path)

    def __str__(self) -> str:
        return ", ".join(f'{kind} "{n}"' if isinstance(n, str) else f"default {kind}" for kind, n in self.parts.items())


@dataclass(frozen=True, slots=True)
class QuotaState:
    """The current quotas of some entities, and the ledger of all quotas."""

    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    """Resource -> key -> text of its value; absent: no quota is set."""
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """Resource -> what we wrote to it."""
    unreadable: Mapping[ConfigResource, str] = field(default_factory=dict)
    """Resource -> why its quotas or its ledger entry cannot be read; nothing is written to it."""


def entity_of_path(path: str) -> ClientQuotaEntity | None:
    """Return the entity of an entity path; None: the path is not one of a quota entity.

    >>> entity_of_path("users/%3Cdefault%3E/clients/<default>")
    ClientQuotaEntity(user='<default>', client_id=<Default.DEFAULT: '<default>'>, ip=None)
    """
    match path.split("/"):
        case ["users", user, "clients", client]:
            return ClientQuotaEntity(_name(user), _name(client))
        case ["users", user]:
            return ClientQuotaEntity(_name(user))
        case ["clients", client]:
            return ClientQuotaEntity(client_id=_name(client))
        case ["ips", ip]:
            return ClientQuotaEntity(ip=DEFAULT if ip == DEFAULT.value else ip)
    return None


def validate_entity(entity: ClientQuotaEntity) -> ClientQuotaEntity:
    """Return the entity.

    Raises:
        Invalid: it has no part, an address beside another part, an empty or too long name, or an address that is not
            one.
    """
    if not entity.parts:
        raise Invalid("the entity has no part; give a user, a client id, both, or an IP address")
    if entity.ip is not None and len(entity.parts) > 1:
        raise Invalid(f"the entity is {entity}; Kafka's quotas of an IP address have no user and no client id")
    for kind, name in entity.parts.items():
        if isinstance(name, str):
            _validate_name(kind, name)
    return entity


def _validate_name(kind: str, name: str) -> None:
    size = len(name.encode(errors="replace"))
    if not 0 < size <= MAX_NAME_BYTES:
        raise Invalid(
            f"{kind} {name[:40]!r} has {size} bytes; give a name of 1 to {MAX_NAME_BYTES} bytes, or the default"
        )
    if name in (".", ".."):
        raise Invalid(f"{kind} {name!r} cannot have quotas: ZooKeeper has no node of this name; give another name")
    if kind == "ip" and ip_address_of(name) is None:
        raise Invalid(f"ip {name[:60]!r} is not an IPv4 or IPv6 address; give for example 10.0.0.7")


def is_valid_client_id(name: str) -> bool:
    """Return whether a client id can have quotas.

    >>> is_valid_client_id("backfill-1"), is_valid_client_id(""), is_valid_client_id(".")
    (True, False, False)
    """
    try:
        validate_entity(ClientQuotaEntity(client_id=name))
    except Invalid:
        return False
    return True


def name_or_default(kind: str, name: str | None, is_default: bool) -> Name | None:
    """Return one part of an entity from a request that has a field for the name and one for the default.

    Raises:
        Invalid: the request gives both.
    """
    if name is not None and is_default:
        raise Invalid(f"{kind} is given as the name {name[:40]!r} and as the default; give one of the two")
    return DEFAULT if is_default else name


def _node(name: Name) -> str:
    """Encode a name as Kafka's `Sanitizer` does, which follows Java's URLEncoder."""
    return name.value if isinstance(name, Default) else quote(name, safe="").replace("~", "%7E")


def _name(node: str) -> Name:
    return DEFAULT if node == DEFAULT.value else unquote(node)


@dataclass(frozen=True, slots=True)
class ClientReading:
    """The clients that Kafka knows by name. It knows producers only by their quotas."""

    entities: frozenset[ClientQuotaEntity] = frozenset()
    """The entities that have quotas, and the default user with the client id of each member of a consumer group."""
    plug_ins: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> its `client.quota.callback.class`, if it has one."""
    warnings: tuple[str, ...] = ()
    """What could not be read; one sentence each."""


MAX_EXACT = 2**53
"""Kafka's protocol carries quotas as 64-bit floating point numbers, which are exact up to this integer."""

MAX_CONNECTION_RATE = MAX_INT32


class QuotaKey(StrEnum):
    """What a quota limits."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes/s that each broker accepts from producers."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes/s that each broker sends to consumers."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Share of one thread's time on each broker, in percent; several threads together have more than 100 (KIP-124)."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions created or deleted per second, in the whole cluster (KIP-599)."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """Connections per second that each broker accepts; only for IP addresses (KIP-612)."""

    @property
    def unit(self) -> str:
        return _UNITS[self]

    @property
    def is_integer(self) -> bool:
        """Whether Kafka accepts only integers."""
        return self in (self.PRODUCER_BYTE_RATE, self.CONSUMER_BYTE_RATE, self.CONNECTION_CREATION_RATE)

    @property
    def largest(self) -> int:
        """Largest value, except for "unlimited"."""
        return MAX_CONNECTION_RATE if self is self.CONNECTION_CREATION_RATE else MAX_EXACT

    @property
    def unlimited(self) -> float:
        """Kafka's largest value: nothing is limited."""
        if self is self.CONNECTION_CREATION_RATE:
            return MAX_CONNECTION_RATE
        return MAX_RATE if self.is_integer else sys.float_info.max


_UNITS = {
    QuotaKey.PRODUCER_BYTE_RATE: "bytes/s per broker",
    QuotaKey.CONSUMER_BYTE_RATE: "bytes/s per broker",
    QuotaKey.REQUEST_PERCENTAGE: "percent of one thread per broker",
    QuotaKey.CONTROLLER_MUTATION_RATE: "partitions/s in the cluster",
    QuotaKey.CONNECTION_CREATION_RATE: "connections/s per broker",
}

IP_KEYS = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
CLIENT_KEYS = frozenset(QuotaKey) - IP_KEYS
"""The keys of users, client ids and pairs."""

QuotaValues = Mapping[QuotaKey, float]
"""Key -> value in the key's unit; absent: not set."""

QuotaEdits = Mapping[QuotaKey, float | None]
"""Key -> new value; None: remove the key. Absent keys stay as they are."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")
_ETAG = re.compile(r"[0-9a-f]{16}")


def parse_key(name: str) -> QuotaKey:
    """Return the key of a name.

    Raises:
        Invalid: Kafka has no such quota.
    """
    try:
        return QuotaKey(name)
    except ValueError:
        raise Invalid(f"{name[:60]!r} is not a key of client quotas; give one of {', '.join(QuotaKey)}") from None


def parse_value(key: QuotaKey, text: str) -> float:
    """Return a value as Kafka stores it: an integer, if the key takes only integers.

    Raises:
        Invalid: the text is not a number, or not an integer if the key needs one.
    """
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    if not math.isfinite(number) or (key.is_integer and not number.is_integer()):
        raise Invalid(f"{key} {text[:40]!r} is not {_kind(key)}; give it in {key.unit}")
    return stored_value(key, number)


def stored_value(key: QuotaKey, number: float) -> float:
    """Return a number that Kafka stores, as an integer if the key takes only integers, at most `unlimited`.

    Kafka stores doubles. Its "unlimited" byte rate, 2^63-1, is 2^63 as a double, which no 64-bit integer holds. Kafka
    accepts NaN, which delays no request.

    >>> stored_value(QuotaKey.PRODUCER_BYTE_RATE, 2.0**63), stored_value(QuotaKey.PRODUCER_BYTE_RATE, 1024.0)
    (9223372036854775807, 1024)
    """
    number = key.unlimited if math.isnan(number) else number
    clamped = max(-key.unlimited, min(number, key.unlimited))
    return int(clamped) if key.is_integer else clamped


def format_value(key: QuotaKey, value: float) -> str:
    """Return the text of a value as Kafka writes it into ZooKeeper.

    >>> format_value(QuotaKey.PRODUCER_BYTE_RATE, 1024.0), format_value(QuotaKey.REQUEST_PERCENTAGE, 200)
    ('1024', '200.0')
    """
    return str(int(value)) if key.is_integer else str(float(value))


def validate_edits(entity: ClientQuotaEntity, edits: QuotaEdits) -> QuotaEdits:
    """Return the edits.

    Raises:
        Invalid: the values are empty, a key does not belong to this kind of entity, or a value is out of its range.
    """
    if not edits:
        raise Invalid(f"no quota is given for {entity}; give at least one of {', '.join(sorted(keys_of(entity)))}")
    for key, value in edits.items():
        if key not in keys_of(entity):
            raise Invalid(f"{key} cannot be set for {entity}; Kafka knows {', '.join(sorted(keys_of(entity)))} there")
        if value is not None:
            validate_value(key, value)
    return edits


def validate_value(key: QuotaKey, value: float) -> None:
    """Check the range of a value.

    Raises:
        Invalid: it is out of range.
    """
    is_in_range = 0 < value <= key.largest or value == key.unlimited
    if not is_in_range or (key.is_integer and value != int(value)):
        above = "1" if key.is_integer else "above 0"
        raise Invalid(
            f"{key} {value:g} is outside of {above} to {key.largest} {key.unit}, or not {_kind(key)}; "
            "give a value in this range, or remove the key to set no limit"
        )


def _kind(key: QuotaKey) -> str:
    return "an integer" if key.is_integer else "a number"


def keys_of(entity: ClientQuotaEntity) -> frozenset[QuotaKey]:
    """Return the keys that Kafka accepts for this kind of entity."""
    return CLIENT_KEYS if entity.ip is None else IP_KEYS


def edited(values: QuotaValues, edits: QuotaEdits) -> QuotaValues:
    """Return the values after the edits."""
    found: dict[QuotaKey, float | None] = {**values, **edits}
    return {key: value for key, value in found.items() if value is not None}


def quota_etag(values: QuotaValues) -> str:
    """Return the etag of an entity's values: 16 hexadecimal digits, the same for the same values.

    Kafka keeps no version of quotas, so the etag is a digest of the values.
    """
    text = "\n".join(f"{key}={format_value(key, values[key])}" for key in sorted(values))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_etag(entity: ClientQuotaEntity, etag: str, values: QuotaValues) -> None:
    """Check that the current values are those of the etag; "" accepts any values.

    Raises:
        Invalid: the etag does not have the form of one.
        Conflict: the values have changed since the etag was given.
    """
    if etag and not _ETAG.fullmatch(etag):
        raise Invalid(f"etag {etag[:40]!r} is invalid: give the etag of a response, or none to change any version")
    if etag and etag != quota_etag(values):
        current = ", ".join(f"{key}={format_value(key, values[key])}" for key in sorted(values)) or "no quota"
        raise Conflict(
            f"the quotas of {entity} have changed since etag {etag}: now {current}; read them again, then decide again"
        )


def _parse_values(values: Mapping[str, Any]) -> QuotaValues:
    keys = {parse_key(name): value for name, value in values.items()}
    return {key: parse_value(key, text(value)) for key, value in keys.items()}


_VALUES = ValueForm(_parse_values, lambda values: {str(key): format_value(key, values[key]) for key in values})


@dataclass(frozen=True, slots=True)
class TemporaryQuota:
    """Quotas of one entity that hold until they end; the values before them are restored then."""

    entity: ClientQuotaEntity = field(metadata=GIVEN)
    values: QuotaValues = field(metadata=stored(form=_VALUES))
    """Never empty."""
    author: str
    """Who set it."""
    time: datetime
    """When it was set, UTC."""
    expire_time: datetime | None = None
    """When it ends, UTC; None: with the recovery only."""
    until_recovered: bool = False
    """Whether it ends when no reassignment and no catch-up is left."""

    def end(self, now: datetime, is_recovering: bool | None) -> str:
        """Return why it has ended; "": it has not.

        Args:
            now: UTC.
            is_recovering: whether a reassignment or a catch-up runs; None: unknown.
        """
        if self.expire_time is not None and self.expire_time <= now:
            return "it has expired"
        return "no reassignment and no catch-up is left" if self.until_recovered and is_recovering is False else ""


TemporaryQuotas = Mapping[ClientQuotaEntity, TemporaryQuota]
"""Entity -> its temporary quota."""


def quota_sentence(quota: TemporaryQuota) -> str:
    """Return for logs and the audit what was set, and when it ends."""
    values = ", ".join(f"{key} {format_value(key, value)}" for key, value in quota.values.items())
    ends = [f"at {quota.expire_time.isoformat(timespec='seconds')}"] if quota.expire_time else []
    ends += ["with the recovery"] if quota.until_recovered else []
    return f"Quota of {quota.entity}: {values}, ends {' or '.join(ends)}"


ClientQuotas = Mapping[ClientQuotaEntity, QuotaValues]
"""Entity -> its quotas."""


@dataclass(frozen=True, slots=True)
class DecidingQuota:
    """The quota that applies to a client for one key, and the level that decides it."""

    key: QuotaKey
    value: float
    """In the key's unit."""
    entity: ClientQuotaEntity
    """The entity whose quota it is."""
    level: int
    """1 (a user and a client id) to 8 (the default client id); 1 and 2 for an IP address and its default."""


def levels(user: Name, client_id: Name) -> tuple[ClientQuotaEntity, ...]:
    """Return the entities whose quota may apply to a client, in Kafka's order; the first one with the key decides.

    Args:
        user: name of the principal; `ANONYMOUS` without authentication.
        client_id: the client id; may be empty.
    """
    users: tuple[Name, ...] = (user, DEFAULT)
    clients: tuple[Name, ...] = (client_id, DEFAULT)
    of_users = (
        entity
        for one in users
        for entity in (*(ClientQuotaEntity(one, client) for client in clients), ClientQuotaEntity(one))
    )
    return (*of_users, *(ClientQuotaEntity(client_id=client) for client in clients))


def fallbacks(entity: ClientQuotaEntity) -> tuple[ClientQuotaEntity, ...]:
    """Return the entities whose quota can apply while this entity has none, in Kafka's order.

    For a user, entities with the name of a client id are absent: Kafka does not know the client ids of a user.

    >>> [str(one) for one in fallbacks(ClientQuotaEntity(DEFAULT, "app"))][:3]
    ['default user, default client-id', 'default user', 'client-id "app"']
    """
    ordered = list(dict.fromkeys(levels(entity.user or DEFAULT, entity.client_id or DEFAULT)))
    return tuple(ordered[ordered.index(entity) + 1 :])


def levels_of_ip(ip: str) -> tuple[ClientQuotaEntity, ...]:
    """Return the entities whose quota may apply to connections from an address, in Kafka's order.

    Kafka compares addresses, whose names may be in the given form, the short one, or the long one of Java.
    """
    address = ip_address_of(ip)
    long = ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":")) if ":" in ip and address else ip
    names = dict.fromkeys((ip, str(address or ip), long))
    return *(ClientQuotaEntity(ip=name) for name in names), ClientQuotaEntity(ip=DEFAULT)


def effective_quotas(quotas: ClientQuotas, user: str, client_id: str) -> tuple[DecidingQuota, ...]:
    """Return the quotas that apply to a client, by key; a key without a quota is unlimited and absent.

    Each key is decided on its own: a producer rate on a level does not hide a consumer rate on a lower one.
    """
    return _effective(quotas, levels(user, client_id), CLIENT_KEYS)


def effective_quotas_of_ip(quotas: ClientQuotas, ip: str) -> tuple[DecidingQuota, ...]:
    """Return the quotas that apply to connections from an address."""
    deciding = _effective(quotas, levels_of_ip(ip), IP_KEYS)
    return tuple(replace(quota, level=2 if quota.entity.ip is DEFAULT else 1) for quota in deciding)


def _effective(
    quotas: ClientQuotas, ordered: tuple[ClientQuotaEntity, ...], keys: frozenset[QuotaKey]
) -> tuple[DecidingQuota, ...]:
    found: dict[QuotaKey, DecidingQuota] = {}
    for level, entity in enumerate(ordered, start=1):
        for key, value in quotas.get(entity, {}).items():
            if key in keys:
                found.setdefault(key, DecidingQuota(key, value, entity, level))
    return tuple(found[key] for key in QuotaKey if key in found)
