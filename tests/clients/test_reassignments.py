"""Reassignments from the command line and the client: files, submitting, following, cancelling."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.configs import ConfigResource
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
from autothrottle_client.following import Follower, Progress, duration, progress_line
from autothrottle_client.throttlectl import main
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.services.house import BROKERS, House

PATIENT = timedelta(seconds=30)
SECONDS = 60.0
AT_ONCE = 10.0
"""Seconds, on a busy machine."""


@pytest.fixture
def house(no_options_of_the_machine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """One planner, which leads; the environment names the admin service. t1 is on 1001 and 1002."""
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics) as built:
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
    """What a command says on (standard output, standard error)."""
    ended = main([*arguments, "--timeout", "30"])
    said = capsys.readouterr()
    assert ended == status, said
    return said.out, said.err


# Files.


def test_a_file_of_kafkas_own_tool_is_read() -> None:
    rows = [row(0, 1001, 1003, log_dirs=["any", "any"]), row(1, 0), {**row(0, 7), "topic": "t2", "comment": "x"}]
    text = json.dumps({"version": 1, "partitions": rows, "who": "somebody"})
    assert parse_reassignment(text) == {("t1", 0): (1001, 1003), ("t1", 1): (0,), ("t2", 0): (7,)}


def test_a_file_without_a_version_is_one_of_the_first_as_to_kafkas_own_tool() -> None:
    """It was refused, though README says that files are read as that tool reads them."""
    assert parse_reassignment(json.dumps({"partitions": [row(0, 1001)]})) == {("t1", 0): (1001,)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is no JSON: Expecting value at line 1, column 1; give"),
        ("{\n  'version': 1}", "double quotes at line 2, column 3; give"),
        ('{"version":1,"partitions":[]}\nProposed', "the file is no JSON: Extra data at line 2, column 1; give"),
        ('{"version":NaN}', "the file holds NaN, which is no JSON; give"),
        ("[" * 200_000, "the file is nested too deeply; give"),
        ('{"version":' + "1" * 5_000, "the file holds a number of thousands of digits; give"),
        ("[1]", "the file holds a list, no object; give"),
        ("null", "the file holds missing, no object; give"),
        ('{"version":"1"}', 'version is "1"; it must be 1'),
        ('{"version":2,"partitions":[]}', "version is 2; it must be 1"),
        ('{"version":true,"partitions":[]}', "version is true; it must be 1"),
        ('{"version":1}', "partitions is missing; it must be a list of at least one"),
        ('{"version":1,"partitions":[]}', "partitions is []; it must be a list of at least one"),
        ('{"version":1,"version":1}', 'an object of the file has "version" twice; name it once'),
        ('{"version":1,"partitions":[7]}', "partitions[0] is 7, no object; give"),
    ],
)
def test_what_is_no_such_file_is_refused_with_the_place_and_an_example(text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_reassignment(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_is_named_twice_is_found_among_many_at_once() -> None:
    """Each name, and each broker, was compared with all others: a file of some MB took hours to be refused."""
    names, brokers = [f'"n{number}":0' for number in range(30_000)], list(range(100_000))
    begun = time.monotonic()
    with pytest.raises(Invalid, match='has "n29999" twice'):
        parse_reassignment("{" + ",".join([*names, names[-1]]) + "}")
    with pytest.raises(Invalid, match="names broker 99999 twice"):
        parse_reassignment(json.dumps({"version": 1, "partitions": [row(0, *brokers, brokers[-1])]}))
    assert time.monotonic() - begun < AT_ONCE


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topic": ""}, 'partitions[1].topic is ""; it must be the name of a topic'),
        ({"topic": None}, "partitions[1].topic is missing; it must be the name of a topic"),
        ({"partition": -1}, "partitions[1].partition is -1; it must be an integer, 0 to 2147483647"),
        ({"partition": 1.0}, "partitions[1].partition is 1.0; it must be an integer"),
        ({"partition": True}, "partitions[1].partition is true; it must be an integer"),
        ({"partition": 0}, "partitions[1] is t1-0 for the second time; name it once"),
        ({"replicas": []}, "partitions[1].replicas is []; it must be a list of at least one broker id"),
        ({"replicas": "1,2"}, 'partitions[1].replicas is "1,2"; it must be a list'),
        ({"replicas": [1, "2"]}, 'partitions[1].replicas[1] is "2"; it must be an integer, 0 to 2147483647'),
        ({"replicas": [2**31]}, "partitions[1].replicas[0] is 2147483648; it must be an integer, 0 to"),
        ({"replicas": [7, 8, 7]}, "partitions[1].replicas names broker 7 twice: [7, 8, 7]; name every broker once"),
        ({"log_dirs": ["any"]}, "partitions[1].log_dirs is [\"any\"]; leave it out, or give one 'any' a replica"),
        ({"log_dirs": ["any", "/d1"]}, 'partitions[1].log_dirs[1] is "/d1": a move to a certain directory'),
    ],
)
def test_what_is_wrong_in_an_entry_is_refused_with_its_number(wrong: dict[str, Any], said: str) -> None:
    rows = [row(0, 1001, 1003), {**row(1, 1001, 1003), **wrong}]
    with pytest.raises(Invalid) as caught:
        parse_reassignment(json.dumps({"version": 1, "partitions": rows}))
    assert said in str(caught.value)


def test_a_file_of_more_partitions_than_go_at_a_time_is_refused() -> None:
    rows = [row(number, 1) for number in range(100_001)]
    with pytest.raises(Invalid, match="partitions has 100001 entries; at most 100000 go at a time: divide the file"):
        parse_reassignment(json.dumps({"version": 1, "partitions": rows}))


@given(st.text(max_size=40) | st.from_regex(r'\{"version":1,"partitions":.*', fullmatch=True))
def test_whatever_a_file_holds_is_read_or_refused(text: str) -> None:
    try:
        assert parse_reassignment(text)
    except Invalid as error:
        assert len(str(error)) < 400


# How far.

WANTED = {("t1", 0): (1001,), ("t1", 1): (1001,), ("t2", 0): (1001,), ("t2", 1): (1001,)}


def moving(t1: tuple[int, ...] = (), t2: tuple[int, ...] = (), **known: Any) -> Reassignments:
    numbers = {"other": (5,), "t1": t1, "t2": t2}
    topics = [ReassigningTopic(name, n, (1001,), (1002,), len(n), **known) for name, n in numbers.items() if n]
    return Reassignments(tuple(topics))


def test_progress_counts_what_was_asked_for_and_takes_its_pace() -> None:
    follower = Follower(WANTED)
    assert follower.progress(NOON, moving((0, 1), (0, 1))) == Progress(4, 0)
    later = NOON + timedelta(seconds=60)
    assert follower.progress(later, moving((1,), (0, 1))) == Progress(4, 1, eta=later + timedelta(seconds=180))
    end = NOON + timedelta(seconds=90)
    assert follower.progress(end, moving()) == Progress(4, 4)


def test_progress_prefers_the_bytes_that_the_service_knows() -> None:
    eta = NOON + timedelta(hours=1)
    found = moving((0,), (0, 1), bytes_landed=10, bytes_left=30)
    (other, first, second) = found.topics
    known = Follower(WANTED).progress(NOON, Reassignments((first, second), eta))
    assert known == Progress(4, 1, bytes_left=60, bytes_landed=20, eta=eta)
    unknown = ReassigningTopic("t2", second.partitions, (1001,), (1002,), 2)
    assert Follower(WANTED).progress(NOON, Reassignments((other, first, unknown))).bytes_left is None


def test_what_others_move_does_not_put_off_the_end() -> None:
    """Beside a move of two days one of some minutes was said to take two days."""
    soon, late = NOON + timedelta(minutes=5), NOON + timedelta(days=2)
    (other, first, second) = moving((0,), (0, 1)).topics
    topics = replace(other, eta=late), replace(first, eta=NOON), replace(second, eta=soon)
    assert Follower(WANTED).progress(NOON, Reassignments(topics, late)).eta == soon
    unknown = (topics[0], topics[1], second)
    assert Follower(WANTED).progress(NOON, Reassignments(unknown, late)).eta is None
    elsewhere = (replace(second, partitions=(7,), eta=late), topics[1])
    assert Follower(WANTED).progress(NOON, Reassignments(elsewhere, late)).eta == NOON


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress(4, 0), "[........................] 0/4 partitions, ETA unknown"),
        (
            Progress(4, 1, 2_500_000, 1, NOON + timedelta(hours=1)),
            "[######..................] 1/4 partitions, 2.50 MB left, ETA 1 h",
        ),
        (Progress(4, 3, eta=NOON - timedelta(seconds=5)), "[##################......] 3/4 partitions, ETA now"),
        (Progress(4, 4), "[########################] 4/4 partitions"),
    ],
)
def test_progress_is_one_line(progress: Progress, line: str) -> None:
    assert progress_line(progress, NOON) == line


def test_a_time_has_its_two_largest_units() -> None:
    times = {0.4: "now", 59.6: "1 min", 61: "1 min 1 s", 3600: "1 h", 3605: "1 h", 93_600: "1 d 2 h"}
    assert {seconds: duration(timedelta(seconds=seconds)) for seconds in times} == times


# The client.


def test_the_client_submits_lists_and_cancels(house: House) -> None:
    with AdminClient(house.address("admin"), PATIENT) as admin:
        wanted = {("t1", 0): (1001, 1003), ("t1", 1): (1003, 1001)}
        assert admin.submit_reassignment(wanted, validate_only=True) == Submission(2)
        assert house.cluster.submissions == []
        assert admin.submit_reassignment(wanted) == Submission(2)
        (topic,) = admin.list_reassignments().topics
        assert (topic.topic, topic.partitions, topic.partitions_to_copy) == ("t1", (0, 1), 2)
        assert (topic.adding_replicas, topic.removing_replicas) == ((1003,), (1002,))
        with pytest.raises(Conflict, match="is being reassigned to"):
            admin.submit_reassignment({("t1", 0): (1004,)})
        cancelled, refused = admin.cancel_reassignment([*wanted, ("t2", 0)])
        assert (cancelled, list(refused)) == (2, [("t2", 0)])
        eventually(lambda: house.is_clean(), SECONDS)
        assert admin.list_reassignments() == Reassignments()
        with pytest.raises(Missing, match="nothing was cancelled"):
            admin.cancel_reassignment(wanted)


def test_numbers_that_no_message_holds_are_refused_before_anybody_is_asked() -> None:
    with AdminClient("127.0.0.1:1", PATIENT) as admin:
        with pytest.raises(Invalid, match=r"t-0 to \(2147483648,\) is no target"):
            admin.submit_reassignment({("t", 0): (2**31,)})
        with pytest.raises(Invalid, match="give a topic's name and a partition's number"):
            admin.cancel_reassignment([("t", 2**31)])


# The command.


def command(*arguments: str) -> subprocess.Popen[str]:
    """`throttlectl` as an operator starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "autothrottle_client.throttlectl", *arguments, "--timeout", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reassignment_is_followed_until_it_has_arrived(house: House, plan: Path) -> None:
    with command("reassign", str(plan)) as running:
        eventually(lambda: house.cluster.submissions, SECONDS)
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(2)]
        house.cluster.finish("t1", 0)
        lines.append(running.stdout.readline())
        house.cluster.finish("t1", 1)
        rest, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, errors
    assert lines[0] == "2 partitions submitted, throttled from the first byte\n"
    assert lines[1].startswith("[........................] 0/2 partitions")
    assert lines[2].startswith("[############............] 1/2 partitions")
    assert rest.splitlines()[-2:] == ["[########################] 2/2 partitions", "2 partitions arrived"]
    eventually(lambda: house.is_clean(), SECONDS)


