"""`metricsfetcher`: stores partition sizes and free storage where topicmappr finds them.

Exit status: 0 success. 1 failure; the stored sample is unchanged then. 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from autothrottle import __version__
from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.texts import escape_unprintable
from autothrottle.ports.services import StorageMetrics
from autothrottle.runtime.command_line import described
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse_command
from autothrottle.runtime.option_kinds import declared_options
from autothrottle.topicmappr.options import FETCHER_PREFIX, FetcherOptions
from autothrottle.topicmappr.sources import fetch_metrics, stored_metrics, write_metrics

_SHOWN_PROBLEMS = 10

_ABSENT_SHARE = 0.1
"""Deleted topics may account for this share of the stored partitions."""


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch a sample and store it; return the exit status."""
    try:
        options, warnings = parse_command(
            FetcherOptions, sys.argv[1:] if argv is None else argv, os.environ, FETCHER_PREFIX
        )
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
        return 2
    for warning in warnings:
        print(warning, file=sys.stderr)
    if options is None or options.version:
        print(_help() if options is None else __version__)
        return 0
    try:
        _run(options)
        return 0
    except AutothrottleError as error:
        print(escape_unprintable(str(error)), file=sys.stderr)
        return 1


def _run(options: FetcherOptions) -> None:
    metrics = fetch_metrics(options, lambda line: print(escape_unprintable(line)))
    for problem in metrics.problems if options.verbose else metrics.problems[:_SHOWN_PROBLEMS]:
        print(f"Skipped: {escape_unprintable(problem)}", file=sys.stderr)
    stored = None if options.dry_run or options.accept_smaller else stored_metrics(options)
    require_complete(metrics, stored)
    size = f"{len(metrics.sizes)} partitions and {len(metrics.storage_free)} brokers"
    if options.dry_run:
        print(f"Fetched {size}; nothing is written in a dry run")
        return
    write_metrics(options, metrics)
    print(f"Data written to ZooKeeper: {size}")


def require_complete(metrics: StorageMetrics, stored: StorageMetrics | None) -> None:
    """Check that a sample may replace the stored one (None: nothing is stored).

    Raises:
        Incomplete: it is empty, a part of the source did not answer, a stored broker is absent, or more than a tenth of
            the stored partitions.
    """
    keeps = "the stored sample stays"
    if not metrics.sizes or not metrics.storage_free:
        absent = "free storage of brokers" if metrics.sizes else "partition sizes"
        raise Incomplete(f"the source has no {absent}; {keeps}. Fix: check the queries and their tags")
    if metrics.unanswered:
        raise Incomplete(f"the source is incomplete: {'; '.join(metrics.unanswered)}; {keeps}. Fix: run it again")
    if stored is None:
        return
    fix = "Fix: check the source; if it is right, give --accept-smaller"
    if absent_brokers := sorted(stored.storage_free.keys() - metrics.storage_free.keys()):
        shown = ", ".join(map(str, absent_brokers[:_SHOWN_PROBLEMS]))
        raise Incomplete(f"the source has no free storage of brokers that were stored before: {shown}; {keeps}. {fix}")
    absent_partitions = len(stored.sizes.keys() - metrics.sizes.keys())
    if absent_partitions > _ABSENT_SHARE * len(stored.sizes):
        raise Incomplete(
            f"the source has no size of {absent_partitions} of {len(stored.sizes)} partitions that were stored before; "
            f"{keeps}. {fix}"
        )


def _help() -> str:
    options = declared_options(FetcherOptions, FETCHER_PREFIX)
    return (
        "Usage: metricsfetcher [options]\n\nStores partition sizes and the free storage of brokers for topicmappr.\n\n"
        f"{described(options.values())}\nExample:\n  metricsfetcher --source kafka --kafka-addr kafka1:9092"
    )


if __name__ == "__main__":
    sys.exit(main())
