"""Takes back everything that autothrottle wrote to a cluster, for good."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from autothrottle.core.changes import Outcome, OutcomeStatus
from autothrottle.core.errors import Conflict
from autothrottle.core.pause import taken_back
from autothrottle.ports.cluster import ConfigWriter, SnapshotSource
from autothrottle.ports.leadership import Term

_TIMEOUT = timedelta(seconds=60)


def take_back_everything(term: Term, snapshots: SnapshotSource, writer: ConfigWriter) -> Sequence[Outcome]:
    """Give every throttle back to what stood before ours, moves or not; throttles of others stay.

    Raises:
        Conflict: when something of ours could not be taken back; the rest was, and it may be tried again.
        NotLeader: when another planner leads by now.
    """
    snapshot = snapshots.fetch_snapshot(timeout=_TIMEOUT)
    found = taken_back(snapshot, term.fence)
    outcomes = [*found.refused, *writer.apply(term.fence, found.changes, _TIMEOUT)]
    left = [f"{o.resource}: {o.reason}" for o in outcomes if o.status is OutcomeStatus.REFUSED]
    if left:
        raise Conflict("not everything could be taken back; mend it and run this again:\n  " + "\n  ".join(left))
    return outcomes
