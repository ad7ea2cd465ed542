"""`python -m tests.chaos`: run many seeds, print a line for each, and the totals."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.on_kafka import series as on_kafka
from tests.chaos.on_kafka.series import Family, KafkaRecord, read_results, to_json
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
    parser.add_argument("--kafka", action="store_true", help="on real Kafka brokers")
    parser.add_argument(
        "--state", choices=("kafka", "zookeeper"), default="kafka", help="with --kafka: the state store (%(default)s)"
    )
    parser.add_argument(
        "--absences",
        choices=(Family.SHORT_ABSENCES.value, Family.LONG_ABSENCES.value),
        help="with --kafka: other schedules, in which all brokers are away for 20 to 60 s (short) or 300 s (long)",
    )
    parser.add_argument(
        "--results", type=Path, help="with --kafka: file that keeps the results; seeds in it are not run again"
    )
    parser.add_argument("--logs", type=Path, help="with --kafka: directory for the logs of runs with violations")
    arguments = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # the harness's own connections break, too
    if arguments.kafka:
        return _run_on_kafka(arguments)

    def report(result: Result) -> None:
        print(line(result), flush=True)
        if result.violations or arguments.stories:
            print(details(result), flush=True)

    results = run_all(range(arguments.first, arguments.first + arguments.count), arguments.lanes, report)
    print(summary(results))
    return 1 if any(result.violations for result in results) else 0


def _run_on_kafka(arguments: argparse.Namespace) -> int:
    seeds = range(arguments.first, arguments.first + arguments.count)
    results = read_results(arguments.results) if arguments.results else {}
    missing = [seed for seed in seeds if seed not in results]

    def report(record: KafkaRecord) -> None:
        if arguments.results:
            with arguments.results.open("a") as file:
                file.write(to_json(record) + "\n")
        print(on_kafka.line(record), flush=True)
        if record.violations or arguments.stories:
            print(on_kafka.details(record), flush=True)

    family = Family(arguments.absences) if arguments.absences else Family.ONE_BROKER
    records = on_kafka.run_all(missing, arguments.lanes, arguments.state, report, arguments.logs, family)
    stored = (results[seed] for seed in seeds if seed in results)
    records = sorted([*records, *stored], key=lambda record: record.seed)
    print(on_kafka.summary(records))
    return 1 if any(record.violations for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
