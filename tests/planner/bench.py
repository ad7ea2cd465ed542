"""A planner among in-memory twins, driven cycle by cycle in virtual time, or by its own thread."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import TracebackType

from autothrottle.adapters.memory import (
    MemoryCatchUps,
    MemoryCluster,
    MemoryElection,
    MemoryElectorate,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
)
from autothrottle.core.configs import ConfigResource, ReplicaRole
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.limits import Limits
from autothrottle.core.loads import Loads
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.schedule import Schedule
from autothrottle.planner.loop import Planner
from autothrottle.planner.settings import PlannerSettings, Ports
from autothrottle.planner.triggers import Trigger
from autothrottle.ports.decisions import DecisionSink
from autothrottle.ports.leadership import Term
from autothrottle.ports.metrics import Event
from autothrottle.ports.tracing import UNTRACED, Tracer
from tests import builders
from tests.builders import NOON, mb

ADDRESS = "127.0.0.1:4003"
BROKERS = (1001, 1002, 1003, 1004)
LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER


class GatedMetrics(MemoryMetrics):
    """Metrics whose readings or posts wait while their gate is closed, as a source that hangs does."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0
        self.longest_wait = timedelta(0)
        """That the last reading was given."""
        self.reading_gate, self.posting_gate = threading.Event(), threading.Event()
        self.reading_gate.set()
        self.posting_gate.set()
        self.hangs = threading.Event()
        """Set as soon as a reading or a post waits at a closed gate."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        self.readings += 1
        self.longest_wait = timeout
        self._pass(self.reading_gate)
        return super().fetch_loads(timeout)

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self._pass(self.posting_gate)
        super().post_event(event, timeout)

    def _pass(self, gate: threading.Event) -> None:
        if not gate.is_set():
            self.hangs.set()
            assert gate.wait(60), "nobody opened the gate"


class Bench:
    """Four brokers whose clients make them send 20 and receive 10 of 100 MB/s; the interval is a minute.

    Time is virtual, for `cycle`, or real, for the planner's own thread.

    While no throttle stood the headroom is 72 MB/s for a leader and 81 MB/s for a follower.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        interval: timedelta = timedelta(seconds=60),
        cleanup_after: int = 60,
        cleanup_foreign: bool = False,
        real_time: bool = False,
        tracer: Tracer = UNTRACED,
        shadow: bool = False,
        schedule: Schedule = Schedule(),  # noqa: B008 (frozen)
        finish_by: datetime | None = None,
        policy: Policy = HeadroomPolicy(),  # noqa: B008 (frozen)
        decisions: DecisionSink | None = None,
    ) -> None:
        self.seconds = 0.0
        self.real_time, self.tracer, self.decisions = real_time, tracer, decisions
        self._begin = datetime.now(UTC) if real_time else NOON
        self.electorate = MemoryElectorate()
        self.cluster = MemoryCluster(self.electorate, BROKERS)
        self.metrics = GatedMetrics()
        self.overrides = MemoryOverrides(self.electorate)
        self.pauses = MemoryPauses(self.overrides.audit)
        self.catch_ups = MemoryCatchUps(self.electorate)
        self.election = MemoryElection(self.electorate)
        self.settings = PlannerSettings(
            limits=limits or builders.limits(),
            policy=policy,
            interval=interval,
            cleanup_after=cleanup_after,
            cleanup_foreign=cleanup_foreign,
            shadow=shadow,
            schedule=schedule,
            finish_by=finish_by,
        )
        self.planner = self.another_planner()
        self.term = Term(0)
        for broker_id in BROKERS:
            self.measure(broker_id)

    def another_planner(self) -> Planner:
        """A planner of the same cluster that remembers nothing."""
        ports = self.ports(self.election)
        if self.real_time:
            return Planner(ports, self.settings)
        return Planner(ports, self.settings, self.now, lambda: self.seconds)

    def ports(self, election: MemoryElection) -> Ports:
        """The twins, for a candidate of this election."""
        return Ports(
            election=election,
            snapshots=self.cluster,
            loads=self.metrics,
            events=self.metrics,
            writer=self.cluster,
            reassigner=self.cluster,
            overrides=self.overrides,
            pauses=self.pauses,
            catch_ups=self.catch_ups,
            settings=self.cluster,
            tracer=self.tracer,
            decisions=self.decisions,
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.metrics.reading_gate.set()
        self.metrics.posting_gate.set()
        self.planner.stop()

    def now(self) -> datetime:
        """Virtual time."""
        return NOON + timedelta(seconds=self.seconds)

    def measure(self, broker_id: int, tx: float = 20, rx: float = 10) -> None:
        """Let the mean traffic of the 30 s before the test be so many MB/s."""
        self.metrics.set_loads(builders.load(broker_id, tx=mb(tx), rx=mb(rx), end=self._begin))

    def begin_move(self, topic: str = "t1", partitions: int = 1) -> None:
        """Replace 1002 by 1003 in every partition; 1001 leads."""
        self.cluster.add_topic(topic, dict.fromkeys(range(partitions), (1001, 1002)))
        self.cluster.start_reassignment(topic, dict.fromkeys(range(partitions), (1001, 1003)))

    def cycle(self, reason: str = "", after: float | None = None) -> CycleRecord:
        """Run the next scheduled cycle; with a reason one that an event starts, a second later."""
        self.seconds += after if after is not None else 1 if reason else 60
        if not self.term.fence:
            self.term = Term(self.electorate.begin_term(ADDRESS))
        return self.planner.run_cycle(self.term, Trigger(reason or "interval", scheduled=not reason))

    def rise(self) -> list[float]:
        """Let rates that are on their way up arrive, a step each second; return what 1003 receives in each."""
        seen = []
        for _ in range(30):
            self.seconds += 1
            self.planner.run_step(self.term)
            seen.append(self.rate(1003, FOLLOWER) or 0.0)
        return seen

    def posted(self) -> list[Event]:
        """The events of all cycles; ends the planner."""
        self.planner.stop()
        return self.metrics.events

    def rate(self, broker_id: int, role: ReplicaRole) -> float | None:
        """What stands, MB/s; None: nothing."""
        value = self.cluster.configs.get(ConfigResource.broker(broker_id), {}).get(role.rate_key)
        return None if value is None else int(value) / mb(1)

    def rates(self) -> dict[tuple[int, str], float]:
        """All rates that stand: (broker id, role) -> MB/s."""
        ports = [(broker_id, role) for broker_id in BROKERS for role in ReplicaRole]
        found = {(b, role.value): self.rate(b, role) for b, role in ports}
        return {port: rate for port, rate in found.items() if rate is not None}

    def lists(self, topic: str = "t1") -> tuple[str | None, str | None]:
        """The (leader, follower) replica lists that stand."""
        config = self.cluster.configs.get(ConfigResource.topic(topic), {})
        return config.get(LEADER.replicas_key), config.get(FOLLOWER.replicas_key)

    def is_clean(self) -> bool:
        """Whether no throttle stands and the ledger is empty."""
        return not self.cluster.ledger and not any(self.cluster.configs.values())
