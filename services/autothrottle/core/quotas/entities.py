"""The entities that have client quotas: users, client ids, pairs of both, IP addresses, and their defaults.

The type to know is `ClientQuotaEntity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import quote, unquote

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.errors import Invalid
from autothrottle.core.texts import ip_address_of

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
