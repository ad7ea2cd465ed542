"""`python -m tests.fuzz`: attack doors with many inputs, and print a table with the defects."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import closing

from tests.fuzz import openapi_cases
from tests.fuzz.doors import DOORS
from tests.fuzz.series import Result, attack_once, run, table

COUNT = 100_000


def main(argv: Sequence[str] | None = None) -> int:
    """Attack the doors; return 0, or 1 if there is a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    names = [*DOORS, openapi_cases.NAME]
    parser.add_argument("--door", choices=names, action="append", help="a door to attack, repeatable (default all)")
    parser.add_argument("--count", type=int, default=COUNT, help="inputs of each door (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="first seed; every 2,000 inputs take the next (default 1)")
    parser.add_argument("--input", help="id of the only input, which the report of a defect names")
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # refused inputs are logged by the product
    results = [_attack(name, arguments) for name in arguments.door or names]
    print(table(results))
    return 1 if any(result.defects for result in results) else 0


def _attack(name: str, arguments: argparse.Namespace) -> Result:
    if name == openapi_cases.NAME:
        return openapi_cases.run_cases(arguments.count, arguments.seed, _progress)
    with closing(DOORS[name]()) as door:
        if arguments.input:
            result = Result(door.name)
            attack_once(door, bytes.fromhex(arguments.input), result)
            return result
        return run(door, arguments.count, arguments.seed, _progress)


def _progress(result: Result) -> None:
    print(f"{result.door}: {result.inputs} inputs, {len(result.defects)} defects", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
