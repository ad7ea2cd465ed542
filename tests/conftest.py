"""Markers, groups and options of the whole suite; `tests/server_fixtures.py` starts the servers.

`make test` runs pytest three times: tests without a server process, tests with one, and tests that measure a rate or a
duration, which need idle CPUs.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence

import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings

from autothrottle_lab.servers import processes

pytest_plugins = ["tests.server_fixtures"]

LONG_TESTS = (
    "tests/unit/autothrottle_lab/simulate/test_advice.py",
    "tests/contract/",
    "tests/unit/autothrottle/adapters/",
    "tests/unit/autothrottle_client/",
)
"""Tests without a server that take or wait longest. They start first, in this order: the last tests should be short."""

SERVER_TESTS = ("tests/system/", "tests/chaos/test_chaos.py")
SCORER = "tests/system/scorer/"

SHARED_CLUSTERS = ("kafka_cluster", "kraft_cluster", "spark")
"""A group of tests for each, the one that takes longest first: one process runs all tests of a group."""

SERVER_FIXTURES = {
    *("zookeeper", "fresh_zookeeper", "own_zookeeper", "secured_zookeeper"),
    *("prometheus", *SHARED_CLUSTERS),
}

SHOWN_SECONDS = 5.0
"""A file whose tests take less is not listed at the end."""

FIRST_FETCH_SECONDS = 1200
"""Time limit of a test with servers, which may have to fetch Kafka's jars; the scorer's tests have their own."""

# The time of one example depends on the machine; `make bench` measures times.
settings.register_profile("common", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time: a test that passed fails only if the change breaks it. `make test-all` draws new ones.
settings.register_profile("make-test", settings.get_profile("common"), max_examples=15, derandomize=True)
settings.register_profile("make-test-all", settings.get_profile("common"), max_examples=200)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--with-repeats", action="store_true", help="also run tests that repeat a behaviour (`repeat`)")
    parser.addoption("--part", default="1/1", help="run part K of N of the files, as K/N")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("make-test-all" if config.getoption("--with-repeats") else "make-test")
    # Processes of pytest-xdist choose ports at the same time: each one has its own range.
    if worker := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw"):
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        processes.PORTS = processes.PORTS[int(worker) :: count]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if needs_servers(item):
            item.add_marker("server")
            if item.get_closest_marker("timeout") is None and not item.nodeid.startswith(SCORER):
                item.add_marker(pytest.mark.timeout(FIRST_FETCH_SECONDS))
            if item.get_closest_marker("xdist_group") is None and (group := server_group(item)):
                item.add_marker(pytest.mark.xdist_group(group))
    chosen = in_part(items, config.getoption("--part"))
    if not config.getoption("--with-repeats"):
        chosen = [item for item in chosen if item.get_closest_marker("repeat") is None]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    # Almost all objects that a collection of tests makes stay: looking for others takes a sixth of its time.
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    name_groups(session.items)
    # After pytest's own order by parameters, which can part the tests of a file: its fixtures would start twice.
    session.items.sort(key=position)
    # Spare the garbage collector what was collected: it stays until the end, and each full collection looks at it.
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    # At the end pytest collects garbage five times, to report errors of destructors. The first time finds it; the
    # other four would only look at everything again.
    gc.collect()
    gc.freeze()


def name_groups(items: Sequence[pytest.Item]) -> None:
    """Make pytest-xdist's names of groups effective.

    pytest-xdist 3.8 appends the group to `_nodeid`, which pytest 9.2 does not read any more: groups had no effect.
    """
    for item in items:
        if named := getattr(item, "_nodeid", None):
            setattr(item, "_id", NodeId.parse(named))  # noqa: B010


def needs_servers(item: pytest.Item) -> bool:
    """Whether a test starts a server process: ZooKeeper, Kafka, Spark's JVM or a service."""
    return item.nodeid.startswith(SERVER_TESTS) or not SERVER_FIXTURES.isdisjoint(fixtures_of(item))


def fixtures_of(item: pytest.Item) -> set[str]:
    """The names of a test's fixtures, with the cluster that `each_cluster` stands for."""
    each = parameters_of(item).get("each_cluster")
    return {*getattr(item, "fixturenames", ()), *([each] if isinstance(each, str) else ())}


def parameters_of(item: pytest.Item) -> dict[str, object]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def server_group(item: pytest.Item) -> str | None:
    """Return the group of tests that share a server; None: the test shares none."""
    fixtures = fixtures_of(item)
    for cluster in SHARED_CLUSTERS:
        if cluster in fixtures:
            return cluster
    if "scored" in fixtures:  # scoring the golden logs takes longer than these tests
        return "spark"
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    shared = [name for name, found in definitions.items() if found[-1].scope == "module"]
    if not shared and "zookeeper" not in fixtures:
        return None
    chosen = [str(value) for name, value in parameters_of(item).items() if name in shared]
    return "-".join([item.path.stem, *chosen])


def in_part(items: Sequence[pytest.Item], part: str) -> list[pytest.Item]:
    """Return the tests of part K of N: every N-th file, in the order of their names."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part is {part!r}; it must be K/N with 1 <= K <= N")
    files = set(sorted({item.path for item in items})[int(number) - 1 :: int(count)])
    return [item for item in items if item.path in files]


def position(item: pytest.Item) -> tuple[int, str, int]:
    """Long groups and tests start first and single tests last, so that all processes end at about the same time.

    The tests on a shared cluster run in the order of their files and lines.
    """
    mark = item.get_closest_marker("xdist_group")
    if item.get_closest_marker("server") is None:
        places = [number for number, place in enumerate(LONG_TESTS) if item.nodeid.startswith(place)]
        return (places[0] if places else len(LONG_TESTS)) - len(LONG_TESTS), "", 0
    if mark is None:
        return len(SHARED_CLUSTERS) + 1, "", 0
    if mark.args[0] in SHARED_CLUSTERS:
        return SHARED_CLUSTERS.index(mark.args[0]), str(item.path), item.location[1] or 0
    return len(SHARED_CLUSTERS), "", 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the time went: seconds of setup, call and teardown by file."""
    seconds: dict[str, dict[str, float]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when in ("setup", "call", "teardown"):
                spent = seconds.setdefault(
                    report.nodeid.partition("::")[0], {"setup": 0.0, "call": 0.0, "teardown": 0.0}
                )
                spent[report.when] += report.duration
    slow = {file: sum(spent.values()) for file, spent in seconds.items() if sum(spent.values()) >= SHOWN_SECONDS}
    if slow:
        terminalreporter.section("where the time went (seconds: all, setup, call, teardown)")
    for file, total in sorted(slow.items(), key=lambda found: -found[1]):
        spent = seconds[file]
        terminalreporter.line(
            f"{total:7.1f} {spent['setup']:7.1f} {spent['call']:7.1f} {spent['teardown']:7.1f}  {file}"
        )


@pytest.fixture
def no_autothrottle_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove autothrottle's options from the environment of the person who runs the tests."""
    for variable in [v for v in os.environ if v.startswith("AUTOTHROTTLE_")]:
        monkeypatch.delenv(variable)


# A shell that runs the tests in the background lets them ignore SIGINT, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
