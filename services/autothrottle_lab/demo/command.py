"""`autothrottle demo`: replace a failed broker under throttle, and print what happens.

ZooKeeper and all services are real: two planners and one of each other service, each in its own process. This process
simulates the brokers, their clients and Datadog (`simulated_stage`). With `--kafka 4` the brokers and clients are real,
too (`kafka_stage`). While the new broker copies the failed broker's replicas, client load doubles and falls
again, and the leading planner is killed.

The report at the end comes from an observer that reads what Kafka wrote and counted. It never uses a planner's own
numbers. Everything runs under one temporary directory and ends with this process, even if it is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.units import MEGABYTE
from autothrottle.runtime.command_line import EXIT_FAILED
from autothrottle.runtime.extras import EXIT_BROKEN_PIPE, discard_output
from autothrottle_client.files import write_text
from autothrottle_lab.demo.kafka_stage import VERSIONS, KafkaStage
from autothrottle_lab.demo.scenario import (
    DEMO_CAPACITY,
    DEMO_DOUBLING_SECONDS,
    DEMO_FAILED_BROKER,
    DEMO_FALLING_SECONDS,
    DEMO_NEW_BROKER,
)
from autothrottle_lab.demo.simulated_stage import SimulatedStage
from autothrottle_lab.demo.stage import INSTANCE_TYPE, Interrupted, Interruption, Report, Stage, size
from autothrottle_lab.observation.observer import Sample
from autothrottle_lab.servers.jars import REPOSITORY_VARIABLE, has_kafka_jars, kafka_jars
from autothrottle_lab.servers.processes import Process

KILL_SECONDS = 22
"""Time of the leading planner's kill, in seconds since the start of the reassignment."""

OPTIONS: Mapping[str, str] = {
    "cap-map": json.dumps({INSTANCE_TYPE: DEMO_CAPACITY / MEGABYTE}),
    "interval": "3",
    # As long as the window of a broker's throttle meter (11 to 12 s). Over a shorter window, the pause after a lowering
    # looks like free capacity, and the burst after a raise looks like client load.
    "metrics-window": "12",
    # On a full link the headroom formula lowers a throttle by 10 %: the default threshold of 10 would just miss it.
    "change-threshold": "5",
    "min-rate": "5",
    "session-timeout": "3",
    "log-level": "debug",
}
"""Options of every service, besides addresses; others have their defaults. Log level debug, to count cycles."""

_POLL_SECONDS = 0.1
_SAMPLE_SECONDS = 0.5
_PLAIN_SECONDS = 3.0
"""Seconds between two lines with the state, if the output is not a terminal."""
_LOG_GRACE_SECONDS = 1.5
"""Seconds to follow the logs after the last throttle is removed: services log after they write."""

_CYCLE_LINE = re.compile(r"^\S+ \S+ Cycle \d+ \(")
_DEBUG_LINE = re.compile(r"^\S+ \S+ (Cycle|Term) \d+[ :]")
_WARNING_LINE = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ")


# Output


class Screen:
    """Prints lines; every few seconds one of them is the current state."""

    def __init__(self) -> None:
        self._next = 0.0

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)

    def show(self, sample: Sample) -> None:
        """Print the current state, at most every few seconds."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_SECONDS
            self.say(_stamped(f"{_state(sample)}, {size(sample.bytes_left)} left"))


class BarScreen(Screen):
    """Prints lines, and the current state in a progress bar below them."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress, self._total = progress, total_bytes
        self._task = progress.add_task("", total=total_bytes, left=size(total_bytes), state="starting")

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, sample: Sample) -> None:
        bytes_left, state = size(sample.bytes_left), _state(sample)
        self._progress.update(self._task, completed=self._total - sample.bytes_left, left=bytes_left, state=state)


