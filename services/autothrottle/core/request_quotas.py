"""Request quotas: how many requests per second a caller of our own API may send, and how long a response is delayed.

Source: KIP-124. The types to know are `RequestQuotaEntity` and `RequestSensor`. Times are seconds of one monotonic
clock.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autothrottle.core.codec import LEFT_OUT
from autothrottle.core.errors import Invalid

SAMPLES = 11
"""Samples that a sensor keeps, as Kafka's quota.window.num."""

SAMPLE_SECONDS = 1.0
"""Length of a sample, as Kafka's quota.window.size.seconds. No response is delayed longer than this."""

MAX_REQUEST_RATE = 1_000_000
"""Largest quota, in requests per second."""

MAX_REQUEST_QUOTAS = 1_000
"""Largest number of quotas; all are in one node of the state store."""

MAX_USER = 255
"""Longest name of a user, in characters."""

ANONYMOUS = "anonymous"
"""The user of callers without credentials."""

_CLIENT_ID = re.compile(r"[ -~]{1,128}")


@dataclass(frozen=True, slots=True)
class RequestQuotaEntity:
    """The callers to which a quota applies. Either `user` or `client_id` may be None, but not both."""

    user: str | None = field(default=None, metadata=LEFT_OUT)
    """Name in the caller's certificate or of its token; "": every user without a quota of its own; None: any user."""
    client_id: str | None = field(default=None, metadata=LEFT_OUT)
    """The id by which a client names itself; "": every client id without a quota of its own; None: any client id."""

    def __str__(self) -> str:
        """Return the entity for messages.

        >>> print(RequestQuotaEntity("anna", ""), RequestQuotaEntity("anna"), RequestQuotaEntity("", "ci"), sep="; ")
        user anna, default client id; user anna; default user, client id ci
        """
        parts = (("user", self.user), ("client id", self.client_id))
        return ", ".join(f"{kind} {name}" if name else f"default {kind}" for kind, name in parts if name is not None)


RequestRates = Mapping[RequestQuotaEntity, int]
"""Entity -> its quota in requests per second, 1 to 1,000,000; absent: no quota."""


class CallerQuota(NamedTuple):
    """The quota of one caller."""

    entity: RequestQuotaEntity
    """The callers that share the quota."""
    rate: int
    """Requests per second."""


def quota_of(rates: RequestRates, user: str, client_id: str) -> CallerQuota | None:
    """Return the quota of a caller: the first one in Kafka's order of precedence (KIP-55); None: no quota applies.

    >>> rates = {RequestQuotaEntity("anna"): 100, RequestQuotaEntity("", ""): 10, RequestQuotaEntity(None, "ci"): 1}
    >>> quota_of(rates, "anna", "ci")
    CallerQuota(entity=RequestQuotaEntity(user='anna', client_id=None), rate=100)
    >>> quota_of(rates, "ben", "ci")
    CallerQuota(entity=RequestQuotaEntity(user='ben', client_id='ci'), rate=10)
    """
    for of_user in (user, "", None):
        for of_client in (client_id, "", None):
            rate = rates.get(RequestQuotaEntity(of_user, of_client))
            if rate is not None:
                who = RequestQuotaEntity(None if of_user is None else user, None if of_client is None else client_id)
                return CallerQuota(who, rate)
    return None


def throttle_time(observed: float, quota: float, window: float) -> float:
    """Return the delay in seconds that brings the observed rate down to the quota, at most `SAMPLE_SECONDS`.

    The delay X solves `observed * window / (window + X) = quota`, so `X = (observed - quota) / quota * window`.

    1,050 requests in 10 s, where 100 per second are allowed: after 0.5 s, they are 1,050 in 10.5 s, which is the quota.

    >>> throttle_time(observed=105, quota=100, window=10)
    0.5
    >>> 105 * 10 / (10 + 0.5)
    100.0

    Ten times the quota would need 90 s. The delay is cut to the length of a sample.

    >>> throttle_time(observed=1000, quota=100, window=10)
    1.0

    A rate up to the quota is not delayed.

    >>> throttle_time(observed=100, quota=100, window=10)
    0.0

    Args:
        observed: requests per second over the window, >= 0.
        quota: requests per second, > 0.
        window: length of the window in seconds, > 0.
    """
    return min(max(0.0, (observed - quota) / quota * window), SAMPLE_SECONDS)


@dataclass(slots=True)
class _Sample:
    number: int
    count: int = 0
    delays: float = 0.0


