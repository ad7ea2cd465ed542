"""Client quotas through Kafka's admin API.

Kafka keeps no version of quotas, so the etag is checked right before the write. A broker may report a value later than
Kafka accepted it, so an edit is complete once a broker reports it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from autothrottle.adapters.concurrency.subscriptions import time_left
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import ConfigEdit
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    ClientQuotas,
    ClientReading,
    QuotaEdits,
    QuotaKey,
    QuotaValues,
    check_etag,
    effective_quotas,
    entity_of_path,
    format_value,
    is_valid_client_id,
    parse_value,
)
from autothrottle.ports.kafka import ClientQuotaChange, QuotaReading

_POLL_SECONDS = 0.05
_PLUG_IN = "client.quota.callback.class"
"""Name of the class that decides quotas instead of Kafka's own (KIP-257)."""


class AdminClientQuotas:
    """A `ClientQuotaStore` on Kafka's admin API. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def fetch_quotas(self, timeout: timedelta, entities: Collection[ClientQuotaEntity] | None = None) -> QuotaReading:
        """Return the quotas of these entities; None: of all entities."""
        quotas = self._kafka.client_quotas(timeout=timeout)
        return QuotaReading({entity: quotas[entity] for entity in quotas if entities is None or entity in entities})

    def fetch_texts(
        self, resources: Collection[ConfigResource], timeout: timedelta
    ) -> Mapping[ConfigResource, Mapping[str, str]]:
        """Return resource -> key -> text of its quota."""
        quotas = self._kafka.client_quotas(timeout=timeout)
        texts = {
            entity.resource: {str(key): format_value(key, value) for key, value in values.items()}
            for entity, values in quotas.items()
        }
        return {resource: texts.get(resource, {}) for resource in resources}

    def alter_quota(self, change: ClientQuotaChange, timeout: timedelta) -> QuotaValues:
        """Edit the quotas of one entity, and wait until a broker reports them."""
        deadline, entity = time.monotonic() + timeout.total_seconds(), change.entity
        current = self._values(entity, deadline)
        check_etag(entity, change.etag, current)
        changed = {key: value for key, value in change.edits.items() if value != current.get(key)}
        if changed:
            self._kafka.alter_client_quotas(entity, changed, validate_only=change.validate_only, until=deadline)
        if changed and not change.validate_only:
            self._wait_until_reported(entity, changed, deadline)
        return current

    def _wait_until_reported(self, entity: ClientQuotaEntity, edits: QuotaEdits, deadline: float) -> None:
        while True:
            current = self._values(entity, deadline)
            if all(current.get(key) == value for key, value in edits.items()):
                return
            if time.monotonic() + _POLL_SECONDS >= deadline:
                raise Unavailable(
                    f"Kafka accepted the quotas of {entity}, but no broker reports them yet; read them again"
                )
            time.sleep(_POLL_SECONDS)

    def _values(self, entity: ClientQuotaEntity, deadline: float) -> QuotaValues:
        return self._kafka.client_quotas(timeout=time_left(deadline)).get(entity, {})


def fetch_group_clients(kafka: KafkaAdmin, timeout: timedelta) -> ClientReading:
    """Return the default user with the client id of each group member, and the quota plug-ins of the brokers.

    Brokers and groups that do not answer are warnings. Client ids that cannot have quotas are absent.

    Raises:
        Unavailable: no broker answers in time.
        Invalid: Kafka refuses our credentials.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    brokers, share = kafka.brokers(timeout=timeout), timeout / 3
    configs = kafka.broker_configs(brokers, [_PLUG_IN], timeout=share)
    listed = kafka.groups(brokers, timeout=share)
    members = kafka.group_clients(listed.values, timeout=time_left(deadline))
    client_ids = frozenset[str]().union(*members.values.values())
    plug_ins = {broker_id: values.get(_PLUG_IN) for broker_id, values in configs.values.items()}
    return ClientReading(
        frozenset(ClientQuotaEntity(DEFAULT, client_id) for client_id in client_ids if is_valid_client_id(client_id)),
        {broker_id: config.value for broker_id, config in plug_ins.items() if config and config.value},
        (
            *_warning(f"{_PLUG_IN} of broker", configs.failures),
            *_warning("the groups of broker", listed.failures),
            *_warning("the members of group", members.failures),
        ),
    )


def _warning(what: str, failures: Mapping[Any, AutothrottleError]) -> Iterator[str]:
    """One sentence about all failures of a kind; large clusters have thousands of groups."""
    if failures:
        first, error = min(failures.items())
        others = f" and of {len(failures) - 1} more" if len(failures) > 1 else ""
        yield f"cannot read {what} {first}{others}: {error}"


def quota_edits(resource: ConfigResource, edits: Sequence[ConfigEdit]) -> tuple[ClientQuotaEntity, QuotaEdits]:
    """Return the entity of a resource, and its edits as numbers.

    Raises:
        Invalid: the resource is not a quota entity, or a text is not a number.
    """
    entity = entity_of_path(resource.path)
    if entity is None:
        raise Invalid(f"{resource} is not a quota entity; give a user, a client id, both, or an IP address")
    keys = {QuotaKey(edit.key): edit.value for edit in edits}
    return entity, {key: None if text is None else parse_value(key, text) for key, text in keys.items()}


_NEEDED: Mapping[QuotaKey, float] = {
    QuotaKey.CONSUMER_BYTE_RATE: 100_000,
    QuotaKey.PRODUCER_BYTE_RATE: 100_000,
    QuotaKey.REQUEST_PERCENTAGE: 1,
}
"""What this program needs for its state. Kafka never answers a fetch of more bytes than 10 s of the quota."""


def own_quota_problems(quotas: ClientQuotas, options: Mapping[str, Any], servers: str) -> Mapping[str, str]:
    """Return entity -> which of its quotas can delay this program, and the command that exempts it.

    Args:
        quotas: of the cluster.
        options: of this client, as for kafka-python. Its user may be unknown; then quotas of named users are left out.
        servers: `host:port` of brokers, for the command.
    """
    client_id = options.get("client_id", _CLIENT_ID)
    has_login = options.get("security_protocol", "PLAINTEXT") != "PLAINTEXT"
    user = options.get("sasl_plain_username", "" if has_login else "ANONYMOUS")
    low: dict[ClientQuotaEntity, list[str]] = {}
    exempting: dict[ClientQuotaEntity, list[str]] = {}
    for quota in effective_quotas(quotas, user, client_id):
        if (needed := _NEEDED.get(quota.key)) is not None and quota.value < needed:
            low.setdefault(quota.entity, []).append(f"{quota.key}={format_value(quota.key, quota.value)}")
            exempting.setdefault(quota.entity, []).append(f"{quota.key}={format_value(quota.key, _PLENTY * needed)}")
    return {
        str(entity): f"limits this client to {', '.join(texts)}, so reading and writing our state is slow, and large "
        f"parts of it may never be read. Fix: kafka-configs.sh --bootstrap-server {servers} --alter --add-config "
        f"'{','.join(exempting[entity])}' {_options(ClientQuotaEntity(entity.user, client_id))}"
        for entity, texts in low.items()
    }


_CLIENT_ID = "autothrottle"
_PLENTY = 1_000
"""The proposed quota, as a multiple of the least one."""


def _options(entity: ClientQuotaEntity) -> str:
    """Return the options of kafka-configs.sh that name an entity."""
    kinds = {"user": "users", "client-id": "clients"}
    return " ".join(
        f"--entity-type {kinds[kind]} " + (f"--entity-name {name}" if isinstance(name, str) else "--entity-default")
        for kind, name in entity.parts.items()
    )
