"""`autothrottle score`: the command line, and where results are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import SparkSession

from autothrottle.core.errors import AutothrottleError
from autothrottle.core.score import REFERENCE_RATIO
from autothrottle.scorer import report
from autothrottle.scorer.scoring import ScoreSettings, score
from autothrottle.scorer.session import location, open_session, write_text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="autothrottle score",
        description="Scores the decisions that planners have logged, with Spark. What was scored before is not read "
        "again. Writes report.html, results.json, recoveries.csv and tables in Parquet.",
    )
    place = "a path or a URI that Spark's Hadoop knows, s3a://bucket/path for example"
    parser.add_argument("--decisions", required=True, metavar="URI", help=f"the decision log: {place}")
    parser.add_argument("--out", required=True, metavar="URI", help=f"where the results go: {place}")
    parser.add_argument("--master", default="", help="Spark's master; default: what spark-submit says, else local[*]")
    parser.add_argument(
        "--ratio",
        type=_share,
        default=REFERENCE_RATIO,
        help="share of what clients leave of a link that the best recovery gives to replication, > 0 and <= 1; "
        "default %(default)s",
    )
    parser.add_argument("--anew", action="store_true", help="score everything again")
    return parser


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 < (share := float(text)) <= 1:
            return share
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is no share: it must be > 0 and <= 1; give 0.9, for example")


def main(argv: Sequence[str] | None = None) -> int:
    """Score a decision log; return the exit status: 0, 1 when it failed, 2 when it was called wrongly."""
    arguments = make_parser().parse_args(argv)
    try:
        spark = open_session(arguments.master)
    except AutothrottleError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        decisions, out = location(arguments.decisions, spark), location(arguments.out, spark)
        run = score(spark, ScoreSettings(decisions, out, arguments.ratio, arguments.anew), _tell)
        if not {"recoveries", "ports", "timeline", "quality"} <= run.tables.keys():
            _tell("no recovery has ended yet")
            return 0
        _tell("weighing other settings")
        write_report(spark, report.gather(run.tables), out)
        _tell(f"report: {out}/report.html")
    except AutothrottleError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


def write_report(spark: SparkSession, results: report.Results, out: str) -> None:
    """Write the page, the JSON and the CSV of a report beside the tables.

    Args:
        spark: the session, whose Hadoop reaches whatever it has written the tables to.
        results: what they say.
        out: where, as Hadoop knows it.
    """
    texts = {
        "report.html": report.as_html(results),
        "results.json": report.as_json(results),
        "recoveries.csv": report.as_csv(results.recoveries),
    }
    for name, text in texts.items():
        write_text(spark, f"{out}/{name}", text)


def _tell(line: str) -> None:
    print(f"score: {line}", file=sys.stderr, flush=True)
