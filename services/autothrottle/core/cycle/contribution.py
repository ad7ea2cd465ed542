"""What a concern adds to the decision of a cycle. The type to know is `Contribution`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.submission import SubmissionRequest
from autothrottle.core.quotas.keys import TemporaryQuota
from autothrottle.core.records import CatchUp, Outcome
from autothrottle.core.throttles.changes import Change


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A request for another cycle."""

    reason: str
    after: timedelta = timedelta(0)
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class PurgeOverride:
    """Removes an override at the version that was read."""

    broker_id: int | None
    """None: the cluster override."""
    version: int
    reason: str
    needs: frozenset[ConfigResource] = frozenset()
    """Resources whose change must not have been refused; so in the other actions."""


@dataclass(frozen=True, slots=True)
class PurgeCatchUp:
    """Ends the catch-up of a broker that is in sync."""

    catch_up: CatchUp
    needs: frozenset[ConfigResource] = frozenset()


@dataclass(frozen=True, slots=True)
class PurgeQuota:
    """Ends a temporary client quota whose earlier values are restored."""

    quota: TemporaryQuota
    reason: str
    needs: frozenset[ConfigResource] = frozenset()


Action = SubmissionRequest | PurgeOverride | PurgeCatchUp | PurgeQuota


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one concern adds to the decision of a cycle."""

    changes: tuple[Change, ...] = ()
    refused: tuple[Outcome, ...] = ()
    """Resources that cannot be read; nothing is written to them."""
    actions: tuple[Action, ...] = ()
    findings: tuple[str, ...] = ()
    """One sentence each."""
    wake_ups: tuple[WakeUp, ...] = ()
    answer: AutothrottleError | None = None
    """Why the reassignment that a caller waits for cannot be submitted."""

    @property
    def changed(self) -> frozenset[ConfigResource]:
        """The resources that are changed."""
        return frozenset(change.resource for change in self.changes)

    @property
    def resources(self) -> frozenset[ConfigResource]:
        """The resources that are changed, or whose change is refused."""
        return self.changed.union(outcome.resource for outcome in self.refused)


def merged(contributions: Iterable[Contribution]) -> Contribution:
    """Return all contributions as one, in their order."""
    parts = tuple(contributions)
    return Contribution(
        tuple(chain.from_iterable(part.changes for part in parts)),
        tuple(chain.from_iterable(part.refused for part in parts)),
        tuple(chain.from_iterable(part.actions for part in parts)),
        tuple(chain.from_iterable(part.findings for part in parts)),
        tuple(chain.from_iterable(part.wake_ups for part in parts)),
        next((part.answer for part in parts if part.answer is not None), None),
    )
