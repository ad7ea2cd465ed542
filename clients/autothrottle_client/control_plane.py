"""A rate limiter that yields to recoveries: it follows the cycles of the leading planner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import timedelta

from autothrottle.core.records import Cycle
from autothrottle.core.retries import LIMITER
from autothrottle.rate_limiters import ByteRateLimiter, Clock, ConfigKey, RecordBatch, rate
from autothrottle_client.admin import AdminClient
from autothrottle_client.client import CycleWatch
from autothrottle_client.errors import AutothrottleError, Invalid
from autothrottle_client.replicas import parse_addresses
from autothrottle_client.texts import about_rate

log = logging.getLogger(__name__)

_SILENCE = timedelta(seconds=2)
"""Longest silence before the limiter checks that its planner still leads."""

_TIMEOUT = timedelta(seconds=2)
"""Time to find the leader, after which the limiter reports that the admin service does not answer."""


def _addresses(name: str, given: object) -> tuple[str, ...]:
    try:
        return tuple(parse_addresses(given if isinstance(given, str) else ""))
    except Invalid as error:
        raise ValueError(f"{name}: {error}") from None


class ControlPlaneRateLimiter(ByteRateLimiter):
    """Limits bytes per second to one limit while a recovery runs, and to another one otherwise.

    A recovery runs while the leading planner's last cycle has topics in reassignment or brokers that catch up. Until
    the first cycle is known, the limit of a recovery applies. While admin or the planner cannot be reached, the last
    limit stays, `following` is False, and the log has a warning. A stream of cycles that is still open is followed.
    """

    addresses = ConfigKey("control.plane.addresses", "Addresses of all admin services, separated by commas", _addresses)
    recovering_limit = ConfigKey(
        "recovering.byte.rate.limit", "Bytes per second while a recovery runs, above 0. Required", rate
    )

    def __init__(self, admin: AdminClient | None = None) -> None:
        """Create the limiter.

        Args:
            admin: client of the admin service, for example with TLS; the caller closes it. None: plain connections to
                `control.plane.addresses`.
        """
        super().__init__()
        self._admin, self._owns_admin = admin, admin is None
        self._addresses: tuple[str, ...] = ()
        self._other: float | None = None
        self._low = 0.0
        self._next_limit: float | None = None
        self._following: bool | None = None
        self._closed = threading.Event()
        self._watch: CycleWatch | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def config(cls) -> tuple[ConfigKey, ...]:
        """Return its keys; `byte.rate.limit` is the limit while no recovery runs."""
        return cls.key, cls.recovering_limit, cls.addresses

    @property
    def following(self) -> bool:
        """Whether the limit is current: cycles arrive, or the services confirmed the leader in the last seconds."""
        return self._following is True

    def configure(self, configs: Mapping[str, object]) -> None:
        """Read the configuration.

        Raises:
            ValueError: a key is missing, a value is out of range, or the limit of a recovery is above the other one.
        """
        other, low = self.key.value(configs), self.recovering_limit.value(configs)
        addresses = self.addresses.value(configs) or ()
        if low is None:
            raise ValueError(
                f"{self.recovering_limit.name} is missing. Fix: give bytes per second, for example 2000000"
            )
        if other is not None and low > other:
            raise ValueError(
                f"{self.recovering_limit.name} {low:g} is above {self.key.name} {other:g}. Fix: lower it, or raise that"
            )
        if not addresses and self._admin is None:
            raise ValueError(f"{self.addresses.name} is missing. Fix: give host:port of the admin services")
        self._addresses, self._other, self._low, self._next_limit = addresses, other, low, low
        self.change_limit(low)

    def start(self, clock: Clock) -> None:
        """Start limiting, and following the planner in a thread."""
        super().start(clock)
        if self._owns_admin:
            self._admin = AdminClient(self._addresses, _TIMEOUT)
        self._thread = threading.Thread(target=self._follow, name="control-plane-rate-limiter", daemon=True)
        self._thread.start()

    def accumulate(self, batch: RecordBatch) -> None:
        """Account for a batch at the current limit."""
        self._adopt()
        super().accumulate(batch)

    def throttle_time(self) -> timedelta:
        """Return the pause at the current limit."""
        self._adopt()
        return super().throttle_time()

    def close(self) -> None:
        """Stop following. Takes at most some seconds. Idempotent."""
        self._closed.set()
        if (watch := self._watch) is not None:
            watch.close()
        if self._thread is not None:
            self._thread.join()
        if self._owns_admin and self._admin is not None:
            self._admin.close()

    def _adopt(self) -> None:
        """Use the limit that the following thread wants: only the task's thread changes the limiter."""
        if (limit := self._next_limit) != self._limit:
            self.change_limit(limit)

    def _follow(self) -> None:
        assert self._admin is not None
        while not self._closed.is_set():
            try:
                with self._admin.watch_cycles(
                    silence=_SILENCE, on_loss=self._note_contact, on_check=self._note_contact
                ) as watch:
                    self._watch = watch
                    if self._closed.is_set():  # `close` may have been too early to see the watch
                        return
                    for cycle in watch:
                        self._note_cycle(cycle)
            except AutothrottleError as error:
                self._note_contact(error)
            self._closed.wait(LIMITER.first)

    def _note_cycle(self, cycle: Cycle) -> None:
        if not cycle.error:  # otherwise the reassignments are unknown: keep the limit
            limit = self._low if cycle.topics else self._other
            if limit != self._next_limit:
                state = "A recovery runs" if cycle.topics else "No recovery runs"
                log.info("%s: the limit is %s", state, _words(limit))
            self._next_limit = limit
        self._note_contact(None)

    def _note_contact(self, error: AutothrottleError | None) -> None:
        """Log the loss of the services once, and their return."""
        following = error is None
        if self._following is following or self._closed.is_set():
            return
        if following:
            log.info("Following the leading planner; the limit is %s", _words(self._next_limit))
        else:
            log.warning(
                "The limit is not confirmed: %s. It stays %s until admin and the planner answer",
                error,
                _words(self._next_limit),
            )
        self._following = following


def _words(limit: float | None) -> str:
    return "off" if limit is None else about_rate(max(1, round(limit)))
