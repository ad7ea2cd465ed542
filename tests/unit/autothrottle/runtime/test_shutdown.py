from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest

from autothrottle.runtime import shutdown
from autothrottle.runtime.shutdown import Shutdown
from tests.pipes import full_pipe

SECONDS = 60.0
SOON = timedelta(seconds=0.05)


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "CALLS", SOON)
    monkeypatch.setattr(shutdown, "SESSIONS", 2 * SOON)


def waiting(event: threading.Event) -> Callable[[], None]:
    """A part whose closing waits for an event."""

    def close() -> None:
        assert event.wait(SECONDS)

    return close


def test_parts_close_in_reverse_order_and_nothing_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []
    with Shutdown() as stopping:
        for part in ("first", "second"):
            stopping.callback(closed.append, part)
        stopping.cancel_after(shutdown.CALLS, lambda: closed.append("cancelled"))
        assert not stopping.requested.is_set()
    time.sleep(3 * SOON.total_seconds())
    assert closed == ["second", "first"]
    assert stopping.requested.is_set() and not stopping.failed
    assert caplog.messages == []


def test_parts_that_wait_for_calls_close_when_those_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """Sessions end later than calls, so that a planner can give up its leadership in between."""
    call, session = threading.Event(), threading.Event()
    order: list[str] = []

    def ended(what: str, event: threading.Event) -> None:
        order.append(what)
        event.set()

    with Shutdown() as stopping:
        stopping.callback(waiting(session))
        stopping.callback(order.append, "leadership given up")
        stopping.callback(waiting(call))
        stopping.cancel_after(shutdown.SESSIONS, partial(ended, "session dropped", session))
        stopping.cancel_after(shutdown.CALLS, partial(ended, "call cancelled", call))
    assert order == ["call cancelled", "leadership given up", "session dropped"]
    assert caplog.messages == [
        "Not stopped after 0.05 s: cancelling calls to other services, Kafka and Datadog",
        "Not stopped after 0.1 s: dropping the sessions with the state store, which expire there",
    ]


def test_a_cancellation_that_hangs_does_not_delay_the_others() -> None:
    hanging, call = threading.Event(), threading.Event()
    with Shutdown() as stopping:
        stopping.callback(waiting(call))
        stopping.cancel_after(shutdown.CALLS, waiting(hanging))
        stopping.cancel_after(shutdown.CALLS, call.set)
    hanging.set()


def test_what_starts_after_the_cancellation_is_cancelled_at_once() -> None:
    """A service that was still starting would otherwise wait for its new connections."""
    call, late = threading.Event(), threading.Event()
    with Shutdown() as stopping:
        stopping.cancel_after(shutdown.CALLS, call.set)
        stopping.requested.set()
        assert call.wait(SECONDS)
        stopping.cancel_after(shutdown.CALLS, late.set)
        assert late.is_set()


def test_servers_share_the_time_for_calls_in_progress() -> None:
    with Shutdown() as stopping:
        whole = stopping.grace()
        stopping.requested.set()
        time.sleep(0.1)
        assert timedelta(0) < stopping.grace() < whole


HANGING = """
    import logging, sys, threading, time
    from datetime import timedelta
    from autothrottle.runtime import shutdown
    logging.basicConfig(format="{message}", style="{")
    shutdown._LIMIT = timedelta(seconds=0.2)
    def autothrottle_part():
        time.sleep(60)
    autothrottle_part.__globals__["__name__"] = "autothrottle.part"
    with shutdown.Shutdown() as stopping:
        HANG
    print("closed")
"""


@pytest.mark.parametrize(
    ("hangs", "thread"),
    [
        ("stopping.callback(autothrottle_part)", "MainThread"),
        ("threading.Thread(target=autothrottle_part, name='worker').start()", "worker"),
    ],
)
def test_the_process_ends_at_the_limit_and_names_what_still_runs(hangs: str, thread: str) -> None:
    program = textwrap.dedent(HANGING).replace("HANG", hangs)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS / 2, check=False
    )
    (line,) = ended.stderr.splitlines()
    assert line.startswith("Not stopped after 0.2 s: ending the process. Fix: report this line. Running: ")
    assert f"{thread} in autothrottle.part.autothrottle_part" in line
    assert (ended.returncode, ended.stdout) == (1, "")


def test_the_process_ends_at_the_limit_while_nothing_reads_the_log() -> None:
    """The forced exit logged what still ran, and waited for the reader of the log for ever."""
    program = textwrap.dedent(HANGING).replace("HANG", "stopping.callback(autothrottle_part)")
    program = program.replace('logging.basicConfig(format="{message}", style="{")', CONFIGURED)
    with full_pipe() as (_, writing):
        ended = subprocess.run([sys.executable, "-c", program], stderr=writing, timeout=SECONDS / 2, check=False)
    assert ended.returncode == 1


