"""`throttlectl` as operators use it: output, exit status, refused input."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle import __version__
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.cluster.configs import FOLLOWER_REPLICAS, LEADER_RATE, ConfigResource
from autothrottle.core.operators.sources import StoredOverride
from autothrottle_client import (
    AdminClient,
    AuditAction,
    AuditRecord,
    Basis,
    ClusterState,
    Cycle,
    Decision,
    Invalid,
    Member,
    Reason,
    ReplicaRole,
    Throttle,
    tables,
)
from autothrottle_client.texts import format_rate, parse_expiry, parse_rate, parse_span
from autothrottle_client.throttlectl import SHELLS, main, make_parser
from autothrottle_lab.servers.processes import free_address
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.in_process_services import InProcessServices

SECONDS = 30
TLS = {"--tls-cert", "--tls-key", "--tls-ca", "--tls-server-name"}
COMMON = {"-h", "--help", "--admin-addr", "--addr", "--context", "-o", "--output", "--timeout", "--token-file", *TLS}

COMMANDS = (
    "get",
    "set",
    "remove",
    "audit",
    "estimate",
    "reassign",
    "plan",
    "cancel",
    "reassignments",
    "catchup",
    "quota",
    "pause",
    "resume",
    "request-quota",
    "state",
    "top",
    "explain",
    "watch",
    "context",
    "completion",
)


pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")


@pytest.fixture
def services() -> Iterator[InProcessServices]:
    """Two planners, the first of which leads and has run its first cycle."""
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with InProcessServices(metrics, metrics, planners=2) as built:
        built.start_planners()
        eventually(lambda: built.planners[0].state().last_cycle)
        yield built


@pytest.fixture
def at(services: InProcessServices, monkeypatch: pytest.MonkeyPatch) -> InProcessServices:
    """The services; the environment names their admin service."""
    monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", services.address("admin"))
    return services


@pytest.fixture
def at_unchanged(unchanged_services: InProcessServices, monkeypatch: pytest.MonkeyPatch) -> InProcessServices:
    """The services that no test changes; the environment names their admin service."""
    monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", unchanged_services.address("admin"))
    return unchanged_services


def output(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    """Run a command and return (standard output, standard error)."""
    ended = main(arguments)
    printed = capsys.readouterr()
    assert ended == status, printed
    return printed.out, printed.err


def process(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start `throttlectl` as a process, as an operator does."""
    command = [sys.executable, "-m", "autothrottle_client.throttlectl", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Rates.


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200", mb(200)),
        ("200MB/s", mb(200)),
        ("50MB", mb(50)),
        ("1.5GB", mb(1500)),
        ("20kB", 20_000),
        ("1B", 1),
        ("1500000B/s", 1_500_000),
        ("1.5MB/s", 1_500_000),
        ("0.5", 500_000),
        ("1B/s", 1),
        ("20kB/s", 20_000),
        ("0.000000001GB/s", 1),
        ("1000000", 10**12),
        ("1000000000000B/s", 10**12),
    ],
)
def test_a_rate_is_parsed_with_its_unit(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "200 MB/s",
            " 200",
            "200\n",
            "+200",
            "-200",
            "00",
            "007",
            "1e3",
            "0x10",
            "nan",
            "inf",
            "1_000",
            "1,5",
        ),
        *(
            "200mb/s",
            "50mb",
            "200/s",
            "200MB/",
            "200MBps",
            "200MiB",
            "200MiB/s",
            "200Mb/s",
            "MB/s",
            ".5",
            "5.",
            "٢٠٠",
            "²",
            "200%",
            "9" * 10_000,
        ),
    ],
)
def test_a_malformed_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match=r"is not a rate: .*give for example 200MB/s") as caught:
        parse_rate(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["0", "0MB/s", "0.0", "1000000000001B/s", "1000001", "9" * 19 + "GB/s"])
def test_a_rate_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(Invalid, match=r"outside 1\.\.1000000000000; give a positive rate"):
        parse_rate(text)


def test_a_fraction_of_a_byte_per_second_is_refused() -> None:
    with pytest.raises(Invalid, match=r"'1.0000001MB/s' is 1000000.1 bytes/s: .*round it"):
        parse_rate("1.0000001MB/s")


def test_bytes_given_as_megabytes_are_refused_with_the_unit() -> None:
    """`throttlectl set 80000000`, meant in bytes/s, set 80 TB/s without a word. It limited nothing."""
    with pytest.raises(
        Invalid, match=r"'80000000' is 80000000000000 bytes/s, outside .*; a number without a unit is in"
    ):
        parse_rate("80000000")


@given(st.integers(1, 10**12))
def test_a_formatted_rate_parses_to_the_same_rate(rate: int) -> None:
    assert parse_rate(format_rate(rate)) == rate


# Commands.


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--version") == (f"throttlectl {__version__}\n", "")


