"""The dynamic configs of Kafka that hold replication throttles, and the ledger of what autothrottle has written there.

This module defines config resources, the four throttle keys and the grammar of replica lists. `plan` decides their
desired values, and `changes` the edits that lead there. The types to know are `ConfigResource` and `LedgerEntry`.

The ledger lets autothrottle restore what it has written and nothing else. There is one entry for each config resource.
A rate is owned as a whole; the entries of a replica list are owned one by one. Every value that is not in the ledger is
foreign. Where config and ledger cannot be written in one transaction, the ledger first records the value that is about
to be written (the intent), and later that it was written. If that is interrupted, the current value is one of the two.

Brokers also report how much data a follower fetches at once, which decides whether its throttle can hold. Brokers read
fetch sizes only when they start (KIP-576, which would change that, is not adopted).

Source: KIP-73 (throttles, question 5), KIP-74; the default fetch sizes are Kafka's, 0.10.1 to 4.x.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache

from autothrottle.core.codec import LEFT_OUT, ValueForm, stored, text
from autothrottle.core.errors import Invalid
from autothrottle.core.open_enum import OpenEnum
from autothrottle.core.units import MAX_INT32, MAX_RATE, BytesPerSecond

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

RATE_KEYS = (LEADER_RATE, FOLLOWER_RATE)
REPLICAS_KEYS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
THROTTLE_KEYS = frozenset(RATE_KEYS + REPLICAS_KEYS)

WILDCARD = "*"
"""The list entry that covers every replica of the topic."""

MAX_VALUE_BYTES = 32_767
"""The longest config value that Kafka's admin clients can describe or alter."""


class ReplicaRole(OpenEnum):
    """The side of replication that a broker is on."""

    LEADER = "leader"
    """The broker sends."""
    FOLLOWER = "follower"
    """The broker receives."""

    # A cycle of 1,000 brokers hashes roles 90,000 times, and `Enum` hashes in Python.
    __hash__ = object.__hash__

    def __init__(self, side: str) -> None:
        self.rate_key = f"{side}.replication.throttled.rate"
        """The broker config that limits this role, bytes/s."""
        self.replicas_key = f"{side}.replication.throttled.replicas"
        """The topic config that lists the replicas to which this role's rate applies."""


class ResourceType(Enum):
    """The kinds of config resource that autothrottle writes."""

    BROKER = "brokers"
    TOPIC = "topics"
    QUOTA = "quotas"
    """A user, client id, pair or IP address with client quotas, see `core.quotas`."""


THROTTLED_TYPES = (ResourceType.BROKER, ResourceType.TOPIC)
"""The kinds of config resource that hold throttles."""

_QUOTA_PATHS = ("users", "clients", "ips")


class ConfigResource(str):
    """The dynamic config of one broker, topic or quota entity, identified by what Kafka calls the entity path.

    The path is `brokers/<id>`, `topics/<name>`, or that of a `ClientQuotaEntity`, as under `/config` and in change
    notifications. Messages and JSON contain it as a text.
    """

    __slots__ = ()

    @property
    def path(self) -> str:
        return str(self)

    @staticmethod
    def broker(broker_id: int) -> ConfigResource:
        return ConfigResource(f"brokers/{broker_id}")

    @staticmethod
    def default_broker() -> ConfigResource:
        """The dynamic config that applies to brokers without values of their own; autothrottle never writes it."""
        return ConfigResource("brokers/<default>")

    @staticmethod
    def topic(name: str) -> ConfigResource:
        return ConfigResource(f"topics/{name}")

    @property
    def type(self) -> ResourceType:
        kind = self.partition("/")[0]
        return ResourceType.QUOTA if kind in _QUOTA_PATHS else ResourceType(kind)

    @property
    def name(self) -> str:
        """The broker id as text, or the topic name."""
        return self.partition("/")[2]

    @property
    def broker_id(self) -> int:
        """The broker id; valid only for a broker's config."""
        return int(self.name)

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: brokers by id, then topics by name, then quota entities."""
        if self.type is ResourceType.BROKER:
            return 0, self.broker_id, ""
        return (1, 0, self.name) if self.type is ResourceType.TOPIC else (2, 0, self.path)


ReplicaEntry = tuple[int, int]
"""One entry of a replica list: (partition, broker id)."""

_ENTRY = re.compile(r"0*([0-9]{1,10}):0*([0-9]{1,10})")
_ENTRIES = re.compile(r"(?:[0-9]{1,9}+:[0-9]{1,9}+,)*[0-9]{1,9}:[0-9]{1,9}")
"""A list of numbers that surely are in range, in any order. The possessive quantifiers limit backtracking.

