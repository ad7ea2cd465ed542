"""`autothrottle demo`: a broker replacement on a simulated cluster, throttled up and down before your eyes.

Real: ZooKeeper, every service (two planners and one of each other, each a process), the transactions between
them. Simulated, in one more process: six brokers with their clients, which live in that ZooKeeper, and a Datadog
that reports what they carry. While the new broker copies what the failed one had, client load doubles and falls
again, and the planner that leads is killed.

The summary at the end is computed by `observer`, from znodes and the brokers' counters. Everything runs under
one temporary directory and ends with this process, whatever ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.errors import AutothrottleError, Incomplete, Unavailable
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.observer import Observer, Sample, Summary, read_timeline, summary
from autothrottle.lab.processes import Process, scratch_directory
from autothrottle.lab.scenario import (
    DEMO_CAPACITY,
    DEMO_DOUBLING_SECONDS,
    DEMO_FAILED_BROKER,
    DEMO_FALLING_SECONDS,
    DEMO_NEW_BROKER,
    demo_scenario,
)
from autothrottle.lab.services import Deployment, ServiceProcesses
from autothrottle.lab.zookeeper import ZooKeeperServer

KILL_SECONDS = 22
"""When the planner that leads is killed, from the start of the reassignment."""

RUN_SECONDS = 110.0
"""How long all of it may take; at best it is the start, 46 s and the end."""

GOAL_RECOVERY_OVER_IDEAL = 1.25
GOAL_DEFERRED_PERCENT = 0.5
GOAL_FIRST_THROTTLE_SECONDS = 1.0

INSTANCE_TYPE = "demo.large"
"""What the simulated hosts are tagged with; the cap-map has its capacity."""

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
EXIT_BROKEN_PIPE = 141

_TURN_SECONDS = 0.1
_SAMPLE_SECONDS = 0.5
_PLAIN_SECONDS = 3.0
"""How often the state is printed where there is no terminal."""
_START_SECONDS = 30.0
_LAST_WORDS_SECONDS = 0.5
"""How long log lines are followed after the last throttle is gone: they are written after the deed."""

_CYCLE_LINE = re.compile(r"^\S+ \S+ cycle \d+ \(")
_DEBUG_LINE = re.compile(r"^\S+ \S+ (cycle|term) \d+[ :]")
_TROUBLE_LINE = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ")
_ADDRESSES = re.compile(r"^Simulated Kafka: (\S+)\nDatadog: (\S+)$", re.MULTILINE)


# Being interrupted


class Interrupted(Exception):
    """SIGINT or SIGTERM came."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruption:
    """Takes SIGINT and SIGTERM: the first is noted, and acted on where that is safe; the second ends at once.

    Nothing is left then either: what was started has a guard (`processes`). Use it from the main thread.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # Takes no lock and raises nothing: it runs between any two steps of the main thread.
        if self._number is not None:
            os._exit(128 + number)
        self._number = number

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self._number is not None:
            raise Interrupted(self._number)

    def sleep(self, seconds: float) -> None:
        """Let a short time pass, then `check`."""
        time.sleep(seconds)
        self.check()

    def run(self, start: Callable[[], object], processes: Callable[[], Iterable[Process]]) -> None:
        """Return when `start` has; a signal kills the processes that it waits for, so that it gives up.

        Raises:
            Interrupted: a signal came.
            Exception: what `start` raised.
        """
        failures: list[Exception] = []

        def run() -> None:
            try:
                start()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="start", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_TURN_SECONDS)
            for process in list(processes()) if self._number is not None else ():
                process.kill()
        self.check()
        for failure in failures:
            raise failure


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
            self.say(_stamped(f"{_state(sample)}, {_size(sample.bytes_left)} left"))


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
        self._task = self._progress.add_task("", total=total_bytes, left=_size(total_bytes), state="starting")

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
        left, state = _size(sample.bytes_left), _state(sample)
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


def _size(amount: int) -> str:
    return f"{amount / MEGABYTE:,.0f} MB"


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


class Cluster:
    """ZooKeeper, the simulated brokers with their Datadog, and the services; all end with the stack."""

    def __init__(self, interruption: Interruption, stack: ExitStack, scenario: Mapping[str, Any]) -> None:
        """Start everything.

        Raises:
            Interrupted: a signal came.
            AutothrottleError, TimeoutError, OSError: something does not start.
        """
        self._interruption, self._stack = interruption, stack
        directory = stack.enter_context(scratch_directory("autothrottle-demo-"))
        self.zookeeper = self._start_zookeeper(directory / "zookeeper")
        self.brokers = self._start_brokers(directory, scenario)
        self.client = self._connect()
        self.services = self._start_services(directory)

    def _start_zookeeper(self, directory: Path) -> ZooKeeperServer:
        server = ZooKeeperServer(directory)
        self._stack.callback(server.kill)
        self._interruption.run(server.start, lambda: [server.process])
        return server

    def _start_brokers(self, directory: Path, scenario: Mapping[str, Any]) -> Process:
        path = directory / "scenario.json"
        path.write_text(json.dumps(scenario))
        arguments = ["--zookeeper", self.zookeeper.connect, "--scenario", str(path), "--datadog", INSTANCE_TYPE]
        command = [sys.executable, "-m", "autothrottle.lab.simulated", *arguments]
        process = Process("The simulated Kafka", command, directory / "brokers.log")

        def start() -> None:
            process.start()
            process.wait_until(lambda: bool(_ADDRESSES.search(_text(process.log))), _START_SECONDS)

        self._stack.callback(process.stop)
        self._interruption.run(start, lambda: [process])
        return process

    def _connect(self) -> KazooClient:
        client = KazooClient(hosts=self.zookeeper.connect)
        self._stack.callback(_disconnect, client)
        client.start(timeout=_START_SECONDS)
        return client

    def _start_services(self, directory: Path) -> ServiceProcesses:
        services = ServiceProcesses(Deployment(self.zookeeper.connect, self._addresses[1], directory, OPTIONS))
        self._stack.push(services.__exit__)
        self._interruption.run(services.start, services.processes.values)
        return services

    @property
    def _addresses(self) -> tuple[str, str]:
        found = _ADDRESSES.search(_text(self.brokers.log))
        assert found is not None
        return found[1], found[2]

    @property
    def counters_url(self) -> str:
        """Where the brokers' counters are."""
        return self._addresses[0]

    def require_all_running(self, but: Sequence[Process]) -> None:
        """Raise `Unavailable` if a process has ended that was not to."""
        for process in (self.zookeeper.process, self.brokers, *self.services.processes.values()):
            if process not in but and not process.running:
                raise Unavailable(f"{process.name} ended by itself; the end of its log:\n{process.log_end()}")


