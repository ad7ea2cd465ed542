"""Output of `throttlectl`: tables, and JSON with the field names of `model`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.members import Member
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import (
    AuditAction,
    Basis,
    CancelEffect,
    CatchUp,
    Cycle,
    Decision,
    Estimate,
    Pause,
    RunningMove,
    Submission,
    Throttle,
)
from autothrottle.core.texts import caller_name, id_ranges, no_end_words
from autothrottle.core.units import format_size
from autothrottle_client.cancellation import NOTHING_MOVES
from autothrottle_client.model import AuditRecord, ClusterState, Override, RequestQuota
from autothrottle_client.quotas import UNLIMITED, EffectiveQuota, Quota, QuotaValues
from autothrottle_client.reassignments import ReassigningTopic, Reassignments
from autothrottle_client.texts import about_rate, columns, estimate_line, format_rate, span

NONE_SET = "no throttle override is set"


def to_json(value: object) -> str:
    """Return a value as one line of JSON: rates as whole numbers of bytes per second, times as RFC 3339 in UTC."""
    return json.dumps(_plain(value))


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value


def _key(key: object) -> str:
    """Return a partition as `topic-number`, as Kafka's tools write it; any other key as a string."""
    return "-".join(map(str, key)) if isinstance(key, tuple) else str(key)


def override_scope(broker_id: int | None) -> str:
    """Return the scope of an override: the cluster or a broker."""
    return "cluster" if broker_id is None else f"broker {broker_id}"


def overrides_table(overrides: Sequence[Override]) -> str:
    """Return overrides as a table, one row each."""
    rows = (
        {
            "BROKER": _target(o.broker_id),
            "RATE": format_rate(o.rate_bytes_per_second),
            "AUTOREMOVE": "true" if o.autoremove else "false",
            "EXPIRES": "never" if o.expire_time is None else time_words(o.expire_time),
            "ETAG": o.etag or "-",
            "EFFECT": ", ".join([o.effect or "unknown", *["beyond capacity"] * o.beyond_capacity]),
        }
        for o in overrides
    )
    return rows_table(rows, NONE_SET)


def request_quotas_table(quotas: Sequence[RequestQuota]) -> str:
    """Return request quotas as a table, one row each."""
    rows = (
        {"USER": _part(q.user), "CLIENT ID": _part(q.client_id), "REQUESTS PER SECOND": str(q.request_rate)}
        for q in quotas
    )
    return rows_table(rows, "no request quota is set")


def request_quota_scope(user: str | None, client_id: str | None) -> str:
    """Return the callers of a request quota, on one line."""
    parts = (("user", user), ("client id", client_id))
    return ", ".join(f"{kind} {_part(name)}" for kind, name in parts if name is not None)


def _part(name: str | None) -> str:
    return "any" if name is None else printable(name) or "(default)"


def audit_table(records: Sequence[AuditRecord]) -> str:
    """Return audit records as a table, one row each."""
    rows = (
        {
            "TIME": time_words(r.time),
            "BROKER": "-" if r.pause or (r.result and r.broker_id is None) else _target(r.broker_id),
            "ACTION": r.action.value,
            "BEFORE": _value(r.before, r.pause if r.action is AuditAction.RESUME else None),
            "AFTER": r.result or _value(r.after, r.pause if r.action is AuditAction.PAUSE else None),
            "WHO": f"{caller_name(r.who)}: {r.reason}" if r.reason else caller_name(r.who),
        }
        for r in records
    )
    return rows_table(rows, "no action is recorded")