CONFIGURED = "from autothrottle.runtime.logs import *; configure_logs(); log_standard_error()"


SIGNALS = [signal.SIGTERM, signal.SIGINT]


@contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that first prints "ready"."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


GRACEFUL = """
    from autothrottle.runtime.shutdown import stop_on_signals
    stop = stop_on_signals()
    print("ready", flush=True)
    stop.wait()
    print("finished", flush=True)
"""

STUBBORN = """
    import time
    from autothrottle.runtime.shutdown import stop_on_signals
    stop = stop_on_signals()
    print("ready", flush=True)
    stop.wait()
    print("stopping", flush=True)
    time.sleep(60)
"""

LOCKED = """
    import signal
    from autothrottle.runtime.shutdown import stop_on_signals
    stop = stop_on_signals()
    print("ready", flush=True)
    with stop._cond:
        signal.raise_signal(signal.SIGTERM)
    stop.wait()
"""


@pytest.mark.parametrize("signum", SIGNALS)
def test_the_first_signal_lets_the_process_finish(signum: signal.Signals) -> None:
    with process(GRACEFUL) as child:
        child.send_signal(signum)
        out, _ = child.communicate(timeout=30)
    assert (out, child.returncode) == ("finished\n", 0)


@pytest.mark.parametrize("signum", SIGNALS)
def test_the_second_signal_ends_the_process_immediately_with_the_shells_status(signum: signal.Signals) -> None:
    with process(STUBBORN) as child:
        child.send_signal(signum)
        assert child.stdout is not None
        assert child.stdout.readline() == "stopping\n"
        child.send_signal(signum)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 128 + signum
    assert err == f"{signum.name} again: exiting at once\n"


ALL_SIGNALS = """
    import logging, os, signal
    from autothrottle.runtime.shutdown import stop_on_signals
    logging.basicConfig(format="%(message)s")
    print("ready", flush=True)
    names = "SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGVTALRM SIGPROF SIGIO SIGPWR SIGXCPU SIGRTMIN SIGRTMAX".split()
    for name in names:
        # A shell without job control starts these tests with SIGQUIT ignored.
        signal.signal(getattr(signal, name), signal.SIG_DFL)
        if not (child := os.fork()):
            stop = stop_on_signals()
            signal.raise_signal(getattr(signal, name))
            os._exit(0 if stop.wait(30) else 9)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_every_signal_that_would_end_the_process_stops_it_in_order() -> None:
    """A leader ended at SIGUSR1 or SIGQUIT at once, without giving up its term."""
    with process(ALL_SIGNALS) as child:
        statuses, _ = child.communicate(timeout=60)
    assert statuses.split() == ["0"] * 11


HANGS_UP = """
    import signal
    from autothrottle.runtime.shutdown import stop_on_signals
    # Whatever these tests inherit: nohup starts them with this signal ignored.
    signal.signal(signal.SIGHUP, signal.SIG_IGN if {ignored} else signal.SIG_DFL)
    stop = stop_on_signals(lambda: print("read again", flush=True))
    print("ready", flush=True)
    stop.wait()
    print("finished", flush=True)
"""


def test_sighup_reads_files_again_and_an_ignored_one_stays_ignored() -> None:
    """The leader ended at SIGHUP, which `systemctl reload` and the end of a terminal send. nohup ignores it."""
    with process(HANGS_UP.format(ignored=False)) as child, process(HANGS_UP.format(ignored=True)) as under_nohup:
        for each in (child, under_nohup):
            each.send_signal(signal.SIGHUP)
        assert child.stdout is not None and child.stdout.readline() == "read again\n"
        for each in (child, under_nohup):
            each.send_signal(signal.SIGTERM)
        assert child.communicate(timeout=30)[0] == under_nohup.communicate(timeout=30)[0] == "finished\n"


def test_a_signal_stops_the_process_while_the_main_thread_holds_the_events_lock() -> None:
    """A signal handler that sets the event itself would deadlock here, and the process would never stop."""
    with process(LOCKED) as child:
        assert child.wait(timeout=30) == 0


@pytest.mark.parametrize(
    "first", ["", "from autothrottle.runtime.logs import *; configure_logs(); log_standard_error()\n"]
)
def test_the_second_signal_ends_the_process_while_nothing_reads_the_log(first: str) -> None:
    """The process wrote a line to standard error before its exit, and waited for the reader of the log for ever."""
    command = [sys.executable, "-c", first + textwrap.dedent(STUBBORN)]
    with (
        full_pipe() as (_, writing),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "stopping\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=10) == 128 + signal.SIGTERM
