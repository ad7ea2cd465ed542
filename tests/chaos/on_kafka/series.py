"""Runs many seeds on real brokers, keeps their results in a file, and formats them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.chaos.on_kafka.absences import AbsenceRun
from tests.chaos.on_kafka.run import KafkaResult, run
from tests.chaos.on_kafka.schedule import absence_schedule, schedule
from tests.chaos.on_kafka.stage import SharedCluster
from tests.chaos.resources import ResourceCount
from tests.chaos.series import run_lanes


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """The result of one seed, as the file of results holds it."""

    seed: int
    services: str
    session_seconds: float
    seconds: float
    kills: int
    kills_inside: int
    cuts: int
    broker_faults: int
    writes: int
    terms: int
    late: int
    stale: int
    repair_seconds: float
    void: int
    descriptors: int
    threads: int
    failovers: tuple[tuple[str, float, float], ...]
    outages: tuple[tuple[str, float], ...]
    returns: tuple[tuple[str, float, float], ...]
    schedule: str
    notes: tuple[str, ...]
    violations: tuple[str, ...]


class Family(Enum):
    """The schedules of a series."""

    ONE_BROKER = "faults of one broker at a time"
    SHORT_ABSENCES = "short"
    LONG_ABSENCES = "long"


def run_all(
    seeds: Sequence[int],
    lanes: int,
    state: str,
    report: Callable[[KafkaRecord], None],
    logs: Path | None = None,
    family: Family = Family.ONE_BROKER,
) -> list[KafkaRecord]:
    """Run seeds in parallel, and return their results sorted by seed.

    Args:
        seeds: the seeds.
        lanes: number of parallel runs, each with its own brokers.
        state: the state store, `kafka` or `zookeeper`.
        report: called with each result, one at a time.
        logs: directory that keeps the logs of runs with violations; None: they are removed.
        family: the schedules.
    """

    def run_one(cluster: SharedCluster, seed: int, directory: Path) -> KafkaRecord:
        if family is Family.ONE_BROKER:
            return _record(run(cluster, schedule(seed), directory, logs))
        plan = absence_schedule(seed, is_long=family is Family.LONG_ABSENCES)
        return _record(run(cluster, plan, directory, logs, AbsenceRun))

    records = run_lanes(seeds, lanes, report, lambda directory: SharedCluster(directory, state), run_one)
    return sorted(records, key=lambda record: record.seed)


def read_results(path: Path) -> dict[int, KafkaRecord]:
    """Return seed -> its newest result in a file of results, which may not exist."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [_from_json(line) for line in lines]
    return {record.seed: record for record in records}


def to_json(record: KafkaRecord) -> str:
    """Return a result as one line of a file of results."""
    return json.dumps({name: getattr(record, name) for name in KafkaRecord.__slots__})


def _from_json(line: str) -> KafkaRecord:
    fields = {"late": 0, "descriptors": 0, "threads": 0, "returns": (), **json.loads(line)}
    for name in ("notes", "violations"):
        fields[name] = tuple(fields[name])
    for name in ("failovers", "outages", "returns"):
        fields[name] = tuple(map(tuple, fields[name]))
    return KafkaRecord(**fields)


def _record(result: KafkaResult) -> KafkaRecord:
    plan, judgement = result.plan, result.judgement
    return KafkaRecord(
        seed=plan.seed,
        services="separate" if plan.separate_services else "3 x run",
        session_seconds=plan.session_seconds,
        seconds=round(result.seconds, 1),
        kills=result.kills,
        kills_inside=result.kills_inside,
        cuts=result.cuts,
        broker_faults=result.broker_faults,
        writes=judgement.writes,
        terms=judgement.terms,
        late=judgement.late,
        stale=len(judgement.stale),
        repair_seconds=round(judgement.repair_seconds, 2),
        void=judgement.void,
        descriptors=result.most.descriptors,
        threads=result.most.threads,
        failovers=tuple((name, round(claim, 2), round(cycle, 2)) for name, claim, cycle in result.failovers),
        outages=tuple((kind, round(gap, 2)) for kind, gap in result.outages),
        returns=tuple((kind, absent, round(seconds, 2)) for kind, absent, seconds in result.returns),
        schedule=str(plan),
        notes=(*result.notes, *(f"stale: {rate}" for rate in judgement.stale)),
        violations=tuple(map(str, result.violations)),
    )


