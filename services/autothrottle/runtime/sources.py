"""Reads the texts of options from the command line, the environment and a TOML file.

Each source is read completely, even after a problem. `configuration` declares the options, `configuration_reader`
applies the precedence of the sources. The type to know is `Given`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.option_kinds import ENVIRONMENT_PREFIX, Option
from autothrottle_client.files import read_toml
from autothrottle_client.suggestions import hidden_key, option_fix


class Rank(IntEnum):
    """Precedence of a source; the smallest wins."""

    FLAG = 0
    ENVIRONMENT = 1
    FILE = 2
    PRESET = 3
    """A value that the command itself supplies, such as the scenario of a simulation."""
    DEFAULT = 4


@dataclass(frozen=True, slots=True)
class Given:
    """The text given for an option."""

    text: str
    source: str
    """Name in messages, such as "flag --interval"."""
    rank: Rank
    alias: str = ""
    """The alias by which the option is given; "": its name."""


SUGGESTION = "did you mean "
"""Words before the name that a mistyped one probably means."""


_KEY = re.compile(r"\[?([^\s=\]]+)\s*[=\]]")
"""The beginning of a line that gives a key, or begins a table."""

_SHOWN = 100
"""How much of an unknown name a message shows, characters."""

_MOST_SUGGESTIONS = 20
"""Number of unknown names with a similar one. Each takes a millisecond, and a file may have thousands."""


def by_any_name(options: Mapping[str, Option[Any]]) -> dict[str, Option[Any]]:
    """Return name or alias -> option."""
    aliases = {alias: option for option in options.values() for alias in option.aliases}
    return aliases | {**options}


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the name that a mistyped word probably means; "" if none is similar."""
    return next(iter(get_close_matches(word.replace("_", "-").lower(), names, n=1)), "")


@dataclass(slots=True)
class Flags:
    """A command line in the grammar of Go's flag package. Repeating a flag is a problem."""

    given: dict[str, Given] = field(default_factory=dict)
    """Option name -> its text; absent: the flag is not given."""
    words: list[str] = field(default_factory=list)
    """The words that belong to no flag."""
    problems: list[str] = field(default_factory=list)
    help: bool = False
    """True: -h or --help is given."""
    options: Mapping[str, Option[Any]] = field(default_factory=lambda: OPTIONS)
    """The options that may be given."""

    @staticmethod
    def parse(argv: Sequence[str], options: Mapping[str, Option[Any]] = OPTIONS, most_words: int = 0) -> Flags:
        """Parse the whole command line, which may have this number of words that belong to no flag."""
        flags, words = Flags(options=options), list(argv)
        while words:
            word = words.pop(0)
            match = re.fullmatch(r"--?([^-=][^=]*)(?:=(.*))?", word, re.DOTALL)
            if match is None and not word.startswith("-") and len(flags.words) < most_words:
                flags.words.append(word)
            elif match is None:
                flags.problems.append(
                    f"the word {word!r} does not belong to a flag. Fix: remove it; quote values with blanks, and write "
                    f"--name=false for a boolean flag"
                )
            elif match[1] in ("h", "help"):
                flags.help = True
            else:
                flags._take(match[1], match[2], words)
        return flags

    def _take(self, name: str, text: str | None, words: list[str]) -> None:
        """Record one flag; its value may be the next word."""
        spelling = next((long for long, option in self.options.items() if option.short == name), name)
        option = by_any_name(self.options).get(spelling)
        if option is None:
            similar = self.options if len(self.problems) < _MOST_SUGGESTIONS else {}
            self.problems.append(_unknown(f"flag --{name[:_SHOWN]}", name, "--", similar))
            if text is None and words and not words[0].startswith("-"):
                words.pop(0)  # the value of the unknown flag
            return
        name = option.name
        if text is None and option.boolean:
            text = "true"
        elif text is None and words:
            text = words.pop(0)
        if text is None:
            self.problems.append(f"{name}: flag --{spelling} has no value. Fix: --{name}={option.good_value}")
        elif name in self.given:
            other = "" if self.given[name].source == f"flag --{spelling}" else f", also as {self.given[name].source}"
            self.problems.append(f"{name}: flag --{spelling} is given twice{other}. Fix: give it once")
        else:
            self.given[name] = Given(text, f"flag --{spelling}", Rank.FLAG, _alias(spelling, option))


def from_environment(
    environ: Mapping[str, str], options: Mapping[str, Option[Any]] = OPTIONS, prefix: str = ENVIRONMENT_PREFIX
) -> tuple[dict[str, Given], list[str]]:
    """Return the options in the environment, and a warning per unknown variable with the prefix.

    Kubernetes, for example, sets AUTOTHROTTLE_PORT for a service named autothrottle. Warnings show no value, because
    it may be a key.
    """
    given: dict[str, Given] = {}
    warnings: list[str] = []
    for variable in sorted(v for v in environ if v.startswith(prefix)):
        name = variable.removeprefix(prefix).lower().replace("_", "-")
        option = by_any_name(options).get(name)
        if option is None or option.variable_of(name) != variable:
            near = nearest(name, options) if len(warnings) < _MOST_SUGGESTIONS else ""
            hint = f"; {SUGGESTION}{options[near].variable}?" if near else ""
            warnings.append(f"environment variable {variable} is unknown and ignored{hint}")
        elif environ[variable] and (name == option.name or option.name not in given):
            source, alias = f"environment variable {variable}", _alias(name, option)
            given[option.name] = Given(environ[variable], source, Rank.ENVIRONMENT, alias)
    return given, warnings


def from_file(
    config: Given | None, options: Mapping[str, Option[Any]] = OPTIONS
) -> tuple[dict[str, Given] | None, list[str]]:
    """Return the options in the file that `config` names, and the problems of the file; None: it cannot be read."""
    if config is None or not config.text:
        return {}, []
    try:
        content, text = read_toml(config.text)
    except OSError as error:
        reason, fix = error.strerror, "name a TOML file that this process can read"
    except ValueError as error:
        reason, fix = str(error), "correct the file"
    else:
        return _options_of(content, config.text, text.splitlines(), options)
    return None, [f"config: {config.text!r} ({config.source}) cannot be read: {reason}. Fix: {fix}"]


def _options_of(
    content: Mapping[str, object], path: str, lines: Sequence[str], options: Mapping[str, Option[Any]]
) -> tuple[dict[str, Given], list[str]]:
    given: dict[str, Given] = {}
    problems: list[str] = []
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if match := _KEY.match(line):
            numbers.setdefault(match[1], number)
    by_name = by_any_name(options)
    for key, value in content.items():
        shown = key[:_SHOWN] if key in by_name else hidden_key(key)
        source = f"key {shown} of {path}" + (f", line {numbers[key]}" if key in numbers else "")
        if key == "config":
            problems.append(f"{source} is not allowed: a file cannot name another file. Fix: remove it")
        elif (option := by_name.get(key)) is None:
            problems.append(_unknown(source, key, "", options if len(problems) < _MOST_SUGGESTIONS else {}))
        elif option.name in given:
            problems.append(f"{source} means the same as {given[option.name].source}. Fix: give one")
        else:
            given[option.name] = Given(_toml_text(value), source, Rank.FILE, _alias(key, option))
    return given, problems


def _alias(spelling: str, option: Option[Any]) -> str:
    return "" if spelling == option.name else spelling


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


def _unknown(where: str, name: str, prefix: str, options: Mapping[str, Option[Any]] = OPTIONS) -> str:
    return f"{where} is unknown. Fix: {option_fix(name, options, prefix) or 'remove it; --help lists the options'}"