def _disconnect(client: KazooClient) -> None:
    client.stop()
    client.close()


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


class Story:
    """What happens on a cluster that runs, and how it is told."""

    def __init__(self, cluster: Cluster, screen: Screen, interruption: Interruption, deadline: float) -> None:
        self._cluster, self._screen, self._interruption = cluster, screen, interruption
        self._deadline = deadline
        self._observer = Observer(cluster.client, cluster.counters_url, DEMO_NEW_BROKER)
        processes = cluster.services.processes
        self._logs = {name: LogLines(process.log) for name, process in processes.items()}
        self._killed: list[Process] = []
        self._cycles = 0
        self._next_sample = 0.0

    def tell(self, reassignment: Mapping[str, Any]) -> Summary:
        """Run a reassignment to its end and return the observer's numbers.

        Raises:
            Interrupted: a signal came.
            Incomplete: it did not end in time, or throttles are left.
            Unavailable: a process has ended that was not to.
        """
        self._wait(lambda: self._cycles > 0, "no planner has run a cycle")
        self._say(
            f"broker {DEMO_FAILED_BROKER} has failed; {DEMO_NEW_BROKER} replaces it: "
            f"{len(reassignment['partitions'])} partitions"
        )
        self._cycles, before = 0, self._observer.counters()
        self._cluster.client.create(KafkaPaths().reassign_partitions, json.dumps(reassignment).encode())
        after = self._move()
        self._say("the reassignment is done")
        self._wait(lambda: not self._observer.throttled(), "throttles are left")
        self._say("no throttle is left")
        self._follow_for(_LAST_WORDS_SECONDS)
        return summary(read_timeline(self._cluster.zookeeper.transactions()), before, after, self._cycles)

    def _move(self) -> dict[str, Any]:
        """Let the move run with all that disturbs it; return the counters at its end."""
        start = time.monotonic()
        acts: list[tuple[float, Callable[[], None]]] = [
            (DEMO_DOUBLING_SECONDS, lambda: self._say("client load doubles on every broker")),
            (KILL_SECONDS, self._kill_leader),
            (DEMO_FALLING_SECONDS, lambda: self._say("client load falls to what it was")),
        ]

        def over() -> bool:
            while acts and time.monotonic() - start >= acts[0][0]:
                acts.pop(0)[1]()
            self._sample()
            return not self._observer.is_moving()

        self._wait(over, "the reassignment did not finish")
        return self._observer.counters()

    def _kill_leader(self) -> None:
        leader = self._cluster.services.planner(self._observer.leader_address())
        leader.kill()
        self._killed.append(leader)
        self._say(f"{leader.name}, which leads, is killed (SIGKILL)")

    def _sample(self) -> None:
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS
            self._screen.show(self._observer.sample())

    def _wait(self, over: Callable[[], bool], what_is_wrong: str) -> None:
        """Turn until it is over; what is wrong if it never is completes a sentence."""
        while not over():
            self._turn()
            if time.monotonic() > self._deadline:
                left = ", ".join(map(str, self._observer.throttled())) or "nothing"
                raise Incomplete(f"{what_is_wrong} within {RUN_SECONDS:.0f} s; throttled: {left}")

    def _follow_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn()

    def _turn(self) -> None:
        self._interruption.sleep(_TURN_SECONDS)
        self._cluster.require_all_running(self._killed)
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


