"""Starts programs whose libraries an extra installs, or names the extra that is missing.

The package's programs start here, because each of them imports the libraries of the extra `service`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

EXIT_WITHOUT_EXTRA = 1

EXIT_BROKEN_PIPE = 141
"""Exit status for a closed output; shells report it for a command ended by SIGPIPE."""

WITH_EXTRAS = {
    "demo": ("autothrottle_lab.demo.command", "lab"),
    "simulate": ("autothrottle_lab.simulate.command", "lab"),
    "score": ("autothrottle.scorer.command", "score"),
    "replay": ("autothrottle.replay", "decisions"),
    "compact": ("autothrottle.scorer.compaction", "score"),
}
"""Command of `autothrottle` -> (module with its `main` and `make_parser`, the extra that installs its dependencies)."""


def start(program: str, module: str, extra: str, arguments: Sequence[str] | None = None) -> int:
    """Run a module's `main`; return its exit status, or 1 if a library of the extra is not installed.

    Args:
        program: the name of the program in the message.
        module: the module with `main`.
        extra: the extra that installs the module's libraries.
        arguments: the arguments of `main`; None: those of the process.
    """
    try:
        main: Callable[[Sequence[str] | None], int] = import_module(module).main
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "autothrottle":
            raise
        fix = f"Fix: install autothrottle with the extra `{extra}`"
        print(f"{program}: {library} is not installed. {fix}", file=sys.stderr)
        return EXIT_WITHOUT_EXTRA
    return main(arguments)


def discard_output() -> None:
    """Discard buffered output, otherwise the interpreter fails a second time when it flushes at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def autothrottle() -> int:
    """Run `autothrottle`."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    _, extra = WITH_EXTRAS.get(command, ("", "service"))
    return start("autothrottle", "autothrottle.__main__", extra)


def topicmappr() -> int:
    """Run `topicmappr`."""
    return start("topicmappr", "autothrottle.topicmappr.command_line", "service")


def metricsfetcher() -> int:
    """Run `metricsfetcher`."""
    return start("metricsfetcher", "autothrottle.topicmappr.metricsfetcher", "service")
