"""`throttlectl`: manages overrides, reassignments, state and cycles of a running autothrottle.

`commands` has the commands. Each named context is one Kafka cluster: a table in a TOML file, whose values have the
names of their options, for example `[prod]` with `admin-addr = "throttle1:8090"`.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unavailable, 130 interrupted, 141 output closed.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import shtab

from autothrottle import __version__
from autothrottle.core.cluster.configs import MAX_BROKER_ID, broker_id_of
from autothrottle.core.request_quotas import MAX_REQUEST_RATE
from autothrottle.core.units import parse_quantity
from autothrottle_client import commands
from autothrottle_client.admin import AdminClient
from autothrottle_client.argument_parser import SuggestingParser
from autothrottle_client.commands import EXIT_FAILED
from autothrottle_client.contexts import CONTEXTS_VARIABLE, read_contexts, read_token_file, tls_of
from autothrottle_client.errors import AutothrottleError, Invalid, Missing, NotLeader, Unavailable
from autothrottle_client.model import MAX_AUDIT_RECORDS
from autothrottle_client.quotas import UNLIMITED
from autothrottle_client.replicas import parse_addresses
from autothrottle_client.suggestions import suggestion
from autothrottle_client.tables import printable
from autothrottle_client.texts import parse_expiry, parse_rate, parse_ratio, parse_span, split_patterns
from autothrottle_client.tls import Tls

EXIT_USAGE, EXIT_MISSING, EXIT_UNAVAILABLE = 2, 3, 4
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141

_STATUSES: dict[type[AutothrottleError], int] = {
    Invalid: EXIT_USAGE,
    Missing: EXIT_MISSING,
    Unavailable: EXIT_UNAVAILABLE,
    NotLeader: EXIT_UNAVAILABLE,
}

ADDRESS_VARIABLE = "AUTOTHROTTLE_ADMIN_ADDR"
TOKEN_VARIABLE = "AUTOTHROTTLE_TOKEN"
CONTEXT_VARIABLE = "AUTOTHROTTLE_CONTEXT"
DEFAULT_ADDRESS = "127.0.0.1:8090"
DEFAULT_TIMEOUT = timedelta(seconds=5)
SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = "Manage overrides, reassignments, state and cycles of a running autothrottle."
_EPILOG = """examples:
  throttlectl state
  throttlectl set 50MB/s --broker 1001
  throttlectl reassign plan.json
  throttlectl state --context prod

exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unavailable, 130 interrupted

JSON output is one object; watch and reassign print one object per line. Rates are whole numbers of bytes per second
(1 MB/s is 1000000)."""

_TLS = {
    "--tls-cert": "your certificate, PEM; together with tls-key and tls-ca it turns on mutual TLS",
    "--tls-key": "the certificate's private key, without a password",
    "--tls-ca": "certificates of the servers' authorities",
    "--tls-server-name": "name in the servers' certificates, if different from the host of the address",
}
_TOKEN = f"file with your token and nothing else (the token itself: ${TOKEN_VARIABLE}); sent over TLS and locally only"
_CONTEXT = (
    f"context of {CONTEXTS_VARIABLE} or ~/.config/autothrottle/contexts.toml (${CONTEXT_VARIABLE}); it replaces the "
    "variables of the other options"
)
_TIMEOUT = "timeout of a call with all its attempts, above 0 and at most 3600 (default 5)"
_FILE = "JSON file in the format of kafka-reassign-partitions.sh; - for standard input"
_CANCELLED = (
    "topic, partition like orders:7 or orders:0-3,9, or a JSON file in the format of kafka-reassign-partitions.sh"
)
_BROKER = "broker id (default: the cluster override, for every broker in a reassignment)"
_ETAG = "change only this version, in the form printed by get (default any version)"
_EXPIRY = "expiry: a duration like 30m, 2h, 1d, or a time like 2030-01-31T18:00:00Z (default never)"
_LIMIT = f"number of records, 1 to {MAX_AUDIT_RECORDS} (default 20)"
_REQUEST_RATE = f"set: requests per second at each process, 1 to {MAX_REQUEST_RATE}"
_QUOTA_USER = "name in a certificate or of a token; without a name: every user without a quota of its own"
_QUOTA_CLIENT = "id that a client sends; without an id: every client id without a quota of its own"
_RATIO = "share of every link's capacity for throttles, above 0 and at most 100 (default: current headroom)"
_WANTED = "brokers that shall hold the replicas; -1: all that hold them now, -2: all of the cluster"
_QUOTA_PARTS = (
    ("--user", "--default-user", "users", "name of the principal, without User:; rule set: a pattern like etl-*"),
    ("--client-id", "--default-client-id", "client ids", "client id, alone or with a user; rule set: like backfill-*"),
    ("--ip", "--default-ip", "addresses", "IPv4 or IPv6 address; without a user and a client id"),
)
_BYTE_RATE = "like 20MB/s or 1500000B/s"
_QUOTA_RATE = f"{_BYTE_RATE}, or unlimited"
_AT_MOST = "like 20MB/s, or 10%% of the smallest broker's capacity"
_PLANNERS = "addresses of planners (default: the leader's address, from admin)"

_SOURCED_BY_ZSH = "[[ $zsh_eval_context[-1] == file ]] && compdef _shtab_throttlectl throttlectl && return"
"""Without it, shtab's script can be read by `eval`, but not by `source`."""

