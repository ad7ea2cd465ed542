"""Reassignments in the client and on the command line: files, submission, progress, cancellation."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.memory import MemoryCluster, MemoryMetrics
from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource, FetchSettings
from autothrottle_client import (
    AdminClient,
    Conflict,
    Invalid,
    Missing,
    ReassigningTopic,
    Reassignments,
    Submission,
    parse_reassignment,
)
from autothrottle_client.progress import ProgressTracker, ReassignmentProgress, progress_line
from autothrottle_client.texts import duration
from autothrottle_client.throttlectl import main
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.in_process_services import BROKERS, STATE_TOPIC, InProcessServices

PATIENT = timedelta(seconds=30)
SECONDS = 60.0
AT_ONCE = 10.0
"""Seconds, on a busy machine."""


@pytest.fixture
def services(no_autothrottle_variables: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessServices]:
    """One leading planner; the environment names the admin service. Topic t1 is on 1001 and 1002."""
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics) as built:
        built.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
        built.start_planners()
        eventually(lambda: built.planners[0].state().last_cycle)
        monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", built.address("admin"))
        yield built


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Both partitions move from 1002 to 1003."""
    return written(tmp_path, [row(0, 1001, 1003), row(1, 1003, 1001)])


def row(partition: Any, *replicas: Any, **more: Any) -> dict[str, Any]:
    return {"topic": "t1", "partition": partition, "replicas": list(replicas), **more}


def written(directory: Path, rows: list[dict[str, Any]]) -> Path:
    path = directory / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return path


