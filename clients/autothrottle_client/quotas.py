"""Kafka's client quotas: entities, values, rules for clients that yield, and the calls of the quota service.

The types to know are `QuotaEntity`, `QuotaValues`, `YieldRule` and `QuotaCalls`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.units import MAX_RATE
from autothrottle.v1 import quotas_pb2
from autothrottle.v1.quotas_pb2_grpc import QuotaServiceStub
from autothrottle_client.model import from_message, to_timestamp
from autothrottle_client.replicas import Replica, ServiceCalls

UNLIMITED = MAX_RATE
"""A byte rate of a client without a limit, for example to exempt a user from the default quota."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """A user, a client id, both, or an IP address. Each part is a name or the default for all other names."""

    user: str | None = None
    """Name of the principal without its type: `alice`, not `User:alice`; None: no user, or the default."""
    default_user: bool = False
    client_id: str | None = None
    """None: no client id, or the default."""
    default_client_id: bool = False
    ip: str | None = None
    """None: no address, or the default. Excludes users and client ids."""
    default_ip: bool = False

    def __str__(self) -> str:
        kinds = (
            ("user", self.user, self.default_user),
            ("client-id", self.client_id, self.default_client_id),
            ("ip", self.ip, self.default_ip),
        )
        named = (f"{kind} {name!r}" if name is not None else f"default {kind}" for kind, name, d in kinds if d or name)
        return ", ".join(named)


@dataclass(frozen=True, slots=True)
class QuotaValues:
    """The quotas of an entity; None: not set."""

    producer_byte_rate: int | None = None
    """Bytes/s that each broker accepts from producers, 1 to 2^53, or `UNLIMITED`."""
    consumer_byte_rate: int | None = None
    """Bytes/s that each broker sends to consumers, 1 to 2^53, or `UNLIMITED`."""
    request_percentage: float | None = None
    """Share of one thread's time on each broker, in percent, > 0."""
    controller_mutation_rate: float | None = None
    """Partitions created or deleted per second in the cluster, > 0."""
    connection_creation_rate: int | None = None
    """Connections/s that each broker accepts, 1 to 2^31-1; only for IP addresses."""


