"""The files of the page, as the package has them: HTML, styles, scripts and pictures. They contain no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources

HEADERS: Mapping[str, str] = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of each file. A browser asks for a file again each time, so that it never mixes files of two versions."""

INDEX = "index.html"

_TYPES: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Ending of a name -> media type. Files with other names are not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """Return name -> file; all are read at once, so that no request can name another file."""
    directory = resources.files("autothrottle.gateway").joinpath("page")
    contents = {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}
    return {
        name: PageFile(content, _TYPES[ending], f'"{sha256(content).hexdigest()[:32]}"')
        for name, content in contents.items()
        if (ending := name.rpartition(".")[2]) in _TYPES
    }