def table(found: Summary) -> str:
    """Return the summary for people, with the goals."""

    def goal(value: float | None, limit: float, unit: str) -> str:
        met = value is not None and value <= limit
        return f"goal <= {limit:g}{unit}: {'met' if met else 'MISSED'}"

    first, clean = found.first_throttle_seconds, found.clean_seconds
    rows = [
        ("recovery", f"{found.recovery_seconds:.1f} s", ""),
        ("at best", f"{found.ideal_seconds:.1f} s", "the new broker with all that clients leave of its link"),
        (
            "recovery / at best",
            f"{found.recovery_over_ideal:.2f}",
            goal(found.recovery_over_ideal, GOAL_RECOVERY_OVER_IDEAL, ""),
        ),
        ("client bytes", _size(found.client_bytes), "all brokers, both directions"),
        ("  of them deferred", _size(found.client_bytes_deferred), "did not fit when they came"),
        ("  share", f"{found.deferred_percent:.2f} %", goal(found.deferred_percent, GOAL_DEFERRED_PERCENT, " %")),
        ("first throttle after", _seconds(first), goal(first, GOAL_FIRST_THROTTLE_SECONDS, " s")),
        ("all throttles gone after", _seconds(clean), "the end of the move"),
        ("config writes", str(found.writes), ""),
        ("cycles", str(found.cycles), ""),
        ("leader changes", str(found.leader_changes), ""),
    ]
    lines = [f"  {name:<26}{value:>12}  {remark}".rstrip() for name, value, remark in rows]
    return "\n".join(["What an observer of the znodes and the brokers' counters saw:", *lines])


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


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
        found = _run(interruption)
        print(table(found), flush=True)
    except BrokenPipeError:
        # What is still buffered must not fail a second time when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Interrupted as interrupted:
        print(f"autothrottle demo: {interrupted}: everything that was started has ended", file=sys.stderr)
        return interrupted.exit_status
    except (AutothrottleError, TimeoutError, OSError, KazooException, KazooTimeoutError) as error:
        print(f"autothrottle demo: {error or type(error).__name__}", file=sys.stderr)
        return EXIT_FAILED
    if arguments.json:
        arguments.json.write_text(json.dumps(found.document(), indent=2) + "\n")
    return 0


def _run(interruption: Interruption) -> Summary:
    deadline = time.monotonic() + RUN_SECONDS
    scenario = demo_scenario()
    moving = {(entry["topic"], entry["partition"]) for entry in scenario["reassignment"]["partitions"]}
    total = sum(p["size"] for p in scenario["partitions"] if (p["topic"], p["partition"]) in moving)
    with ExitStack() as stack:
        screen = stack.enter_context(_screen(total))
        screen.say(_stamped("starting ZooKeeper, 6 simulated brokers, a Datadog, 2 planners and the other services"))
        cluster = Cluster(interruption, stack, scenario)
        return Story(cluster, screen, interruption, deadline).tell(scenario["reassignment"])


def _prepare_environment() -> None:
    """Let no setting of the user's own installation reach the demo's services."""
    for name in [name for name in os.environ if name.startswith("AUTOTHROTTLE_")]:
        del os.environ[name]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="autothrottle demo",
        description="Replace a broker of a simulated cluster under autothrottle's eyes; about a minute. "
        "Needs Java >= 17 and the extra `lab`.",
        epilog="Real: ZooKeeper, two planners and one of each other service as processes. Simulated: six brokers "
        "with their clients, and Datadog. Client load doubles 15 s after the start and falls at 30 s; at 22 s the "
        "planner that leads is killed. Exit status: 0 done, 1 failed, 2 called wrongly, 130 interrupted.",
    )
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write the summary there, as one JSON object")
    return parser.parse_args(argv)


def _writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file in a directory that is yours")
    return path
