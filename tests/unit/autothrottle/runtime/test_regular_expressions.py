"""Regular expressions from requests cannot stop the process."""

from __future__ import annotations

import time

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import matching_topics
from autothrottle.runtime.regular_expressions import MAX_LENGTH, compile_pattern


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(.*)*x", "a*" * 100 + "x"])
def test_an_expression_with_many_ways_to_match_takes_no_time(pattern: str) -> None:
    """With Python's own expressions, one request of a viewer held the interpreter for years. No other thread ran."""
    began = time.thread_time()
    assert matching_topics([f"{'a' * 240}b"], [pattern], compile=compile_pattern) == ()
    assert time.thread_time() - began < 1


@pytest.mark.parametrize("pattern", ["(", "a" * (MAX_LENGTH + 1), "(a{1,1000}){1000}", "(?=a)", r"(a)\1", "[z-a]"])
def test_an_expression_that_is_wrong_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid, match="topic pattern "):
        compile_pattern(pattern)


def test_expressions_match_whole_names() -> None:
    topics = ["orders", "orders-2", "payments", "a.b", "axb"]
    assert matching_topics(topics, ["orders.*"], ["orders-[0-9]"], compile_pattern) == ("orders",)
    assert matching_topics(topics, ["a.b"], compile=compile_pattern) == ("a.b",)