_AddCommand = Callable[[str, Callable[[Any], object]], argparse.ArgumentParser]
"""Adds a command; its purpose and its examples come from the docstring of the function."""


def make_parser() -> argparse.ArgumentParser:
    """Return a parser for one command line. It remembers the options that it has seen, so use it only once."""
    common = _common_options()
    parser = _Parser(prog="throttlectl", description=_DESCRIPTION, epilog=_EPILOG, parents=[common])
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="show the version")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[Any], object], parents: Sequence[_Parser] = (common,)
    ) -> argparse.ArgumentParser:
        purpose, _, examples = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
        meaning = purpose[:1].lower() + purpose[1:].rstrip(".")
        epilog = "examples:\n  " + examples.replace("\n", "\n  ")
        added = subparsers.add_parser(name, help=meaning, description=purpose, epilog=epilog, parents=parents)
        added.set_defaults(run=run)
        return added

    _add_overrides(command)
    _add_reassignments(command)
    _add_quotas(command)
    _add_operation(command)
    command("context", context).add_argument("action", choices=("list",), help="list the contexts")
    command("completion", completion, ()).add_argument("shell", choices=SHELLS, help="target shell")
    return parser


def completion(shell: str) -> str:
    """Print a shell's completion script.

    source <(throttlectl completion bash)
    source <(throttlectl completion zsh)
    throttlectl completion fish | source
    """
    return shtab.complete(make_parser(), shell, preamble=_SOURCED_BY_ZSH if shell == "zsh" else "")


def context(as_json: bool) -> str:
    """List the contexts: the clusters that `--context` chooses from.

    throttlectl context list
    throttlectl context list -o json
    """
    contexts = read_contexts()
    rows = [{"context": name, "addr": values["admin-addr"]} for name, values in sorted(contexts.values.items())]
    if as_json:
        return json.dumps({"contexts": rows})
    return "\n".join(f"{row['context']}  {row['addr']}" for row in rows) or f"{contexts.path} has no contexts"


def _common_options() -> _Parser:
    """Options that are valid before and after the command. Absent ones must not overwrite those before it."""
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("options of all commands")
    _value(
        group,
        ("--admin-addr", "--addr"),
        "ADDR[,ADDR]",
        parse_addresses,
        f"addresses of admin, host:port or unix:path (${ADDRESS_VARIABLE}; default {DEFAULT_ADDRESS})",
    )
    _value(group, "--context", "NAME", str, _CONTEXT)
    group.add_argument("-o", "--output", choices=("table", "json"), help="output format (default table)")
    _value(group, "--timeout", "SECONDS", _seconds, _TIMEOUT)
    for name, meaning in _TLS.items():
        _value(group, name, "NAME" if name == "--tls-server-name" else "FILE", str, f"{meaning} (${_variable(name)})")
    _value(group, "--token-file", "FILE", str, _TOKEN)
    return common


