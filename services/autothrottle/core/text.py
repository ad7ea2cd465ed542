"""Text of other parties (names, reasons, errors) in log lines and on terminals."""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    r"""Return the text with all characters escaped that control a terminal or a line.

    These are control characters, line ends, bidirectional and invisible marks, unusual blanks and lone surrogates.

    >>> print(escape_unprintable("orders\n2026/01/01 forged \x1b[2J\u202e"))
    orders\n2026/01/01 forged \x1b[2J\u202e
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
