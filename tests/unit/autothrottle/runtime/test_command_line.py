"""Help texts and completion show what each command uses."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from autothrottle import replay
from autothrottle.runtime.command_line import COMMANDS, SHELLS, completion_script, help_text, usage
from autothrottle.runtime.configuration import METRICS_SOURCES, OPTIONS
from autothrottle.runtime.configuration_reader import parse
from autothrottle.scorer import command as score
from autothrottle.scorer import compaction
from autothrottle_lab.demo import command as demo
from autothrottle_lab.simulate import command as simulate

PARSERS = {
    "demo": demo.make_parser(),
    "compact": compaction.make_parser(),
    "replay": replay.make_parser(),
    "score": score.make_parser(),
    "simulate": simulate.make_parser(),
}
CONFIGURED = [name for name, command in COMMANDS.items() if command.options]


def shown(text: str) -> list[str]:
    """The options that a help text describes, in order."""
    return re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("name", CONFIGURED)
def test_help_shows_purpose_own_options_in_groups_and_an_example(name: str) -> None:
    text, command = help_text(name), COMMANDS[name]
    assert text.startswith(f"Usage: autothrottle {name} {command.arguments}\n\n{command.purpose.capitalize()[:9]}")
    assert shown(text) == [option for option in OPTIONS if option in command.options]
    titles = re.findall(r"^([A-Z][A-Za-z ]+):$", text, re.MULTILINE)
    assert titles == [*dict.fromkeys(o.group for o in OPTIONS.values() if o.name in command.options), "Example"]
    assert text.splitlines()[-1].startswith(f"  autothrottle {name} {command.example[:2]}")


@pytest.mark.parametrize("name", CONFIGURED)
def test_help_describes_an_option_with_range_default_and_variable(name: str) -> None:
    text = " ".join(help_text(name).split())
    for option in (option for option in OPTIONS.values() if option.name in COMMANDS[name].options):
        assert f"{option.meaning}. Value: {option.range}. " in text
        assert f"[{option.variable}]" in text
        assert not option.default or f"Default: {option.default}." in text


@pytest.mark.parametrize("name", CONFIGURED)
def test_help_marks_required_options(name: str) -> None:
    blocks = re.split(r"^  --", help_text(name), flags=re.MULTILINE)[1:]
    required = {option for options in METRICS_SOURCES.values() for option in options} & COMMANDS[name].options
    assert {block.split()[0] for block in blocks if "Required with metrics-source" in block} == required


def test_a_service_shows_no_options_of_others() -> None:
    assert {"min-rate", "api-key", "discovery-poll", "listen", "zk-prefix"}.isdisjoint(shown(help_text("gateway")))
    assert {"api-listen", "api-tokens-file", "admin-addr", "zk-addr"} <= {*shown(help_text("gateway"))}
    assert {"zk-addr", "datadog-url", "cap-map"} <= {*shown(help_text("metrics"))}
    assert {"policy", "discovery-poll", "api-listen"}.isdisjoint(shown(help_text("metrics")))
    assert len({help_text(name).partition("General")[2] for name in CONFIGURED}) == len(CONFIGURED)


def test_every_option_is_used_by_a_command() -> None:
    assert frozenset().union(*(command.options for command in COMMANDS.values())) == OPTIONS.keys()


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_example_of_a_command_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("api-key", "app-key"):
        Path(key).write_text("secret")
    command = COMMANDS[name]
    words = shlex.split(command.example)[command.arguments.count("FILE") :]
    assert parse(words, {}, used=command.options).warnings == ()
    assert {word.strip("-") for word in words if word.startswith("--")} <= command.options


def test_usage_lists_the_commands_and_an_example() -> None:
    assert all(f"\n  {name} " in usage() for name in COMMANDS)
    assert "\nExample:\n  autothrottle run --" in usage()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_the_commands_and_their_options(shell: str) -> None:
    script = completion_script(shell, PARSERS)
    for word in (*COMMANDS, "session-timeout", "zookeeper", "adaptive", "kafka", "anew", "from-cluster"):
        assert word in script


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", {*COMMANDS}),
        ("un", {"uninstall"}),
        ("gateway --ap", {"--api-listen", "--api-tokens-file", "--api-hosts"}),
        (
            "metrics --ap",
            {"--api-key", "--api-key-file", "--app-key", "--app-key-file", "--api-tokens-file", "--api-hosts"},
        ),
        ("planner --policy ", {"adaptive", "headroom", "static"}),
        ("planner --shadow --log-f", {"--log-format"}),
        ("run --config auto", {"autothrottle.toml"}),
        ("completion ", {*SHELLS}),
        ("demo --", {"--help", "--kafka", "--decisions", "--json", "--keep"}),
        ("demo --json auto", {"autothrottle.toml"}),
        (
            "score --",
            {
                *("--help", "--decisions", "--out", "--format", "--catalog", "--master", "--remote", "--ratio"),
                *("--trace-url", "--no-advice", "--anew"),
            },
        ),
        ("replay --policy ", {"adaptive", "headroom", "static"}),
        ("compact --", {"--help", "--decisions", "--older-than"}),
        ("simulate auto", {"autothrottle.toml"}),
        ("simulate --plot auto", {"autothrottle.toml"}),
        ("simulate --from", {"--from-decisions", "--from-cluster"}),
        ("simulate --policy ", {"adaptive", "headroom", "static"}),
    ],
)
def test_bash_completes(typed: str, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "autothrottle.toml").touch()
    words = ["autothrottle", *typed.split(" ")]
    program = f"""
        {completion_script("bash", PARSERS)}
        COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
        _shtab_autothrottle autothrottle {shlex.quote(words[-1])} {shlex.quote(words[-2])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ended = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert {line.strip() for line in ended.stdout.splitlines()} == offered, ended.stderr
