"""`throttlectl`: overrides, reassignments, state and cycles of a running autothrottle, from the command line.

Exit status: 0 done, 1 failed, 2 used wrongly, 3 not found, 4 unavailable, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from autothrottle_client.admin import ESTIMATE_TIMEOUT, SUBMIT_TIMEOUT, AdminClient
from autothrottle_client.completion import SHELLS, Grammar, completion_script
from autothrottle_client.errors import AutothrottleError, Incomplete, Invalid, Missing, NotLeader, Unavailable
from autothrottle_client.estimates import parse_ratio, parse_span
from autothrottle_client.expiry import parse_expiry
from autothrottle_client.following import Follower, Progress, progress_line
from autothrottle_client.model import MAX_AUDIT_RECORDS, MAX_BROKER_ID, Override, PauseMode
from autothrottle_client.planner import PlannerClient
from autothrottle_client.rates import parse_rate
from autothrottle_client.reassignments import Partition, Targets, parse_reassignment
from autothrottle_client.replicas import parse_addresses
from autothrottle_client.tables import (
    NONE_SET,
    audit_table,
    cycle_line,
    estimate_text,
    override_words,
    overrides_table,
    pause_text,
    reassignments_table,
    state_text,
    submission_line,
    to_json,
    whose,
)

ADDRESS_VARIABLE = "AUTOTHROTTLE_ADMIN_ADDR"
DEFAULT_ADDRESS = "127.0.0.1:8090"
DEFAULT_TIMEOUT = "5"

EXIT_FAILED, EXIT_USAGE, EXIT_MISSING, EXIT_UNAVAILABLE = 1, 2, 3, 4
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141

_DESCRIPTION = "Overrides, reassignments, state and cycles of a running autothrottle."
_EPILOG = """exit status: 0 done, 1 failed, 2 used wrongly, 3 not found, 4 unavailable, 130 interrupted

