"""`autothrottle simulate SCENARIO.toml`: what a policy and a configuration would do to a move, before they are trusted.

The planner is the real one; brokers, clients and time are not (`virtual`). It prints a table, and with `--plot`
draws utilization, throttle and clients of every port that takes part.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from autothrottle.adapters.tls import Tls
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.loads import MEGABYTE, Port
from autothrottle.lab.live_scenario import fetch_scenario
from autothrottle.lab.logged_scenario import choose, scenario_text
from autothrottle.lab.recording import Outcome, PortOutcome, Recording, Second
from autothrottle.lab.scenario_file import PLANNER_OPTIONS, ScenarioFile, read_scenario
from autothrottle.lab.virtual import VirtualRecovery, VirtualScenario
from autothrottle.runtime import options
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle.runtime.options import CONFIG, help_text
from autothrottle.runtime.output import EXIT_BROKEN_PIPE, discard_output
from autothrottle.runtime.sources import Flags, from_environment, from_file
from autothrottle.scorer.svg import Series, sheet

EXIT_FAILED = 1
EXIT_USAGE = 2

_TLS_OPTIONS = tuple(one.name for one in (options.TLS_CERT, options.TLS_KEY, options.TLS_CA, options.TLS_SERVER_NAME))

_POINTS = 300
"""Of each line of a plot."""

_USAGE = """Usage: autothrottle simulate SCENARIO.toml [--plot FILE.svg] [options]
       autothrottle simulate --from-decisions URI [--reassignment ID] > SCENARIO.toml
       autothrottle simulate --from-cluster ADDRESS [--tls-cert FILE --tls-key FILE --tls-ca FILE] > SCENARIO.toml

Plays a move in virtual time under the real planner, and prints what became of it. deploy/scenario.toml explains the
file; the second form makes one from the decision log, of the reassignment that ended last if no other one is named
(needs the extra `decisions`); the third one of what is left of the move that goes on, as the admin service (or
`autothrottle run`) at this host:port tells it. The options beat what the file's table `planner` says:

