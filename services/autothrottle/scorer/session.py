"""The Spark session that the scorer works in."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.app.name": "autothrottle score",
    # What is skipped is counted by the scorer itself.
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # The name of a cluster may look like a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
}

_TASKS_PER_CORE = 4


def open_session(master: str = "", **settings: str) -> SparkSession:
    """Return a session; what spark-submit, or the caller, has set already stays.

    Args:
        master: as Spark knows it; "" is what spark-submit says, `local[*]` without it.
        settings: further ones; `_` in a name stands for a dot.
    """
    configuration = SparkConf()
    where = master or str(configuration.get("spark.master", "local[*]"))
    wanted = {"spark.master": where, **_SETTINGS, **{k.replace("_", "."): v for k, v in settings.items()}}
    if where.startswith("local"):
        cores = os.cpu_count() or 1
        wanted = {**_LOCAL, "spark.sql.shuffle.partitions": str(_TASKS_PER_CORE * cores), **wanted}
    for name, value in wanted.items():
        if name == "spark.master" or not configuration.contains(name):
            configuration.set(name, value)
    session = SparkSession.builder.config(conf=configuration).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def location(uri: str, spark: SparkSession) -> str:
    """Return a place as Hadoop knows it: a path without scheme is a local one where Spark runs locally."""
    if "://" in uri or uri.startswith("file:"):
        return uri.rstrip("/")
    is_local = str(spark.sparkContext.master).startswith(("local", "spark://127.0.0.1", "spark://localhost"))
    return Path(uri).absolute().as_uri() if is_local else uri.rstrip("/")
