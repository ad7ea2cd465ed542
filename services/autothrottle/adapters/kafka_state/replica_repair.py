"""Repairs the replicas of the state topic after the loss of a broker. The type to know is `ReplicaRepair`.

Nothing can be committed then, so the processes cannot agree on a repair, and Kafka has no compare-and-set for replicas.
So who repairs follows from the last tree: the last leader at once, then each other candidate in turn, if the replicas
are still the same. What is changed follows from the replicas and from the brokers that answer, in a fixed order. So two
processes that repair at once ask for the same, as far as the same brokers answer them. The replicas are read before and
after the change.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from autothrottle.adapters.kafka_state.topic import ReplicaChange, Topic
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, Unavailable

log = logging.getLogger(__name__)

SILENCE_SECONDS = 2.0
"""How long the topic may commit or answer nothing until a lost broker is looked for among its replicas."""
_REPAIR_SECONDS = 5.0
"""Time limit of finding a repair, and of carrying it out."""
_TURN_SECONDS = 10.0
"""How long a process waits for each one that repairs before it. A repair takes less."""
_REST_SECONDS = 60.0
"""Least time between two removals, and the pause after a change by another party. A process that reaches few brokers
must not remove one replica after another, or work against another process."""


class ReplicaRepair:
    """Repairs the replicas of one topic, in a thread that ends with the repair. Thread-safe."""

    def __init__(self, topic: Topic, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; this sends nothing.

        Args:
            topic: whose replicas are repaired.
            name: of the topic, for messages.
            clock: monotonic, seconds.
        """
        self._topic, self._name, self._clock = topic, name, clock
        self.turn: Callable[[], int] | None = None
        """Returns how many processes repair before this one. None: this process repairs nothing, since it only looks,
        runs in shadow mode, or does not stand for election."""
        self._next_attempt = self._next_removal = -math.inf
        self._awaited: tuple[int, ...] = ()
        """The replicas for whose repair this process awaits its turn; (): none need one."""
        self._awaited_since = 0.0
        self._refusal = ""
        """The last refusal that was logged."""
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Begin no repair any more. Idempotent."""
        with self._lock:
            self._is_closed = True

    def soon(self, silence: float = 0.0) -> None:
        """Look for a repair in a thread of its own, unless that was done a moment ago.

        Args:
            silence: seconds for which reads or appends have failed.
        """
        with self._lock:
            if self._is_closed or self.turn is None or self._clock() < self._next_attempt:
                return
            self._next_attempt = math.inf
        threading.Thread(target=self._run, args=(silence,), name="state-repair", daemon=True).start()

    def _run(self, silence: float) -> None:
        refusal, rest = "", SILENCE_SECONDS
        try:
            rest = self.attempt(silence)
        except (Conflict, Missing, Unavailable) as error:
            log.debug("The replicas of the state topic stay as they are: %s", error)
        except AutothrottleError as error:
            refusal = str(error)
            if refusal != self._refusal:
                log.warning("The replicas of the state topic cannot be repaired: %s", refusal)
        except Exception:  # a bug must not end the repairs: a later one may help
            log.exception("Repairing the replicas of the state topic failed unexpectedly")
        self._refusal = refusal
        self._next_attempt = self._clock() + rest

    def attempt(self, silence: float) -> float:
        """Repair the replicas if they need it and it is this process's turn; return the seconds to the next attempt.

        Raises:
            Conflict: another party has changed the replicas meanwhile.
            Missing: the topic does not exist.
            Unavailable: it is unknown whether the replicas were changed.
            Invalid: Kafka refuses the change.
        """
        is_stuck = silence >= SILENCE_SECONDS and self._clock() >= self._next_removal
        change = self._topic.fetch_repair(time.monotonic() + _REPAIR_SECONDS, is_stuck)
        replicas = change.replicas if change else ()
        if replicas != self._awaited:
            self._awaited, self._awaited_since = replicas, self._clock()
        if change is None or self.turn is None:
            return SILENCE_SECONDS
        if self._clock() < self._awaited_since + self.turn() * _TURN_SECONDS:
            return SILENCE_SECONDS
        return self._carry_out(change)

    def _carry_out(self, change: ReplicaChange) -> float:
        changed = self._topic.change_replicas(change, time.monotonic() + _REPAIR_SECONDS)
        self._awaited = ()
        if {*changed} != {*change.new_replicas}:
            log.warning(
                "Changed the replicas of topic %s %s, but they are %s now: another party changes them, too. "
                "autothrottle leaves them as they are for %.0f s",
                self._name,
                change,
                ", ".join(map(str, changed)),
                _REST_SECONDS,
            )
            return _REST_SECONDS
        log.warning("Changed the replicas of topic %s %s", self._name, change)
        if change.lost_broker is not None:
            self._next_removal = self._clock() + _REST_SECONDS
        return SILENCE_SECONDS
