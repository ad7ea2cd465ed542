"""`autothrottle demo`: a broker replacement on a cluster, throttled up and down before your eyes.

Real: ZooKeeper, every service (two planners and one of each other, each a process), the transactions between
them. The brokers with their clients and Datadog are simulated, in one more process (`demo_simulated`); with
`--kafka 4` they are real as well (`demo_kafka`). While the new broker copies what the failed one had, client load
doubles and falls again, and the planner that leads is killed.

The report at the end is computed by an observer, from what Kafka wrote and counted, never from what a planner says.
Everything runs under one temporary directory and ends with this process, whatever ends it.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.demo_kafka import VERSIONS, KafkaStage, moved_bytes, moves
from autothrottle.lab.demo_simulated import SimulatedStage
from autothrottle.lab.demo_stage import INSTANCE_TYPE, Interrupted, Interruption, Report, Stage, size
from autothrottle.lab.jars import REPOSITORY_VARIABLE, has_kafka_jars, kafka_jars
from autothrottle.lab.observer import Sample
from autothrottle.lab.processes import Process
from autothrottle.lab.scenario import (
    DEMO_CAPACITY,
    DEMO_DOUBLING_SECONDS,
    DEMO_FAILED_BROKER,
    DEMO_FALLING_SECONDS,
    DEMO_NEW_BROKER,
    demo_scenario,
)
from autothrottle.runtime.output import EXIT_BROKEN_PIPE, discard_output

KILL_SECONDS = 22
"""When the planner that leads is killed, from the start of the reassignment."""

RUN_SECONDS = 110.0
"""How long all of it may take with simulated brokers; at best it is the start, 46 s and the end."""
RUN_SECONDS_ON_KAFKA = 420.0
"""The same with real ones, whose start and filling alone take 20 s at best; fetching them comes on top of it."""

OPTIONS: Mapping[str, str] = {
    "cap-map": json.dumps({INSTANCE_TYPE: DEMO_CAPACITY / MEGABYTE}),
    "interval": "3",
    # As long as the window of a broker's quota meter, which evens out over 11 to 12 s only: over less, the pause
    # after a lowering looks like free capacity, and the burst after a raise like clients.
    "metrics-window": "12",
    # On a link that is full the headroom formula lowers by 10 %: the default of 10 would miss just that.
    "change-threshold": "5",
    "min-rate": "5",
    "zk-session-timeout": "3",
    "log-level": "debug",
}
"""Of every service, beside addresses; what is not here has its default. Debug, since cycles are counted."""

EXIT_FAILED = 1

_TURN_SECONDS = 0.1
_SAMPLE_SECONDS = 0.5
_PLAIN_SECONDS = 3.0
"""How often the state is printed where there is no terminal."""
_LAST_WORDS_SECONDS = 0.5
"""How long log lines are followed after the last throttle is gone: they are written after the deed."""

_CYCLE_LINE = re.compile(r"^\S+ \S+ cycle \d+ \(")
_DEBUG_LINE = re.compile(r"^\S+ \S+ (cycle|term) \d+[ :]")
_TROUBLE_LINE = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ")


# What is shown


class Screen(Protocol):
    """Where the demo tells its story; a context manager."""

    def __enter__(self) -> Screen: ...
    def __exit__(self, *_: object) -> None: ...

    def say(self, line: str) -> None:
        """Print a line."""

    def show(self, sample: Sample) -> None:
        """Show how it stands."""


class PlainScreen:
    """Lines only: how it stands is one of them every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)

    def show(self, sample: Sample) -> None:
        """Print how it stands, if the last time is long enough ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_SECONDS
            self.say(_stamped(f"{_state(sample)}, {size(sample.bytes_left)} left"))


class BarScreen:
    """Lines, and below them a progress bar."""

    def __init__(self, console: Console, total_bytes: int) -> None:
        self._total = total_bytes
        self._progress = Progress(
            TextColumn("{task.fields[left]} left"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("", total=total_bytes, left=size(total_bytes), state="starting")

    def __enter__(self) -> BarScreen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, sample: Sample) -> None:
        """Move the bar."""
        left, state = size(sample.bytes_left), _state(sample)
        self._progress.update(self._task, completed=self._total - sample.bytes_left, left=left, state=state)


def _screen(total_bytes: int) -> Screen:
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return BarScreen(console, total_bytes)
    return PlainScreen()


def _state(sample: Sample) -> str:
    throttle = "no throttle" if sample.throttle is None else f"throttle {sample.throttle / MEGABYTE:.1f} MB/s"
    clients, copies = sample.client_rate / MEGABYTE, sample.copy_rate / MEGABYTE
    return f"{DEMO_NEW_BROKER}: {throttle}, copies {copies:.1f} MB/s, clients {clients:.1f} MB/s"


def _stamped(text: str) -> str:
    """Return a line of the demo's own, in the form of the services' logs."""
    return f"{datetime.now(UTC):%Y/%m/%d %H:%M:%S} demo: {text}"


class LogLines:
    """The lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        with self._path.open("rb") as log:
            log.seek(self._at)
            content = log.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()


