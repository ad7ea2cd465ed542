"""Leaders that do not control the cluster: the loop is stuck, or its cycles fail unexpectedly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryElection
from autothrottle.core.cycle.step import ramp_steps, step
from autothrottle.planner import calls, loop
from autothrottle.planner.calls import Watchdog
from autothrottle.planner.loop import Planner
from tests import builders
from tests.builders import eventually
from tests.unit.autothrottle.planner.bench import ADDRESS, Bench

OTHER = "127.0.0.1:4004"
PATIENCE = 0.25
STUCK_PATIENCE = 0.7
"""Patience with whole planners, in which no other part takes so long on a busy machine."""


def set_patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(calls, "PATIENCE", timedelta(seconds=seconds))
    monkeypatch.setattr(calls, "_CALL_SLACK", timedelta(seconds=seconds))
    monkeypatch.setattr(calls, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(calls, "_PROGRESS_SECONDS", 0.001)


# The watchdog.


def stall_while(work: Callable[[Watchdog], None]) -> str:
    """Run work in a watched thread; return where it stalled."""
    stalls: list[str] = []
    watched = Watchdog(stalls.append, lambda: None)

    def run() -> None:
        watched.start()
        watched.enter("a part")
        work(watched)
        watched.rest()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    watched.close()
    return "; ".join(stalls)


def compute(seconds: float) -> None:
    """Use the CPU for so many seconds of its time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def compute_for_a_large_cluster(watched: Watchdog) -> None:
    watched.rest()
    large = builders.reassignment("t", {n: (1, [1], [2], []) for n in range(100_000)})
    watched.enter("a part", [large])
    compute(2 * PATIENCE)


def wait_for_a_slow_service(watched: Watchdog) -> None:
    with watched.waiting("a call", timedelta(seconds=0.4)):
        time.sleep(0.5)


def wait_for_a_service_that_ignores_its_timeout(watched: Watchdog) -> None:
    with watched.waiting("a call", timedelta(seconds=0.1)):
        time.sleep(0.7)


def enter_many_parts(watched: Watchdog) -> None:
    for number in range(5):
        watched.enter(f"part {number}")
        time.sleep(PATIENCE / 2)


