"""Who is asked, and who else when there is no answer.

Four kinds of requests: what any broker knows, what the controller does, what each of some brokers says of itself, and
what the KRaft controllers do themselves (KIP-919). What only reads is asked again elsewhere within its deadline; what
writes is sent once, and only over a connection that stands. The type to know is `Routing`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from autothrottle.adapters.kafka_admin.connections import Connections, Node, Silence, kafka
from autothrottle.adapters.kafka_admin.translation import NOT_CONTROLLER, silence_error
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable

Build = Callable[[], Any]
"""Makes a request; each node gets one of its own, since a request takes the version that its node speaks."""
Codes = Callable[[Any], int]
"""Response -> its error code."""

_FIRST_SHARE, _FIRST_SECONDS = 0.4, 3.0
"""Of the time left, and at most: what the first broker gets before others are asked, too. A frozen one takes it all."""
_FANOUT = 5
"""So many brokers are asked at once when the usual one does not answer."""
_PAUSE_SECONDS = 0.2
"""Between two questions of who the controller is."""


class Routing:
    """The brokers of one cluster and the way to them; thread-safe.

    One `Connections` at a time; it is given up, without harm to the calls that use it, when too much hangs in it or
    when Kafka refuses who we are. The next call starts with a new one.
    """

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any], setup_timeout: timedelta) -> None:
        self._servers, self._options, self._setup_timeout = tuple(servers), options, setup_timeout
        self._lock = threading.Lock()
        self._current: Connections | None = None
        self._users: dict[Connections, int] = {}
        self._closed = False
        self._usual: Node | None = None
        self._controller: Node | None = None

    def close(self) -> None:
        """Close the connections; calls under way fail. Idempotent."""
        with self._lock:
            self._closed = True
            opened, self._current = list(self._users), None
            self._users.clear()
        for connections in opened:
            connections.close()

    def ask_any(self, build: Build, deadline: float) -> Any:
        """Return the response of a broker that answers.

        Raises:
            Unavailable: none answers in time.
            Invalid: Kafka refuses who we are.
        """
        with self._connections() as connections:
            if (told := self._of_usual(connections, build, deadline)) is not None:
                return told[1]
            node = self._metadata(connections, deadline)[0]
            return self._answered(connections, node, connections.exchange({node: build()}, deadline)[node])

    def tell_any(self, build: Build, deadline: float) -> Any:
        """Return the response to a request that is sent once, to a broker that has just answered another one."""
        with self._connections() as connections:
            node = self._metadata(connections, deadline)[0]
            return self._answered(connections, node, connections.exchange({node: build()}, deadline)[node])

    def metadata(self, deadline: float) -> Any:
        """Return metadata without topics: the brokers that are up, as one of them knows them."""
        with self._connections() as connections:
            return self._metadata(connections, deadline)[1]

    def ask_controller(self, build: Build, code: Codes, deadline: float) -> Any:
        """Return the controller's response, whoever that is by now."""
        with self._connections() as connections:
            if (controller := self._controller) is not None:
                answer = connections.exchange({controller: build()}, _part(deadline))[controller]
                if not isinstance(answer, Silence) and code(answer) != NOT_CONTROLLER:
                    return answer
            return self._by_controller(connections, build, code, deadline, again=True)

    def tell_controller(self, build: Build, code: Codes, deadline: float) -> Any:
        """Return the controller's response to a request that is carried out once."""
        with self._connections() as connections:
            return self._by_controller(connections, build, code, deadline, again=False)

    def each(
        self, builds: Mapping[int, Build], deadline: float, *, again: bool = True
    ) -> Mapping[int, Any | AutothrottleError]:
        """Return each broker's own response, or why there is none.

        Args:
            builds: broker id -> its request.
            deadline: on the monotonic clock.
            again: whether a request that a broker did not answer may be repeated.
        """
        with self._connections() as connections:
            if not connections.addresses:
                self._metadata(connections, deadline)
            answers = dict(connections.exchange({node: build() for node, build in builds.items()}, deadline))
            moved = self._moved(connections, answers, deadline, again)
            answers |= connections.exchange({node: builds[node]() for node in moved}, deadline)
            return {node: self._value(connections, node, answer) for node, answer in answers.items()}  # type: ignore[misc]

    # Behind it

    def _moved(
        self, connections: Connections, answers: Mapping[Node, Any], deadline: float, again: bool
    ) -> Iterable[int]:
        """Brokers without an answer that are to be found elsewhere than where we looked."""
        silent = [
            node for node, answer in answers.items() if isinstance(answer, Silence) and (again or not answer.sent)
        ]
        if not silent or time.monotonic() >= deadline:
            return []
        before = connections.addresses
        try:
            self._metadata(connections, deadline)
        except AutothrottleError:
            return []
        after = connections.addresses
        return [node for node in silent if isinstance(node, int) and after.get(node) not in (None, before.get(node))]

    def _by_controller(self, connections: Connections, build: Build, code: Codes, deadline: float, again: bool) -> Any:
        problem: AutothrottleError = Unavailable("no controller answers in time. Fix: look at the controllers' logs")
        while True:
            node, metadata = self._metadata(connections, deadline)
            # A KRaft broker passes the request on, and names any other as controller, one that is frozen, too. In
            # ZooKeeper mode one that is not the controller says so at once, and the one that it names is.
            for candidate in dict.fromkeys([node, metadata.controller_id]):
                if candidate == -1:
                    continue
                until = _part(deadline) if again else deadline
                answer = connections.exchange({candidate: build()}, until)[candidate]
                if not isinstance(answer, Silence):
                    if code(answer) != NOT_CONTROLLER:
                        self._controller = candidate
                        return answer
                    continue
                problem = silence_error(answer, connections.name(candidate))
                if isinstance(problem, Invalid) or (answer.sent and not again):
                    raise problem
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                raise problem
            time.sleep(_PAUSE_SECONDS)

    def _metadata(self, connections: Connections, deadline: float) -> tuple[Node, Any]:
        """A broker that has just answered, and the brokers as it knows them."""
        if (told := self._of_usual(connections, _no_topics, deadline)) is not None and told[1].brokers:
            return told
        known = list(connections.addresses)
        some = random.sample(known, min(len(known), _FANOUT))
        asked = dict.fromkeys([*some, *connections.bootstrap_nodes])
        answers = connections.exchange({node: _no_topics() for node in asked}, deadline, first=True)
        for node, answer in answers.items():
            if not isinstance(answer, Silence) and answer.brokers:
                self._usual = node
                return node, answer
        raise self._nobody(connections, answers)

    def _of_usual(self, connections: Connections, build: Build, deadline: float) -> tuple[Node, Any] | None:
        """The broker that answered last, and its response; None when it has nothing to say any more."""
        usual = self._usual
        if usual is None:
            return None
        answer = connections.exchange({usual: build()}, _part(deadline))[usual]
        if isinstance(answer, Silence):
            self._usual = None
            return None
        return usual, answer

    def _nobody(self, connections: Connections, answers: Mapping[Node, Any]) -> AutothrottleError:
        """Why no broker has answered: what somebody can act on comes before what may pass."""
        silent = {node: answer for node, answer in answers.items() if isinstance(answer, Silence)}
        problems = [self._problem(connections, node, answer) for node, answer in silent.items()]
        for problem in problems:
            if isinstance(problem, Invalid):
                return problem
        servers = ", ".join(self._servers)
        return (
            problems[0]
            if len(problems) == 1
            else Unavailable(f"no broker of {servers} answers: {problems[0] if problems else 'none knows of a broker'}")
        )

    def _answered(self, connections: Connections, node: Node, answer: Any) -> Any:
        value = self._value(connections, node, answer)
        if isinstance(value, AutothrottleError):
            raise value
        return value

    def _value(self, connections: Connections, node: Node, answer: Any) -> Any:
        return self._problem(connections, node, answer) if isinstance(answer, Silence) else answer

    def _problem(self, connections: Connections, node: Node, silence: Silence) -> AutothrottleError:
        problem = silence_error(silence, connections.name(node))
        if isinstance(problem, Invalid):
            self._give_up(connections)
        return problem

    @contextmanager
    def _connections(self) -> Iterator[Connections]:
        connections = self._taken()
        try:
            yield connections
        finally:
            self._returned(connections)

    def _taken(self) -> Connections:
        with self._lock:
            if self._closed:
                raise Unavailable("the connections to Kafka are closed. Fix: make a new client")
            if self._current is None:
                self._current = Connections(self._servers, self._options, self._setup_timeout)
                self._users[self._current] = 0
                self._usual = self._controller = None
            self._users[self._current] += 1
            return self._current

    def _give_up(self, connections: Connections) -> None:
        with self._lock:
            if self._current is connections:
                self._current = None

    def _returned(self, connections: Connections) -> None:
        if connections.worn:
            self._give_up(connections)
        with self._lock:
            if connections not in self._users:  # closed
                return
            self._users[connections] -= 1
            if self._users[connections] or self._current is connections:
                return
            del self._users[connections]
        connections.close(wait=False)


def _part(deadline: float) -> float:
    now = time.monotonic()
    return now + min((deadline - now) * _FIRST_SHARE, _FIRST_SECONDS)


def _no_topics() -> Any:
    return kafka.protocol.metadata.MetadataRequest(
        topics=[],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
