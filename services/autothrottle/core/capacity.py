"""How fast each broker's link is, and how operators write that down.

Here live the settings for capacities and the rule which of them counts; tags are read elsewhere. The type to
know is `CapacityLimits`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.loads import MEGABYTE, BytesPerSecond, Capacity
from autothrottle.core.topology import parse_broker_id

MAX_CAPACITY_MEGABYTES = 1_000_000
"""The largest capacity, MB/s: no link is near 8 Tbit/s, but a value in bytes/s or bit/s is beyond it."""

_FORMS = 'MB/s or {"tx": MB/s, "rx": MB/s}'
_RANGE = f"> 0 and <= {MAX_CAPACITY_MEGABYTES}"

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """The capacities that an operator has set."""

    by_broker: Mapping[int, Capacity] = field(default_factory=dict)
    """Broker id -> its capacity; absent: the broker has none of its own."""
    by_instance_type: Mapping[str, Capacity] = field(default_factory=dict)
    """Instance type -> the capacity of every broker of that type. Any name is a name: settings such as a
    minimum live elsewhere."""
    default: Capacity | None = None
    """What a broker has that nothing else speaks of."""


def capacity_of(broker_id: int, instance_type: str | None, tagged: Capacity | None, limits: CapacityLimits) -> Capacity:
    """Return the capacity of a broker: by its id, else its own tag, else its instance type, else the default.

    Args:
        broker_id: the broker.
        instance_type: of the broker's host; None when it is unknown.
        tagged: what the host's capacity tag says; None without such a tag.
        limits: what the operator has set.

    Raises:
        Missing: when nothing speaks of this broker; the message names the fix.
    """
    by_type = None if instance_type is None else limits.by_instance_type.get(instance_type)
    for capacity in (limits.by_broker.get(broker_id), tagged, by_type, limits.default):
        if capacity is not None:
            return capacity
    raise Missing(_no_capacity(broker_id, instance_type))


def _no_capacity(broker_id: int, instance_type: str | None) -> str:
    if instance_type is None:
        return (
            f"broker {broker_id} has no known capacity: its instance type is unknown; tag its host with its "
            f"instance type, add {json.dumps(str(broker_id))} to --broker-cap-map or set --default-capacity"
        )
    name = json.dumps(instance_type)
    return (
        f"broker {broker_id} has no known capacity: nothing is set for its instance type {name}; "
        f"add {name} to --cap-map or set --default-capacity"
    )


def parse_cap_map(text: str, option_name: str) -> dict[str, Capacity]:
    """Return instance type -> capacity of a JSON object `{"type": MB/s | {"tx": MB/s, "rx": MB/s}}`.

    >>> parse_cap_map('{"d2.xlarge": 100}', "--cap-map")
    {'d2.xlarge': Capacity(tx=100000000, rx=100000000)}

    Args:
        text: the option's value; "" is an empty map.
        option_name: as the operator knows it, for the message.

    Raises:
        Invalid: naming every problem at once.
    """
    return _parse_map(text, option_name, _instance_type)


def parse_broker_cap_map(text: str, option_name: str) -> dict[int, Capacity]:
    """Return broker id -> capacity of a JSON object `{"id": MB/s | {"tx": MB/s, "rx": MB/s}}`.

    >>> parse_broker_cap_map('{"1001": {"tx": 100, "rx": 50}}', "--broker-cap-map")
    {1001: Capacity(tx=100000000, rx=50000000)}

    Args:
        text: the option's value; "" is an empty map.
        option_name: as the operator knows it, for the message.

    Raises:
        Invalid: naming every problem at once.
    """
    return _parse_map(text, option_name, parse_broker_id)


def parse_capacity(text: str, name: str) -> Capacity:
    """Return the capacity that a text holds: MB/s, or a JSON object with `tx` and `rx`.

    >>> parse_capacity("12.5", "--default-capacity")
    Capacity(tx=12500000, rx=12500000)

    Args:
        text: of an option or a tag.
        name: what holds the text, for the message.

    Raises:
        Invalid: naming every problem at once.
    """
    try:
        value = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise Invalid(f"{name} is {text[:100]!r}; give {_FORMS}, each {_RANGE}") from None
    problems: list[str] = []
    capacity = _capacity(value, name, problems)
    if capacity is None:
        raise Invalid("; ".join(problems))
    return capacity


def _parse_map(text: str, option_name: str, key_of: Callable[[str], _Key]) -> dict[_Key, Capacity]:
    problems: list[str] = []
    capacities: dict[_Key, Capacity] = {}
    for name, value in _pairs(text, option_name):
        where = f"{option_name}[{json.dumps(name)}]"
        capacity = _capacity(value, where, problems)
        try:
            key = key_of(name)
        except Invalid as error:
            problems.append(f"{option_name}: {error}")
            continue
        if key in capacities:
            problems.append(f"{where} is given twice; keep one")
        elif capacity is not None:
            capacities[key] = capacity
    if problems:
        raise Invalid("; ".join(problems))
    return capacities


def _pairs(text: str, option_name: str) -> list[tuple[str, object]]:
    # As pairs, since a dict would hide a name that is given twice.
    try:
        pairs = json.loads(text or "{}", object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise Invalid(f'{option_name} is {text[:100]!r}, no JSON ({error}); give {{"name": {_FORMS}}}') from None
    if not isinstance(pairs, _Pairs):
        raise Invalid(f'{option_name} is {text[:100]!r}, no JSON object; give {{"name": {_FORMS}}}')
    return pairs


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object, in order."""


def _instance_type(name: str) -> str:
    if not name.strip():
        raise Invalid(f"{name!r} is no instance type; name one")
    return name


def _capacity(value: object, where: str, problems: list[str]) -> Capacity | None:
    if not isinstance(value, _Pairs):
        rate = _rate(value, where, problems)
        return None if rate is None else Capacity(tx=rate, rx=rate)
    names = [name for name, _ in value]
    if sorted(names) != ["rx", "tx"]:
        problems.append(f"{where} holds {', '.join(map(json.dumps, names)) or 'nothing'}; give {_FORMS}")
        return None
    rates = {name: _rate(rate, f"{where}.{name}", problems) for name, rate in value}
    tx, rx = rates["tx"], rates["rx"]
    return None if tx is None or rx is None else Capacity(tx=tx, rx=rx)


def _rate(value: object, where: str, problems: list[str]) -> BytesPerSecond | None:
    # A bool is an int in Python; NaN fails the comparison.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_CAPACITY_MEGABYTES:
        rate = round(value * MEGABYTE)
        if rate > 0:
            return rate
    shown = json.dumps(value) if not isinstance(value, float) else repr(value)
    problems.append(f"{where} is {shown}; give MB/s {_RANGE}")
    return None