def _add_overrides(command: _AddCommand) -> None:
    _value(command("get", commands.get), "broker", "BROKER", _broker_id, "broker id", nargs="?")

    setter = command("set", commands.set_override)
    _value(setter, "rate", "RATE", parse_rate, "like 200MB/s, 200MB, 200 (MB/s), 1500000B/s")
    _value(setter, "--broker", "ID", _broker_id, _BROKER)
    _switch(setter, "--autoremove", "end the cluster override when all reassignments are done")
    _value(setter, "--expires", "WHEN", lambda text: parse_expiry(text, datetime.now(UTC)), _EXPIRY)
    _value(setter, "--etag", "ETAG", _etag, _ETAG)
    _switch(setter, "--beyond-capacity", "apply the rate also above the capacity of a link, which limits it otherwise")

    remover = command("remove", commands.remove)
    which = remover.add_mutually_exclusive_group()
    _value(which, "--broker", "ID", _broker_id, _BROKER)
    _switch(which, "--all", "remove every override: the cluster's and all brokers'")
    _value(remover, "--etag", "ETAG", _etag, _ETAG)

    _value(command("audit", commands.audit), "--limit", "N", _limit, _LIMIT, default=20)


def _add_reassignments(command: _AddCommand) -> None:
    estimate = command("estimate", commands.estimate)
    _value(estimate, "file", "FILE", str, _FILE)
    goal = estimate.add_mutually_exclusive_group()
    _value(goal, "--max-ratio", "PERCENT", parse_ratio, _RATIO)
    _value(goal, "--within", "TIME", parse_span, "find the throttles to finish in 30m, 2h, 1d ...")
    _add_allowances(estimate, "estimate")

    reassign = command("reassign", commands.reassign)
    _value(reassign, "file", "FILE", str, _FILE)
    _value(reassign, "--throttle", "RATE", parse_rate, "fixed rate like 50MB/s, until no reassignment is left")
    _switch(reassign, "--no-wait", "return when Kafka accepts it, without following it")
    _switch(reassign, "--dry-run", "validate only, change nothing")
    _add_allowances(reassign, "submit")

    cancel = command("cancel", commands.cancel)
    _value(cancel, "what", "TOPIC[:PARTITION]|FILE", str, _CANCELLED, nargs="*")
    _value(cancel, "--broker", "ID", _broker_id, "all moves that add a replica to this broker or remove one from it")
    _switch(cancel, "--all", "all moves of the cluster")
    _switch(cancel, "--yes", "confirm --broker or --all; without it they only show the effect")
    _switch(cancel, "--dry-run", "show the effect, change nothing")
    command("reassignments", commands.reassignments)

    plan = command("plan", commands.plan)
    plan.add_argument("operation", choices=commands.PLANS, help="kind of plan")
    _value(plan, "--topics", "TOPIC[,TOPIC]", _patterns, "names or regular expressions of topics; needed", default=())
    _value(plan, "--topics-exclude", "TOPIC[,TOPIC]", _patterns, "topics to leave out", default=())
    _value(plan, "--brokers", "ID[,ID]", _broker_ids, _WANTED, default=())
    _value(plan, "--leaving", "ID[,ID]", _broker_ids, "brokers to decommission", default=())
    _switch(plan, "--allow-fewer-racks", "accept that replicas share a rack where the brokers leave no other choice")
    _switch(plan, "--by-storage", "rebuild: make free storage even instead of the number of replicas")
    _switch(plan, "--force", "rebuild: place every replica anew")
    _value(
        plan, "--partition-size-factor", "FACTOR", float, "rebuild: factor of partition sizes, for growth", default=0
    )
    _switch(plan, "--sub-affinity", "rebuild: substitute each broker that leaves by one new broker of its rack")
    _value(plan, "--leader-evac-brokers", "ID[,ID]", _broker_ids, "rebuild: brokers that shall not lead", default=())
    _value(plan, "--leader-evac-topics", "TOPIC[,TOPIC]", _patterns, "topics that they shall not lead", default=())
    _switch(plan, "--phased-reassignment", "rebuild: two steps; the first one keeps the current leaders")
    _value(plan, "--chunk-step-size", "N", int, "rebuild: several steps, each for N brokers", default=0)
    _value(plan, "--out", "FILE", str, "file for the changes, in the format of reassign; one file per step")
    _switch(plan, "--repair-lost", "apply: also move the replicas of brokers that are not in the cluster")
    _add_capacity(plan)

    catchup = command("catchup", commands.catchup)
    _value(catchup, "broker", "BROKER", _broker_id, "broker id; the broker may be down")
    _switch(catchup, "--stop", "remove the throttles; the catch-up continues without them")


