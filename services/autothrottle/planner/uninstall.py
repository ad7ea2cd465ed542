"""Uninstall: restores every config that autothrottle changed in a cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cycle.client_quotas import quota_changes
from autothrottle.core.errors import Conflict
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import release_of_ours, with_records
from autothrottle.ports.kafka import ConfigWriter, QuotaSource, SnapshotSource, Term

log = logging.getLogger(__name__)

_TIMEOUT = timedelta(seconds=60)

_LATE_POLL = timedelta(seconds=5)
"""Time between two checks whether a late write has arrived."""


def take_back_everything(
    term: Term,
    snapshots: SnapshotSource,
    quotas: QuotaSource,
    writer: ConfigWriter,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Outcome]:
    """Restore every throttle and client quota to its value before ours, also during reassignments. Others stay.

    If a write of unknown outcome may still arrive, this waits for it, see `LATE_WRITES`: nothing restores it later.
    Safe to retry.

    Raises:
        Conflict: some configs could not be restored; all others were.
        NotLeader: another planner leads now.
    """
    outcomes: dict[ConfigResource, Outcome] = {}
    while True:
        settles = _take_back(term, snapshots, quotas, writer, outcomes)
        if settles is None:
            return tuple(outcomes.values())
        wait = max(settles - datetime.now(UTC), timedelta(0))
        log.info("Waiting %.0f s, because earlier config writes may still arrive in Kafka", wait.total_seconds())
        sleep(min(wait, _LATE_POLL).total_seconds())


def _take_back(
    term: Term,
    snapshots: SnapshotSource,
    quotas: QuotaSource,
    writer: ConfigWriter,
    outcomes: dict[ConfigResource, Outcome],
) -> datetime | None:
    """Restore what is ours, and add the outcomes; return when the last late write settles, None if none is possible."""
    snapshot = snapshots.fetch_snapshot(timeout=_TIMEOUT)
    state, at = quotas.fetch_quota_state((), _TIMEOUT), datetime.now(UTC)
    change_sets = (
        release_of_ours(snapshot, at, term.fence),
        quota_changes({}, state, at, False, term.fence, 0),
    )
    changes = [change for change_set in change_sets for change in change_set.changes]
    refused = [outcome for change_set in change_sets for outcome in change_set.refused]
    # Without the lease: it lasts seconds, and a large cluster takes longer. Each write is fenced by itself.
    outcomes.update((o.resource, o) for o in [*refused, *writer.apply(Term(term.fence), changes, _TIMEOUT)])
    left = [f"{o.resource}: {o.reason}" for o in outcomes.values() if o.status is OutcomeStatus.REFUSED]
    if left:
        raise Conflict("some configs could not be restored; fix the cause and run this again: " + "; ".join(left))
    ledger = with_records({**snapshot.ledger, **state.ledger}, changes)
    return max((key.settles for entry in ledger.values() for key in entry.keys.values() if key.settles), default=None)