def test_what_is_followed_and_cancelled_by_somebody_has_failed(house: House, plan: Path) -> None:
    with command("reassign", str(plan)) as running:
        eventually(lambda: house.cluster.submissions, SECONDS)
        eventually(lambda: house.cluster.topics["t1"][1].moves, SECONDS)
        house.cluster.cancel("t1", 1)
        house.cluster.finish("t1", 0)
        _, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    assert errors == (
        "throttlectl: 1 partitions did not arrive: their reassignment was cancelled, or they were moved again\n"
    )


def test_what_a_broker_tells_later_than_the_controller_has_arrived_all_the_same(house: House, plan: Path) -> None:
    """On a busy machine a finished move was called cancelled: nothing moved, and a partition was where it had been."""
    with command("reassign", str(plan)) as running:
        eventually(lambda: house.cluster.submissions, SECONDS)
        eventually(lambda: house.cluster.topics["t1"][1].moves, SECONDS)
        target = house.cluster.submissions[0]["t1", 1]
        assert target is not None
        house.cluster.cancel("t1", 1)
        house.cluster.finish("t1", 0)
        assert running.stdout is not None
        while "2/2 partitions" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(2.0)
        assert running.poll() is None, "it looks again before it says so"
        house.cluster.start_reassignment("t1", {1: target})
        house.cluster.finish("t1", 1)
        rest, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, errors
    assert rest.splitlines()[-1] == "2 partitions arrived"


