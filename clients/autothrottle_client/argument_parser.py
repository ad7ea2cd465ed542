"""An argparse parser that reports the mistyped word first, with what the operator may mean."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from autothrottle_client.suggestions import option_fix

_WRONG_WORD = re.compile(r"(?:invalid choice: '|unrecognized arguments: )(-*\w[\w-]*)")


class SuggestingParser(argparse.ArgumentParser):
    """Suggests a similar name for an unknown option or choice."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments of a command here, where its options are known, with its usage."""
        args = self._joined(sys.argv[1:] if args is None else args)
        self._refuse_unknown_option(args)
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return arguments, unknown

    def _joined(self, words: Iterable[str]) -> list[str]:
        """Join options with values that begin with a dash, like `-1,1006`: argparse takes these for options."""
        options, joined, is_over = self._options(), list[str](), False
        for word in words:
            action = options.get(joined[-1]) if joined and not is_over else None
            is_value = re.match("-[^-]", word) and word not in options
            if action is not None and action.nargs is None and joined[-1].startswith("--") and is_value:
                joined[-1] += f"={word}"
            else:
                joined.append(word)
            is_over = is_over or word == "--"
        return joined

    def _refuse_unknown_option(self, words: Sequence[str]) -> None:
        """Report a mistyped option first: argparse takes its value for an argument, or misses others before it."""
        options, remaining = self._options(), iter(words)
        has_commands = any(action.nargs == argparse.PARSER for action in self._actions)
        for word in remaining:
            name = word.partition("=")[0]
            is_abbreviation = self.allow_abbrev and any(option.startswith(name) for option in options)
            if word == "--" or (has_commands and not word.startswith("-")):
                return  # the options after a command are the command's
            if word in options and options[word].nargs is None:
                next(remaining, None)  # its value
            elif word.startswith("--") and name not in options and not is_abbreviation:
                self.error(f"unrecognized arguments: {name}")

    def _options(self) -> dict[str, argparse.Action]:
        return {name: action for action in self._actions for name in action.option_strings}

    def error(self, message: str) -> NoReturn:
        """Print the usage and a message, then exit."""
        match = _WRONG_WORD.search(message)
        wrong = match[1] if match else ""
        if wrong.startswith("--"):
            options = [name.removeprefix("--") for name in self._options() if name.startswith("--")]
            fix = option_fix(wrong.removeprefix("--"), options)
        else:
            choices = [str(choice) for action in self._actions for choice in action.choices or ()]
            similar = difflib.get_close_matches(wrong, choices, n=1)
            fix = f"did you mean {similar[0]}?" if similar and similar != [wrong] else ""
        super().error(message + (f"; {fix}" if fix else ""))