def _add_allowances(parser: argparse.ArgumentParser, verb: str) -> None:
    _switch(parser, "--allow-fewer-replicas", "accept that partitions get fewer replicas than now")
    _switch(parser, "--allow-fewer-racks", "accept that the replicas of a partition are in fewer racks than now")
    _switch(parser, "--allow-cordoned", "accept replicas on cordoned brokers")
    _switch(parser, "--allow-full", "accept that brokers get more bytes than they have free")
    _switch(parser, "--skip-refused", f"leave refused partitions out, and {verb} the others")


def _add_capacity(plan: argparse.ArgumentParser) -> None:
    _value(plan, "--instances", "FILE", str, "capacity: CSV file with the instance types")
    _value(plan, "--bytes-in", "RATE", _quantity, "capacity: rate at which clients produce at peak, like 200MB/s")
    _value(plan, "--mean-bytes-in", "RATE", _quantity, "capacity: the same on average (default: as at peak)", default=0)
    _value(plan, "--retention", "TIME", parse_span, "capacity: time for which records are kept, like 12h or 7d")
    _value(plan, "--fan-out", "FACTOR", float, "capacity: bytes that consumers read for each byte produced (default 1)")
    _value(plan, "--replication", "N", int, "replication factor of a rebuild or capacity (default 3)", default=0)
    _value(plan, "--partitions", "N", int, "capacity: number of partitions, without replicas", default=0)
    plan.add_argument("--survive", choices=commands.LOSSES, help="capacity: what may be lost (default broker)")
    _value(plan, "--recover-within", "TIME", parse_span, "capacity: time until all replicas exist again (default 4h)")


def _add_quotas(command: _AddCommand) -> None:
    quota = command("quota", commands.quota)
    quota.add_argument("operation", choices=("list", "describe", "set", "remove", "rule"), help="what to do")
    rule = "rule: list, set or remove rules for clients that yield to a recovery"
    quota.add_argument("action", choices=("list", "set", "remove"), help=rule, nargs="?")
    _value(quota, "name", "NAME", str, "rule set, rule remove: name of the rule, like backfills", nargs="?")
    for option, default, plural, meaning in _QUOTA_PARTS:
        either = quota.add_mutually_exclusive_group()
        _value(either, option, "NAME", str, meaning)
        _switch(either, default, f"set, remove: the default for all {plural} without a quota of their own")
    _value(quota, "--producer-byte-rate", "RATE", _byte_rate, f"set: limit of producers on each broker, {_QUOTA_RATE}")
    _value(quota, "--consumer-byte-rate", "RATE", _byte_rate, f"set: limit of consumers on each broker, {_QUOTA_RATE}")
    _value(quota, "--request-percentage", "PERCENT", float, "set: time of one thread on each broker; 200 is two")
    _value(quota, "--controller-mutation-rate", "RATE", float, "set: created or deleted partitions per second")
    _value(quota, "--connection-creation-rate", "RATE", int, "set: connections per second on each broker, with --ip")
    _value(quota, "--at-most", "LIMIT", _limit_or_share, f"rule set: highest quota on each broker, {_AT_MOST}")
    _value(quota, "--floor", "RATE", _byte_rate, f"rule set: lowest quota on each broker, {_BYTE_RATE}")
    _switch(quota, "--force", "rule set: confirm a rule that matches every client")
    _value(quota, "--keys", "KEY[,KEY]", _words, "remove, rule set: keys like producer_byte_rate (default all)")
    _value(quota, "--etag", "ETAG", str, "set, remove: change only this version, as list shows it (default any)")
    _value(quota, "--expires", "WHEN", lambda text: parse_expiry(text, datetime.now(UTC)), f"set: {_EXPIRY}")
    _switch(quota, "--until-recovered", "set: restore the quotas when no reassignment and no catch-up is left")
    _switch(quota, "--dry-run", "set, remove, rule: validate only, change nothing")


