"""The commands: their purpose, the options that each uses, help texts and shell completion.

`autothrottle.__main__` runs the commands. Help and completion describe the same argparse parser; it never parses,
because argparse stops at the first problem (see `sources.Flags`). The type to know is `Command`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawTextHelpFormatter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from textwrap import fill
from typing import Any

from autothrottle import __version__
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.texts import capitalized, escape_unprintable
from autothrottle.runtime.configuration import METRICS_SOURCES, OPTIONS, Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.extras import EXIT_BROKEN_PIPE, discard_output
from autothrottle.runtime.option_kinds import Option

SHELLS = ("bash", "zsh", "fish")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `autothrottle`."""

    purpose: str
    options: frozenset[str] = frozenset()
    """Names of the options that it uses. It accepts all of them, so that all services can share one file."""
    example: str = ""
    """Arguments of an example."""
    arguments: str = "[options]"


def program(main: Callable[[list[str]], int]) -> Callable[..., int]:
    """Return the entry of a program, whose arguments are those of the process if it gets none.

    The exit status is that of `main`, or 1: failure. 2: wrong usage. 130: interrupted. 141: the reader of the output
    has closed the pipe.
    """

    @wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return main(list(sys.argv[1:] if argv is None else argv))
        except InvalidConfiguration as error:
            print(error, file=sys.stderr)
            return EXIT_USAGE
        except AutothrottleError as error:
            # Further lines are indented, so that no text in an error looks like a line of its own.
            print("\n  ".join(map(escape_unprintable, str(error).split("\n"))), file=sys.stderr)
            return EXIT_FAILED
        except BrokenPipeError:
            discard_output()
            return EXIT_BROKEN_PIPE
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED

    return run


def _named(*names: str) -> frozenset[str]:
    """Return the options of some groups, and single options."""
    return frozenset(option.name for option in OPTIONS.values() if {option.group, option.name} & {*names})


_C = Configuration
BROKER_OPTIONS = _named(
    "kafka-backend", "kafka-native-mode", "bootstrap-servers", "kafka-client-config", "kafka-api-request-timeout"
)
"""Options of the connections with brokers. Every process uses them if its state is in Kafka."""
_PROCESS = _named(_C.GENERAL, _C.STATE, _C.ZOOKEEPER) - {"zk-prefix"} | BROKER_OPTIONS
_METERED = _PROCESS | {"cluster-name"}
_SERVER = _METERED | _named("listen", "metrics-listen", "advertise", _C.SECURITY) - {"tls-server-name"}
_CLIENT = _SERVER | {"tls-server-name"}
_KAFKA = _named(_C.KAFKA) | {"zk-prefix"}

_RUN = frozenset(OPTIONS) - _named(_C.ADDRESSES, _C.CHECK) | {"api-listen", "grpc-listen", "advertise"}

COMMANDS: Mapping[str, Command] = {
    "run": Command(
        "all services in one process",
        _RUN,
        "--bootstrap-servers kafka1:9092 --capacity 1000MB/s",
    ),
    "check": Command(
        "reads what `run` reads with the same options, writes nothing, and prints each problem and its fix",
        _RUN | _named(_C.CHECK),
        "--bootstrap-servers kafka1:9092 --capacity 1000MB/s -o json",
    ),
    "discovery": Command(
        "reports reassignments and the current throttles",
        _SERVER | _KAFKA,
        "--listen 127.0.0.1:4001 --zk-addr zk1:2181,zk2:2181",
    ),
    "metrics": Command(
        "reports load and capacity of each broker; posts events",
        _SERVER
        | _named(_C.METRICS, _C.PROMETHEUS, _C.SCRAPE, _C.DATADOG, _C.CAPACITY)
        | (_KAFKA - {"kafka-bootstrap-controllers", "discovery-poll"}),
        "--listen 127.0.0.1:4002 --api-key-file api-key --app-key-file app-key",
    ),
    "planner": Command(
        "runs the control loop; one planner leads, the others wait",
        _CLIENT
        | _named(_C.RATES, _C.REMOVAL, _C.DECISIONS, "metrics-window")
        | {"discovery-addr", "metrics-addr", "applier-addr", "pools"},
        "--listen 127.0.0.1:4003 --zk-addr zk1:2181,zk2:2181 --min-rate 20MB",
    ),
    "applier": Command(
        "writes throttles",
        _SERVER | _KAFKA - {"discovery-poll"},
        "--listen 127.0.0.1:4004 --zk-addr zk1:2181,zk2:2181",
    ),
    "admin": Command(
        "serves operators: overrides, pause, reassignments, state",
        (_CLIENT | _KAFKA | _named(_C.RATES, _C.POOLS) | {"discovery-addr", "metrics-addr", "planner-addr"})
        - {"discovery-poll", "interval", "change-threshold", "failure-threshold", "finish-by", "shadow"},
        "--listen 127.0.0.1:4005 --zk-addr zk1:2181,zk2:2181",
    ),
    "gateway": Command(
        "serves operators over HTTP: JSON, the original's text routes, a page",
        _METERED | _named(_C.SECURITY, _C.PAGE) - {"open-endpoints"} | {"api-listen", "advertise", "admin-addr"},
        "--api-listen localhost:8080 --zk-addr zk1:2181,zk2:2181",
    ),
    "demo": Command("replaces a broker on a simulated cluster, with real ZooKeeper (needs the extra `lab`)"),
    "simulate": Command(
        "runs a scenario file under the real planner in virtual time (needs the extra `lab`)",
        example="deploy/scenario.toml",
    ),
    "replay": Command(
        "runs logged cycles again with this version or with other settings, and shows each decision that differs "
        "(needs the extra `decisions`)",
        example="--decisions /var/lib/autothrottle/decisions --set max-rate=95",
        arguments="--decisions URI [options]",
    ),
    "score": Command("scores logged decisions, large logs with Spark (needs the extra `score`)"),
    "compact": Command("merges the small files of the decision log (needs the extra `score`)"),
    "uninstall": Command(
        "removes every throttle that autothrottle has set, and its entries in the state store",
        _PROCESS | _KAFKA,
        "--zk-addr zk1:2181,zk2:2181",
    ),
    "state": Command(
        "copies the ledger and what operators set to a file, or from a file into an empty store; or sets the ACLs of "
        "existing znodes as zk-acl says, --undo opens them again",
        _PROCESS,
        "export state.json --state-store zookeeper --zk-addr zk1:2181",
        "export FILE | import FILE | secure [--undo] [options]",
    ),
    "completion": Command("prints a completion script for bash, zsh or fish", example="bash"),
}


