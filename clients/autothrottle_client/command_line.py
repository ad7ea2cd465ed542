"""The command line of `throttlectl`: commands, options and the parsing of their values."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from autothrottle_client.addresses import parse_addresses
from autothrottle_client.commands import Call
from autothrottle_client.completion import SHELLS
from autothrottle_client.errors import Invalid
from autothrottle_client.estimates import parse_ratio, parse_span
from autothrottle_client.expiry import parse_expiry
from autothrottle_client.model import MAX_AUDIT_RECORDS, MAX_BROKER_ID
from autothrottle_client.rates import parse_rate
from autothrottle_client.tls import Tls

ADDRESS_VARIABLE = "AUTOTHROTTLE_ADMIN_ADDR"
DEFAULT_ADDRESS = "127.0.0.1:8090"
DEFAULT_TIMEOUT = "5"

_DESCRIPTION = "Manage overrides, reassignments, state and cycles of a running autothrottle."
_EPILOG = """exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unavailable, 130 interrupted

JSON output is one object; watch and reassign print one object per line. Rates are whole numbers of bytes per second
(1 MB/s is 1000000)."""

_TLS = {
    "cert": "your certificate, PEM; together with tls-key and tls-ca it turns on mutual TLS",
    "key": "the certificate's private key, without a password",
    "ca": "certificates of the servers' authorities",
    "server-name": "name in the servers' certificates, if different from the host of the address",
}

_T = TypeVar("_T")


def make_parser() -> argparse.ArgumentParser:
    """Return a parser for one command line. It remembers the options that it has seen, so use it only once."""
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

    _add_get(command("get", "show all overrides, or the override of one broker", parents=[common]))
    _add_set(command("set", "set or replace an override", parents=[common]))
    _add_remove(command("remove", "remove an override", parents=[common]))
    _add_audit(
        command(
            "audit", "show the changes of overrides and the pause with their authors, newest first", parents=[common]
        )
    )
    _add_estimate(command("estimate", "estimate the duration of a reassignment before its start", parents=[common]))
    _add_reassign(command("reassign", "throttle a reassignment, submit it and follow its progress", parents=[common]))
    _add_file(command("cancel", "cancel the reassignment of a file's partitions", parents=[common]))
    command("reassignments", "show ongoing reassignments", parents=[common])
    _add_catchup(command("catchup", "throttle the catch-up of a broker until it is in sync", parents=[common]))
    _add_pause(command("pause", "pause the planner and keep the current throttles", parents=[common]))
    command("resume", "resume the planner", parents=[common])
    command("state", "show the leader, the last cycle and the overrides", parents=[common])
    _add_watch(command("watch", "print every cycle of the current leader until interrupted", parents=[common]))
    completion = command("completion", "print a shell's completion script")
    completion.add_argument("shell", choices=SHELLS, help="target shell")
    return parser


def _common_options() -> argparse.ArgumentParser:
    """Options that are valid before and after the command."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _option(
        common,
        "--addr",
        type=_accepted(parse_addresses),
        metavar="ADDR[,ADDR]",
        help=f"addresses of admin, host:port or unix:path (${ADDRESS_VARIABLE}; default {DEFAULT_ADDRESS})",
    )
    _option(common, "--output", choices=("table", "json"), help="output format (default table)")
    _option(
        common,
        "--timeout",
        type=_accepted(_seconds),
        metavar="SECONDS",
        help=f"timeout of a call with all its attempts, above 0 and at most 3600 (default {DEFAULT_TIMEOUT})",
    )
    for name, meaning in _TLS.items():
        _option(
            common,
            f"--tls-{name}",
            metavar="NAME" if name == "server-name" else "FILE",
            help=f"{meaning} (${_variable(name)})",
        )
    return common


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("broker", nargs="?", type=_accepted(_broker_id), metavar="BROKER", help="broker id")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rate", type=_accepted(parse_rate), metavar="RATE", help="like 200MB/s, 200 (MB/s), 1500000B/s")
    _add_broker(parser)
    parser.add_argument(
        "--autoremove", action="store_true", help="end the cluster override when all reassignments are done"
    )
    _option(
        parser,
        "--expires",
        default=None,
        type=_accepted(lambda text: parse_expiry(text, datetime.now(UTC))),
        metavar="WHEN",
        help="expiry: a duration like 30m, 2h, 1d, or a time like 2030-01-31T18:00:00Z (default never)",
    )
    _add_etag(parser)


