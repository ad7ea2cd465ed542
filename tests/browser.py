"""A headless Chromium: screenshots of pages, what a page's layout is, and a driver for pages with scripts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
ABSENT = f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"

_SMALLEST_WINDOW = 500
"""Chromium has no narrower window, so a page for phones is shown in a frame."""


def find() -> str | None:
    """Path of the browser; None: none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def driven() -> Iterator[Browser]:
    """Yield the installed browser under Playwright, which then downloads none of its own."""
    from playwright.sync_api import sync_playwright

    path = find()
    assert path, ABSENT
    # Small machines and containers have a small /dev/shm, and no sandbox for root.
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def screenshot(page: Path, image: Path, width: int, height: int, dark: bool = False) -> None:
    """Write a PNG image of the upper part of a page."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    options = ["--hide-scrollbars", f"--window-size={width},{height}", *scheme, f"--screenshot={image}"]
    shown = page if width >= _SMALLEST_WINDOW else _framed(page, image.with_suffix(".html"), width, height)
    try:
        _run(shown, options, image.parent)
    finally:
        if shown != page:
            shown.unlink()


def evaluate(page: Path, expression: str, widths: Sequence[int], directory: Path) -> list[Any]:
    """Return the JSON values of a JavaScript expression about the document `d`, laid out at each width in pixels."""
    frame = directory / "frame.html"
    # The page itself runs no script: the frame around it measures.
    script = (
        "onload = () => { document.title = JSON.stringify([...document.querySelectorAll('iframe')].map("
        f"f => {{ const d = f.contentDocument; return {expression}; }})); }}"
    )
    source = escape(page.read_text("utf-8"), quote=True)
    frames = (f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{source}"></iframe>' for width in widths)
    frame.write_text(f"<!doctype html><title></title>{''.join(frames)}<script>{script}</script>", "utf-8")
    shown = _run(frame, ["--window-size=1600,1000", "--virtual-time-budget=5000", "--dump-dom"], directory)
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title, shown[:500]
    values: list[Any] = json.loads(title[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    return values


def _framed(page: Path, frame: Path, width: int, height: int) -> Path:
    style = f"width:{width}px;height:{height}px;border:0"
    frame.write_text(f'<body style="margin:0"><iframe style="{style}" src="{page.as_uri()}"></iframe>', "utf-8")
    return frame


def _run(page: Path, options: list[str], directory: Path) -> str:
    browser = find()
    assert browser, ABSENT
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += ["--disable-dev-shm-usage", "--proxy-server=127.0.0.1:9", f"--user-data-dir={directory}/profile"]
    try:
        ran = subprocess.run(
            [*command, *options, page.as_uri()], capture_output=True, text=True, timeout=240, check=True
        )
    finally:
        shutil.rmtree(directory / "profile", ignore_errors=True)
    return ran.stdout
