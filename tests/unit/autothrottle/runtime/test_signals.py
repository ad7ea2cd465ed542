from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.pipes import full_pipe

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
    from autothrottle.runtime.signals import stop_on_signals
    stop = stop_on_signals()
    print("ready", flush=True)
    stop.wait()
    print("finished", flush=True)
"""

STUBBORN = """
    import time
    from autothrottle.runtime.signals import stop_on_signals
    stop = stop_on_signals()
    print("ready", flush=True)
    stop.wait()
    print("stopping", flush=True)
    time.sleep(60)
"""

LOCKED = """
    import signal
    from autothrottle.runtime.signals import stop_on_signals
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
