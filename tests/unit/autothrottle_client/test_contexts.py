"""Contexts of `throttlectl`: one cluster each, from a file."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from autothrottle_client.commands import CommandCall
from autothrottle_client.contexts import read_contexts
from autothrottle_client.errors import Invalid, Missing
from autothrottle_client.throttlectl import call_of, main, make_parser

pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the contexts `prod`, which has a token, and `test`, which has none."""
    token = tmp_path / "token"
    token.write_text("token-of-prod\n")
    path = tmp_path / "contexts.toml"
    path.write_text(
        f'[prod]\nadmin-addr = "prod1:8090,prod2:8090"\ntoken-file = "{token}"\n[test]\naddr = "test:8090"\n'
    )
    monkeypatch.setenv("AUTOTHROTTLE_CONTEXTS", str(path))
    return path


def call(*arguments: str) -> CommandCall:
    read: Namespace = make_parser().parse_args(arguments)
    found = call_of(read)
    found.admin.close()
    return found


def addresses(found: CommandCall) -> tuple[str, ...]:
    return tuple(found.admin._replicas.addresses)


def test_a_context_gives_address_and_token(file: Path) -> None:
    found = call("--context", "prod", "state")
    assert (addresses(found), found.token) == (("prod1:8090", "prod2:8090"), "token-of-prod")


def test_a_variable_chooses_a_context_and_a_flag_beats_both(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTHROTTLE_CONTEXT", "test")
    assert addresses(call("state")) == ("test:8090",)
    assert addresses(call("state", "--context=prod")) == ("prod1:8090", "prod2:8090")
    assert addresses(call("state", "--context=prod", "--addr=other:1")) == ("other:1",)


def test_no_token_of_the_environment_is_sent_to_the_cluster_of_a_context(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables may belong to another cluster."""
    monkeypatch.setenv("AUTOTHROTTLE_TOKEN", "token-of-the-environment")
    monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", "environment:1")
    found = call("--context=test", "state")
    assert (addresses(found), found.token) == (("test:8090",), "")
    assert call("state").token == "token-of-the-environment"


def test_contexts_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "list"]) == 0
    assert capsys.readouterr().out == "prod  prod1:8090,prod2:8090\ntest  test:8090\n"
    assert main(["context", "list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["contexts"][1] == {"context": "test", "addr": "test:8090"}


def test_an_unknown_context_is_missing_and_known_ones_are_named(file: Path) -> None:
    with pytest.raises(Missing, match=r"no context 'stage': it has prod, test; add a table \[stage\]"):
        call("--context=stage", "state")


def test_without_a_file_there_are_no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTHROTTLE_CONTEXTS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_contexts().values == {}
    assert read_contexts().path == tmp_path / "autothrottle" / "contexts.toml"
    with pytest.raises(Missing, match="it has none"):
        call("--context=prod", "state")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[prod", "cannot be read"),
        ("prod = 1", "'prod' in .* has no admin-addr"),
        ("[prod]\ntls-ca = 'a'", "'prod' in .* has no admin-addr"),
        ("[prod]\naddr = 'a:1'\ntoken = 'secret'", "'token' of context 'prod' .* not valid; give texts for admin-addr"),
        ("[prod]\naddr = 7", "'addr' of context 'prod' .* not valid"),
        ("[prod]\naddr = 'a'", "context 'prod' in .*: "),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(Invalid, match=message) as raised:
        read_contexts()
    assert "secret" not in str(raised.value)
