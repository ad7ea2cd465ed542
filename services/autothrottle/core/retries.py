"""How long autothrottle waits before it repeats what failed, and why. The type to know is `Retry`.

docs/failure-modes.md shows `RETRIES` as a table (`make docs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """The waits before the next attempts at one kind of work, in seconds."""

    work: str
    """What failed."""
    reason: str
    """Why these waits."""
    first: float
    """Wait after the first failure."""
    last: float | None = None
    """Longest wait. None: all waits are equal."""
    growth: float = 2.0
    """Each wait as a multiple of the one before, until the longest one; > 1."""
    jitter: float = 0.0
    """Largest random addition, as a share of the wait."""

    @property
    def longest(self) -> float:
        """The longest wait."""
        return self.first if self.last is None else self.last

    def wait(self, failures: int, chance: float = 0.0) -> float:
        """Return the wait after consecutive failures; the jitter may exceed the longest wait.

        Args:
            failures: their number, >= 1.
            chance: share of the jitter, in [0, 1).

        >>> Retry("work", "reason", 0.5, 30.0).wait(3)
        2.0
        """
        # So many factors exceed every longest wait, and a larger power could overflow.
        return min(self.first * self.growth ** min(failures - 1, 500), self.longest) * (1 + self.jitter * chance)

    def waits(self) -> Iterator[float]:
        """Yield the wait after each consecutive failure, without jitter and without end."""
        failures = 1
        while True:
            yield self.wait(failures)
            failures += 1


CYCLE = Retry(
    "A cycle, after a failed one. The wait is at most `--interval`",
    "The cause may end soon. Planners do not repeat at the same moment",
    first=1.0,
    last=1024.0,
    jitter=0.5,
)
SETTINGS = Retry(
    "Reading fetch settings of brokers and topics", "They change rarely, and a cycle does without them", first=60.0
)
METRICS = Retry(
    "Reading a metrics source that failed, while bytes move. A thread of its own asks it. A cycle follows its answer. "
    "The wait grows only while it answers without the load of any broker",
    "Rates follow the load within seconds of its return, at any `--interval`, and no cycle waits for it meanwhile. "
    "Answers without a load use up the rate limit of a service such as Datadog",
    first=5.0,
    last=60.0,
)
CALL = Retry(
    "A call, a stream or a connection to another service, after a round over all its replicas",
    "A restarted service answers within a second. Many callers must not keep it busy",
    first=0.1,
    last=2.0,
)
PROBE = Retry("A health check of a replica that failed", "Calls use the other replicas meanwhile", first=0.5, last=30.0)
LIMITER = Retry(
    "The stream of cycles that a limiter of background work follows", "The task keeps its limit meanwhile", first=1.0
)
SESSION = Retry(
    "A connection to ZooKeeper", "Short beside the session timeout, after which the leader changes", first=0.1, last=2.0
)
OUTCOME = Retry(
    "Reading back a write whose answer from ZooKeeper was lost",
    "The write waits for it, within its own timeout",
    first=0.05,
)
ELECTION = Retry(
    "The candidacy of a planner, and its withdrawal",
    "Without a leader no cycle runs, and an old candidate blocks the others",
    first=0.2,
)
STORED_STATE = Retry(
    "Following overrides, the pause and other nodes in ZooKeeper",
    "An operator expects an effect within a second",
    first=0.5,
)
STATE_TOPIC = Retry(
    "Reading the state topic in Kafka, and appending to it",
    "A new leader of its partition is used at once. A request without an answer ends after 2 s, or as it is elected",
    first=0.05,
)
CLUSTER = Retry(
    "Following the cluster in ZooKeeper", "A new reassignment needs its throttles within a second", first=0.5
)
LISTS = Retry(
    "Reading lists of throttled replicas that seem edited, three times",
    "A broker learns a new config within milliseconds",
    first=0.05,
    last=0.2,
)
CONTROLLER = Retry(
    "A request to Kafka's controller while none answers",
    "Kafka elects one in less than a second. The request's own timeout ends the attempts",
    first=0.2,
)
BROKER = Retry(
    "A connection to an address of Kafka. A success at one address ends the wait of all others",
    "A restarted broker is used after a tenth of its absence at most, and a long outage costs nothing",
    first=0.05,
    last=5.0,
    growth=1.1,
)
ANSWER = Retry(
    "A read whose answer lacks what was asked for, three times. A delay by a client quota of Kafka comes first",
    "The gap is due to a delay or to damage on the way, and a second answer is complete",
    first=0.1,
    last=1.0,
)
TOKEN = Retry(
    "A token for the login at Kafka by OAUTHBEARER",
    "The current token stays in use, and a token endpoint must not be flooded",
    first=1.0,
    last=10.0,
)
LOGIN = Retry(
    "A changed login at Kafka that no broker accepts",
    "The previous one stays in use, and the brokers may learn of a change later than this process",
    first=10.0,
)
DECISION_FILES = Retry(
    "Writing a file of the decision log",
    "The spool keeps the cycles, and a full disk or an outage of a store takes minutes",
    first=5.0,
)
ACCEPT = Retry(
    "Accepting HTTP connections while descriptors or memory are short",
    "Requests in progress end within a second, and the kernel queues new connections",
    first=1.0,
)
CONNECTION_COUNT = Retry("Counting the connections of callers", "The log gets one line in a minute", first=60.0)
FORECAST = Retry(
    "The hourly forecast of brokers and pools",
    "A missing history or a faulty pools file stays for a while, and the last forecast stays valid",
    first=60.0,
    last=3600.0,
)

RETRIES: tuple[Retry, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Retry))
"""All of them, in the order of the table."""
