"""The results of simulations for readers: the verdict, one SVG file, one HTML page, one JSON document.

A page shows one policy, or several side by side. The charts are those of the scorer's report. The type to know is
`PolicyRun`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.policy.registry import policy_class
from autothrottle.core.scoring.score import TOLERATED_HARM
from autothrottle.scorer import charts, page
from autothrottle.scorer.charts import TimelineEvent, TimelinePeriod, TimelinePoint, TrafficTimeline
from autothrottle.scorer.page import count, duration, megabytes, percent
from autothrottle_client.texts import columns
from autothrottle_lab.simulate.recording import LinkSideOutcome, SimulationOutcome
from autothrottle_lab.simulate.virtual_time import EventKind, VirtualScenario

NO_THROTTLE = "none"
"""Name of the policy that never throttles."""

_MOST_SIDES = 8
"""Number of link sides on a page, those with the most copied bytes first."""

_SIDES = {ReplicaRole.LEADER: "outbound", ReplicaRole.FOLLOWER: "inbound"}
_EVENTS = {EventKind.FAILS: "fails", EventKind.RETURNS: "returns", EventKind.LEADS: "becomes leader"}
_WAITING = 0.01
"""Clients wait while they get less than they ask for by more than this share of the link."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The outcome of a scenario under one policy."""

    policy: str
    outcome: SimulationOutcome | None
    """None: the reassignment did not end in time."""
    problem: str = ""
    """Why the run has no outcome."""

    @property
    def follows_load(self) -> bool:
        """Whether the policy throttles as the loads demand."""
        return self.policy != NO_THROTTLE and policy_class(self.policy).follows_load

    @property
    def has_fixed_rate(self) -> bool:
        """Whether the policy throttles at one rate whatever the loads are."""
        return self.policy != NO_THROTTLE and not self.follows_load

    @property
    def writes(self) -> int:
        """Number of config writes."""
        return sum(self.outcome.rate_writes.values()) + self.outcome.list_writes if self.outcome else 0

    @property
    def deferred_share(self) -> float:
        """Share of client bytes that had to wait because of the reassignment."""
        return self.outcome.deferred_percent / 100 if self.outcome else 0.0


def verdict(runs: Sequence[PolicyRun]) -> str:
    """Return the answer in some sentences: the fastest policy whose harm to clients is tolerated, and what others cost.

    A policy that does not follow the load is named only if no other one ended: a fixed rate fits the load of the
    scenario by chance, and another load makes it too high or too low.
    """
    ended = [(run, run.outcome) for run in runs if run.outcome is not None]
    if not ended:
        return "No policy ended the reassignment in time."
    choice = [(run, outcome) for run, outcome in ended if run.follows_load] or ended
    tolerated = max(TOLERATED_HARM, min(run.deferred_share for run, _ in choice))
    gentle = [(run, outcome) for run, outcome in choice if run.deferred_share <= tolerated]
    best, outcome = min(gentle, key=lambda pair: (pair[1].seconds, pair[0].writes))
    ratio = f", {outcome.seconds / outcome.bound_seconds:.2f} times the shortest" if outcome.bound_seconds else ""
    sentence = (
        f"{best.policy}: the reassignment takes {duration(outcome.seconds)}{ratio}; {percent(best.deferred_share)} of "
        "the client bytes wait."
    )
    for run, other in ended:
        if run.has_fixed_rate and best.deferred_share > max(TOLERATED_HARM, run.deferred_share):
            pace = "slower" if other.seconds > outcome.seconds else "faster"
            sentence += (
                f" {run.policy} is {duration(abs(other.seconds - outcome.seconds))} {pace} and lets "
                f"{percent(run.deferred_share)} wait, with a rate that fits this load and no other."
            )
    faster = min(ended, key=lambda pair: pair[1].seconds)
    if faster[1].seconds >= outcome.seconds:
        return sentence
    return (
        f"{sentence} {faster[0].policy} is {duration(outcome.seconds - faster[1].seconds)} faster, but lets "
        f"{percent(faster[0].deferred_share)} of the client bytes wait."
    )


