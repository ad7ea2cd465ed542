"""Jars of a real ZooKeeper and a real Kafka, without an installation of either, and archives of their classes.

The pyspark package contains ZooKeeper. It also contains Ivy, which downloads a Kafka release once into a cache outside
the source tree:

    jar directory = pyspark_jars()            ZooKeeper, Ivy
    jar directory = kafka_jars("4.3.1")       all jars that `kafka.Kafka` needs
    java          = require_java()            the program that runs them

With an archive of its loaded classes (AppCDS) a Java server starts in half of the CPU time. The archive is written
once: a server starts, stops, and Java dumps what it has loaded. Java ignores an archive that does not fit its version
or the jars.

Ivy uses the first of these repositories: the environment variable AUTOTHROTTLE_MAVEN_REPOSITORY, a mirror of `central`
in Maven's ~/.m2/settings.xml, Maven Central.
"""

import fcntl
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from autothrottle.core.errors import Missing, Unavailable
from autothrottle_lab.servers.processes import run_command, scratch_directory

log = logging.getLogger(__name__)

MINIMUM_JAVA = 17
"""Spark 4, whose jars contain ZooKeeper, needs this version."""

REPOSITORY_VARIABLE = "AUTOTHROTTLE_MAVEN_REPOSITORY"
"""Environment variable: root URL of the Maven repository to download from."""

FETCH_SECONDS = 900.0
"""Deadline of one download. It usually takes 45 to 100 s for about 100 jars, 55 MB."""

DUMP_SECONDS = 120.0
"""Limit of the time that a server takes to end when Java writes its archive of loaded classes."""

_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")

_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="repository"/>
  <resolvers><ibiblio name="repository" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""

# Excludes the log4j of Kafka 2, which conflicts with reload4j and does not run on Java 17.
_IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="autothrottle" module="kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default->runtime,master"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{version}" conf="default->runtime,master"/>
    <dependency org="org.slf4j" name="slf4j-reload4j" rev="1.7.36" conf="default->runtime,master"/>
    <exclude org="org.slf4j" module="slf4j-log4j12"/>
    <exclude org="log4j" module="log4j"/>
  </dependencies>
</ivy-module>
"""


def require_java() -> Path:
    """Return the path of Java 17 or newer: from JAVA_HOME if set, else the first on the PATH.

    Raises:
        Missing: Java does not exist, or it is too old.
    """
    fix = f"Fix: install Java >= {MINIMUM_JAVA} (Debian: openjdk-17-jre-headless) or set JAVA_HOME to one."
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise Missing(f"The lab needs Java for ZooKeeper and Kafka, but found no java {where}. {fix}")
    _, output = run_command([java, "-version"], within_seconds=60)
    version = _java_version(output)
    if version < MINIMUM_JAVA:
        raise Missing(f"{java} is version {version}, and the lab needs >= {MINIMUM_JAVA}. {fix}")
    return Path(java)


def _java_version(output: str) -> int:
    """Return the major version in the output of `java -version`; 0: not found.

    >>> _java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> _java_version('java version "1.8.0_402"')
    8
    """
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else 0


def pyspark_jars() -> Path:
    """Return the directory of pyspark's jars, which contain ZooKeeper and Ivy.

    Raises:
        Missing: pyspark is not installed, or its jars are missing.
    """
    fix = "Fix: pip install 'autothrottle[lab]'."
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Missing(f"The lab takes ZooKeeper and Ivy from the pyspark package, which is not installed. {fix}")
    jars = Path(spec.origin).parent / "jars"
    if not any(jars.glob("zookeeper-3*.jar")) or not any(jars.glob("ivy-*.jar")):
        raise Missing(f"{jars} lacks zookeeper-3*.jar or ivy-*.jar, which pyspark >= 4 has. {fix}")
    return jars


def cache_directory() -> Path:
    """Return the cache of downloaded jars: $XDG_CACHE_HOME/autothrottle, else ~/.cache/autothrottle."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "autothrottle"


def kafka_jars(version: str) -> Path:
    """Return the directory of the jars of a Kafka release; download them if necessary.

    Several processes may call it at once: one downloads, the others wait. The directory appears atomically. After a
    failed download, the next one reuses its partial results.

    Raises:
        Missing: Java or pyspark is missing.
        Unavailable: the download failed; the message has the repository and the reason.
    """
    jars = _directory(version)
    jars.parent.mkdir(parents=True, exist_ok=True)
    make_once(jars, lambda: _fetch(version, jars))
    return jars


def has_kafka_jars(version: str) -> bool:
    """Return whether the jars of a Kafka release are in the cache."""
    return _directory(version).is_dir()


