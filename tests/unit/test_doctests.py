"""The examples in docstrings are correct."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.paths import ROOT

MODULES = sorted(
    ".".join(path.relative_to(root).with_suffix("").parts)
    for root in (ROOT / "services", ROOT / "clients")
    for path in root.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_doctests_of_a_module_pass(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_worked_example_of_a_page_is_correct() -> None:
    results = doctest.testfile(str(ROOT / "docs/capacity.md"), module_relative=False, encoding="utf-8")
    assert results.attempted > 10
    assert results.failed == 0
