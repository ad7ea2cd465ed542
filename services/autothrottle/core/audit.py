"""Who changed which override or the pause, when, and from what to what. The type to know is `AuditRecord`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from autothrottle.core.errors import Invalid
from autothrottle.core.overrides import Override
from autothrottle.core.pause import Pause

MAX_AUDIT_RECORDS = 1_000
"""How many of the newest records are kept."""

DEFAULT_AUDIT_RECORDS = 100
"""How many are shown to who does not say how many."""

MAX_WHO = 1_000
"""Characters of who did it: what a caller says of itself has no other bound."""


class AuditAction(StrEnum):
    """What was done to an override, or to the pause."""

    SET = "set"
    REMOVE = "remove"
    """By an operator."""
    PURGE = "purge"
    """By the planner that leads."""
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change of one override or of the pause, written together with the change itself."""

    number: int
    """Its place in the order of all changes: a later one has a larger number."""
    time: datetime
    """UTC, by the store's clock."""
    who: str
    """The caller, as far as it is known."""
    action: AuditAction
    broker_id: int | None = None
    """Whose override; None: the cluster's, or it was paused or resumed."""
    before: Override | None = None
    """What stood; None: nothing, or what could not be read."""
    after: Override | None = None
    """What stands since; None: nothing."""
    reason: str = ""
    """Why, when nobody asked for it."""
    pause: Pause | None = None
    """The pause that began, or that ended; None: an override was changed."""


def validate_audit_limit(limit: int) -> int:
    """Return how many records are to be shown, 100 for 0, or say what is wrong with the number.

    Raises:
        Invalid: when it is not in 0..1,000.
    """
    if not 0 <= limit <= MAX_AUDIT_RECORDS:
        raise Invalid(f"limit {limit} is outside of 1..{MAX_AUDIT_RECORDS}; that many records are kept, ask for fewer")
    return limit or DEFAULT_AUDIT_RECORDS
