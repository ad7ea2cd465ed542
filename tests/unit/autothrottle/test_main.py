"""The command line: exit statuses, usage errors with their fix, and signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from autothrottle import __version__
from autothrottle.__main__ import main
from autothrottle.runtime.command_line import help_text
from tests.builders import AT_ONCE, SERVER_SECONDS
from tests.paths import ROOT

COMMANDS = ("run", "check", "discovery", "metrics", "planner", "applier", "admin", "gateway", "uninstall")
SECONDS = 60
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}
SCENARIO = ROOT / "deploy" / "scenario.toml"


pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail with status 2; return its standard error."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in its own process."""
    command: Sequence[str] = [sys.executable, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program in its own process, since it configures logging."""
    return python("-m", "autothrottle", *arguments, **environment)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("runn",), "unknown command 'runn'; did you mean `autothrottle run`?\n"),
        (("DISCOVERY",), "unknown command 'DISCOVERY'; did you mean `autothrottle discovery`?\n"),
        (("simulat", "x"), "unknown command 'simulat'; did you mean `autothrottle simulate`?\n"),
        (("--interval", "5"), "unknown command '--interval'\n"),
        ((), "missing command\n"),
    ],
)
def test_an_unknown_command_is_named_with_the_nearest_one_and_all_are_listed(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    output = refused(capsys, *arguments)
    assert output.startswith(expected)
    for command in COMMANDS:
        assert f"\n  {command} " in output


@pytest.mark.parametrize(
    "arguments", [("--version",), ("-version",), ("version",), *((c, "--version") for c in COMMANDS)]
)
def test_the_version_is_printed(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr() == (f"{__version__}\n", "")


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("help",)])
def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert all(f"\n  {command} " in output.out for command in (*COMMANDS, "demo"))


@pytest.mark.parametrize("command", [*COMMANDS, "completion"])
def test_every_command_prints_its_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main((command, "--help")) == 0
    assert capsys.readouterr() == (f"{help_text(command)}\n", "")


def test_completion_prints_the_script_of_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("completion", "bash")) == 0
    script = capsys.readouterr().out
    assert "complete -o" in script and all(option in script for option in ("--from-cluster", "--kafka", "--anew"))


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("bsh",), "did you mean `autothrottle completion bash`?"),
        (("powershell",), "give one of them"),
        ((), "give one of them"),
    ],
)
def test_completion_without_a_known_shell_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], fix: str
) -> None:
    output = refused(capsys, "completion", *arguments)
    assert output == f"completion needs one shell of bash, zsh, fish. Fix: {fix}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_all_invalid_options_are_reported_at_once_with_their_values_and_the_fix(
    capsys: pytest.CaptureFixture[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTHROTTLE_CLEANUP_AFTER", "0")
    output = refused(capsys, command, "--interval", "0", "-min-rate=-1", "--intervall=5", "--cap-map", "{x", "stray")
    for name, value in (("interval", "0"), ("min-rate", "-1"), ("cap-map", "{x"), ("cleanup-after", "0")):
        (line,) = [line for line in output.splitlines() if line.strip(" -").startswith(name)]
        assert value in line, line
    assert "AUTOTHROTTLE_CLEANUP_AFTER" in output
    assert "did you mean --interval?" in output
    assert "'stray' does not belong to a flag" in output


@pytest.mark.parametrize("command", ["run", "metrics"])
def test_commands_that_use_datadog_need_both_keys(capsys: pytest.CaptureFixture[str], command: str) -> None:
    output = refused(capsys, command, "--metrics-source", "datadog")
    assert "api-key" in output and "app-key" in output and "AUTOTHROTTLE_API_KEY" in output
    output = refused(capsys, command, "--api-key", "secret-1")
    assert "app-key" in output and "secret-1" not in output


def test_invalid_client_properties_are_refused_without_showing_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=hush\n")
    commands = ("discovery", "applier", "run", "uninstall")
    program = (
        "import sys; from autothrottle.__main__ import main; "
        f"print([main([command, *sys.argv[1:]]) for command in {commands}])"
    )
    flags = ["--kafka-native-mode", f"--kafka-client-config={file}"]
    ended = python("-c", program, *flags, **KEYS)
    assert ended.stdout == "[2, 2, 2, 2]\n"
    errors = [line for line in ended.stderr.splitlines() if "ERROR sasl.jaas.config is not" in line]
    assert len(errors) == 4 and all("Fix: give org.apache.kafka" in line for line in errors)
    assert "hush" not in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("command", "absent", "extra"),
    [("score", "numpy", "score"), pytest.param("demo", "rich", "lab", marks=pytest.mark.repeat)],
)
def test_a_command_without_its_extra_names_the_extra(command: str, absent: str, extra: str) -> None:
    """The README installs the services without the libraries of `score`, which then ended with a traceback."""
    program = (
        f"import sys; sys.modules[{absent!r}] = None; "
        f"from autothrottle.__main__ import main; sys.exit(main([{command!r}, '--help']))"
    )
    ended = python("-c", program)
    assert ended.returncode == 1
    expected = (
        f"autothrottle {command}: {absent} is not installed. Fix: install autothrottle with the extra `{extra}`\n"
    )
    assert (ended.stdout, ended.stderr) == ("", expected)


def test_without_java_the_scorer_reports_the_missing_java(tmp_path: Path) -> None:
    places = ("--decisions", "viewfs://elsewhere/log", "--out", str(tmp_path / "out"))
    ended = process("score", *places, JAVA_HOME="/nowhere")
    assert ended.returncode == 1
    assert "Spark cannot start: " in ended.stderr and "Fix: it needs Java >= 17" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_interrupted_command_ends_with_status_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that are not services, such as `simulate`, ended with the traceback of a KeyboardInterrupt."""
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        assert main(["simulate", str(SCENARIO)]) == 130
    finally:
        interrupt.cancel()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [("run", "--help"), *(pytest.param((option,), marks=pytest.mark.repeat) for option in ("--help", "--version"))],
)
def test_a_closed_pipe_ends_with_status_141_and_no_traceback(arguments: tuple[str, ...]) -> None:
    """`autothrottle run --help | true` printed an ignored exception and ended with status 120."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "autothrottle", *arguments]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    "program",
    [
        "autothrottle --version",
        pytest.param("autothrottle_client.throttlectl completion bash", marks=pytest.mark.repeat),
    ],
)
def test_a_closed_standard_output_gives_no_traceback(program: str) -> None:
    command = f'exec "$0" -m {program} >&-'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_address_in_use_fails_and_names_the_fix() -> None:
    """The metrics service opens no other connection, so this test needs no ZooKeeper."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = process("metrics", f"--listen={address}", **KEYS)
    assert ended.returncode == 1
    # gRPC's own line comes through a pipe, before or after ours.
    (error,) = (line for line in ended.stderr.splitlines() if " ERROR " in line)
    assert f"Metrics cannot listen on {address}" in error
    assert "Fix: stop the program that holds it, or choose another with --listen" in error
    assert "Traceback" not in ended.stderr


