"""Finds violations of autothrottle's guarantees on Kafka: a pure function of three histories.

They are the requests that the proxies saw, the log of the state store, and the controller's metadata log. All times are
of one machine's clock. Kafka cannot refuse a write of an ended term, so the checker judges when a write begins, and
whether the next leader repairs one that was on its way. The type to know is `Evidence`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autothrottle.core.cluster.configs import RATE_KEYS, THROTTLE_KEYS, LedgerEntry, parse_replicas
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord
from tests.chaos.checker import Violation
from tests.chaos.on_kafka.state import Claim, StateHistory

TWO_LEADERS = "a config write that began in the term of another leader"
AFTER_DEADLINE = "a config write that began after the leader's own deadline"
TWO_ACTORS = "a record of a term by a process that does not lead in it"
TERM_DECREASES = "a term that is not above the one before"
AFTER_STOP = "a config write that began right after a SIGSTOP that outlasted the term"
TWO_WRITERS = "ledger writes of two terms that interleave"
UNANNOUNCED = "a config write that the ledger does not announce"
FOREIGN_KEY = "a write to a foreign key"
UNREPAIRED = "a late write that no leader repaired in time"

CLOCK_SECONDS = 0.005
"""Resolution of the times in the logs, which are milliseconds."""

BATCH_SECONDS = 0.05
"""The controller's records have the time at which their batch began, which is up to 25 ms early."""

TRANSIT_SECONDS = 0.25
"""Longest time between the decision to send a request and its arrival at the proxy, on a busy machine."""

REPAIR_SECONDS = 10.0
"""Longest time until the next leader repairs a write that was on its way; a cycle takes one or two."""

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """An IncrementalAlterConfigs request, when it reached the proxy."""

    at: float
    """Seconds since the epoch."""
    process: str
    edits: Mapping[str, Mapping[str, tuple[int, str | None]]]
    """Entity -> key -> (operation, value)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of the checker."""

    state: StateHistory
    requests: Sequence[ConfigRequest]
    records: Sequence[MetadataRecord]
    """Changes that the controller committed since the start of the services."""
    operators: Sequence[tuple[float, str, str]]
    """(time, entity, key) of config edits by operators."""
    stops: Mapping[str, Sequence[tuple[float, float]]]
    """Process -> (time of a SIGSTOP, time of its SIGCONT)."""
    planners_write: bool
    """Whether the process that leads is also the one that writes configs."""
    lease_seconds: float
    """Longest time between a leader's last heartbeat and the begin of a write."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The violations, and what was checked."""

    violations: tuple[Violation, ...]
    writes: int
    """Requests that changed configs."""
    terms: int
    """Terms that began."""
    late: int
    """Requests that were on their way when their process was stopped for longer than its term."""
    stale: tuple[str, ...]
    """Committed rates that the ledger did not announce at that moment; each was repaired."""
    repair_seconds: float
    """Longest time until a stale rate was replaced; 0: none was."""
    void: int
    """Records of the state store without effect."""


def judge(evidence: Evidence) -> Judgement:
    """Return the judgement on a whole run."""
    late: list[ConfigRequest] = []
    violations = [*_check_requests(evidence, late), *_check_ledger(evidence.state), *_check_announced(evidence, late)]
    violations += [*_check_keys(evidence), *_check_terms(evidence)]
    repairs = list(_repairs(evidence))
    violations += [
        Violation(UNREPAIRED, offset, f"{key} = {value!r} for {seconds:.1f} s")
        for offset, key, value, seconds in repairs
        if seconds > REPAIR_SECONDS
    ]
    return Judgement(
        tuple(violations),
        len(evidence.requests),
        len(evidence.state.claims),
        len(late),
        tuple(f"{key} = {value!r} for {seconds:.1f} s" for _, key, value, seconds in repairs),
        max((seconds for *_, seconds in repairs), default=0.0),
        evidence.state.void,
    )


def _check_requests(evidence: Evidence, late: list[ConfigRequest]) -> Iterator[Violation]:
    """A process writes only in its own term, and before its own deadline; collect the writes right after a thaw.

    A write that leaves right after a SIGSTOP was on its way if another one of its cycle left right before: a process
    sends the rates of all brokers at once, and may be stopped between two of them.
    """
    if not evidence.planners_write:
        return
    claims = evidence.state.claims
    times = [claim.at for claim in claims]
    for request in evidence.requests:
        index = bisect_right(times, request.at - CLOCK_SECONDS) - 1
        claim = claims[index] if index >= 0 else Claim(0.0, 0, "")
        heartbeats = evidence.state.heartbeats.get(request.process, ())
        silence = request.at - max((h.sent_at for h in heartbeats if h.read_at <= request.at), default=request.at)
        is_next = index + 1 < len(claims) and claims[index + 1].process == request.process
        others = claim.process != request.process and not (
            is_next and claims[index + 1].at < request.at + CLOCK_SECONDS
        )
        overdue = silence > evidence.lease_seconds + TRANSIT_SECONDS
        if not others and not overdue:
            continue
        stop = next(
            (s for s in evidence.stops.get(request.process, ()) if 0 <= request.at - s[1] <= TRANSIT_SECONDS), None
        )
        if stop is not None:
            late.append(request)
            if not _left_with_another(evidence, request, stop[0]):
                yield Violation(AFTER_STOP, 0, f"{request.process} wrote {_keys(request)}; {claim.process} leads")
        elif others:
            age = request.at - claim.at
            details = f"{request.process} wrote {_keys(request)} {age:.2f} s after {claim.process} began {claim.term}"
            yield Violation(TWO_LEADERS, 0, details)
        else:
            heartbeat = "the last heartbeat that it had read back"
            details = f"{request.process} wrote {_keys(request)} {silence:.2f} s after it sent {heartbeat}"
            yield Violation(AFTER_DEADLINE, 0, details)


