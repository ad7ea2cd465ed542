"""A planner in a process of its own that logs a cycle after the other, until it is killed.

Run as `python -m tests.adapters.logging_planner DIRECTORY TERM`. It prints the id of each cycle whose records it has
handed over. As at the shortest interval there is, a second, a cycle is on the disk before the next one ends.
"""

import sys
import time
from datetime import timedelta

from autothrottle.adapters.decision_log import DecisionLog, LogLimits
from tests.planner.bench import Bench

LIMITS = LogLimits(rows=6, age=timedelta(seconds=0.2))
"""A file after every third cycle: many kills hit the making of one."""


def main(directory: str, term: int) -> None:
    """Run cycles of one term for ever."""
    with DecisionLog(directory, limits=LIMITS) as log, Bench(decisions=log) as bench:
        for _ in range(term - 1):
            bench.electorate.begin_term("another")
        bench.begin_move()
        while True:
            cycle = bench.cycle()
            print(f"kafka/{cycle.term}/{cycle.number}", flush=True)
            while log.written < cycle.number:
                time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
