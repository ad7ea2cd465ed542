"""The errors that a caller of autothrottle can act on: those of the services and of the client package.

    AutothrottleError
    ├── Invalid        an argument is wrong: correct it, then retry
    ├── Missing        the named object does not exist
    ├── Conflict       the object changed after it was read: read it again, then decide again
    ├── NotLeader      another planner leads, or this term is over; carries the leader's address
    ├── Incomplete     only a part could be read: absence proves nothing
    ├── Unavailable    the other side does not answer: retry later
    ├── Unauthenticated  the caller gave no known credentials: give a token or a certificate
    └── Forbidden      the caller is known and lacks the role: ask an administrator

A message names the value, the range and the fix. It shows no secret, whatever it was made of.
"""

from autothrottle.core.texts import without_secrets


class AutothrottleError(Exception):
    """The base class of all errors that autothrottle reports."""

    def __init__(self, message: str = "") -> None:
        super().__init__(without_secrets(message))


class Invalid(AutothrottleError):
    """An argument is outside its range; the message names the value, the range and the fix."""


class Missing(AutothrottleError):
    """The named object does not exist."""


class Conflict(AutothrottleError):
    """Another party changed the object after it was read."""


class NotLeader(AutothrottleError):
    """The caller's term is over, or the planner that received the call does not lead."""

    def __init__(self, message: str, leader_address: str = "") -> None:
        super().__init__(message)
        self.leader_address = leader_address
        """Address of the leading planner, `host:port` or `unix:path`; "": unknown."""


class Incomplete(AutothrottleError):
    """Only a part could be read; absent objects may exist."""


class Unavailable(AutothrottleError):
    """The other side does not answer in time."""


class Unready(Unavailable):
    """The other side works, and will have an answer soon."""


class Unauthenticated(AutothrottleError):
    """The caller gave no known credentials."""


class UnknownToken(Unauthenticated):
    """The caller gave a token that is not in the file of tokens, which may be a guess."""


class Forbidden(AutothrottleError):
    """The caller is known, but does not have the role that the call needs."""


FIELD_ERRORS = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""Python's errors about a missing or wrong field in a foreign document; catch them where the document is parsed."""
