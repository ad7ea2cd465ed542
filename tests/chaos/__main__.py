"""`python -m tests.chaos`: run many seeds, print a line for each, and the totals."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tests.chaos.run import Result
from tests.chaos.series import details, line, run_all, summary

SEEDS, LANES = 200, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds; return 0, or 1 if there is a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=main.__doc__)
    parser.add_argument("--count", type=int, default=SEEDS, help="number of seeds (default %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="first seed (default %(default)s)")
    parser.add_argument("--lanes", type=int, default=LANES, help="parallel runs (default %(default)s)")
    parser.add_argument(
        "--stories", action="store_true", help="print the details of all runs, not only of those with violations"
    )
    arguments = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # the harness's own connections break, too

    def report(result: Result) -> None:
        print(line(result), flush=True)
        if result.violations or arguments.stories:
            print(details(result), flush=True)

    results = run_all(range(arguments.first, arguments.first + arguments.count), arguments.lanes, report)
    print(summary(results))
    return 1 if any(result.violations for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