JSON has one object, of watch and reassign one in each line; rates are whole numbers of bytes per second (1 MB/s is
1000000)."""

_FOLLOW_SECONDS = 1.0
"""Between two looks at a reassignment that is followed."""

_OUTAGE_SECONDS = 60.0
"""So long a reassignment is followed though nobody answers."""

_PROBLEMS_SHOWN = 5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Call:
    """One command line, read."""

    arguments: argparse.Namespace
    addresses: tuple[str, ...]
    """Of the admin service."""
    planners: tuple[str, ...]
    """Of planners to watch; empty: the leader that admin names."""
    timeout: timedelta
    json: bool
    """Whether to print JSON."""

    def admin(self) -> AdminClient:
        """Return a client of the admin service."""
        return AdminClient(self.addresses, self.timeout)

    def show(self, value: object, text: str) -> None:
        """Print a value: as JSON, or this text for people."""
        print(to_json(value) if self.json else text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered must not fail a second time when the interpreter ends.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except AutothrottleError as error:
        print(f"throttlectl: {error}", file=sys.stderr)
        return _status_of(error)


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    try:
        read = parser.parse_args(arguments)
    except SystemExit as ended:  # argparse has said why
        return ended.code if isinstance(ended.code, int) else EXIT_USAGE
    if read.command == "completion":
        print(completion_script(Grammar.of(parser), read.shell), end="")
        return 0
    return _COMMANDS[read.command](_call(read))


def _status_of(error: AutothrottleError) -> int:
    table: dict[type[AutothrottleError], int] = {
        Invalid: EXIT_USAGE,
        Missing: EXIT_MISSING,
        Unavailable: EXIT_UNAVAILABLE,
        NotLeader: EXIT_UNAVAILABLE,
    }
    return table.get(type(error), EXIT_FAILED)


# The commands.


def _get(call: Call) -> int:
    broker_id = call.arguments.broker
    with call.admin() as admin:
        if broker_id is not None:
            override = admin.get_override(broker_id)
            call.show(override, overrides_table([override]))
            return 0
        overrides, warnings = admin.list_overrides()
    call.show({"overrides": overrides, "warnings": warnings}, overrides_table(overrides))
    _warn(warnings)
    return 0


def _set(call: Call) -> int:
    read = call.arguments
    with call.admin() as admin:
        override, warnings = admin.set_override(read.rate, read.broker, read.autoremove, read.expires, read.etag or "")
    text = f"{whose(override.broker_id)}: throttle set to {override_words(override)}"
    call.show({"override": override, "warnings": warnings}, text)
    _warn(warnings)
    return 0


def _remove(call: Call) -> int:
    with call.admin() as admin:
        broker_id, etag = call.arguments.broker, call.arguments.etag or ""
        if call.arguments.all:
            if etag:
                raise Invalid("--etag names one version of one override; give it without --all")
            return _remove_all(call, admin)
        admin.remove_override(broker_id, etag)
    call.show({"removed": [{"broker_id": broker_id}]}, f"{whose(broker_id)}: throttle removed")
    return 0


def _remove_all(call: Call, admin: AdminClient) -> int:
    overrides, warnings = admin.list_overrides()
    removed: list[Override] = []
    try:
        for override in overrides:
            with suppress(Missing):  # somebody else, or autoremove, was faster
                admin.remove_override(override.broker_id)
                removed.append(override)
    finally:
        text = "\n".join(f"{whose(o.broker_id)}: throttle removed" for o in removed)
        call.show({"removed": [{"broker_id": o.broker_id} for o in removed]}, text or NONE_SET)
    _warn(warnings)
    return 0


def _audit(call: Call) -> int:
    with call.admin() as admin:
        records = admin.list_audit_records(call.arguments.limit)
    call.show({"records": records}, audit_table(records))
    return 0


def _reassign(call: Call) -> int:
    read = call.arguments
    wanted = _read_file(read.file)
    with call.admin() as admin:
        # First a look, which fails soon when nobody answers: submitting has a time-out of its own.
        found = admin.submit_reassignment(wanted, validate_only=True, timeout=call.timeout)
        if not read.dry_run:
            found = admin.submit_reassignment(wanted, timeout=max(call.timeout, SUBMIT_TIMEOUT))
        call.show(found, submission_line(found, read.dry_run))
        _warn_refused(found.refused)
        if read.dry_run:
            return 0
        failed = EXIT_FAILED if found.refused else 0
        followed = {p: to for p, to in wanted.items() if p not in found.refused}
        if read.no_wait or not (found.submitted or found.already_moving):
            return failed
        try:
            return _follow(call, admin, followed) or failed
        except KeyboardInterrupt:
            print(file=sys.stderr)  # behind the progress bar
            _say(f"not followed any more; it goes on. Cancel it with: throttlectl cancel {shlex.quote(read.file)}")
            raise


def _follow(call: Call, admin: AdminClient, wanted: Targets) -> int:
    """Show how far a reassignment is until it is over; whether it arrived is asked at the end."""
    follower, shown = Follower(wanted), _ProgressBar(call)
    patience = time.monotonic() + _OUTAGE_SECONDS
    while True:
        try:
            progress = follower.progress(datetime.now(UTC), admin.list_reassignments())
            shown.show(progress)
            if progress.done == progress.partitions:
                left = admin.submit_reassignment(wanted, validate_only=True)
                if not left.already_moving:
                    break
            patience = time.monotonic() + _OUTAGE_SECONDS
        except (Unavailable, Incomplete):
            if time.monotonic() > patience:
                raise
        time.sleep(_FOLLOW_SECONDS)
    shown.end()
    if left.submitted:
        _say(f"{left.submitted} partitions did not arrive: their reassignment was cancelled, or they were moved again")
        return EXIT_FAILED
    call.show({"arrived": left.already_there}, f"{left.already_there} partitions arrived")
    return 0


class _ProgressBar:
    """Shows progress: in place on a terminal, else a line whenever a partition is done."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._in_place = sys.stdout.isatty() and not call.json
        self._last: Progress | None = None
        self._width = 0

    def show(self, progress: Progress) -> None:
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


