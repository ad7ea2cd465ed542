"""Log lines begin with a capital letter."""

from __future__ import annotations

import re

import pytest

from tests.paths import ROOT

CALL = re.compile(r"\b(?:log|logger|audit_log)\.(?:debug|info|warning|error|exception|critical)\(\s*f?\"([^\"]*)")
NAMES = ("gRPC", "%", "/")
"""Lines may begin with a name of this spelling, a value or a path."""


@pytest.mark.parametrize("root", ["services", "clients"])
def test_log_lines_begin_with_a_capital(root: str) -> None:
    lines = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / root).rglob("*.py")
        for text in CALL.findall(path.read_text("utf-8"))
        if not text[:1].isupper() and not text.startswith(NAMES)
    ]
    assert lines == []
