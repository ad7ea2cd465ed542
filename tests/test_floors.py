"""What import-linter cannot say: `core` imports nothing but itself and the standard library."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "services" / "autothrottle" / "core"


def imported(source: str) -> Iterator[str]:
    """Yields the full name of every absolute import, wherever it stands in the source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def is_foreign(name: str) -> bool:
    """Whether a module is neither core's own nor in the standard library."""
    if name.startswith("autothrottle."):
        return not f"{name}.".startswith("autothrottle.core.")
    return name.split(".")[0] not in sys.stdlib_module_names


def test_core_imports_the_standard_library_and_itself_only() -> None:
    modules = sorted(CORE.rglob("*.py"))
    assert modules
    foreign = {path.name: [n for n in imported(path.read_text()) if is_foreign(n)] for path in modules}
    assert {name: names for name, names in foreign.items() if names} == {}


def test_a_foreign_import_is_seen_also_inside_a_function() -> None:
    source = "import math\ndef f() -> None:\n    import yaml.nodes, autothrottle.core.plan\n"
    assert [name for name in imported(source) if is_foreign(name)] == ["yaml.nodes"]


def test_the_other_floors_are_foreign_to_core() -> None:
    assert is_foreign("autothrottle.v1.types_pb2")
    assert is_foreign("autothrottle.corepanel")
    assert is_foreign("autothrottle")
