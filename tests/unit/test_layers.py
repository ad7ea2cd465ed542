"""Rules on the source tree that import-linter cannot check."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.paths import ROOT

SERVICES, CLIENTS = ROOT / "services", ROOT / "clients"
PURE = ("core", "rate_limiters")
"""Packages and modules of the services that compute only."""
GENERATED = SERVICES / "autothrottle" / "v1"


def imported(source: str) -> Iterator[str]:
    """Yield the full name of every absolute import, also of those inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def is_foreign(name: str, package: str = "core") -> bool:
    """Whether a module belongs neither to a pure package nor to the standard library."""
    if name.startswith("autothrottle."):
        return not f"{name}.".startswith(f"autothrottle.{package}.")
    return name.split(".")[0] not in sys.stdlib_module_names


def classes(source: str) -> Iterator[str]:
    """Yield the name of every class, including private and nested ones."""
    blocks: list[ast.AST] = [ast.parse(source)]
    for node in blocks:  # statements alone: expressions, which have no classes, are nine of ten nodes
        if isinstance(node, ast.ClassDef):
            yield node.name
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            blocks += getattr(node, field, ())


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_only_itself_and_the_standard_library(package: str) -> None:
    path = SERVICES / "autothrottle" / package
    modules = sorted(path.rglob("*.py")) or [path.with_suffix(".py")]
    foreign = {path.name: [n for n in imported(path.read_text()) if is_foreign(n, package)] for path in modules}
    assert {name: names for name, names in foreign.items() if names} == {}


def test_a_foreign_import_inside_a_function_is_found() -> None:
    source = "import math\ndef f() -> None:\n    import yaml.nodes, autothrottle.core.throttles.plan\n"
    assert [name for name in imported(source) if is_foreign(name)] == ["yaml.nodes"]


def test_the_other_layers_are_foreign_to_core() -> None:
    assert is_foreign("autothrottle.v1.types_pb2")
    assert is_foreign("autothrottle.corepanel")
    assert is_foreign("autothrottle")


def test_no_two_classes_of_the_source_tree_share_a_name() -> None:
    """37 classes were defined in the client and again in the services, with other fields. Now a name has one class."""
    modules = [path for root in (SERVICES, CLIENTS) for path in root.rglob("*.py") if GENERATED not in path.parents]
    assert modules
    names = Counter(name for path in modules for name in classes(path.read_text("utf-8")))
    assert [name for name, count in names.items() if count > 1] == []


def test_private_and_nested_classes_are_found() -> None:
    source = "class _A:\n    class B: ...\ndef f() -> None:\n    class _A: ...\n"
    assert sorted(classes(source)) == ["B", "_A", "_A"]