def title(scenario: VirtualScenario, runs: Sequence[PolicyRun]) -> str:
    """Return what was simulated."""
    size = sum(reassignment.size for reassignment in scenario.reassignments)
    partitions = count(len(scenario.reassignments), "partition")
    names = ", ".join(run.policy for run in runs)
    return f"Reassignment of {partitions}, {megabytes(size / 1000)} GB: {names}"


def timelines(scenario: VirtualScenario, run: PolicyRun, longest: float = 0.0) -> dict[LinkSide, TrafficTimeline]:
    """Return link side -> its timeline, the ones with the most copied bytes first."""
    if run.outcome is None:
        return {}
    events = [TimelineEvent(0.0, "start")]
    events += [
        TimelineEvent(event.at.total_seconds(), f"broker {event.broker_id} {_EVENTS[event.kind]}")
        for event in scenario.events
        if event.at.total_seconds() <= run.outcome.seconds
    ]
    events.append(TimelineEvent(run.outcome.seconds, f"finish after {duration(run.outcome.seconds)}"))
    sides = sorted(run.outcome.sides.items(), key=lambda item: -item[1].copied)
    return {key: _timeline(key, side, run, events, longest) for key, side in sides}


def _timeline(
    key: LinkSide, side: LinkSideOutcome, run: PolicyRun, events: Sequence[TimelineEvent], longest: float
) -> TrafficTimeline:
    points, start = [], 0.0
    waits: list[tuple[float, float]] = []
    for second in side.seconds:
        clients = second.carried - second.copied
        points.append(TimelinePoint(start, clients, second.copied, second.throttle, side.capacity))
        if second.offered - clients > _WAITING * side.capacity:
            waits.append((start, second.at))
        start = second.at
    name = f"Broker {key[0]}, {_SIDES[key[1]]} link"
    description = (
        f"Client load and copies of {name.lower()}, under its capacity of {megabytes(side.capacity)} MB/s, with policy "
        f"{run.policy}. {megabytes(side.deferred)} MB of client bytes wait. "
        f"Events: {'; '.join(f'{duration(event.second)}: {event.text}' for event in events)}."
    )
    periods = [TimelinePeriod(begin, end, "clients wait") for begin, end in _joined(waits)]
    return TrafficTimeline(name, description, points, start, events, periods, longest)