def test_an_interrupt_ends_the_following_and_not_the_reassignment(house: House, plan: Path) -> None:
    with command("reassign", str(plan), "--output=json") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.readline()  # it follows
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 130
    assert re.search(rf"it goes on. Cancel it with: throttlectl cancel {re.escape(str(plan))}$", errors.strip())
    assert house.cluster.topics["t1"][0].moves


def test_a_reassignment_is_submitted_listed_and_cancelled(
    house: House, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "reassignments") == ("nothing is being reassigned\n", "")
    assert output(capsys, "reassign", str(plan), "--dry-run") == ("2 partitions would be submitted\n", "")
    assert house.cluster.submissions == []
    said = output(capsys, "reassign", str(plan), "--no-wait")
    assert said == ("2 partitions submitted, throttled from the first byte\n", "")
    table, _ = output(capsys, "reassignments")
    header = ["TOPIC", "PARTITIONS", "TO", "COPY", "TO", "BROKERS", "FROM", "BROKERS", "LEFT", "ETA"]
    assert table.split() == [*header, "t1", "2", "2", "1003", "1002", "unknown", "unknown"]
    said = output(capsys, "reassign", str(plan), "--no-wait")
    assert said == ("nothing was submitted; 2 move already\n", "")
    assert output(capsys, "cancel", str(plan)) == ("reassignment of 2 of 2 partitions cancelled\n", "")
    eventually(lambda: house.is_clean(), SECONDS)
    _, error = output(capsys, "cancel", str(plan), status=3)
    assert error.startswith("throttlectl: nothing was cancelled: t1-0 is not being reassigned")


