"""Chooses the broker for each request, and another one if that does not answer.

There are four kinds of requests: to any broker, to the controller, to specific brokers about themselves, and to the
KRaft controllers themselves (KIP-919). A read is repeated at other brokers within its deadline. A write is sent once,
and only over an established connection. The type to know is `Routing`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from threading import Timer
from typing import Any

from autothrottle.adapters.concurrency.announcements import announce_later
from autothrottle.adapters.concurrency.subscriptions import time_left
from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.client_properties import ClientOptions
from autothrottle.adapters.kafka_admin.connections import Connections, Node, NoResponse, kafka
from autothrottle.adapters.kafka_admin.errors import NOT_CONTROLLER, code_error, is_remembered, no_response_error
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.retries import CONTROLLER, LOGIN

log = logging.getLogger(__name__)

Build = Callable[[], Any]
"""Builds a request. Each node gets its own request object, because kafka-python sets the node's version on it."""

_FIRST_SHARE, _FIRST_SECONDS = 0.4, 3.0
"""The first broker's time until others are queried too: this share of the time left, and at most these seconds.

Without it, a frozen broker would use up all the time.
"""
_TRIAL_SECONDS = 3.0
"""Time for the first answer to a replaced login."""
_FANOUT = 5
"""Number of brokers to ask at once when the preferred one does not answer."""
_brokers_request = partial(messages.describe_topics, [])
"""Builds a request for metadata without topics: the live brokers alone."""