def _estimate(call: Call) -> int:
    read = call.arguments
    wanted = _read_file(read.file)
    with call.admin() as admin:
        found = admin.estimate_reassignment(wanted, read.max_ratio, read.within, max(call.timeout, ESTIMATE_TIMEOUT))
    call.show(found, estimate_text(found))
    _warn(found.warnings)
    return 0


def _cancel(call: Call) -> int:
    wanted = _read_file(call.arguments.file)
    with call.admin() as admin:
        cancelled, refused = admin.cancel_reassignment(wanted.keys())
    call.show(
        {"cancelled": cancelled, "refused": refused},
        f"reassignment of {cancelled} of {len(wanted)} partitions cancelled",
    )
    _warn_refused(refused)
    return 0


def _reassignments(call: Call) -> int:
    with call.admin() as admin:
        found = admin.list_reassignments()
    call.show(found, reassignments_table(found))
    return 0


def _read_file(name: str) -> Targets:
    try:
        if name == "-":
            return parse_reassignment(sys.stdin.read())
        return parse_reassignment(Path(name).read_text("utf-8"))
    except OSError as error:
        raise Invalid(f"{name} cannot be read: {error.strerror}; give the path of a reassignment file") from None
    except UnicodeDecodeError:
        raise Invalid(f"{name} is no text in UTF-8; give the path of a reassignment file") from None
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None


def _warn_refused(refused: Mapping[Partition, str]) -> None:
    problems = [f"{topic}-{partition}: {reason}" for (topic, partition), reason in refused.items()]
    more = [f"and {len(problems) - _PROBLEMS_SHOWN} more"] if len(problems) > _PROBLEMS_SHOWN else []
    _warn([*problems[:_PROBLEMS_SHOWN], *more])


def _say(text: str) -> None:
    print(f"throttlectl: {text}", file=sys.stderr, flush=True)


def _catchup(call: Call) -> int:
    broker_id = call.arguments.broker
    with call.admin() as admin:
        if call.arguments.stop:
            admin.stop_catch_up(broker_id)
            call.show({"stopped": broker_id}, f"broker {broker_id}: its throttles go, and it catches up without")
            return 0
        found, warnings = admin.start_catch_up(broker_id)
    text = f"broker {broker_id} catches up under throttle, which goes when it is in sync"
    call.show({"catch_up": found, "warnings": warnings}, text)
    _warn(warnings)
    return 0


def _pause(call: Call) -> int:
    mode = PauseMode.CLEAR if call.arguments.clear else PauseMode.KEEP
    with call.admin() as admin:
        pause = admin.pause(mode, call.arguments.reason)
    call.show({"pause": pause}, f"paused: {pause_text(pause)}")
    return 0


def _resume(call: Call) -> int:
    with call.admin() as admin:
        was_paused = admin.resume()
    call.show({"was_paused": was_paused}, "resumed" if was_paused else "it was not paused")
    return 0


def _state(call: Call) -> int:
    with call.admin() as admin:
        state = admin.state()
    call.show(state, state_text(state))
    return 0


def _watch(call: Call) -> int:
    client = PlannerClient(call.planners, call.timeout) if call.planners else call.admin()
    with client:
        for cycle in client.watch_cycles(on_loss=_say_lost):
            call.show(cycle, cycle_line(cycle))
    return 0


def _say_lost(error: AutothrottleError) -> None:
    print(f"throttlectl: the leader is lost, looking for it: {error}", file=sys.stderr, flush=True)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"throttlectl: warning: {warning}", file=sys.stderr)


