"""What a request must be before anybody thinks about it."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from autothrottle.core.errors import Invalid

MAX_REASON = 1_000
"""Characters of a reason: it stands in the log, and in every answer that has the cycle."""


def validate_fields(message: Message) -> None:
    """Refuse a message with fields that this version does not know, at any depth.

    A program that is newer than this one means something by them: without them another thing would be done.

    Raises:
        Invalid: when there are any; names the message and their numbers.
    """
    found = UnknownFieldSet(message)
    unknown = sorted({found[index].field_number for index in range(len(found))})
    if unknown:
        numbers = ", ".join(map(str, unknown[:10]))
        raise Invalid(
            f"{message.DESCRIPTOR.full_name} has unknown fields (numbers {numbers}); "
            "leave them out, or update the service to the version of the client"
        )
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                validate_fields(part)


def validate_reason(reason: str) -> str:
    """Return why something is asked for.

    Raises:
        Invalid: when it is longer than 1,000 characters or not printable.
    """
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise Invalid(
            f"reason {reason[:40]!r} of {len(reason)} characters; give at most {MAX_REASON} printable ones on one line"
        )
    return reason
