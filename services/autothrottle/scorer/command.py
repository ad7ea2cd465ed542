"""`autothrottle score`: the command line and the report files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import SparkSession

from autothrottle.core.errors import AutothrottleError
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.core.texts import escape_unprintable
from autothrottle.scorer import report
from autothrottle.scorer.gathering import gather
from autothrottle.scorer.scoring import ScoreSettings, score
from autothrottle.scorer.session import location, open_session, write_text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="autothrottle score",
        description="Score logged decisions of planners with Spark. Only new parts of the log are read. Writes "
        "report.html, results.json, recoveries.csv and Parquet tables.",
    )
    place = "a path or a URI supported by Spark's Hadoop, or the planner's name of it: s3://bucket/path"
    parser.add_argument("--decisions", required=True, metavar="URI", help=f"decision log: {place}")
    parser.add_argument("--out", required=True, metavar="URI", help=f"destination of the results: {place}")
    parser.add_argument("--master", default="", help="Spark master (default: from spark-submit, else local[*])")
    parser.add_argument(
        "--ratio",
        type=_share,
        default=REFERENCE_RATIO,
        help="share of the capacity left by clients for the best possible recovery, > 0 and <= 1 (default %(default)s)",
    )
    parser.add_argument(
        "--trace-url",
        type=_trace_url,
        default="",
        metavar="URL",
        help="address of a trace in your tracing system, with {trace_id} for the id: links in report.html",
    )
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
    """Score a decision log. Return the exit status: 0 success, 1 failure, 2 wrong usage."""
    arguments = make_parser().parse_args(argv)
    try:
        spark = open_session(arguments.master)
        try:
            decisions, out = location(arguments.decisions, spark), location(arguments.out, spark)
            run = score(spark, ScoreSettings(decisions, out, arguments.ratio, arguments.anew), _print_progress)
            if not {"recoveries", "ports", "timeline", "quality"} <= run.tables.keys():
                _print_progress("no recovery has ended yet")
                return 0
            _print_progress("estimating other settings")
            write_report(spark, gather(run.tables), out, arguments.trace_url)
            _print_progress(f"report: {out}/report.html")
        finally:
            spark.stop()
    except AutothrottleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write_report(spark: SparkSession, results: report.Results, out: str, trace_url: str = "") -> None:
    """Write the HTML page, the JSON and the CSV of a report beside the tables.

    Args:
        spark: the session; its Hadoop writes the files.
        results: content of the report.
        out: destination directory, as a Hadoop path.
        trace_url: address of a trace with `{trace_id}` in it; "": the page shows the ids.
    """
    texts = {
        "report.html": report.as_html(results, trace_url),
        "results.json": report.as_json(results),
        "recoveries.csv": report.as_csv(results.recoveries),
    }
    for name, text in texts.items():
        write_text(spark, f"{out}/{name}", text)


def _print_progress(line: str) -> None:
    print(f"score: {escape_unprintable(line)}", file=sys.stderr, flush=True)
