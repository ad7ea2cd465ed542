"""The clients that a Kafka cluster knows by name. The type to know is `ClientReading`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autothrottle.core.quotas.entities import ClientQuotaEntity


@dataclass(frozen=True, slots=True)
class ClientReading:
    """The clients that Kafka knows by name. It knows producers only by their quotas."""

    entities: frozenset[ClientQuotaEntity] = frozenset()
    """The entities that have quotas, and the default user with the client id of each member of a consumer group."""
    plug_ins: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> its `client.quota.callback.class`, if it has one."""
    warnings: tuple[str, ...] = ()
    """What could not be read; one sentence each."""
