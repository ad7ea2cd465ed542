"""The gRPC service of Kafka's client quotas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

import grpc

from autothrottle.admin.action_log import ActionLog, log_action
from autothrottle.core.errors import Conflict, Invalid, Missing
from autothrottle.core.operators.sources import readable, unreadable_entries, validate_expire_time
from autothrottle.core.quotas.keys import (
    ClientQuotaEntity,
    ClientQuotas,
    DecidingQuota,
    QuotaEdits,
    QuotaKey,
    QuotaValues,
    TemporaryQuota,
    TemporaryQuotas,
    check_etag,
    edited,
    effective_quotas,
    effective_quotas_of_ip,
    format_value,
    keys_of,
    levels,
    levels_of_ip,
    name_or_default,
    parse_key,
    quota_etag,
    quota_sentence,
    validate_edits,
    validate_entity,
)
from autothrottle.core.quotas.yielding import BYTE_RATES, YieldRule, rule_sentence, validate_rule, with_rule
from autothrottle.core.records import AuditAction
from autothrottle.messages import Conversion, Converter
from autothrottle.ports.kafka import ClientQuotaChange, ClientQuotaStore, QuotaSource, SnapshotSource
from autothrottle.ports.state_store import CatchUpStore, OverrideStore, TemporaryQuotaStore, YieldRuleStore
from autothrottle.runtime.access import author
from autothrottle.runtime.server import time_left
from autothrottle.v1 import quotas_pb2, quotas_pb2_grpc
from autothrottle.wire.common import SAME_NAMES, expire_time_from_message, with_known_fields

ANONYMOUS = "ANONYMOUS"
"""Kafka's principal of clients without authentication."""


MAX_TEMPORARY_QUOTAS = 1_000
"""Largest number of entities with temporary quotas: one node of ZooKeeper holds them all."""


class ClusterReader(SnapshotSource, QuotaSource, Protocol):
    """Discovery, as far as this service uses it."""