def line(record: KafkaRecord) -> str:
    """Return the result of a seed in one line."""
    outcome = f"{len(record.violations)} VIOLATIONS" if record.violations else "ok"
    return (
        f"{record.seed:5} {record.services:8}{record.seconds:6.1f} s, "
        f"{record.kills} kills and stops, {record.kills_inside} during a request, "
        f"{record.cuts} cuts after a request, {record.broker_faults} broker faults, "
        f"{record.writes} writes of {record.terms} terms, {record.void} void records, "
        f"{record.stale} stale rates, "
        f"at most {ResourceCount(record.descriptors, record.threads)} of a process: {outcome}"
    )


def details(record: KafkaRecord) -> str:
    """Return the schedule, events and violations of a run."""
    return "\n".join([record.schedule, *(f"  {note}" for note in record.notes), *(f"  {v}" for v in record.violations)])


def summary(records: Sequence[KafkaRecord]) -> str:
    """Return the totals of all runs."""
    kills, inside = sum(r.kills for r in records), sum(r.kills_inside for r in records)
    broken = [r.seed for r in records if r.violations]
    where = f": seeds {broken}" if broken else ""
    return "\n".join(
        [
            f"{len(records)} runs, {sum(len(r.violations) for r in records)} violations{where}",
            f"{kills} kills and stops of services, {inside} of them during a request ({inside / max(kills, 1):.0%})",
            f"{sum(r.cuts for r in records)} connections cut between a request and its response, "
            f"{sum(r.broker_faults for r in records)} brokers killed, frozen or partitioned",
            f"{sum(r.writes for r in records)} config writes of {sum(r.terms for r in records)} terms, "
            f"{sum(r.late for r in records)} of them on their way during a SIGSTOP that outlasted the term; "
            f"{sum(r.void for r in records)} void records",
            f"{sum(r.stale for r in records)} stale rates, each repaired within "
            f"{max((r.repair_seconds for r in records), default=0.0):.1f} s",
            f"at most {ResourceCount(_most(records, 'descriptors'), _most(records, 'threads'))} of a process",
            *(_failovers(records, signal) for signal in ("SIGKILL", "SIGTERM")),
            *(_outages(records, kind) for kind in ("SIGKILL", "SIGSTOP")),
            *(_returns(records, kind) for kind in ("SIGKILL", "SIGSTOP")),
        ]
    )


def _most(records: Sequence[KafkaRecord], field: str) -> int:
    return max((getattr(record, field) for record in records), default=0)


def _failovers(records: Sequence[KafkaRecord], signal: str) -> str:
    """Return the times of the failovers after a signal to the leader: until the claim, and the first cycle's end."""
    failovers = [
        (claim - r.session_seconds * (signal == "SIGKILL"), cycle - r.session_seconds * (signal == "SIGKILL"))
        for r in records
        for name, claim, cycle in r.failovers
        if name == signal
    ]
    if not failovers:
        return f"no failover after {signal}"
    claims, cycles = (sorted(column) for column in zip(*failovers, strict=True))
    session = "session time-out + " if signal == "SIGKILL" else ""
    return (
        f"{len(failovers)} failovers after {signal}: next claim after {session}{claims[len(claims) // 2]:.2f} s "
        f"(median), {claims[-1]:.2f} s (longest); first cycle after {session}{cycles[len(cycles) // 2]:.2f} s, "
        f"{cycles[-1]:.2f} s"
    )


def _outages(records: Sequence[KafkaRecord], fault: str) -> str:
    """Return the longest times between two cycles after a fault of the broker that led the state partition."""
    gaps = sorted(gap for r in records for kind, gap in r.outages if kind == fault)
    if not gaps:
        return f"no {fault} of the broker that leads the state partition"
    return (
        f"{len(gaps)} times {fault} of the broker that leads the state partition: longest time between two cycles "
        f"{gaps[len(gaps) // 2]:.2f} s (median), {gaps[-1]:.2f} s (longest)"
    )


def _returns(records: Sequence[KafkaRecord], fault: str) -> str:
    """Return the times from the return of all brokers to the end of a cycle."""
    seconds = sorted(seconds for r in records for kind, _, seconds in r.returns if kind == fault)
    if not seconds:
        return f"no {fault} of all brokers"
    return (
        f"{len(seconds)} times {fault} of all brokers: a cycle ended "
        f"{seconds[len(seconds) // 2]:.2f} s (median), {seconds[-1]:.2f} s (longest) after their return"
    )
