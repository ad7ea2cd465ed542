"""Counts the source files that run between a cause and its effect, as a measure of what a newcomer has to open.

python -m tests.quality.executed_files [--tree DIRECTORY] [--list]

All services run in one process, with a real ZooKeeper, simulated brokers and an emulated Datadog. A file counts if one
of its functions is called in the time between cause and effect; for `metric to rate`, if it is called by the metrics
source or by the policy. Generated code, `wire` and tracing do not count.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Sequence
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

_LEFT_OUT = re.compile(r"/(v1|wire|tracing)/|tracing\.py$|traces\.py$")
_RATE_ENTRIES = ("/adapters/datadog/", "/core/policy/")
"""Folders whose functions begin the path from a metric to a rate."""


class Recorder:
    """Records which files run, except while a module is imported; a function for `sys.setprofile`."""

    def __init__(self) -> None:
        self.all: set[str] = set()
        self.of_rates: set[str] = set()
        """The files that run below a function of `_RATE_ENTRIES`."""
        self._local = threading.local()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Note a call."""
        if event not in ("call", "return"):
            return
        change, name, state = 1 if event == "call" else -1, frame.f_code.co_filename, self._local.__dict__
        is_program = frame.f_globals.get("__name__") == "__main__"
        if not frame.f_code.co_flags & CO_OPTIMIZED and not is_program:  # a module or a class body
            state["imports"] = max(state.get("imports", 0) + change, 0)
        if state.get("imports", 0):
            return
        depth = state.get("depth", 0)
        if depth or any(entry in name for entry in _RATE_ENTRIES):
            state["depth"] = max(depth + change, 0)
            self.of_rates.add(name)
        self.all.add(name)

    def clear(self, *_: object) -> None:
        """Forget what ran until now."""
        self.all.clear()
        self.of_rates.clear()


def run_traced(out: Path, arguments: Sequence[str]) -> None:
    """Run autothrottle in this process; SIGUSR1 begins a record, SIGUSR2 and the end of the process write it."""
    recorder = Recorder()

    def write(*_: object) -> None:
        part = out.with_suffix(".part")
        part.write_text("\n".join([*recorder.all, "", *recorder.of_rates]))
        part.replace(out)

    signal.signal(signal.SIGUSR1, recorder.clear)
    signal.signal(signal.SIGUSR2, write)
    sys.argv = ["autothrottle", *arguments]
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        runpy.run_module("autothrottle", run_name="__main__", alter_sys=True)
    finally:
        write()


def counted(names: Collection[str], tree: Path) -> list[str]:
    """Return the counted files, relative to the folder of the services."""
    roots = (tree / "services" / "autothrottle", tree / "clients")
    found = {Path(name) for name in names if not _LEFT_OUT.search(name)}
    return sorted(str(path.relative_to(tree)) for path in found if any(root in path.parents for root in roots))


def measure(tree: Path, directory: Path) -> dict[str, list[str]]:
    """Return path -> the files that run on it."""
    from autothrottle_lab.servers.processes import Process
    from autothrottle_lab.servers.zookeeper import ZooKeeperServer
    from autothrottle_lab.simulation.client_traffic import ClientTraffic, TrafficStep
    from tests.system.simulated_recovery import CLIENTS, SimulatedRecovery

    begun = time.monotonic()
    out, decisions = directory / "files", directory / "decisions"
    environment = {"PYTHONPATH": f"{tree / 'services'}{os.pathsep}{tree / 'clients'}"}
    traffic = ClientTraffic((TrafficStep(0, CLIENTS, CLIENTS), TrafficStep(40, 2 * CLIENTS, 2 * CLIENTS)))

    def traced(name: str, arguments: Sequence[str]) -> Process:
        command = [sys.executable, __file__, "--traced", str(out), *arguments]
        keys = {"AUTOTHROTTLE_API_KEY": "lab-api-key", "AUTOTHROTTLE_APP_KEY": "lab-app-key"}
        return Process(name, command, directory / f"{name}.log", {**environment, **keys}, tree)

    with ZooKeeperServer(directory) as zookeeper:
        with SimulatedRecovery(zookeeper, directory, {"t": [20_000] * 4}, traffic=traffic) as recovery:
            options = {
                **recovery.deployment().options,
                "zk-addr": zookeeper.connect,
                "datadog-url": recovery.datadog.url,
                "api-listen": "127.0.0.1:0",
                "decisions": str(decisions),
            }
            run = traced("run", ["run", *(f"--{name}={value}" for name, value in options.items())])
            with run:

                def wait(condition: Callable[[], object]) -> None:
                    run.wait_until(lambda: bool(condition()), 120.0)

                def rate() -> int:
                    return recovery.rate() or 0

                def files(cause: Callable[[], object], effect: Callable[[], object]) -> tuple[list[str], list[str]]:
                    out.unlink(missing_ok=True)
                    os.kill(run.pid, signal.SIGUSR1)
                    cause()
                    wait(effect)
                    os.kill(run.pid, signal.SIGUSR2)
                    wait(out.exists)
                    everything, _, of_rates = out.read_text().partition("\n\n")
                    return counted(everything.split("\n"), tree), counted(of_rates.split("\n"), tree)

                wait(lambda: " cycle 2 " in run.log.read_text())
                (address,) = re.findall(r" Admin API: (\S+)$", run.log.read_text(), re.MULTILINE)
                first, _ = files(recovery.start_reassignment, rate)
                wait(lambda: time.monotonic() - begun > 35)
                before = rate()
                _, rates = files(lambda: None, lambda: rate() < before)

                def override() -> None:
                    request = urllib.request.Request(f"http://{address}/throttle?rate=12", method="POST")
                    urllib.request.urlopen(request, timeout=30).close()

                overrides, _ = files(override, lambda: rate() == 12_000_000)
        out.unlink()
    with traced("score", ["score", f"--decisions={decisions}", f"--out={directory / 'scores'}"]) as score:
        score.wait(within_seconds=300.0)
    report = counted(out.read_text().partition("\n\n")[0].split("\n"), tree)
    return {
        "reassignment to throttle": first,
        "override by HTTP to throttle": overrides,
        "metric to rate": rates,
        "decision to report": report,
    }


def main() -> int:
    """Print the number of files of each path."""
    if sys.argv[1:2] == ["--traced"]:
        run_traced(Path(sys.argv[2]), sys.argv[3:])
        return 0
    from autothrottle_lab.servers.processes import scratch_directory

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="checkout to run (default: this folder)")
    parser.add_argument("--list", action="store_true", help="also print the files")
    given = parser.parse_args()
    with scratch_directory() as directory:
        for path, files in measure(given.tree.resolve(), directory).items():
            print(f"{path:30} {len(files):4}")
            for name in files if given.list else ():
                print(f"    {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
