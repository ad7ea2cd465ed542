"""The pages of the documentation, and the commands in their code blocks."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
PROJECT_FILES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in [ROOT / "README.md", *DOCS, *PROJECT_FILES]}
"""Path from the root -> text."""
ALL_TEXT = "\n".join(PAGES.values())


class Block(NamedTuple):
    """One fenced block of a page."""

    page: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    for page, text in PAGES.items():
        for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE):
            yield Block(page, found[2], found[3])


def code(language: str, page: str | None = None) -> list[str]:
    return [block.text for block in blocks() if block.language == language and page in (None, block.page)]


def commands(*programs: str, page: str | None = None) -> list[list[str]]:
    """The words of all commands in the pages, or of those of some programs or one page; continued lines are joined."""
    lines = "\n".join(code("sh", page)).replace("\\\n", " ").splitlines()
    found = [words for line in lines if (words := shlex.split(line, comments=True))]
    return [words for words in found if words[0] in programs] if programs else found


def issue_certificate(directory: Path, name: str) -> None:
    """Carry out the openssl commands of docs/two-hosts.md for a host: tls.crt and tls.key, and the authority if new."""
    authority, certificate = commands("openssl", page="docs/two-hosts.md")
    for words in [certificate] if (directory / "ca.key").exists() else [authority, certificate]:
        given = [word.replace("kafka-ops-1.example.com", name) for word in words]
        subprocess.run(given, cwd=directory, check=True, capture_output=True)
