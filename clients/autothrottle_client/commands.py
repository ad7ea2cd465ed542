"""The commands of `throttlectl`: one function per command. Its docstring is its help: the purpose, then examples.

A function returns the exit status; None stands for 0.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import Allowances, LeftOut, PauseMode, RunningMove, Submission
from autothrottle.core.texts import first_lines
from autothrottle.core.units import MAX_INT32
from autothrottle_client import tables
from autothrottle_client.admin import ESTIMATE_TIMEOUT, SUBMIT_TIMEOUT, AdminClient
from autothrottle_client.cancellation import all_partitions, named_partitions, partitions_of_broker, similar_name
from autothrottle_client.client import PlannerClient
from autothrottle_client.errors import Incomplete, Invalid, Missing, Unavailable
from autothrottle_client.explanation import explanation
from autothrottle_client.files import read_standard_input, read_text
from autothrottle_client.overview import Overview, overview
from autothrottle_client.progress import ProgressTracker, ReassignmentProgress, progress_line
from autothrottle_client.quotas import QuotaChange, QuotaEntity, QuotaValues
from autothrottle_client.reassignments import Partition, ReassignmentFile, Targets, parse_reassignment_file
from autothrottle_client.tls import Tls
from autothrottle_client.top import overview_text, run_top

CLIENT_ID = "throttlectl"
"""The client id of all calls."""

EXIT_FAILED = 1
"""Exit status of a command that failed or was partly refused."""

_FOLLOW_SECONDS = 1.0
"""Seconds between two progress queries of a followed reassignment."""

_OUTAGE_SECONDS = 60.0
"""Following a reassignment survives an outage of the admin service of this length, in seconds."""

_METADATA_LAG_SECONDS = 10.0
"""A broker may report the old assignment for this long after the controller completes the reassignment."""

_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One parsed command line."""

    arguments: argparse.Namespace
    admin: AdminClient
    """Client of the admin service; the caller of the command closes it."""
    timeout: timedelta
    json: bool
    """True: print JSON."""
    tls: Tls | None = None
    """None: plain connections."""
    token: str = ""

    def show(self, value: object, text: str, warnings: Sequence[str] = ()) -> None:
        """Print a value as JSON, or its text form; then print warnings to standard error."""
        shown = "\n".join(map(tables.printable, text.split("\n")))
        print(tables.to_json(value) if self.json else shown, flush=True)
        for warning in warnings:
            say(f"warning: {warning}")


def get(call: CommandCall) -> None:
    """Show all overrides, or the override of one broker.

    throttlectl get
    throttlectl get 1001 -o json
    """
    broker_id = call.arguments.broker
    if broker_id is not None:
        override = call.admin.get_override(broker_id)
        call.show(override, tables.overrides_table([override]))
    else:
        overrides, warnings = call.admin.list_overrides()
        call.show({"overrides": overrides, "warnings": warnings}, tables.overrides_table(overrides), warnings)


def set_override(call: CommandCall) -> None:
    """Set or replace an override.

    throttlectl set 50MB/s --broker 1001
    throttlectl set 200MB/s --autoremove
    throttlectl set 80MB/s --broker 1002 --expires 2h
    throttlectl set 400MB/s --beyond-capacity
    """
    arguments = call.arguments
    override, warnings = call.admin.set_override(
        arguments.rate,
        arguments.broker,
        arguments.autoremove,
        arguments.expires,
        arguments.etag or "",
        arguments.beyond_capacity,
    )
    text = f"{tables.override_scope(override.broker_id)}: throttle set to {tables.override_words(override)}"
    text += f"; {override.effect}" if override.effect else ""
    call.show({"override": override, "warnings": warnings}, text, warnings)


def remove(call: CommandCall) -> None:
    """Remove an override.

    throttlectl remove
    throttlectl remove --broker 1001
    throttlectl remove --all
    """
    arguments = call.arguments
    if not arguments.all:
        call.admin.remove_override(arguments.broker, arguments.etag or "")
        _show_removed(call, [arguments.broker])
    elif arguments.etag:
        raise Invalid("--etag names one version of one override; give it without --all")
    else:
        _remove_all(call)


def _remove_all(call: CommandCall) -> None:
    overrides, warnings = call.admin.list_overrides()
    removed: list[int | None] = []
    try:
        for override in overrides:
            with suppress(Missing):  # another client, or autoremove, removed it first
                call.admin.remove_override(override.broker_id)
                removed.append(override.broker_id)
    finally:
        _show_removed(call, removed, warnings)


