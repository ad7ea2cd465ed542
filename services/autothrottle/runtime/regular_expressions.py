"""Regular expressions from requests, which RE2 matches in linear time.

One of Python's own, such as `(a+)+$`, can take years for a name of 40 letters, and no other thread runs meanwhile.
"""

from __future__ import annotations

import re2

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import Matcher

MAX_LENGTH = 1_000
"""Longest expression in characters."""

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def compile_pattern(pattern: str) -> Matcher:
    """Compile an expression in RE2's syntax, as Go has it: no look-around and no back-references.

    Raises:
        Invalid: it is too long, or not an expression of RE2, or needs too much memory.
    """
    if len(pattern) > MAX_LENGTH:
        raise Invalid(f"topic pattern {pattern[:40]!r}... has {len(pattern)} characters; give at most {MAX_LENGTH}")
    try:
        matcher: Matcher = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise Invalid(f"topic pattern {pattern[:80]!r} is not a regular expression of RE2: {reason}") from error
    return matcher