def usage() -> str:
    """Return the help text of the program."""
    purposes = {name: command.purpose for name, command in COMMANDS.items()}
    purpose = "Keeps the throttles of Kafka reassignments at the rate that clients leave free."
    return program_help("autothrottle", purpose, purposes, f"run {COMMANDS['run'].example}")


def help_text(name: str) -> str:
    """Return the help text of a command: purpose, options, example."""
    command = COMMANDS[name]
    options = options_text(command.options) if command.options else ""
    arguments = command.arguments if options else "SHELL"
    return command_help(f"autothrottle {name}", arguments, command.purpose, options, command.example)


def program_help(program: str, purpose: str, commands: Mapping[str, str], example: str) -> str:
    """Return the help text of a program; `commands`: name -> purpose."""
    width = max(map(len, commands)) + 2
    rows = "\n".join(f"  {name:<{width}}{text}" for name, text in commands.items())
    return (
        f"Usage: {program} COMMAND [options]\n\n{purpose}\n\nCommands:\n{rows}\n\nExample:\n  {program} {example}\n\n"
        f"`{program} COMMAND --help` lists the options of a command. Version {__version__}."
    )


def command_help(command: str, arguments: str, purpose: str, options: str, example: str) -> str:
    """Return the help text of a command; `options` describes its options, "": it has none."""
    options = f"{options}\n" if options else ""
    return f"Usage: {command} {arguments}\n\n{capitalized(purpose)}.\n\n{options}Example:\n  {command} {example}"


def options_text(names: Collection[str]) -> str:
    """Return the description of options in groups, with units, ranges, defaults and variables."""
    return (
        "Give an option as a flag (--name=value or -name value), as an environment variable (AUTOTHROTTLE_NAME),\n"
        "or as a key of the TOML file named by --config. Precedence: flag, environment, file, default.\n\n"
        + described(named(names))
    )


def named(names: Collection[str]) -> list[Option[Any]]:
    """Return the options with these names, in the order of their groups."""
    return [option for option in OPTIONS.values() if option.name in names]


def described(options: Iterable[Option[Any]]) -> str:
    """Return the description of these options, in groups."""
    layout = partial(RawTextHelpFormatter, max_help_position=8)
    parser = ArgumentParser(usage="", formatter_class=layout, add_help=False)
    add_options(parser, options)
    return parser.format_help().partition("\n\n")[2]


def completion_script(shell: str, parsers: Mapping[str, ArgumentParser]) -> str:
    """Return a completion script for one of SHELLS.

    Args:
        shell: one of SHELLS.
        parsers: command -> the parser of its arguments; absent: it has only options.
    """
    import shtab  # only this command needs it

    parser = ArgumentParser("autothrottle", add_help=False)
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        parents = [parsers[name]] if name in parsers else []
        own = commands.add_parser(name, help=command.purpose, parents=parents, add_help=not parents)
        add_options(own, named(command.options), completion=True)
        for action in own._actions:
            if kind := {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}.get(str(action.metavar)):
                vars(action)["complete"] = kind
    commands.choices["completion"].add_argument("shell", choices=SHELLS)
    return shtab.complete(parser, shell)


def add_options(parser: ArgumentParser, used: Iterable[Option[Any]], completion: bool = False) -> None:
    """Describe options for a help text, or for a completion script, which needs only their meaning."""
    for title, options in groupby(used, lambda option: option.group):
        group = parser.add_argument_group(title)
        for option in options:
            metavar = None if option.choices else "FILE" if option.file else "VALUE"
            kind: dict[str, Any] = {"choices": option.choices or None, "metavar": metavar}
            kind = {"action": "store_true"} if option.boolean else kind
            text = option.meaning if completion else _help(option)
            short = [f"-{option.short}"] if option.short else []
            group.add_argument(f"--{option.name}", *short, help=text.replace("%", "%%"), **kind)


def _help(option: Option[Any]) -> str:
    sources = ", ".join(source for source, required in METRICS_SOURCES.items() if option.name in required)
    file = f", unless {option.name}-file is given" if f"{option.name}-file" in OPTIONS else ""
    needed = f"Required with metrics-source {sources}{file}. " if sources else ""
    value = f"Default: {option.default}" if option.default else f"Example: {option.example}"
    also = f" Also: {', '.join(f'--{alias}' for alias in option.aliases)}." if option.aliases else ""
    text = f"{needed}{option.meaning}. Value: {option.range}. {value}.{also} [{option.variable}]"
    return fill(text, 92, break_on_hyphens=False)
