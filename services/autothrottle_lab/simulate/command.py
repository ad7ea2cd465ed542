"""`autothrottle simulate SCENARIO.toml`: predict what a policy and a configuration do to a reassignment.

The planner is the real one; brokers, clients and time are simulated (`virtual_time`). The command prints a table. With
`--plot` it also draws clients, copies and throttle of every link side that takes part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from autothrottle.adapters.credentials import ServiceCertificates
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.policy.registry import POLICIES, is_installed
from autothrottle.core.units import MEGABYTE
from autothrottle.runtime.command_line import EXIT_FAILED, EXIT_USAGE, add_options, named, options_text
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle.runtime.sources import Flags, Given, Rank
from autothrottle.scorer import charts
from autothrottle_client.files import write_text
from autothrottle_client.texts import columns
from autothrottle_lab.simulate.recording import Recording, SimulationOutcome
from autothrottle_lab.simulate.results import NO_THROTTLE, PolicyRun, as_document, as_html, as_svg, comparison, verdict
from autothrottle_lab.simulate.scenario_file import PLANNER_OPTIONS, ScenarioFile, read_scenario
from autothrottle_lab.simulate.scenario_text import choose, fetch_scenario, logged_scenario
from autothrottle_lab.simulate.virtual_time import VirtualRecovery, VirtualScenario

_TLS_OPTIONS = ("tls-cert", "tls-key", "tls-ca", "tls-server-name")

_PLOTS = (".svg", ".html")
"""Endings of the files that `--plot` writes."""

_USAGE = """Usage: autothrottle simulate SCENARIO.toml [--plot FILE] [--compare POLICIES] [--output text|json] [options]
       autothrottle simulate --from-decisions URI [--reassignment ID] > SCENARIO.toml
       autothrottle simulate --from-cluster ADDRESS [--tls-cert FILE --tls-key FILE --tls-ca FILE] > SCENARIO.toml

The first form plays a reassignment in virtual time under the real planner and prints the results.
deploy/scenario.toml explains the scenario file. --plot writes charts to FILE.svg or FILE.html. --compare plays several
policies, such as none,static,headroom,adaptive (none: without throttles), and prints a row for each; its --plot is
FILE.html. --output json prints one JSON document.

The second form writes a scenario from the decision log: the named reassignment, or the last one that ended. It needs
the extra `decisions`.

The third form writes a scenario from the current reassignments of a cluster. ADDRESS is the host:port of the admin
service or of `autothrottle run`.

Options override the file's table `planner`:

