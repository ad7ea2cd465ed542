"""`autothrottle replay`: run logged cycles again, and show each decision that differs.

Without `--policy` and `--set` it is a regression test: a version decides the same as the version that wrote the log,
or the release notes say why not. With them it shows what other settings would have decided.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from autothrottle.adapters.decision_log.files import ReplayLog
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.policy.registry import policy_names
from autothrottle.core.scoring.replay import DecisionDifference, LoggedRates, ReplayFinding, ReplaySummary, TermReplay
from autothrottle.core.texts import escape_unprintable
from autothrottle.core.units import format_megabytes
from autothrottle.runtime.command_line import EXIT_USAGE
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle_client.argument_parser import SuggestingParser

EXIT_DIFFERENT = 1

_LIMITS: Mapping[str, Sequence[str]] = {
    "min-rate": ("min_rate",),
    "max-rate": ("max_tx_ratio", "max_rx_ratio"),
    "max-tx-rate": ("max_tx_ratio",),
    "max-rx-rate": ("max_rx_ratio",),
    "change-threshold": ("change_threshold",),
    "failure-threshold": ("failure_threshold",),
    "skip-auto-delete-throttles": ("keep_throttles",),
    "pause-over-capacity": ("pause_over_capacity",),
}
"""Option of the planner -> its fields in `Limits`."""

_SETTINGS: Mapping[str, str] = {
    "cleanup-after": "cleanup_after",
    "cleanup-foreign": "cleanup_foreign",
    "finish-by": "finish_by",
    "schedule": "schedule",
}
"""Option of the planner -> its field in `PlannerSettings`."""

_POLICY = ("policy", "static-rate")

SETTABLE = (*_POLICY, *_LIMITS, *_SETTINGS)
"""The options that `--set` accepts: those that the decision of a cycle depends on."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = SuggestingParser(
        prog="autothrottle replay",
        description="Run logged cycles again with this version, and show each decision that differs. Exit status: 0 no "
        "difference, 1 differences, 2 wrong usage, or a log without a cycle that can be replayed.",
    )
    place = "a path, or a URI as in the planner's --decisions"
    parser.add_argument("--decisions", required=True, metavar="URI", help=f"decision log: {place}")
    parser.add_argument("--policy", choices=policy_names(), help="policy instead of the logged one")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help=f"planner option instead of the logged one; repeatable: {', '.join(SETTABLE)}",
    )
    parser.add_argument("--cluster", default="", help="only this cluster")
    parser.add_argument("--term", type=int, help="only this term")
    parser.add_argument("--from", dest="begin", type=_time, metavar="TIME", help="compare only cycles since then")
    parser.add_argument("--to", dest="end", type=_time, metavar="TIME", help="compare only cycles before then")
    parser.add_argument("--output", "-o", choices=("text", "json"), default="text", help="(default %(default)s)")
    return parser


def _time(text: str) -> datetime:
    with suppress(ValueError):
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time; give 2026-11-02T12:00:00Z, for example")


