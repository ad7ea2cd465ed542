"""The policy that measures replication, brings the clients' load to now, and learns how wrong it may be.

For each port, in bytes/s:

1. `m = max(utilization - replication, 0)`, both over exactly the metric's interval: replication is counted from the
   sizes of logs, whatever the throttle was.
2. `c = m` brought to now by how much faster logs grow than in that interval, where somebody reads them all.
3. `h = max(floor, min(ratio * (C - c), C - c - 1.5 * sigma * c))`, sigma being how far forecasts were off lately; of a
   link that is always as full the margin takes at most 15 % of the ratio's share. The ports that the whole move waits
   for keep half of it: there it costs time.
4. `rate = max(floor, min(h, 1.5 * need))`, the need being what the move asks of the port to end as soon as its
   narrowest place allows, and what the flows of that place need where they share a port with others. A rate of 1.25 to
   2 times the need, and within h, stays, and so does one of a port that is done within half a minute. Where a broker
   catches up it is h: it waits for no move.
5. A leader gets what its in-sync followers read of the partitions that move on top: its meter counts them.

Where something of that cannot be seen it does without, port by port (`interface.Basis`): without the growth of all logs
`c = m`; while replication of the metric's interval was not counted the original's formula stands in for 1 to 3, and a
planner that has just begun raises nothing; without the bytes that are left 4 is left out. What a rate achieved never
lowers it: unmodelled limits would run away.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import ports_of
from autothrottle.core.limits import Limits
from autothrottle.core.loads import Port
from autothrottle.core.policy.experience import ClientLoad, Experience
from autothrottle.core.policy.headroom import headroom_rate
from autothrottle.core.policy.interface import Basis, Observation, PortSight, Proposal, Sight
from autothrottle.core.policy.pace import Work, narrowest, needs
from autothrottle.core.topology import Snapshot, flows

OLD_SECONDS = 300.0
"""A metric that ended longer ago is the less sure the older it is."""

_ENDS_SOON_SECONDS = 30.0
"""What is done within them keeps its rate: lowered, it would stand still until the meter's window has drained."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers that a benchmark has chosen; not for operators."""

    slack: float = 0.5
    """What a port gets beyond its need, as a share of it, >= 0."""
    slacks: tuple[float, float] = (0.25, 1.0)
    """Between which a rate that stands is left alone, as shares of the need: one that changes is no reason to write."""
    least: float = 0.5
    """Share of what is usual headroom in this move below which the others wait the less for a port, >= 0."""
    margin: float = 1.5
    """How many spreads of the forecasts' errors stay free, >= 0."""
    margin_waited_for: float = 0.75
    """The same of the ports that the whole move waits for: elsewhere what stays free costs no time."""
    kept: float = 0.85
    """Share of what the ratio gives that a margin leaves at least where the link is as full as usual, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What one port may carry."""

    now: float
    """Bytes/s, the floor included."""
    long_view: float
    """Bytes/s that the whole move may count on."""
    load: ClientLoad | None
    """None: not known; the original's formula stands in."""