def _add_remove(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    _add_broker(which)
    which.add_argument("--all", action="store_true", help="remove every override: the cluster's and all brokers'")
    _add_etag(parser)


def _add_etag(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--etag",
        default=None,
        type=_accepted(_etag),
        metavar="ETAG",
        help="change only this version, in the form printed by get (default any version)",
    )


def _add_audit(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--limit",
        default=20,
        type=_accepted(_limit),
        metavar="N",
        help=f"number of records, 1 to {MAX_AUDIT_RECORDS} (default 20)",
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
        help="share of every link's capacity for throttles, above 0 and at most 100 (default: current headroom)",
    )
    _option(
        goal,
        "--within",
        default=None,
        type=_accepted(parse_span),
        metavar="TIME",
        help="find the throttles to finish in 30m, 2h, 1d ...",
    )


def _add_reassign(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    parser.add_argument("--no-wait", action="store_true", help="return when Kafka accepts it, without following it")
    parser.add_argument("--dry-run", action="store_true", help="validate only, change nothing")


def _add_catchup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "broker", type=_accepted(_broker_id), metavar="BROKER", help="broker id; the broker may be down"
    )
    parser.add_argument("--stop", action="store_true", help="remove the throttles; the catch-up continues without them")


def _add_pause(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clear",
        action="store_true",
        help="also remove the throttles of autothrottle; reassignments continue without them",
    )
    _option(parser, "--reason", default="", metavar="TEXT", help="reason, shown in the log and the state")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="JSON file in the format of kafka-reassign-partitions.sh; - for standard input"
    )


def _add_broker(parser: argparse._ActionsContainer) -> None:
    _option(
        parser,
        "--broker",
        default=None,
        type=_accepted(_broker_id),
        metavar="ID",
        help="broker id (default: the cluster override, for every broker in a reassignment)",
    )


def _add_watch(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--planner-addr",
        type=_accepted(parse_addresses),
        metavar="ADDR[,ADDR]",
        help="addresses of planners (default: the leader's address, from admin)",
    )


class _Once(argparse.Action):
    """Stores a value and refuses a second one; otherwise the last value would win silently."""

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
    # Without a default, a subcommand's namespace does not overwrite an option given before the command.
    parser.add_argument(name, action=_Once, **{"default": argparse.SUPPRESS, **options})


def _accepted(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return the parser of a value with its errors as argparse shows them."""

    def accept(text: str) -> _T:
        try:
            return read(text)
        except Invalid as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return accept


def _broker_id(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text) or int(text) > MAX_BROKER_ID:
        raise Invalid(
            f"{text[:60]!r} is not a broker id: it must be an integer, 1 to {MAX_BROKER_ID}; give for example 1001"
        )
    return int(text)


def _etag(text: str) -> str:
    # Refuse an empty etag, for example from an unset variable of a script: it would change any version.
    if not re.fullmatch(r"[1-9a-f][0-9a-f]{0,15}", text):
        raise Invalid(f"{text[:60]!r} is not an etag: give it as get shows it, or omit it to change any version")
    return text


def _limit(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text) or int(text) > MAX_AUDIT_RECORDS:
        raise Invalid(f"{text[:60]!r} is not a number of records: it must be 1 to {MAX_AUDIT_RECORDS}; give one")
    return int(text)


def _seconds(text: str) -> timedelta:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or not 0 < float(text) <= 3600:
        raise Invalid(
            f"{text[:60]!r} is not a timeout: it must be seconds, above 0 and at most 3600; give for example 5"
        )
    return timedelta(seconds=float(text))


def call_of(read: argparse.Namespace) -> Call:
    """Return a parsed command line, completed with defaults and environment variables."""
    return Call(
        arguments=read,
        addresses=getattr(read, "addr", None) or _default_addresses(),
        planners=getattr(read, "planner_addr", ()),
        timeout=getattr(read, "timeout", None) or _seconds(DEFAULT_TIMEOUT),
        json=getattr(read, "output", "table") == "json",
        tls=_tls(read),
    )


def _tls(read: argparse.Namespace) -> Tls | None:
    given = {n: getattr(read, f"tls_{n.replace('-', '_')}", None) or os.environ.get(_variable(n)) or "" for n in _TLS}
    absent = [f"--tls-{name}" for name in ("cert", "key", "ca") if not given[name]]
    if not any(given.values()):
        return None
    if absent:
        raise Invalid(f"TLS is mutual and needs --tls-cert, --tls-key and --tls-ca; also give {' and '.join(absent)}")
    return Tls(given["cert"], given["key"], given["ca"], given["server-name"])


def _variable(name: str) -> str:
    return f"AUTOTHROTTLE_TLS_{name.upper().replace('-', '_')}"


def _default_addresses() -> tuple[str, ...]:
    try:
        return parse_addresses(os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS)
    except Invalid as error:
        raise Invalid(f"{ADDRESS_VARIABLE}: {error}") from None
