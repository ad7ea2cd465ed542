"""Files are read as `java.util.Properties` reads them; the expected values come from Java 17."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_admin.client_properties import read_client_properties
from autothrottle.adapters.kafka_admin.java_properties import parse_properties
from autothrottle.core.errors import Invalid


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", {}),
        ("# a comment \\\nname=value\n  ! another\n", {"name": "value"}),
        ("a=1\nb:2\nc 3\nd\t=\t4\ne\nf==5", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "", "f": "=5"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a = one \\\n   two\\\r\n\tthree", {"a": "one twothree"}),
        ("a = one\\\n# no comment\n", {"a": "one# no comment"}),
        ("a = one\\\n\nb = two", {"a": "one", "b": "two"}),
        ("\\\n# a comment\nb=2", {"b": "2"}),
        ("a=even\\\\\nb=2", {"a": "even\\", "b": "2"}),
        ("a=end\\", {"a": "end"}),
        ("a\\ b\\:c\\=d = \\ x\\ty\\qz\\\\", {"a b:c=d": " x\tyqz\\"}),
        ("a=\\u00e4\\u20AC", {"a": "ä€"}),
        ("a=trailing space  \n", {"a": "trailing space  "}),
        ("a=1\na=2\n", {"a": "2"}),
    ],
)
def test_content_is_parsed_as_in_java(content: str, expected: dict[str, str]) -> None:
    assert parse_properties(content) == expected


@given(st.text(st.characters(max_codepoint=0xFFFF, blacklist_categories=["Cs"])))
def test_values_escaped_as_java_does_are_read_back(value: str) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" for c in value)
    assert parse_properties(f"name={escaped}\n") == {"name": value}


def test_file_is_read_as_latin_1(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes("client.id=b\xe4r".encode("latin-1"))
    assert read_client_properties(str(file)) == {"client.id": "b\xe4r"}


def test_error_names_an_unreadable_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(Invalid, match=r"cannot be read: .+ Fix: ") as caught:
            read_client_properties(str(path))
        assert str(path) in str(caught.value)


def test_error_names_a_file_with_a_malformed_escape_without_its_value(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("ssl.truststore.location=C:\\users\\s3cret\n")
    with pytest.raises(Invalid, match="is not a file of Java properties: ") as caught:
        read_client_properties(str(file))
    assert str(file) in str(caught.value) and "s3cret" not in str(caught.value)