"""


_parser = partial(argparse.ArgumentParser, prog="autothrottle simulate", allow_abbrev=False, add_help=False)


def make_parser() -> argparse.ArgumentParser:
    """Return a description of all three forms, for completion."""
    parser = _parser(parents=[_plot_parser(), _logged_parser(), _live_parser()], add_help=True)
    parser.add_argument("scenario", metavar="FILE")
    add_options(parser, named({"config", *PLANNER_OPTIONS, *_TLS_OPTIONS}), completion=True)
    return parser


def _plot_parser() -> argparse.ArgumentParser:
    parser = _parser()
    parser.add_argument("--plot", "-plot", type=Path, metavar="FILE")
    parser.add_argument("--compare", "-compare", metavar="POLICIES")
    parser.add_argument("--output", "-output", choices=("text", "json"), default="text")
    return parser


def _logged_parser() -> argparse.ArgumentParser:
    parser = _parser()
    parser.add_argument("--from-decisions", required=True, metavar="URI")
    parser.add_argument("--reassignment", default="", metavar="ID")
    return parser


def _live_parser() -> argparse.ArgumentParser:
    parser = _parser()
    parser.add_argument("--from-cluster", "-from-cluster", required=True, metavar="ADDRESS")
    return parser


def main(argv: Sequence[str]) -> int:
    """Play a scenario, or write one.

    Return the exit status: 0 for success, 1 for a failure or a reassignment that does not end, 2 for invalid arguments
    or an invalid scenario.

    Raises:
        BrokenPipeError: standard output is closed.
    """
    try:
        status = _run(argv)
        print(end="", flush=True)  # works without a standard output, too
        return status
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except TimeoutError as error:
        print(f"simulate: {error}. Fix: raise the throttles, or 'longest' in the scenario", file=sys.stderr)
        return EXIT_FAILED
    except AutothrottleError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, Invalid) else EXIT_FAILED


def _run(argv: Sequence[str]) -> int:
    if not argv or {"-h", "--help", "-help"} & set(argv):
        print(_USAGE + options_text({"config", *PLANNER_OPTIONS}), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else EXIT_USAGE
    if any(word.lstrip("-").split("=")[0] == "from-decisions" for word in argv):
        return _print_logged_scenario(argv)
    if any(word.lstrip("-").split("=")[0] == "from-cluster" for word in argv):
        return _print_live_scenario(argv)
    own, flags = own_flags(argv[1:])
    if argv[0].startswith("-"):
        raise Invalid(f"the scenario must come before the flag {argv[0]!r}. Fix: simulate SCENARIO.toml {argv[0]}")
    file = read_scenario(Path(argv[0]))
    configuration = configure(file, flags, os.environ)
    scenario = virtual_scenario(file, configuration)
    if own.plot:
        _require_writable(own.plot)
        charts.require()
    if own.compare:
        runs = [_run_policy(name, file, flags) for name in own.compare]
    else:
        runs = [PolicyRun(configuration.policy, play(scenario, file.longest))]
    _print_runs(scenario, runs, own.output)
    if own.plot:
        write_text(own.plot, as_svg(scenario, runs[0]) if own.plot.suffix == ".svg" else as_html(scenario, runs))
        print(f"plot: {own.plot}", file=sys.stderr if own.output == "json" else sys.stdout)
    return 0 if any(run.outcome for run in runs) else EXIT_FAILED


def _print_runs(scenario: VirtualScenario, runs: Sequence[PolicyRun], output: str) -> None:
    if output == "json":
        print(json.dumps(as_document(scenario, runs), indent=1))
        return
    if len(runs) == 1 and runs[0].outcome:
        lines = [*table(runs[0].outcome, runs[0].policy), "", verdict(runs)]
    else:
        lines = comparison(runs)
    interval = scenario.settings.interval.total_seconds()
    print(
        "\n".join(
            [*lines, f"A cycle ran every {interval:g} s, and at once after events such as a higher produce rate."]
        )
    )


def _run_policy(name: str, file: ScenarioFile, flags: Sequence[str]) -> PolicyRun:
    """Play a scenario under a policy; `none` runs the planner in shadow mode, which writes no throttle."""
    if name == NO_THROTTLE:
        scenario = virtual_scenario(file, configure(file, flags, os.environ))
        scenario = replace(scenario, settings=replace(scenario.settings, shadow=True))
    else:
        scenario = virtual_scenario(file, configure(file, [*flags, f"--policy={name}"], os.environ))
    try:
        return PolicyRun(name, play(scenario, file.longest))
    except TimeoutError:
        return PolicyRun(name, None, f"not done after {file.longest.total_seconds() / 3600:g} h")


def _print_logged_scenario(argv: Sequence[str]) -> int:
    given = _logged_parser().parse_args(argv)
    try:
        from autothrottle.adapters.decision_log.files import LoggedDecisions  # Arrow is an extra

        logged = LoggedDecisions(given.from_decisions)
        reassignment = choose(logged.reassignments(), given.reassignment)
        print(logged_scenario(reassignment, logged.decisions(reassignment.reassignment_id)), end="")
    except ImportError as error:
        print(f"simulate: Arrow is not installed ({error}); install the extra `decisions`", file=sys.stderr)
        return EXIT_FAILED
    except AutothrottleError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _print_live_scenario(argv: Sequence[str]) -> int:
    given, flags = _live_parser().parse_known_args(argv)
    try:
        addresses, tls = _admin_service(given.from_cluster, flags)
    except InvalidConfiguration as error:
        print(str(error).replace("admin-addr", "from-cluster"), file=sys.stderr)
        return EXIT_USAGE
    print(fetch_scenario(addresses, tls), end="")
    return 0


def _admin_service(address: str, flags: Sequence[str]) -> tuple[Sequence[str], ServiceCertificates | None]:
    """Return the addresses of the admin service and the client certificate.

    Raises:
        InvalidConfiguration: the options are invalid; the error lists all problems.
        Invalid: the address is empty, or a flag belongs to other commands.
    """
    configuration = parse([f"--admin-addr={address}", *flags], os.environ)
    _require_own(flags, _TLS_OPTIONS, "--from-cluster")
    if not configuration.admin_addr:
        raise Invalid("--from-cluster is empty. Fix: give the admin service's address, --from-cluster=10.0.0.1:8090")
    return configuration.admin_addr, ServiceCertificates(configuration.tls) if configuration.tls else None


@dataclass(frozen=True, slots=True)
class SimulateFlags:
    """The flags of this command alone."""

    plot: Path | None
    compare: Sequence[str]
    """Policies; empty: the configured one alone."""
    output: str


def own_flags(words: Sequence[str]) -> tuple[SimulateFlags, list[str]]:
    """Return the flags of this command alone, and the others.

    Raises:
        Invalid: one of them has a wrong value.
    """
    own, others = _plot_parser().parse_known_args(words)
    compared = _policies(own.compare) if own.compare is not None else []
    if own.plot is not None and own.plot.suffix not in _PLOTS:
        raise Invalid(f"--plot is {str(own.plot)!r}; it must be the name of an SVG or HTML file. Fix: --plot=plot.html")
    if own.plot is not None and len(compared) > 1 and own.plot.suffix != ".html":
        raise Invalid(f"--plot is {str(own.plot)!r}; with --compare it must be an HTML file. Fix: --plot=plot.html")
    return SimulateFlags(own.plot, compared, own.output), others


def _policies(text: str) -> list[str]:
    names, valid = text.split(","), [NO_THROTTLE, *POLICIES]
    for name in names:
        if names.count(name) > 1 or (name != NO_THROTTLE and not is_installed(name)):
            raise Invalid(
                f"--compare is {text[:100]!r}; it must be different policies of {', '.join(valid)}. "
                f"Fix: --compare={','.join(valid)}"
            )
    return names


def _require_writable(plot: Path) -> None:
    """Fail before the simulation if the plot cannot be written; leave no file behind."""
    is_new = not plot.exists()
    try:
        plot.open("a").close()
        if is_new:
            plot.unlink()
    except OSError as error:
        raise Invalid(f"--plot {str(plot)!r} cannot be written: {error.strerror}. Fix: name a writable file") from None


def configure(file: ScenarioFile, flags: Sequence[str], environ: Mapping[str, str]) -> Configuration:
    """Return the planner's configuration. Flags, environment variables and `--config` override the scenario's options.

    Raises:
        InvalidConfiguration: the options are invalid; the error lists all problems.
        Invalid: a flag belongs to other commands.
    """
    _require_own(flags, PLANNER_OPTIONS, "a simulation", ", --plot, --compare and --output")
    source = f"key of planner in {file.name}"
    return parse(flags, environ, preset={name: Given(text, source, Rank.PRESET) for name, text in file.planner.items()})


def _require_own(flags: Sequence[str], names: Sequence[str], use: str, others: str = "") -> None:
    if foreign := sorted(Flags.parse(flags).given.keys() - {"config", *names}):
        valid = ", ".join(f"--{name}" for name in names) + others
        raise Invalid(f"--{foreign[0]} does not apply to {use}. Fix: remove it; valid options are {valid}")


def virtual_scenario(file: ScenarioFile, configuration: Configuration) -> VirtualScenario:
    """Return the scenario of a file with the planner's settings of a configuration."""
    settings = PlannerSettings(
        configuration.limits,
        policy=configuration.new_policy(),
        interval=configuration.interval,
        metrics_window=configuration.metrics_window,
        schedule=configuration.schedule,
        finish_by=configuration.finish_by,
    )
    return replace(file.scenario, settings=settings)