Only digits have them: with one on the group, the `fullmatch` of Python 3.11.2 (Debian 12) also accepts `1:2:3`.
"""
_RATE = re.compile(r"([+-]?)0*([0-9]{1,19})")


def parse_replicas(value: str) -> frozenset[str]:
    """Return the entries of a replica list; "" is the empty list, and empty entries are ignored.

    >>> sorted(parse_replicas("0:1001, 1:1002,"))
    ['0:1001', '1:1002']

    Raises:
        Invalid: an entry is not `partition:broker`, a number is above 2^31-1, or `*` does not stand alone. Kafka stores
            some of these lists, but no broker applies them.
    """
    if _ENTRIES.fullmatch(value):
        return frozenset(value.split(","))
    entries = frozenset(entry.strip() for entry in value.split(",")) - {""}
    if entries != {WILDCARD}:
        for entry in entries:
            numbers = _ENTRY.fullmatch(entry)
            if numbers is None or max(map(int, numbers.groups())) > MAX_INT32:
                raise Invalid(
                    f"replica list entry {entry[:40]!r} is not `partition:broker` with numbers in 0..{MAX_INT32}; "
                    "`*` stands alone"
                )
    return entries


def format_replicas(entries: Iterable[str]) -> str:
    """Return a replica list in Kafka's text form, ordered by partition and broker.

    >>> format_replicas({"10:1001", "2:1001", "2:1000"})
    '2:1000,2:1001,10:1001'
    """
    return ",".join(sorted(entries, key=_entry_order))


def _entry_order(entry: str) -> ReplicaEntry:
    if entry == WILDCARD:
        return (-1, -1)
    partition, _, broker_id = entry.partition(":")
    return int(partition), int(broker_id)


def parse_rate(value: str) -> int:
    """Return a rate in bytes/s.

    Raises:
        Invalid: the value is not a signed 64-bit integer.
    """
    rate = _signed_rate(value)
    if rate is None:
        raise Invalid(f"rate {value[:40]!r} is not an integer number of bytes/s in -2^63..2^63-1")
    return rate


def _signed_rate(value: str) -> int | None:
    # The length is limited first: int() refuses texts of thousands of digits.
    match = _RATE.fullmatch(value.strip())
    rate = int(match[1] + match[2]) if match else None
    return rate if rate is not None and -MAX_RATE - 1 <= rate <= MAX_RATE else None


def limiting_rate(value: str) -> int | None:
    """Return the limit that a config value sets, bytes/s; None: no known limit.

    Kafka ignores negative values. A value that is not a signed 64-bit integer can be written only in ZooKeeper. A
    broker fails to apply it and keeps its previous limit, which no config shows.

    >>> limiting_rate("5"), limiting_rate("-1"), limiting_rate("9223372036854775808"), limiting_rate("")
    (5, None, None, None)
    """
    rate = _signed_rate(value)
    return rate if rate is not None and rate >= 0 else None


def texts_of(value: str | None) -> frozenset[str]:
    """Return the entries of a replica list, or the value of a rate or a quota, as texts; none if it is not set."""
    return frozenset(value.split(",")) if value else frozenset()


def _joined(texts: Iterable[str]) -> str:
    return ",".join(sorted(texts))


_LIST = ValueForm(lambda value: parse_replicas(text(value)), _joined)
_TEXTS = ValueForm(lambda value: texts_of(text(value)), _joined)

LATE_WRITES = timedelta(seconds=60)
"""How long after a write of unknown outcome Kafka may still apply it.

A broker forwards a config write to the controller, and retries this for 60 s if the controller does not answer.

