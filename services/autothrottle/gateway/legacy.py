"""The original's text routes: /throttle and below, with parameters in the URL query and rates in MB/s.

Errors have a 4xx status; the original answers 200. An override that is not a whole number of MB/s (possible through
/v1 only) is shown with up to 6 decimals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from autothrottle.core.cluster.configs import BROKER_IDS, MAX_BROKER_ID
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.capacity import MAX_CAPACITY_MEGABYTES
from autothrottle.core.units import MEGABYTE, format_megabytes
from autothrottle.gateway.rest import Call
from autothrottle.v1 import admin_pb2

ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/throttle", "Shows the cluster override."),
    ("GET", "/throttle/{id}", "Shows a broker override."),
    (
        "POST",
        "/throttle?rate=200&autoremove=true",
        "Sets the cluster override in whole MB/s (1 MB is 10^6 bytes). With autoremove=true (default false) it ends "
        "when all reassignments are done.",
    ),
    ("POST", "/throttle/{id}?rate=50", "Sets a broker override in whole MB/s."),
    ("POST", "/throttle/remove", "Removes the cluster override."),
    ("POST", "/throttle/remove/{id}", "Removes a broker override."),
    ("POST", "/throttle/remove/all", "Removes all broker overrides and keeps the cluster override."),
)
"""All routes for the page: (verb, path, description)."""

METHODS = {"GET": "GetOverride", "POST": "SetOverride"}
"""Verb -> a method of admin that needs the same role as the methods that the verb calls."""

_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_MOST_DIGITS = 30

_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
"""Go's spellings of a bool, which the original accepts."""

_NOT_SET = "no throttle override is set"
_NO_BROKER = "broker param must be provided as integer or the string 'all'"


def answer(call: Call, verb: str, path: str, parameters: Mapping[str, str]) -> list[str]:
    """Return the lines of the response to one request.

    Args:
        call: calls the admin service.
        verb: an allowed HTTP method; HEAD counts as GET.
        path: decoded URL path: `/throttle`, `/throttle/1001`, `/throttle/remove/all` ...
        parameters: those of the URL query, name -> text.

    Raises:
        AutothrottleError: the request is wrong, or the admin service answered with an error.
    """
    below = path.split("/")[2:]
    if len(below) > (2 if below[:1] == ["remove"] else 1):
        raise Missing("no such route; GET /api lists all")
    if verb == "GET":
        _refuse_unknown(parameters)
        return [_show(call, broker_id(below[0]) if below else None)]
    if below[:1] == ["remove"]:
        _refuse_unknown(parameters)
        return _remove_all(call) if below[1:] == ["all"] else [_remove(call, *map(broker_id, below[1:]))]
    if below == ["all"]:
        raise Invalid("broker param must be provided as integer: 'all' goes with POST /throttle/remove/all only")
    return [_set(call, broker_id(below[0]) if below else None, parameters)]


def allowed(path: str) -> tuple[str, ...]:
    """Return the allowed methods of a path; GET cannot remove."""
    return ("POST",) if path.split("/")[2:3] == ["remove"] else ("GET", "HEAD", "POST")


def _show(call: Call, broker: int | None) -> str:
    try:
        response = call("GetOverride", admin_pb2.GetOverrideRequest(broker_id=broker))
    except Missing:
        return _whose(broker) + _NOT_SET
    assert isinstance(response, admin_pb2.GetOverrideResponse)
    return f"{_whose(broker)}a throttle override is configured at {_shown(response.override)}"


def _set(call: Call, broker: int | None, parameters: Mapping[str, str]) -> str:
    _refuse_unknown(parameters, "rate", "autoremove")
    rate = rate_megabytes(parameters.get("rate", ""))
    autoremove = boolean(parameters["autoremove"]) if "autoremove" in parameters else False
    # Scripts rely on the rate that they set: these routes do not limit it to the capacity of the link.
    override = admin_pb2.Override(
        broker_id=broker, rate_bytes_per_second=rate * MEGABYTE, autoremove=autoremove, beyond_capacity=True
    )
    response = call("SetOverride", admin_pb2.SetOverrideRequest(override=override))
    assert isinstance(response, admin_pb2.SetOverrideResponse)
    return f"{_whose(broker)}throttle successfully set to {_shown(response.override)}"


def _remove(call: Call, broker: int | None = None) -> str:
    """Remove an override. A missing one is not an error, as in the original: scripts remove it just in case."""
    with suppress(Missing):
        call("RemoveOverride", admin_pb2.RemoveOverrideRequest(broker_id=broker))
    return "throttle successfully removed" if broker is None else f"{_whose(broker)}throttle removed"


def _remove_all(call: Call) -> list[str]:
    """Remove all broker overrides one by one; unreadable ones become warnings."""
    response = call("ListOverrides", admin_pb2.ListOverridesRequest())
    assert isinstance(response, admin_pb2.ListOverridesResponse)
    brokers = [override.broker_id for override in response.overrides if override.HasField("broker_id")]
    return [*(_remove(call, broker) for broker in brokers), *(f"warning: {warning}" for warning in response.warnings)]


def broker_id(given: str) -> int:
    """Return a broker id from a path.

    Raises:
        Invalid: the text is not plain digits in 0..2^31-1.
    """
    number = _integer(given, _NO_BROKER)
    if number not in BROKER_IDS:
        raise Invalid(f"broker param must be >=0 and <={MAX_BROKER_ID}")
    return number


def rate_megabytes(given: str) -> int:
    """Return a rate in whole MB/s.

    Raises:
        Invalid: the rate is absent, not an integer in plain digits, not positive, or above the capacity of any link.
    """
    if not given:
        raise Invalid("rate param must be specified")
    number = _integer(given, "rate param must be supplied as an integer")
    if number <= 0:
        raise Invalid("rate param must be >0")
    if number > MAX_CAPACITY_MEGABYTES:
        raise Invalid(f"rate param must be <={MAX_CAPACITY_MEGABYTES}")
    return number


def boolean(given: str) -> bool:
    """Return a bool in any spelling that the original accepts.

    Raises:
        Invalid: the text is not a bool.
    """
    if given not in (*_TRUE, *_FALSE):
        raise Invalid("autoremove param must be a bool")
    return given in _TRUE


def _integer(given: str, otherwise: str) -> int:
    """Parse plain ASCII digits, with no sign except `-`, no leading zero, no fraction and no white space."""
    if not _DIGITS.fullmatch(given) or len(given) > _MOST_DIGITS:
        raise Invalid(otherwise)
    return int(given)


def _refuse_unknown(parameters: Mapping[str, str], *allowed: str) -> None:
    """Refuse unknown parameters: with a misspelled `autoremove`, an override would stay forever."""
    for name in parameters:
        if name not in allowed:
            raise Invalid(f"{name} param is unknown; this route takes {' and '.join(allowed) or 'none'}")


def _whose(broker: int | None) -> str:
    return "" if broker is None else f"broker {broker}: "


def _shown(override: admin_pb2.Override) -> str:
    rate = format_megabytes(override.rate_bytes_per_second)
    return f"{rate}MB/s, autoremove=={str(override.autoremove).lower()}"