def test_overrides_are_set_shown_and_removed_in_text_output(
    at: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "get") == ("no throttle override is set\n", "")
    armed = "armed: nothing moves now; acts when a move or a catch-up begins"
    armed += ", and ends with the last one"
    assert output(capsys, "set", "90MB", "--autoremove") == (
        f"cluster: throttle set to 90MB/s, autoremove; {armed}\n",
        "",
    )
    assert output(capsys, "set", "1500000B/s", "--broker", "1002", "--beyond-capacity")[0].startswith(
        "broker 1002: throttle set to 1.5MB/s, beyond capacity; acts "
    )
    eventually(lambda: "acts now" in output(capsys, "get")[0])
    everyone, own = at.overrides.read_overrides().cluster, at.overrides.read_overrides().brokers[1002]
    assert everyone is not None
    rows = [re.split("  +", line) for line in output(capsys, "get")[0].splitlines()]
    assert rows == [
        ["BROKER", "RATE", "AUTOREMOVE", "EXPIRES", "ETAG", "EFFECT"],
        ["cluster", "90MB/s", "true", "never", f"{everyone.version:x}", armed],
        ["1002", "1.5MB/s", "false", "never", f"{own.version:x}", "acts now, beyond capacity"],
    ]
    assert [re.split("  +", line) for line in output(capsys, "get", "1002")[0].splitlines()] == [rows[0], rows[2]]
    assert output(capsys, "remove", "--broker=1002") == ("broker 1002: throttle removed\n", "")
    assert output(capsys, "remove") == ("cluster: throttle removed\n", "")
    assert output(capsys, "get") == ("no throttle override is set\n", "")


