"""What happens in one run, as a pure function of its seed: faults, edits by somebody else, and when.

Nothing here knows a process or a connection; `run` carries it out. The type to know is `Schedule`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from autothrottle.lab.chaos.proxy import Moment


class Deed(Enum):
    """What is done to something."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    TERMINATE = "SIGTERM"
    CUT = "cut"
    HALF_CLOSE = "half-close"
    HOLD = "hold"
    DELAY = "delay"


class Target(Enum):
    """To what it is done."""

    LEADER = "leader"
    """The planner that leads."""
    OTHER = "other planner"
    APPLIER = "applier"
    DISCOVERY = "discovery"
    METRICS = "metrics"
    DATADOG = "Datadog"
    """The connections to it."""
    ZOOKEEPER_LEADER = "ZooKeeper's leader"
    ZOOKEEPER_FOLLOWER = "ZooKeeper's follower"


PROCESS_DEEDS = (Deed.KILL, Deed.STOP, Deed.TERMINATE)
_WRITERS = (Target.LEADER, Target.APPLIER)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, and is mended later."""

    deed: Deed
    target: Target
    moment: Moment
    """For a fault of whoever writes: what it waits for."""
    pause_seconds: float
    """After what came before, >= 0."""
    seconds: float
    """Until it is mended: started again, thawed, let through."""
    late: bool = False
    """Whether the transaction that was caught goes on only in a later term."""
    dropped: bool = False
    """Whether what was caught is lost together with its connection."""

    def __str__(self) -> str:
        when = f" {self.moment.value}" if self.moment is not Moment.ANY else ""
        what = ", which arrives in a later term" if self.late else ", which is lost" if self.dropped else ""
        return f"{self.deed.value} {self.target.value}{when}{what} ({self.pause_seconds:.1f} s, {self.seconds:.1f} s)"


class Edit(Enum):
    """What somebody else does to configs."""

    RATE = "another rate in place of ours"
    NO_RATE = "our rate removed"
    ENTRY_REMOVED = "an entry of ours removed from a list"
    ENTRY_ADDED = "an entry of another partition added to our list"
    FOREIGN_RATE = "the rate of a broker that takes no part"
    FOREIGN_KEY = "a key that is no throttle, beside our keys"


_OUR_KEYS, _OUR_LISTS = (Edit.RATE, Edit.NO_RATE), (Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED)
_FOREIGN_KEYS = (Edit.FOREIGN_RATE, Edit.FOREIGN_KEY)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run."""

    seed: int
    apart: bool
    """Whether each service is a process; else all are in one, of which there are two."""
    steps: tuple[Fault | Edit, ...]
    """In their order; three of them are edits: of a key of ours, of a list of ours, and of what is not ours."""
    session_seconds: float
    """Session time-out of those that write throttles; a long one leaves all to the fence."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those steps that are faults."""
        return tuple(step for step in self.steps if isinstance(step, Fault))

    def __str__(self) -> str:
        steps = "; ".join(str(step) if isinstance(step, Fault) else f"edit: {step.value}" for step in self.steps)
        return f"seed {self.seed}, {'services apart' if self.apart else 'two times run'}: {steps}"


SESSION_SECONDS = 2.0
LONG_SESSION_SECONDS = 40.0


def schedule(seed: int) -> Schedule:
    """Return what happens in the run of a seed; the same for ever."""
    chance = random.Random(f"chaos {seed}")
    apart = chance.random() < 0.6
    faults = [_process_fault(chance), _link_fault(chance)]
    faults += [_process_fault(chance)] if chance.random() < 0.8 else []
    faults += [_server_fault(chance)] if chance.random() < 0.3 else []
    edits = [chance.choice(kinds) for kinds in (_OUR_KEYS, _OUR_LISTS, _FOREIGN_KEYS)]
    steps: list[Fault | Edit] = [*faults, *edits]
    chance.shuffle(steps)
    outlasts = chance.random() < (0.8 if any(fault.late for fault in faults) else 0.3)
    session = LONG_SESSION_SECONDS if apart and outlasts else SESSION_SECONDS
    return Schedule(seed, apart, tuple(steps), session)


def _process_fault(chance: random.Random) -> Fault:
    deed = chance.choices((Deed.KILL, Deed.STOP, Deed.TERMINATE), (5, 4, 1))[0]
    target = chance.choices(
        (Target.LEADER, Target.APPLIER, Target.OTHER, Target.DISCOVERY, Target.METRICS), (9, 6, 1, 1, 1)
    )[0]
    inside = target in _WRITERS and chance.random() < 0.75
    moment = chance.choice((Moment.REQUEST, Moment.ANSWER)) if inside else Moment.ANY
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.3, 4.0), 1)
    # A late transaction needs another leader, and so one that is gone for longer than its session.
    late = moment is Moment.REQUEST and target is Target.LEADER and chance.random() < 0.5
    seconds = max(seconds, SESSION_SECONDS + 1.5) if late else seconds
    dropped = moment is not Moment.ANY and not late and chance.random() < 0.3
    return Fault(deed, target, moment, pause, seconds, late, dropped)


def _link_fault(chance: random.Random) -> Fault:
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.2, 3.0), 1)
    if chance.random() < 0.4:
        return Fault(Deed.CUT, Target.APPLIER, Moment.ANSWER, pause, seconds, dropped=True)
    deed = chance.choice((Deed.CUT, Deed.HALF_CLOSE, Deed.HOLD, Deed.DELAY))
    targets = (Target.LEADER, Target.OTHER, Target.APPLIER, Target.DISCOVERY, Target.DATADOG)
    return Fault(deed, chance.choice(targets), Moment.ANY, pause, seconds)


def _server_fault(chance: random.Random) -> Fault:
    deed = chance.choice((Deed.KILL, Deed.STOP))
    target = chance.choice((Target.ZOOKEEPER_LEADER, Target.ZOOKEEPER_FOLLOWER))
    return Fault(deed, target, Moment.ANY, round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.5, 3.0), 1))
