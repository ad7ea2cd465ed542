"""Mutation testing: draws mutants of the core, planner and adapters with a seed, and runs the unit tests on each.

A mutant is one small change: a comparison, an arithmetic or boolean operator, a number or a truth value. It is killed
when a test fails. A mutant is identified by the structure of its function, without names and docstrings. So the same
mutants can be found again after renames and moved files:

    python -m tests.quality.mutants --draw --seed 40 --count 40 --mutants build/mutants.json
    python -m tests.quality.mutants --run --mutants build/mutants.json --results build/mutants-results.json

`--tree` names the checkout to mutate; its files are restored after each mutant. `--tests` names the tests to run.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = ("autothrottle/core", "autothrottle/planner", "autothrottle/adapters", "autothrottle_lab/simulation")
"""Below services/. The simulation was part of core until it moved to the lab."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one place in the source."""

    module: str
    """The file that it was drawn from, for people; the search uses the fingerprint."""
    line: int
    fingerprint: str
    """Hash of the structure of its top-level function or class."""
    occurrence: int
    """Which of the definitions with this fingerprint, in the order of file names."""
    index: int
    """Which of the places in that definition, from 0."""


def places(definition: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a definition that can be mutated, in the order of the source."""
    decorators = {child for one in getattr(definition, "decorator_list", []) for child in ast.walk(one)}
    for node in ast.walk(definition):
        if node in decorators:
            continue
        is_number = isinstance(node, ast.Constant) and type(node.value) in (int, bool)
        if (
            is_number
            or isinstance(node, ast.BoolOp)
            or (isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS)
            or (isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS)
        ):
            yield node


def mutate(node: ast.AST) -> None:
    """Change a node in place."""
    if isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Compare):
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _OPERATORS[type(node.op)]()


class _Anonymous(ast.NodeTransformer):
    """Removes names, texts and annotations, so that only the structure is left."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Name("")
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "name", "attr", "arg", "module", "asname"):
            if isinstance(getattr(node, field, None), str):
                setattr(node, field, "")
        if isinstance(node, ast.JoinedStr):
            return ast.Constant("")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        return super().generic_visit(node)


def fingerprint(definition: ast.AST) -> str:
    """Return a hash of the structure of a definition."""
    count = len(list(places(definition)))
    structure = ast.dump(_Anonymous().visit(ast.parse(ast.unparse(definition))))
    return hashlib.sha256(f"{count} {structure}".encode()).hexdigest()[:16]


def definitions(tree: Path) -> Iterator[tuple[Path, ast.AST, str]]:
    """Yields (file, top-level definition, fingerprint) of the packages under test."""
    for package in PACKAGES:
        for path in sorted((tree / "services" / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield path, node, fingerprint(node)


def draw(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Return so many mutants of a tree, each place with the same probability."""
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for path, node, digest in definitions(tree):
        occurrence = seen[digest] = seen.get(digest, -1) + 1
        for index, place in enumerate(places(node)):
            line = getattr(place, "lineno", 0)
            found.append(Mutant(str(path.relative_to(tree)), line, digest, occurrence, index))
    return random.Random(seed).sample(found, count)


def mutated_source(tree: Path, mutant: Mutant) -> tuple[Path, str] | None:
    """Return the file of a mutant and its mutated source; None when no definition has its fingerprint."""
    matches = [(path, node) for path, node, digest in definitions(tree) if digest == mutant.fingerprint]
    if not matches:
        return None
    path, node = matches[min(mutant.occurrence, len(matches) - 1)]
    module = ast.parse(path.read_text())
    twin = next(n for n in module.body if getattr(n, "lineno", 0) == node.lineno)  # type: ignore[attr-defined]
    mutate(list(places(twin))[mutant.index])
    return path, ast.unparse(module)


def is_killed(tree: Path, mutant: Mutant, tests: list[str], timeout: float) -> str:
    """Run the tests on a mutant; return `killed`, `survived` or `absent`."""
    found = mutated_source(tree, mutant)
    if found is None:
        return "absent"
    path, source = found
    original = path.read_text()
    paths = os.pathsep.join(str(tree / name) for name in ("services", "clients"))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        path.write_text(source)
        with subprocess.Popen(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return "survived" if process.wait(timeout) == 0 else "killed"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "killed"
    finally:
        path.write_text(original)


def main() -> int:
    """Draw mutants into a file, or run those of a file; a run continues where an earlier one ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.mutants", description=main.__doc__)
    parser.add_argument("--draw", action="store_true", help="draw mutants into the file of --mutants")
    parser.add_argument("--run", action="store_true", help="run the mutants of the file of --mutants")
    parser.add_argument("--mutants", type=Path, required=True, help="JSON file of mutants")
    parser.add_argument("--results", type=Path, help="JSON file of results")
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="checkout to mutate (default: this folder)")
    parser.add_argument("--tests", nargs="+", default=["tests/unit"], help="tests to run (default: tests/unit)")
    parser.add_argument("--seed", type=int, default=40, help="seed of the draw (default: 40)")
    parser.add_argument("--count", type=int, default=40, help="number of mutants (default: 40)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds until a mutant counts as killed")
    options = parser.parse_args()
    if options.draw:
        drawn = draw(options.tree, options.seed, options.count)
        options.mutants.write_text(json.dumps([asdict(mutant) for mutant in drawn], indent=1))
    if options.run:
        mutants = [Mutant(**fields) for fields in json.loads(options.mutants.read_text())]
        results = json.loads(options.results.read_text()) if options.results.exists() else {}
        for number, mutant in enumerate(mutants):
            if str(number) not in results:
                results[str(number)] = is_killed(options.tree, mutant, options.tests, options.timeout)
                options.results.write_text(json.dumps(results, indent=1))
            print(f"{number:3} {results[str(number)]:9} {mutant.module}:{mutant.line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
