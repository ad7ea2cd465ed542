"""The example files of deploy/ and of the pages: options, paths of the unit, and that a page names each file."""

from __future__ import annotations

import re
from pathlib import Path

from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.configuration_reader import parse
from tests.pages import ALL_TEXT, code, commands
from tests.paths import ROOT

KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}


def test_example_files_are_accepted_without_a_warning(tmp_path: Path) -> None:
    contexts = code("toml", "docs/throttlectl.md")
    examples = [text for text in code("toml") if text not in contexts]
    examples.append((ROOT / "deploy" / "autothrottle.toml").read_text())
    assert len(examples) == 3
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        configuration = parse(["--config", str(path)], KEYS)
        assert configuration.warnings == ()
        if "[certificate-roles]" in text.splitlines():
            assert configuration.certificate_roles
            continue
        assert configuration.capacities.by_instance_type["d2.4xlarge"].inbound == 200_000_000


def test_commented_settings_of_the_example_file_are_the_defaults(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "autothrottle.toml").read_text()
    path = tmp_path / "all.toml"
    # All but the addresses of single services, which have no default.
    settings = re.findall(r"^# ((?!\w+-addr)[a-z-]+ = .*?)(?:$| {2,})(.*)$", text, re.MULTILINE)
    assert len(settings) > 15
    path.write_text("".join(f"{setting}\n" for setting, note in settings if "default: none" not in note))
    assert parse(["--config", str(path)], KEYS) == parse([], KEYS)


def test_services_listen_where_the_example_configuration_expects_them() -> None:
    (toml,) = (text for text in code("toml") if "planner-addr" in text)
    expected = set(re.findall(r'"(127\.0\.0\.1:\d+)"', toml))
    listening = {words[3] for words in commands() if words[2:3] == ["--listen"]}
    assert expected == listening


def test_every_deploy_file_is_named_and_the_unit_matches_the_commands() -> None:
    copied = {ROOT / words[1] for words in commands("cp") if words[1].startswith("deploy/")}
    named = {ROOT / path for path in re.findall(r"`(deploy/[\w./-]+)`", ALL_TEXT)}
    files = {path for path in (ROOT / "deploy").rglob("*") if path.is_file()}
    assert [path for path in files if (copied | named).isdisjoint({path, *path.parents})] == []
    assert all(path.exists() for path in copied | named)
    unit = (ROOT / "deploy" / "autothrottle.service").read_text()
    assert "/opt/autothrottle/bin/autothrottle run --config /etc/autothrottle/autothrottle.toml" in unit
    assert "EnvironmentFile=/etc/autothrottle/keys" in unit


def test_the_unit_may_write_where_the_examples_log_decisions() -> None:
    """The file system was read-only for the unit. With the documented `decisions`, no planner started."""
    unit = (ROOT / "deploy" / "autothrottle.service").read_text()
    assert "ProtectSystem=strict" in unit
    states = {f"/var/lib/{name}" for name in re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)}
    examples = OPTIONS["decisions"].example + OPTIONS["decisions-spool"].example
    places = set(re.findall(r"/var/lib/[\w/-]+", ALL_TEXT + examples))
    assert places
    assert [place for place in places if not any(f"{place}/".startswith(f"{state}/") for state in states)] == []
