"""Client quotas in ZooKeeper, as Kafka's own tools write them.

A node holds all configs of a user, client id or address. Users' nodes may also hold SCRAM credentials, which stay as
they are. The config and the notification of the brokers are one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, RolledBackError

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.kafka_zookeeper.config_writer import Operation, config_of, config_operations
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import format_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.quotas.keys import (
    ClientQuotaEntity,
    QuotaEdits,
    QuotaKey,
    QuotaValues,
    check_etag,
    entity_of_path,
    format_value,
    parse_value,
)
from autothrottle.ports.kafka import ClientQuotaChange, QuotaReading

_KINDS = ("users", "clients", "ips")
_KEYS = tuple(QuotaKey)
"""Iterating over an enum takes three times as long, which counts for 10,000 entities."""


class ZooKeeperClientQuotas:
    """A `ClientQuotaStore` on Kafka's configs in ZooKeeper. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths) -> None:
        self._client, self._kafka = client, kafka

    def fetch_quotas(self, timeout: timedelta, entities: Collection[ClientQuotaEntity] | None = None) -> QuotaReading:
        """Return the quotas of these entities; None: of all entities. Values that cannot be parsed are problems."""
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading client quotas"):
            paths = self._all_paths(deadline) if entities is None else [entity.path for entity in entities]
            nodes = read_nodes(self._client, [self._kafka.entity_config(path) for path in paths], deadline)
        quotas: dict[ClientQuotaEntity, QuotaValues] = {}
        problems: list[str] = []
        for path, node in zip(paths, nodes, strict=True):
            entity = entity_of_path(path)
            values = {} if entity is None else self._values(path, node, problems)
            if entity is not None and values:
                quotas[entity] = values
        return QuotaReading(quotas, tuple(problems))

    def fetch_texts(
        self, resources: Collection[ConfigResource], timeout: timedelta
    ) -> Mapping[ConfigResource, Mapping[str, str] | Invalid]:
        """Return resource -> key -> text of its quota, or why its config cannot be parsed."""
        deadline = time.monotonic() + timeout.total_seconds()
        ordered = list(resources)
        with translated_errors("reading client quotas"):
            nodes = read_nodes(self._client, [self._kafka.config(resource) for resource in ordered], deadline)
        return {
            resource: _texts(self._kafka.config(resource), node) for resource, node in zip(ordered, nodes, strict=True)
        }

    def alter_quota(self, change: ClientQuotaChange, timeout: timedelta) -> QuotaValues:
        """Edit the quotas of one entity in one transaction with the notification, at the version that was read."""
        deadline, entity = time.monotonic() + timeout.total_seconds(), change.entity
        path = self._kafka.entity_config(entity.path)
        with translated_errors("writing a client quota"):
            parents = self._kafka.entity_parents(entity.path)
            *parent_nodes, node = read_nodes(self._client, [*parents, path], deadline)
            config, old_values = _config(path, node), self._values(entity.path, node, [])
            check_etag(entity, change.etag, old_values)
            edited = _edited(config, change.edits)
            if edited != config and not change.validate_only:
                missing = [p for p, parent_node in zip(parents, parent_nodes, strict=True) if parent_node is None]
                operations: list[Operation] = [("create", (parent, format_config({}))) for parent in missing]
                operations += config_operations(self._kafka, entity.path, node, edited)
                self._commit(entity, operations, deadline)
            return old_values

    def _all_paths(self, deadline: float) -> list[str]:
        """Return the paths of all entities. Users also have one node for each of their client ids."""
        tops = self._children(_KINDS, deadline)
        paths = [f"{kind}/{name}" for kind in _KINDS for name in tops[kind]]
        # A missing node is cheap to find in a bulk read, and few users have quotas for single client ids.
        pairs = [f"users/{name}/clients" for name in tops["users"]]
        nodes = read_nodes(self._client, [self._kafka.entity_config(pair) for pair in pairs], deadline)
        existing = [pair for pair, node in zip(pairs, nodes, strict=True) if node is not None]
        return paths + [
            f"{pair}/{name}" for pair, names in self._children(existing, deadline).items() for name in names
        ]

    def _children(self, parents: Sequence[str], deadline: float) -> Mapping[str, Sequence[str]]:
        pending = [(parent, self._client.get_children_async(self._kafka.entity_config(parent))) for parent in parents]
        return {parent: sorted(_names(answer, deadline)) for parent, answer in pending}

    def _values(self, path: str, node: Node | None, problems: list[str]) -> QuotaValues:
        where = self._kafka.entity_config(path)
        try:
            config = _config(where, node)
        except Invalid as error:
            problems.append(str(error))
            return {}
        values: dict[QuotaKey, float] = {}
        for key in _KEYS:
            if (text := config.get(key)) is not None:
                try:
                    values[key] = parse_value(key, text)
                except Invalid as error:
                    problems.append(f"{where}: {error}")
        return values

    def _commit(self, entity: ClientQuotaEntity, operations: Iterable[Operation], deadline: float) -> None:
        transaction = self._client.transaction()
        for method, arguments in operations:
            getattr(transaction, method)(*arguments)
        for result in transaction.commit_async().get(timeout=seconds_left(deadline)):
            if isinstance(result, BadVersionError | NodeExistsError):
                raise Conflict(f"another client wrote the quotas of {entity} at the same time; read them again")
            if isinstance(result, KazooException) and not isinstance(result, RolledBackError):
                raise result


def _names(answer: Any, deadline: float) -> Iterator[str]:
    try:
        yield from answer.get(timeout=seconds_left(deadline))
    except NoNodeError:
        return


def _config(path: str, node: Node | None) -> Mapping[str, str]:
    try:
        return config_of(node, is_quota=True)
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from error


def _texts(path: str, node: Node | None) -> Mapping[str, str] | Invalid:
    try:
        config = _config(path, node)
    except Invalid as error:
        return error
    return {str(key): config[key] for key in QuotaKey if key in config}


def _edited(config: Mapping[str, str], edits: QuotaEdits) -> Mapping[str, str]:
    """Return the config after the edits. A value that is already set in another spelling stays."""
    edited = dict(config)
    for key, value in edits.items():
        if value is None:
            edited.pop(key, None)
        elif not _has(config, key, value):
            edited[key] = format_value(key, value)
    return edited


def _has(config: Mapping[str, str], key: QuotaKey, value: float) -> bool:
    try:
        return parse_value(key, config.get(key, "")) == value
    except Invalid:
        return False