def audit_sentence(record: AuditRecord) -> str:
    """Return an action on one line, with its caller in short.

    >>> from datetime import UTC
    >>> at = datetime(2026, 11, 2, tzinfo=UTC)
    >>> audit_sentence(AuditRecord(1, at, "anna at 10.0.0.9:5000", AuditAction.SET, 7, None, Override(50_000_000, 7)))
    'Set by anna: broker 7, 50MB/s instead of no override'
    >>> audit_sentence(AuditRecord(1, at, "10.0.0.9:5", AuditAction.SUBMIT, None, None, None, result="2 submitted"))
    'Submit by 10.0.0.9: 2 submitted'
    """
    verb = record.action.value.replace("_", " ").capitalize()
    overrides = record.action in (AuditAction.SET, AuditAction.REMOVE, AuditAction.PURGE)
    details = [override_scope(record.broker_id)] if overrides or record.broker_id is not None else []
    if overrides:
        after, before = (override_words(o) if o else "no override" for o in (record.after, record.before))
        details.append(f"{after} instead of {before}")
    details += [
        text for text in (_value(None, record.pause) if record.pause else "", record.result, record.reason) if text
    ]
    return f"{verb} by {caller_name(record.who)}{': ' * bool(details)}{', '.join(details)}"


def _target(broker_id: int | None) -> str:
    return "cluster" if broker_id is None else str(broker_id)


def _value(override: Override | None, pause: Pause | None) -> str:
    if pause is not None:
        return f"{pause.mode.value}: {pause.reason}" if pause.reason else pause.mode.value
    return "-" if override is None else override_words(override)


def quotas_table(quotas: Sequence[Quota]) -> str:
    """Return quotas as a table, one row for each key of an entity."""
    rows = (
        {
            "ENTITY": str(quota.entity),
            "KEY": key,
            "VALUE": _quota_value(value),
            "ENDS": _quota_end(quota),
            "ETAG": quota.etag,
        }
        for quota in quotas
        for key, value in asdict(quota.values).items()
        if value is not None
    )
    return rows_table(rows, "no client quota is set")


def _quota_value(value: float) -> str:
    return "unlimited" if value >= UNLIMITED else f"{value:.15g}"


def _quota_end(quota: Quota) -> str:
    ends = [] if quota.expire_time is None else [time_words(quota.expire_time)]
    return " or ".join([*ends, *["with the recovery"] * quota.until_recovered]) or "never"


def effective_quotas_table(quotas: Sequence[EffectiveQuota]) -> str:
    """Return the quotas of a client as a table, one row for each key."""
    rows = (
        {"KEY": q.key, "VALUE": _quota_value(q.value), "UNIT": q.unit, "LEVEL": str(q.level), "ENTITY": str(q.entity)}
        for q in quotas
    )
    return rows_table(rows, "no quota applies to this client")


def yield_rules_table(rules: Sequence[YieldRule]) -> str:
    """Return yield rules as a table, one row each."""
    rows = (
        {
            "NAME": rule.name,
            "TIME": "-" if rule.time is None else time_words(rule.time),
            "AUTHOR": caller_name(rule.author),
            "RULE": rule.sentence,
        }
        for rule in rules
    )
    return rows_table(rows, "no yield rule is set")


def quota_words(values: QuotaValues) -> str:
    """Return quotas on one line."""
    words = [f"{key} {_quota_value(value)}" for key, value in asdict(values).items() if value is not None]
    return ", ".join(words) or "no quota"


def override_words(override: Override) -> str:
    """Return the rate of an override and when it ends, on one line."""
    ends = [] if override.expire_time is None else [f"until {time_words(override.expire_time)}"]
    flags = [*["autoremove"] * override.autoremove, *["beyond capacity"] * override.beyond_capacity]
    return ", ".join([format_rate(override.rate_bytes_per_second), *ends, *flags])


def state_text(state: ClusterState) -> str:
    """Return the leader, its last cycle with its decisions, the overrides and the running processes."""
    rows = [*_leader(state), *_last_cycle(state.last_cycle), *_failures(state.failures)]
    parts = [aligned(rows), _throttles_table(state), overrides_table(state.overrides)]
    return "\n\n".join(filter(None, [*parts, _members_table(state.members)]))


def cycle_line(cycle: Cycle) -> str:
    """Return a cycle as one line."""
    what = f"failed: {cycle.error}" if cycle.error else cycle.sentence
    return printable(f"{time_words(cycle.end_time)}  {cycle.term}/{cycle.number}  {cycle.reason}: {what}")