def _show_removed(call: CommandCall, broker_ids: Sequence[int | None], warnings: Sequence[str] = ()) -> None:
    text = "\n".join(f"{tables.override_scope(broker_id)}: throttle removed" for broker_id in broker_ids)
    call.show({"removed": [{"broker_id": broker_id} for broker_id in broker_ids]}, text or tables.NONE_SET, warnings)


def audit(call: CommandCall) -> None:
    """Show the recorded actions with their authors, newest first.

    throttlectl audit
    throttlectl audit --limit 100 -o json
    """
    records = call.admin.list_audit_records(call.arguments.limit)
    call.show({"records": records}, tables.audit_table(records))


def reassign(call: CommandCall) -> int | None:
    """Throttle a reassignment, submit it and follow its progress.

    throttlectl reassign plan.json --dry-run
    throttlectl reassign plan.json
    throttlectl reassign plan.json --no-wait
    throttlectl reassign plan.json --throttle 50MB/s
    throttlectl reassign plan.json --skip-refused
    """
    arguments = call.arguments
    file = _read_file(arguments.file)
    targets, allowances = file.targets, _allowances(arguments)
    # Validate first: it fails fast if admin is down, while a submission has its own, longer timeout.
    submission = call.admin.submit_reassignment(targets, True, call.timeout, arguments.throttle, allowances)
    if not arguments.dry_run:
        submission = call.admin.submit_reassignment(
            targets, False, max(call.timeout, SUBMIT_TIMEOUT), arguments.throttle, allowances
        )
    submission = replace(submission, warnings=(*file.warnings, *submission.warnings))
    call.show(
        submission,
        tables.submission_line(submission, arguments.dry_run),
        [*_left_out(submission.left_out), *_problems(submission.refused), *submission.warnings],
    )
    if arguments.dry_run:
        return None
    failed = EXIT_FAILED if submission.refused else None
    without = submission.refused.keys() | submission.partitions_left_out
    followed = {row: target for row, target in targets.items() if row not in without}
    if arguments.no_wait or not (submission.submitted or submission.already_in_progress):
        return failed
    try:
        return _follow(call, followed, submission.postponed, allowances) or failed
    except KeyboardInterrupt:
        print(file=sys.stderr)  # behind the progress bar
        say(f"stopped following; the reassignment continues. Cancel: throttlectl cancel {shlex.quote(arguments.file)}")
        raise


def _follow(call: CommandCall, targets: Targets, postponed: int, allowances: Allowances) -> int | None:
    """Show the progress of a reassignment until it is done. A validation at the end checks the final replicas.

    It submits the reassignment again as long as replicas are postponed, unless the last part did not arrive. A
    partition that was cancelled meanwhile and that a submission would now refuse is one that did not arrive.
    """
    rest = replace(allowances, skip_refused=True)
    tracker, shown = ProgressTracker(targets), _ProgressBar(call)
    patience = time.monotonic() + _OUTAGE_SECONDS
    stale_until = time.monotonic() + _METADATA_LAG_SECONDS
    while True:
        try:
            progress = tracker.progress(datetime.now(UTC), call.admin.list_reassignments())
            shown.show(progress)
            if progress.done < progress.partitions:
                stale_until = time.monotonic() + _METADATA_LAG_SECONDS
            else:
                remainder = call.admin.submit_reassignment(targets, validate_only=True, allowances=rest)
                if remainder.postponed < postponed:
                    again = call.admin.submit_reassignment(targets, False, SUBMIT_TIMEOUT, allowances=allowances)
                    postponed = again.postponed
                    stale_until = time.monotonic() + _METADATA_LAG_SECONDS
                elif not remainder.already_in_progress and (not _missing(remainder) or time.monotonic() > stale_until):
                    break
            patience = time.monotonic() + _OUTAGE_SECONDS
        except (Unavailable, Incomplete):
            if time.monotonic() > patience:
                raise
        time.sleep(_FOLLOW_SECONDS)
    shown.end()
    if missed := _missing(remainder):
        say(f"{missed} partitions did not arrive: their reassignment was cancelled or replaced")
        return EXIT_FAILED
    call.show({"arrived": remainder.already_there}, f"{remainder.already_there} partitions arrived")
    return None


def _missing(remainder: Submission) -> int:
    """Return the number of partitions that a validation would submit, or refuse: they are not where they should be."""
    return remainder.submitted + len(remainder.partitions_left_out)