_COMMANDS: dict[str, Callable[[Call], int]] = {
    "get": _get,
    "set": _set,
    "remove": _remove,
    "audit": _audit,
    "estimate": _estimate,
    "reassign": _reassign,
    "cancel": _cancel,
    "reassignments": _reassignments,
    "catchup": _catchup,
    "pause": _pause,
    "resume": _resume,
    "state": _state,
    "watch": _watch,
}


# The command line.


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; it serves one command line, as it remembers which options it has seen."""
    common = _common_options()
    parser = argparse.ArgumentParser(
        prog="throttlectl",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, meaning: str, **options: Any) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=meaning, description=meaning[0].upper() + meaning[1:] + ".", allow_abbrev=False, **options
        )

    _add_get(command("get", "show the overrides, or a broker's", parents=[common]))
    _add_set(command("set", "set an override, in place of one that stands", parents=[common]))
    _add_remove(command("remove", "remove an override", parents=[common]))
    _add_audit(command("audit", "show who changed which override or the pause, the newest first", parents=[common]))
    _add_estimate(command("estimate", "tell how long a reassignment would take, before it starts", parents=[common]))
    _add_reassign(command("reassign", "throttle a reassignment, then submit it, and follow it", parents=[common]))
    _add_file(command("cancel", "cancel the reassignment of a file's partitions", parents=[common]))
    command("reassignments", "show what is being reassigned", parents=[common])
    _add_catchup(command("catchup", "throttle what a bootstrapped broker lacks, until it is in sync", parents=[common]))
    _add_pause(command("pause", "decide nothing until resumed: throttles stay as they stand", parents=[common]))
    command("resume", "decide again", parents=[common])
    command("state", "show who leads, the last cycle and the overrides", parents=[common])
    _add_watch(command("watch", "print every cycle as it ends, whoever leads, until interrupted", parents=[common]))
    completion = command("completion", "print a shell's completion script")
    completion.add_argument("shell", choices=SHELLS, help="the shell that loads it")
    return parser


def _common_options() -> argparse.ArgumentParser:
    """Options that may stand in front of the command and behind it."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _option(
        common,
        "--addr",
        type=_accepted(parse_addresses),
        metavar="ADDR[,ADDR]",
        help=f"where admin answers, host:port or unix:path (${ADDRESS_VARIABLE}; default {DEFAULT_ADDRESS})",
    )
    _option(common, "--output", choices=("table", "json"), help="how to print (default table)")
    _option(
        common,
        "--timeout",
        type=_accepted(_seconds),
        metavar="SECONDS",
        help=f"for a call with all its attempts, above 0 and at most 3600 (default {DEFAULT_TIMEOUT})",
    )
    return common


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("broker", nargs="?", type=_accepted(_broker_id), metavar="BROKER", help="id of a broker")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rate", type=_accepted(parse_rate), metavar="RATE", help="like 200MB/s, 200 (MB/s), 1500000B/s")
    _add_broker(parser)
    parser.add_argument(
        "--autoremove", action="store_true", help="let the cluster's override end when no reassignment is left"
    )
    _option(
        parser,
        "--expires",
        default=None,
        type=_accepted(lambda text: parse_expiry(text, datetime.now(UTC))),
        metavar="WHEN",
        help="when it ends by itself: in 30m, 2h, 1d ..., or at a time like 2030-01-31T18:00:00Z (default never)",
    )
    _add_etag(parser)