def test_json_says_the_same(house: House, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "reassign", str(plan), "--no-wait", "--output=json")
    assert json.loads(out) == {"submitted": 2, "already_moving": 0, "already_there": 0, "refused": {}}
    out, _ = output(capsys, "reassignments", "--output=json")
    assert [topic["partitions"] for topic in json.loads(out)["topics"]] == [[0, 1]]
    house.cluster.finish("t1", 0)
    out, error = output(capsys, "cancel", str(plan), "--output=json")
    assert json.loads(out) == {
        "cancelled": 1,
        "refused": {"t1-0": "t1-0 is not being reassigned; there is nothing to cancel"},
    }
    assert error == "throttlectl: warning: t1-0: t1-0 is not being reassigned; there is nothing to cancel\n"


def test_what_is_there_already_is_nothing_to_do(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = written(tmp_path, [row(0, 1001, 1002)])
    said = output(capsys, "reassign", str(there))
    assert said == ("nothing to do: all 1 partitions have these replicas already\n", "")


def test_a_file_may_come_from_standard_input(
    house: House, plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(plan.read_text()))
    assert output(capsys, "reassign", "-", "--dry-run") == ("2 partitions would be submitted\n", "")


def test_a_reassignment_that_cannot_be_throttled_fails(
    house: House, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house.cluster.refuse(ConfigResource.broker(1003), "broker 1003 does not answer")
    out, error = output(capsys, "reassign", str(plan), status=1)
    assert (out, house.cluster.submissions) == ("", [])
    assert error == (
        "throttlectl: nothing was submitted, since it could not be throttled: "
        "brokers/1003: broker 1003 does not answer\n"
    )


def test_a_file_that_cannot_be_used_is_a_wrong_use(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent.json"
    _, error = output(capsys, "reassign", str(absent), status=2)
    assert error == (
        f"throttlectl: {absent} cannot be read: No such file or directory; give the path of a reassignment file\n"
    )
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert "is no text in UTF-8" in output(capsys, "cancel", str(binary), status=2)[1]
    elsewhere = written(tmp_path, [row(0, 1001, 1009)])
    _, error = output(capsys, "reassign", str(elsewhere), status=2)
    assert "broker 1009, to which t1-0 is to move, is unknown or down; registered are" in error
    unknown = written(tmp_path, [row(7, 1001)])
    _, error = output(capsys, "reassign", str(unknown), status=3)
    assert error == "throttlectl: t1-7 does not exist; give a partition's name\n"
