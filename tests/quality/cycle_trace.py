"""Counts the functions, files and changes of file in one cycle on the in-memory twins.

A reader who follows a cycle opens each of these files. The cluster has two brokers and one reassignment, the policy is
adaptive, and the cycle is the first one after its throttles are in place:

    python -m tests.quality.cycle_trace
    python -m tests.quality.cycle_trace --list

Only the product's code counts. Comprehensions and lambdas belong to the function that contains them.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from autothrottle.core.policy.adaptive import AdaptivePolicy
from tests.unit.autothrottle.planner.bench import Bench

PRODUCT = Path(sys.modules["autothrottle"].__file__ or "").parent
INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")


@dataclass
class Trace:
    """The calls of one thread, in their order."""

    functions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(file, function) -> its calls."""
    changes: int = 0
    """Calls from one file of the product into another one."""
    file: str = ""
    generators: set[FrameType] = field(default_factory=set)
    """Generators that have begun: only their first call counts, not each value that they yield."""

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; `sys.setprofile` calls this."""
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if event != "call" or code.co_name in INNER or not path.is_relative_to(PRODUCT):
            return
        file = str(path.relative_to(PRODUCT))
        if file.startswith("adapters/memory"):
            return
        if code.co_flags & inspect.CO_GENERATOR:
            if frame in self.generators:
                return
            self.generators.add(frame)
        self.functions[file, code.co_qualname if sys.version_info >= (3, 11) else code.co_name] += 1
        self.changes += file != self.file
        self.file = file


def traced_cycle() -> Trace:
    """Return the trace of one cycle of the planner, with the threads that read loads and quotas for it."""
    trace = Trace()
    with Bench(policy=AdaptivePolicy()) as bench:
        bench.cluster.brokers = {1001, 1003}
        bench.cluster.add_topic("t1", {0: (1001,)})
        bench.cluster.submit_reassignment("t1", {0: (1003,)})
        bench.cluster.tell_progress(bench.now)
        for _ in range(2):
            bench.cycle()
        sys.setprofile(trace.note)
        threading.setprofile(trace.note)
        try:
            record = bench.cycle()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        assert not record.error, record.error
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions, too")
    options = parser.parse_args()
    trace = traced_cycle()
    files = {file for file, _ in trace.functions}
    if options.list:
        for (file, function), calls in sorted(trace.functions.items()):
            print(f"{file}\t{function}\t{calls}")
    print(f"{len(trace.functions)} functions in {len(files)} files, {trace.changes} changes of file")


if __name__ == "__main__":
    main()
