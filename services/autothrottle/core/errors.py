"""The one tree of errors that callers of autothrottle can act on.

    AutothrottleError
    ├── Invalid        what was given is wrong: change it, then try again
    ├── Missing        what was named does not exist
    ├── Conflict       it changed meanwhile: read again, then decide again
    ├── NotLeader      another planner leads, or this term is over; carries the leader's address
    ├── Incomplete     only a part could be read: nothing may be concluded from what is absent
    └── Unavailable    the other side does not answer: try again later

A message names the value, the range and the fix.
"""


class AutothrottleError(Exception):
    """Anything that autothrottle itself reports."""


class Invalid(AutothrottleError):
    """What was given is outside of its range; the message names the value, the range and the fix."""


class Missing(AutothrottleError):
    """What was named does not exist."""


class Conflict(AutothrottleError):
    """What was to be changed has been changed by somebody else since it was read."""


class NotLeader(AutothrottleError):
    """The caller's term is over, or the planner that was asked does not lead."""

    def __init__(self, message: str, leader_address: str = "") -> None:
        super().__init__(message)
        self.leader_address = leader_address
        """Where the leading planner answers, `host:port` or `unix:path`; "" when it is unknown."""


class Incomplete(AutothrottleError):
    """Only a part could be read; what is absent may well exist."""


class Unavailable(AutothrottleError):
    """The other side does not answer in time."""
