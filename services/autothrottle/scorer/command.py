"""`autothrottle score`: the command line and the report files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.core.texts import escape_unprintable, first_line, without_secrets
from autothrottle.scorer import report
from autothrottle.scorer.files import ArrowFiles, Files
from autothrottle.scorer.local import LARGEST, LocalScorer
from autothrottle.scorer.parser import ScorerParser
from autothrottle.scorer.results import gather
from autothrottle.scorer.scoring import Scorer, ScoreWork, find_work, score

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING_NEW = 3
"""Exit status: the log has nothing that was not scored."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = ScorerParser(
        prog="autothrottle score",
        description="Score logged decisions of planners. Only new parts of the log are read. Writes report.html, "
        "results.json, recoveries.csv and Parquet tables. Large logs are scored with Spark.",
        epilog="Exit status: 0 scored, 1 failure, 2 wrong usage, 3 nothing is new since the last run.",
    )
    place = "a path, the planner's name of an object store such as s3://bucket/path, or a URI of Spark's Hadoop"
    parser.add_argument("--decisions", required=True, metavar="URI", help=f"decision log: {place}")
    parser.add_argument("--out", required=True, metavar="URI", help=f"destination of the results: {place}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--master",
        default="",
        help="Spark master (default: from spark-submit, else none for a small log and local[*] for a large one)",
    )
    where.add_argument("--remote", default="", metavar="URI", help="Spark Connect server, sc://host:port")
    parser.add_argument(
        "--ratio",
        type=_share,
        default=REFERENCE_RATIO,
        help="share of the capacity left by clients for the best possible recovery, > 0 and <= 1 (default %(default)s)",
    )
    parser.add_argument(
        "--format",
        choices=("parquet", "iceberg"),
        default="parquet",
        help="of the tables of results: files below --out, or Iceberg tables (extra `iceberg`; default %(default)s)",
    )
    parser.add_argument(
        "--catalog",
        default="",
        metavar="NAME-OR-URI",
        help="Iceberg catalog: a name in pyiceberg's configuration, or a URI",
    )
    parser.add_argument(
        "--trace-url",
        type=_trace_url,
        default="",
        metavar="URL",
        help="address of a trace in your tracing system, with {trace_id} for the id: links in report.html",
    )
    parser.add_argument("--no-advice", action="store_true", help="estimate no other settings, which takes most time")
    parser.add_argument("--anew", action="store_true", help="score the whole log again")
    return parser


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 < (share := float(text)) <= 1:
            return share
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a share: it must be > 0 and <= 1; give 0.9, for example")


def _trace_url(text: str) -> str:
    if not text or (text.startswith(("http://", "https://")) and "{trace_id}" in text):
        return text
    raise argparse.ArgumentTypeError(
        f"{text[:100]!r} is not the address of a trace: it must start with http:// or https:// and contain "
        "{trace_id}; give https://jaeger.example.com/trace/{trace_id}, for example"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Score a decision log. Return the exit status, see `make_parser`."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if (arguments.format == "iceberg") != bool(arguments.catalog):
        parser.error("--format iceberg needs --catalog, and --catalog needs --format iceberg; give both or none")
    try:
        return _run(arguments)
    except AutothrottleError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # of a store or a disk
        reason = without_secrets(escape_unprintable(first_line(error)))
        print(f"the log or the results cannot be read or written: {reason}. Fix: check both locations", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    files, ratio = _arrow_files(arguments.decisions, arguments.out, arguments.catalog), arguments.ratio
    work = find_work(files, ratio, arguments.anew) if files else None
    # spark-submit starts this process with a gateway to its JVM.
    with_spark = arguments.master or arguments.remote or "PYSPARK_GATEWAY_PORT" in os.environ
    if files and work is not None and (not work.new or (not with_spark and work.size <= LARGEST)):
        return _finish(files, work, arguments)
    with _session(arguments.master, arguments.remote) as spark:
        if files is None or work is None:
            from autothrottle.scorer.spark import SparkFiles

            hadoop_files = SparkFiles(spark, arguments.decisions, arguments.out)
            return _finish(hadoop_files, find_work(hadoop_files, ratio, arguments.anew), arguments, spark)
        return _finish(files, work, arguments, spark)


def _arrow_files(decisions: str, out: str, catalog: str) -> ArrowFiles | None:
    """Return the files if Arrow knows both locations; otherwise only Spark's Hadoop may."""
    if catalog:
        try:
            from autothrottle.scorer.iceberg import IcebergFiles
        except ImportError:
            raise
        except Exception as error:  # pyiceberg reads its configuration when it is imported
            # The message omits the error's text, because it may show a line with a credential.
            raise Invalid(
                f"the configuration of pyiceberg cannot be used ({type(error).__name__}). "
                "Fix: correct .pyiceberg.yaml and the variables PYICEBERG_..."
            ) from None

        return IcebergFiles(decisions, out, catalog)
    try:
        return ArrowFiles(decisions, out)
    except Invalid:
        return None


@contextmanager
def _session(master: str, remote: str) -> Iterator[SparkSession]:
    # A small log needs neither Spark nor Java.
    from autothrottle.scorer.session import OF_SPARK, open_session, reason

    spark = open_session(master, remote)
    try:
        yield spark
    except OF_SPARK as error:
        raise Unavailable(
            f"Spark failed while it scored: {reason(error)}. The log is unchanged, and finished dates stay. "
            "Fix: see the logs of the executors; if one lacked memory, raise spark.executor.memory"
        ) from None
    finally:
        spark.stop()


def _finish(files: Files, work: ScoreWork, arguments: argparse.Namespace, spark: SparkSession | None = None) -> int:
    """Score the work and write the report; without a session, in this process."""
    if not work.new:
        _print_progress("nothing is new since the last run")
        return NOTHING_NEW
    scorer: Scorer = LocalScorer()
    if spark is not None:
        from autothrottle.scorer.spark import SparkScorer

        scorer = SparkScorer(spark)
    quality = score(files, scorer, work, arguments.ratio, _print_progress)
    if not arguments.no_advice:
        _print_progress("estimating other settings")
    results = gather(files, quality, None if arguments.no_advice else scorer.estimate)
    write_report(files, results, arguments.trace_url)
    # Last: the next run treats these dates as done.
    files.write("quality", quality)
    _print_progress(f"report: {files.out}/report.html")
    return 0


def write_report(files: Files, results: report.Results, trace_url: str = "") -> None:
    """Write the HTML page, the JSON and the CSV of a report beside the tables.

    Args:
        files: where the results are.
        results: content of the report.
        trace_url: address of a trace with `{trace_id}` in it; "": the page shows the ids.
    """
    files.write_text("report.html", report.as_html(results, trace_url))
    files.write_text("results.json", report.as_json(results))
    files.write_text("recoveries.csv", report.as_csv(results.recoveries))


def _print_progress(line: str) -> None:
    print(f"score: {escape_unprintable(line)}", file=sys.stderr, flush=True)