def test_a_rate_above_the_capacity_is_set_with_a_warning(
    at: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate in a wrong unit, below the limit but above the link, was set without a word."""
    out, error = output(capsys, "set", "500", "--broker", "1002")
    assert out.startswith("broker 1002: throttle set to 500MB/s; ")
    beginning = "throttlectl: warning: the override of 500 MB/s is above the capacity of broker 1002, 100 MB/s"
    assert error.startswith(f"{beginning}: the capacity limits it there")
    assert output(capsys, "set", "500", "--broker", "1002", "--beyond-capacity")[1].startswith(
        f"{beginning}: it does not limit replication there"
    )


def test_every_command_prints_one_json_object(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    def read(*arguments: str) -> object:
        out, _ = output(capsys, *arguments, "--output", "json")
        assert out.count("\n") == 1
        return json.loads(out)

    own: dict[str, object] = {"broker_id": 1002, "rate_bytes_per_second": 50_000_000, "autoremove": False}
    everyone: dict[str, object] = {"broker_id": None, "rate_bytes_per_second": 10**12, "autoremove": True}
    for override, *arguments in ((own, "50", "--broker", "1002"), (everyone, f"{10**12}B/s", "--autoremove")):
        answer = read("set", *arguments)
        assert isinstance(answer, dict)
        override |= {"expire_time": None, "etag": answer["override"]["etag"], "beyond_capacity": False}
        eventually(lambda: "acts now" in output(capsys, "get")[0])
        override["effect"] = "acts now" if override is own else answer["override"]["effect"]
        assert answer["override"] | {"effect": override["effect"]} == override
        assert ["above the capacity of broker 1001" in warning for warning in answer["warnings"]] == [True] * (
            override is everyone
        )
    assert read("get") == {"overrides": [everyone, own], "warnings": []}
    assert read("get", "1002") == own
    state = read("state")
    assert isinstance(state, dict)
    assert state.keys() == {
        "term",
        "leader_address",
        "leader_host",
        "throttles",
        "cluster_name",
        "warnings",
        "leader_since",
        "last_cycle",
        "last_cycle_end",
        "overrides",
        "members",
        "failures",
        "pause",
        "catch_ups",
    }
    assert (state["term"], state["leader_address"]) == (1, at.address("planner-1"))
    assert state["overrides"] == [everyone, own]
    assert state["last_cycle"]["start_time"].endswith("Z")
    assert state["last_cycle_end"] == state["last_cycle"]["end_time"]
    assert read("remove", "--broker", "1002") == {"removed": [{"broker_id": 1002}]}
    assert read("set", "50", "--broker", "1003") != {}
    assert read("remove", "--all") == {"removed": [{"broker_id": None}, {"broker_id": 1003}]}
    assert read("remove", "--all") == {"removed": []}


def test_an_etag_allows_a_change_only_of_the_current_version(
    at: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    etag = json.loads(output(capsys, "set", "50", "--output", "json")[0])["override"]["etag"]
    assert output(capsys, "set", "60", "--etag", etag)[0].startswith("cluster: throttle set to 60MB/s; ")
    for command in (("set", "70", "--etag", etag), ("remove", "--etag", etag)):
        out, err = output(capsys, *command, status=1)
        assert out == "" and "read it again, then decide again" in err
    for malformed in ("", "x", f'"{etag}"'):
        assert "is not an etag: give it as get shows it" in output(capsys, "remove", f"--etag={malformed}", status=2)[1]
    assert "give it without --all" in output(capsys, "remove", "--all", "--etag", etag, status=2)[1]
    assert output(capsys, "get")[0].split()[7] == "60MB/s"


def test_an_override_is_set_with_an_expiry(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    printed, _ = output(capsys, "set", "50", "--expires", "2999-01-31T19:00:00+01:00")
    assert printed.startswith("cluster: throttle set to 50MB/s, until 2999-01-31T18:00:00Z; armed: ")
    assert output(capsys, "get")[0].split()[9] == "2999-01-31T18:00:00Z"
    before = datetime.now(UTC)
    output(capsys, "set", "50", "--broker", "1001", "--expires", "2h")
    end = at.overrides.read_overrides().brokers[1001].expire_time
    assert end is not None and before <= end - timedelta(hours=2) <= datetime.now(UTC)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2", "h", "0m", "-1h", "1.5h", "2 h", "2H", "1w", "9999999d", "tomorrow", "18:00", "\u0662h"),
        *("2999-01-31", "2999-01-31T18:00:00", "2999-02-31T18:00:00Z", "1999-01-31T18:00:00Z"),
    ],
)
def test_a_malformed_or_past_expiry_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match=r"like 2h, or a time with its time zone like|give a later time"):
        parse_expiry(text, NOON)


@pytest.mark.parametrize("text", ["", "2", "0m", "-1h", "1.5h", "2H", "366d", "8761h", "2030-01-31T18:00:00Z"])
def test_a_malformed_or_too_long_duration_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"is not a duration: give a whole number with s, m, h or d, at most 365d"):
        parse_span(text)


def test_an_expiry_after_the_year_9999_is_refused() -> None:
    with pytest.raises(Invalid, match="is not a time"):
        parse_expiry("999999d", datetime(9000, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1), ("90m", 5400), ("2h", 7200), ("7d", 604_800)])
def test_an_expiry_may_be_a_duration_from_now(text: str, seconds: int) -> None:
    assert parse_expiry(text, NOON) == NOON + timedelta(seconds=seconds)


def test_audit_shows_changes_of_overrides_newest_first(
    at: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "audit") == ("no action is recorded\n", "")
    output(capsys, "set", "50", "--broker", "1001", "--expires", "2999-01-31T18:00:00Z")
    output(capsys, "remove", "--broker", "1001")
    at.overrides.set_override(None, StoredOverride(mb(7), autoremove=True), who="an\noperator")
    header, *rows = output(capsys, "audit")[0].splitlines()
    assert header.split() == ["TIME", "BROKER", "ACTION", "BEFORE", "AFTER", "WHO"]
    shown = [re.split(r"  +", row)[1:] for row in rows]
    until = "50MB/s, until 2999-01-31T18:00:00Z"
    assert [row[:4] for row in shown] == [
        ["cluster", "set", "-", "7MB/s, autoremove"],
        ["1001", "remove", until, "-"],
        ["1001", "set", "-", until],
    ]
    assert shown[0][4] == "an?operator"
    assert shown[1][4] == "127.0.0.1"
    records = json.loads(output(capsys, "audit", "--limit", "1", "--output", "json")[0])["records"]
    assert [(record["who"], record["action"], record["before"]) for record in records] == [
        ("an\noperator", "set", None)
    ]
    assert "give one" in output(capsys, "audit", "--limit", "1001", status=2)[1]


def test_audit_has_one_line_per_record_with_a_short_caller() -> None:
    """One failed cancellation made every row 600 characters wide, and WHO an address with ports."""
    failure = "Failed for 2 partitions of t: nothing was cancelled: " + "t-0 is not being reassigned; " * 20
    who = "anna at 10.0.0.9:41234 through ipv4:10.0.0.1:4711"
    records = [
        AuditRecord(2, NOON, who, AuditAction.CANCEL, None, None, None, result=failure),
        AuditRecord(1, NOON, "10.0.0.9:5000 through unix:/a", AuditAction.RESUME, None, None, None),
    ]
    header, long, short = tables.audit_table(records).splitlines()
    assert max(map(len, (header, long, short))) < 170
    assert "Failed for 2 partitions of t: nothing was cancelled: t-0" in long and long.endswith("...  anna")
    assert short.endswith("  10.0.0.9")
    assert failure in tables.to_json(records[0]) and who in tables.to_json(records[0])


def test_audit_shows_pause_and_resume_between_override_changes(
    at: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "pause", "--reason", "network work")
    output(capsys, "set", "50", "--broker", "1001")
    output(capsys, "resume")
    shown = [re.split(r"  +", row)[1:] for row in output(capsys, "audit")[0].splitlines()[1:]]
    assert [row[:4] for row in shown] == [
        ["-", "resume", "keep: network work", "-"],
        ["1001", "set", "-", "50MB/s"],
        ["-", "pause", "-", "keep: network work"],
    ]
    assert {row[4] for row in shown} == {"127.0.0.1"}
    newest = json.loads(output(capsys, "audit", "--limit", "1", "--output", "json")[0])["records"][0]
    assert (newest["action"], newest["pause"]["reason"], newest["after"]) == ("resume", "network work", None)


def test_the_state_shows_foreign_throttles(
    services: InProcessServices, at: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    services.cluster.set_config_as_user(ConfigResource.broker(1004), LEADER_RATE, "1000")
    services.cluster.set_config_as_user(ConfigResource.topic("old"), FOLLOWER_REPLICAS, "0:1001")
    output(capsys, "set", "50", "--broker", "1001")  # starts a cycle, which finds them

    def rows() -> list[str]:
        return [line for line in output(capsys, "state")[0].splitlines() if line.startswith("not ours")]

    eventually(rows)
    assert [re.split(r"  +", row)[1] for row in rows()] == [
        f"brokers/1004 {LEADER_RATE}=1000",
        f"topics/old {FOLLOWER_REPLICAS}=0:1001",
    ]
    state = json.loads(output(capsys, "state", "--output", "json")[0])
    assert state["last_cycle"]["foreign_throttles"] == [
        {"resource": "brokers/1004", "key": LEADER_RATE, "value": "1000"},
        {"resource": "topics/old", "key": FOLLOWER_REPLICAS, "value": "0:1001"},
    ]


def test_a_warning_goes_to_standard_error(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(capsys, "set", "50", "--broker", "4711")
    assert out == "broker 4711: throttle set to 50MB/s; acts in the next cycle, if broker 4711 is registered\n"
    assert err.startswith("throttlectl: warning: broker 4711 is not registered")


def test_all_overrides_are_removed_at_once(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    for broker in ("1001", "1002"):
        output(capsys, "set", "50", "--broker", broker)
    output(capsys, "set", "70")
    expected = "cluster: throttle removed\nbroker 1001: throttle removed\nbroker 1002: throttle removed\n"
    assert output(capsys, "remove", "--all") == (expected, "")
    assert output(capsys, "remove", "--all") == ("no throttle override is set\n", "")


@pytest.mark.parametrize("arguments", [("get", "1002"), ("remove", "--broker", "1002"), ("remove",)])
def test_a_missing_override_ends_with_status_3(
    at: InProcessServices, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]
) -> None:
    out, err = output(capsys, *arguments, status=3)
    assert out == "" and "no throttle override is set for" in err


def test_the_state_is_shown_as_text(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "set", "50", "--broker", "1001")
    out, _ = output(capsys, "state")
    lines = out.splitlines()
    assert lines[0].split() == ["cluster", "kafka"]
    assert lines[1].split() == ["leader", at.address("planner-1")]
    assert lines[2].split() == ["term", "1"]
    assert lines[3].startswith("since") and lines[3].endswith("Z")
    assert lines[4].startswith("last cycle") and "took" in lines[4]
    assert "1001    50MB/s  false" in out


def test_request_quotas_are_set_listed_and_removed(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    def quota(*arguments: str, status: int = 0) -> str:
        out, err = output(capsys, "request-quota", *arguments, status=status)
        return err if status else out

    assert quota("list") == "no request quota is set\n"
    assert quota("set", "100", "--user", "anna") == "user anna: at most 100 requests/s\n"
    assert quota("set", "10", "--user", "--client-id") == "user (default), client id (default): at most 10 requests/s\n"
    assert quota("list").split()[-6:] == ["(default)", "(default)", "10", "anna", "any", "100"]
    assert json.loads(quota("list", "-o", "json")) == {
        "quotas": [
            {"request_rate": 10, "user": "", "client_id": ""},
            {"request_rate": 100, "user": "anna", "client_id": None},
        ]
    }
    assert quota("remove", "--user", "anna") == "user anna: request quota removed\n"
    assert "no request quota is set for user anna" in quota("remove", "--user", "anna", status=3)
    shown = output(capsys, "audit", "--limit", "3")[0]
    assert "remove_request_quota" in shown and "default user, default client id: 10 requests/s" in shown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("set", "0", "--user", "anna"), "'0' is not a request rate: it must be 1 to 1000000 per second"),
        (("set", "1000001", "--user", "anna"), "is not a request rate"),
        (("set", "--user", "anna"), "set needs a rate in requests per second"),
        (("set", "10"), "set needs --user, --client-id or both"),
        (("remove",), "remove needs --user, --client-id or both"),
        (("remove", "10", "--user", "anna"), "remove takes no rate"),
        (("list", "--user", "anna"), "list shows all request quotas"),
    ],
)
def test_a_wrong_request_quota_command_is_refused(
    at_unchanged: InProcessServices, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], error: str
) -> None:
    assert error in output(capsys, "request-quota", *arguments, status=2)[1]
    assert at_unchanged.request_quotas.read() == {}


def test_a_pause_is_set_shown_and_resumed(at: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "pause", "--reason", "a release")
    assert re.fullmatch(r"paused: keep, since \S+Z, by 127\.0\.0\.1: a release\n", out)
    paused = next(line for line in output(capsys, "state")[0].splitlines() if line.startswith("paused"))
    assert paused.split(maxsplit=1)[1] == out.removeprefix("paused: ").rstrip()
    assert output(capsys, "pause", "--clear")[0].startswith("paused: clear, since ")
    shown = json.loads(output(capsys, "state", "--output", "json")[0])["pause"]
    assert (shown["mode"], shown["reason"]) == ("clear", "")
    assert output(capsys, "resume") == ("resumed\n", "")
    assert output(capsys, "resume") == ("autothrottle was not paused\n", "")
    assert json.loads(output(capsys, "pause", "--output=json")[0])["pause"]["mode"] == "keep"
    assert json.loads(output(capsys, "resume", "--output=json")[0]) == {"was_paused": True}
    assert not any(line.startswith("paused") for line in output(capsys, "state")[0].splitlines())


def test_the_state_shows_decisions_and_findings_without_control_characters() -> None:
    decision = Decision(1001, ReplicaRole.LEADER, mb(126), Reason.HEADROOM, utilization_bytes_per_second=mb(80))
    cycle = Cycle(2, 9, NOON, NOON, "interval", "1 rate set", ("t1",), (decision,), findings=("bell \x1b[2J",))
    text = tables.state_text(ClusterState(2, "h:1", cycle, ()))
    assert "1001    leader  126MB/s   -       headroom  80MB/s       -         -        -" in text
    assert "finding     bell ?[2J" in text
    assert text.endswith("no throttle override is set")
    assert tables.cycle_line(cycle) == "2026-11-02T12:00:00Z  2/9  interval: 1 rate set"
    nothing = tables.state_text(ClusterState(2, "h:1", None, ()))
    assert "last cycle  none yet" in nothing


def test_names_and_reasons_of_the_server_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only tables and a few lines replaced control characters; warnings, refusals and errors printed them."""
    hostile = "a\x1b]0;x\x07\u202e\nthrottlectl: forged"
    monkeypatch.setattr(tables, "overrides_table", lambda _: f"1001 {hostile}")
    monkeypatch.setattr(AdminClient, "list_overrides", lambda _: ((), (hostile,)))
    out, err = output(capsys, "get", "--addr=127.0.0.1:1")
    assert (
        out == "1001 a?]0;x??\nthrottlectl: forged\n" and err == "throttlectl: warning: a?]0;x???throttlectl: forged\n"
    )

    def refuse(_: object) -> None:
        raise Invalid(hostile)

    monkeypatch.setattr(AdminClient, "list_overrides", refuse)
    assert main(["get", "--addr=127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == "throttlectl: a?]0;x??\n  throttlectl: forged\n", "further lines are indented"


def test_measured_rates_are_shown_with_two_decimals() -> None:
    used = Decision(1001, ReplicaRole.LEADER, 72_000_001, Reason.HEADROOM, utilization_bytes_per_second=43_627_779)
    cycle = Cycle(2, 9, NOON, NOON, "interval", "1 rate set", ("t1",), (used,))
    assert "1001    leader  72MB/s    -       headroom  43.63MB/s" in tables.state_text(
        ClusterState(2, "h:1", cycle, ())
    )


def test_the_state_shows_the_throttles_in_kafka_beside_the_decided_rates() -> None:
    follower = ReplicaRole.FOLLOWER
    decisions = tuple(Decision(broker_id, follower, mb(70), Reason.HEADROOM) for broker_id in (1001, 1002, 1003))
    throttles = (Throttle(1001, follower, mb(19)), Throttle(1003, follower, mb(5)), Throttle(1004, follower, mb(3)))
    cycle = Cycle(2, 9, NOON, NOON, "interval", "s", ("t1",), decisions, throttles=throttles, throttles_are_known=True)
    rising = Throttle(1001, follower, mb(21), mb(70), NOON + timedelta(seconds=20))
    text = tables.state_text(ClusterState(2, "h:1", cycle, (), throttles=(rising,)))
    assert [re.split("  +", line)[2:5] for line in text.splitlines() if re.match(r"100\d", line)] == [
        ["21MB/s", "70MB/s by 12:00:20Z", "headroom"],
        ["none", "70MB/s, not written", "headroom"],
        ["5MB/s", "70MB/s, not written", "headroom"],
        ["3MB/s", "-", "not decided"],
    ]


def test_the_state_shows_client_load_and_its_source() -> None:
    follower = ReplicaRole.FOLLOWER
    fresh = Decision(1001, follower, mb(63), Reason.HEADROOM, client_bytes_per_second=mb(30), basis=Basis.GROWTH)
    stale = replace(fresh, broker_id=1002, basis=Basis.GUESSED, client_age_seconds=310)
    cycle = Cycle(2, 9, NOON, NOON, "interval", "2 rates set", ("t1",), (fresh, stale))
    shown = [re.split("  +", line)[-2:] for line in tables.state_text(ClusterState(2, "h:1", cycle, ())).splitlines()]
    assert ["CLIENTS", "KNOWN BY"] in shown
    assert ["30MB/s", "growth of logs"] in shown
    assert ["30MB/s", "metric, replication guessed, 310 s old"] in shown


def test_the_state_shows_leader_members_and_failures() -> None:
    members = (
        Member("metrics", ("metrics",), "1.2.3", "10.0.0.1:4002", "h1", 17, NOON),
        Member("planner", ("planner",), "1.2.3", "10.0.0.2:4003", "h2", 5, NOON),
    )
    state = ClusterState(2, "h:1", None, (), leader_since=NOON, members=members, failures={1002: 3, 1001: 1, 1003: 0})
    state = replace(state, leader_host="h", cluster_name="prod")
    assert tables.state_text(state) == (
        "cluster     prod\n"
        "leader      h:1\n"
        "host        h\n"
        "term        2\n"
        "since       2026-11-02T12:00:00Z\n"
        "last cycle  none yet\n"
        "failing     broker 1001: no usable metrics, 1 in a row\n"
        "failing     broker 1002: no usable metrics, 3 in a row\n"
        "\n"
        "no throttle override is set\n"
        "\n"
        "SERVICE  ADDRESS        HOST  PID  VERSION  STARTED\n"
        "metrics  10.0.0.1:4002  h1    17   1.2.3    2026-11-02T12:00:00Z\n"
        "planner  10.0.0.2:4003  h2    5    1.2.3    2026-11-02T12:00:00Z"
    )
    shown = json.loads(tables.to_json(state))
    assert shown["leader_since"] == "2026-11-02T12:00:00Z"
    assert shown["failures"] == {"1001": 1, "1002": 3, "1003": 0}
    assert shown["members"][1] == {
        "service": "planner",
        "roles": ["planner"],
        "version": "1.2.3",
        "address": "10.0.0.2:4003",
        "host": "h2",
        "pid": 5,
        "start_time": "2026-11-02T12:00:00Z",
    }


@pytest.mark.parametrize("behind", [True, False])
def test_options_are_accepted_before_and_after_the_command(
    services: InProcessServices, capsys: pytest.CaptureFixture[str], behind: bool
) -> None:
    options = ["--addr", services.address("admin"), "-o", "json", "--timeout", "20"]
    out, _ = output(capsys, *(["get", *options] if behind else [*options, "get"]))
    assert json.loads(out) == {"overrides": [], "warnings": []}


def test_an_address_option_beats_the_environment_and_dead_addresses_are_skipped(
    services: InProcessServices, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = free_address()
    monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", dead)
    output(capsys, "--addr", f"{dead},{services.address('admin')}", "get")


@pytest.mark.parametrize(
    "arguments",
    [("get",), ("get", "1001"), ("set", "200"), ("remove",), ("remove", "--all"), ("state",), ("watch",)],
)
def test_without_a_service_every_command_ends_with_status_4(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str]
) -> None:
    address = free_address()
    out, err = output(capsys, *arguments, "--addr", address, "--timeout", "0.5", status=4)
    assert out == ""
    assert err.startswith("throttlectl: admin is unavailable: ") and address in err and "Fix: " in err


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("plan", "scale", "--brokers", "-1,1006"), "brokers", (-1, 1006)),
        (("plan", "scale", "--brokers", "-2"), "brokers", (-2,)),
        (("plan", "rebuild", "--leader-evac-brokers", "-1,5", "--topics", "t"), "leader_evac_brokers", (-1, 5)),
        (("plan", "rebuild", "--topics", "-dash.*,t"), "topics", ("-dash.*", "t")),
        (("plan", "rebuild", "--out", "-plan.json"), "out", "-plan.json"),
        (("pause", "--reason", "-10 % for the weekend"), "reason", "-10 % for the weekend"),
        (("quota", "set", "--client-id", "-etl"), "client_id", "-etl"),
        (("--token-file", "-token", "state"), "token_file", "-token"),
    ],
)
def test_the_value_of_an_option_may_begin_with_a_dash(words: Sequence[str], name: str, value: object) -> None:
    """`plan scale --brokers -1,1006` was a wrong usage: argparse takes a word with a dash for an option."""
    assert getattr(make_parser().parse_args(words), name) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "scale", "--brokers", "--out", "f"), "argument --brokers: expected one argument"),
        (("plan", "scale", "--brokers", "-o", "json"), "argument --brokers: expected one argument"),
        (("plan", "scale", "--brokers", "-3"), "argument --brokers: '-3' is not a broker id"),
        (("plan", "scale", "--brokers"), "argument --brokers: expected one argument"),
        (("set", "-200"), "argument RATE: '-200'"),
    ],
)
def test_an_option_is_not_the_value_of_another_one(
    words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in output(capsys, *words, status=2)[1]


# Bad input.

BAD: dict[str, tuple[Sequence[str], str]] = {
    "no command": ((), "give a command"),
    "unknown command": (("gett",), "unknown command 'gett'"),
    "unknown option": (("get", "--brokers", "1"), "unrecognized arguments: --brokers"),
    "abbreviated option": (("set", "1", "--out=json"), "unrecognized arguments: --out"),
    "no rate": (("set",), "required: RATE"),
    "two rates": (("set", "1", "2"), "unrecognized arguments: 2"),
    "rate not a number": (("set", "fast"), "'fast' is not a rate: .*give for example 200MB/s"),
    "rate zero": (("set", "0"), "outside 1..1000000000000"),
    "rate 00": (("set", "00"), "'00' is not a rate"),
    "rate negative": (("set", "-5"), "'-5' is not a rate"),
    "rate negative with unit": (("set", "--", "-5MB/s"), "'-5MB/s' is not a rate"),
    "rate too large": (("set", "80000000"), "outside 1..1000000000000"),
    "rate in another unit": (("set", "200MiB/s"), "'200MiB/s' is not a rate"),
    "broker zero with a leading zero": (
        ("get", "00"),
        "'00' is not a broker id: .* integer, 0 to 2147483647",
    ),
    "broker not a number": (("set", "1", "--broker", "b1"), "'b1' is not a broker id"),
    "broker too large": (("remove", "--broker", "2147483648"), "'2147483648' is not a broker id"),
    "broker with many digits": (("remove", "--broker", "1" * 9_000), "is not a broker id"),
    "broker missing": (("remove", "--broker"), "--broker: expected one argument"),
    "broker a keyword": (("set", "1", "--broker", "all"), "'all' is not a broker id"),
    "broker twice": (("set", "1", "--broker", "1", "--broker", "2"), "--broker: is given twice; give it once"),
    "broker and all": (("remove", "--broker", "1", "--all"), "not allowed with argument"),
    "two brokers": (("get", "1", "2"), "unrecognized arguments: 2"),
    "autoremove with value": (("set", "1", "--autoremove=yes"), "ignored explicit argument 'yes'"),
    "address twice": (("--addr", "a:1", "get", "--addr", "b:1"), "--addr: is given twice"),
    "address without port": (("get", "--addr", "localhost"), "neither host:port"),
    "address empty": (("get", "--addr", ""), "neither host:port"),
    "output twice": (("-o", "json", "get", "--output=table"), "-o/--output: is given twice"),
    "output unknown": (("get", "--output", "yaml"), "invalid choice: 'yaml'"),
    "timeout zero": (("get", "--timeout", "0"), "'0' is not a timeout: .*at most 3600"),
    "timeout too large": (("get", "--timeout", "3601"), "'3601' is not a timeout"),
    "timeout nan": (("get", "--timeout", "nan"), "'nan' is not a timeout"),
    "planner address bad": (("watch", "--planner-addr", "x"), "neither host:port"),
    "planner address elsewhere": (("state", "--planner-addr", "x:1"), "unrecognized arguments: --planner-addr"),
    "shell unknown": (("completion", "tcsh"), "invalid choice: 'tcsh'"),
    "shell missing": (("completion",), "required: shell"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_usage_ends_with_status_2_and_changes_nothing(
    at_unchanged: InProcessServices, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments, expected = BAD[name]
    out, err = output(capsys, *arguments, status=2)
    assert out == ""
    assert err.startswith("usage: throttlectl")
    message = err[err.index(": error: ") :]
    assert re.search(expected, message), message
    overrides = at_unchanged.overrides.read_overrides()
    assert (overrides.cluster, overrides.brokers) == (None, {})


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (("gett",), "`throttlectl get`"),
        (("reasign", "plan.json"), "`throttlectl reassign`"),
        (("explain", "--tiemout", "5"), "--timeout"),
        (("plan", "--topcs", "x"), "--topics"),
        (("--ouput", "json", "get"), "--output"),
        (("state", "--bootstrap-servers", "a:1"), "--admin-addr"),
        (("pause", "--claer"), "--clear"),
        (("set", "1", "--out=json"), "--output"),
        (("estimate", "plan.json", "--max_ratio", "30"), "--max-ratio"),
        (("get", "-o", "jsom"), "json"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], suggested: str
) -> None:
    _, err = output(capsys, *arguments, status=2)
    assert err.endswith(f"; did you mean {suggested}?\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("get", "--frobnicate"),
        ("get", "1", "2"),
        ("set",),
        ("get", "--json"),
    ],
)
def test_a_word_without_a_similar_one_gets_no_suggestion(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str]
) -> None:
    assert "did you mean" not in output(capsys, *arguments, status=2)[1]


def test_an_unknown_option_is_reported_with_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = output(capsys, "pause", "--reasons", "x", status=2)
    assert err.startswith("usage: throttlectl pause ")
    assert err.endswith("throttlectl pause: error: unrecognized arguments: --reasons; did you mean --reason?\n")


def test_an_error_names_the_environment_variable_of_an_invalid_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", "nowhere")
    out, err = output(capsys, "get", status=2)
    assert out == "" and err.startswith("throttlectl: AUTOTHROTTLE_ADMIN_ADDR: address 'nowhere' is neither")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_prints_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    out, err = output(capsys, *([command] if command else []), "--help")
    assert out.startswith(f"usage: throttlectl {command}".rstrip()) and err == ""


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_has_examples_that_are_accepted(capsys: pytest.CaptureFixture[str], command: str) -> None:
    out, _ = output(capsys, *([command] if command else []), "--help")
    section = out.split("\nexamples:\n")[1].split("\n\n")[0]
    examples = re.findall(r"throttlectl ([^|)\n]+)", section)
    assert len(examples) == len(section.splitlines())
    for example in examples:
        assert make_parser().parse_args(shlex.split(example)).command in ({command} if command else COMMANDS)


# Watching.


def test_watch_prints_json_lines_across_leaders_until_interrupted(services: InProcessServices) -> None:
    watching = process(["watch", "--addr", services.address("admin"), "--output", "json"])
    try:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert (first["term"], first["number"], first["error"]) == (1, 1, "")
        services.servers["planner-1"].stop()
        services.electorate.depose()
        assert json.loads(watching.stdout.readline())["term"] == 2
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=SECONDS)
    finally:
        watching.kill()
        watching.wait(SECONDS)
    assert watching.returncode == 130
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("throttlectl: lost the leader, locating it again: ")


