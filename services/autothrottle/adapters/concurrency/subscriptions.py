"""Thread-safe callback registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


class Subscriptions(Generic[T]):
    """A set of callbacks. Thread-safe; callbacks may add and remove subscriptions while they run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription[T], ...] = ()

    def add(self, notify: Callable[[T], None]) -> Subscription[T]:
        """Call `notify` for every value published until the subscription is closed."""
        subscription = Subscription(self, notify)
        with self._lock:
            self._subscriptions += (subscription,)
        return subscription

    def remove(self, subscription: Subscription[T]) -> None:
        """Remove a subscription; a call that is already running is not interrupted."""
        with self._lock:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def publish(self, value: T) -> None:
        """Call all callbacks, in this thread."""
        for subscription in self._subscriptions:
            subscription.notify(value)


class Subscription(Generic[T]):
    """One registered callback (a `Watch`)."""

    def __init__(self, subscriptions: Subscriptions[T], notify: Callable[[T], None]) -> None:
        self._subscriptions, self.notify = subscriptions, notify

    def close(self) -> None:
        """Remove the callback. Idempotent."""
        self._subscriptions.remove(self)


_LEAST_SECONDS = 0.001


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline of `time.monotonic`, at least 0.001."""
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def time_left(deadline: float) -> timedelta:
    """Return the time until a deadline of `time.monotonic`, at least 1 ms."""
    return timedelta(seconds=seconds_left(deadline))