def _directory(version: str) -> Path:
    return cache_directory() / "jars" / f"kafka-{version}"


def make_once(path: Path, make: Callable[[], object]) -> None:
    """Call `make` if the path does not exist. It must create the path; other processes that need the path wait."""
    if not path.exists():
        with path.with_name(f"{path.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists():
                make()


def class_archive_options(archive: Path, run_once: Callable[[Sequence[str], Path], None]) -> list[str]:
    """Return the Java options that use an archive; write it first if it does not exist.

    Args:
        archive: its path. Servers with other jars need another path.
        run_once: given Java options and an empty directory, starts a server and stops it by SIGTERM; raises
            TimeoutError if that fails.

    Returns:
        An empty list if Java could not write the archive. Kafka releases without KRaft have none, and a read-only
        directory gets none.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        make_once(archive, lambda: _write_archive(archive, run_once))
        return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []
    except OSError as error:
        log.info("Servers start without an archive of classes: %s", error)
        return []


def _write_archive(archive: Path, run_once: Callable[[Sequence[str], Path], None]) -> None:
    """Write the archive, or an empty file if that fails, so that later starts do not try again."""
    partial = archive.with_suffix(f".{os.getpid()}")
    with scratch_directory() as directory:
        try:
            run_once([f"-XX:ArchiveClassesAtExit={partial}"], directory)
        except TimeoutError as error:
            log.info("Servers start without an archive of classes: %s", error)
            partial.unlink(missing_ok=True)  # Java may have written a part of it
    if not partial.exists():
        partial.touch()
    partial.rename(archive)


def _fetch(version: str, jars: Path) -> None:
    repository, name = _repository()
    log.info("Downloading the jars of Kafka %s from %s to %s once: this takes 1 to 2 minutes.", version, name, jars)
    downloads = jars.parent / f"ivy-{version}"  # one per release: downloads of two releases may overlap
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as scratch:
        work = Path(scratch)
        root = f" root={quoteattr(repository)}" if repository else ""
        (work / "settings.xml").write_text(_IVY_SETTINGS.format(root=root))
        (work / "ivy.xml").write_text(_IVY_MODULE.format(version=version))
        _run_ivy(work, downloads, f"The jars of Kafka {version} could not be fetched from {name}")
        (work / "jars").rename(jars)
    shutil.rmtree(downloads, ignore_errors=True)


def _run_ivy(work: Path, downloads: Path, problem: str) -> None:
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    command = [
        *(str(require_java()), "-cp", str(ivy), "org.apache.ivy.Main"),
        *("-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"), "-cache", str(downloads)),
        *("-types", "jar", "bundle"),
        *("-retrieve", str(work / "jars" / "[artifact]-[revision].[ext]")),
    ]
    fix = (
        f"Fix: make the repository reachable, or set {REPOSITORY_VARIABLE} to the root of a reachable one "
        "(with a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...')."
    )
    try:
        status, output = run_command(command, FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{problem} within {FETCH_SECONDS:.0f} s. {fix}") from None
    if status != 0 or not any(work.glob("jars/kafka_2.13-*.jar")):
        raise Unavailable(f"{problem}. {fix}\nIvy says: {_reasons(output)}")


def _reasons(output: str) -> str:
    """Return the lines of Ivy's output that explain a failure, without credentials."""
    lines = [line.strip() for line in output.splitlines()]
    problems = [
        line for line in lines if re.search(r"not found|WARN|ERROR|Exception|FAILED|refused|unknown", line, re.I)
    ]
    return _CREDENTIALS.sub("", "\n".join((problems or lines)[:12]))


def _repository() -> tuple[str, str]:
    """Return the root URL of the repository ("": Ivy's default) and its name for messages."""
    if chosen := os.environ.get(REPOSITORY_VARIABLE, ""):
        return chosen, f"the repository in {REPOSITORY_VARIABLE}"
    settings = Path.home() / ".m2" / "settings.xml"
    if mirror := _mirror_of_central(settings):
        return mirror, f"the mirror in {settings}"
    return "", "Maven Central"


def _mirror_of_central(settings: Path) -> str:
    """Return the URL of the first mirror of `central` in Maven's settings; "": none."""
    try:
        tree = ElementTree.parse(settings)
    except (OSError, ElementTree.ParseError):
        return ""
    for mirror in tree.iterfind(".//{*}mirror"):
        covered = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        if covered & {"*", "external:*", "central"} and "!central" not in covered:
            return (mirror.findtext("{*}url") or "").strip()
    return ""
