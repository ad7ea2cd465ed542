"""Enums to which a later version may add members. The type to know is `OpenEnum`."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Self


class OpenEnum(StrEnum):
    """An enum whose attribute `UNKNOWN` stands for a value that only a newer service knows.

    `UNKNOWN` is an instance, but not a member: loops over the enum and lookups by name or value do not return it. Only
    the client package reads it from a message; services refuse such a message.

    >>> class Light(OpenEnum):
    ...     RED = "red"
    >>> list(Light), isinstance(Light.UNKNOWN, Light), str(Light.UNKNOWN)
    ([<Light.RED: 'red'>], True, 'unknown')
    """

    UNKNOWN: ClassVar[Self]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        unknown: Any = str.__new__(cls, "unknown")
        unknown._name_, unknown._value_ = "UNKNOWN", "unknown"
        cls.UNKNOWN = unknown
