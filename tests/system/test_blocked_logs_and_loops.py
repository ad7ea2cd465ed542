"""Real processes whose log nothing reads, or whose loop is stuck: cycles go on, and another planner leads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.grpc import PlannerServiceClient
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.records import PlannerState
from autothrottle_lab.servers.processes import free_address
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.pipes import full_pipe
from tests.system.zookeeper_tree import Tree, session

SESSION_SECONDS = 3.0
STALL_SECONDS = 5.0
END_SECONDS = 5.0
TIMEOUT = timedelta(seconds=2)


class Run:
    """A process of all services, and a client of its planner."""

    def __init__(self, stack: ExitStack, tree: Tree, zookeeper: str, stderr: int, stall: Path | None = None) -> None:
        self.address = free_address()
        options = {
            "zk-addr": zookeeper,
            "zk-prefix": tree.kafka.prefix,
            "zk-config-prefix": tree.own.prefix,
            "session-timeout": f"{SESSION_SECONDS:g}",
            "metrics-source": "none",
            "policy": "static",
            "interval": "1",
            "log-level": "debug",
            "grpc-listen": self.address,
            "api-listen": "127.0.0.1:0",
        }
        module = "tests.system.stalling_run" if stall else "autothrottle"
        environment: Mapping[str, str] = {**os.environ, **({"STALL": str(stall)} if stall else {})}
        command = [sys.executable, "-m", module, "run", *(f"--{name}={value}" for name, value in options.items())]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, env=environment)
        stack.callback(self._end)
        self._planner = PlannerServiceClient([self.address])
        stack.callback(self._planner.close)

    def _end(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def state(self) -> PlannerState | None:
        with suppress(AutothrottleError):
            return self._planner.state(TIMEOUT)
        return None

    def leads(self) -> bool:
        state = self.state()
        return state is not None and state.leading and state.leader_address == self.address

    def cycles(self) -> int:
        """The number of the last cycle; 0: none yet, or no answer."""
        state = self.state()
        return state.last_cycle.number if state and state.leading and state.last_cycle else 0

    def seconds_to_end(self) -> float:
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - started


@pytest.mark.parametrize("size", [4_096, pytest.param(65_536, marks=pytest.mark.repeat)])
def test_cycles_go_on_and_sigterm_works_while_nothing_reads_the_log(zookeeper: ZooKeeperServer, size: int) -> None:
    """With a full pipe on standard error, a leader kept its term and did nothing, and SIGTERM did not end it.

    The collector of the log had stalled. Each thread waited for it at its next line, and so did the forced exit.
    """
    with ExitStack() as stack:
        tree = Tree(stack.enter_context(session(zookeeper)))
        run = Run(stack, tree, zookeeper.connect, stack.enter_context(full_pipe(size))[1])
        eventually(lambda: run.cycles() >= 3)
        seconds = run.seconds_to_end()
        assert (run.process.returncode, seconds < END_SECONDS) == (0, True), seconds
        assert [node for node in tree.nodes() if node.startswith("/election/")] == []
        print(f"\nfull pipe of {size} bytes: SIGTERM took {seconds:.1f} s")


@pytest.mark.repeat
def test_another_planner_leads_when_the_loop_is_stuck(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """A leader whose loop hung kept its term until a supervisor restarted it, a minute later or never."""
    stall = tmp_path / "stall"
    with ExitStack() as stack:
        tree = Tree(stack.enter_context(session(zookeeper)))
        with (tmp_path / "log").open("wb") as log:
            stuck = Run(stack, tree, zookeeper.connect, log.fileno(), stall)
            eventually(lambda: stuck.cycles() >= 1)
            standby = Run(stack, tree, zookeeper.connect, stack.enter_context(full_pipe())[1])
            eventually(lambda: standby.state() is not None)
            eventually(lambda: sum(node.startswith("/election/") for node in tree.nodes()) == 2)
            stall.touch()
            began = time.monotonic()
            eventually(standby.leads)
            seconds = time.monotonic() - began
            assert seconds <= STALL_SECONDS + SESSION_SECONDS + 2
            print(f"\nstuck loop: the standby leads after {seconds:.1f} s")
            time.sleep(1)
            assert not stuck.leads() and standby.leads()
            eventually(lambda: "is stuck in deciding" in (tmp_path / "log").read_text())
            stall.unlink()
            eventually(lambda: sum(node.startswith("/election/") for node in tree.nodes()) == 2)
            assert standby.leads(), "a loop that turns again waits for its turn"
            standby.process.kill()
            eventually(stuck.leads)
            stall.touch()
            time.sleep(2)
            assert stuck.seconds_to_end() < END_SECONDS, "also while the loop is stuck"


@pytest.mark.repeat
def test_another_planner_leads_when_every_cycle_of_the_leader_fails_unexpectedly(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """A leader whose every cycle failed because of a bug led for ever. Of two such planners, one still leads."""
    stall = tmp_path / "stall"
    with ExitStack() as stack:
        tree = Tree(stack.enter_context(session(zookeeper)))
        log = stack.enter_context((tmp_path / "log").open("wb"))
        failing = Run(stack, tree, zookeeper.connect, log.fileno(), stall)
        eventually(lambda: failing.cycles() >= 1)
        standby = Run(stack, tree, zookeeper.connect, log.fileno(), stall)
        eventually(lambda: sum(node.startswith("/election/") for node in tree.nodes()) == 2)
        stall.write_text("fail")
        began = time.monotonic()
        eventually(standby.leads)
        assert (tmp_path / "log").read_text().count("The cycle failed unexpectedly") >= 6
        print(f"\nfailing cycles: the standby leads after {time.monotonic() - began:.1f} s")
        eventually(lambda: "Health check planner failed: 3 cycles in a row failed" in (tmp_path / "log").read_text())
        time.sleep(15)
        assert standby.leads(), "the leader changes at most once a minute, although its cycles fail, too"
        stall.unlink()
        eventually(lambda: "Health check planner is ok again" in (tmp_path / "log").read_text())