class _ProgressBar:
    """Shows progress: in place on a terminal, otherwise one line per completed partition."""

    def __init__(self, call: CommandCall) -> None:
        self._call = call
        self._in_place = sys.stdout.isatty() and not call.json
        self._last: ReassignmentProgress | None = None
        self._width = 0

    def show(self, progress: ReassignmentProgress) -> None:
        line = progress_line(progress, datetime.now(UTC))
        if self._in_place:
            print(f"\r{line.ljust(self._width)}", end="", flush=True)
            self._width = len(line)
        elif self._call.json or self._last is None or progress.done != self._last.done:
            self._call.show(progress, line)
        self._last = progress

    def end(self) -> None:
        if self._in_place and self._last is not None:
            print(flush=True)


def estimate(call: CommandCall) -> None:
    """Estimate the duration of a reassignment before its start.

    throttlectl estimate plan.json
    throttlectl estimate plan.json --max-ratio 30
    throttlectl estimate plan.json --within 2h
    """
    arguments = call.arguments
    timeout = max(call.timeout, ESTIMATE_TIMEOUT)
    reassignment_estimate = call.admin.estimate_reassignment(
        _read_file(arguments.file).targets, arguments.max_ratio, arguments.within, timeout, _allowances(arguments)
    )
    call.show(
        reassignment_estimate,
        tables.estimate_text(reassignment_estimate),
        [*_left_out(reassignment_estimate.left_out), *reassignment_estimate.warnings],
    )


def plan(call: CommandCall) -> None:
    """Plan the replicas of topics, and write the changes to a file for reassign.

    throttlectl plan rebuild --topics orders --brokers 1001,1003 --out plan.json
    throttlectl plan rebalance --topics '.*' --brokers -1
    throttlectl plan decommission --topics '.*' --leaving 1002
    throttlectl plan apply --out plan.json
    throttlectl plan status
    throttlectl plan capacity --instances instances.csv --bytes-in 200MB/s --retention 12h
    throttlectl plan forecast
    """
    from autothrottle_client.plan_command import run_plan  # other commands need no planning

    run_plan(call)


PLACEMENTS = ("rebuild", "rebalance", "scale", "decommission")
PLANS = (*PLACEMENTS, "apply", "status", "capacity", "forecast")
"""The operations of `plan`."""

LOSSES = ("none", "broker", "rack")
"""What the brokers of `plan capacity` may lose."""


def cancel(call: CommandCall) -> int | None:
    """Cancel moves of any tool: topics, partitions, those of a broker, all, or the partitions of a file.

    throttlectl cancel orders
    throttlectl cancel orders:7 payments:0-3,9 --dry-run
    throttlectl cancel --broker 1004 --yes
    throttlectl cancel --all --yes
    throttlectl cancel plan.json
    """
    arguments, timeout = call.arguments, max(call.timeout, SUBMIT_TIMEOUT)
    partitions = _partitions_to_cancel(call)
    effects, refused = call.admin.check_cancellation(partitions, timeout)
    text = tables.cancel_effects_text(effects)
    is_unconfirmed = (arguments.all or arguments.broker is not None) and not arguments.yes
    if arguments.dry_run or is_unconfirmed:
        call.show({"effects": effects, "refused": refused}, text, _problems(refused, " would not be cancelled"))
        if not arguments.dry_run:
            raise Invalid(f"nothing was cancelled; repeat the command with --yes to cancel {len(effects)} partitions")
        return EXIT_FAILED if refused else None
    if effects and not call.json:
        call.show(effects, text)
    cancelled, refused = call.admin.cancel_reassignment(partitions, timeout)
    call.show(
        {"cancelled": cancelled, "refused": refused, "effects": effects},
        f"reassignment of {cancelled} of {len(partitions)} partitions cancelled",
        _problems(refused, " was not cancelled"),
    )
    return EXIT_FAILED if refused else None


def _partitions_to_cancel(call: CommandCall) -> Collection[Partition]:
    """Return the partitions that the arguments name, each once.

    Raises:
        Invalid: they contradict each other, or a file is malformed.
        Missing: nothing that they name is being reassigned.
    """
    arguments = call.arguments
    if [bool(arguments.what), arguments.broker is not None, arguments.all].count(True) != 1:
        raise Invalid("cancel needs one of these: topics, partitions or files; --broker; --all")
    needs_moves = not arguments.what or not all(_is_path(name) for name in arguments.what)
    moves = call.admin.list_reassignments(with_moves=True).moves if needs_moves else ()
    if arguments.all:
        return sorted(all_partitions(moves))
    if arguments.broker is not None:
        return sorted(partitions_of_broker(moves, arguments.broker))
    return dict.fromkeys(partition for name in arguments.what for partition in _named_partitions(name, moves))


