"""The schedule of one run, a pure function of its seed: faults, edits by another user, and their times.

`run` executes it. The type to know is `Schedule`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from tests.chaos.proxy import Timing


class FaultKind(Enum):
    """The action of a fault."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    TERMINATE = "SIGTERM"
    CUT = "cut"
    HALF_CLOSE = "half-close"
    HOLD = "hold"
    DELAY = "delay"


class Target(Enum):
    """The target of a fault."""

    LEADER = "leader"
    """The leading planner."""
    OTHER = "other planner"
    APPLIER = "applier"
    DISCOVERY = "discovery"
    METRICS = "metrics"
    DATADOG = "Datadog"
    """The connections to Datadog."""
    ZOOKEEPER_LEADER = "ZooKeeper's leader"
    ZOOKEEPER_FOLLOWER = "ZooKeeper's follower"
    STATE_LEADER = "the broker that leads the state partition"
    STATE_FOLLOWER = "a broker that follows the state partition"
    ALL_BROKERS = "all brokers"


PROCESS_FAULTS = (FaultKind.KILL, FaultKind.STOP, FaultKind.TERMINATE)
SERVERS = (
    Target.ZOOKEEPER_LEADER,
    Target.ZOOKEEPER_FOLLOWER,
    Target.STATE_LEADER,
    Target.STATE_FOLLOWER,
    Target.ALL_BROKERS,
)
_WRITERS = (Target.LEADER, Target.APPLIER)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its repair."""

    kind: FaultKind
    target: Target
    timing: Timing
    """For a fault of a process that writes throttles: the phase of a transaction to wait for."""
    pause_seconds: float
    """Pause after the previous step, >= 0."""
    seconds: float
    """Time until the repair: restart, thaw, or resume."""
    late: bool = False
    """Whether the held transaction continues only in a later term."""
    dropped: bool = False
    """Whether the held frame is dropped together with its connection."""
    request: str = ""
    """The request to wait for; "": a transaction that writes throttles, in ZooKeeper."""

    def __str__(self) -> str:
        when = f" {self.timing.value}" if self.timing is not Timing.ANY else ""
        when += f" {self.request}" if self.request else ""
        fate = ", which arrives in a later term" if self.late else ", which is dropped" if self.dropped else ""
        return f"{self.kind.value} {self.target.value}{when}{fate} ({self.pause_seconds:.1f} s, {self.seconds:.1f} s)"


class Edit(Enum):
    """A config edit by another user. "Our" means: set by autothrottle."""

    RATE = "our rate replaced"
    NO_RATE = "our rate removed"
    ENTRY_REMOVED = "our entry removed from a list"
    ENTRY_ADDED = "an entry of another partition added to our list"
    FOREIGN_RATE = "the rate of a broker that takes no part"
    FOREIGN_KEY = "a config that is not a throttle, in the node of our throttles"


_OUR_KEYS, _OUR_LISTS = (Edit.RATE, Edit.NO_RATE), (Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED)
_FOREIGN_KEYS = (Edit.FOREIGN_RATE, Edit.FOREIGN_KEY)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps and settings of one run."""

    seed: int
    separate_services: bool
    """Whether each service has its own process; False: two processes each run all services."""
    steps: tuple[Fault | Enum, ...]
    """Ordered faults, and edits or calls by an operator. In ZooKeeper, three of them are edits: of our throttle, of our
    list, and of a foreign key."""
    session_seconds: float
    """Session timeout of the processes that write throttles. With a long one only the fence protects writes."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(step for step in self.steps if isinstance(step, Fault))

    def __str__(self) -> str:
        steps = "; ".join(str(step) if isinstance(step, Fault) else f"edit: {step.value}" for step in self.steps)
        return f"seed {self.seed}, {'separate services' if self.separate_services else 'two of `run`'}: {steps}"


SESSION_SECONDS = 2.0
LONG_SESSION_SECONDS = 40.0


def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed; it must never change."""
    chance = random.Random(f"chaos {seed}")
    separate_services = chance.random() < 0.6
    faults = [_process_fault(chance), _link_fault(chance)]
    faults += [_process_fault(chance)] if chance.random() < 0.8 else []
    faults += [_server_fault(chance)] if chance.random() < 0.3 else []
    edits = [chance.choice(kinds) for kinds in (_OUR_KEYS, _OUR_LISTS, _FOREIGN_KEYS)]
    steps: list[Fault | Edit] = [*faults, *edits]
    chance.shuffle(steps)
    outlasts = chance.random() < (0.8 if any(fault.late for fault in faults) else 0.3)
    session = LONG_SESSION_SECONDS if separate_services and outlasts else SESSION_SECONDS
    return Schedule(seed, separate_services, tuple(steps), session)


def _process_fault(chance: random.Random) -> Fault:
    kind = chance.choices((FaultKind.KILL, FaultKind.STOP, FaultKind.TERMINATE), (5, 4, 1))[0]
    target = chance.choices(
        (Target.LEADER, Target.APPLIER, Target.OTHER, Target.DISCOVERY, Target.METRICS), (9, 6, 1, 1, 1)
    )[0]
    inside = target in _WRITERS and chance.random() < 0.75
    timing = chance.choice((Timing.REQUEST, Timing.ANSWER)) if inside else Timing.ANY
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.3, 4.0), 1)
    # A late transaction needs a new leader, so the old one must be down for longer than its session timeout.
    late = timing is Timing.REQUEST and target is Target.LEADER and chance.random() < 0.5
    seconds = max(seconds, SESSION_SECONDS + 1.5) if late else seconds
    dropped = timing is not Timing.ANY and not late and chance.random() < 0.3
    return Fault(kind, target, timing, pause, seconds, late, dropped)


def _link_fault(chance: random.Random) -> Fault:
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.2, 3.0), 1)
    if chance.random() < 0.4:
        return Fault(FaultKind.CUT, Target.APPLIER, Timing.ANSWER, pause, seconds, dropped=True)
    kind = chance.choice((FaultKind.CUT, FaultKind.HALF_CLOSE, FaultKind.HOLD, FaultKind.DELAY))
    targets = (Target.LEADER, Target.OTHER, Target.APPLIER, Target.DISCOVERY, Target.DATADOG)
    return Fault(kind, chance.choice(targets), Timing.ANY, pause, seconds)


def _server_fault(chance: random.Random) -> Fault:
    kind = chance.choice((FaultKind.KILL, FaultKind.STOP))
    target = chance.choice((Target.ZOOKEEPER_LEADER, Target.ZOOKEEPER_FOLLOWER))
    return Fault(kind, target, Timing.ANY, round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.5, 3.0), 1))