@dataclass(frozen=True, slots=True)
class Quota:
    """An entity and its quotas."""

    entity: QuotaEntity
    values: QuotaValues
    etag: str = ""
    """Version of all quotas of the entity."""
    expire_time: datetime | None = None
    """When its temporary quotas end, UTC; None: not at a given time."""
    until_recovered: bool = False
    """Whether its temporary quotas end when no reassignment and no catch-up is left."""


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """The quota that applies to a client for one key."""

    key: str
    value: float
    """In the unit."""
    unit: str
    entity: QuotaEntity
    """The entity whose quota applies."""
    level: int
    """Which of Kafka's levels decides: 1 (the user and the client id) to 8 (the default client id)."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """The quotas of one entity before and after a change."""

    quota: Quota
    """After the change."""
    before: QuotaValues
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class YieldRuleChange:
    """A rule before and after a change."""

    rule: YieldRule
    """After the change."""
    before: YieldRule | None = None
    """None: the rule is new."""
    warnings: tuple[str, ...] = ()


class QuotaCalls(ServiceCalls[QuotaServiceStub]):
    """The methods of the quota service. Every method may raise Unavailable: no replica answered in time."""

    stub = QuotaServiceStub

    def list(self) -> tuple[tuple[Quota, ...], tuple[str, ...]]:
        """Return (the quotas of all entities, warnings); each warning names a quota that cannot be read."""
        response = self._unary(lambda stub: stub.ListQuotas, quotas_pb2.ListQuotasRequest())
        return tuple(from_message(Quota, quota) for quota in response.quotas), tuple(response.warnings)

    def describe(
        self, user: str | None = None, client_id: str | None = None, ip: str | None = None
    ) -> tuple[EffectiveQuota, ...]:
        """Return the quotas that apply to one client, each with the level that decides it.

        Raises:
            Invalid: neither a user, a client id nor an address is given, or an address beside the others.
        """
        request = quotas_pb2.DescribeQuotaRequest(user=user, client_id=client_id, ip=ip)
        response = self._unary(lambda stub: stub.DescribeQuota, request)
        return tuple(from_message(EffectiveQuota, quota) for quota in response.quotas)

    def set(
        self,
        entity: QuotaEntity,
        values: QuotaValues,
        etag: str = "",
        validate_only: bool = False,
        expire_time: datetime | None = None,
        until_recovered: bool = False,
    ) -> QuotaChange:
        """Set quotas of one entity; quotas that are None stay.

        With `expire_time` or `until_recovered` they are temporary: the leading planner sets them within about a second,
        and restores the quotas before them when they end.

        A call with an etag is sent at most once, because a retry would fail with Conflict.

        Args:
            entity: the entity.
            values: the quotas to set, at least one.
            etag: change only this version; empty: any version.
            validate_only: check the request only.
            expire_time: time at which the quotas end, in the future and with a time zone; None: no such time.
            until_recovered: end the quotas when no reassignment and no catch-up is left.

        Raises:
            Invalid: the entity, a value or the time is wrong.
            Conflict: the current quotas are not those of the etag, a temporary quota of the same key exists, or no
                recovery runs.
        """
        quota = quotas_pb2.Quota(
            entity=quotas_pb2.QuotaEntity(**asdict(entity)),
            values=quotas_pb2.QuotaValues(**asdict(values)),
            etag=etag,
            expire_time=to_timestamp(expire_time),
            until_recovered=until_recovered,
        )
        request = quotas_pb2.SetQuotaRequest(quota=quota, validate_only=validate_only)
        return from_message(
            QuotaChange, self._unary(lambda stub: stub.SetQuota, request, probe=_list_quotas if etag else None)
        )

    def remove(
        self, entity: QuotaEntity, keys: Sequence[str] = (), etag: str = "", validate_only: bool = False
    ) -> QuotaChange:
        """Remove quotas of one entity, or end its temporary ones. Sent at most once: a retry would fail with Missing.

        Args:
            entity: the entity.
            keys: Kafka's keys, for example `producer_byte_rate`; empty: all quotas of the entity.
            etag: remove only from this version; empty: from any version.
            validate_only: check the request only.

        Raises:
            Missing: the entity has none of these quotas.
            Invalid: the entity or a key is wrong.
            Conflict: the current quotas are not those of the etag.
        """
        request = quotas_pb2.RemoveQuotaRequest(
            entity=quotas_pb2.QuotaEntity(**asdict(entity)), keys=keys, etag=etag, validate_only=validate_only
        )
        return from_message(QuotaChange, self._unary(lambda stub: stub.RemoveQuota, request, probe=_list_quotas))

    def list_rules(self) -> tuple[YieldRule, ...]:
        """Return the rules for clients that yield to a recovery, by name."""
        response = self._unary(lambda stub: stub.ListYieldRules, quotas_pb2.ListYieldRulesRequest())
        return tuple(from_message(YieldRule, rule) for rule in response.rules)

    def set_rule(self, rule: YieldRule, validate_only: bool = False, force: bool = False) -> YieldRuleChange:
        """Add a rule, or replace the one of this name.

        Args:
            rule: the rule.
            validate_only: check the request only.
            force: confirms a rule that matches every client.

        Raises:
            Invalid: a value is wrong, or the rule matches every client without `force`.
            Conflict: there would be more than 100 rules.
        """
        request = quotas_pb2.SetYieldRuleRequest(
            rule=quotas_pb2.YieldRule(**asdict(rule)), validate_only=validate_only, force=force
        )
        return from_message(YieldRuleChange, self._unary(lambda stub: stub.SetYieldRule, request))

    def remove_rule(self, name: str, validate_only: bool = False) -> YieldRule:
        """Remove a rule and return it. Sent at most once: a retry would fail with Missing.

        Args:
            name: name of the rule.
            validate_only: check the request only.

        Raises:
            Missing: no rule has this name.
        """
        request = quotas_pb2.RemoveYieldRuleRequest(name=name, validate_only=validate_only)
        response = self._unary(lambda stub: stub.RemoveYieldRule, request, probe=_list_quotas)
        return from_message(YieldRule, response.before)


def _list_quotas(replica: Replica, seconds: float) -> None:
    """Return if the service can read the quotas: the probe of calls that are sent once."""
    QuotaServiceStub(replica.channel).ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=seconds)
