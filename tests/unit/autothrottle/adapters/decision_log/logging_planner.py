"""A planner process that logs one cycle after the other, until it is killed.

Run this module with `python -m` and the arguments DIRECTORY and TERM. It prints the id of each cycle after the log
accepts the cycle's records. Cycles run 1 s apart, the shortest interval, and each is on disk before the next ends.
"""

import sys
import time
from contextlib import closing
from datetime import timedelta

from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
from tests.unit.autothrottle.planner.bench import Bench

LIMITS = LogLimits(rows=6, age=timedelta(seconds=0.2))
"""One file for every three cycles, so that many kills hit the writing of a file."""


def main(directory: str, term: int) -> None:
    with closing(DecisionLog(directory, limits=LIMITS)) as log, Bench(decisions=log) as bench:
        for _ in range(term - 1):
            bench.electorate.begin_term("another")
        bench.begin_reassignment()
        while True:
            cycle = bench.cycle()
            print(f"kafka/{cycle.term}/{cycle.number}", flush=True)
            while log.written < cycle.number:
                time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