def play(scenario: VirtualScenario, longest: timedelta) -> SimulationOutcome:
    """Play a scenario to its end.

    Raises:
        TimeoutError: the reassignment takes longer than `longest`.
    """
    recording, recovery = Recording(scenario), VirtualRecovery(scenario)
    return recording.outcome(recovery, recovery.run(longest, recording.watch))


_BOUND = "the slowest link side at its share of the headroom"
_WITHOUT_EVENTS = ", without the broker events"


def table(outcome: SimulationOutcome, policy: str) -> list[str]:
    """Return the results as lines of text: totals, and a row for each link side."""
    copied = sum(side.copied for (_, role), side in outcome.sides.items() if role is ReplicaRole.FOLLOWER)
    deferred = sum(side.deferred for side in outcome.sides.values())
    rates, seconds = sum(outcome.rate_writes.values()), sum(len(side.seconds) for side in outcome.sides.values())
    share = 100 * outcome.saturated_seconds / max(seconds, 1)
    rows = [
        ("policy", policy),
        ("duration", _duration(outcome.seconds)),
        ("bound", f"{_duration(outcome.bound_seconds)} ({_BOUND}{_WITHOUT_EVENTS if outcome.events else ''})"),
        ("duration / bound", f"{outcome.seconds / outcome.bound_seconds:.3f}" if outcome.bound_seconds else "-"),
        ("copied", f"{copied / 1e9:,.2f} GB"),
        ("client bytes deferred", f"{deferred / MEGABYTE:,.1f} MB, {outcome.deferred_percent:.3f} %"),
        ("saturated link seconds", f"{outcome.saturated_seconds}, {share:.2f} %"),
        ("config writes", f"{rates + outcome.list_writes}: throttles {rates}, lists {outcome.list_writes}"),
        ("cycles", str(outcome.cycles)),
    ]
    lines = [f"{name:<24}{value}" for name, value in rows]
    return [*lines, "", *columns([_HEAD, *(_row(key, outcome) for key in outcome.sides)], right_from=0)]


_HEAD = (
    "broker",
    "role",
    "link MB/s",
    "copied GB",
    "mean %",
    "max %",
    "throttle MB/s",
    "deferred MB",
    "saturated s",
    "writes",
)


def _row(key: LinkSide, outcome: SimulationOutcome) -> tuple[str, ...]:
    side = outcome.sides[key]
    used = [100 * second.carried / side.capacity for second in side.seconds] or [0.0]
    throttles = [rate / MEGABYTE for rate in side.throttles]
    return (
        str(key[0]),
        key[1].value,
        f"{side.capacity / MEGABYTE:g}",
        f"{side.copied / 1e9:.2f}",
        f"{sum(used) / len(used):.1f}",
        f"{max(used):.1f}",
        f"{min(throttles):.1f} to {max(throttles):.1f}" if throttles else "none",
        f"{side.deferred / MEGABYTE:.1f}",
        str(side.saturated_seconds),
        str(outcome.rate_writes.get(key[0], 0)),
    )


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "never"
    minutes, rest = divmod(round(seconds), 60)
    return f"{seconds:,.1f} s ({minutes // 60} h {minutes % 60:02} min {rest:02} s)"