@pytest.mark.parametrize(
    ("work", "stall"),
    [
        (lambda _: time.sleep(0.6), "a part, blocked for 0.25 s"),
        (lambda _: compute(0.4), "a part, busy for 0.25 s of CPU time"),
        (wait_for_a_service_that_ignores_its_timeout, "a call, blocked for 0.35 s"),
        (compute_for_a_large_cluster, ""),
        (wait_for_a_slow_service, ""),
        (enter_many_parts, ""),
    ],
)
def test_only_a_part_that_exceeds_its_own_limit_is_a_stall(
    work: Callable[[Watchdog], None], stall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long cycle of a large cluster is not a stall: its parts have limits, and computing is progress."""
    set_patience(monkeypatch, PATIENCE)
    assert stall_while(work) == stall


# A loop that is stuck.


@contextmanager
def two_planners(bench: Bench) -> Iterator[Planner]:
    """Let the bench's planner lead, and another one wait; yield the other one."""
    other = Planner(bench.dependencies(MemoryElection(bench.electorate)), bench.settings)
    bench.planner.start(ADDRESS)
    eventually(lambda: bench.planner.state().last_cycle)
    other.start(OTHER)
    try:
        yield other
    finally:
        other.stop()


class Gate:
    """Blocks the calls from one thread while it is closed."""

    def __init__(self, thread: threading.Thread, function: Callable[..., object]) -> None:
        self._thread, self._function = thread, function
        self.opened, self.reached = threading.Event(), threading.Event()

    def __call__(self, *arguments: object) -> object:
        if threading.current_thread() is self._thread:
            self.reached.set()
            assert self.opened.wait(60)
        return self._function(*arguments)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("loop", "step"),
        ("_reporter", "report"),
        *(
            pytest.param(*case, marks=pytest.mark.repeat)
            for case in (
                ("loop", "settle"),
                ("_observer", "observe"),
                ("_journal", "write"),
                ("_metrics", "note_cycle"),
            )
        ),
    ],
)
def test_a_leader_whose_loop_is_stuck_gives_up_its_term_and_writes_nothing_later(
    part: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that hung kept its term: only liveness failed, after a minute, and no other planner could lead.

    The watchdog ends the candidacy. A loop that continues stands again, and its cycle writes nothing any more.
    """
    set_patience(monkeypatch, STUCK_PATIENCE)
    with Bench(real_time=True) as bench, two_planners(bench) as other:
        stuck = bench.planner
        owner = loop if part == "loop" else getattr(stuck, part)
        gate = Gate(stuck._thread, getattr(owner, name))
        if part == "_observer":  # frozen
            monkeypatch.setattr(type(owner), name, lambda _, *arguments: gate(*arguments))
        else:
            monkeypatch.setattr(owner, name, gate)
        bench.begin_reassignment()
        stuck.request_cycle("test")
        assert gate.reached.wait(60)
        reached, written = time.monotonic(), len(bench.cluster.writes)
        eventually(lambda: other.state().leading)
        assert time.monotonic() - reached < STUCK_PATIENCE + 2
        assert "stuck in" in stuck.stall()
        assert len(bench.electorate._candidates) == 1, "a stuck planner does not stand"
        eventually(lambda: bench.lists() != (None, None))
        gate.opened.set()
        eventually(lambda: not stuck.stall())
        eventually(lambda: len(bench.electorate._candidates) == 2)
        assert other.state().leading
        assert {change.ledger.term for change in bench.cluster.writes[written:] if change.ledger} <= {2}
        last = stuck.state().last_cycle
        assert name != "step" or (last is not None and "was given up" in last.error)


def test_stop_does_not_wait_for_a_loop_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop` waited for the cycle without a limit, and kept the leadership meanwhile."""
    monkeypatch.setattr(loop, "_STOP_SECONDS", 0.1)
    with Bench(real_time=True) as bench:
        gate = Gate(bench.planner._thread, step)
        monkeypatch.setattr(loop, "step", gate)
        bench.planner.start(ADDRESS)
        assert gate.reached.wait(60)
        stopped = time.monotonic()
        bench.planner.stop()
        assert time.monotonic() - stopped < 2
        assert bench.election.term is None
        gate.opened.set()


# Cycles that fail unexpectedly.


def fail(*_: object) -> None:
    raise ZeroDivisionError


class FailsFor:
    """Fails in the threads of some planners."""

    def __init__(self, function: Callable[..., object], *planners: Planner) -> None:
        self._function, self._threads = function, [planner._thread for planner in planners]

    def __call__(self, *arguments: object) -> object:
        if threading.current_thread() in self._threads:
            raise ZeroDivisionError
        return self._function(*arguments)


@pytest.fixture
def frequent() -> Iterator[Bench]:
    """A bench whose planners run 20 cycles a second."""
    with Bench(real_time=True, interval=timedelta(seconds=0.05)) as bench:
        yield bench


def test_a_leader_whose_cycles_fail_unexpectedly_hands_over(
    frequent: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader whose every cycle failed because of a bug led on, while all its probes were green."""
    with two_planners(frequent) as other:
        monkeypatch.setattr(loop, "step", FailsFor(step, frequent.planner))
        frequent.begin_reassignment()
        eventually(lambda: other.state().leading)
        eventually(lambda: frequent.lists() != (None, None))
        assert [frequent.planner.failing(), other.failing()] == ["", ""], "only a leader can fail"
        assert len(frequent.electorate._candidates) == 1, "it does not stand again at once"
        # The first planner leads again, and fails again, as soon as the other one has stopped.
        eventually(lambda: "6 cycles in a row failed unexpectedly: giving up the term, throttles stay." in caplog.text)
        assert caplog.text.count("The cycle failed unexpectedly") == 6


def test_if_every_candidate_fails_one_still_leads(frequent: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_planners(frequent) as other:
        monkeypatch.setattr(loop, "step", FailsFor(step, frequent.planner, other))
        eventually(lambda: other.state().leading)
        eventually(lambda: other.failing())
        term = other.state().term
        cycles = other.state().last_cycle
        eventually(lambda: (last := other.state().last_cycle) and cycles and last.number > cycles.number + 8)
        assert (other.state().leading, other.state().term) == (True, term)
        other.stop()
        eventually(lambda: frequent.planner.state().leading)


def test_a_leader_is_not_ready_after_three_unexpected_failures_in_a_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.cycle()
    bench.election.term = bench.term
    for count in range(1, 5):
        monkeypatch.setattr(loop, "step", fail)
        bench.cycle()
        assert bool(bench.planner.failing()) == (count >= 3)
    bench.cluster.unavailable(True)
    monkeypatch.setattr(loop, "step", step)
    bench.cycle()
    assert bench.planner.failing(), "an expected error says nothing about the unexpected one"
    bench.cluster.unavailable(False)
    bench.cycle()
    assert bench.planner.failing() == ""


def test_a_leader_whose_ramp_steps_fail_unexpectedly_is_not_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.cycle()
    bench.election.term = bench.term
    monkeypatch.setattr(loop, "ramp_steps", fail)
    for _ in range(3):
        bench.planner.run_step(bench.term)
        bench.cycle("a ramp step failed")
    assert (
        bench.planner.failing()
        == "3 ramp steps in a row failed unexpectedly; the log has the traceback. Fix: report it"
    )
    monkeypatch.setattr(loop, "ramp_steps", ramp_steps)
    bench.planner.run_step(bench.term)
    assert bench.planner.failing() == ""


@pytest.mark.parametrize(("part", "name"), [("_reporter", "report"), ("_metrics", "note_cycle"), ("_journal", "write")])
def test_a_bug_after_the_writes_is_retried_with_back_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str, name: str
) -> None:
    """The writes of the cycle had reset the count of failures, so that it was retried every second for ever.

    A bug in the record of a cycle ended the process, and then that of every other planner.
    """
    bench.cycle()
    monkeypatch.setattr(getattr(bench.planner, part), name, fail)
    bench.begin_reassignment()
    waits = []
    for _ in range(4):
        bench.planner._triggers._requests.clear()
        record = bench.cycle()
        assert "unexpected ZeroDivisionError" in record.error and record.topics == ("t1",)
        waits.append(bench.planner._triggers._requests["retrying after a failure"].due - bench.seconds)
    assert waits[0] < waits[1] < waits[2] < waits[3]
