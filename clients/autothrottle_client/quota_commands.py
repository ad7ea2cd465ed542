"""The command `quota` of `throttlectl`: Kafka's client quotas, and rules for clients that yield to a recovery."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autothrottle.core.quotas.yielding import YieldRule
from autothrottle_client import tables
from autothrottle_client.commands import CommandCall
from autothrottle_client.errors import Invalid
from autothrottle_client.quotas import QuotaChange, QuotaEntity, QuotaValues


def quota(call: CommandCall) -> None:
    """Show and change Kafka's client quotas.

    throttlectl quota list
    throttlectl quota describe --user alice --client-id backfill-1
    throttlectl quota set --default-user --client-id backfill-1 --producer-byte-rate 20MB/s
    throttlectl quota set --client-id backfill-1 --producer-byte-rate 5MB/s --until-recovered --expires 2h
    throttlectl quota remove --user alice --keys producer_byte_rate --dry-run
    throttlectl quota rule set backfills --client-id 'backfill-*' --at-most 20MB/s --floor 1MB/s
    throttlectl quota rule list
    """
    operations = {
        "list": _list_quotas,
        "describe": _describe_quota,
        "set": _set_quota,
        "remove": _remove_quota,
        "rule list": _list_rules,
        "rule set": _set_rule,
        "rule remove": _remove_rule,
    }
    operation = _operation(call.arguments)
    if operation not in operations:
        raise Invalid(f"quota {operation} is not a command; give quota {', '.join(operations)}")
    operations[operation](call)


def _operation(arguments: argparse.Namespace) -> str:
    """Return for example `list` or `rule list`."""
    return f"{arguments.operation} {arguments.action or ''}".strip()


_QUOTA_VALUES = tuple(field.name for field in fields(QuotaValues))
_QUOTA_PARTS = tuple(field.name for field in fields(QuotaEntity))
_QUOTA_OPTIONS = {
    "list": (),
    "describe": ("user", "client_id", "ip"),
    "set": (*_QUOTA_PARTS, *_QUOTA_VALUES, "etag", "dry_run", "expires", "until_recovered"),
    "remove": (*_QUOTA_PARTS, "keys", "etag", "dry_run"),
    "rule list": (),
    "rule set": ("name", "user", "client_id", "at_most", "floor", "keys", "dry_run", "force"),
    "rule remove": ("name", "dry_run"),
}
"""Operation -> the options that it takes."""


def _quota_options(call: CommandCall) -> dict[str, Any]:
    """Return the given options of a quota command.

    Raises:
        Invalid: the operation does not take one of them.
    """
    operation, arguments = _operation(call.arguments), vars(call.arguments)
    options = dict.fromkeys(option for options in _QUOTA_OPTIONS.values() for option in options)
    given = {name: arguments[name] for name in options if arguments[name] is not None and arguments[name] is not False}
    for name in given.keys() - {*_QUOTA_OPTIONS[operation]}:
        shown = given[name] if name == "name" else f"--{name.replace('_', '-')}"
        raise Invalid(f"{shown} has no effect on quota {operation}; leave it out")
    return given


def _list_quotas(call: CommandCall) -> None:
    _quota_options(call)
    quotas, warnings = call.admin.quotas.list()
    call.show({"quotas": quotas, "warnings": warnings}, tables.quotas_table(quotas), warnings)


def _describe_quota(call: CommandCall) -> None:
    quotas = call.admin.quotas.describe(**_quota_options(call))
    call.show({"quotas": quotas}, tables.effective_quotas_table(quotas))


def _set_quota(call: CommandCall) -> None:
    given = _quota_options(call)
    values = QuotaValues(**{name: given[name] for name in _QUOTA_VALUES if name in given})
    entity, etag, arguments = _quota_entity(given), given.get("etag", ""), call.arguments
    change = call.admin.quotas.set(
        entity, values, etag, arguments.dry_run, arguments.expires, arguments.until_recovered
    )
    _show_quota(call, change)


def _remove_quota(call: CommandCall) -> None:
    given = _quota_options(call)
    keys, etag = given.get("keys", ()), given.get("etag", "")
    _show_quota(call, call.admin.quotas.remove(_quota_entity(given), keys, etag, call.arguments.dry_run))


def _quota_entity(given: Mapping[str, Any]) -> QuotaEntity:
    return QuotaEntity(**{name: given[name] for name in _QUOTA_PARTS if name in given})


def _show_quota(call: CommandCall, change: QuotaChange) -> None:
    old, new = tables.quota_words(change.before), tables.quota_words(change.quota.values)
    text = f"{change.quota.entity}: {'would be ' if call.arguments.dry_run else ''}{new} (before: {old})"
    call.show(change, text, change.warnings)


def _list_rules(call: CommandCall) -> None:
    _quota_options(call)
    rules = call.admin.quotas.list_rules()
    call.show({"rules": rules}, tables.yield_rules_table(rules))


def _set_rule(call: CommandCall) -> None:
    given = _quota_options(call)
    for name, option in (("name", "the name of the rule"), ("at_most", "--at-most"), ("floor", "--floor")):
        if name not in given:
            raise Invalid(f"quota rule set needs {option}; give it")
    rate, share = given["at_most"]
    rule = YieldRule(
        name=given["name"],
        floor_bytes_per_second=given["floor"],
        user=given.get("user"),
        client_id=given.get("client_id"),
        at_most_bytes_per_second=rate,
        at_most_share=share,
        keys=frozenset(given.get("keys", ())),
    )
    dry_run = call.arguments.dry_run
    change = call.admin.quotas.set_rule(rule, dry_run, call.arguments.force)
    old = f" (before: {change.before.sentence})" if change.before else ""
    text = f"{change.rule.name}{' would be' if dry_run else ''}: {change.rule.sentence}{old}"
    call.show(change, text, change.warnings)


def _remove_rule(call: CommandCall) -> None:
    given = _quota_options(call)
    if "name" not in given:
        raise Invalid("quota rule remove needs the name of the rule; quota rule list shows the existing ones")
    dry_run = call.arguments.dry_run
    removed = call.admin.quotas.remove_rule(given["name"], dry_run)
    text = f"{removed.name}: yield rule {'would be removed' if dry_run else 'removed'} ({removed.sentence})"
    call.show({"removed": removed}, text)
