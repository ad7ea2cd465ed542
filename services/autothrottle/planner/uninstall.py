"""Uninstall: restores every config that autothrottle changed in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.core.errors import Conflict
from autothrottle.core.quotas.step import quota_changes
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import release_of_ours
from autothrottle.ports.kafka import ConfigWriter, QuotaSource, SnapshotSource, Term

_TIMEOUT = timedelta(seconds=60)


def take_back_everything(
    term: Term, snapshots: SnapshotSource, quotas: QuotaSource, writer: ConfigWriter
) -> Sequence[Outcome]:
    """Restore every throttle and client quota to its value before ours, also during reassignments. Others stay.

    Safe to retry.

    Raises:
        Conflict: some configs could not be restored; all others were.
        NotLeader: another planner leads now.
    """
    snapshot = snapshots.fetch_snapshot(timeout=_TIMEOUT)
    found = release_of_ours(snapshot, term.fence)
    state = quotas.fetch_quota_state((), _TIMEOUT)
    of_quotas = quota_changes({}, state, datetime.now(UTC), False, term.fence, 0)
    changes = [*found.changes, *of_quotas.changes]
    # Without the lease: it lasts seconds, and a large cluster takes longer. Each write is fenced by itself.
    outcomes = [*found.refused, *of_quotas.refused, *writer.apply(Term(term.fence), changes, _TIMEOUT)]
    left = [f"{o.resource}: {o.reason}" for o in outcomes if o.status is OutcomeStatus.REFUSED]
    if left:
        raise Conflict("some configs could not be restored; fix the cause and run this again: " + "; ".join(left))
    return outcomes
