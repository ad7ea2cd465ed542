"""Broker ids: their range, and how to read one from a text, a name or a number."""

from __future__ import annotations

from autothrottle.core.errors import Invalid
from autothrottle.core.units import MAX_INT32

MAX_BROKER_ID = MAX_INT32
"""Kafka stores broker ids as signed 32-bit integers; 0 is valid."""

BROKER_IDS = range(MAX_BROKER_ID + 1)
"""All valid broker ids. Partition numbers have the same range."""


def parse_broker_id(text: str) -> int:
    """Return the broker id in a text.

    Raises:
        Invalid: the text is not a plain integer in 0..2^31-1.
    """
    # int() would also accept " 7", "+7", "1_000" and digits of other scripts.
    if text.isascii() and text.isdigit():
        # int() rejects texts of thousands of digits.
        number = int(text.lstrip("0")[:11] or "0")
        if number in BROKER_IDS:
            return number
    raise Invalid(f"{text[:40]!r} is not a broker id; give an integer in 0..{MAX_BROKER_ID}")


def broker_id_of(name: str) -> int | None:
    """Return the broker id in a name that Kafka writes, so without leading zeros; None: it is not one."""
    try:
        broker_id = parse_broker_id(name)
    except Invalid:
        return None
    return broker_id if str(broker_id) == name else None


def validate_broker_id(broker_id: int, whose: str = "") -> int:
    """Return the broker id; `whose` continues "broker id 7" in the message.

    Raises:
        Invalid: it is not in 0..2^31-1.
    """
    if not 0 <= broker_id <= MAX_BROKER_ID:  # not `in`: a range walks all its numbers to find a float
        raise Invalid(f"broker id {broker_id}{whose} is outside of 0..{MAX_BROKER_ID}; give a broker's id")
    return broker_id
