"""Who wants to be told of something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Subscriptions(Generic[T]):
    """A set of callbacks; safe to change while one of them runs."""

    def __init__(self) -> None:
        self._callbacks: tuple[Callable[[T], None], ...] = ()

    def add(self, notify: Callable[[T], None]) -> Subscription[T]:
        """Call `notify` from now on, until the subscription is closed."""
        self._callbacks += (notify,)
        return Subscription(self, notify)

    def remove(self, notify: Callable[[T], None]) -> None:
        """Call `notify` no more."""
        self._callbacks = tuple(c for c in self._callbacks if c is not notify)

    def publish(self, value: T) -> None:
        """Tell everybody."""
        for callback in self._callbacks:
            callback(value)


class Subscription(Generic[T]):
    """One callback's place among them; a `Watch`."""

    def __init__(self, subscriptions: Subscriptions[T], notify: Callable[[T], None]) -> None:
        self._subscriptions, self._notify = subscriptions, notify

    def close(self) -> None:
        """End it. Idempotent."""
        self._subscriptions.remove(self._notify)
