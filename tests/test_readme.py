"""The README says what is there: options and their defaults, make targets, paths, examples that are accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from autothrottle.__main__ import main
from autothrottle.lab.jars import REPOSITORY_VARIABLE
from autothrottle.lab.scenario_file import read_scenario
from autothrottle.lab.simulate import configure
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.options import OPTIONS
from autothrottle.scorer.command import make_parser as make_score_parser
from autothrottle.v1 import admin_pb2, planner_pb2
from autothrottle_client import AdminClient, Cycle
from autothrottle_client.command_line import make_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}
FOREIGN_FLAGS = {
    "json",
    "alter",
    "bootstrap-server",
    "delete-config",
    "entity-name",
    "entity-type",
    "now",
    "millions",
    "throttle",
    "addr",
    "etag",
    "expires",
    "limit",
    "all",
    "autoremove",
    "broker",
    "output",
    "timeout",
    "no-wait",
    "within",
    "stop",
    "max-ratio",
    "dry-run",
    "clear",
    "reason",
    "first",
    "count",
    "stories",
    "out",
    "master",
    "ratio",
    "anew",
    "deploy-mode",
    "plot",
    "from-cluster",
    "from-decisions",
    "seeds",
    "searches",
    "record",
    "reassignment",
    "policies",
    "runs",
    "fetch-kilobytes",
    "megabytes",
    "quiet",
    "second",
    "uneven",
    "whole",
}
"""Of the demo, simulations, scorer, spark-submit, systemctl, Kafka's tools, throttlectl, chaos, benches and tests."""