def _is_path(name: str) -> bool:
    """Whether an argument of cancel can only be a file: the names of topics contain no slash."""
    return name == "-" or "/" in name


def _named_partitions(name: str, moves: Sequence[RunningMove]) -> Collection[Partition]:
    if _is_path(name):
        return _read_file(name).targets.keys()
    partitions, is_file = named_partitions(name, moves), Path(name).is_file()
    if partitions and is_file:
        fix = f"give ./{name} for the file, or {name}:0-{MAX_INT32} for the topic"
        raise Invalid(f"{name} is the name of a file and of a topic that is being reassigned; {fix}")
    if is_file:
        return _read_file(name).targets.keys()
    if not partitions:
        similar = similar_name(name, moves)
        hint = f"did you mean {similar}?" if similar else "throttlectl reassignments lists what moves"
        raise Missing(f"nothing was cancelled: {name} is neither a topic that is being reassigned nor a file; {hint}")
    return sorted(partitions)


def reassignments(call: CommandCall) -> None:
    """Show what moves: one row per move, with its end.

    throttlectl reassignments
    throttlectl reassignments -o json
    """
    listing = call.admin.list_reassignments(with_moves=True)
    call.show(listing, tables.reassignments_table(listing))


def _read_file(name: str) -> ReassignmentFile:
    try:
        if name == "-":
            return parse_reassignment_file(read_standard_input())
        return parse_reassignment_file(read_text(name))
    except OSError as error:
        raise Invalid(f"{name} cannot be read: {error.strerror}; give the path of a reassignment file") from None
    except ValueError as error:
        raise Invalid(f"{name} is not UTF-8 text: {error}; give the path of a reassignment file") from None
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None


def _problems(refused: Mapping[Partition, str], outcome: str = "") -> list[str]:
    problems = [f"{topic}-{partition}{outcome}: {reason}" for (topic, partition), reason in refused.items()]
    return first_lines(problems, _PROBLEMS_SHOWN)


def _left_out(reasons: Sequence[LeftOut]) -> list[str]:
    return [f"left out: {left_out.reason}" for left_out in reasons]


def _allowances(arguments: argparse.Namespace) -> Allowances:
    return Allowances(**{field.name: getattr(arguments, field.name) for field in fields(Allowances)})


def say(text: str) -> None:
    """Print a line about the command itself to standard error."""
    print(f"throttlectl: {tables.printable(text)}", file=sys.stderr, flush=True)


def catchup(call: CommandCall) -> None:
    """Throttle the catch-up of a broker until it is in sync.

    throttlectl catchup 1006
    throttlectl catchup 1006 --stop
    """
    broker_id = call.arguments.broker
    if call.arguments.stop:
        call.admin.stop_catch_up(broker_id)
        text = f"broker {broker_id}: throttles are being removed; the catch-up continues"
        call.show({"stopped": broker_id}, text)
    else:
        catch_up, warnings = call.admin.start_catch_up(broker_id)
        text = f"broker {broker_id} catches up under throttle until it is in sync"
        call.show({"catch_up": catch_up, "warnings": warnings}, text, warnings)


def pause(call: CommandCall) -> None:
    """Pause the planner and keep the current throttles.

    throttlectl pause --reason "network work"
    throttlectl pause --clear
    """
    mode = PauseMode.CLEAR if call.arguments.clear else PauseMode.KEEP
    current_pause = call.admin.pause(mode, call.arguments.reason)
    call.show({"pause": current_pause}, f"paused: {tables.printable(str(current_pause))}")


def resume(call: CommandCall) -> None:
    """Resume the planner.

    throttlectl resume
    """
    was_paused = call.admin.resume()
    call.show({"was_paused": was_paused}, "resumed" if was_paused else "autothrottle was not paused")