class Routing:
    """Finds brokers of one cluster and sends them requests; thread-safe.

    It uses one `Connections` at a time, and replaces it when too many connections hang, when Kafka refuses our
    credentials, or when the login has been replaced and a broker accepts the new one. Running calls finish on the old
    one; the next call starts with a new one.
    """

    def __init__(self, servers: Sequence[str], login: KafkaLogin, setup_timeout: timedelta) -> None:
        self._servers, self._login, self._setup_timeout = tuple(servers), login, setup_timeout
        self._lock = threading.Lock()
        self._current: Connections | None = None
        self._users: dict[Connections, int] = {}
        self._closed = False
        self._is_trying = False
        self._refused: tuple[object, float] = (None, 0.0)
        """Options that no broker has accepted, and when to try them again, on the monotonic clock."""
        self._preferred: Node | None = None
        self._controller: Node | None = None
        self._announcement: Timer | None = None
        """Runs from the first call to the first answer; None: no call yet."""

    def close(self) -> None:
        """Close the connections; running calls fail. Idempotent."""
        with self._lock:
            self._closed = True
            opened, self._current = list(self._users), None
            self._users.clear()
            if self._announcement:
                self._announcement.cancel()
        for connections in opened:
            connections.close()

    def ask_any(self, build: Build, deadline: float, *, again: bool = True) -> Any:
        """Return the response of any broker.

        Args:
            build: the request.
            deadline: on the monotonic clock.
            again: whether to repeat it at another broker. Otherwise it goes to one that has just answered another one.

        Raises:
            Unavailable: no broker answers in time.
            Invalid: Kafka refuses our credentials.
        """
        with self._connections() as connections:
            if again and (answered := self._ask_preferred(connections, build, deadline)) is not None:
                return answered[1]
            node, _ = self._metadata(connections, deadline)
            answer = connections.exchange({node: build()}, deadline)[node]
            if isinstance(answer, NoResponse):
                raise self._problem(connections, node, answer)
            return answer

    def metadata(self, deadline: float) -> Any:
        """Return metadata without topics: the live brokers, according to one of them."""
        with self._connections() as connections:
            return self._metadata(connections, deadline)[1]

    def ask_controller(self, build: Build, deadline: float, *, again: bool = True) -> Any:
        """Return the response of the current controller; `again` False: the request is carried out at most once."""
        with self._connections() as connections:
            if again and (controller := self._controller) is not None:
                answer = connections.exchange({controller: build()}, _first_deadline(deadline))[controller]
                if not isinstance(answer, NoResponse) and answer.error_code != NOT_CONTROLLER:
                    return answer
            return self._send_to_controller(connections, build, deadline, again)

    def each(
        self,
        builds: Mapping[int, Build],
        deadline: float,
        *,
        again: bool = True,
        is_over: Callable[[], bool] | None = None,
    ) -> Mapping[int, Any | AutothrottleError]:
        """Return each broker's own response, or why it gave none.

        Args:
            builds: broker id -> its request.
            deadline: on the monotonic clock.
            again: whether to repeat a request that a broker may have received but did not answer.
            is_over: called again and again while responses are awaited; True ends the wait. None: the deadline does.
        """
        with self._connections() as connections:
            if not connections.addresses:
                self._metadata(connections, deadline)
            requests: dict[Node, Any] = {node: build() for node, build in builds.items()}
            answers = dict(connections.exchange(requests, deadline, is_over=is_over))
            relocated = self._relocated(connections, answers, deadline, again)
            answers |= connections.exchange({node: builds[node]() for node in relocated}, deadline)
            return {
                node: self._problem(connections, node, answer) if isinstance(answer, NoResponse) else answer
                for node, answer in answers.items()
                if isinstance(node, int)
            }

    # Internals

    def _relocated(
        self, connections: Connections, answers: Mapping[Node, Any], deadline: float, again: bool
    ) -> Iterable[int]:
        """Brokers without an answer whose address has changed since we connected."""
        no_responses = {node: answer for node, answer in answers.items() if isinstance(answer, NoResponse)}
        silent = [node for node, no_response in no_responses.items() if again or not no_response.sent]
        if not silent or time.monotonic() >= deadline:
            return []
        old_addresses = connections.addresses
        try:
            self._metadata(connections, deadline)
        except AutothrottleError:
            return []
        addresses = connections.addresses
        relocated = [node for node in silent if addresses.get(node) not in (None, old_addresses.get(node))]
        return [node for node in relocated if isinstance(node, int)]

    def _send_to_controller(self, connections: Connections, build: Build, deadline: float, again: bool) -> Any:
        problem: AutothrottleError = Unavailable("no controller answers in time. Fix: check the controllers' logs")
        while True:
            node, metadata = self._metadata(connections, deadline)
            # A KRaft broker forwards the request. The controller_id in its metadata is an arbitrary broker, perhaps a
            # frozen one. In ZooKeeper mode, a broker refuses at once if it is not the controller, and names it.
            for candidate in dict.fromkeys([node, metadata.controller_id]):
                if candidate == -1:
                    continue
                until = _first_deadline(deadline) if again else deadline
                answer = connections.exchange({candidate: build()}, until)[candidate]
                if not isinstance(answer, NoResponse):
                    if answer.error_code != NOT_CONTROLLER:
                        self._controller = candidate
                        return answer
                    continue
                problem = no_response_error(answer, connections.name(candidate))
                if isinstance(problem, Invalid) or (answer.sent and not again):
                    raise problem
            if time.monotonic() + CONTROLLER.first >= deadline:
                raise problem
            time.sleep(CONTROLLER.first)

    def _metadata(self, connections: Connections, deadline: float) -> tuple[Node, Any]:
        """Return a broker that has just answered, and its metadata."""
        answered = self._ask_preferred(connections, _brokers_request, deadline)
        if answered is not None:
            return answered
        node_ids = list(connections.addresses)
        some = random.sample(node_ids, min(len(node_ids), _FANOUT))
        candidates = dict.fromkeys([*some, *connections.bootstrap_nodes])
        answers = connections.exchange({node: _brokers_request() for node in candidates}, deadline, first=True)
        for node, answer in answers.items():
            if not isinstance(answer, NoResponse):
                self._preferred = node
                if self._announcement:
                    self._announcement.cancel()
                return node, answer
        raise self._no_answer_error(connections, answers)

    def _ask_preferred(self, connections: Connections, build: Build, deadline: float) -> tuple[Node, Any] | None:
        """Return the broker that answered last and its response; None: no such broker, or no response."""
        preferred = self._preferred
        if preferred is None:
            return None
        answer = connections.exchange({preferred: build()}, _first_deadline(deadline))[preferred]
        if isinstance(answer, NoResponse):
            self._preferred = None
            return None
        return preferred, answer

    def _no_answer_error(self, connections: Connections, answers: Mapping[Node, Any]) -> AutothrottleError:
        """Why no broker answered."""
        silent = {node: answer for node, answer in answers.items() if isinstance(answer, NoResponse)}
        in_order = sorted(silent, key=connections.name)  # kafka-python shuffles them; all callers name the same one
        problems = [self._problem(connections, node, silent[node]) for node in in_order]
        problem = _first_problem(problems)
        if problem is not None and (isinstance(problem, Invalid) or len(problems) == 1):
            return problem
        servers = ", ".join(self._servers)
        return Unavailable(f"no broker of {servers} answers: {problem or 'none knows a broker'}")

    def _problem(self, connections: Connections, node: Node, no_response: NoResponse) -> AutothrottleError:
        if is_remembered(no_response):
            self._retire(connections)
        return no_response_error(no_response, connections.name(node))

    def _try_login(self) -> None:
        """Replace the connections by those of a replaced login, if a broker accepts it. Other calls do not wait."""
        client = self._login.client
        options = client.options
        with self._lock:
            current = self._current
            is_refused = self._refused[0] is options and time.monotonic() < self._refused[1]
            if self._is_trying or self._closed or current is None or current.options is options or is_refused:
                return
            self._is_trying = True
        trial = self._opened(client)
        answers: Mapping[Node, Any] = {}
        try:
            requests = {node: _brokers_request() for node in trial.bootstrap_nodes}
            answers = trial.exchange(requests, time.monotonic() + _TRIAL_SECONDS, first=True)
        finally:
            is_replaced = self._end_trial(trial, not all(isinstance(answer, NoResponse) for answer in answers.values()))
        if is_replaced:
            self._login.refusal = ""
            return
        problem = self._no_answer_error(trial, answers)
        self._login.refusal = str(problem)
        log.warning("The changed login of Kafka is not accepted, so the previous one stays in use: %s", problem)

    def _end_trial(self, trial: Connections, is_accepted: bool) -> bool:
        """Use the connections of a replaced login from now on, or close them; return whether they are in use."""
        with self._lock:
            self._is_trying = False
            if is_accepted and not self._closed:
                if self._current is not None:
                    self._close_unused(self._current)
                self._current, self._users[trial] = trial, 0
                self._preferred = self._controller = None
                return True
            self._refused = trial.options, time.monotonic() + LOGIN.first
        trial.close(wait=False)
        return False

    @contextmanager
    def _connections(self) -> Iterator[Connections]:
        self._try_login()
        with self._lock:
            if self._closed:
                raise Unavailable("the connections to Kafka are closed. Fix: create a new client")
            if self._announcement is None:
                self._announcement = announce_later(f"Kafka at {', '.join(self._servers)}")
            if self._current is None:
                self._current = self._opened(self._login.client)
                self._users[self._current] = 0
                self._preferred = self._controller = None
            connections = self._current
            self._users[connections] += 1
        try:
            yield connections
        finally:
            self._release(connections)

    def _opened(self, client: ClientOptions) -> Connections:
        try:
            return Connections(self._servers, client.options, self._setup_timeout, client.backoff)
        except OSError as error:  # no free descriptor
            raise Unavailable(f"this process cannot connect to Kafka: {error.strerror}") from None

    def _retire(self, connections: Connections) -> None:
        with self._lock:
            if self._current is connections:
                self._current = None

    def _close_unused(self, connections: Connections) -> None:
        """Close retired connections that no call uses; the last call closes others. Needs the lock."""
        if not self._users[connections]:
            del self._users[connections]
            connections.close(wait=False)

    def _release(self, connections: Connections) -> None:
        if connections.should_be_replaced:
            self._retire(connections)
        with self._lock:
            if connections not in self._users:  # closed
                return
            self._users[connections] -= 1
            if self._users[connections] or self._current is connections:
                return
            del self._users[connections]
        connections.close(wait=False)


