"""The link capacity of each broker, and the options that set it.

This module defines the capacity settings and their precedence; host tags are read elsewhere. The type to know is
`CapacityLimits`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.loads import MAX_LINK_RATE, Capacity
from autothrottle.core.units import MEGABYTE, BytesPerSecond, without_unit

MAX_CAPACITY_MEGABYTES = MAX_LINK_RATE // MEGABYTE
"""The largest capacity, MB/s. A larger value was probably given in bytes/s or bit/s."""

_FORMS = 'MB/s or {"tx": MB/s, "rx": MB/s}'
_RANGE = f"> 0 and <= {MAX_CAPACITY_MEGABYTES}"

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """The capacities set by the operator."""

    by_broker: Mapping[int, Capacity] = field(default_factory=dict)
    """Broker id -> its capacity; absent: not set for this broker."""
    by_instance_type: Mapping[str, Capacity] = field(default_factory=dict)
    """Instance type -> the capacity of every broker of that type. No name is special: settings such as a minimum have
    their own options."""
    default: Capacity | None = None
    """Fallback capacity, with the option that gives it as its origin if it has another name; None: not set."""

    def of_device(self, broker_id: int) -> Callable[[Capacity | None], Capacity]:
        """Return speed of the broker's fastest network device, None: unknown -> its capacity, see `capacity_of`."""
        return lambda device: capacity_of(broker_id, None, device, self)


def capacity_of(broker_id: int, instance_type: str | None, tagged: Capacity | None, limits: CapacityLimits) -> Capacity:
    """Return the capacity of a broker: set by its id, else by its own tag, else by its instance type, else the default.

    Args:
        broker_id: the broker.
        instance_type: instance type of the broker's host; None: unknown.
        tagged: capacity from the host's tag or of its device, with its origin; None: it has none.
        limits: the operator's settings.

    Raises:
        Missing: none of them gives a capacity; the message names the fix.
    """
    by_type = None if instance_type is None else limits.by_instance_type.get(instance_type)
    for capacity, origin in (
        (limits.by_broker.get(broker_id), "--broker-cap-map"),
        (tagged, tagged.origin if tagged else ""),
        (by_type, f"--cap-map for {instance_type}"),
        (limits.default, (limits.default and limits.default.origin) or "--default-capacity"),
    ):
        if capacity is not None:
            return replace(capacity, origin=origin)
    raise Missing(_no_capacity(broker_id, instance_type))


def _no_capacity(broker_id: int, instance_type: str | None) -> str:
    if instance_type is None:
        return (
            f"broker {broker_id} has no known capacity: its instance type is unknown; set --default-capacity, add "
            f"{json.dumps(str(broker_id))} to --broker-cap-map or, with Datadog, tag its host with its instance type"
        )
    name = json.dumps(instance_type)
    return (
        f"broker {broker_id} has no known capacity: nothing is set for its instance type {name}; "
        f"add {name} to --cap-map or set --default-capacity"
    )


def parse_cap_map(text: str, option_name: str) -> dict[str, Capacity]:
    """Return instance type -> capacity from a JSON object `{"type": MB/s | {"tx": MB/s, "rx": MB/s}}`.

    >>> parse_cap_map('{"d2.xlarge": 100}', "--cap-map")
    {'d2.xlarge': Capacity(outbound=100000000, inbound=100000000)}

    Args:
        text: the option's value; "" is an empty map.
        option_name: the option's name, for error messages.

    Raises:
        Invalid: the text is invalid; the message lists every problem.
    """
    return _parse_map(text, option_name, _instance_type)


def parse_broker_cap_map(text: str, option_name: str) -> dict[int, Capacity]:
    """Return broker id -> capacity from a JSON object `{"id": MB/s | {"tx": MB/s, "rx": MB/s}}`.

    >>> parse_broker_cap_map('{"1001": {"tx": 100, "rx": 50}}', "--broker-cap-map")
    {1001: Capacity(outbound=100000000, inbound=50000000)}

    Args:
        text: the option's value; "" is an empty map.
        option_name: the option's name, for error messages.

    Raises:
        Invalid: the text is invalid; the message lists every problem.
    """
    return _parse_map(text, option_name, parse_broker_id)


def parse_capacity(text: str, name: str) -> Capacity:
    """Return the capacity in a text: MB/s, with or without the unit, or a JSON object with `tx` and `rx`.

    >>> parse_capacity("12.5", "--default-capacity")
    Capacity(outbound=12500000, inbound=12500000)

    Args:
        text: the value of an option or a tag.
        name: the name of the option or tag, for error messages.

    Raises:
        Invalid: the text is invalid; the message lists every problem.
    """
    try:
        value = json.loads(without_unit(text), object_pairs_hook=_Pairs)
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
    # Parsed as pairs, because a dict would hide a duplicate name.
    try:
        pairs = json.loads(text or "{}", object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise Invalid(f'{option_name} is {text[:100]!r}, not JSON ({error}); give {{"name": {_FORMS}}}') from None
    if not isinstance(pairs, _Pairs):
        raise Invalid(f'{option_name} is {text[:100]!r}, not a JSON object; give {{"name": {_FORMS}}}')
    return pairs


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object, in order."""


def _instance_type(name: str) -> str:
    if not name.strip():
        raise Invalid(f"{name!r} is not an instance type; give a name")
    return name


def _capacity(value: object, where: str, problems: list[str]) -> Capacity | None:
    if not isinstance(value, _Pairs):
        rate = _rate(value, where, problems)
        return None if rate is None else Capacity(outbound=rate, inbound=rate)
    names = [name for name, _ in value]
    if sorted(names) != ["rx", "tx"]:
        problems.append(f"{where} holds {', '.join(map(json.dumps, names)) or 'nothing'}; give {_FORMS}")
        return None
    rates = {name: _rate(rate, f"{where}.{name}", problems) for name, rate in value}
    outbound, inbound = rates["tx"], rates["rx"]
    return None if outbound is None or inbound is None else Capacity(outbound=outbound, inbound=inbound)


def _rate(value: object, where: str, problems: list[str]) -> BytesPerSecond | None:
    # In Python a bool is an int; NaN fails the comparison.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_CAPACITY_MEGABYTES:
        rate = round(value * MEGABYTE)
        if rate > 0:
            return rate
    shown = json.dumps(value) if not isinstance(value, float) else repr(value)
    problems.append(f"{where} is {shown}; give MB/s {_RANGE}")
    return None