Source: Kafka's BrokerServer.scala (`retryTimeoutMs` of the channel "forwarding").
"""


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """The ledger's record of one throttle key that autothrottle wrote.

    >>> LedgerKey(None, "0:1,0:2", frozenset({"0:1", "0:2"})) == LedgerKey(None, "0:1,0:2")
    True
    """

    before: str | None
    """The value to restore when we release the key; None: delete the key."""
    written: str | None
    """The value that we wrote last. Any other current value is foreign, unless it is the intent.

    While there is an intent, this is the value that it replaces; None: the key was not set.
    """
    part: frozenset[str] | None = field(default=None, metadata=stored("owned", _LIST, is_left_out=True))
    """The entries that we own, for a replica list that also has foreign entries; those of the intent included, never
    empty. None: we own all of `written` and `intent`, as with every rate. This avoids sending, storing and reading the
    lists of 100,000 partitions twice."""
    intent: str | None = field(default=None, metadata=LEFT_OUT)
    """The value that was about to be written, while the write is unconfirmed; None: it is confirmed."""
    target: str | None = field(default=None, metadata=LEFT_OUT)
    """The rate at which the current ramp ends; None: this value is not a ramp step."""
    late: frozenset[str] = field(default=frozenset(), metadata=stored(form=_TEXTS, is_left_out=True))
    """The values of earlier writes of unknown outcome that may still arrive, without the intent; of a replica list its
    entries."""
    settles: datetime | None = field(default=None, metadata=LEFT_OUT)
    """UTC; from this time on no value of `late` arrives. None: `late` is empty."""

    def __post_init__(self) -> None:
        if self.late or self.settles:
            late = self.late - texts_of(self.intent)
            object.__setattr__(self, "late", late)
            object.__setattr__(self, "settles", self.settles if late else None)
        # Normalise: full ownership is stored as None, and a released key owns nothing.
        if self.part is not None and (self.is_released or self.part in (frozenset(), self._entries())):
            object.__setattr__(self, "part", None)

    @classmethod
    def from_stored(
        cls,
        *,
        before: str | None,
        written: str | None,
        intent: str | None = None,
        late: frozenset[str] = frozenset(),
        settles: datetime | None = None,
        part: frozenset[str] | None = None,
        target: str | None = None,
    ) -> LedgerKey:
        """Return the record of stored fields, see `stored`.

        Raises:
            Invalid: they do not fit together.
        """
        if written is None and (intent is None or before is not None):
            raise Invalid("nothing was written, or no value replaced the one before")
        if bool(late) != (settles is not None):
            raise Invalid("late and settles are not set together")
        if is_released_intent(intent, late):
            intent = part = None
        return cls(before, written, part, intent, target, late, settles)

    def _entries(self) -> frozenset[str]:
        return texts_of(self.written) | texts_of(self.intent)

    @property
    def is_released(self) -> bool:
        """Whether the value before ours is restored, and the record only waits for `late`."""
        return self.settles is not None and self.intent is None and self.written == self.before

    def stored(self, key: str) -> tuple[str | None, frozenset[str] | None]:
        """Return the intent and the part to store.

        Versions that ignore `late` thus read a released key as one whose write is unconfirmed, and release it again.
        """
        if not self.is_released:
            return self.intent, self.part
        return _joined(self.late), self.late if key in REPLICAS_KEYS else None

    @property
    def owned(self) -> frozenset[str]:
        """The entries of a replica list that we own, including those of the intent, without `late`."""
        if self.part is not None:
            return self.part
        if self.is_released:
            return frozenset()
        return parse_replicas(self.written or "") | parse_replicas(self.intent or "")

    @property
    def final_rate(self) -> str | None:
        """The rate at which a ramp ends; for an unconfirmed write, the one before it."""
        return self.written if self.target is None else self.target

    def is_ours(self, current: str | None) -> bool:
        """Return whether a current value is one that we wrote or were about to write."""
        return current == self.written or (current is not None and (current == self.intent or current in self.late))

    def is_late(self, current: str | None) -> bool:
        """Return whether a value of `late` has arrived; of a replica list any entry.

        A late removal of entries from a list that is not set any more leaves an empty list.
        """
        return not self.late.isdisjoint(texts_of(current)) or (bool(self.late) and current == "" != self.before)


def is_released_intent(intent: str | None, late: Iterable[str]) -> bool:
    """Return whether a stored intent is that of `LedgerKey.stored` for a released key, and no intent."""
    return bool(intent) and texts_of(intent) <= frozenset(late)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What we wrote to one config resource; never empty (the entry is deleted with its last key)."""

    keys: Mapping[str, LedgerKey]
    """Config key -> its record."""
    term: int
    """The term that last wrote the entry."""
    cycle: int = 0
    """The cycle of that term that last wrote the entry."""

    def records(self, current: Mapping[str, str]) -> Mapping[str, LedgerKey]:
        """Return the records of the keys that are ours: of a released key only once a late value has arrived.

        Args:
            current: key -> its current value.
        """
        return {n: key for n, key in self.keys.items() if not key.is_released or key.is_late(current.get(n))}


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


TOPIC_NAME = r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}"
"""Kafka's rule for topic names, as a regular expression to be matched against the whole text."""

_TOPIC = re.compile(TOPIC_NAME)


@lru_cache(maxsize=10_000)
def validate_topic(topic: str) -> str:
    """Return the name of a topic. Names become paths of znodes and of files, so each door checks them.

    Raises:
        Invalid: it breaks Kafka's rule for names.
    """
    if not _TOPIC.fullmatch(topic):
        text = f"{topic[:60]!r}{'...' if len(topic) > 60 else ''}"
        raise Invalid(
            f"{text} is not the name of a topic; give 1 to 249 letters, digits, '.', '_' and '-', and neither '.' nor "
            "'..'"
        )
    return topic