def _first_deadline(deadline: float) -> float:
    now = time.monotonic()
    return now + min((deadline - now) * _FIRST_SHARE, _FIRST_SECONDS)


def _first_problem(problems: Sequence[AutothrottleError]) -> AutothrottleError | None:
    """Return the first problem that the operator must solve; without one, the first that is temporary."""
    return next((problem for problem in problems if isinstance(problem, Invalid)), next(iter(problems), None))


_CONTROLLERS = 2
"""Kafka's number for controllers as the endpoint type of DescribeCluster."""


def alter_through_controller(servers: Sequence[str], options: Mapping[str, Any], build: Build, deadline: float) -> Any:
    """Send a request once to the active controller, and return its response.

    Raises:
        Unavailable: no controller answers, or none is active.
        Invalid: the controllers refuse our credentials, or are older than Kafka 3.7.
    """
    active = _active(servers, options, deadline)
    with closing(Connections([active], options, time_left(deadline))) as connections:
        (node,) = connections.bootstrap_nodes
        answer = connections.exchange({node: build()}, deadline)[node]
        if isinstance(answer, NoResponse):
            raise no_response_error(answer, f"controller {active}")
        return answer


def _active(servers: Sequence[str], options: Mapping[str, Any], deadline: float) -> str:
    """Find `host:port` of the active controller."""
    with closing(Connections(servers, options, time_left(deadline))) as connections:
        half = time.monotonic() + time_left(deadline).total_seconds() / 2
        request_type = kafka.protocol.admin.DescribeClusterRequest
        fields = {"include_cluster_authorized_operations": False, "endpoint_type": _CONTROLLERS, "min_version": 1}
        requests = {node: request_type(**fields) for node in connections.bootstrap_nodes}
        problems: list[AutothrottleError] = []
        for node, answer in connections.exchange(requests, half, first=True).items():
            if isinstance(answer, NoResponse):
                problems.append(no_response_error(answer, f"controller {connections.name(node)}"))
            elif answer.error_code:
                problems.append(code_error(answer.error_code, answer.error_message, connections.name(node)))
            elif endpoint := _endpoint(answer):
                return endpoint
    problem = _first_problem(problems)
    if isinstance(problem, Invalid):
        raise problem
    why = problem or "none of them knows the active controller"
    raise Unavailable(
        f"no controller of {', '.join(servers)} is available: {why}. Fix: check kafka-bootstrap-controllers"
    )


def _endpoint(answer: Any) -> str | None:
    for controller in answer.brokers:
        if controller.broker_id == answer.controller_id:
            host = f"[{controller.host}]" if ":" in controller.host else controller.host
            return f"{host}:{controller.port}"
    return None