def request_quota(call: CommandCall) -> None:
    """Show, set or remove quotas of requests to autothrottle itself.

    throttlectl request-quota list
    throttlectl request-quota set 100 --user anna
    throttlectl request-quota set 10 --user --client-id
    throttlectl request-quota remove --user anna --client-id ci
    """
    arguments = call.arguments
    if arguments.action == "list":
        if (arguments.rate, arguments.user, arguments.client_id) != (None, None, None):
            raise Invalid("list shows all request quotas; leave out the rate, --user and --client-id")
        quotas = call.admin.list_request_quotas()
        call.show({"quotas": quotas}, tables.request_quotas_table(quotas))
        return
    scope = tables.request_quota_scope(arguments.user, arguments.client_id)
    if not scope:
        raise Invalid(f"{arguments.action} needs --user, --client-id or both; without a name they mean the default")
    if arguments.action == "remove":
        if arguments.rate is not None:
            raise Invalid("remove takes no rate; leave it out")
        call.admin.remove_request_quota(arguments.user, arguments.client_id)
        call.show(
            {"removed": {"user": arguments.user, "client_id": arguments.client_id}}, f"{scope}: request quota removed"
        )
        return
    if arguments.rate is None:
        raise Invalid("set needs a rate in requests per second; give for example 100")
    quota = call.admin.set_request_quota(arguments.rate, arguments.user, arguments.client_id)
    call.show({"quota": quota}, f"{scope}: at most {quota.request_rate} requests/s")


def state(call: CommandCall) -> None:
    """Show the leader, the last cycle and the overrides.

    throttlectl state
    throttlectl state -o json
    """
    cluster_state = call.admin.state()
    call.show(cluster_state, tables.state_text(cluster_state), cluster_state.warnings)


def explain(call: CommandCall) -> None:
    """Explain the throttles of a broker.

    throttlectl explain 1006
    throttlectl explain 1006 -o json
    """
    cluster_state = call.admin.state()
    lines = explanation(cluster_state, call.arguments.broker)
    call.show({"lines": lines}, "\n".join(lines), cluster_state.warnings)


def top(call: CommandCall) -> None:
    """Show what moves, how fast and why, refreshed every second.

    throttlectl top
    throttlectl top --once
    throttlectl top -o json
    """

    def fetch() -> Overview:
        cluster_state, reassignments = call.admin.state(), call.admin.list_reassignments(with_paths=True)
        return overview(cluster_state, reassignments, datetime.now(UTC))

    if call.arguments.once or call.json or not sys.stdout.isatty():
        current = fetch()
        call.show(current, overview_text(current))
    else:
        run_top(fetch)


def watch(call: CommandCall) -> None:
    """Print every cycle of the current leader until interrupted.

    throttlectl watch
    throttlectl watch --admin-addr 10.0.0.1:8090,10.0.0.2:8090
    """
    planners = call.arguments.planner_addr
    with (
        PlannerClient(planners, call.timeout, call.tls, call.token, CLIENT_ID, say)
        if planners
        else call.admin as client
    ):
        cycles = client.watch_cycles(on_loss=lambda error: say(f"lost the leader, locating it again: {error}"))
        for cycle in cycles:
            call.show(cycle, tables.cycle_line(cycle))


def quota(call: CommandCall) -> None:
    """Show and change Kafka's client quotas.

    throttlectl quota list
    throttlectl quota describe --user alice --client-id backfill-1
    throttlectl quota set --default-user --client-id backfill-1 --producer-byte-rate 20MB/s
    throttlectl quota set --client-id backfill-1 --producer-byte-rate 5MB/s --until-recovered --expires 2h
    throttlectl quota remove --user alice --keys producer_byte_rate --dry-run
    throttlectl quota rule set backfills --client-id 'backfill-*' --at-most 20MB/s --floor 1MB/s
    throttlectl quota rule list
    """
    operation = f"{call.arguments.operation} {call.arguments.action or ''}".strip()
    if operation not in _QUOTA_OPERATIONS:
        raise Invalid(f"quota {operation} is not a command; give quota {', '.join(_QUOTA_OPERATIONS)}")
    run, options = _QUOTA_OPERATIONS[operation]
    run(call, _given_options(call, operation, options))


_QUOTA_VALUES = tuple(field.name for field in fields(QuotaValues))
_QUOTA_PARTS = tuple(field.name for field in fields(QuotaEntity))


