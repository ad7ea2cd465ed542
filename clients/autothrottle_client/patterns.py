"""Lists of topic patterns on command lines."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|.", re.DOTALL)
"""A quoted text, an escaped character, a character class, or one other character. Syntax: RE2."""


def split_patterns(text: str) -> tuple[str, ...]:
    r"""Return the patterns of a comma-separated list.

    A comma inside brackets, braces or parentheses, or after a backslash, belongs to its pattern.

    >>> split_patterns(r"orders, tmp-[0-9]{1,3},(a|b,c)[(,]d,e\,f")
    ('orders', 'tmp-[0-9]{1,3}', '(a|b,c)[(,]d', 'e\\,f')
    """
    patterns, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth = max(depth + (token in ("(", "{", "[")) - (token in (")", "}")), 0)
        if token == "," and depth == 0:
            patterns.append("")
        else:
            patterns[-1] += token
    return tuple(pattern.strip() for pattern in patterns if pattern.strip())
