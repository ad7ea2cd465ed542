"""The health of a process: checks, and their last results. The type to know is `Health`.

A thread runs the checks once per second. Callers read the last results, so a frozen dependency never delays an answer.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from autothrottle.core.errors import AutothrottleError
from autothrottle.core.exported_metrics import HEALTH_CHECK, MetricSample

PERIOD_SECONDS = 1.0

STUCK_SECONDS = 15.0
"""Age of the last results from which they no longer count. A check takes at most a few seconds."""

_CLOSE_SECONDS = 2.0

Check = Callable[[], str | None]
"""Returns the problem; "" or None: ok. It takes at most a few seconds. An AutothrottleError is a problem, too."""

log = logging.getLogger(__name__)


_ADDRESS = re.compile(
    r"unix:\S+|\[[0-9A-Fa-f:.]+\](?::\d+)?|[\w.-]+:\d+|\b\d+(?:\.\d+){3}\b"
    r"|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*|\b[\w-]+(?:\.[\w-]+)*\.[A-Za-z][\w-]+\b"
)
"""An address or the name of a host in a message."""


def without_addresses(message: str) -> str:
    """Return a message without addresses and names of hosts, for callers without a role.

    >>> without_addresses("ZooKeeper (zk1:2181,10.0.0.7:2181) has not answered for 7.5 s")
    'ZooKeeper (...,...) has not answered for 7.5 s'
    """
    return _ADDRESS.sub("...", message)


class Scope(Enum):
    """What a failed check means."""

    LIVENESS = "liveness"
    """Only a restart helps."""
    READINESS = "readiness"
    """The service does not work at the moment."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The last result of a check."""

    name: str
    ok: bool
    since: datetime
    """When it changed to this result, UTC."""
    message: str = ""
    """The problem; "": ok."""


@dataclass(frozen=True, slots=True)
class _Registered:
    name: str
    scope: Scope
    services: set[str]
    """Full names of the services that need it; "" stands for all."""
    run: Check


class Health:
    """The checks of a process. Thread-safe; reading results never blocks."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self._checks: dict[str, _Registered] = {}
        self._results: dict[str, CheckResult] = {}
        self._listeners: list[Callable[[], None]] = []
        self._dead: list[str] = []
        self._began = datetime.now(UTC)
        self._last_pass = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._previous_hook = threading.excepthook
        self.add("threads", lambda: "; ".join(self._dead), Scope.LIVENESS)

    def add(self, name: str, check: Check, scope: Scope = Scope.READINESS, service: str = "") -> None:
        """Add a check before `start`, or add another service to the check of this name.

        Args:
            name: its name in results.
            check: the check.
            scope: what a failure means.
            service: full name of the service that needs it; "": all services.
        """
        self._checks.setdefault(name, _Registered(name, scope, set(), check)).services.add(service)

    def on_results(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every run of the checks, from their thread."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Run the checks until `close`, and note threads that end with an exception."""
        self._last_pass = time.monotonic()
        threading.excepthook = self._note_dead_thread
        self._thread.start()

    def close(self) -> None:
        """Stop; the last results remain."""
        self._closed.set()
        threading.excepthook = self._previous_hook
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)

    def results(self, scope: Scope) -> tuple[CheckResult, ...]:
        """Return the last results of all checks of a scope, in the order of `add`."""
        checks = [check for check in self._checks.values() if check.scope is scope]
        return (*self._freshness(scope), *map(self._result, checks))

    def is_serving(self, services: Sequence[str]) -> bool:
        """Whether every check of these services, and of all services, is ok."""
        needed = [check for check in self._checks.values() if check.services & {"", *services}]
        return not any(self._freshness(Scope.LIVENESS)) and all(self._result(check).ok for check in needed)

    def samples(self) -> Iterator[MetricSample]:
        """Return the last results of all checks as exported metrics."""
        for check in list(self._checks.values()):  # the start of the process may add others meanwhile
            yield HEALTH_CHECK.sample(self._result(check).ok, check.name)

    def _result(self, check: _Registered) -> CheckResult:
        is_alive = check.scope is Scope.LIVENESS
        return self._results.get(check.name) or CheckResult(
            check.name, is_alive, self._began, "the process is starting"
        )

    def _freshness(self, scope: Scope) -> tuple[CheckResult, ...]:
        """A failed liveness result if the checks themselves hang."""
        age = time.monotonic() - self._last_pass
        is_running = self._thread.ident is not None and not self._closed.is_set()
        if scope is not Scope.LIVENESS or not is_running or age < STUCK_SECONDS:
            return ()
        return (CheckResult("checks", False, datetime.now(UTC), f"the checks have not run for {age:.0f} s"),)

    def _run(self) -> None:
        while not self._closed.is_set():
            for check in self._checks.values():
                problem = _problem(check)
                if self._closed.is_set():
                    return
                self._note(check.name, problem)
            self._last_pass = time.monotonic()
            for listener in self._listeners:
                listener()
            self._closed.wait(self._period)

    def _note(self, name: str, problem: str) -> None:
        previous = self._results.get(name)
        is_changed = previous is None or previous.ok != (not problem)
        if is_changed and problem:
            log.warning("Health check %s failed: %s", name, problem)
        elif is_changed and previous is not None:
            log.info("Health check %s is ok again", name)
        since = previous.since if previous is not None and not is_changed else datetime.now(UTC)
        self._results[name] = CheckResult(name, not problem, since, problem)

    def _note_dead_thread(self, end: threading.ExceptHookArgs) -> None:
        name = end.thread.name if end.thread else "unknown"
        self._dead.append(f"thread {name} ended with {end.exc_type.__name__}; restart the process")
        self._previous_hook(end)


def _problem(check: _Registered) -> str:
    try:
        return check.run() or ""
    except AutothrottleError as error:
        return str(error)
    except Exception as error:  # a bug in a check must not end the thread of all checks
        log.exception("Health check %s failed unexpectedly", check.name)
        return f"unexpected {type(error).__name__}; the log has the traceback"
