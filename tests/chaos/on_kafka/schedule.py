"""The schedule of one run on real brokers, a pure function of its seed.

There are two families. `schedule` has faults of one broker at a time. `absence_schedule` has an absence of all brokers,
records of other clients in the state topic, and client quotas.
"""

from __future__ import annotations

import random
from enum import Enum

from tests.chaos.proxy import Timing
from tests.chaos.schedule import Edit, Fault, FaultKind, Schedule, Target


class Call(Enum):
    """A call of the API by an operator."""

    OVERRIDE = "an override set and removed"
    RIVALS = "an override replaced by two operators at once, with the same etag"
    PAUSE = "a pause and a resume"
    SUBMIT = "a reassignment submitted"


class TopicFault(Enum):
    """What another client does to the state topic."""

    GARBAGE = "foreign records that are not ours"
    OLD_SNAPSHOT = "a foreign record that looks like an old snapshot of an empty tree, as the first one of the log"
    COPIES = "copies of earlier records"
    BOMB = "a foreign record that inflates to 40 MB"
    UNFENCED_EDIT = "foreign edits of the ledger without the permission of a term"
    DELETION = "the deletion of all records so far"


class ClientQuota(Enum):
    """A default quota that throttles all services for some seconds."""

    USERS = "a default quota of users, removed later"
    CLIENT_IDS = "a default quota of client ids, removed later"


class Request(Enum):
    """The request that a fault waits for."""

    CONFIG = "IncrementalAlterConfigs"
    REASSIGN = "AlterPartitionReassignments"
    LEDGER = "Produce of a ledger entry"
    HEARTBEAT = "Produce of a heartbeat"
    FETCH = "Fetch"
    SNAPSHOT = "Produce of a part of a snapshot, after the deletion of all records so far"


SESSION_SECONDS = (2.0, 3.0)
SHORT_ABSENCE_SECONDS, LONG_ABSENCE_SECONDS = (20.0, 60.0), 300.0
_TIMINGS = (Timing.REQUEST, Timing.FORWARDED, Timing.ANSWER)