DEFAULT_RESPONSE_BYTES = 10_485_760
DEFAULT_WINDOW_SECONDS = 11
DEFAULT_MIN_IN_SYNC_REPLICAS = 1

SMALLEST_RESPONSE_BYTES = 65_536
"""Smallest recommended response. A fetch is cut where its size ends, so it should hold several batches of records."""

_FITTING_SECONDS = 0.05
_LARGE_SECONDS = 2 * _FITTING_SECONDS
"""Sizes that fit remain accepted while the rate falls to half."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The fetch and quota settings of one broker."""

    response_max_bytes: int = DEFAULT_RESPONSE_BYTES
    """`replica.fetch.response.max.bytes`, bytes, > 0."""
    window_seconds: int = DEFAULT_WINDOW_SECONDS
    """`replication.quota.window.num` x `replication.quota.window.size.seconds`, seconds, > 0."""


KAFKA_DEFAULTS = FetchSettings()
"""The settings of a broker that did not report them."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings that limit how replicas are fetched, all read at one time."""

    brokers: Mapping[int, FetchSettings] = field(default_factory=dict)
    """Broker id -> its settings; absent: the broker did not report them; see `KAFKA_DEFAULTS`."""
    min_in_sync_replicas: Mapping[str, int] = field(default_factory=dict)
    """Topic -> its `min.insync.replicas`; absent: unknown; see `DEFAULT_MIN_IN_SYNC_REPLICAS`."""


def fill_seconds(response_max_bytes: int, leaders: int, leader_quota: BytesPerSecond, network: BytesPerSecond) -> float:
    """Return how long a follower's first fetch responses take, one from each leader, in seconds.

    `#brokers x replica.fetch.response.max.bytes / min(QuotaLeader x #brokers, NetworkSpeed)`. KIP-73 requires this to
    be shorter than the quota window; otherwise the first responses exceed the quota before it can act.

    Args:
        response_max_bytes: size of one response, > 0.
        leaders: number of brokers that send to the follower, > 0.
        leader_quota: leader throttle of each of them, bytes/s, > 0.
        network: capacity of the follower's link, bytes/s, > 0.

    KIP-73's example: 500 nodes with a quota of 1 MB/s each and 10 MB responses fill a GbE link for 50 s.

    >>> fill_seconds(10_000_000, leaders=500, leader_quota=1_000_000, network=100_000_000)
    50.0
    """
    return leaders * response_max_bytes / min(leader_quota * leaders, network)


def largest_response(leaders: int, leader_quota: BytesPerSecond, network: BytesPerSecond, window_seconds: float) -> int:
    """Return the largest `replica.fetch.response.max.bytes` with which the quota holds, bytes.

    KIP-73's examples: 5 and 500 nodes on GbE, with a leader quota of 1 MB/s and a window of 10 s.

    >>> largest_response(leaders=5, leader_quota=1_000_000, network=100_000_000, window_seconds=10)
    10000000
    >>> largest_response(leaders=500, leader_quota=1_000_000, network=100_000_000, window_seconds=10)
    2000000
    """
    return int(window_seconds * min(leader_quota * leaders, network) / leaders)


def fitting_response(leaders: int, rate: BytesPerSecond) -> int:
    """Return the recommended `replica.fetch.response.max.bytes`, bytes: a power of 2, at least 64 KiB.

    The largest one up to `rate * 0.05 s / #leaders`. A quota is on or off: while it is on, the responses of all leaders
    to one round of fetches arrive at the speed of the link, and clients wait for them.

    Source: measured behind shaped links, docs/benchmarks.md (fetch sizes).

    Args:
        leaders: number of brokers that send to the follower, > 0.
        rate: throttle of the follower, bytes/s, >= 0.

    >>> fitting_response(leaders=4, rate=6_000_000), fitting_response(leaders=4, rate=1_000_000_000)
    (65536, 8388608)
    """
    response_bytes = int(rate * _FITTING_SECONDS / leaders)
    return max(SMALLEST_RESPONSE_BYTES, 1 << max(response_bytes, 1).bit_length() - 1)


def is_large_response(response_max_bytes: int, leaders: int, rate: BytesPerSecond) -> bool:
    """Return whether one round of responses takes more than 0.1 s of a follower's throttle, and smaller ones may fit.

    >>> is_large_response(10_485_760, leaders=3, rate=9_000_000), is_large_response(10_485_760, 3, 400_000_000)
    (True, False)
    """
    return response_max_bytes > SMALLEST_RESPONSE_BYTES and response_max_bytes * leaders > rate * _LARGE_SECONDS