def test_watch_uses_the_given_planner_addresses(services: InProcessServices) -> None:
    nowhere = free_address()
    options = ["--addr", nowhere, "--planner-addr", services.address("planner-2")]
    watching = process(["watch", *options])
    try:
        assert watching.stdout is not None
        assert "Z  1/1  " in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert watching.communicate(timeout=SECONDS) == ("", "")
    finally:
        watching.kill()
        watching.wait(SECONDS)
    assert watching.returncode == 130


def test_watch_ends_silently_when_its_output_is_closed(services: InProcessServices) -> None:
    """For example in `throttlectl watch | head -n 1`."""
    watching = process(["watch", "--addr", services.address("admin")])
    try:
        assert watching.stdout is not None and watching.stderr is not None
        watching.stdout.readline()
        watching.stdout.close()
        deadline = time.monotonic() + SECONDS
        while watching.poll() is None and time.monotonic() < deadline:
            services.planners[0].request_cycle("a test asks")
            time.sleep(0.1)
        assert watching.stderr.read() == ""
    finally:
        watching.kill()
        watching.wait(SECONDS)
        if watching.stderr is not None:
            watching.stderr.close()
    assert watching.returncode == 141


# Completion.


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_contains_every_command_and_option(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    out, _ = output(capsys, "completion", shell)
    dashes = {"fish": "-l "}.get(shell, "--")
    options = ["addr", "planner-addr", "output", "timeout", "broker", "all", "autoremove", "help"]
    for word in [*COMMANDS, *(dashes + option for option in options), "table json", "bash zsh fish"]:
        assert word in out, word


@pytest.mark.parametrize("read", ['source <(cat "$1")', 'eval "$(cat "$1")"'])
def test_zsh_registers_the_completion_of_a_sourced_or_evaluated_script(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, read: str
) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script = tmp_path / "throttlectl.zsh"
    script.write_text(output(capsys, "completion", "zsh")[0])
    command = ["zsh", "-f", "-c", f"compdef() {{ print ${{@:#-N}} }}; {read}", "zsh", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("_shtab_throttlectl throttlectl\n", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_valid_in_its_shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / f"throttlectl.{shell}"
    script.write_text(output(capsys, "completion", shell)[0])
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ([""], set(COMMANDS)),
        (["-"], {*COMMON, "--version"}),
        (["s"], {"set", "state"}),
        (["set", "--b"], {"--broker", "--beyond-capacity"}),
        (["set", "-"], {*COMMON, "--broker", "--autoremove", "--expires", "--etag", "--beyond-capacity"}),
        (["--output", ""], {"table", "json"}),
        (["get", "-o", "j"], {"json"}),
        (["--output", "json", "re"], {"remove", "reassign", "reassignments", "resume", "request-quota"}),
        (["remove", "--a"], {"--admin-addr", "--addr", "--all"}),
        (["watch", "--p"], {"--planner-addr"}),
        (["completion", ""], set(SHELLS)),
        (["set", "--broker", ""], set()),
        (["set", ""], set()),
        (["reassign", "pl"], {"plan.json", "plans"}),
        (["estimate", "--within", "2h", "plans/"], {"plans/second.json"}),
        (["get", "--tls-ca", "plan."], {"plan.json"}),
        (["get", "--tls-server-name", "pl"], set()),
    ],
)
def test_bash_completes_commands_options_values_and_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, typed: Sequence[str], offered: set[str]
) -> None:
    script = tmp_path / "completion"
    script.write_text(output(capsys, "completion", "bash")[0])
    (tmp_path / "plans").mkdir()
    for name in ("plan.json", "plans/second.json"):
        (tmp_path / name).touch()
    words = " ".join(f"'{word}'" for word in ("throttlectl", *typed))
    code = (
        f"source ./completion; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _shtab_throttlectl; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    command = ["bash", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True, cwd=tmp_path)
    assert set(done.stdout.split()) == offered
    assert done.stderr == ""
