"""The Spark session that the scorer works in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from autothrottle.core.errors import Invalid, Unavailable

_OF_SPARK = (PySparkException, Py4JJavaError)

_NEEDED = {
    # What is skipped is counted by the scorer itself.
    "spark.sql.files.ignoreCorruptFiles": "true",
    # Folders are named by dates in UTC.
    "spark.sql.session.timeZone": "UTC",
    # A run writes some dates of a table; all others stay.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # The name of a cluster may look like a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""Without these scores are wrong, or lost: a cluster's own defaults do not count."""

_SETTINGS = {
    "spark.app.name": "autothrottle score",
    # The JVM does not compile a longer method, but interprets it.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    # Most of a run's plans and methods run once: compiling them well takes longer than they do (of 1,000,000 rows a
    # fifth or more of all CPU time; of 10,000,000 it would gain 7 %).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseParallelGC",
    # Of a shuffle one task takes so much; by default it is as little as 1 MB.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}

_MOST_PARTITIONS = "64"
"""Of a shuffle where Spark runs locally; it puts those together that are small."""


def open_session(master: str = "", **settings: str) -> SparkSession:
    """Return a session with the `configuration` of these.

    Raises:
        Unavailable: Spark does not start.
    """
    try:
        session = SparkSession.builder.config(conf=configuration(master, **settings)).getOrCreate()
    except _OF_SPARK as error:
        raise Unavailable(
            f"Spark does not start: {_reason(error)}. Fix: it needs Java >= 17 (JAVA_HOME), and a --master that answers"
        ) from None
    session.sparkContext.setLogLevel("ERROR")
    return session


def configuration(master: str = "", **settings: str) -> SparkConf:
    """Return Spark's settings; what spark-submit has set already stays, but for what scores depend on.

    Args:
        master: as Spark knows it; "" is what spark-submit says, `local[*]` without it.
        settings: further ones; `_` in a name stands for a dot.
    """
    configuration = SparkConf()
    where = master or str(configuration.get("spark.master", "local[*]"))
    wanted = {"spark.master": where, **_SETTINGS, **{k.replace("_", "."): v for k, v in settings.items()}}
    if where.startswith("local"):
        wanted = {**_LOCAL, "spark.sql.shuffle.partitions": _MOST_PARTITIONS, **wanted}
    for name, value in wanted.items():
        if name == "spark.master" or not configuration.contains(name):
            configuration.set(name, value)
    for name, value in _NEEDED.items():
        configuration.set(name, value)
    return configuration


def location(uri: str, spark: SparkSession) -> str:
    """Return a place as Hadoop knows it, which takes what a path is called as it is, blanks and all.

    A path without scheme is a local one where Spark runs locally.

    Raises:
        Invalid: Hadoop has nothing by which to reach it.
    """
    has_scheme = "://" in uri or uri.startswith("file:")
    is_local = str(spark.sparkContext.master).startswith(("local", "spark://127.0.0.1", "spark://localhost"))
    place = uri.rstrip("/") if has_scheme or not is_local else f"file://{Path(uri).absolute()}"
    try:
        _found(spark, place)
    except _OF_SPARK as error:
        raise Invalid(
            f"{uri!r} cannot be reached: {_reason(error)}. "
            "Fix: put the store's Hadoop connector among Spark's jars, or name another place"
        ) from None
    return place


def _reason(error: Exception) -> str:
    """The first line of what Java says."""
    return str(getattr(error, "java_exception", error)).splitlines()[0]


def _found(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Hadoop's file system of a place, and the place as its path."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path


def remove(spark: SparkSession, place: str) -> None:
    """Remove a directory and what is in it, if it is there."""
    files, path = _found(spark, place)
    files.delete(path, True)


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Write a file, in place of one that is there.

    Args:
        spark: the session; whatever it can write tables to will do.
        place: the file, as Hadoop knows it.
        text: what it shall hold.
    """
    files, path = _found(spark, place)
    files.setWriteChecksum(False)  # of a local file it would be a second one
    stream = files.create(path, True)
    try:
        stream.write(text.encode())
    finally:
        stream.close()
