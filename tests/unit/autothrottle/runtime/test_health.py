"""Checks of a process: their results, threads that died, and checks that hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from autothrottle.core.errors import Unavailable
from autothrottle.runtime import health
from autothrottle.runtime.health import Health, Scope
from tests.builders import eventually


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Health]:
    monkeypatch.setattr(threading, "excepthook", lambda end: None)
    with closing(Health(period_seconds=0.01)) as made:
        yield made


def problems(checks: Health, scope: Scope = Scope.READINESS) -> dict[str, str]:
    """Name -> problem of the failed checks."""
    return {result.name: result.message for result in checks.results(scope) if not result.ok}


def failing(error: Exception) -> Callable[[], str]:
    def check() -> str:
        raise error

    return check


def test_failed_check_shows_its_problem_and_its_start_and_recovers(
    checks: Health, caplog: pytest.LogCaptureFixture
) -> None:
    problem = ["frozen"]
    checks.add("store", lambda: problem[0])
    assert problems(checks) == {"store": "the process is starting"}
    checks.start()
    eventually(lambda: problems(checks) == {"store": "frozen"})
    (before,) = checks.results(Scope.READINESS)
    assert [sample[1:] for sample in checks.samples()] == [(1, ("threads",)), (0, ("store",))]
    problem[0] = "still frozen"
    eventually(lambda: problems(checks) == {"store": "still frozen"})
    (after,) = checks.results(Scope.READINESS)
    assert before.since == after.since
    problem[0] = ""
    eventually(lambda: not problems(checks))
    assert checks.results(Scope.READINESS)[0].since > before.since
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("Health check store failed: frozen") == 1


def test_exceptions_are_problems_and_other_checks_still_run(checks: Health) -> None:
    checks.add("kafka", failing(Unavailable("Kafka does not answer")))
    checks.add("bug", failing(KeyError("x")))
    checks.add("fine", lambda: None)
    checks.start()
    eventually(lambda: len(problems(checks)) == 2)
    assert problems(checks) == {
        "kafka": "Kafka does not answer",
        "bug": "unexpected KeyError; the log has the traceback",
    }


def test_a_service_serves_while_its_own_checks_are_ok(checks: Health) -> None:
    checks.add("store", lambda: "", service="a")
    checks.add("store", lambda: "unused", service="b")
    checks.add("kafka", lambda: "down", service="b")
    assert not checks.is_serving(["a"])
    checks.start()
    eventually(lambda: problems(checks) == {"kafka": "down"})
    assert checks.is_serving(["a"])
    assert checks.is_serving([])
    assert not checks.is_serving(["b"])
    assert not checks.is_serving(["a", "b"])


def test_thread_that_ends_with_an_exception_ends_liveness(checks: Health) -> None:
    checks.start()
    eventually(lambda: checks.is_serving([]))
    assert not problems(checks, Scope.LIVENESS)
    threading.Thread(target=failing(KeyError("x")), name="poller").start()
    eventually(lambda: bool(problems(checks, Scope.LIVENESS)))
    assert problems(checks, Scope.LIVENESS) == {"threads": "thread poller ended with KeyError; restart the process"}
    assert not checks.is_serving([])


def test_hanging_check_ends_liveness_without_delaying_results(checks: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.1)
    release = threading.Event()
    checks.add("store", lambda: "" if release.wait(60) else "late")
    checks.start()
    eventually(lambda: "checks" in problems(checks, Scope.LIVENESS))
    assert not checks.is_serving([])
    release.set()
    eventually(lambda: not problems(checks, Scope.LIVENESS))


def test_a_starting_process_is_alive_and_not_ready(checks: Health) -> None:
    checks.add("store", lambda: "")
    assert not problems(checks, Scope.LIVENESS)
    assert problems(checks) == {"store": "the process is starting"}