def _add_operation(command: _AddCommand) -> None:
    pause = command("pause", commands.pause)
    _switch(pause, "--clear", "also remove the throttles of autothrottle; reassignments continue without them")
    _value(pause, "--reason", "TEXT", str, "reason, shown in the log and the state", default="")

    command("resume", commands.resume)

    quota = command("request-quota", commands.request_quota)
    quota.add_argument("action", choices=("list", "set", "remove"), help="list all, or change one")
    _value(quota, "rate", "RATE", _request_rate, _REQUEST_RATE, nargs="?")
    _value(quota, "--user", "NAME", str, _QUOTA_USER, nargs="?", const="")
    _value(quota, "--client-id", "ID", str, _QUOTA_CLIENT, nargs="?", const="")

    command("state", commands.state)
    _switch(command("top", commands.top), "--once", "print it once, as text (default if the output is not a terminal)")
    _value(command("explain", commands.explain), "broker", "BROKER", _broker_id, "broker id")
    _value(command("watch", commands.watch), "--planner-addr", "ADDR[,ADDR]", parse_addresses, _PLANNERS)


class _Once(argparse.Action):
    """Stores a value and refuses a second one; otherwise the last value would win silently."""

    is_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.is_given:
            raise argparse.ArgumentError(self, "is given twice; give it once")
        self.is_given = True
        setattr(namespace, self.dest, values)


