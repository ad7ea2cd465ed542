"""Jars of a real ZooKeeper and a real Kafka, without an installation of either.

ZooKeeper comes with the pyspark package. Kafka's release is fetched by the Ivy that is in the same package,
once, into a cache outside of the tree:

    jar directory = pyspark_jars()            ZooKeeper, Ivy
    jar directory = kafka_jars("4.3.1")       everything that `kafka.Kafka` needs
    java          = require_java()            the program that runs them

Where Ivy looks, the first that is given: the environment variable AUTOTHROTTLE_MAVEN_REPOSITORY, a mirror of
`central` in Maven's own ~/.m2/settings.xml, Ivy's default, which is Maven Central.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

from autothrottle.core.errors import Missing, Unavailable

log = logging.getLogger(__name__)

MINIMUM_JAVA = 17
"""Spark 4, whose jars hold ZooKeeper, is compiled for it."""

REPOSITORY_VARIABLE = "AUTOTHROTTLE_MAVEN_REPOSITORY"
"""Environment variable: root of a Maven repository to fetch from."""

FETCH_SECONDS = 900.0
"""Deadline of one fetch; an ordinary one takes 45 to 100 s for about 100 jars, 55 MB."""

_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")

_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="repository"/>
  <resolvers><ibiblio name="repository" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""

# Without the log4j of Kafka 2, which stands in the way of reload4j and does not run on Java 17.
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
    """Return the path of a Java of at least version 17: that of JAVA_HOME, else the first on the PATH.

    Raises:
        Missing: there is none, or it is older.
    """
    fix = f"Fix: install Java >= {MINIMUM_JAVA} (Debian: openjdk-17-jre-headless) or set JAVA_HOME to one."
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise Missing(f"The lab runs a real ZooKeeper and Kafka, and there is no java {where}. {fix}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    version = _java_version(said)
    if version < MINIMUM_JAVA:
        raise Missing(f"{java} is version {version}, and the lab needs >= {MINIMUM_JAVA}. {fix}")
    return Path(java)


def _java_version(said: str) -> int:
    """Return the major version that `java -version` says, 0 if it says none.

    >>> _java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> _java_version('java version "1.8.0_402"')
    8
    """
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


def pyspark_jars() -> Path:
    """Return the directory of pyspark's jars, which hold ZooKeeper and Ivy.

    Raises:
        Missing: pyspark is not installed, or without its jars.
    """
    fix = "Fix: pip install 'autothrottle[lab]'."
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Missing(f"ZooKeeper and Ivy are taken from the pyspark package, which is not installed. {fix}")
    jars = Path(spec.origin).parent / "jars"
    if not any(jars.glob("zookeeper-3*.jar")) or not any(jars.glob("ivy-*.jar")):
        raise Missing(f"{jars} holds no zookeeper-3*.jar or no ivy-*.jar; pyspark >= 4 does. {fix}")
    return jars


def cache_directory() -> Path:
    """Return where fetched jars are kept: $XDG_CACHE_HOME/autothrottle, else ~/.cache/autothrottle."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "autothrottle"


def kafka_jars(version: str) -> Path:
    """Return the directory of the jars of a Kafka release, fetched when it is not there yet.

    Any number of processes may call it at once: one fetches, the others wait. The directory appears whole or
    not at all; what a broken fetch has got so far is used by the next.

    Raises:
        Missing: no Java, or no pyspark.
        Unavailable: the jars could not be fetched; says from where and why.
    """
    jars = _directory(version)
    parent = jars.parent
    if not jars.is_dir():
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / f"kafka-{version}.lock"):
            if not jars.is_dir():
                _fetch(version, jars)
    return jars


def has_kafka_jars(version: str) -> bool:
    """Return whether the jars of a Kafka release are there, so that nothing has to be fetched."""
    return _directory(version).is_dir()


def _directory(version: str) -> Path:
    return cache_directory() / "jars" / f"kafka-{version}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(version: str, jars: Path) -> None:
    repository, said_by = _repository()
    log.info("Fetching the jars of Kafka %s from %s into %s: 1 to 2 minutes, once.", version, said_by, jars)
    downloads = jars.parent / f"ivy-{version}"  # of this release only: another may be fetched at the same time
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as scratch:
        work = Path(scratch)
        root = f" root={quoteattr(repository)}" if repository else ""
        (work / "settings.xml").write_text(_IVY_SETTINGS.format(root=root))
        (work / "ivy.xml").write_text(_IVY_MODULE.format(version=version))
        _run_ivy(work, downloads, f"The jars of Kafka {version} could not be fetched from {said_by}")
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
        f"Fix: let this machine reach the repository, or set {REPOSITORY_VARIABLE} to the root of one that "
        "it reaches (a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...')."
    )
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{problem} within {FETCH_SECONDS:.0f} s. {fix}") from None
    if done.returncode != 0 or not any(work.glob("jars/kafka_2.13-*.jar")):
        raise Unavailable(f"{problem}. {fix}\nIvy says: {_reasons(done.stdout + done.stderr)}")


def _reasons(said: str) -> str:
    """Return the lines in which Ivy names what went wrong, without credentials."""
    lines = [line.strip() for line in said.splitlines()]
    told = [line for line in lines if re.search(r"not found|WARN|ERROR|Exception|FAILED|refused|unknown", line, re.I)]
    return _CREDENTIALS.sub("", "\n".join((told or lines)[:12]))


def _repository() -> tuple[str, str]:
    """Return the root of the repository ("" is Ivy's default) and the words that say who chose it."""
    if chosen := os.environ.get(REPOSITORY_VARIABLE, ""):
        return chosen, f"the repository in {REPOSITORY_VARIABLE}"
    settings = Path.home() / ".m2" / "settings.xml"
    if mirror := _mirror_of_central(settings):
        return mirror, f"the mirror in {settings}"
    return "", "Maven Central"


def _mirror_of_central(settings: Path) -> str:
    """Return the address of the first mirror that stands in for `central` in Maven's settings, "" if none."""
    try:
        tree = ElementTree.parse(settings)
    except (OSError, ElementTree.ParseError):
        return ""
    for mirror in tree.iterfind(".//{*}mirror"):
        covered = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        if covered & {"*", "external:*", "central"} and "!central" not in covered:
            return (mirror.findtext("{*}url") or "").strip()
    return ""