def section(title: str) -> str:
    """The text of one section, without its title."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of the tables in a text that begin with code."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]


def blocks(language: str) -> list[str]:
    """The contents of the code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """The words of all command lines, continued lines joined."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_the_table_has_every_option_with_its_default_and_range() -> None:
    table = {name.strip("`"): (default.strip("`"), range) for name, default, range, _ in rows(section("Options"))}
    assert table == {f"--{o.name}": (o.default, o.range) for o in OPTIONS.values()}


def test_every_flag_and_variable_in_the_text_exists() -> None:
    flags = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", README)) - FOREIGN_FLAGS - {"name"}
    variables = set(re.findall(r"AUTOTHROTTLE_[A-Z_]+", README)) - {REPOSITORY_VARIABLE, "AUTOTHROTTLE_NAME"}
    assert flags == OPTIONS.keys()
    assert variables <= {o.variable for o in OPTIONS.values()}
    assert variables >= KEYS.keys()


def test_every_make_target_in_the_text_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "install", "check", "test", "bench", "proto"} <= named <= targets


def test_every_path_of_the_map_exists() -> None:
    cells = rows(section("Map"))
    paths = [path for row in cells for path in re.findall(r"`([^`]+)`", row[0])]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = [(row[0], name) for row in cells for name in re.findall(r"`(\w+\.py)`", row[1])]
    assert modules
    assert [m for m in modules if not (ROOT / m[0].strip("`") / m[1]).exists()] == []


def test_every_service_is_in_the_map() -> None:
    packages = {p.parent.name for p in (ROOT / "services" / "autothrottle").glob("*/__init__.py")}
    assert packages == set(re.findall(r"`services/autothrottle/(\w+)`", section("Map")))


def test_the_example_files_are_accepted_without_a_warning(tmp_path: Path) -> None:
    examples = [*blocks("toml"), (ROOT / "deploy" / "autothrottle.toml").read_text()]
    assert len(examples) == 2
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        configuration = parse(["--config", str(path)], KEYS)
        assert configuration.warnings == ()
        assert configuration.capacities.by_instance_type["d2.4xlarge"].rx == 200_000_000


def test_what_the_example_file_has_commented_out_is_the_default(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "autothrottle.toml").read_text()
    path = tmp_path / "all.toml"
    # All but the addresses of single services, which have no default.
    settings = re.findall(r"^# ((?!\w+-addr)[a-z-]+ = .*?)(?:$| {2,})(.*)$", text, re.MULTILINE)
    assert len(settings) > 15
    path.write_text("".join(f"{setting}\n" for setting, note in settings if "default: none" not in note))
    assert parse(["--config", str(path)], KEYS) == parse([], KEYS)


def test_the_commands_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toml,) = blocks("toml")
    (tmp_path / "autothrottle.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    variables = KEYS | {"AUTOTHROTTLE_CONFIG": "autothrottle.toml"}
    found = [words[1:] for words in commands() if words and words[0] == ".venv/bin/autothrottle"]
    assert len(found) == 11
    for command, *flags in found:
        if command == "simulate":
            scenario, *flags = flags
            assert flags[-2] == "--plot"
            assert configure(read_scenario(ROOT / scenario), flags[:-2], {}).interval.total_seconds() == 30
            continue
        if command == "score":
            assert make_score_parser().parse_args(flags).out
            continue
        assert main([command, "--help"]) == 0
        assert parse([flag for flag in flags if flag != "&"], variables).addresses.listen


def test_the_commands_of_throttlectl_are_accepted() -> None:
    lines = [words for words in commands() if any(word.endswith(".venv/bin/throttlectl") for word in words)]
    assert len(lines) >= 15
    for words in lines[:-1]:
        assert make_parser().parse_args(words[1:]).command == words[1]
    assert lines[-1] == ["source", "<(.venv/bin/throttlectl", "completion", "bash)"]


def test_what_python_calls_of_the_client_exists() -> None:
    (example,) = blocks("python")
    compile(example, "README.md", "exec")
    calls = set(re.findall(r"admin\.(\w+)\(", example))
    assert calls == {"set_override", "watch_cycles"} <= set(dir(AdminClient))
    fields = set(re.findall(r"cycle\.(\w+)", example))
    assert fields and fields <= set(Cycle.__dataclass_fields__)


def test_the_services_listen_where_the_example_file_looks_for_them() -> None:
    (toml,) = blocks("toml")
    looked_for = set(re.findall(r'"(127\.0\.0\.1:\d+)"', toml))
    listening = {words[3] for words in commands() if words[2:3] == ["--listen"]}
    assert looked_for == listening


def test_what_grpcurl_sends_fits_the_protos() -> None:
    calls = [words for words in commands() if words and words[0] == "grpcurl"]
    assert [words[-1] for words in calls[:1]] == ["list"]
    for words in calls[1:]:
        service, _, method = words[-1].rpartition("/")
        body = words[words.index("-d") + 1] if "-d" in words else "{}"
        file = admin_pb2 if service.endswith("AdminService") else planner_pb2
        assert method in file.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name
        request: Message = json_format.Parse(body, getattr(file, f"{method}Request")())
        # In proto JSON's own spelling: camelCase, int64 as a string.
        assert json_format.MessageToDict(request) == json.loads(body)


def test_the_copied_files_exist_and_the_unit_uses_them() -> None:
    sources = [words[1] for words in commands() if words and words[0] == "cp"]
    named = {ROOT / path for path in re.findall(r"`(deploy/[\w.-]+)`", README)}
    assert {ROOT / source for source in sources} | named == set((ROOT / "deploy").iterdir())
    unit = (ROOT / "deploy" / "autothrottle.service").read_text()
    assert "/opt/autothrottle/bin/autothrottle run --config /etc/autothrottle/autothrottle.toml" in unit
    assert "EnvironmentFile=/etc/autothrottle/keys" in unit


def test_the_unit_may_write_where_the_examples_log_decisions() -> None:
    """All of the file system was read-only for the unit: with `decisions` as README has it no planner started."""
    unit = (ROOT / "deploy" / "autothrottle.service").read_text()
    assert "ProtectSystem=strict" in unit
    states = {f"/var/lib/{name}" for name in re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)}
    places = set(
        re.findall(r"/var/lib/[\w/-]+", README + OPTIONS["decisions"].example + OPTIONS["decisions-spool"].example)
    )
    assert places
    assert [place for place in places if not any(f"{place}/".startswith(f"{state}/") for state in states)] == []