class RequestSensor:
    """Counts the requests of one entity in samples, and spaces out its responses while it exceeds its quota.

    Responses of one entity leave one after the other, each after its own throttle time. So an entity is held to its
    quota with any number of requests in progress. Kafka reaches the same by not reading from a throttled connection.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._free_at = 0.0
        """When the response to the last counted request may leave."""

    def delay(self, now: float, quota: float) -> float:
        """Return how long the response to another request would have to wait, in seconds.

        It is at most `SAMPLE_SECONDS` if no earlier response waits.
        """
        start = max(now, self._free_at)
        self._expire(start)
        observed = (self._count + 1) / self._window(start)
        return start - now + throttle_time(observed, quota, self._window(start))

    def count(self, now: float, delay: float) -> None:
        """Count a request whose response waits for `delay`, as returned for the same time."""
        start = max(now, self._free_at)
        number = int(start // SAMPLE_SECONDS)
        if not self._samples or self._samples[-1].number != number:
            self._samples.append(_Sample(number))
        self._samples[-1].count += 1
        self._samples[-1].delays += delay
        self._free_at = now + delay

    def is_idle(self, now: float) -> bool:
        """Whether it has no sample left, so that a new sensor would be equal to it."""
        self._expire(now)
        return not self._samples and self._free_at <= now

    def rate(self, now: float) -> float:
        """Return the requests per second in the current samples."""
        self._expire(now)
        return self._count / self._window(now)

    def average_delay(self, now: float) -> float:
        """Return the mean delay of the responses in the current samples, in seconds; 0: there are none."""
        self._expire(now)
        return sum(sample.delays for sample in self._samples) / max(1, self._count)

    @property
    def _count(self) -> int:
        return sum(sample.count for sample in self._samples)

    def _window(self, now: float) -> float:
        """The time since the first sample began, at least one sample, as Kafka's SimpleRate."""
        first = self._samples[0].number * SAMPLE_SECONDS if self._samples else now
        return max(now - first, SAMPLE_SECONDS)

    def _expire(self, now: float) -> None:
        oldest = int(now // SAMPLE_SECONDS) - SAMPLES + 1
        while self._samples and self._samples[0].number < oldest:
            self._samples.popleft()


def client_id_or_none_given(text: str) -> str:
    """Return a client id as a caller gives it; "": none is given, or it is not 1 to 128 printable ASCII characters.

    >>> client_id_or_none_given("ci"), client_id_or_none_given("a" * 129)
    ('ci', '')
    """
    return text if _CLIENT_ID.fullmatch(text) else ""


def validate_request_quota_entity(entity: RequestQuotaEntity) -> RequestQuotaEntity:
    """Return the entity.

    Raises:
        Invalid: it names neither a user nor a client id, or a name is too long or not printable.
    """
    user, client_id = entity.user, entity.client_id
    if user is None and client_id is None:
        raise Invalid("a request quota needs a user, a client id or both; give an empty one for the default")
    if user and (len(user) > MAX_USER or not user.isprintable()):
        raise Invalid(f"user {user[:40]!r} has {len(user)} characters; give at most {MAX_USER} printable ones")
    validate_client_id(client_id or "")
    return entity


def validate_client_id(client_id: str) -> str:
    """Return the client id; "" is none.

    Raises:
        Invalid: it is not 1 to 128 printable ASCII characters.
    """
    if client_id and not _CLIENT_ID.fullmatch(client_id):
        raise Invalid(f"client id {client_id[:40]!r} is not valid; give 1 to 128 printable ASCII characters")
    return client_id


def validate_request_rate(rate: int) -> int:
    """Return the rate of a quota.

    Raises:
        Invalid: it is not in 1..1,000,000 requests per second.
    """
    if not 1 <= rate <= MAX_REQUEST_RATE:
        raise Invalid(
            f"request rate {rate} is outside of 1..{MAX_REQUEST_RATE} requests per second; give a rate in this range, "
            "or remove the quota"
        )
    return rate


def with_request_quota(rates: RequestRates, entity: RequestQuotaEntity, rate: int) -> RequestRates:
    """Return the quotas with the one of an entity added or replaced.

    Raises:
        Invalid: there would be more than 1,000.
    """
    quotas = {**rates, entity: rate}
    if len(quotas) > max(MAX_REQUEST_QUOTAS, len(rates)):
        raise Invalid(f"{len(rates)} request quotas are set, which is the limit; remove one, or set a default")
    return quotas


def in_order(rates: RequestRates) -> Iterator[tuple[RequestQuotaEntity, int]]:
    """Yield the quotas in a fixed order: by user, then by client id; defaults first, absent parts last."""
    for entity in sorted(rates, key=lambda each: [(name is None, name or "") for name in (each.user, each.client_id)]):
        yield entity, rates[entity]