# What happens


@dataclass(frozen=True, slots=True)
class Play:
    """On which Kafka the story is played."""

    opening: str
    """What the start is told with."""
    partitions: int
    """How many move."""
    total_bytes: int
    """What is to be copied."""
    run_seconds: float
    """How long all of it may take."""
    stage: Callable[[Interruption, ExitStack, Callable[[str], None]], Stage]
    """Makes what it is played on, with ZooKeeper running and nothing else."""


def simulated_play(options: Mapping[str, str] = OPTIONS) -> Play:
    """Return the play with simulated brokers; `options` are the services'."""
    scenario = demo_scenario()
    moving = {(entry["topic"], entry["partition"]) for entry in scenario["reassignment"]["partitions"]}
    return Play(
        opening="starting ZooKeeper, 6 simulated brokers, a Datadog, 2 planners and the other services",
        partitions=len(moving),
        total_bytes=sum(p["size"] for p in scenario["partitions"] if (p["topic"], p["partition"]) in moving),
        run_seconds=RUN_SECONDS,
        stage=lambda interruption, stack, say: SimulatedStage(interruption, stack, say, scenario, options),
    )


def play_on_kafka(version: str, options: Mapping[str, str] = OPTIONS) -> Play:
    """Return the play with real brokers of a release; `options` are the services'."""
    return Play(
        opening=f"starting ZooKeeper, a controller and 5 brokers of Kafka {version}, a Datadog, "
        "2 planners and the other services",
        partitions=len(moves()),
        total_bytes=moved_bytes(),
        run_seconds=RUN_SECONDS_ON_KAFKA,
        stage=lambda interruption, stack, say: KafkaStage(interruption, stack, say, version, options),
    )


class Story:
    """What happens on a stage on which everything runs, and how it is told."""

    def __init__(self, play: Play, stage: Stage, screen: Screen, interruption: Interruption, deadline: float) -> None:
        self._play, self._stage, self._screen, self._interruption = play, stage, screen, interruption
        self._deadline = deadline
        processes = stage.services.processes
        self._logs = {name: LogLines(process.log) for name, process in processes.items()}
        self._killed: list[Process] = []
        self._cycles = 0
        self._next_sample = 0.0

    def tell(self) -> Report:
        """Run the reassignment to its end and return the observer's numbers.

        Raises:
            Interrupted: a signal came.
            Incomplete: it did not end in time, or throttles are left.
            Unavailable: a process has ended that was not to.
        """
        self._wait(lambda: self._cycles > 0, "no planner has run a cycle")
        self._say(
            f"broker {DEMO_FAILED_BROKER} has failed; {DEMO_NEW_BROKER} replaces it: {self._play.partitions} partitions"
        )
        self._cycles = 0
        self._stage.start_move()
        self._move()
        self._say("the reassignment is done")
        self._wait(lambda: not self._stage.throttled(), "throttles are left")
        self._say("no throttle is left")
        self._follow_for(_LAST_WORDS_SECONDS)
        return self._stage.report(self._cycles)

    def _move(self) -> None:
        """Let the move run with all that disturbs it."""
        start = time.monotonic()
        acts: list[tuple[float, Callable[[], None]]] = [
            (DEMO_DOUBLING_SECONDS, lambda: self._load_clients(2, "client load doubles on every broker")),
            (KILL_SECONDS, self._kill_leader),
            (DEMO_FALLING_SECONDS, lambda: self._load_clients(1, "client load falls to what it was")),
        ]

        def over() -> bool:
            while acts and time.monotonic() - start >= acts[0][0]:
                acts.pop(0)[1]()
            self._sample()
            return not self._stage.is_moving()

        self._wait(over, "the reassignment did not finish")
        self._stage.end_move()

    def _load_clients(self, factor: int, what: str) -> None:
        self._stage.set_client_load(factor)
        self._say(what)

    def _kill_leader(self) -> None:
        leader = self._stage.services.planner(self._stage.leader_address())
        leader.kill()
        self._killed.append(leader)
        self._say(f"{leader.name}, which leads, is killed (SIGKILL)")

    def _sample(self) -> None:
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS
            self._screen.show(self._stage.sample())

    def _wait(self, over: Callable[[], bool], what_is_wrong: str) -> None:
        """Turn until it is over; what is wrong if it never is completes a sentence."""
        while not over():
            self._turn()
            if time.monotonic() > self._deadline:
                left = ", ".join(self._stage.throttled()) or "nothing"
                raise Incomplete(f"{what_is_wrong} within {self._play.run_seconds:.0f} s; throttled: {left}")

    def _follow_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn()

    def _turn(self) -> None:
        self._interruption.sleep(_TURN_SECONDS)
        self._stage.require_all_running(self._killed)
        for name, log in self._logs.items():
            self._tell_log(name, log.new())

    def _tell_log(self, name: str, lines: list[str]) -> None:
        """Print what operators read: the planners' and the admin service's lines, of the others the trouble."""
        if name.startswith("planner"):
            self._cycles += sum(bool(_CYCLE_LINE.match(line)) for line in lines)
        told = name.startswith(("planner", "admin"))
        for line in lines:
            if _TROUBLE_LINE.match(line) or (told and not _DEBUG_LINE.match(line)):
                self._screen.say(line)

    def _say(self, text: str) -> None:
        self._screen.say(_stamped(text))