def _add_remove(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    _add_broker(which)
    which.add_argument("--all", action="store_true", help="every override: the cluster's and all brokers'")
    _add_etag(parser)


def _add_etag(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--etag",
        default=None,
        type=_accepted(_etag),
        metavar="ETAG",
        help="of the version to change, and no other, as get shows it; without it any",
    )


def _add_audit(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--limit",
        default=20,
        type=_accepted(_limit),
        metavar="N",
        help=f"how many, 1 to {MAX_AUDIT_RECORDS} (default 20)",
    )


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    goal = parser.add_mutually_exclusive_group()
    _option(
        goal,
        "--max-ratio",
        default=None,
        type=_accepted(parse_ratio),
        metavar="PERCENT",
        help="with throttles of so much of every link's capacity, above 0 and at most 100 (default: present headrooms)",
    )
    _option(
        goal,
        "--within",
        default=None,
        type=_accepted(parse_span),
        metavar="TIME",
        help="with the throttles that it needs to be done in 30m, 2h, 1d ...",
    )


def _add_reassign(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    parser.add_argument("--no-wait", action="store_true", help="return when Kafka has taken it, and do not follow it")
    parser.add_argument("--dry-run", action="store_true", help="only look at it, and change nothing")


def _add_catchup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("broker", type=_accepted(_broker_id), metavar="BROKER", help="id of the broker; it may be down")
    parser.add_argument("--stop", action="store_true", help="take its throttles away: it catches up without")


def _add_pause(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clear", action="store_true", help="give all throttles back: what moves goes on without throttles"
    )
    _option(parser, "--reason", default="", metavar="TEXT", help="why, for the log and for whoever looks at the state")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="as kafka-reassign-partitions.sh reads it; - is standard input")


def _add_broker(parser: argparse._ActionsContainer) -> None:
    _option(
        parser,
        "--broker",
        default=None,
        type=_accepted(_broker_id),
        metavar="ID",
        help="the broker's; without it the cluster's, which rules every broker that takes part in a reassignment",
    )


def _add_watch(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--planner-addr",
        type=_accepted(parse_addresses),
        metavar="ADDR[,ADDR]",
        help="where planners answer (default: the leader's address as admin knows it)",
    )


class _Once(argparse.Action):
    """Stores a value, and refuses a second one: the last would win unseen."""

    seen = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.seen:
            raise argparse.ArgumentError(self, "is given twice; give it once")
        self.seen = True
        setattr(namespace, self.dest, values)


def _option(parser: argparse._ActionsContainer, name: str, **options: Any) -> None:
    # Without a default a subcommand's namespace does not overwrite what stood in front of the command.
    parser.add_argument(name, action=_Once, **{"default": argparse.SUPPRESS, **options})


def _accepted(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return the reader with its errors as argparse shows them."""

    def accept(text: str) -> _T:
        try:
            return read(text)
        except Invalid as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return accept


def _broker_id(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text) or int(text) > MAX_BROKER_ID:
        raise Invalid(
            f"{text[:60]!r} is no broker id: it must be an integer, 1 to {MAX_BROKER_ID}; give for example 1001"
        )
    return int(text)


def _etag(text: str) -> str:
    # An empty one would change any version: a script's variable that was never set.
    if not re.fullmatch(r"[1-9a-f][0-9a-f]{0,15}", text):
        raise Invalid(f"{text[:60]!r} is no etag: give it as get shows it, or none to change any version")
    return text


def _limit(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text) or int(text) > MAX_AUDIT_RECORDS:
        raise Invalid(f"{text[:60]!r} is no number of records: it must be 1 to {MAX_AUDIT_RECORDS}; give one")
    return int(text)


def _seconds(text: str) -> timedelta:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or not 0 < float(text) <= 3600:
        raise Invalid(f"{text[:60]!r} is no time-out: it must be seconds, above 0 and at most 3600; give for example 5")
    return timedelta(seconds=float(text))


def _call(read: argparse.Namespace) -> Call:
    return Call(
        arguments=read,
        addresses=getattr(read, "addr", None) or _default_addresses(),
        planners=getattr(read, "planner_addr", ()),
        timeout=getattr(read, "timeout", None) or _seconds(DEFAULT_TIMEOUT),
        json=getattr(read, "output", "table") == "json",
    )


def _default_addresses() -> tuple[str, ...]:
    try:
        return parse_addresses(os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS)
    except Invalid as error:
        raise Invalid(f"{ADDRESS_VARIABLE}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
