"""The commands of `throttlectl`: one function per command, each of which takes a parsed command line."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autothrottle_client.admin import ESTIMATE_TIMEOUT, SUBMIT_TIMEOUT, AdminClient
from autothrottle_client.errors import AutothrottleError, Incomplete, Invalid, Missing, Unavailable
from autothrottle_client.model import Override, PauseMode
from autothrottle_client.planner import PlannerClient
from autothrottle_client.progress import Progress, ProgressTracker, progress_line
from autothrottle_client.reassignments import Partition, Targets, parse_reassignment
from autothrottle_client.tables import (
    NONE_SET,
    audit_table,
    cycle_line,
    estimate_text,
    override_scope,
    override_words,
    overrides_table,
    pause_text,
    reassignments_table,
    state_text,
    submission_line,
    to_json,
)
from autothrottle_client.tls import Tls

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
class Call:
    """One parsed command line."""

    arguments: argparse.Namespace
    addresses: tuple[str, ...]
    """Addresses of the admin service."""
    planners: tuple[str, ...]
    """Addresses of planners to watch; empty: the leader that admin names."""
    timeout: timedelta
    json: bool
    """True: print JSON."""
    tls: Tls | None = None
    """None: plain connections."""

    def admin(self) -> AdminClient:
        """Return a client of the admin service."""
        return AdminClient(self.addresses, self.timeout, self.tls)

    def show(self, value: object, text: str) -> None:
        """Print a value as JSON, or its text form."""
        print(to_json(value) if self.json else text, flush=True)


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
    text = f"{override_scope(override.broker_id)}: throttle set to {override_words(override)}"
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
    call.show({"removed": [{"broker_id": broker_id}]}, f"{override_scope(broker_id)}: throttle removed")
    return 0


def _remove_all(call: Call, admin: AdminClient) -> int:
    overrides, warnings = admin.list_overrides()
    removed: list[Override] = []
    try:
        for override in overrides:
            with suppress(Missing):  # another client, or autoremove, removed it first
                admin.remove_override(override.broker_id)
                removed.append(override)
    finally:
        text = "\n".join(f"{override_scope(o.broker_id)}: throttle removed" for o in removed)
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
        # Validate first: it fails fast if admin is down, while a submission has its own, longer timeout.
        found = admin.submit_reassignment(wanted, validate_only=True, timeout=call.timeout)
        if not read.dry_run:
            found = admin.submit_reassignment(wanted, timeout=max(call.timeout, SUBMIT_TIMEOUT))
        call.show(found, submission_line(found, read.dry_run))
        _warn_refused(found.refused)
        if read.dry_run:
            return 0
        failed = EXIT_FAILED if found.refused else 0
        followed = {p: to for p, to in wanted.items() if p not in found.refused}
        if read.no_wait or not (found.submitted or found.already_in_progress):
            return failed
        try:
            return _follow(call, admin, followed) or failed
        except KeyboardInterrupt:
            print(file=sys.stderr)  # behind the progress bar
            _say(f"stopped following; the reassignment continues. Cancel: throttlectl cancel {shlex.quote(read.file)}")
            raise


def _follow(call: Call, admin: AdminClient, wanted: Targets) -> int:
    """Show the progress of a reassignment until it is done. A validation at the end checks the final replicas."""
    tracker, shown = ProgressTracker(wanted), _ProgressBar(call)
    patience = time.monotonic() + _OUTAGE_SECONDS
    stale_until = time.monotonic() + _METADATA_LAG_SECONDS
    while True:
        try:
            progress = tracker.progress(datetime.now(UTC), admin.list_reassignments())
            shown.show(progress)
            if progress.done < progress.partitions:
                stale_until = time.monotonic() + _METADATA_LAG_SECONDS
            else:
                left = admin.submit_reassignment(wanted, validate_only=True)
                if not left.already_in_progress and (not left.submitted or time.monotonic() > stale_until):
                    break
            patience = time.monotonic() + _OUTAGE_SECONDS
        except (Unavailable, Incomplete):
            if time.monotonic() > patience:
                raise
        time.sleep(_FOLLOW_SECONDS)
    shown.end()
    if left.submitted:
        _say(f"{left.submitted} partitions did not arrive: their reassignment was cancelled or replaced")
        return EXIT_FAILED
    call.show({"arrived": left.already_there}, f"{left.already_there} partitions arrived")
    return 0


class _ProgressBar:
    """Shows progress: in place on a terminal, otherwise one line per completed partition."""

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
        cancelled, refused = admin.cancel_reassignment(wanted.keys(), max(call.timeout, SUBMIT_TIMEOUT))
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
        raise Invalid(f"{name} is not UTF-8 text; give the path of a reassignment file") from None
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
            call.show(
                {"stopped": broker_id}, f"broker {broker_id}: throttles are being removed; the catch-up continues"
            )
            return 0
        found, warnings = admin.start_catch_up(broker_id)
    text = f"broker {broker_id} catches up under throttle until it is in sync"
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
    call.show({"was_paused": was_paused}, "resumed" if was_paused else "autothrottle was not paused")
    return 0


def _state(call: Call) -> int:
    with call.admin() as admin:
        state = admin.state()
    call.show(state, state_text(state))
    return 0


def _watch(call: Call) -> int:
    client = PlannerClient(call.planners, call.timeout, call.tls) if call.planners else call.admin()
    with client:
        for cycle in client.watch_cycles(on_loss=_say_lost):
            call.show(cycle, cycle_line(cycle))
    return 0


def _say_lost(error: AutothrottleError) -> None:
    print(f"throttlectl: lost the leader, locating it again: {error}", file=sys.stderr, flush=True)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"throttlectl: warning: {warning}", file=sys.stderr)


COMMANDS: dict[str, Callable[[Call], int]] = {
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
