"""The Spark session of the scorer, and access to its file systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from autothrottle.core.errors import Invalid, Unavailable

_OF_SPARK = (PySparkException, Py4JJavaError)

_NEEDED = {
    # The scorer itself counts skipped files.
    "spark.sql.files.ignoreCorruptFiles": "true",
    # Folder names are UTC dates.
    "spark.sql.session.timeZone": "UTC",
    # A run overwrites some dates of a table and keeps all others.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # A cluster name may look like a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""Settings that override every other source; without them scores are wrong or lost."""

_SETTINGS = {
    "spark.app.name": "autothrottle score",
    # The JVM interprets longer methods instead of compiling them.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    # Most plans and methods of a run execute once. Optimising them costs more than it saves: with 1,000,000 rows a
    # fifth or more of all CPU time. With 10,000,000 rows it would gain 7 %.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseParallelGC",
    # Size of a shuffle task; the default is as small as 1 MB.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}

_MOST_PARTITIONS = "64"
"""Number of shuffle partitions in local mode; Spark merges small ones."""


def open_session(master: str = "", **settings: str) -> SparkSession:
    """Return a session with the settings of `configuration`.

    Raises:
        Unavailable: Spark cannot start.
    """
    try:
        session = SparkSession.builder.config(conf=configuration(master, **settings)).getOrCreate()
    except _OF_SPARK as error:
        raise Unavailable(
            f"Spark cannot start: {_reason(error)}. Fix: it needs Java >= 17 (JAVA_HOME), and a reachable --master"
        ) from None
    session.sparkContext.setLogLevel("ERROR")
    return session


def configuration(master: str = "", **settings: str) -> SparkConf:
    """Return Spark's settings. Values from spark-submit win, except for those that scores depend on.

    Args:
        master: Spark's master; "": from spark-submit, otherwise `local[*]`.
        settings: additional settings; `_` in a name stands for a dot.
    """
    configuration = SparkConf()
    where = master or str(configuration.get("spark.master", "local[*]"))
    defaults = {"spark.master": where, **_SETTINGS, **{k.replace("_", "."): v for k, v in settings.items()}}
    if where.startswith("local"):
        defaults = {**_LOCAL, "spark.sql.shuffle.partitions": _MOST_PARTITIONS, **defaults}
    for name, value in defaults.items():
        if name == "spark.master" or not configuration.contains(name):
            configuration.set(name, value)
    for name, value in _NEEDED.items():
        configuration.set(name, value)
    return configuration


_HADOOP_SCHEMES = {"s3": "s3a", "gcs": "gs"}
"""Scheme of the planner's `--decisions`, in Arrow's names -> Hadoop's name of the same store."""


def hadoop_location(uri: str) -> tuple[str, dict[str, str]]:
    """Return the URI of an object store under Hadoop's name, and Hadoop's settings for its options.

    Options of Arrow without an effect on reading and writing files are left out.

    >>> hadoop_location("s3://bucket/log?endpoint_override=host:9000&scheme=http")[0]
    's3a://bucket/log'
    >>> hadoop_location("hdfs://nn:8020/log")
    ('hdfs://nn:8020/log', {})
    """
    scheme, mark, rest = uri.partition("://")
    place, _, query = rest.partition("?")
    if scheme not in _HADOOP_SCHEMES:
        return uri, {}
    options = dict(parse_qsl(query))
    bucket, settings = place.partition("/")[0], dict[str, str]()
    if endpoint := options.get("endpoint_override"):
        settings["endpoint"] = f"{options.get('scheme', 'https')}://{endpoint}"
        settings["path.style.access"] = str(options.get("force_virtual_addressing") != "true").lower()
    if region := options.get("region"):
        settings["endpoint.region"] = region
    prefix = f"fs.{_HADOOP_SCHEMES[scheme]}.bucket.{bucket}."
    return f"{_HADOOP_SCHEMES[scheme]}{mark}{place}", {prefix + name: value for name, value in settings.items()}


def location(uri: str, spark: SparkSession) -> str:
    """Return a location as a Hadoop path. Blanks in a path stay unescaped.

    The planner's name of an object store is accepted, too, unless Hadoop has a file system of that name. In local mode,
    a path without a scheme is a local path.

    Raises:
        Invalid: Hadoop has no file system for the location.
    """
    context: Any = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    is_local = str(spark.sparkContext.master).startswith(("local", "spark://127.0.0.1", "spark://localhost"))
    place = uri
    if "://" in uri and hadoop.get(f"fs.{uri.partition('://')[0]}.impl") is None:
        place, settings = hadoop_location(uri)
        for name, value in settings.items():
            hadoop.set(name, value)
    elif is_local and "://" not in uri and not uri.startswith("file:"):
        place = f"file://{Path(uri).absolute()}"
    place = place.rstrip("/")
    try:
        _file_system(spark, place)
    except _OF_SPARK as error:
        raise Invalid(
            f"{uri!r} cannot be reached: {_reason(error)}. "
            "Fix: add the store's Hadoop connector to Spark's jars, or name another location"
        ) from None
    return place


def _reason(error: Exception) -> str:
    """Return the first line of the Java error."""
    return str(getattr(error, "java_exception", error)).splitlines()[0]


def _file_system(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a location, and the location as Hadoop's Path."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path


def remove(spark: SparkSession, place: str) -> None:
    """Remove a directory recursively if it exists."""
    files, path = _file_system(spark, place)
    files.delete(path, True)


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Write a file; replaces an existing one, also a symbolic link, whose target stays as it is.

    Args:
        spark: the session; the file may be anywhere that Spark can write tables.
        place: Hadoop path of the file.
        text: its content.
    """
    files, path = _file_system(spark, place)
    files.setWriteChecksum(False)  # avoids the additional .crc file of local file systems
    files.delete(path, False)
    stream = files.create(path, False)
    try:
        stream.write(text.encode())
    finally:
        stream.close()