@with_known_fields
class QuotaServicer(quotas_pb2_grpc.QuotaServiceServicer):
    def __init__(
        self,
        quotas: ClientQuotaStore,
        temporary: TemporaryQuotaStore,
        rules: YieldRuleStore,
        discovery: ClusterReader,
        catch_ups: CatchUpStore,
        overrides: OverrideStore,
    ) -> None:
        """Create a servicer.

        Args:
            quotas: Kafka's quotas.
            temporary: quotas that the leading planner sets and ends.
            rules: rules that the leading planner applies during a recovery.
            discovery: shows whether a reassignment runs, and what is in the ledger of client quotas.
            catch_ups: shows whether a catch-up runs.
            overrides: stores the audit records.
        """
        self._quotas, self._temporary, self._rules = quotas, temporary, rules
        self._actions = ActionLog(overrides)
        self._discovery, self._catch_ups = discovery, catch_ups

    def ListQuotas(
        self, request: quotas_pb2.ListQuotasRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.ListQuotasResponse:
        reading, temporary = self._quotas.fetch_quotas(time_left(context)), readable(self._temporary.read)
        return quotas_pb2.ListQuotasResponse(
            quotas=quotas_to_messages(reading.quotas, temporary),
            warnings=(*reading.problems, *unreadable_entries(temporary).values()),
        )

    def DescribeQuota(
        self, request: quotas_pb2.DescribeQuotaRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.DescribeQuotaResponse:
        quotas, problems = self._effective(request, time_left(context))
        kind = quotas_pb2.EffectiveQuota
        messages = [_EFFECTIVE.to_message(kind, quota, unit=quota.key.unit) for quota in quotas]
        return quotas_pb2.DescribeQuotaResponse(quotas=messages, warnings=problems)

    def _effective(
        self, request: quotas_pb2.DescribeQuotaRequest, timeout: timedelta
    ) -> tuple[tuple[DecidingQuota, ...], tuple[str, ...]]:
        has_client = request.HasField("user") or request.HasField("client_id")
        if has_client == request.HasField("ip"):
            raise Invalid("give the user or the client id of a client, or both, or else an IP address")
        if not has_client:
            validate_entity(ClientQuotaEntity(ip=request.ip))
            reading = self._quotas.fetch_quotas(timeout, levels_of_ip(request.ip))
            return effective_quotas_of_ip(reading.quotas, request.ip), reading.problems
        user = request.user if request.HasField("user") else ANONYMOUS
        validate_entity(ClientQuotaEntity(user, request.client_id or None))
        # Kafka has no entity with an empty client id, so its levels are never found.
        entities = [entity for entity in levels(user, request.client_id) if entity.client_id != ""]
        reading = self._quotas.fetch_quotas(timeout, entities)
        return effective_quotas(reading.quotas, user, request.client_id), reading.problems

    def SetQuota(
        self, request: quotas_pb2.SetQuotaRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.SetQuotaResponse:
        """Write permanent quotas to Kafka, and store temporary ones, which the leading planner watches."""
        entity, edits = entity_from_message(request.quota.entity), values_from_message(request.quota.values)
        validate_edits(entity, edits)
        values, who = edited({}, edits), author(context)
        temporary = temporary_from_message(request.quota, entity, values, who, datetime.now(UTC))
        current = self._temporary.read()
        if temporary is None:
            _check_permanent(current.get(entity), edits)
            change = ClientQuotaChange(entity, edits, request.quota.etag, request.validate_only)
            old_values = self._alter(AuditAction.SET_QUOTA, change, context)
        else:
            _check_count(current, entity)
            old_values = self._set_temporary(temporary, request, context)
        return quotas_pb2.SetQuotaResponse(
            quota=quota_to_message(entity, edited(old_values, edits), temporary),
            before=values_to_message(old_values),
            warnings=_warnings(entity.user),
        )

    def _set_temporary(
        self, temporary: TemporaryQuota, request: quotas_pb2.SetQuotaRequest, context: grpc.ServicerContext
    ) -> QuotaValues:
        """Check a temporary quota, also with Kafka's own checks, and store it; return the current quotas."""
        old_values = self._quotas.alter_quota(
            ClientQuotaChange(temporary.entity, temporary.values, etag=request.quota.etag, validate_only=True),
            time_left(context),
        )
        if temporary.until_recovered and not self._is_recovering(time_left(context)):
            raise Conflict(
                "no reassignment and no catch-up runs, so no recovery would end and restore the quotas; "
                "start one first, or give an expire time alone"
            )
        if not request.validate_only:
            self._temporary.put(temporary.entity, temporary)
            log_action(AuditAction.SET_QUOTA, temporary.author, quota_sentence(temporary))
        return old_values

    def _is_recovering(self, timeout: timedelta) -> bool:
        return bool(self._catch_ups.read() or self._discovery.fetch_snapshot(timeout=timeout).reassignments)

    def RemoveQuota(
        self, request: quotas_pb2.RemoveQuotaRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.RemoveQuotaResponse:
        """Remove quotas from Kafka, or end a temporary one."""
        entity, keys = entity_from_message(request.entity), tuple(map(parse_key, request.keys))
        edits: QuotaEdits = dict.fromkeys(keys or sorted(keys_of(entity)))
        temporary = self._temporary.read().get(entity)
        if temporary is not None and not temporary.values.keys().isdisjoint(edits):
            old_values = self._end(temporary, request, context)
        else:
            change = ClientQuotaChange(entity, edits, request.etag, request.validate_only)
            old_values = self._alter(AuditAction.REMOVE_QUOTA, change, context)
            if old_values.keys().isdisjoint(edits):
                names = f" {', '.join(keys)}" if keys else ""
                raise Missing(f"no quota{names} is set for {entity}; ListQuotas shows the existing ones")
        return quotas_pb2.RemoveQuotaResponse(
            quota=quota_to_message(entity, edited(old_values, edits)), before=values_to_message(old_values)
        )

    def _end(
        self, temporary: TemporaryQuota, request: quotas_pb2.RemoveQuotaRequest, context: grpc.ServicerContext
    ) -> QuotaValues:
        """End a temporary quota; return the current quotas."""
        entity, who = temporary.entity, author(context)
        old_values = self._quotas.fetch_quotas(time_left(context), (entity,)).quotas.get(entity, {})
        check_etag(entity, request.etag, old_values)
        if not request.validate_only and self._temporary.remove(entity, who):
            log_action(AuditAction.REMOVE_QUOTA, who, f"Temporary quota of {entity} ended")
        return old_values

    def _alter(self, action: AuditAction, change: ClientQuotaChange, context: grpc.ServicerContext) -> QuotaValues:
        """Edit quotas and record that, also if it fails; return the quotas before. A dry run leaves no record."""
        entity, edits = change.entity, change.edits
        validate_edits(entity, edits)
        self._check_ledger(entity, edits, time_left(context))
        who, timeout = author(context), time_left(context)
        if change.validate_only:
            return self._quotas.alter_quota(change, timeout)
        with self._actions.failure_recorded(action, who):
            old_values = self._quotas.alter_quota(change, timeout)
        if changes := _changes(old_values, edits):
            self._actions.record(action, who, f"Quota of {entity}: {changes}")
        return old_values

    def _check_ledger(self, entity: ClientQuotaEntity, edits: QuotaEdits, timeout: timedelta) -> None:
        """Refuse a permanent change of keys in the ledger: the end of the recovery would undo it."""
        state = self._discovery.fetch_quota_state((entity.resource,), timeout)
        entry, current = state.ledger.get(entity.resource), state.configs.get(entity.resource, {})
        if entry is not None and (keys := sorted(edits.keys() & entry.records(current).keys())):
            raise Conflict(
                f"autothrottle has set {', '.join(keys)} of {entity} for the time of a recovery, and restores the "
                "values before it afterwards; wait for the end of the recovery, remove the yield rule, or give an "
                "expire time"
            )

    def ListYieldRules(
        self, request: quotas_pb2.ListYieldRulesRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.ListYieldRulesResponse:
        rules = self._rules.read()
        return quotas_pb2.ListYieldRulesResponse(
            rules=[rule_to_message(rule) for _, rule in sorted(rules.items())],
            warnings=unreadable_entries(rules).values(),
        )

    def SetYieldRule(
        self, request: quotas_pb2.SetYieldRuleRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.SetYieldRuleResponse:
        """Store a rule, which the leading planner watches."""
        rule = validate_rule(rule_from_message(request.rule, author(context), datetime.now(UTC)), request.force)
        current = self._rules.read()
        with_rule(current, rule.name, rule)
        if not request.validate_only:
            self._rules.put(rule.name, rule)
            log_action(AuditAction.SET_QUOTA, rule.author, f"Yield rule {rule.name}: {rule_sentence(rule)}")
        return quotas_pb2.SetYieldRuleResponse(
            rule=rule_to_message(rule),
            before=rule_to_message(current[rule.name]) if rule.name in current else None,
            warnings=_warnings(rule.user),
        )

    def RemoveYieldRule(
        self, request: quotas_pb2.RemoveYieldRuleRequest, context: grpc.ServicerContext
    ) -> quotas_pb2.RemoveYieldRuleResponse:
        rule, who = self._rules.read().get(request.name), author(context)
        if rule is None or not (request.validate_only or self._rules.remove(request.name, who)):
            raise Missing(f"no yield rule is called {request.name[:80]!r}; ListYieldRules shows the existing ones")
        if not request.validate_only:
            log_action(AuditAction.REMOVE_QUOTA, who, f"Yield rule {request.name} removed")
        return quotas_pb2.RemoveYieldRuleResponse(before=rule_to_message(rule))


def _check_permanent(temporary: TemporaryQuota | None, edits: QuotaEdits) -> None:
    """Refuse a permanent quota of a key with a temporary one, whose end would replace it."""
    if temporary is not None and (keys := sorted(temporary.values.keys() & edits.keys())):
        raise Conflict(
            f"{temporary.entity} has a temporary quota of {', '.join(keys)}; remove it first, or give an expire time"
        )


def _check_count(current: TemporaryQuotas, entity: ClientQuotaEntity) -> None:
    if entity not in current and len(current) >= MAX_TEMPORARY_QUOTAS:
        raise Conflict(f"{len(current)} entities have temporary quotas, which is the limit; remove one first")


def _changes(old_values: QuotaValues, edits: QuotaEdits) -> str:
    """Return what changed: `producer_byte_rate 5 (before: not set)`; "" if nothing did."""
    return ", ".join(
        f"{key} {_text(key, value)} (before: {_text(key, old_values.get(key))})"
        for key, value in edits.items()
        if value != old_values.get(key)
    )


def _text(key: QuotaKey, value: float | None) -> str:
    return "not set" if value is None else format_value(key, value)


def _warnings(user: object) -> list[str]:
    if isinstance(user, str) and user.startswith("User:"):
        return [f"Kafka compares the name without the type: {user!r} is not the user {user[5:]!r}"]
    return []


# Conversion to and from messages.


def entity_from_message(message: quotas_pb2.QuotaEntity) -> ClientQuotaEntity:
    """Convert and validate an entity.

    Raises:
        Invalid: a part is given as a name and as the default, or the entity is not valid.
    """
    parts = []
    for part in ("user", "client_id", "ip"):
        name = getattr(message, part) if message.HasField(part) else None
        parts.append(name_or_default(part.replace("_", "-"), name, getattr(message, f"default_{part}")))
    return validate_entity(ClientQuotaEntity(*parts))


def entity_to_message(entity: ClientQuotaEntity) -> quotas_pb2.QuotaEntity:
    message = quotas_pb2.QuotaEntity()
    for kind, name in entity.parts.items():
        part = kind.replace("-", "_")
        setattr(message, *((part, name) if isinstance(name, str) else (f"default_{part}", True)))
    return message


def values_from_message(message: quotas_pb2.QuotaValues) -> QuotaEdits:
    """Return the quotas that are given; the fields of the message have the names of Kafka's keys."""
    given = {field.name: value for field, value in message.ListFields()}
    return {key: given[key] for key in QuotaKey if key in given}


def values_to_message(values: QuotaValues) -> quotas_pb2.QuotaValues:
    message = quotas_pb2.QuotaValues()
    for key, value in values.items():
        setattr(message, key, int(value) if key.is_integer else value)
    return message


def quota_to_message(
    entity: ClientQuotaEntity, values: QuotaValues, temporary: TemporaryQuota | None = None
) -> quotas_pb2.Quota:
    return SAME_NAMES.to_message(
        quotas_pb2.Quota,
        temporary,
        entity=entity_to_message(entity),
        values=values_to_message(values),
        etag=quota_etag(values),
    )


def quotas_to_messages(quotas: ClientQuotas, temporary: TemporaryQuotas) -> list[quotas_pb2.Quota]:
    """Return one message for each entity with quotas, or with temporary ones that the planner has not set yet."""
    ordered = sorted({*quotas, *temporary}, key=lambda entity: entity.order)
    return [quota_to_message(entity, quotas.get(entity, {}), temporary.get(entity)) for entity in ordered]


def temporary_from_message(
    message: quotas_pb2.Quota, entity: ClientQuotaEntity, values: QuotaValues, author: str, now: datetime
) -> TemporaryQuota | None:
    """Return the temporary quota of a request; None: the quota is permanent.

    Raises:
        Invalid: the expire time is not a time after `now`.
    """
    expire_time = expire_time_from_message(message)
    if expire_time is None and not message.until_recovered:
        return None
    if expire_time is not None:
        validate_expire_time(expire_time, now)
    return TemporaryQuota(entity, values, author, now, expire_time, message.until_recovered)


def rule_from_message(message: quotas_pb2.YieldRule, author: str, now: datetime) -> YieldRule:
    """Convert a rule that `author` sets now; `validate_rule` checks it.

    Raises:
        Invalid: a key does not exist.
    """
    keys = frozenset(map(parse_key, message.keys)) or BYTE_RATES
    return SAME_NAMES.from_message(YieldRule, message, keys=keys, author=author, time=now)


def rule_to_message(rule: YieldRule) -> quotas_pb2.YieldRule:
    return SAME_NAMES.to_message(quotas_pb2.YieldRule, rule, sentence=rule_sentence(rule))


_EFFECTIVE = Conversion(
    converters={
        ClientQuotaEntity: Converter(entity_to_message, entity_from_message),
        QuotaKey: Converter(str, QuotaKey),
    }
)
