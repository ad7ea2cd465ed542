"""Programs name the extra that they need."""

from __future__ import annotations

import sys

import pytest

from autothrottle.runtime import extras


@pytest.mark.parametrize(
    ("program", "argument", "extra"),
    [
        ("autothrottle", "--help", "service"),
        ("autothrottle", "run", "service"),
        ("autothrottle", "demo", "lab"),
        ("topicmappr", "version", "service"),
        ("metricsfetcher", "--help", "service"),
    ],
)
def test_a_program_without_its_extra_names_the_extra_in_one_line(
    program: str, argument: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """These programs imported kazoo or grpc_health first, and ended with a traceback without the extra `service`."""
    monkeypatch.setattr(sys, "argv", [program, argument])
    monkeypatch.setattr(extras, "import_module", lambda name: _import_without("kazoo.client"))
    assert getattr(extras, program)() == extras.EXIT_WITHOUT_EXTRA
    line = f"{program}: kazoo is not installed. Fix: install autothrottle with the extra `{extra}`\n"
    assert capsys.readouterr() == ("", line)


def _import_without(library: str) -> None:
    raise ModuleNotFoundError(name=library)