def _joined(periods: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return periods without gaps shorter than ten seconds."""
    joined: list[tuple[float, float]] = []
    for begin, end in periods:
        if joined and begin - joined[-1][1] < 10:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined


# The SVG file and the page


LEGEND = charts.LEGEND | {"clients wait": charts.PERIOD, "event": charts.EVENT}
_COLUMNS = ("Policy", "Duration", "Times the shortest", "Client bytes that wait", "The same, MB", "Config writes")


def as_svg(scenario: VirtualScenario, run: PolicyRun) -> str:
    """Return an SVG file: the timelines of one policy, one below the other."""
    panels = [
        (line.title, charts.timeline_chart(line, charts.WIDE, f"s{number}"))
        for number, line in enumerate(timelines(scenario, run).values())
    ]
    return charts.sheet(title(scenario, [run]), verdict([run]), LEGEND, panels)


def as_html(scenario: VirtualScenario, runs: Sequence[PolicyRun]) -> str:
    """Return a page: the verdict, a row for each policy, and the timelines of all policies side by side."""
    longest = max((run.outcome.seconds for run in runs if run.outcome), default=0.0)
    lines = {run.policy: timelines(scenario, run, longest) for run in runs}
    sides = list(dict.fromkeys(key for of_policy in lines.values() for key in of_policy))
    name = title(scenario, runs)
    body = [
        f'<h1>{escape(name)}</h1><p class="answer">{escape(verdict(runs))}</p>',
        page.table(_COLUMNS, [_row(run) for run in runs], " nnnnn"),
        "<p><small>The shortest possible duration gives replication max-rate of what clients leave of each link. "
        "Everything is simulated: brokers, clients and time; the planner is the real one.</small></p>",
        page.legend(LEGEND),
    ]
    for number, key in enumerate(sides[:_MOST_SIDES]):
        shown = [(policy, of_policy[key]) for policy, of_policy in lines.items() if key in of_policy]
        figures = [_figure(policy, line, f"s{number}p{n}", len(runs) > 1) for n, (policy, line) in enumerate(shown)]
        pair = f'<div class="pair">{"".join(figures)}</div>' if len(runs) > 1 else "".join(figures)
        body.append(f"<h2>{escape(shown[0][1].title)}</h2>{pair}")
    if len(sides) > _MOST_SIDES:
        body.append(
            f"<p>{count(len(sides) - _MOST_SIDES, 'link side')} with fewer copied bytes: see --output json.</p>"
        )
    return page.document(name, body)


def _figure(policy: str, line: TrafficTimeline, key: str, is_compared: bool) -> str:
    marks = "".join(f"<li><b>{label}</b> {escape(', '.join(texts))}</li>" for _, label, texts in line.marks())
    widths = (_HALF, charts.NARROW) if is_compared else (charts.WIDE, charts.NARROW)
    heading = f"<h3>{escape(policy)}</h3>" if is_compared else ""
    chart = page.figure(partial(charts.timeline_chart, line), key, f"<ol>{marks}</ol>", widths)
    return f"<div>{heading}{chart}</div>"


_HALF = 510
"""Width of a chart in a page with two columns, pixels."""


def _row(run: PolicyRun) -> tuple[str, ...]:
    if run.outcome is None:
        return run.policy, run.problem, "", "", "", ""
    bound = run.outcome.bound_seconds
    return (
        run.policy,
        duration(run.outcome.seconds),
        f"{run.outcome.seconds / bound:.2f}" if bound else "",
        percent(run.deferred_share),
        megabytes(sum(side.deferred for side in run.outcome.sides.values())),
        f"{run.writes:,}",
    )


def comparison(runs: Sequence[PolicyRun]) -> list[str]:
    """Return lines of text: a table with a row for each policy, and the verdict."""
    return [*columns([_COLUMNS, *(_row(run) for run in runs)], right_from=1), "", verdict(runs)]


# JSON


def as_document(scenario: VirtualScenario, runs: Sequence[PolicyRun]) -> dict[str, Any]:
    """Return the results as a JSON document; rates are bytes/s, times seconds."""
    return {
        "title": title(scenario, runs),
        "verdict": verdict(runs),
        "interval_seconds": scenario.settings.interval.total_seconds(),
        "policies": [_policy_document(run) for run in runs],
    }


def _policy_document(run: PolicyRun) -> dict[str, Any]:
    outcome = run.outcome
    if outcome is None:
        return {"policy": run.policy, "problem": run.problem}
    return {
        "policy": run.policy,
        "seconds": round(outcome.seconds, 3),
        "bound_seconds": round(outcome.bound_seconds, 3),
        "deferred_bytes": round(sum(side.deferred for side in outcome.sides.values())),
        "deferred_share": run.deferred_share,
        "saturated_seconds": outcome.saturated_seconds,
        "throttle_writes": sum(outcome.rate_writes.values()),
        "list_writes": outcome.list_writes,
        "cycles": outcome.cycles,
        "link_sides": [_side_document(key, side, outcome) for key, side in outcome.sides.items()],
    }


def _side_document(key: LinkSide, side: LinkSideOutcome, outcome: SimulationOutcome) -> dict[str, Any]:
    throttles, used = side.throttles, [second.carried for second in side.seconds]
    return {
        "broker_id": key[0],
        "role": key[1].value,
        "capacity_bytes_per_second": side.capacity,
        "copied_bytes": round(side.copied),
        "deferred_bytes": round(side.deferred),
        "mean_bytes_per_second": round(sum(used) / len(used)) if used else 0,
        "largest_bytes_per_second": round(max(used, default=0)),
        "lowest_throttle_bytes_per_second": min(throttles, default=None),
        "highest_throttle_bytes_per_second": max(throttles, default=None),
        "saturated_seconds": side.saturated_seconds,
        "writes": outcome.rate_writes.get(key[0], 0),
    }