def submission_line(submission: Submission, dry_run: bool) -> str:
    """Return the result of a submission as one line."""
    parts = [f"{submission.already_in_progress} are already moving"] if submission.already_in_progress else []
    parts += [f"{submission.already_there} are already there"] if submission.already_there else []
    parts += [f"{len(submission.refused)} were refused"] if submission.refused else []
    left_out = len(submission.partitions_left_out)
    parts += [f"{left_out} are left out"] if left_out else []
    if not (submission.submitted or submission.already_in_progress or submission.refused or left_out):
        return f"nothing to do: all {submission.already_there} partitions already have these replicas"
    if not submission.submitted:
        return "; ".join(["nothing was submitted", *parts])
    what = "would be submitted" if dry_run else "submitted, throttled from the first byte"
    return "; ".join([f"{submission.submitted} partitions {what}", *parts])


def estimate_text(estimate: Estimate) -> str:
    """Return an estimate: a summary line, and a table with one row per link side."""
    table = rows_table(
        {
            "BROKER": str(side.broker_id),
            "ROLE": side.role.value,
            "TO COPY": format_size(side.bytes_to_copy),
            "PRODUCED": about_rate(side.produced_bytes_per_second),
            "THROTTLE": _rate_or_dash(side.rate_bytes_per_second),
            "HEADROOM": _rate_or_dash(side.headroom_bytes_per_second),
            "CAPACITY": _rate_or_dash(side.capacity_bytes_per_second),
            "TIME": span(side.seconds),
        }
        for side in estimate.sides
    )
    return "\n\n".join(filter(None, [estimate_line(estimate), table]))


def reassignments_table(listing: Reassignments) -> str:
    """Return ongoing reassignments as a table, one row per move."""
    if not listing.topics:
        return NOTHING_MOVES
    topics = {topic.topic: topic for topic in listing.topics}
    table = rows_table(
        {
            "MOVE": f"{move.topic}:{id_ranges(move.partitions, separator=',')}",
            "PARTITIONS": str(len(move.partitions)),
            "TO COPY": str(move.partitions_to_copy),
            "TO BROKERS": _ids(move.adding_replicas),
            "FROM BROKERS": _ids(move.removing_replicas),
            "LEFT": "unknown" if move.bytes_left is None else format_size(move.bytes_left),
            "ETA": _eta_of_move(move, topics.get(move.topic)),
        }
        for move in listing.moves
    )
    return table + (
        f"\n\nall done about {eta_interval(listing.eta, listing.eta_low, listing.eta_high)}" if listing.eta else ""
    )


def _eta_of_move(move: RunningMove, topic: ReassigningTopic | None) -> str:
    if move.eta is None:
        return "unknown"
    is_end_of_topic = topic is not None and topic.eta == move.eta
    return eta_interval(move.eta, *((topic.eta_low, topic.eta_high) if is_end_of_topic and topic else (None, None)))


_EFFECTS_SHOWN = 30


def cancel_effects_text(effects: Sequence[CancelEffect]) -> str:
    """Return what a cancellation does: one row for partitions of a topic with the same replicas, and a summary."""
    if not effects:
        return "no partition would be cancelled"
    grouped: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[CancelEffect]] = {}
    for effect in effects:
        grouped.setdefault((effect.topic, effect.replicas, effect.dropped_replicas), []).append(effect)
    table = rows_table(
        {
            "CANCELLED": f"{topic}:{id_ranges((effect.partition for effect in of_row), separator=',')}",
            "STAYS ON": _ids(replicas),
            "DROPPED FROM": _ids(dropped),
            "COPIED BYTES LOST": _bytes_lost(of_row),
        }
        for (topic, replicas, dropped), of_row in list(grouped.items())[:_EFFECTS_SHOWN]
    )
    more = f"\nand {len(grouped) - _EFFECTS_SHOWN} more rows" if len(grouped) > _EFFECTS_SHOWN else ""
    return (
        f"{table}{more}\n\n{len(effects)} partitions keep their old replicas; copied bytes lost: {_bytes_lost(effects)}"
    )


def _bytes_lost(effects: Sequence[CancelEffect]) -> str:
    sizes = [effect.bytes_lost for effect in effects if effect.bytes_lost is not None]
    if len(sizes) < len(effects):
        return "unknown"
    return format_size(sum(sizes))


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids)) or "-"


