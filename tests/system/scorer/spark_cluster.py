"""Spark's own servers, started from the pyspark package, which has no scripts for that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pyspark

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    # With so little data, 200 tasks per stage, compilation and new plans at run time would take most of the time.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA,
}
_PATIENCE = 60.0


def spark_home(directory: Path) -> Path:
    """Make a home of Spark, below which its servers may write."""
    home = directory / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def environment(home: Path) -> Mapping[str, str]:
    """Return the variables of Spark's programs; their Python is that of the tests."""
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }


def submit_command(home: Path, **settings: str) -> list[str]:
    """Return the beginning of a call of spark-submit."""
    flags = [f"--conf={name}={value}" for name, value in (SETTINGS | settings).items()]
    return [str(home / "bin" / "spark-submit"), *flags]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} took longer than {_PATIENCE:g} s"
        time.sleep(0.05)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Server:
    """One JVM, whose output is in a file."""

    def __init__(self, command: list[str], home: Path, log: Path, **variables: str) -> None:
        """Start it, with further variables of the environment."""
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env={**environment(home), **variables},
                stdout=output,
                stderr=output,
                cwd=home,
                start_new_session=True,
            )

    def says(self, text: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return text in self.log.read_text()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class StandaloneCluster:
    """A master and two workers of one core each, which share the file system."""

    def __init__(self, directory: Path) -> None:
        """Choose the ports; the servers start in a `with` statement."""
        self.home, self._directory, self._stack = spark_home(directory), directory, ExitStack()
        self.port = free_port()
        self.workers: list[Server] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def executors(self) -> list[Path]:
        """Return the output of all executors so far."""
        return list(self._directory.glob("work-*/app-*/*/stderr"))

    def __enter__(self) -> StandaloneCluster:
        with ExitStack() as stack:
            place = ["--host", "127.0.0.1", "--webui-port", "0"]
            master = stack.enter_context(self._server("master.Master", "master", *place, "--port", str(self.port)))
            wait_until(lambda: accepts(self.port), "the start of the master")
            for number in (1, 2):
                size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / f"work-{number}")]
                server = self._server("worker.Worker", f"worker-{number}", *place, *size, self.master)
                self.workers.append(stack.enter_context(server))
            for worker in self.workers:
                wait_until(lambda worker=worker: worker.says("Successfully registered"), "the start of a worker")  # type: ignore[misc]
            assert master.process.poll() is None
            self._stack = stack.pop_all()
        return self

    def _server(self, name: str, log: str, *flags: str) -> Server:
        command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *flags]
        return Server(command, self.home, self._directory / f"{log}.log")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