def _given_options(call: CommandCall, operation: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the given options of a quota command: name -> value.

    Raises:
        Invalid: the operation does not take one of them.
    """
    arguments = vars(call.arguments)
    names = dict.fromkeys(name for _, names in _QUOTA_OPERATIONS.values() for name in names)
    given = {name: arguments[name] for name in names if arguments[name] is not None and arguments[name] is not False}
    for name in given.keys() - {*options}:
        shown = given[name] if name == "name" else f"--{name.replace('_', '-')}"
        raise Invalid(f"{shown} has no effect on quota {operation}; leave it out")
    return given


def _list_quotas(call: CommandCall, given: Mapping[str, Any]) -> None:
    quotas, warnings = call.admin.quotas.list()
    call.show({"quotas": quotas, "warnings": warnings}, tables.quotas_table(quotas), warnings)


def _describe_quota(call: CommandCall, given: Mapping[str, Any]) -> None:
    quotas = call.admin.quotas.describe(**given)
    call.show({"quotas": quotas}, tables.effective_quotas_table(quotas))


def _set_quota(call: CommandCall, given: Mapping[str, Any]) -> None:
    values = QuotaValues(**{name: given[name] for name in _QUOTA_VALUES if name in given})
    entity, etag, arguments = _quota_entity(given), given.get("etag", ""), call.arguments
    change = call.admin.quotas.set(
        entity, values, etag, arguments.dry_run, arguments.expires, arguments.until_recovered
    )
    _show_quota(call, change)


def _remove_quota(call: CommandCall, given: Mapping[str, Any]) -> None:
    keys, etag = given.get("keys", ()), given.get("etag", "")
    _show_quota(call, call.admin.quotas.remove(_quota_entity(given), keys, etag, call.arguments.dry_run))


def _quota_entity(given: Mapping[str, Any]) -> QuotaEntity:
    return QuotaEntity(**{name: given[name] for name in _QUOTA_PARTS if name in given})


def _show_quota(call: CommandCall, change: QuotaChange) -> None:
    old, new = tables.quota_words(change.before), tables.quota_words(change.quota.values)
    text = f"{change.quota.entity}: {'would be ' if call.arguments.dry_run else ''}{new} (before: {old})"
    call.show(change, text, change.warnings)


def _list_rules(call: CommandCall, given: Mapping[str, Any]) -> None:
    rules = call.admin.quotas.list_rules()
    call.show({"rules": rules}, tables.yield_rules_table(rules))


def _set_rule(call: CommandCall, given: Mapping[str, Any]) -> None:
    for name, option in (("name", "the name of the rule"), ("at_most", "--at-most"), ("floor", "--floor")):
        if name not in given:
            raise Invalid(f"quota rule set needs {option}; give it")
    rate, share = given["at_most"]
    rule = YieldRule(
        name=given["name"],
        floor_bytes_per_second=given["floor"],
        user=given.get("user"),
        client_id=given.get("client_id"),
        at_most_bytes_per_second=rate,
        at_most_share=share,
        keys=frozenset(given.get("keys", ())),
    )
    dry_run = call.arguments.dry_run
    change = call.admin.quotas.set_rule(rule, dry_run, call.arguments.force)
    old = f" (before: {change.before.sentence})" if change.before else ""
    text = f"{change.rule.name}{' would be' if dry_run else ''}: {change.rule.sentence}{old}"
    call.show(change, text, change.warnings)


def _remove_rule(call: CommandCall, given: Mapping[str, Any]) -> None:
    if "name" not in given:
        raise Invalid("quota rule remove needs the name of the rule; quota rule list shows the existing ones")
    dry_run = call.arguments.dry_run
    removed = call.admin.quotas.remove_rule(given["name"], dry_run)
    text = f"{removed.name}: yield rule {'would be removed' if dry_run else 'removed'} ({removed.sentence})"
    call.show({"removed": removed}, text)


_QUOTA_OPERATIONS: Mapping[str, tuple[Callable[[CommandCall, Mapping[str, Any]], None], Sequence[str]]] = {
    "list": (_list_quotas, ()),
    "describe": (_describe_quota, ("user", "client_id", "ip")),
    "set": (_set_quota, (*_QUOTA_PARTS, *_QUOTA_VALUES, "etag", "dry_run", "expires", "until_recovered")),
    "remove": (_remove_quota, (*_QUOTA_PARTS, "keys", "etag", "dry_run")),
    "rule list": (_list_rules, ()),
    "rule set": (_set_rule, ("name", "user", "client_id", "at_most", "floor", "keys", "dry_run", "force")),
    "rule remove": (_remove_rule, ("name", "dry_run")),
}
"""Operation -> the function that runs it, and the options that it takes."""
