"""The client quotas of a cycle: which temporary quotas hold, and the edits that set and restore quotas.

A quota is owned like a rate: the ledger has the value before ours, and a value that another party sets is not changed
when ours ends. The type to know is `QuotaState`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey
from autothrottle.core.quotas.keys import TemporaryQuotas, format_value
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, ChangeSet, change_of
from autothrottle.core.throttles.ownership import desired_rate

DesiredQuotas = Mapping[ConfigResource, Mapping[str, str]]
"""Quota entity -> key -> text of its value."""


@dataclass(frozen=True, slots=True)
class QuotaState:
    """The current quotas of some entities, and the ledger of all quotas."""

    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    """Resource -> key -> text of its value; absent: no quota is set."""
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """Resource -> what we wrote to it."""
    unreadable: Mapping[ConfigResource, str] = field(default_factory=dict)
    """Resource -> why its quotas or its ledger entry cannot be read; nothing is written to it."""


def quota_changes(
    temporary: TemporaryQuotas,
    state: QuotaState,
    at: datetime,
    is_recovering: bool | None,
    term: int,
    cycle: int,
    yielding: DesiredQuotas | None = None,
    hold: bool = False,
) -> ChangeSet:
    """Return the edits that set the quotas in force, and restore all others that are in the ledger.

    Args:
        temporary: all temporary quotas.
        state: the current quotas of their entities, and the ledger.
        at: UTC.
        is_recovering: whether a reassignment or a catch-up runs; None: unknown.
        term: the term that writes, for the ledger.
        cycle: the cycle that writes, for the ledger.
        yielding: the quotas of clients that yield to a recovery; a temporary quota beats them. None: no client does.
        hold: whether nothing may be restored, because an unreadable rule may need it.
    """
    in_force = {
        entity.resource: {str(key): format_value(key, value) for key, value in quota.values.items()}
        for entity, quota in temporary.items()
        if not quota.end(at, is_recovering)
    }
    yielded = yielding or {}
    desired = {**yielded, **{r: {**yielded.get(r, {}), **values} for r, values in in_force.items()}}
    changes: list[Change] = []
    refused: list[Outcome] = []
    findings: list[str] = []
    for resource in sorted(
        desired.keys() | state.ledger.keys() | state.unreadable.keys(), key=lambda resource: resource.path
    ):
        if problem := state.unreadable.get(resource):
            refused.append(Outcome(resource, OutcomeStatus.REFUSED, problem))
            continue
        current, entry = state.configs.get(resource, {}), state.ledger.get(resource)
        ledger_keys, values = entry.keys if entry else {}, desired.get(resource, {})
        if ledger_keys and _is_in_force(values, current, ledger_keys):
            continue
        keys = {
            key: desired_rate(values.get(key), current.get(key), ledger_keys.get(key), hold=hold)
            for key in sorted({*values, *ledger_keys})
        }
        findings += [f"{resource}, {key}: {quota.finding}" for key, quota in keys.items() if quota.finding]
        change = change_of(resource, keys, current, entry, term, cycle)
        changes += [change] if change is not None else []
    return ChangeSet(tuple(changes), tuple(refused), tuple(findings))


def _is_in_force(values: Mapping[str, str], current: Mapping[str, str], ledger_keys: Mapping[str, LedgerKey]) -> bool:
    """Return whether all keys are as we wrote them: the usual case, detected without deciding each key."""
    return values.keys() == ledger_keys.keys() and all(
        current.get(key) == text and ledger_keys[key].written == text and ledger_keys[key].intent is None
        for key, text in values.items()
    )
