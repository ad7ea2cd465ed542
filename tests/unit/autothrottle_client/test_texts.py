"""Lists of topic patterns are split only between patterns."""

import pytest

from autothrottle_client.texts import split_patterns


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("tmp-[0-9]{1,3}", ("tmp-[0-9]{1,3}",)),
        ("a{1,3},b{,2}", ("a{1,3}", "b{,2}")),
        ("(a,(b,c)),d", ("(a,(b,c))", "d")),
        ("[,],[],],[^],],[[:alpha:],]", ("[,]", "[],]", "[^],]", "[[:alpha:],]")),
        (r"a\[,b,\Qc,d\E,e", (r"a\[", "b", r"\Qc,d\E", "e")),
        ("a[b,c", ("a[b,c",)),
        ("a),b", ("a)", "b")),
        (" orders , payments.* ,", ("orders", "payments.*")),
        (",", ()),
    ],
)
def test_a_comma_inside_a_pattern_does_not_split_it(text: str, patterns: tuple[str, ...]) -> None:
    """`--topics-exclude 'tmp-[0-9]{1,3}'` was split at its comma. The plan moved the topics."""
    assert split_patterns(text) == patterns