class _Parser(SuggestingParser):
    """Also suggests commands, of all programs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.register("action", None, _Once)
        self.suggest_on_error = False  # of new versions of argparse, which do not suggest options

    def error(self, message: str) -> NoReturn:
        """Print the usage and a message, then exit."""
        if message.endswith("required: COMMAND"):
            self.print_help(sys.stderr)
            self.exit(EXIT_USAGE, f"\n{self.prog}: error: give a command\n")
        if match := re.match(r"argument COMMAND: invalid choice: '([^']*)'", message):
            message = f"unknown command {match[1]!r}{suggestion('throttlectl', match[1])}"
        super().error(message)


def _switch(parser: argparse._ActionsContainer, name: str, meaning: str) -> None:
    parser.add_argument(name, action="store_true", help=meaning)


def _value(
    parser: argparse._ActionsContainer,
    name: str | tuple[str, ...],
    metavar: str,
    parse: Callable[[str], object],
    meaning: str,
    **options: Any,
) -> None:
    """Add an argument, or an option with a value and perhaps aliases. Shells complete a FILE."""

    def accept(text: str) -> object:
        try:
            return parse(text)
        except Invalid as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    names = (name,) if isinstance(name, str) else name
    action = parser.add_argument(*names, metavar=metavar, type=accept, help=meaning, **options)
    if metavar == "FILE":
        action.complete = shtab.FILE  # type: ignore[attr-defined]


def _broker_id(text: str) -> int:
    broker_id = broker_id_of(text)
    if broker_id is None:
        raise Invalid(
            f"{text[:60]!r} is not a broker id: it must be an integer, 0 to {MAX_BROKER_ID}; give for example 1001"
        )
    return broker_id


def _broker_ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) if word in ("-1", "-2") else _broker_id(word) for word in _words(text))


def _words(text: str) -> tuple[str, ...]:
    return _nonempty(text, tuple(word.strip() for word in text.split(",") if word.strip()))


def _patterns(text: str) -> tuple[str, ...]:
    return _nonempty(text, split_patterns(text))


def _nonempty(text: str, words: tuple[str, ...]) -> tuple[str, ...]:
    if not words:
        raise Invalid(f"{text[:60]!r} is an empty list; give at least one entry")
    return words


def _etag(text: str) -> str:
    # Refuse an empty etag, for example from an unset variable of a script: it would change any version.
    if not re.fullmatch(r"[1-9a-f][0-9a-f]{0,15}", text):
        raise Invalid(f"{text[:60]!r} is not an etag: give it as get shows it, or omit it to change any version")
    return text


def _byte_rate(text: str) -> int:
    # Kafka's own tool takes bytes/s, and `set` of this tool takes MB/s.
    if text.isdigit():
        raise Invalid(f"{text[:60]!r} has no unit; give for example {text[:20]}B/s or 20MB/s")
    return UNLIMITED if text == "unlimited" else parse_rate(text, UNLIMITED)


def _quantity(text: str) -> float:
    return parse_quantity(text, per_second=True)


def _limit_or_share(text: str) -> tuple[int | None, float | None]:
    """Return (bytes/s, None) or (None, a share)."""
    if not text.endswith("%"):
        return _byte_rate(text), None
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?%", text) or not 0 < float(text[:-1]) <= 100:
        raise Invalid(f"{text[:60]!r} is not a share of the capacity, above 0% and at most 100%; give for example 10%")
    return None, float(text[:-1]) / 100


def _limit(text: str) -> int:
    return _whole_number(text, MAX_AUDIT_RECORDS, "number of records", "")


def _request_rate(text: str) -> int:
    return _whole_number(text, MAX_REQUEST_RATE, "request rate", " per second")


def _whole_number(text: str, largest: int, meaning: str, unit: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text) or int(text) > largest:
        raise Invalid(f"{text[:60]!r} is not a {meaning}: it must be 1 to {largest}{unit}; give one")
    return int(text)


def _seconds(text: str) -> timedelta:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or not 0 < float(text) <= 3600:
        raise Invalid(
            f"{text[:60]!r} is not a timeout: it must be seconds, above 0 and at most 3600; give for example 5"
        )
    return timedelta(seconds=float(text))


def call_of(arguments: argparse.Namespace) -> commands.CommandCall:
    """Return a parsed command line, completed with its context, or else with variables. Close its admin client.

    A context replaces all variables, so that no token reaches the servers of another cluster.

    Raises:
        Invalid: a variable or a value of the context is not valid, TLS is incomplete, or a file cannot be read.
        Missing: the context does not exist.
    """
    given, variables = {**vars(arguments)}, dict(os.environ)
    if name := given.get("context") or variables.get(CONTEXT_VARIABLE):
        context = read_contexts().of(name)
        variables = {_variable(option): value for option, value in context.items()}
        given.setdefault("token_file", context.get("token-file"))
    timeout, tls, token = given.get("timeout", DEFAULT_TIMEOUT), _tls(given, variables), _token(given, variables)
    addresses = given.get("admin_addr") or _default_addresses(variables)
    admin = AdminClient(addresses, timeout, tls, token, commands.CLIENT_ID, commands.say)
    return commands.CommandCall(arguments, admin, timeout, given.get("output") == "json", tls, token)


def _tls(given: Mapping[str, Any], variables: Mapping[str, str]) -> Tls | None:
    return tls_of(
        {
            name.removeprefix("--"): given.get(_destination(name)) or variables.get(_variable(name)) or ""
            for name in _TLS
        }
    )


def _token(given: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    path = given.get("token_file")
    return variables.get(TOKEN_VARIABLE, "").strip() if path is None else read_token_file(path)


def _destination(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _variable(option: str) -> str:
    return f"AUTOTHROTTLE_{_destination(option).upper()}"


def _default_addresses(variables: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return parse_addresses(variables.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS)
    except Invalid as error:
        raise Invalid(f"{ADDRESS_VARIABLE}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    try:
        status = _run(arguments)
        print(end="", flush=True)  # also valid without standard output
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Discard buffered output, otherwise the interpreter fails a second time when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except AutothrottleError as error:
        # Further lines are indented, so that no text in an error looks like a line of its own.
        print("throttlectl: " + "\n  ".join(map(printable, str(error).split("\n"))), file=sys.stderr)
        return _STATUSES.get(type(error), EXIT_FAILED)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        parsed = make_parser().parse_args(arguments)
    except SystemExit as ended:  # argparse has printed the reason
        return ended.code if isinstance(ended.code, int) else EXIT_USAGE
    if parsed.command == "completion":
        print(completion(parsed.shell))
        return 0
    if parsed.command == "context":
        print(context(as_json=getattr(parsed, "output", "table") == "json"))
        return 0
    call = call_of(parsed)
    with call.admin:
        status: int | None = parsed.run(call)
        return status or 0


if __name__ == "__main__":
    sys.exit(main())