def _left_with_another(evidence: Evidence, request: ConfigRequest, stopped_at: float) -> bool:
    """Whether another write of the same process reached the proxy right before a SIGSTOP."""
    return any(
        other.process == request.process and 0 <= stopped_at - other.at <= TRANSIT_SECONDS
        for other in evidence.requests
    )


def _check_terms(evidence: Evidence) -> Iterator[Violation]:
    """Terms increase, and only the leader writes records of its term."""
    claims = evidence.state.claims
    for earlier, later in pairwise(claims):
        if later.term <= earlier.term:
            yield Violation(TERM_DECREASES, 0, f"{later.process} began {later.term} after {earlier.term}")
    leaders = {claim.term: claim.process for claim in claims}
    for record in evidence.state.fenced if evidence.planners_write else ():
        if record.process != leaders.get(record.fence):
            leader = leaders.get(record.fence)
            yield Violation(TWO_ACTORS, 0, f"{record.process} wrote in term {record.fence} of {leader}")


def _check_ledger(state: StateHistory) -> Iterator[Violation]:
    newest = 0
    for write in state.ledger:
        if write.fence < newest:
            yield Violation(TWO_WRITERS, 0, f"{write.entity} by term {write.fence} after a write of term {newest}")
        newest = max(newest, write.fence)


def _check_announced(evidence: Evidence, late: Sequence[ConfigRequest]) -> Iterator[Violation]:
    """The ledger announces each edit before its request is sent: no void record of the ledger is obeyed."""
    ledger = _LedgerTimeline(evidence.state)
    for request in evidence.requests:
        if request in late:
            continue
        for entity, edits in request.edits.items():
            for key, (operation, value) in edits.items():
                versions = ledger.around(entity, request.at)
                if not any(_announces(entry, key, operation, value) for entry in versions):
                    details = f"{request.process}: {entity} {key}, operation {operation}, {value!r}; ledger {versions}"
                    yield Violation(UNANNOUNCED, 0, details)


def _announces(entry: LedgerEntry | None, key: str, operation: int, value: str | None) -> bool:
    record = entry.keys.get(key) if entry else None
    if record is None:
        return False
    if operation == _SET:
        # What another party had set is restored without an intent.
        return value in (record.intent, record.before)
    if operation == _APPEND and value:
        return parse_replicas(value) <= record.owned
    return True


def _check_keys(evidence: Evidence) -> Iterator[Violation]:
    for request in evidence.requests:
        for entity, edits in request.edits.items():
            if foreign := edits.keys() - THROTTLE_KEYS:
                yield Violation(FOREIGN_KEY, 0, f"{request.process} wrote {sorted(foreign)} of {entity}")


def _repairs(evidence: Evidence) -> Iterator[tuple[int, str, str | None, float]]:
    """Yield (offset, entity and key, value, seconds until the next change) of each stale rate."""
    ledger = _LedgerTimeline(evidence.state)
    changes = [(record, record.change) for record in evidence.records if isinstance(record.change, ConfigWritten)]
    for number, (record, change) in enumerate(changes):
        at = record.time.timestamp()
        if change.key not in RATE_KEYS or _by_operator(evidence, at, change):
            continue
        entries = ledger.around(change.entity, at, BATCH_SECONDS)
        if any(_explains(entry, change) for entry in entries):
            continue
        following = (
            later.time.timestamp() - at
            for later, other in changes[number + 1 :]
            if (other.entity, other.key) == (change.entity, change.key)
        )
        yield record.offset, f"{change.entity} {change.key}", change.value, next(following, float("inf"))


def _by_operator(evidence: Evidence, at: float, change: ConfigWritten) -> bool:
    """Whether an operator edited this key within the longest time of a request before."""
    return any(
        (entity, key) == (change.entity, change.key) and edited - BATCH_SECONDS <= at <= edited + 15.0
        for edited, entity, key in evidence.operators
    )


def _explains(entry: LedgerEntry | None, change: ConfigWritten) -> bool:
    record = entry.keys.get(change.key) if entry else None
    if record is None:
        return False
    return change.value in (record.intent, record.written, record.before)


class _LedgerTimeline:
    """The entries of each entity over time."""

    def __init__(self, state: StateHistory) -> None:
        self._times: dict[str, list[float]] = {}
        self._entries: dict[str, list[LedgerEntry | None]] = {}
        for write in state.ledger:
            self._times.setdefault(write.entity, []).append(write.at)
            self._entries.setdefault(write.entity, []).append(write.entry)

    def around(self, entity: str, at: float, seconds_after: float = CLOCK_SECONDS) -> list[LedgerEntry | None]:
        """Return the entry at a time, and those written within the resolution of the clocks around it."""
        times, entries = self._times.get(entity, []), self._entries.get(entity, [])
        first, last = bisect_right(times, at - CLOCK_SECONDS), bisect_right(times, at + seconds_after)
        return entries[max(0, first - 1) : last]


def _keys(request: ConfigRequest) -> str:
    return ", ".join(f"{entity} {key}" for entity, edits in request.edits.items() for key in edits)