def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed; it must never change."""
    chance = random.Random(f"chaos on Kafka {seed}")
    separate_services = chance.random() < 0.25
    session = chance.choice(SESSION_SECONDS)
    faults = [_process_fault(chance, session), _link_fault(chance, session)]
    faults += [_process_fault(chance, session)] if chance.random() < 0.5 else []
    faults += [_broker_fault(chance)] if chance.random() < 0.6 else []
    edits = [
        chance.choice((Edit.RATE, Edit.NO_RATE)),
        chance.choice((Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED, Edit.FOREIGN_RATE, Edit.FOREIGN_KEY)),
    ]
    steps: list[Fault | Edit | Call] = [*faults, *edits, chance.choice(tuple(Call))]
    chance.shuffle(steps)
    return Schedule(seed, separate_services, tuple(steps), session)


def absence_schedule(seed: int, is_long: bool = False) -> Schedule:
    """Return the schedule of a seed with an absence of all brokers; it must never change.

    Args:
        seed: the seed.
        is_long: whether the brokers are away for 300 s instead of 20 to 60 s.
    """
    chance = random.Random(f"{'long' if is_long else 'short'} absence of Kafka {seed}")
    separate_services = chance.random() < 0.25
    session = chance.choice(SESSION_SECONDS)
    seconds = LONG_ABSENCE_SECONDS if is_long else round(chance.uniform(*SHORT_ABSENCE_SECONDS), 1)
    absence = Fault(
        chance.choice((FaultKind.KILL, FaultKind.STOP)),
        Target.ALL_BROKERS,
        Timing.ANY,
        round(chance.uniform(0.0, 1.0), 1),
        seconds,
    )
    topic_faults: list[TopicFault | Fault] = [*chance.sample((*TopicFault,), 2)]
    if TopicFault.COPIES in topic_faults:  # the deletion causes a snapshot, whose parts are copied, too
        topic_faults = [TopicFault.DELETION, TopicFault.COPIES]
    if TopicFault.DELETION in topic_faults and chance.random() < 0.5:
        topic_faults[topic_faults.index(TopicFault.DELETION)] = _snapshot_fault(chance, session)
    # Each group is in order. A process that starts after the faults of the topic reads the records with no tree.
    groups: list[list[Fault | Edit | Call | TopicFault | ClientQuota]] = [
        [*_absence_companion(chance, seconds), absence],
        [*topic_faults, _restart(chance)],
        [_link_fault(chance, session)],
        [chance.choice((Edit.RATE, Edit.NO_RATE))],
        [chance.choice((Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED, Edit.FOREIGN_RATE, Edit.FOREIGN_KEY))],
        [chance.choice(tuple(Call))],
    ]
    if chance.random() < 0.5:
        groups.append([chance.choice(tuple(ClientQuota))])
    if chance.random() < 0.5:
        groups.append([_process_fault(chance, session)])
    chance.shuffle(groups)
    return Schedule(seed, separate_services, tuple(step for group in groups for step in group), session)


def _snapshot_fault(chance: random.Random, session: float) -> Fault:
    """A leader that is stopped while it sends a snapshot, which arrives in a later term."""
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), round(session + chance.uniform(1.5, 4.0), 1)
    return Fault(FaultKind.STOP, Target.LEADER, Timing.REQUEST, pause, seconds, True, False, Request.SNAPSHOT.name)


def _restart(chance: random.Random) -> Fault:
    kind = chance.choices((FaultKind.KILL, FaultKind.TERMINATE), (3, 1))[0]
    target, pause = chance.choice((Target.LEADER, Target.OTHER)), round(chance.uniform(0.0, 3.0), 1)
    return Fault(kind, target, Timing.ANY, pause, round(chance.uniform(0.3, 2.0), 1))


def _absence_companion(chance: random.Random, seconds: float) -> list[Fault]:
    """A planner that is frozen for longer than the absence, or for a part of it, or restarts during it; or none."""
    target = chance.choices((Target.LEADER, Target.OTHER), (3, 1))[0]
    pause, share = round(chance.uniform(0.0, 1.0), 1), chance.uniform(0.1, 0.9)
    kind, lasts = chance.choices(
        (
            (FaultKind.STOP, seconds + chance.uniform(12.0, 20.0)),
            (FaultKind.STOP, seconds * share),
            (FaultKind.KILL, seconds * share),
        ),
        (5, 2, 2),
    )[0]
    fault = Fault(kind, target, Timing.ANY, pause, round(lasts, 1))
    return [fault] if chance.random() < 0.9 else []


def _process_fault(chance: random.Random, session: float) -> Fault:
    kind = chance.choices((FaultKind.KILL, FaultKind.STOP, FaultKind.TERMINATE), (4, 5, 1))[0]
    target = chance.choices((Target.LEADER, Target.APPLIER, Target.OTHER, Target.DISCOVERY), (10, 3, 1, 1))[0]
    inside = target in (Target.LEADER, Target.APPLIER) and chance.random() < 0.8
    timing = chance.choice(_TIMINGS) if inside else Timing.ANY
    # Between the ledger's intents and the configs, a leader that stops must not continue in the term of another one.
    request = chance.choices((Request.LEDGER, Request.CONFIG, Request.HEARTBEAT), (5, 3, 2))[0] if inside else None
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), _duration(chance, session)
    # A late request needs a new leader, so the old one must be down for longer than its session timeout.
    late = timing is Timing.REQUEST and target is Target.LEADER and chance.random() < 0.5
    seconds = max(seconds, session + 1.5) if late else seconds
    dropped = timing is not Timing.ANY and not late and chance.random() < 0.3
    return Fault(kind, target, timing, pause, seconds, late, dropped, request.name if request else "")


def _duration(chance: random.Random, session: float) -> float:
    """Return how long a fault lasts: more often longer than the session time-out than shorter."""
    longest = session if chance.random() < 0.4 else 2 * session
    return round(chance.uniform(0.3 if longest == session else session + 0.3, longest), 1)


def _link_fault(chance: random.Random, session: float) -> Fault:
    pause, seconds = round(chance.uniform(0.0, 1.0), 1), _duration(chance, session)
    if chance.random() < 0.5:
        requests = (Request.CONFIG, Request.REASSIGN, Request.LEDGER, Request.HEARTBEAT, Request.FETCH)
        request = chance.choices(requests, (3, 1, 3, 2, 1))[0]
        kind = chance.choice((FaultKind.CUT, FaultKind.HOLD))
        timing = chance.choice(_TIMINGS)
        return Fault(kind, Target.LEADER, timing, pause, seconds, False, kind is FaultKind.CUT, request.name)
    kind = chance.choice((FaultKind.CUT, FaultKind.HALF_CLOSE, FaultKind.HOLD, FaultKind.DELAY))
    targets = (Target.LEADER, Target.LEADER, Target.OTHER, Target.APPLIER, Target.DATADOG)
    return Fault(kind, chance.choice(targets), Timing.ANY, pause, seconds)


def _broker_fault(chance: random.Random) -> Fault:
    """A broker killed, frozen, cut off from the services (`CUT`), or from the other brokers (`HOLD`)."""
    kind = chance.choices((FaultKind.KILL, FaultKind.STOP, FaultKind.CUT, FaultKind.HOLD), (3, 4, 2, 2))[0]
    target = chance.choices((Target.STATE_LEADER, Target.STATE_FOLLOWER), (3, 1))[0]
    return Fault(kind, target, Timing.ANY, round(chance.uniform(0.0, 1.0), 1), round(chance.uniform(0.5, 5.0), 1))