def _leader(state: ClusterState) -> list[tuple[str, str]]:
    since = [] if state.leader_since is None else [("since", time_words(state.leader_since))]
    paused = [] if state.pause is None else [("paused", printable(str(state.pause)))]
    catch_ups = [("catches up", catch_up_words(catch_up)) for catch_up in state.catch_ups]
    cluster = [("cluster", state.cluster_name)] if state.cluster_name else []
    host = [("host", state.leader_host)] if state.leader_host else []
    return [*cluster, ("leader", state.leader_address), *host, ("term", str(state.term)), *since, *paused, *catch_ups]


def catch_up_words(catch_up: CatchUp) -> str:
    """Return the broker, start and author of a throttled catch-up, on one line."""
    since = "" if catch_up.time is None else f", since {time_words(catch_up.time)}"
    return f"broker {catch_up.broker_id}{since}" + (f", by {caller_name(catch_up.author)}" if catch_up.author else "")


def _failures(failures: Mapping[int, int]) -> list[tuple[str, str]]:
    return [
        ("failing", f"{brokers[:1].lower()}{brokers[1:]}: no usable metrics, {count} in a row")
        for brokers, _, count in failing_brokers(failures)
    ]


def failing_brokers(failures: Mapping[int, int]) -> Iterator[tuple[str, bool, int]]:
    """Yield (brokers in words, whether it is one, consecutive cycles without usable metrics), by the first broker.

    >>> list(failing_brokers({7: 1, 8: 1, 9: 2}))
    [('2 brokers [7-8]', False, 1), ('Broker 9', True, 2)]
    """
    ids_of_count: dict[int, list[int]] = {}
    for broker_id, count in sorted(failures.items()):
        if count:
            ids_of_count.setdefault(count, []).append(broker_id)
    for count, ids in ids_of_count.items():
        is_one = len(ids) == 1
        yield f"Broker {ids[0]}" if is_one else f"{len(ids)} brokers [{id_ranges(ids)}]", is_one, count


def _members_table(members: Iterable[Member]) -> str:
    return rows_table(
        {
            "SERVICE": m.service,
            "ADDRESS": m.address,
            "HOST": m.host,
            "PID": str(m.pid),
            "VERSION": m.version,
            "STARTED": time_words(m.start_time),
        }
        for m in members
    )


def _last_cycle(cycle: Cycle | None) -> list[tuple[str, str]]:
    if cycle is None:
        return [("last cycle", "none yet")]
    took = (cycle.end_time - cycle.start_time).total_seconds()
    rows = [
        ("last cycle", f"{cycle.number}, {time_words(cycle.end_time)}, took {took:.2f} s"),
        ("started by", cycle.reason),
        ("did", f"failed: {cycle.error}" if cycle.error else cycle.sentence),
        ("topics", " ".join(cycle.topics) or "none in reassignment"),
        *_bytes_left(cycle),
    ]
    refused = [("refused", f"{o.resource}: {o.reason}") for o in cycle.outcomes if o.status == "refused"]
    foreign = [("not ours", f"{f.resource} {f.key}={f.value}") for f in cycle.foreign_throttles]
    return [*rows, *refused, *foreign, *(("finding", finding) for finding in cycle.findings)]


def _bytes_left(cycle: Cycle) -> list[tuple[str, str]]:
    if cycle.bytes_left is None:
        return [("bytes left", "unknown")] if cycle.topics else []
    return [("bytes left", f"{format_size(cycle.bytes_left)}{_eta(cycle)}")]


def _eta(cycle: Cycle) -> str:
    """Return the ETA with its interval, or with a note that it is computed from the throttles."""
    if cycle.down_brokers:
        return f", {no_end_words(cycle.down_brokers)}"
    if cycle.eta is None:
        return ""
    if cycle.eta_is_static:
        return f", done about {time_words(cycle.eta)} at these throttles"
    return f", done about {eta_interval(cycle.eta, cycle.eta_low, cycle.eta_high)}"


def eta_interval(eta: datetime, low: datetime | None, high: datetime | None) -> str:
    """Return a time and its interval; interval ends on the same day show the clock time only."""
    if low is None:
        return time_words(eta)
    first, last = (_end(end, eta) for end in (low, high))
    return f"{time_words(eta)} ({first} to {last})"


