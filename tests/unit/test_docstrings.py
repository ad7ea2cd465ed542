"""The examples in docstrings are correct, and the names in them exist."""

from __future__ import annotations

import ast
import doctest
import importlib
import re

import pytest

from tests.paths import ROOT

SOURCES = {path: root for root in (ROOT / "services", ROOT / "clients") for path in root.rglob("*.py")}
"""Python file -> the root of its package."""

MODULES = sorted(
    ".".join(path.relative_to(root).with_suffix("").parts)
    for path, root in SOURCES.items()
    if ">>> " in path.read_text("utf-8")
)

KAFKA_NAMES = {"max_poll_interval_ms", "retryTimeoutMs", "QuorumController", "MAX_RECORDS_PER_USER_OP", "standalone"}
JAVA_NAMES = {"java", "util", "Properties", "DefaultQuotaCallback", "Sanitizer"}
SYSTEM_NAMES = {"eval", "tcpi_bytes_received", "kernel", "sched_autogroup_enabled", "getpeercert"}
MADE_NAMES = {"brokerId", "efficiency_p10", "efficiency_p90"}
"""Fields of JSON, and columns whose names are put together."""


@pytest.mark.parametrize("name", MODULES)
def test_the_doctests_of_a_module_pass(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_worked_example_of_a_page_is_correct() -> None:
    results = doctest.testfile(str(ROOT / "docs/capacity.md"), module_relative=False, encoding="utf-8")
    assert results.attempted > 10
    assert results.failed == 0


def test_the_names_in_docstrings_exist() -> None:
    """After a renaming, a docstring still sent its reader to a module that was gone."""
    words = re.compile(r"[A-Za-z_]\w*")
    protos = " ".join(path.read_text("utf-8") for path in (ROOT / "proto").rglob("*.proto"))
    names = {*words.findall(protos), *KAFKA_NAMES, *JAVA_NAMES, *SYSTEM_NAMES, *MADE_NAMES}
    places: dict[str, str] = {}
    for path in SOURCES:
        names.update(path.relative_to(ROOT).with_suffix("").parts)
        docstrings = set[ast.expr]()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):  # parents first
            match node:
                case ast.Expr(value=value):
                    docstrings.add(value)
                case ast.Constant(value=str(text)) if node in docstrings:
                    for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text):
                        places.setdefault(name, f"{path.relative_to(ROOT)}:{node.lineno}")
                case ast.Constant(value=str(text)):  # keys, options, Kafka's configs
                    names.update(words.findall(text))
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    names.add(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                    names.add(name)
    assert len(places) > 1_000
    assert not {name: place for name, place in places.items() if not names.issuperset(filter(None, name.split(".")))}
