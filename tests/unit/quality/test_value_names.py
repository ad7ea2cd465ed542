"""Names say what a value is: few of them are pronouns or participles."""

from __future__ import annotations

import ast

import pytest

from tests.paths import ROOT
from tests.quality.value_names import bound_names, names_of_sources

LARGEST_SHARE = 0.005
"""Of all names that services, clients and lab bind. Other projects of this kind have 0.1 to 0.5 %."""


def test_names_of_values_are_nouns() -> None:
    """Once, 4 of 100 names were words like `found`. A reader had to remember what each of these values was."""
    names = [name for _, name in names_of_sources(ROOT)]
    assert sum(name.is_word for name in names) <= LARGEST_SHARE * len(names)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("found = 1", ["found"]),
        ("self._known: int = 1", ["_known"]),
        ("def wanted(one, rate): ...", ["wanted", "one"]),
        ("[left for left in sides]", ["left"]),
        ("now = time.monotonic()", []),
        ("now = rates[0]", ["now"]),
        ("def read(self): ...", []),
        ("class Known: ...", []),
    ],
)
def test_bound_names_that_are_pronouns_or_participles_are_found(source: str, words: list[str]) -> None:
    assert sorted(name.name for name in bound_names(ast.parse(source)) if name.is_word) == sorted(words)
