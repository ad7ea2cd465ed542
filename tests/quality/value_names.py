"""Prints the share of bound names that are pronouns or participles, which say nothing about the value.

python -m tests.quality.value_names [--tree DIRECTORY] [--list]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WORDS = frozenset(
    "found one ones wanted known now ours left before held asked taken kept read seen here there".split()  # noqa: SIM905
)
CLOCK_CALLS = frozenset("now time time_ns monotonic clock _clock timestamp".split())  # noqa: SIM905
"""Calls whose result `now` may name: it is the current time."""


class BoundName(NamedTuple):
    """A name where the source binds it."""

    line: int
    name: str
    is_current_time: bool = False
    is_function: bool = False
    """Then `read` is a verb."""

    @property
    def is_word(self) -> bool:
        """Whether it is a pronoun or participle alone."""
        word = self.name.strip("_")
        return word in WORDS and not ((word == "now" and self.is_current_time) or (word == "read" and self.is_function))


def bound_names(tree: ast.AST) -> Iterator[BoundName]:
    """Yield every name of a variable, parameter, attribute, function or class where it is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from _of_target(target, _reads_clock(node))
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension | ast.NamedExpr):
            yield from _of_target(node.target, False)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from _of_target(node.optional_vars, False)
        elif isinstance(node, ast.arg):
            annotation = ast.unparse(node.annotation) if node.annotation else ""
            yield BoundName(node.lineno, node.arg, annotation in ("datetime", "float", "int"))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield BoundName(node.lineno, node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            returns = ast.unparse(node.returns) if not isinstance(node, ast.ClassDef) and node.returns else ""
            yield BoundName(node.lineno, node.name, returns in ("datetime", "float"), True)


def _of_target(target: ast.AST, is_current_time: bool) -> Iterator[BoundName]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield BoundName(node.lineno, node.id, is_current_time)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield BoundName(node.lineno, node.attr, is_current_time)


def _reads_clock(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return whether a value is the current time: a call of a clock, or a field annotated as a time."""
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "datetime":
        return True
    calls = [call.func for call in ast.walk(node.value) if isinstance(call, ast.Call)] if node.value else []
    names = [function.attr if isinstance(function, ast.Attribute) else ast.unparse(function) for function in calls]
    return any(name in CLOCK_CALLS for name in names)


def names_of_sources(tree: Path) -> Iterator[tuple[Path, BoundName]]:
    """Yield the names of services, clients and the lab, without generated code."""
    for root in ("services", "clients"):
        for path in sorted((tree / root).rglob("*.py")):
            if "_pb2" not in path.name:
                relative = path.relative_to(tree)
                for name in bound_names(ast.parse(path.read_text())):
                    yield relative, name


def main() -> int:
    """Print the number of names, the pronouns and participles among them, and their share."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.value_names", description=main.__doc__)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="checkout to count (default: this folder)")
    parser.add_argument("--list", action="store_true", help="also print file, line and name of each")
    arguments = parser.parse_args()
    names = list(names_of_sources(arguments.tree))
    words = [(path, name) for path, name in names if name.is_word]
    if arguments.list:
        print("\n".join(f"{path}:{name.line}: {name.name}" for path, name in words))
    print(
        f"{len(words)} of {len(names)} bound names are pronouns or participles: {100 * len(words) / len(names):.2f} %"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