def output(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    """Run a command and return (standard output, standard error)."""
    ended = main([*arguments, "--timeout", "30"])
    printed = capsys.readouterr()
    assert ended == status, printed
    return printed.out, printed.err


# Files.


def test_a_file_of_kafkas_tool_is_parsed() -> None:
    rows = [row(0, 1001, 1003, log_dirs=["any", "any"]), row(1, 0), {**row(0, 7), "topic": "t2", "comment": "x"}]
    text = json.dumps({"version": 1, "partitions": rows, "who": "operator"})
    assert parse_reassignment(text) == {("t1", 0): (1001, 1003), ("t1", 1): (0,), ("t2", 0): (7,)}


def test_a_file_without_a_version_counts_as_version_1() -> None:
    """The parser refused such files. Kafka's tool accepts them, and the README promises the same."""
    assert parse_reassignment(json.dumps({"partitions": [row(0, 1001)]})) == {("t1", 0): (1001,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is not JSON: Expecting value at line 1, column 1; give"),
        ("{\n  'version': 1}", "double quotes at line 2, column 3; give"),
        ('{"version":1}\nProposed', "the file is not JSON: Extra data at line 2, column 1; give"),
        ('{"version":1,"partitions":[]}\nProposed', "the file is not JSON: it has other text of kafka-reassign-"),
        ('{"version":NaN}', "the file contains NaN, which is not JSON; give"),
        ("[" * 200_000, "the file is nested too deeply; give"),
        ('{"version":' + "1" * 5_000, "the file contains a number with thousands of digits; give"),
        ("[1]", "the file contains a list instead of an object; give"),
        ("null", "the file contains null instead of an object; give"),
        ('{"version":"1"}', 'version is "1"; it must be 1'),
        ('{"version":2,"partitions":[]}', "version is 2; it must be 1"),
        ('{"version":true,"partitions":[]}', "version is true; it must be 1"),
        ('{"version":1}', "partitions is missing; it must be a list of at least one"),
        ('{"version":1,"partitions":[]}', "partitions is []; it must be a list of at least one"),
        ('{"version":1,"version":1}', 'an object of the file has the key "version" twice; name it once'),
        ('{"version":1,"partitions":[7]}', "partitions[0] is 7 instead of an object; give"),
    ],
)
def test_a_malformed_file_is_refused_with_position_and_example(text: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_reassignment(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_duplicate_among_many_entries_is_found_fast() -> None:
    """The parser compared each name and broker with all others. It took hours to refuse a file of some MB."""
    names, brokers = [f'"n{number}":0' for number in range(30_000)], list(range(100_000))
    begun = time.monotonic()
    with pytest.raises(Invalid, match='has the key "n29999" twice'):
        parse_reassignment("{" + ",".join([*names, names[-1]]) + "}")
    with pytest.raises(Invalid, match="names broker 99999 twice"):
        parse_reassignment(json.dumps({"version": 1, "partitions": [row(0, *brokers, brokers[-1])]}))
    assert time.monotonic() - begun < AT_ONCE


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topic": ""}, 'partitions[1].topic is ""; it must be the name of a topic'),
        ({"topic": None}, "partitions[1].topic is missing; it must be the name of a topic"),
        ({"partition": -1}, "partitions[1].partition is -1; it must be an integer, 0 to 2147483647"),
        ({"partition": 1.0}, "partitions[1].partition is 1.0; it must be an integer"),
        ({"partition": True}, "partitions[1].partition is true; it must be an integer"),
        ({"partition": 0}, "partitions[1] repeats t1-0; name each partition once"),
        ({"replicas": []}, "partitions[1].replicas is []; it must be a list of at least one broker id"),
        ({"replicas": "1,2"}, 'partitions[1].replicas is "1,2"; it must be a list'),
        ({"replicas": [1, "2"]}, 'partitions[1].replicas[1] is "2"; it must be an integer, 0 to 2147483647'),
        ({"replicas": [2**31]}, "partitions[1].replicas[0] is 2147483648; it must be an integer, 0 to"),
        ({"replicas": [7, 8, 7]}, "partitions[1].replicas names broker 7 twice: [7, 8, 7]; name every broker once"),
        ({"log_dirs": ["any"]}, "partitions[1].log_dirs is [\"any\"]; leave it out, or give 'any' for each replica"),
        ({"log_dirs": ["any", 7]}, "partitions[1].log_dirs is [\"any\", 7]; leave it out, or give 'any' for each"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_index(wrong: dict[str, Any], message: str) -> None:
    rows = [row(0, 1001, 1003), {**row(1, 1001, 1003), **wrong}]
    with pytest.raises(Invalid) as caught:
        parse_reassignment(json.dumps({"version": 1, "partitions": rows}))
    assert message in str(caught.value)


def test_log_directories_of_a_rollback_file_are_ignored() -> None:
    """Since Kafka 4.2, the current assignment names log directories (KAFKA-19582). The parser refused such a file."""
    text = '{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["/data/1","/data/2"]}'
    assert parse_reassignment(f'{{"version":1,"partitions":[{text}]}}') == {("a", 0): (1, 2)}
    assert parse_reassignment(json.dumps({"partitions": [row(0, 1, log_dirs=None)]})) == {("t1", 0): (1,)}


@pytest.mark.parametrize("indent", [None, 1])
def test_the_output_of_kafkas_tool_is_refused_with_the_part_to_keep(indent: int | None) -> None:
    """The error was `Expecting value at line 1, column 1`. It did not say which of the two assignments to keep."""
    current, proposed = (json.dumps({"partitions": [row(0, b)]}, indent=indent) for b in (1, 2))
    headings = "Current partition replica assignment", "Proposed partition reassignment configuration"
    text = f"{headings[0]}\n{current}\n\n{headings[1]}\n{proposed}\n"
    lines = ("line 2", "line 5") if indent is None else ("lines 2 to 12", "lines 15 to 25")
    with pytest.raises(Invalid) as caught:
        parse_reassignment(text)
    assert str(caught.value) == (
        "the file is not JSON: it has other text of kafka-reassign-partitions.sh around the JSON; keep only "
        f"{lines[0]}, the replicas before the reassignment, for a rollback ('Current partition replica assignment'), "
        f"or only {lines[1]}, the new replicas ('Proposed partition reassignment configuration')"
    )
    keep = text.split("\n")
    first, last = (int(number) - 1 for number in (re.findall(r"\d+", lines[0]) * 2)[:2])
    assert parse_reassignment("\n".join(keep[first : last + 1])) == {("t1", 0): (1,)}


def test_the_output_of_an_execution_is_refused_with_the_part_to_keep() -> None:
    """`--execute` prints one assignment between two sentences. Its text had the error of any text that is not JSON."""
    assignment = json.dumps({"version": 1, "partitions": [row(0, 1)]})
    text = f"Current partition replica assignment\n\n{assignment}\n\nSave this to use as the --reassignment-json-file"
    with pytest.raises(Invalid, match="keep only line 3, the replicas before the reassignment, for a rollback"):
        parse_reassignment(text)


def test_a_file_with_too_many_partitions_is_refused() -> None:
    rows = [row(number, 1) for number in range(100_001)]
    with pytest.raises(Invalid, match="partitions has 100001 entries; the limit is 100000: divide the file"):
        parse_reassignment(json.dumps({"version": 1, "partitions": rows}))


@given(st.text(max_size=40) | st.from_regex(r'\{"version":1,"partitions":.*', fullmatch=True))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert parse_reassignment(text)
    except Invalid as error:
        assert len(str(error)) < 400


# Progress.

WANTED = {("t1", 0): (1001,), ("t1", 1): (1001,), ("t2", 0): (1001,), ("t2", 1): (1001,)}


def moving(t1: tuple[int, ...] = (), t2: tuple[int, ...] = (), **known: Any) -> Reassignments:
    numbers = {"other": (5,), "t1": t1, "t2": t2}
    topics = [ReassigningTopic(name, n, (1001,), (1002,), len(n), **known) for name, n in numbers.items() if n]
    return Reassignments(tuple(topics))


def test_progress_counts_requested_partitions_and_estimates_the_end_from_their_rate() -> None:
    tracker = ProgressTracker(WANTED)
    assert tracker.progress(NOON, moving((0, 1), (0, 1))) == ReassignmentProgress(4, 0)
    later = NOON + timedelta(seconds=60)
    assert tracker.progress(later, moving((1,), (0, 1))) == ReassignmentProgress(
        4, 1, eta=later + timedelta(seconds=180)
    )
    end = NOON + timedelta(seconds=90)
    assert tracker.progress(end, moving()) == ReassignmentProgress(4, 4)


def test_progress_prefers_the_eta_and_bytes_of_the_service() -> None:
    eta = NOON + timedelta(hours=1)
    found = moving((0,), (0, 1), bytes_copied=10, bytes_left=30)
    (other, first, second) = found.topics
    known = ProgressTracker(WANTED).progress(NOON, Reassignments((first, second), eta))
    assert known == ReassignmentProgress(4, 1, bytes_left=60, bytes_copied=20, eta=eta)
    unknown = ReassigningTopic("t2", second.partitions, (1001,), (1002,), 2)
    assert ProgressTracker(WANTED).progress(NOON, Reassignments((other, first, unknown))).bytes_left is None


def test_other_reassignments_do_not_delay_the_eta() -> None:
    """Beside a reassignment of two days, one of some minutes got an ETA of two days."""
    soon, late = NOON + timedelta(minutes=5), NOON + timedelta(days=2)
    (other, first, second) = moving((0,), (0, 1)).topics
    topics = replace(other, eta=late), replace(first, eta=NOON), replace(second, eta=soon)
    assert ProgressTracker(WANTED).progress(NOON, Reassignments(topics, late)).eta == soon
    unknown = (topics[0], topics[1], second)
    assert ProgressTracker(WANTED).progress(NOON, Reassignments(unknown, late)).eta is None
    elsewhere = (replace(second, partitions=(7,), eta=late), topics[1])
    assert ProgressTracker(WANTED).progress(NOON, Reassignments(elsewhere, late)).eta == NOON


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (ReassignmentProgress(4, 0), "[........................] 0/4 partitions, ETA unknown"),
        (
            ReassignmentProgress(4, 1, 2_500_000, 1, NOON + timedelta(hours=1)),
            "[######..................] 1/4 partitions, 2.50 MB left, ETA 1 h",
        ),
        (
            ReassignmentProgress(4, 3, eta=NOON - timedelta(seconds=5)),
            "[##################......] 3/4 partitions, ETA now",
        ),
        (ReassignmentProgress(4, 4), "[########################] 4/4 partitions"),
    ],
)
def test_progress_is_formatted_as_one_line(progress: ReassignmentProgress, line: str) -> None:
    assert progress_line(progress, NOON) == line


def test_a_duration_shows_its_two_largest_units() -> None:
    times = {0.4: "now", 59.6: "1 min", 61: "1 min 1 s", 3600: "1 h", 3605: "1 h", 93_600: "1 d 2 h"}
    assert {seconds: duration(timedelta(seconds=seconds)) for seconds in times} == times


# The client.


def test_the_client_submits_lists_and_cancels_reassignments(services: InProcessServices) -> None:
    with AdminClient(services.address("admin"), PATIENT) as admin:
        wanted = {("t1", 0): (1001, 1003), ("t1", 1): (1003, 1001)}
        assert admin.submit_reassignment(wanted, validate_only=True) == Submission(2)
        assert services.cluster.submissions == []
        assert admin.submit_reassignment(wanted) == Submission(2)
        (topic,) = admin.list_reassignments().topics
        assert (topic.topic, topic.partitions, topic.partitions_to_copy) == ("t1", (0, 1), 2)
        assert (topic.adding_replicas, topic.removing_replicas) == ((1003,), (1002,))
        with pytest.raises(Conflict, match="is already being reassigned to"):
            admin.submit_reassignment({("t1", 0): (1004,)})
        cancelled, refused = admin.cancel_reassignment([*wanted, ("t2", 0)])
        assert (cancelled, list(refused)) == (2, [("t2", 0)])
        eventually(lambda: services.is_clean(), SECONDS)
        assert admin.list_reassignments() == Reassignments()
        with pytest.raises(Missing, match="nothing was cancelled"):
            admin.cancel_reassignment(wanted)


def test_many_partitions_are_submitted_and_cancelled_in_parts(
    services: InProcessServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sent 100,000 partitions in one request. A KRaft controller refuses to alter more than 10,000."""
    monkeypatch.setattr("autothrottle_client.admin.PARTITIONS_PER_REQUEST", 1)
    with AdminClient(services.address("admin"), PATIENT) as admin:
        wanted = {("t1", 0): (1001, 1003), ("t1", 1): (1003, 1001)}
        assert admin.submit_reassignment(wanted) == Submission(2)
        assert [list(one) for one in services.cluster.submissions] == [[("t1", 0)], [("t1", 1)]]
        assert admin.cancel_reassignment([("t2", 0), *wanted]) == (2, {})
        eventually(lambda: services.is_clean(), SECONDS)
        with pytest.raises(Missing, match="nothing was cancelled"):
            admin.cancel_reassignment(wanted)
        submissions = list(services.cluster.submissions)
        with pytest.raises(Missing, match=r"^t2-0 does not exist; give a partition's name\nt3-0 does not exist"):
            admin.submit_reassignment({("t1", 0): (1001, 1003), ("t2", 0): (1001,), ("t3", 0): (1001,)})
        assert services.cluster.submissions == submissions, "no part is submitted if another one is refused"


def test_numbers_that_do_not_fit_the_proto_are_refused_without_a_call() -> None:
    with AdminClient("127.0.0.1:1", PATIENT) as admin:
        with pytest.raises(Invalid, match=r"t-0 to \(2147483648,\) is not a target"):
            admin.submit_reassignment({("t", 0): (2**31,)})
        with pytest.raises(Invalid, match="give a topic name and a partition number"):
            admin.cancel_reassignment([("t", 2**31)])


# The command.


SHORT_METADATA_LAG = """
import sys
from autothrottle_client import commands, throttlectl
commands._METADATA_LAG_SECONDS = 1.0
sys.exit(throttlectl.main())
"""


def command(
    *arguments: str, program: Sequence[str] = ("-m", "autothrottle_client.throttlectl")
) -> subprocess.Popen[str]:
    """Start `throttlectl` as a process, as an operator does."""
    return subprocess.Popen(
        [sys.executable, *program, *arguments, "--timeout", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_reassign_follows_a_reassignment_until_it_is_complete(services: InProcessServices, plan: Path) -> None:
    with command("reassign", str(plan)) as running:
        eventually(lambda: services.cluster.submissions, SECONDS)
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(2)]
        services.cluster.finish("t1", 0)
        lines.append(running.stdout.readline())
        services.cluster.finish("t1", 1)
        rest, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, errors
    assert lines[0] == "2 partitions submitted, throttled from the first byte\n"
    assert lines[1].startswith("[........................] 0/2 partitions")
    assert lines[2].startswith("[############............] 1/2 partitions")
    assert rest.splitlines()[-2:] == ["[########################] 2/2 partitions", "2 partitions arrived"]
    eventually(lambda: services.is_clean(), SECONDS)


def test_reassign_fails_if_a_followed_partition_is_cancelled(services: InProcessServices, plan: Path) -> None:
    with command("reassign", str(plan), program=("-c", SHORT_METADATA_LAG)) as running:
        eventually(lambda: services.cluster.submissions, SECONDS)
        eventually(lambda: services.cluster.topics["t1"][1].moves, SECONDS)
        services.cluster.cancel("t1", 1)
        services.cluster.finish("t1", 0)
        _, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    assert errors == ("throttlectl: 1 partitions did not arrive: their reassignment was cancelled or replaced\n")


@pytest.mark.parametrize("is_refused", [False, True])
def test_reassign_tolerates_a_broker_that_reports_later_than_the_controller(
    services: InProcessServices, plan: Path, is_refused: bool
) -> None:
    """On a busy machine `reassign` reported a finished reassignment as cancelled.

    The reassignment had ended, but the broker still reported the old replicas. If a submission would have been refused
    then, the command did not even wait.
    """
    with command("reassign", str(plan)) as running:
        eventually(lambda: services.cluster.submissions, SECONDS)
        eventually(lambda: services.cluster.topics["t1"][1].moves, SECONDS)
        target = services.cluster.submissions[0]["t1", 1]
        assert target is not None
        services.cluster.cancel("t1", 1)
        destinations = {*target} - {*services.cluster.topics["t1"][1].replicas}
        services.cluster.finish("t1", 0)
        services.cluster.brokers -= destinations if is_refused else set()
        assert running.stdout is not None
        while "2/2 partitions" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(2.0)
        assert running.poll() is None, "it checks again before it reports a failure"
        services.cluster.brokers |= destinations
        services.cluster.submit_reassignment("t1", {1: target})
        services.cluster.finish("t1", 1)
        rest, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, errors
    assert rest.splitlines()[-1] == "2 partitions arrived"


def test_reassign_exchanges_the_replicas_of_our_own_state_one_after_the_other(
    services: InProcessServices, tmp_path: Path
) -> None:
    services.cluster.add_topic(STATE_TOPIC, {0: (1001, 1002)})
    plan = written(tmp_path, [{"topic": STATE_TOPIC, "partition": 0, "replicas": [1004, 1003]}])
    with command("reassign", str(plan)) as running:
        for number in (1, 2):
            eventually(lambda count=number: len(services.cluster.submissions) == count, SECONDS)  # type: ignore[misc]
            services.cluster.finish(STATE_TOPIC, 0)
        out, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, errors
    assert out.splitlines()[-1] == "1 partitions arrived"
    assert services.cluster.topics[STATE_TOPIC][0].replicas == (1004, 1003)


def test_reassign_does_not_continue_after_an_exchange_of_our_own_state_was_cancelled(
    services: InProcessServices, tmp_path: Path
) -> None:
    services.cluster.add_topic(STATE_TOPIC, {0: (1001, 1002)})
    plan = written(tmp_path, [{"topic": STATE_TOPIC, "partition": 0, "replicas": [1004, 1003]}])
    with command("reassign", str(plan), program=("-c", SHORT_METADATA_LAG)) as running:
        eventually(lambda: services.cluster.submissions, SECONDS)
        services.cluster.cancel(STATE_TOPIC, 0)
        running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    assert len(services.cluster.submissions) == 1


def test_an_interrupt_ends_the_following_but_not_the_reassignment(services: InProcessServices, plan: Path) -> None:
    with command("reassign", str(plan), "--output=json") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.readline()  # the first line of progress
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 130
    assert re.search(rf"reassignment continues. Cancel: throttlectl cancel {re.escape(str(plan))}$", errors.strip())
    assert services.cluster.topics["t1"][0].moves


def test_a_reassignment_is_submitted_listed_and_cancelled(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "reassignments") == ("no partitions are being reassigned\n", "")
    assert output(capsys, "reassign", str(plan), "--dry-run") == ("2 partitions would be submitted\n", "")
    assert services.cluster.submissions == []
    printed = output(capsys, "reassign", str(plan), "--no-wait")
    assert printed == ("2 partitions submitted, throttled from the first byte\n", "")
    table, _ = output(capsys, "reassignments")
    header = ["MOVE", "PARTITIONS", "TO", "COPY", "TO", "BROKERS", "FROM", "BROKERS", "LEFT", "ETA"]
    assert table.split() == [*header, "t1:0-1", "2", "2", "1003", "1002", "unknown", "unknown"]
    printed = output(capsys, "reassign", str(plan), "--no-wait")
    assert printed == ("nothing was submitted; 2 are already moving\n", "")
    effect, error = output(capsys, "cancel", str(plan))
    assert effect.splitlines()[-1] == "reassignment of 2 of 2 partitions cancelled" and error == ""
    eventually(lambda: services.is_clean(), SECONDS)
    _, error = output(capsys, "cancel", str(plan), status=3)
    assert error.startswith("throttlectl: nothing was cancelled: t1-0 is not being reassigned")


def test_cancel_fails_for_partitions_that_are_not_safe_on_their_original_replicas(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "reassign", str(plan), "--no-wait")
    services.cluster.join_isr("t1", 1, 1003)
    for broker_id in (1001, 1002):
        services.cluster.leave_isr("t1", 1, broker_id)
    printed, error = output(capsys, "cancel", str(plan), status=1)
    assert printed.endswith("\nreassignment of 1 of 2 partitions cancelled\n")
    assert error.startswith("throttlectl: warning: t1-1 was not cancelled: it needs 1 of its original replicas")
    printed, error = output(capsys, "cancel", str(written(plan.parent, [row(1, 1003)])), status=1)
    assert printed == "reassignment of 0 of 1 partitions cancelled\n" and "t1-1 goes on moving" in error
    assert [services.cluster.topics["t1"][p].moves for p in (0, 1)] == [False, True]


def test_a_plan_that_cuts_replicas_needs_an_option_in_every_command(
    services: InProcessServices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`estimate`, `reassign --dry-run` and `reassign` accepted a plan with fewer replicas without a word."""
    plan = str(written(tmp_path, [row(0, 1001), row(1, 1003, 1001)]))
    cut = "t1-0 would have 1 replica instead of 2; to submit it nevertheless: --allow-fewer-replicas"
    for command_line in (["estimate", plan], ["reassign", plan, "--dry-run"], ["reassign", plan]):
        out, error = output(capsys, *command_line, status=1)
        assert out == ""
        assert error.splitlines() == [
            f"throttlectl: {cut}",
            "  to leave refused partitions out and submit the 1 other partition: --skip-refused",
        ]
    assert services.cluster.submissions == []
    assert "to copy for 1 of 2 partitions" in output(capsys, "estimate", plan, "--allow-fewer-replicas")[0]
    out, error = output(capsys, "estimate", plan, "--skip-refused")
    assert error.splitlines()[0] == f"throttlectl: warning: left out: {cut}"
    expected = ("2 partitions would be submitted\n", "")
    assert output(capsys, "reassign", plan, "--dry-run", "--allow-fewer-replicas") == expected
    printed = output(capsys, "reassign", plan, "--no-wait", "--skip-refused")
    assert printed == (
        "1 partitions submitted, throttled from the first byte; 1 are left out\n",
        f"throttlectl: warning: left out: {cut}\n",
    )
    assert [list(submission) for submission in services.cluster.submissions] == [[("t1", 1)]]


def test_reassign_follows_what_it_has_not_left_out(services: InProcessServices, tmp_path: Path) -> None:
    plan = written(tmp_path, [row(0, 1001), row(1, 1003, 1001)])
    with command("reassign", str(plan), "--skip-refused") as running:
        eventually(lambda: services.cluster.submissions, SECONDS)
        services.cluster.finish("t1", 1)
        out, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, errors
    assert out.splitlines()[-1] == "1 partitions arrived"


@pytest.fixture
def three_moves(services: InProcessServices) -> MemoryCluster:
    """Moves that another tool has started: t1:0 and t1:1 to 1003, t2:0 from 1002 to 1004, with their log sizes."""
    cluster = services.cluster
    cluster.add_topic("t2", {0: (1002,)})
    cluster.submit_reassignment("t1", {0: (1001, 1003), 1: (1003, 1001)})
    cluster.submit_reassignment("t2", {0: (1004,)})
    for broker_id, topic, partition, size in ((1003, "t1", 0, mb(3)), (1003, "t1", 1, mb(4)), (1004, "t2", 0, mb(5))):
        cluster.grow(broker_id, topic, partition, size)
    return cluster


def names_of_moving(cluster: MemoryCluster) -> list[str]:
    return [f"{topic}:{n}" for topic, partitions in cluster.topics.items() for n, p in partitions.items() if p.moves]


def test_cancel_takes_topics_and_partitions_of_any_tool_and_shows_the_effect_first(
    three_moves: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run, _ = output(capsys, "cancel", "t1:1", "t2", "--dry-run")
    assert dry_run.splitlines() == [
        "CANCELLED  STAYS ON   DROPPED FROM  COPIED BYTES LOST",
        "t1:1       1001,1002  1003          4.00 MB",
        "t2:0       1002       1004          5.00 MB",
        "",
        "2 partitions keep their old replicas; copied bytes lost: 9.00 MB",
    ]
    assert names_of_moving(three_moves) == ["t1:0", "t1:1", "t2:0"]
    printed, _ = output(capsys, "cancel", "t1:1", "t2")
    assert printed == f"{dry_run}reassignment of 2 of 2 partitions cancelled\n"
    assert names_of_moving(three_moves) == ["t1:0"]


@pytest.mark.parametrize(
    ("options", "remaining"),
    [(("--broker", "1004"), ["t1:0", "t1:1"]), (("--broker", "1003"), ["t2:0"]), (("--all",), [])],
)
def test_cancelling_the_moves_of_a_broker_or_all_wants_a_confirmation(
    three_moves: MemoryCluster, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], remaining: list[str]
) -> None:
    count = 3 - len(remaining)
    printed, error = output(capsys, "cancel", *options, status=2)
    assert f"{count} partitions keep their old replicas" in printed
    assert error == f"throttlectl: nothing was cancelled; repeat the command with --yes to cancel {count} partitions\n"
    assert len(names_of_moving(three_moves)) == 3
    assert f"of {count} partitions cancelled" in output(capsys, "cancel", *options, "--yes")[0]
    assert names_of_moving(three_moves) == remaining
    output(capsys, "cancel", *options, "--yes", status=3)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ((), 2, "cancel needs one of these: topics, partitions or files; --broker; --all"),
        (("t1", "--all"), 2, "cancel needs one of these"),
        (("t3",), 3, "t3 is neither a topic that is being reassigned nor a file; throttlectl reassignments lists"),
        (("t1-1",), 3, "t1-1 is neither a topic that is being reassigned nor a file; did you mean t1:1?"),
        (("t1:x",), 2, "'t1:x' names no partitions; give for example orders, orders:7 or orders:0-3,7"),
        (("t1:3-1",), 2, "'t1:3-1' has the range 3-1; give the smaller number first"),
        (("t1:7",), 3, "nothing was cancelled: t1-7 does not exist"),
        (("--broker", "1005"), 3, "no move adds a replica to broker 1005 or removes one"),
    ],
)
def test_a_wrong_choice_of_moves_cancels_nothing(
    three_moves: MemoryCluster,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    status: int,
    expected: str,
) -> None:
    assert expected in output(capsys, "cancel", *arguments, status=status)[1]
    assert len(names_of_moving(three_moves)) == 3


def test_a_name_that_is_a_file_and_a_topic_must_be_clear(
    three_moves: MemoryCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [row(0, 1001, 1003)]).rename(tmp_path / "t1")
    monkeypatch.chdir(tmp_path)
    error = output(capsys, "cancel", "t1", status=2)[1]
    assert "give ./t1 for the file, or t1:0-2147483647 for the topic" in error
    output(capsys, "cancel", "./t1")
    assert names_of_moving(three_moves) == ["t1:1", "t2:0"]
    output(capsys, "cancel", "t1:0-2147483647")
    assert names_of_moving(three_moves) == ["t2:0"]


def test_reassignments_has_a_row_for_each_move_of_a_topic(
    three_moves: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    three_moves.add_topic("t3", {n: (1001,) for n in range(6)})
    three_moves.submit_reassignment("t3", {**dict.fromkeys((0, 1, 2, 5), (1003,)), 4: (1004,)})
    for broker_id, partition in ((1001, 4), (1004, 4)):
        three_moves.grow(broker_id, "t3", partition, mb(broker_id - 1000))
    three_moves.grow(1001, "t3", 4, mb(8))
    rows = [line.split() for line in output(capsys, "reassignments")[0].splitlines()]
    assert [(words[0], words[1], words[3]) for words in rows[1:]] == [
        *(("t1:0-1", "2", "1003"), ("t2:0", "1", "1004"), ("t3:0-2,5", "4", "1003"), ("t3:4", "1", "1004"))
    ]
    assert rows[-1][5:7] == ["5.00", "MB"]


def test_reassign_warns_of_fetch_sizes_that_are_too_large(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services.cluster.settings = ClusterSettings({1003: FetchSettings()})
    _, error = output(capsys, "reassign", str(plan), "--no-wait")
    assert error.startswith("throttlectl: warning: broker 1003 [follower]: the responses to one round of fetches")


def test_a_rollback_file_with_log_directories_is_estimated_submitted_and_cancelled(
    services: InProcessServices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The three commands refused the rollback file of Kafka 4.2. Only a submission ignores part of it, and warns."""
    rows = [row(0, 1001, 1003, log_dirs=["/data/1", "/data/2"]), row(1, 1003, 1001, log_dirs=["any", "any"])]
    rollback = written(tmp_path, rows)
    _, error = output(capsys, "estimate", str(rollback))
    assert "log directories" not in error
    for options in (("--dry-run",), ("--no-wait",)):
        _, error = output(capsys, "reassign", str(rollback), *options)
        assert error == (
            "throttlectl: warning: 1 of 2 partitions name log directories, the first one is t1-0: "
            '["/data/1", "/data/2"]. autothrottle does not move replicas between directories: it submits \'any\', so '
            "that each broker chooses; kafka-reassign-partitions.sh moves them later\n"
        )
    assert output(capsys, "cancel", str(rollback))[0].endswith("\nreassignment of 2 of 2 partitions cancelled\n")


def test_json_output_has_the_same_content(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = output(capsys, "reassign", str(plan), "--no-wait", "--output=json")
    assert json.loads(out) == {
        "submitted": 2,
        "already_in_progress": 0,
        "already_there": 0,
        "refused": {},
        "warnings": [],
        "postponed": 0,
        "left_out": [],
    }
    out, _ = output(capsys, "reassignments", "--output=json")
    assert [topic["partitions"] for topic in json.loads(out)["topics"]] == [[0, 1]]
    services.cluster.finish("t1", 0)
    out, error = output(capsys, "cancel", str(plan), "--output=json", status=1)
    effect = {"topic": "t1", "partition": 1, "replicas": [1001, 1002], "dropped_replicas": [1003], "bytes_lost": None}
    assert json.loads(out) == {
        "cancelled": 1,
        "refused": {"t1-0": "t1-0 is not being reassigned; there is nothing to cancel"},
        "effects": [effect],
    }
    assert error == (
        "throttlectl: warning: t1-0 was not cancelled: t1-0 is not being reassigned; there is nothing to cancel\n"
    )


def test_reassign_sets_a_fixed_rate(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "reassign", str(plan), "--throttle", "7MB/s", "--dry-run")
    assert services.overrides.read_overrides().cluster is None
    output(capsys, "reassign", str(plan), "--throttle", "7MB/s", "--no-wait")
    override = services.overrides.read_overrides().cluster
    assert override is not None and (override.rate, override.autoremove) == (mb(7), True)


def test_reassign_has_nothing_to_do_if_the_replicas_are_right(
    services: InProcessServices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = written(tmp_path, [row(0, 1001, 1002)])
    printed = output(capsys, "reassign", str(there))
    assert printed == ("nothing to do: all 1 partitions already have these replicas\n", "")


def test_a_file_is_read_from_standard_input(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(plan.read_text()))
    assert output(capsys, "reassign", "-", "--dry-run") == ("2 partitions would be submitted\n", "")


def test_a_reassignment_that_cannot_be_throttled_fails(
    services: InProcessServices, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services.cluster.refused[ConfigResource.broker(1003)] = "broker 1003 does not answer"
    out, error = output(capsys, "reassign", str(plan), status=1)
    assert (out, services.cluster.submissions) == ("", [])
    assert error == (
        "throttlectl: nothing was submitted, since it could not be throttled: "
        "brokers/1003: broker 1003 does not answer\n"
    )


def test_an_unusable_file_ends_with_a_usage_error(
    services: InProcessServices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent.json"
    _, error = output(capsys, "reassign", str(absent), status=2)
    assert error == (
        f"throttlectl: {absent} cannot be read: No such file or directory; give the path of a reassignment file\n"
    )
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in output(capsys, "cancel", str(binary), status=2)[1]
    elsewhere = written(tmp_path, [row(0, 1001, 1009)])
    _, error = output(capsys, "reassign", str(elsewhere), status=2)
    assert "broker 1009, a target replica of t1-0, is unknown or down; the registered brokers are" in error
    unknown = written(tmp_path, [row(7, 1001)])
    _, error = output(capsys, "reassign", str(unknown), status=3)
    assert error == "throttlectl: t1-7 does not exist; give a partition's name\n"