def _screen(total_bytes: int, stack: ExitStack) -> Screen:
    """Return the screen; its progress bar ends with the stack."""
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        return Screen()
    progress = Progress(
        TextColumn("{task.fields[left]} left"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        transient=True,
        refresh_per_second=4,
    )
    return BarScreen(stack.enter_context(progress), total_bytes)


def _state(sample: Sample) -> str:
    throttle = "no throttle" if sample.throttle is None else f"throttle {sample.throttle / MEGABYTE:.1f} MB/s"
    clients, copies = sample.client_rate / MEGABYTE, sample.copy_rate / MEGABYTE
    return f"{DEMO_NEW_BROKER}: {throttle}, copies {copies:.1f} MB/s, clients {clients:.1f} MB/s"


def _stamped(text: str) -> str:
    """Return a line of the demo itself, in the format of the services' logs."""
    return f"{datetime.now(UTC):%Y/%m/%d %H:%M:%S} demo: {text}"


class LogLines:
    """The new lines of a log file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new(self) -> list[str]:
        """Return the lines that were completed after the last call."""
        with self._path.open("rb") as log:
            log.seek(self._at)
            content = log.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()


# Sequence of events


class DemoRun:
    """The demo on a stage where everything runs: it triggers the events and prints the logs."""

    def __init__(self, stage: Stage, screen: Screen, interruption: Interruption, deadline: float | None) -> None:
        self._stage, self._screen, self._interruption = stage, screen, interruption
        self._deadline = deadline
        processes = stage.services.processes
        self._logs = {name: LogLines(process.log) for name, process in processes.items()}
        self._killed: list[Process] = []
        self._cycles = 0
        self._next_sample = 0.0

    def run(self) -> Report:
        """Run the reassignment to its end and return the observer's report.

        Raises:
            Interrupted: a signal arrived.
            Incomplete: the reassignment is not done in time, or throttles are left.
            Unavailable: a process ended unexpectedly.
        """
        self._wait(lambda: self._cycles > 0, "no planner has run a cycle")
        partitions = len(self._stage.targets)
        self._say(
            f"broker {DEMO_FAILED_BROKER} has failed; broker {DEMO_NEW_BROKER} replaces it: {partitions} partitions, "
            "submitted as by throttlectl reassign"
        )
        self._cycles = 0
        self._stage.submit_reassignment()
        self._reassign()
        self._say("the reassignment is done")
        self._wait(lambda: not self._stage.throttled(), "throttles are left")
        self._say("no throttle is left")
        self._follow_for(_LOG_GRACE_SECONDS)
        return self._stage.report(self._cycles)

    def keep(self) -> None:
        """Leave everything running, and print the logs, until a signal arrives."""
        self._say(f"everything keeps running, the page too: {self._stage.page_url()} (^C ends it)")
        while True:
            self._poll()

    def _reassign(self) -> None:
        """Wait for the end of the reassignment, and disturb it as scheduled."""
        start = time.monotonic()
        disturbances: list[tuple[float, Callable[[], None]]] = [
            (DEMO_DOUBLING_SECONDS, lambda: self._load_clients(2, "client load doubles on every broker")),
            (KILL_SECONDS, self._kill_leader),
            (DEMO_FALLING_SECONDS, lambda: self._load_clients(1, "client load returns to its initial rate")),
        ]

        def over() -> bool:
            while disturbances and time.monotonic() - start >= disturbances[0][0]:
                disturbances.pop(0)[1]()
            self._sample()
            return not self._stage.is_reassigning()

        self._wait(over, "the reassignment is not done")
        self._stage.record_end()

    def _load_clients(self, factor: int, message: str) -> None:
        self._stage.set_client_load(factor)
        self._say(message)

    def _kill_leader(self) -> None:
        leader = self._stage.services.planner(self._stage.leader_address())
        leader.kill()
        self._killed.append(leader)
        self._say(f"{leader.name}, the leader, is killed (SIGKILL)")

    def _sample(self) -> None:
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS
            self._screen.show(self._stage.sample())

    def _wait(self, over: Callable[[], bool], problem: str) -> None:
        """Poll until `over` returns true; `problem` begins the error message at the deadline."""
        while not over():
            self._poll()
            if self._deadline is not None and time.monotonic() > self._deadline:
                throttled = ", ".join(self._stage.throttled()) or "none"
                raise Incomplete(f"{problem} after {self._stage.run_seconds:.0f} s; throttled resources: {throttled}")

    def _follow_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._poll()

    def _poll(self) -> None:
        self._interruption.sleep(_POLL_SECONDS)
        self._stage.require_running(self._killed)
        for name, log in self._logs.items():
            self._print_log(name, log.new())

    def _print_log(self, name: str, lines: list[str]) -> None:
        """Print the lines for operators: all of the planners and the admin service, and warnings of the others."""
        if name.startswith("planner"):
            self._cycles += sum(bool(_CYCLE_LINE.match(line)) for line in lines)
        printed = name.startswith(("planner", "admin"))
        for line in lines:
            if _WARNING_LINE.match(line) or (printed and not _DEBUG_LINE.match(line)):
                self._screen.say(line)

    def _say(self, text: str) -> None:
        self._screen.say(_stamped(text))


def table(report: Report) -> str:
    """Return a report as lines of text."""
    lines = [f"  {name:<26}{value:>12}  {remark}".rstrip() for name, value, remark in report.rows()]
    return "\n".join([report.title, *lines])


# The command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status.

    0: success. 1: something did not start, the reassignment is not done in time, or throttles are left. 2: invalid
    arguments. 130 and 143: ended by SIGINT and SIGTERM. 141: standard output is closed.
    """
    arguments = make_parser().parse_args(argv)
    interruption = Interruption()
    _prepare_environment()
    try:
        logged = _decision_log_options(arguments.decisions) if arguments.decisions else {}
        _run(interruption, arguments, {**OPTIONS, **logged})
    except BrokenPipeError:
        discard_output()
        return EXIT_BROKEN_PIPE
    except Interrupted as interrupted:
        interruption.end()
        print(f"autothrottle demo: {interrupted}: all processes have ended", file=sys.stderr)
        return interrupted.exit_status
    except (AutothrottleError, TimeoutError, OSError, KazooException, KazooTimeoutError) as error:
        print(f"autothrottle demo: {error or type(error).__name__}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _decision_log_options(directory: Path) -> Mapping[str, str]:
    """The services' options for the decision log; each demo has its own cluster name."""
    return {"decisions": str(directory.absolute()), "cluster-name": f"demo-{datetime.now(UTC):%m%d-%H%M%S}"}


def _run(interruption: Interruption, arguments: argparse.Namespace, options: Mapping[str, str]) -> None:
    version = VERSIONS[arguments.kafka] if arguments.kafka else None
    if version and not has_kafka_jars(version):
        print(_stamped(f"downloading the jars of Kafka {version} once: this takes 1 to 2 minutes"), flush=True)
        kafka_jars(version)
        interruption.check()
    with ExitStack() as stack:
        stage = (
            KafkaStage(interruption, stack, options, version)
            if version
            else SimulatedStage(interruption, stack, options)
        )
        # An operator who tries the page may pause or slow down the reassignment.
        deadline = None if arguments.keep else time.monotonic() + stage.run_seconds
        screen = _screen(stage.total_bytes, stack)

        def say(line: str) -> None:
            screen.say(_stamped(line))

        say(stage.opening)
        stage.build(say)
        say(f"the page: {stage.page_url()}")
        run = DemoRun(stage, screen, interruption, deadline)
        _print_report(run.run(), arguments)
        if arguments.keep:
            run.keep()


def _print_report(report: Report, arguments: argparse.Namespace) -> None:
    print(table(report), flush=True)
    if arguments.decisions:
        print(f"To score the decisions, run: make score (the decision log is in {arguments.decisions})", flush=True)
    if arguments.json:
        write_text(arguments.json, json.dumps(report.document(), indent=2) + "\n")


def _prepare_environment() -> None:
    """Remove the environment variables of the user's own installation, so that the demo's services ignore them."""
    for name in [name for name in os.environ if name.startswith("AUTOTHROTTLE_")]:
        if name != REPOSITORY_VARIABLE:  # belongs to the lab
            del os.environ[name]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="autothrottle demo",
        description="Replace a failed broker under throttle. Takes about one minute, with --kafka two. "
        "Needs Java >= 17 and the extra `lab`.",
        epilog="ZooKeeper, two planners and one of each other service run as real processes. Six brokers with their "
        "clients and Datadog are simulated; with --kafka the brokers, their data and producers are real, too. Client "
        "load doubles 15 s after the start and falls after 30 s. After 22 s the leading planner is killed. "
        "The page is at the address that is printed at the start. "
        "Exit status: 0 success, 1 failure, 2 invalid arguments, 130 interrupted.",
    )
    parser.add_argument(
        "--kafka",
        choices=sorted(VERSIONS),
        help="run a real KRaft cluster instead of a simulated one: 5 brokers, 1.2 GB of disk, 3 GB of memory",
    )
    parser.add_argument("--decisions", type=Path, metavar="DIR", help="write the decision log to DIR, for make score")
    parser.add_argument(
        "--keep", action="store_true", help="leave everything running at the end, until ^C; lift the time limit"
    )
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write the summary to FILE as one JSON object")
    return parser


def _writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file in a writable directory")
    return path