def _end(time: datetime | None, eta: datetime) -> str:
    if time is None:
        return "unknown"
    return time.strftime("%H:%M:%S") if time.date() == eta.date() else time_words(time)


def _throttles_table(state: ClusterState) -> str:
    """Return the throttles in Kafka and the decisions of the last cycle, one row for each link side with either."""
    throttles = state.current_throttles
    decisions = {(d.broker_id, d.role): d for d in (state.last_cycle.decisions if state.last_cycle else ())}
    sides = sorted({*throttles, *decisions}, key=lambda side: (side[0], side[1].value))
    return rows_table(_throttle_row(*side, throttles.get(side), decisions.get(side)) for side in sides)


def _throttle_row(
    broker_id: int, role: ReplicaRole, throttle: Throttle | None, decision: Decision | None
) -> dict[str, str]:
    d = decision
    return {
        "BROKER": str(broker_id),
        "ROLE": role.value,
        "THROTTLE": "none" if throttle is None else about_rate(throttle.rate_bytes_per_second),
        "TARGET": _target_words(throttle, decision),
        "REASON": d.reason.value + _limited(d) if d else "not decided",
        "UTILIZATION": _rate_or_dash(d.utilization_bytes_per_second if d else None),
        "CAPACITY": _rate_or_dash(d.capacity_bytes_per_second if d else None),
        "CLIENTS": _rate_or_dash(d.client_bytes_per_second if d else None),
        "KNOWN BY": _known_by(d) if d else "-",
    }


def _target_words(throttle: Throttle | None, decision: Decision | None) -> str:
    """Return the decided rate unless Kafka has it: with the end of the ramp to it, or that it is not written."""
    rate = decision.rate_bytes_per_second if decision else None
    if rate is None or (throttle is not None and throttle.rate_bytes_per_second == rate):
        return "-"
    if throttle is None or throttle.target_bytes_per_second != rate:
        return f"{about_rate(rate)}, not written"
    return about_rate(rate) + ("" if throttle.arrival_time is None else f" by {throttle.arrival_time:%H:%M:%SZ}")


def _limited(decision: Decision) -> str:
    override = decision.override_bytes_per_second
    return "" if override is None else f" of {about_rate(override)}, limited by the link"


_KNOWN_BY = {
    Basis.GROWTH: "growth of logs",
    Basis.COUNTED: "metric, replication counted",
    Basis.GUESSED: "metric, replication guessed",
    Basis.STATIC: "static",
    Basis.UNKNOWN: "unknown",
}
_OLD_SECONDS = 300
"""The table shows the age of client loads older than this."""


def _known_by(decision: Decision) -> str:
    """Return the source of the client load."""
    if decision.basis is None:
        return "-"
    age = decision.client_age_seconds or 0
    return _KNOWN_BY[decision.basis] + (f", {age} s old" if age > _OLD_SECONDS else "")


def _rate_or_dash(rate: int | None) -> str:
    return "-" if rate is None else about_rate(rate)


def time_words(time: datetime) -> str:
    """Return a time in UTC to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def rows_table(rows: Iterable[Mapping[str, str]], no_rows: str = "") -> str:
    """Return a table whose header is the keys of the first row; without rows, the text that says so.

    A longer cell than `_MOST_CELL` is cut: one long error would make every row as wide. JSON has all of it.
    """
    lines = list(rows)
    cells = (list(map(_cut, row.values())) for row in lines)
    return aligned([list(lines[0]), *cells]) if lines else no_rows


_MOST_CELL = 100
"""Characters of a cell of a table. Topics and yield rules are rarely longer."""


def _cut(cell: str) -> str:
    return cell if len(cell) <= _MOST_CELL else f"{cell[: _MOST_CELL - 3]}..."


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with their columns aligned; unprintable characters are replaced."""
    return "\n".join(columns([[printable(cell) for cell in row] for row in rows]))


def printable(text: str) -> str:
    """Return a line with its unprintable characters replaced, which could control the terminal or forge a line."""
    return "".join(character if character.isprintable() else "?" for character in text)
