"""The Spark session of the scorer."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import autothrottle
from autothrottle.core.errors import Unavailable
from autothrottle.core.texts import first_line

OF_SPARK = (PySparkException, Py4JJavaError)
"""The errors that Spark raises."""

_NEEDED = {
    # Folder names are UTC dates.
    "spark.sql.session.timeZone": "UTC",
    # A run overwrites some dates of a table and keeps all others.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # A cluster name may look like a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # As Arrow writes them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings that override every other source; without them scores are wrong or lost."""

_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"

_SETTINGS = {
    "spark.app.name": "autothrottle score",
    "spark.ui.showConsoleProgress": "false",
    # A row is a whole file, or the rows of a part.
    _BATCH: "16",
}

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    # Most plans and methods of a run execute once: optimising them costs more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Size of a shuffle task; the default is as small as 1 MB.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.shuffle.partitions": "64",
}


def open_session(master: str = "", remote: str = "", **settings: str) -> SparkSession:
    """Return a session with the settings of `configuration`, whose tasks can import this package.

    Args:
        master: Spark's master; "": from spark-submit, otherwise `local[*]`.
        remote: address of a Spark Connect server, `sc://host:port`; "": none.
        settings: additional settings; `_` in a name stands for a dot.

    Raises:
        Unavailable: Spark cannot start.
    """
    try:
        if remote:
            settings = _NEEDED | {_BATCH: _SETTINGS[_BATCH]} | {k.replace("_", "."): v for k, v in settings.items()}
            session = SparkSession.builder.remote(remote).config(map=dict(settings)).getOrCreate()
            _ship_package(session)
            return session
        conf = configuration(master, **settings)
        if str(conf.get("spark.master", "")).startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        if not str(session.sparkContext.master).startswith("local["):
            _ship_package(session)
        return session
    except (*OF_SPARK, ImportError, RuntimeError) as error:
        raise Unavailable(
            f"Spark cannot start: {reason(error)}. Fix: it needs Java >= 17 (JAVA_HOME), and a reachable --master "
            "or --remote"
        ) from None


def configuration(master: str = "", **settings: str) -> SparkConf:
    """Return Spark's settings. Values from spark-submit win, except for those that scores depend on.

    Args:
        master: Spark's master; "": from spark-submit, otherwise `local[*]`.
        settings: additional settings; `_` in a name stands for a dot.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # otherwise SparkConf lacks the settings of spark-submit
    configuration = SparkConf()
    where = master or str(configuration.get("spark.master", "local[*]"))
    defaults = {"spark.master": where, **_SETTINGS, **{k.replace("_", "."): v for k, v in settings.items()}}
    if where.startswith("local"):
        defaults = {**_LOCAL, **defaults}
    for name, value in defaults.items():
        if name == "spark.master" or not configuration.contains(name):
            configuration.set(name, value)
    for name, value in _NEEDED.items():
        configuration.set(name, value)
    return configuration


def reason(error: Exception) -> str:
    """Return the first line of an error of Spark or of Java."""
    return first_line(getattr(error, "java_exception", error))


_SHIPPED = ("__init__.py", "core", "adapters/__init__.py", "adapters/decision_log", "scorer")
"""What tasks import; they need pyarrow and numpy besides."""


def write_package(path: Path) -> None:
    """Write the modules that tasks import as a zip, for `--py-files`."""
    root = Path(autothrottle.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name in _SHIPPED:
            place = root / name
            for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                package.write(file, f"autothrottle/{file.relative_to(root)}")


def _ship_package(session: Any) -> None:
    if not Path(autothrottle.__file__).is_file():
        return  # it is in a zip, which spark-submit ships
    # Executors may fetch it as long as the job runs.
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    package = Path(directory) / "autothrottle.zip"
    write_package(package)
    if hasattr(session, "_jsparkSession"):
        session.sparkContext.addPyFile(str(package))
    else:
        session.addArtifacts(str(package), pyfile=True)
