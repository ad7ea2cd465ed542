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
        args = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown_option(args)
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return arguments, unknown

    def _refuse_unknown_option(self, words: Sequence[str]) -> None:
        """Report a mistyped option first: argparse takes its value for an argument, or misses others before it."""
        remaining = iter(words)
        for word in remaining:
            name, option = word.partition("=")[0], self._option_string_actions.get(word)
            if word == "--" or (self._subparsers and not word.startswith("-")):
                return  # the options after a command are the command's
            if option is not None and option.nargs is None:
                next(remaining, None)  # its value
            elif word.startswith("--") and not self._is_option(name):
                self.error(f"unrecognized arguments: {name}")

    def _is_option(self, name: str) -> bool:
        options = self._option_string_actions
        return name in options or (self.allow_abbrev and any(option.startswith(name) for option in options))

    def error(self, message: str) -> NoReturn:
        """Print the usage and a message, then exit."""
        match = _WRONG_WORD.search(message)
        wrong = match[1] if match else ""
        if wrong.startswith("--"):
            options = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
            fix = option_fix(wrong.removeprefix("--"), options)
        else:
            choices = [str(choice) for action in self._actions for choice in action.choices or ()]
            similar = difflib.get_close_matches(wrong, choices, n=1)
            fix = f"did you mean {similar[0]}?" if similar and similar != [wrong] else ""
        super().error(message + (f"; {fix}" if fix else ""))
