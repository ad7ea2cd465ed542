"""Counts the hand-written lines of each package: code, docstrings, comments and blank lines.

python -m tests.quality.source_lines [--tree DIRECTORY]
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

KINDS = ("code", "docstring", "comment", "blank")


def kinds_of_lines(source: str) -> Counter[str]:
    """Return kind -> number of lines. A text that is a statement of its own counts as a docstring."""
    lines = source.splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                kinds[number] = "docstring"
    return Counter(kinds)


def package_of(path: Path) -> str:
    """Return the package that a file counts for: two levels below services, the folder below tests, or the client."""
    parts = path.parts
    if parts[0] == "services":
        depth = 4 if parts[2] in ("core", "adapters") and len(parts) > 4 else 3
        return "/".join(parts[1:depth]) if len(parts) > 3 else parts[1]
    return "/".join(parts[:2]) if parts[0] == "tests" and len(parts) > 2 else parts[min(1, len(parts) - 2)]


def main() -> int:
    """Print a table: one row for each package, and the sums of source and tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.source_lines", description=main.__doc__)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="checkout to count (default: this folder)")
    tree = parser.parse_args().tree
    found: dict[str, Counter[str]] = {}
    for root in ("services", "clients", "tests"):
        for path in sorted((tree / root).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            counted = kinds_of_lines(path.read_text())
            place = path.relative_to(tree)
            for name in (package_of(place), "TESTS" if root == "tests" else "SOURCE"):
                found.setdefault(name, Counter()).update(counted)
    print(f"{'package':40}" + "".join(f"{kind:>11}" for kind in KINDS) + f"{'docstring %':>13}")
    for name, counts in sorted(found.items()):
        total = sum(counts.values())
        print(f"{name:40}" + "".join(f"{counts[k]:11}" for k in KINDS) + f"{100 * counts['docstring'] / total:12.1f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
