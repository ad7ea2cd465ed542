"""`metricsfetcher`: stores partition sizes and free storage where topicmappr finds them.

Exit status: 0 success. 1 failure; the stored sample is unchanged then. 2 wrong usage.
"""

from __future__ import annotations

import os
import sys

from autothrottle import __version__
from autothrottle.core.errors import Incomplete
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.texts import escape_unprintable
from autothrottle.runtime.command_line import EXIT_USAGE, command_help, described, program
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse_command
from autothrottle.runtime.option_kinds import declared_options
from autothrottle.topicmappr.options import FETCHER_PREFIX, FetcherOptions, FetchSource, fetcher_defaults
from autothrottle.topicmappr.sources import append_history, fetch_metrics, stored_metrics, write_metrics
from autothrottle_client.suggestions import suggestion

WAYS_TO_START = """\
nothing says where the metrics come from. Fix: start it in one of these ways
      Kafka alone, for forecasts:
        --bootstrap-servers kafka1:9092 --history history
      Kafka and ZooKeeper:
        --bootstrap-servers kafka1:9092 --zk-addr zk1:2181
      Datadog and ZooKeeper, with the keys in METRICSFETCHER_API_KEY and METRICSFETCHER_APP_KEY:
        --zk-addr zk1:2181
      Prometheus and ZooKeeper:
        --prometheus-url http://prometheus:9090 --bootstrap-servers kafka1:9092 --zk-addr zk1:2181"""

_SHOWN_PROBLEMS = 10

_ABSENT_SHARE = 0.1
"""Deleted topics may account for this share of the stored partitions."""


@program
def main(arguments: list[str]) -> int:
    """Fetch a sample and store it; return the exit status."""
    if arguments and (meant := suggestion("metricsfetcher", arguments[0])):
        print(f"metricsfetcher has no command {arguments[0]!r}{meant}", file=sys.stderr)
        return EXIT_USAGE
    options, warnings, _ = parse_command(
        FetcherOptions, arguments, os.environ, FETCHER_PREFIX, defaults=fetcher_defaults
    )
    for warning in warnings:
        print(warning, file=sys.stderr)
    if options is None or options.version:
        print(_help() if options is None else __version__)
    else:
        _run(options)
    return 0


def _run(options: FetcherOptions) -> None:
    _check(options)
    metrics = fetch_metrics(options, lambda line: print(escape_unprintable(line)))
    for problem in metrics.problems if options.verbose else metrics.problems[:_SHOWN_PROBLEMS]:
        print(f"Skipped: {escape_unprintable(problem)}", file=sys.stderr)
    compared = options.zookeeper and not (options.dry_run or options.accept_smaller)
    require_complete(metrics, stored_metrics(options) if compared else None)
    size = f"{len(metrics.sizes)} partitions and {len(metrics.storage_free)} brokers"
    if options.dry_run:
        print(f"Fetched {size}; nothing is written in a dry run")
        return
    if options.zookeeper:
        write_metrics(options, metrics)
        print(f"Data written to ZooKeeper: {size}")
    if options.history:
        print(f"Data written to {append_history(options, metrics)}: {size}")


def _check(options: FetcherOptions) -> None:
    problems = []
    if options.source is FetchSource.DATADOG:
        keys = {"api-key": options.api_key, "app-key": options.app_key}
        absent = [name for name, key in keys.items() if not key]
        if len(absent) == len(keys):
            problems.append(WAYS_TO_START)
        elif absent:
            variable = f"{FETCHER_PREFIX}{absent[0].upper().replace('-', '_')}"
            problems.append(f"{absent[0]} is not given, and Datadog needs both keys. Fix: the variable {variable}")
    if not options.zookeeper and not options.history and not options.dry_run:
        problems.append(
            "without ZooKeeper and without history nothing is stored; topicmappr reads the sizes from the brokers with "
            "--bootstrap-servers. Fix: --history=DIR for forecasts, or --zk-addr=zk1:2181 for the znodes of topicmappr"
        )
    if options.rate_sample and not options.history:
        problems.append("rate-sample is given without history, which stores the rates. Fix: --history=DIR")
    if options.rate_sample and options.source is not FetchSource.KAFKA:
        problems.append("rate-sample measures the growth of logs on the brokers. Fix: --source=kafka")
    if problems:
        raise InvalidConfiguration(problems)


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
    options = described(declared_options(FetcherOptions, FETCHER_PREFIX).values())
    purpose = "stores partition sizes and the free storage of brokers for topicmappr"
    return command_help(
        "metricsfetcher", "[options]", purpose, options, "--bootstrap-servers kafka1:9092 --history history"
    )


if __name__ == "__main__":
    sys.exit(main())
