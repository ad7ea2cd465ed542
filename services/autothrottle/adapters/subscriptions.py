"""Who wants to be told of something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Subscriptions(Generic[T]):
    """A set of callbacks; safe to change while one of them runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription[T], ...] = ()

    def add(self, notify: Callable[[T], None]) -> Subscription[T]:
        """Call `notify` from now on, until the subscription is closed."""
        subscription = Subscription(self, notify)
        with self._lock:
            self._subscriptions += (subscription,)
        return subscription

    def remove(self, subscription: Subscription[T]) -> None:
        """Call it no more; a call that is under way ends by itself."""
        with self._lock:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def publish(self, value: T) -> None:
        """Tell everybody."""
        for subscription in self._subscriptions:
            subscription.notify(value)


class Subscription(Generic[T]):
    """One callback's place among them; a `Watch`."""

    def __init__(self, subscriptions: Subscriptions[T], notify: Callable[[T], None]) -> None:
        self._subscriptions, self.notify = subscriptions, notify

    def close(self) -> None:
        """End it. Idempotent."""
        self._subscriptions.remove(self)