"""


def main(argv: Sequence[str]) -> int:
    """Play one scenario, or make one.

    Return the exit status: 0, 1 when it did not end, 2 when it was called wrongly, 141 when nobody reads it any more.
    """
    try:
        status = _run(argv)
        print(end="", flush=True)  # also where there is no standard output
        return status
    except BrokenPipeError:
        discard_output()
        return EXIT_BROKEN_PIPE


def _run(argv: Sequence[str]) -> int:
    if not argv or {"-h", "--help", "-help"} & set(argv):
        text = help_text("simulate", {CONFIG.name, *PLANNER_OPTIONS})
        print(_USAGE + text[text.index("An option is") :], file=sys.stdout if argv else sys.stderr)
        return 0 if argv else EXIT_USAGE
    if any(word.lstrip("-").split("=")[0] == "from-decisions" for word in argv):
        return _print_logged_scenario(argv)
    if any(word.lstrip("-").split("=")[0] == "from-cluster" for word in argv):
        return _print_live_scenario(argv)
    try:
        plot, flags = _own_flags(argv[1:])
        if argv[0].startswith("-"):
            raise Invalid(f"the scenario comes first, and {argv[0]!r} is a flag. Fix: simulate SCENARIO.toml {argv[0]}")
        file = read_scenario(Path(argv[0]))
        configuration = configure(file, flags, os.environ)
        scenario = scenario_of(file, configuration)
        if plot:
            _must_be_writable(plot)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except Invalid as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        outcome = play(scenario, file.longest)
    except TimeoutError as error:
        fix = "give more throttle, or a larger 'longest' in the scenario"
        print(f"simulate: {error}. Fix: {fix}", file=sys.stderr)
        return EXIT_FAILED
    except AutothrottleError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_FAILED
    print("\n".join(table(outcome, configuration.policy.value)))
    if plot:
        plot.write_text(drawing(outcome), "utf-8")
        print(f"plot: {plot}")
    return 0


def _print_logged_scenario(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="autothrottle simulate", allow_abbrev=False)
    parser.add_argument("--from-decisions", required=True, metavar="URI")
    parser.add_argument("--reassignment", default="", metavar="ID")
    given = parser.parse_args(argv)
    try:
        from autothrottle.adapters.decision_reader import LoggedDecisions  # Arrow is an extra

        logged = LoggedDecisions(given.from_decisions)
        move = choose(logged.reassignments(), given.reassignment)
        print(scenario_text(move, logged.decisions(move.reassignment_id)), end="")
    except ImportError as error:
        print(f"simulate: Arrow is not installed ({error}); install the extra `decisions`", file=sys.stderr)
        return EXIT_FAILED
    except AutothrottleError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _print_live_scenario(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="autothrottle simulate", allow_abbrev=False, add_help=False)
    parser.add_argument("--from-cluster", "-from-cluster", required=True, metavar="ADDRESS")
    given, flags = parser.parse_known_args(argv)
    try:
        addresses, tls = _where(given.from_cluster, flags)
        print(fetch_scenario(addresses, tls), end="")
    except InvalidConfiguration as error:
        print(str(error).replace(options.ADMIN_ADDR.name, "from-cluster"), file=sys.stderr)
        return EXIT_USAGE
    except AutothrottleError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, Invalid) else EXIT_FAILED
    return 0


def _where(address: str, flags: Sequence[str]) -> tuple[Sequence[str], Tls | None]:
    """Where admin answers, and with which certificate it is called.

    Raises:
        InvalidConfiguration: with every problem at once.
        Invalid: there is no address, or a flag is for other commands.
    """
    configuration = parse([f"--{options.ADMIN_ADDR.name}={address}", *flags], os.environ)
    if strange := sorted(Flags.read(flags).given.keys() - {CONFIG.name, *_TLS_OPTIONS}):
        taken = ", ".join(f"--{name}" for name in _TLS_OPTIONS)
        raise Invalid(f"--{strange[0]} means nothing with --from-cluster. Fix: remove it; there are {taken}")
    if not configuration.addresses.admin:
        raise Invalid("--from-cluster is empty; it must be where admin answers. Fix: --from-cluster=10.0.0.1:8090")
    files = configuration.security.tls
    return configuration.addresses.admin, Tls(files) if files else None


def _own_flags(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    parser = argparse.ArgumentParser(prog="autothrottle simulate", allow_abbrev=False, add_help=False)
    parser.add_argument("--plot", "-plot", type=Path)
    own, others = parser.parse_known_args(words)
    if own.plot is not None and own.plot.suffix != ".svg":
        raise Invalid(f"--plot is {str(own.plot)!r}; it must be the name of an SVG file. Fix: --plot=move.svg")
    return own.plot, others


def _must_be_writable(plot: Path) -> None:
    """Say so before an hour is simulated; what was not there is not there afterwards."""
    is_new = not plot.exists()
    try:
        plot.open("a").close()
        if is_new:
            plot.unlink()
    except OSError as error:
        raise Invalid(
            f"--plot is {str(plot)!r}, which cannot be written: {error.strerror}. Fix: name another"
        ) from None


def configure(file: ScenarioFile, flags: Sequence[str], environ: Mapping[str, str]) -> Configuration:
    """Return the planner's configuration: a scenario's options are those that nothing else gives.

    Raises:
        InvalidConfiguration: with every problem at once.
        Invalid: an option of the scenario makes no sense, or a flag is for other commands.
    """
    try:
        parse([f"--{name}={text}" for name, text in file.planner.items()], {})
    except InvalidConfiguration as error:
        source = "key of planner in " + file.name
        said = (re.sub(r"\(flag --[a-z-]+\)", f"({source})", problem) for problem in error.problems)
        raise Invalid("; ".join(said)) from None
    given = from_environment(environ)[0] | Flags.read(flags).given
    strange = sorted(Flags.read(flags).given.keys() - {CONFIG.name, *PLANNER_OPTIONS})
    if strange:
        options = ", ".join(f"--{name}" for name in PLANNER_OPTIONS)
        raise Invalid(f"--{strange[0]} means nothing in a simulation. Fix: remove it; there are {options} and --plot")
    known = from_file(given.get(CONFIG.name))[0] | given
    own = [f"--{name}={text}" for name, text in file.planner.items() if name not in known]
    return parse([*own, *flags], environ)


def scenario_of(file: ScenarioFile, configuration: Configuration) -> VirtualScenario:
    """Return what is to be played."""
    return VirtualScenario(
        brokers=file.brokers,
        moves=file.moves,
        limits=configuration.limits,
        policy=configuration.new_policy(),
        interval=configuration.interval,
        metrics_window=configuration.datadog.metrics_window,
        metrics_delay=file.metrics_delay,
        schedule=configuration.schedule,
        finish_by=configuration.finish_by,
        events=file.events,
        sharing=file.sharing,
        traffic_waits=True,
        begin=file.begin,
        step=file.step,
    )


def play(scenario: VirtualScenario, longest: timedelta) -> Outcome:
    """Play it to its end.

    Raises:
        TimeoutError: it takes longer than `longest`.
    """
    recording, recovery = Recording(scenario), VirtualRecovery(scenario)
    return recording.outcome(recovery, recovery.run(longest, recording.watch))


_SIDES = {ReplicaRole.LEADER: "sends", ReplicaRole.FOLLOWER: "receives"}
_BOUND = "the slowest port at its share of the headroom"
_WITHOUT = ", had no broker failed, returned or taken the lead"


def table(outcome: Outcome, policy: str) -> list[str]:
    """Return what came of a move, as lines of text."""
    moved = sum(port.moved for (_, role), port in outcome.ports.items() if role is ReplicaRole.FOLLOWER)
    deferred = sum(port.deferred for port in outcome.ports.values())
    rates, seconds = sum(outcome.rate_writes.values()), sum(len(port.seconds) for port in outcome.ports.values())
    share = 100 * outcome.saturated_seconds / max(seconds, 1)
    rows = [
        ("policy", policy),
        ("makespan", _duration(outcome.seconds)),
        ("bound", f"{_duration(outcome.bound_seconds)} ({_BOUND}{_WITHOUT if outcome.events else ''})"),
        ("makespan / bound", f"{outcome.seconds / outcome.bound_seconds:.3f}" if outcome.bound_seconds else "-"),
        ("copied", f"{moved / 1e9:,.2f} GB"),
        ("client bytes deferred", f"{deferred / MEGABYTE:,.1f} MB, {outcome.deferred_percent:.3f} %"),
        ("saturated port-seconds", f"{outcome.saturated_seconds}, {share:.2f} %"),
        ("config writes", f"{rates + outcome.list_writes}: rates {rates}, lists {outcome.list_writes}"),
        ("cycles", str(outcome.cycles)),
    ]
    lines = [f"{name:<24}{value}" for name, value in rows]
    return [*lines, "", *_columns([_HEAD, *(_row(key, outcome) for key in outcome.ports)])]


_HEAD = (
    "broker",
    "role",
    "link MB/s",
    "copied GB",
    "mean %",
    "top %",
    "throttle MB/s",
    "deferred MB",
    "full s",
    "writes",
)


def _row(key: Port, outcome: Outcome) -> tuple[str, ...]:
    port = outcome.ports[key]
    used = [100 * one.carried / port.capacity for one in port.seconds] or [0.0]
    throttles = [rate / MEGABYTE for rate in port.throttles]
    return (
        str(key[0]),
        _SIDES[key[1]],
        f"{port.capacity / MEGABYTE:g}",
        f"{port.moved / 1e9:.2f}",
        f"{sum(used) / len(used):.1f}",
        f"{max(used):.1f}",
        f"{min(throttles):.1f} to {max(throttles):.1f}" if throttles else "none",
        f"{port.deferred / MEGABYTE:.1f}",
        str(port.saturated_seconds),
        str(outcome.rate_writes.get(key[0], 0)),
    )


def _columns(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "never"
    minutes, rest = divmod(round(seconds), 60)
    return f"{seconds:,.1f} s ({minutes // 60} h {minutes % 60:02} min {rest:02} s)"


def drawing(outcome: Outcome) -> str:
    """Return an SVG file: utilization, throttle and clients of every port, in MB/s over minutes."""
    panels = {f"{broker_id} {_SIDES[role]}": _lines(port) for (broker_id, role), port in outcome.ports.items()}
    return sheet(panels, "min", "MB/s")


def _lines(port: PortOutcome) -> Series:
    size = max(math.ceil(len(port.seconds) / _POINTS), 1)
    pieces = [port.seconds[i : i + size] for i in range(0, len(port.seconds), size)]
    link = port.capacity / MEGABYTE
    return {
        "used": [(_minute(piece), _mean([one.carried for one in piece])) for piece in pieces],
        "throttle": [(_minute(p), None if p[-1].throttle is None else p[-1].throttle / MEGABYTE) for p in pieces],
        "clients": [(_minute(piece), _mean([one.offered for one in piece])) for piece in pieces],
        "link": [(_minute(pieces[0]), link), (_minute(pieces[-1]), link)] if pieces else [],
    }


def _minute(piece: Sequence[Second]) -> float:
    return piece[-1].at / 60


def _mean(rates: Sequence[float]) -> float:
    return sum(rates) / len(rates) / MEGABYTE