@dataclass(frozen=True, slots=True)
class AdaptivePolicy:
    """Learns from every cycle; a value."""

    experience: Experience = field(default_factory=Experience)
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def name(self) -> str:
        """As `--policy` has it."""
        return "adaptive"

    def observe(self, seen: Observation) -> AdaptivePolicy:
        """Return the policy with one more cycle."""
        return replace(self, experience=self.experience.observe(seen))

    def propose(self, sight: Sight) -> Mapping[Port, Proposal]:
        """The rate of each port."""
        rooms = {port: self._room(one, sight, self.tuning.margin) for port, one in sight.ports.items()}
        works = self._works(sight, rooms)
        for port in narrowest(works):
            rooms[port] = self._room(sight.ports[port], sight, self.tuning.margin_waited_for)
        needed = self._needs(sight, works)
        in_sync = _in_sync_followers(sight.snapshot)
        return {
            port: self._proposal(sight.ports[port], room, needed.get(port), in_sync.get(port[0], 0.0), sight.limits)
            for port, room in rooms.items()
        }

    def _room(self, one: PortSight, sight: Sight, margin: float) -> _Room:
        load = self.experience.load(one.port)
        if load is None:
            guess = float(headroom_rate(one, sight.limits, sight.history, None))
            if self.experience.is_counted_soon(one.port) and one.previous is not None:
                # It is being counted, and soon known: until then nothing is raised on a guess.
                guess = min(guess, float(max(one.previous, sight.limits.floor)))
            return _Room(guess, guess, None)
        ratio, floor = sight.limits.max_ratio(one.role), float(sight.limits.floor)
        spread = margin * self.experience.spread.sigma * max(load.age / OLD_SECONDS, 1.0)
        free = one.capacity - load.rate
        # Of a link that clients nearly fill all the time the margin would take most: the move would hardly get on
        # there. Where it is full for once it can wait.
        usual = one.capacity - load.long_view
        kept = self.tuning.kept * (min(free / usual, 1.0) if usual > 0 else 1.0)
        room = max(floor, min(ratio * free, max(free - spread * load.rate, kept * ratio * free)))
        return _Room(room, max(room, ratio * (one.capacity - load.long_view)), load)

    def _works(self, sight: Sight, rooms: Mapping[Port, _Room]) -> Mapping[Port, Work]:
        """What moves through each port but where brokers catch up; nothing where nobody knows what is left."""
        if sight.snapshot.progress is None:
            return {}
        usual = [room.long_view / sight.ports[port].capacity for port, room in rooms.items()]
        least = self.tuning.least * statistics.median(usual) if usual else 0.0
        return {
            port: Work(
                left=float(self.experience.counts.left.get(port, 0)),
                headroom=room.long_view,
                grown=self.experience.grown(port),
                least=least * sight.ports[port].capacity,
            )
            for port, room in rooms.items()
            if port not in sight.snapshot.catching_up
        }

    @staticmethod
    def _needs(sight: Sight, works: Mapping[Port, Work]) -> Mapping[Port, float]:
        """What each port needs; one with a flow of which nobody knows what is left is not here."""
        progress = sight.snapshot.progress
        if progress is None:
            return {}
        unknown = ports_of(flows(sight.snapshot).keys() - progress.flows.keys())
        left = [(flow, float(count.bytes_left)) for flow, count in progress.flows.items()]
        return {port: need for port, need in needs(left, works).items() if port not in unknown}

    def _proposal(self, one: PortSight, room: _Room, need: float | None, in_sync: float, limits: Limits) -> Proposal:
        on_top = in_sync * self.experience.grown(one.port) if one.role is ReplicaRole.LEADER else 0.0
        rate = room.now if need is None else min(room.now, self._eased(one, need, on_top))
        rate = max(rate, float(limits.floor)) + on_top
        if room.load is None:
            return Proposal(round(rate), basis=Basis.GUESSED)
        return Proposal(round(rate), round(room.load.rate), max(round(room.load.age), 0), room.load.basis)

    def _eased(self, one: PortSight, need: float, on_top: float) -> float:
        """What a port gets beyond its need, where clients leave room for it: what it has, while that is about right."""
        eased = (1 + self.tuning.slack) * need
        if one.previous is None:
            return eased
        least, most = self.tuning.slacks
        kept = one.previous - on_top
        if (1 + least) * need <= kept <= (1 + most) * need:
            return kept
        ends_soon = self.experience.counts.left.get(one.port, 0) <= kept * _ENDS_SOON_SECONDS
        return max(eased, kept) if ends_soon else eased


def _in_sync_followers(snapshot: Snapshot) -> dict[int, float]:
    """Leader -> in-sync followers of its moving partitions for each replica that they are copied to."""
    followers: dict[int, int] = {}
    copies: dict[int, int] = {}
    for reassignment in snapshot.reassignments:
        for leader, (in_sync, pending) in reassignment.sending.items():
            followers[leader] = followers.get(leader, 0) + in_sync
            copies[leader] = copies.get(leader, 0) + pending
    return {leader: count / copies[leader] for leader, count in followers.items()}