def test_sigterm_ends_a_service_with_status_0() -> None:
    command = [sys.executable, "-m", "autothrottle", "metrics", "--listen=127.0.0.1:0", "--metrics-source=none"]
    with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            assert "Metrics source: none. It does not see any load" in running.stderr.readline()
            assert "Metrics listens on 127.0.0.1:" in running.stderr.readline()
            running.terminate()
            assert running.wait(SECONDS) == 0
            assert "Stopping" in running.stderr.read()
        finally:
            running.kill()


def test_sigterm_during_the_start_ends_a_service_at_once_with_status_0() -> None:
    """It waited 15 s for its first answer from a frozen ZooKeeper, and then 10 s to close the connection."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        flag = f"--zk-addr=127.0.0.1:{frozen.getsockname()[1]}"
        with subprocess.Popen([sys.executable, "-m", "autothrottle", "planner", flag]) as running:
            connection, _ = frozen.accept()
            start = time.monotonic()
            running.terminate()
            assert running.wait(SECONDS) == 0
            assert time.monotonic() - start < AT_ONCE + SERVER_SECONDS
            connection.close()


def test_a_failed_planner_ends_its_process_with_status_1() -> None:
    program = (
        "import sys; from autothrottle import __main__ as m; "
        "m._SERVICES['planner'] = lambda composition: composition.on_failure(); sys.exit(m.main(['planner']))"
    )
    ended = python("-c", program)
    assert ended.returncode == 1, ended.stderr


@pytest.mark.parametrize("command", ["discovery", pytest.param("planner", marks=pytest.mark.repeat)])
def test_a_service_that_needs_zookeeper_logs_two_lines_with_the_address_and_fails(command: str) -> None:
    """It logged eleven lines: ten warnings of kazoo without the address, then the error."""
    program = (
        "import sys; from datetime import timedelta; from autothrottle.composition import state; "
        "from autothrottle.__main__ import main; state._CONNECT_TIMEOUT = timedelta(seconds=2); "
        f"sys.exit(main([{command!r}, '--zk-addr=127.0.0.1:1', '--session-timeout=1']))"
    )
    ended = python("-c", program)
    waiting, line = ended.stderr.splitlines()
    assert waiting.endswith("WARNING Waiting for ZooKeeper at 127.0.0.1:1 ...")
    assert "ERROR No ZooKeeper server of '127.0.0.1:1' answers within 2 s; check --zk-addr" in line
    assert ended.returncode == 1


def test_a_service_without_zookeeper_logs_one_warning_and_works() -> None:
    """Metrics and gateway use ZooKeeper only for the list of members."""
    flags = ["--listen=127.0.0.1:0", "--metrics-source=none", "--zk-addr=127.0.0.1:1", "--session-timeout=1"]
    command = [sys.executable, "-m", "autothrottle", "metrics", *flags]
    with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            assert "Metrics source: none. It does not see any load" in running.stderr.readline()
            assert "Metrics listens on 127.0.0.1:" in running.stderr.readline()
            warning = running.stderr.readline().strip()
            assert warning.endswith(
                "WARNING ZooKeeper (127.0.0.1:1) does not answer: this process is not registered as a member"
            )
            running.terminate()
            assert running.wait(SECONDS) == 0
            (last,) = running.stderr.read().splitlines()
            assert last.endswith("Stopping")
        finally:
            running.kill()


def test_the_gateway_logs_its_page_and_address_and_sigterm_ends_it_with_status_0() -> None:
    command = [sys.executable, "-m", "autothrottle", "gateway", "--admin-addr=127.0.0.1:1", "--api-listen=localhost:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            # The health check of admin may warn first.
            line = next(line for line in running.stderr if "Page: " in line)
            address = next(running.stderr).strip().partition("Admin API: ")[2]
            assert line.strip().endswith(f" Page: http://{address}/")
            with urllib.request.urlopen(f"http://{address}/api", timeout=SECONDS) as page:
                assert b"/v1/overrides" in page.read()
            running.terminate()
            assert running.wait(SECONDS) == 0
            output = running.stderr.read()
            assert "Stopping" in output and "Traceback" not in output
        finally:
            running.kill()


def test_an_http_address_in_use_fails_and_names_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = process("gateway", "--admin-addr=127.0.0.1:1", f"--api-listen={address}")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert f"ERROR Gateway cannot listen on {address}" in last and "--api-listen" in last
    assert "Traceback" not in ended.stderr


def test_an_unknown_environment_variable_gives_a_warning_without_its_value() -> None:
    ended = process("discovery", "--kafka-client-config=/no/such/file", AUTOTHROTTLE_INTERVALL="hush")
    assert ended.returncode == 2
    assert "ERROR kafka-client-config '/no/such/file' cannot be read: No such file or directory" in ended.stderr
    assert "WARNING Environment variable AUTOTHROTTLE_INTERVALL is unknown and ignored" in ended.stderr
    assert "did you mean AUTOTHROTTLE_INTERVAL?" in ended.stderr and "hush" not in ended.stderr