def main(argv: Sequence[str] | None = None) -> int:
    """Replay a decision log. Return the exit status: 0 no difference, 1 differences, 2 wrong usage."""
    arguments = make_parser().parse_args(argv)
    try:
        changed = changed_settings([*([f"policy={arguments.policy}"] if arguments.policy else []), *arguments.set])
        run = Replay(ReplayLog(arguments.decisions), changed, arguments.begin, arguments.end)
        write = _write_json if arguments.output == "json" else _write_text
        write(run, arguments.cluster, arguments.term)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except AutothrottleError as error:
        print(f"replay: {escape_unprintable(str(error))}", file=sys.stderr)
        return EXIT_USAGE
    if not run.summary.cycles:
        print("replay: no cycle could be compared. Fix: give another log, term or time", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_DIFFERENT if run.summary.differences else 0


def changed_settings(options: Sequence[str]) -> Callable[[PlannerSettings], PlannerSettings]:
    """Return a function that replaces some of the recorded settings.

    Args:
        options: options of the planner, each `name=value`.

    Raises:
        Invalid: an option is unknown, or a replay does not depend on it.
        InvalidConfiguration: a value is out of range.
    """
    names = [option.partition("=")[0] for option in options]
    for option, name in zip(options, names, strict=True):
        if name not in SETTABLE or "=" not in option:
            raise Invalid(
                f"--set {option[:60]!r} is unknown. Fix: give one of {', '.join(SETTABLE)}, then = and a value"
            )
    configuration = parse([f"--{option}" for option in options], {})

    def changed(settings: PlannerSettings) -> PlannerSettings:
        limits = {field: getattr(configuration.limits, field) for name in names for field in _LIMITS.get(name, ())}
        fields = {_SETTINGS[name]: getattr(configuration, _SETTINGS[name]) for name in names if name in _SETTINGS}
        if not {*_POLICY}.isdisjoint(names):
            fields["policy"] = _policy(configuration, names, settings)
        return replace(settings, limits=replace(settings.limits, **limits), **fields)

    return changed


def _policy(configuration: Configuration, names: Sequence[str], settings: PlannerSettings) -> object:
    if "policy" in names:
        return configuration.new_policy()
    # A static rate alone does not change a policy that follows the loads.
    return settings.policy if settings.policy.follows_load else settings.policy.new(configuration.static_rate)


@dataclass(slots=True)
class Replay:
    """Replays the terms of a log."""

    log: ReplayLog
    changed: Callable[[PlannerSettings], PlannerSettings]
    begin: datetime | None = None
    """Only cycles since then are compared; None: since the beginning."""
    end: datetime | None = None
    """Only cycles before then are replayed; None: all."""
    summary: ReplaySummary = field(default_factory=ReplaySummary)
    findings: list[ReplayFinding] = field(default_factory=list)

    def run(self, cluster: str = "", term: int | None = None) -> Iterator[DecisionDifference]:
        """Yield all differences; `cluster` "" and `term` None: of all.

        Raises:
            Invalid: the log has no such term.
        """
        terms = [(c, t) for c, t in self.log.terms if cluster in ("", c) and term in (None, t)]
        if not terms:
            raise Invalid(f"the log has no term {term or ''} of cluster {cluster or 'any'}. Fix: leave --term out")
        for name, number in terms:
            yield from self._run_term(name, number)

    def _run_term(self, cluster: str, term: int) -> Iterator[DecisionDifference]:
        def note(sentence: str) -> None:
            self.findings.append(ReplayFinding(cluster, term, sentence))

        if not self.log.has_cycles(cluster, term):
            note("it cannot be replayed: written by an older version, or its cycles were removed")
            return

        @cache  # read only if a cycle differs
        def rates() -> Mapping[int, LoggedRates]:
            return self.log.rates(cluster, term, note)

        records = (
            record for record in self.log.cycles(cluster, term, note) if self.end is None or record.time < self.end
        )
        replayed = TermReplay(cluster, term, self.changed, self.begin, self.summary, self.findings)
        yield from replayed.run(records, lambda cycle: rates().get(cycle, {}))


def _write_text(run: Replay, cluster: str, term: int | None) -> None:
    for difference in run.run(cluster, term):
        print(_line(difference), flush=True)
    for finding in run.findings:
        print(f"{finding.cluster} term {finding.term}: {escape_unprintable(finding.sentence)}", file=sys.stderr)
    summary = run.summary
    print(
        f"{summary.differences} differences in {summary.differing_cycles} of {summary.cycles} cycles with "
        f"{summary.decisions} decisions of {summary.terms} terms; {summary.skipped_cycles} cycles were not compared"
    )


def _line(difference: DecisionDifference) -> str:
    place = f"{difference.cluster}/{difference.term}/{difference.cycle} {difference.time:%Y-%m-%dT%H:%M:%SZ}"
    if difference.side is None:
        return f"{place} {difference.sentence}"
    broker_id, role = difference.side
    then = _decision(difference.rate_then, difference.reason_then)
    return f"{place} broker {broker_id} [{role.value}]: then {then}, now " + _decision(
        difference.rate_now, difference.reason_now
    )


def _decision(rate: int | None, reason: str) -> str:
    return "no decision" if rate is None else f"{format_megabytes(rate)} MB/s ({reason})"


def _write_json(run: Replay, cluster: str, term: int | None) -> None:
    differences = [_as_json(difference) for difference in run.run(cluster, term)]
    document = {
        "differences": differences,
        "findings": [asdict(finding) for finding in run.findings],
        "summary": asdict(run.summary),
    }
    print(json.dumps(document, indent=2), flush=True)


def _as_json(difference: DecisionDifference) -> dict[str, object]:
    broker_id, role = difference.side or (None, None)
    return {
        "cluster": difference.cluster,
        "term": difference.term,
        "cycle": difference.cycle,
        "time": difference.time.isoformat(),
        "broker_id": broker_id,
        "role": role and role.value,
        "rate_then_bytes_per_second": difference.rate_then,
        "reason_then": difference.reason_then,
        "rate_now_bytes_per_second": difference.rate_now,
        "reason_now": difference.reason_now,
        "sentence": difference.sentence,
    }
