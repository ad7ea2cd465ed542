"""Reads the texts of options from the command line, the environment and a TOML file.

Each source is read completely, even after a problem. `option_kinds` interprets the texts, `configuration_reader`
applies their precedence. The type to know is `Given`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path

from autothrottle.runtime.option_kinds import ENVIRONMENT_PREFIX
from autothrottle.runtime.options import CONFIG, OPTIONS


class Rank(IntEnum):
    """Precedence of a source; the smallest wins."""

    FLAG = 0
    ENVIRONMENT = 1
    FILE = 2
    DEFAULT = 3


@dataclass(frozen=True, slots=True)
class Given:
    """The text given for an option."""

    text: str
    source: str
    """Name in messages, such as "flag --interval"."""
    rank: Rank


@dataclass(slots=True)
class Flags:
    """A command line in the grammar of Go's flag package. Repeating a flag is a problem."""

    given: dict[str, Given] = field(default_factory=dict)
    """Option name -> its text; absent: the flag is not given."""
    problems: list[str] = field(default_factory=list)
    help: bool = False
    """True: -h or --help is given."""

    @staticmethod
    def read(argv: Sequence[str]) -> Flags:
        """Parse the whole command line."""
        flags, words = Flags(), list(argv)
        while words:
            word = words.pop(0)
            match = re.fullmatch(r"--?([^-=][^=]*)(?:=(.*))?", word, re.DOTALL)
            if match is None:
                flags.problems.append(_unexpected_word(word))
            elif match[1] in ("h", "help"):
                flags.help = True
            else:
                flags._take(match[1], match[2], words)
        return flags

    def _take(self, name: str, text: str | None, words: list[str]) -> None:
        """Record one flag; its value may be the next word."""
        option = OPTIONS.get(name)
        if option is None:
            self.problems.append(_unknown(f"flag --{name}", name, "--"))
            if text is None and words and not words[0].startswith("-"):
                words.pop(0)  # the value of the unknown flag
            return
        if text is None and option.boolean:
            text = "true"
        elif text is None and words:
            text = words.pop(0)
        if text is None:
            self.problems.append(f"{name}: flag --{name} has no value. Fix: --{name}={option.good_value}")
        elif name in self.given:
            self.problems.append(f"{name}: flag --{name} is given twice. Fix: give it once")
        else:
            self.given[name] = Given(text, f"flag --{name}", Rank.FLAG)


def from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Given], list[str]]:
    """Return the options in the environment, and a warning per unknown variable with our prefix.

    Kubernetes, for example, sets AUTOTHROTTLE_PORT for a service named autothrottle. Warnings show no value, because
    it may be a key.
    """
    names = {option.variable: name for name, option in OPTIONS.items()}
    given: dict[str, Given] = {}
    warnings = []
    for variable in sorted(v for v in environ if v.startswith(ENVIRONMENT_PREFIX)):
        if variable not in names:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-")
            near = get_close_matches(name, OPTIONS, n=1)
            hint = f"; did you mean {OPTIONS[near[0]].variable}?" if near else ""
            warnings.append(f"environment variable {variable} is unknown and ignored{hint}")
        elif environ[variable]:
            source = f"environment variable {variable}"
            given[names[variable]] = Given(environ[variable], source, Rank.ENVIRONMENT)
    return given, warnings


def from_file(config: Given | None) -> tuple[dict[str, Given], list[str]]:
    """Return the options in the file that `config` names, if any, and the problems of the file."""
    if config is None or not config.text:
        return {}, []
    try:
        content = tomllib.loads(Path(config.text).read_text("utf-8"))
    except OSError as error:
        return {}, [_unreadable(config, str(error.strerror), "name a TOML file that this process can read")]
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        return {}, [_unreadable(config, str(error), "correct the file")]
    given: dict[str, Given] = {}
    problems = []
    for key, value in content.items():
        source = f"key {key} of {config.text}"
        if key == CONFIG.name:
            problems.append(f"{source} is not allowed: a file cannot name another file. Fix: remove it")
        elif key not in OPTIONS:
            problems.append(_unknown(source, key, ""))
        else:
            given[key] = Given(_toml_text(value), source, Rank.FILE)
    return given, problems


def _toml_text(value: object) -> str:
    """Return a TOML value as flag text: a list comma-separated, a table as JSON, a time in ISO format."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_toml_text(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def _unreadable(config: Given, reason: str, fix: str) -> str:
    return f"{CONFIG.name}: {config.text!r} ({config.source}) cannot be read: {reason}. Fix: {fix}"


def _unexpected_word(word: str) -> str:
    return (
        f"the word {word!r} does not belong to a flag. Fix: remove it; quote values with blanks, and write "
        f"--name=false for a boolean flag"
    )


def _unknown(where: str, name: str, prefix: str) -> str:
    near = get_close_matches(name.replace("_", "-").lower(), OPTIONS, n=1)
    fix = f"did you mean {prefix}{near[0]}?" if near else "remove it; --help lists all options"
    return f"{where} is unknown. Fix: {fix}"
