"""Request quotas of a process that serves our API: which responses are delayed, and for how long.

The rules are in `core.request_quotas`. A delayed response holds no slot of `call_limits`, and a delayed gRPC call has
one of `MOST_DELAYED` threads beyond those of the limits. So it takes nothing from callers within their quotas. The type
to know is `RequestQuotas`.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter

import grpc

from autothrottle.core.access import Caller, Role
from autothrottle.core.exported_metrics import REQUEST_RATE, REQUEST_THROTTLE_TIME, MetricSample
from autothrottle.core.request_quotas import (
    ANONYMOUS,
    SAMPLE_SECONDS,
    CallerQuota,
    RequestQuotaEntity,
    RequestRates,
    RequestSensor,
    client_id_or_none_given,
    quota_of,
)
from autothrottle.ports.state_store import RequestQuotaStore
from autothrottle.runtime.call_limits import MOST_DELAYED, LimitReached, Slots

CLIENT_ID = "client-id"
"""Key of the metadata, and name of the header, by which a client names itself."""

THROTTLE_TIME = "request-throttle-time-ms"
"""Key of the trailing metadata, and name of the header, with the delay of a response in milliseconds."""

MOST_SENSORS = 1_000
"""Entities whose requests are counted at a time. Beyond it, the one that called the longest ago starts anew."""

MOST_LABELLED = 50
"""Entities with exported metrics: those with the highest request rates."""


@dataclass(frozen=True, slots=True)
class RequestThrottle:
    """The delay of one response."""

    seconds: float
    """From the arrival of the request; 0: none."""
    until: float
    """When the response may leave, on the clock of the quotas."""
    clock: Callable[[], float]

    @property
    def seconds_left(self) -> float:
        """Seconds until the response may leave."""
        return max(0.0, self.until - self.clock())

    @property
    def header(self) -> tuple[str, str]:
        """The pair for trailing metadata and headers."""
        return THROTTLE_TIME, str(round(self.seconds * 1000))


REFUSAL_HEADER = (THROTTLE_TIME, str(round(SAMPLE_SECONDS * 1000)))
"""The pair of a refused request: the time after which the caller may try again."""


class RequestQuotas:
    """The request quotas of a process and its sensors; no quotas until it follows a store. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._rates: RequestRates = {}
        self._sensors: OrderedDict[RequestQuotaEntity, RequestSensor] = OrderedDict()
        """The entity that called the longest ago comes first; guarded by `_lock`."""
        self._lock = threading.Lock()
        self._delayed = Slots("this process", "delayed responses", MOST_DELAYED)

    def follow(self, store: RequestQuotaStore) -> None:
        """Apply the quotas of a store as soon as they are read. While it does not answer, the last ones apply."""

        def apply(rates: RequestRates) -> None:
            self._rates = rates

        store.follow(apply)

    @contextmanager
    def reserved(self, caller: Caller, client_id: str) -> Iterator[RequestThrottle | None]:
        """Count a request; its response must wait until the yielded throttle ends. None: no quota applies.

        Raises:
            LimitReached: the caller has so many delayed requests that this one would wait for more than a second.
        """
        quota = self._quota_of(caller, client_id) if self._rates else None
        if quota is None:
            yield None
            return
        with ExitStack() as slots:
            with self._lock:
                now = self._clock()
                sensor = self._sensor(quota.entity, now)
                delay = sensor.delay(now, quota.rate)
                if delay > SAMPLE_SECONDS:
                    raise LimitReached(_refusal(quota, delay))
                if delay:
                    slots.enter_context(self._delayed.slot(str(quota.entity)))
                sensor.count(now, delay)
            yield RequestThrottle(delay, now + delay, self._clock)

    @contextmanager
    def throttled(self, caller: Caller, context: grpc.ServicerContext) -> Iterator[None]:
        """Delay the end of the context, so that the response of a gRPC call leaves after its throttle time.

        An error is a response, too. A stream is delayed at its beginning.
        """
        if not self._rates:
            yield
            return
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            with self.reserved(caller, metadata.get(CLIENT_ID, "")) as throttle:
                try:
                    yield
                finally:
                    if throttle is not None:
                        time.sleep(throttle.seconds_left)
                        context.set_trailing_metadata((*(context.trailing_metadata() or ()), throttle.header))
        except LimitReached as error:
            context.set_trailing_metadata((REFUSAL_HEADER,))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    def samples(self) -> Iterable[MetricSample]:
        """Return the request rate and the throttle time of the busiest entities."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            rates = ((sensor.rate(now), sensor.average_delay(now), who) for who, sensor in self._sensors.items())
            busiest = heapq.nlargest(MOST_LABELLED, rates, key=itemgetter(0))
        for rate, delay, who in busiest:
            labels = (who.user or "", who.client_id or "")
            yield REQUEST_RATE.sample(rate, *labels)
            yield REQUEST_THROTTLE_TIME.sample(delay, *labels)

    def _quota_of(self, caller: Caller, client_id: str) -> CallerQuota | None:
        """Return the quota of a caller; services of autothrottle have none if their credentials prove them."""
        if caller.is_proven and caller.role is Role.SERVICE:
            return None
        return quota_of(self._rates, caller.name or ANONYMOUS, client_id_or_none_given(client_id))

    def _sensor(self, entity: RequestQuotaEntity, now: float) -> RequestSensor:
        sensor = self._sensors.setdefault(entity, RequestSensor())
        self._sensors.move_to_end(entity)
        self._expire(now, keep=1)
        return sensor

    def _expire(self, now: float, keep: int = 0) -> None:
        while len(self._sensors) > keep:
            first = next(iter(self._sensors))
            if len(self._sensors) <= MOST_SENSORS and not self._sensors[first].is_idle(now):
                return
            del self._sensors[first]


def _refusal(quota: CallerQuota, delay: float) -> str:
    return (
        f"{quota.entity} has a request quota of {quota.rate} requests/s and so many requests in progress that this one "
        f"would wait for {delay:.1f} s. Fix: send fewer requests at a time, try again in a second, or ask an operator "
        "for another quota (throttlectl request-quota set)."
    )
