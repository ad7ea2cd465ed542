"""`python -m autothrottle.lab.chaos`: runs many seeds, prints a line for each, and the counts."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from autothrottle.lab.chaos.run import Result
from autothrottle.lab.chaos.series import line, run_all, story, summary

SEEDS, LANES = 200, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds; return 0, or 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m autothrottle.lab.chaos", description=main.__doc__)
    parser.add_argument("--count", type=int, default=SEEDS, help="how many seeds (default %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default %(default)s)")
    parser.add_argument("--lanes", type=int, default=LANES, help="how many at the same time (default %(default)s)")
    parser.add_argument("--stories", action="store_true", help="tell all of every run, not of broken ones only")
    arguments = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # of the harness's own connections, which break too

    def tell(result: Result) -> None:
        print(line(result), flush=True)
        if result.violations or arguments.stories:
            print(story(result), flush=True)

    results = run_all(range(arguments.first, arguments.first + arguments.count), arguments.lanes, tell)
    print(summary(results))
    return 1 if any(result.violations for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