def table(report: Report) -> str:
    """Return a report for people."""
    lines = [f"  {name:<26}{value:>12}  {remark}".rstrip() for name, value, remark in report.rows]
    return "\n".join([report.title, *lines])


# The command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status.

    0: it ran to its end. 1: something did not start, the move did not finish in time, or throttles are left. 2:
    called wrongly. 130 and 143: ended by SIGINT and SIGTERM. 141: nobody reads what it prints any more.
    """
    arguments = _arguments(argv)
    interruption = Interruption()
    _prepare_environment()
    try:
        logged = _logged(arguments.decisions) if arguments.decisions else {}
        report = _run(interruption, VERSIONS[arguments.kafka] if arguments.kafka else None, {**OPTIONS, **logged})
        print(table(report), flush=True)
        if logged:
            print(f"Was each decision good? make score (the log is in {arguments.decisions})", flush=True)
    except BrokenPipeError:
        discard_output()
        return EXIT_BROKEN_PIPE
    except Interrupted as interrupted:
        interruption.end()
        print(f"autothrottle demo: {interrupted}: everything that was started has ended", file=sys.stderr)
        return interrupted.exit_status
    except (AutothrottleError, TimeoutError, OSError, KazooException, KazooTimeoutError) as error:
        print(f"autothrottle demo: {error or type(error).__name__}", file=sys.stderr)
        return EXIT_FAILED
    if arguments.json:
        arguments.json.write_text(json.dumps(dict(report.document), indent=2) + "\n")
    return 0


def _logged(directory: Path) -> Mapping[str, str]:
    """The options by which decisions are logged: every demo is a cluster of its own."""
    return {"decisions": str(directory.absolute()), "cluster-name": f"demo-{datetime.now(UTC):%m%d-%H%M%S}"}


def _run(interruption: Interruption, version: str | None, options: Mapping[str, str]) -> Report:
    if version and not has_kafka_jars(version):
        print(_stamped(f"fetching the jars of Kafka {version}: 1 to 2 minutes, once"), flush=True)
        kafka_jars(version)
        interruption.check()
    play = play_on_kafka(version, options) if version else simulated_play(options)
    deadline = time.monotonic() + play.run_seconds
    with ExitStack() as stack:
        screen = stack.enter_context(_screen(play.total_bytes))

        def say(line: str) -> None:
            screen.say(_stamped(line))

        say(play.opening)
        stage = play.stage(interruption, stack, say)
        stage.build()
        return Story(play, stage, screen, interruption, deadline).tell()


def _prepare_environment() -> None:
    """Let no setting of the user's own installation reach the demo's services."""
    for name in [name for name in os.environ if name.startswith("AUTOTHROTTLE_")]:
        if name != REPOSITORY_VARIABLE:  # the lab's own
            del os.environ[name]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="autothrottle demo",
        description="Replace a broker of a cluster under autothrottle's eyes; about a minute, with --kafka two. "
        "Needs Java >= 17 and the extra `lab`.",
        epilog="Real: ZooKeeper, two planners and one of each other service as processes. Simulated: six brokers "
        "with their clients, and Datadog; with --kafka the brokers, their data and producers are real too. Client "
        "load doubles 15 s after the start and falls at 30 s; at 22 s the planner that leads is killed. Exit status: "
        "0 done, 1 failed, 2 called wrongly, 130 interrupted.",
    )
    parser.add_argument(
        "--kafka",
        choices=sorted(VERSIONS),
        help="a real cluster without ZooKeeper instead of a simulated one: 5 brokers, 1.2 GB of disk, 3 GB of memory",
    )
    parser.add_argument("--decisions", type=Path, metavar="DIR", help="log what is decided there, for make score")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write the summary there, as one JSON object")
    return parser.parse_args(argv)


def _writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file in a directory that is yours")
    return path
