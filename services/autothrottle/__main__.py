"""The command line: what each command starts, and its exit status.

`autothrottle <service>` runs one service. `autothrottle run` runs all of them in one process: the same code over the
same gRPC surface. `autothrottle demo` shows a recovery on a simulated cluster. `autothrottle uninstall` removes
everything that autothrottle has written. `composition` builds the services.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module

from autothrottle import __version__
from autothrottle.composition import Composition, Peers, validate_kafka_settings
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle.runtime.garbage_collection import collect_rarely
from autothrottle.runtime.logs import configure_logs
from autothrottle.runtime.options import help_text
from autothrottle.runtime.output import EXIT_BROKEN_PIPE, discard_output
from autothrottle.runtime.priority import give_way
from autothrottle.runtime.server import Servicer
from autothrottle.runtime.signals import stop_on_signals
from autothrottle.runtime.tracing import configure_tracing

log = logging.getLogger("autothrottle")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def _service(name: str, build: Callable[[Composition], Servicer]) -> Callable[[Composition], None]:
    def serve(composition: Composition) -> None:
        address = composition.serve(name, [build(composition)], composition.configuration.addresses.listen)
        composition.join(name, address)
        log.info("%s listens on %s", name.capitalize(), address)

    return serve


def _planner(composition: Composition) -> None:
    addresses = composition.configuration.addresses
    servicer, planner = composition.planner(_peers(composition))
    address = composition.serve("planner", [servicer], addresses.listen)
    planner.start(address)
    composition.join("planner", address)
    log.info("Autothrottle Running")
    log.info("Planner listens on %s", address)


def _admin(composition: Composition) -> None:
    give_way()
    addresses = composition.configuration.addresses
    address = composition.serve("admin", [composition.admin(_peers(composition))], addresses.listen)
    composition.join("admin", address)
    log.info("gRPC API: %s", address)


def _gateway(composition: Composition) -> None:
    give_way()
    address = composition.gateway(composition.configuration.addresses.admin)
    composition.join("gateway", address)
    log.info("Admin API: %s", address)


def _peers(composition: Composition) -> Peers:
    addresses = composition.configuration.addresses
    return Peers(addresses.discovery, addresses.metrics, addresses.applier, addresses.planner)


def _run(composition: Composition) -> None:
    """Run all services in one process, each with its own server and threads.

    Only the admin server listens on a public address; the others use Unix sockets.
    """
    sockets = composition.private_directory()

    def serve_privately(name: str, servicer: Servicer) -> str:
        return composition.serve(name, [servicer], f"unix:{sockets}/{name}.sock")

    discovery = serve_privately("discovery", composition.discovery())
    metrics = serve_privately("metrics", composition.metrics())
    applier = serve_privately("applier", composition.applier())
    planner_socket = f"unix:{sockets}/planner.sock"
    peers = Peers([discovery], [metrics], [applier], [planner_socket])
    servicer, planner = composition.planner(peers)
    composition.serve("planner", [servicer], planner_socket)
    admin = composition.admin(peers)
    address = composition.serve("admin", [admin, servicer], composition.configuration.addresses.grpc_listen)
    http = composition.gateway([serve_privately("admin", admin)])
    planner.start(address)
    composition.join("run", address, _ROLES)
    log.info("Autothrottle Running")
    log.info("gRPC API: %s", address)
    log.info("Admin API: %s", http)


_SERVICES: dict[str, tuple[Callable[[Composition], None], tuple[str, ...]]] = {
    "discovery": (_service("discovery", Composition.discovery), ()),
    "metrics": (_service("metrics", Composition.metrics), ("api-key", "app-key")),
    "applier": (_service("applier", Composition.applier), ()),
    "planner": (_planner, ()),
    "admin": (_admin, ()),
    "gateway": (_gateway, ()),
    "run": (_run, ("api-key", "app-key")),
}
"""Service name -> (start function, required options)."""

_ROLES = ("discovery", "metrics", "planner", "applier", "admin", "gateway")
"""The roles that `run` has in the list of members."""

_WITH_EXTRAS = {
    "demo": ("autothrottle_lab.demo.command", "lab"),
    "simulate": ("autothrottle_lab.simulate.command", "lab"),
    "score": ("autothrottle.scorer.command", "score"),
}
"""Command -> (module with its `main`, the extra that installs its dependencies)."""

_KAFKA_COMMANDS = ("discovery", "applier", "admin", "run", "uninstall")
"""Commands that connect to Kafka: their Kafka settings are validated at the start."""

_USAGE = f"""Usage: autothrottle COMMAND [options]

Commands:
  run         all services in one process
  discovery   reports reassignments and the current throttles
  metrics     reports load and capacity of each broker; posts events
  planner     runs the control loop; one planner leads, the others wait
  applier     writes throttles
  admin       serves operators: overrides, pause, reassignments, state
  gateway     serves the same over HTTP: JSON, the original's text routes, a page
  demo        replaces a broker on a simulated cluster, with real ZooKeeper (needs the extra `lab`)
  simulate    runs a scenario file under the real planner in virtual time (needs the extra `lab`)
  score       scores logged decisions with Spark (needs the extra `score`)
  uninstall   removes everything that autothrottle has written, including its own tree in ZooKeeper

`autothrottle COMMAND --help` lists the options. Version {__version__}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    0: success. 1: failure. 2: wrong usage. 130: interrupted. 141: the reader of its output has closed the pipe.
    """
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _main(arguments: list[str]) -> int:
    command = arguments.pop(0) if arguments else ""
    if command in ("-version", "--version", "version"):
        return _show(__version__)
    if command in ("-help", "--help", "-h", "help"):
        return _show(_USAGE.rstrip())
    if command in _WITH_EXTRAS:
        return _with_extra(command, arguments)
    if command not in (*_SERVICES, "uninstall"):
        what = f"unknown command {command!r}" if command else "missing command"
        print(f"{what}\n\n{_USAGE}", end="", file=sys.stderr)
        return EXIT_USAGE
    return _configured(command, arguments)


def _show(text: str) -> int:
    try:
        print(text, flush=True)
        return 0
    except BrokenPipeError:
        discard_output()
        return EXIT_BROKEN_PIPE


def _with_extra(command: str, arguments: Sequence[str]) -> int:
    module, extra = _WITH_EXTRAS[command]
    try:
        run: Callable[[Sequence[str]], int] = import_module(module).main
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent == "autothrottle":
            raise
        fix = f"Fix: install autothrottle with the extra `{extra}`"
        print(f"autothrottle {command}: {absent} is not installed. {fix}", file=sys.stderr)
        return EXIT_FAILED
    return run(arguments)


def _configured(command: str, arguments: Sequence[str]) -> int:
    start, required = _SERVICES.get(command, (None, ()))
    try:
        configuration = parse(arguments, os.environ, required)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    if configuration.version or configuration.help:
        return _show(__version__ if configuration.version else help_text(command))
    configure_logs(configuration.log_format, configuration.log_level)
    for warning in configuration.warnings:
        log.warning("%s", warning)
    try:
        if command in _KAFKA_COMMANDS:
            validate_kafka_settings(configuration.kafka)
    except Invalid as error:
        log.error("%s", error)
        return EXIT_USAGE
    try:
        return _uninstall(configuration) if start is None else _until_stopped(command, start, configuration)
    except AutothrottleError as error:
        log.error("%s", error)
        return EXIT_FAILED


def _until_stopped(command: str, start: Callable[[Composition], None], configuration: Configuration) -> int:
    stop, failed = stop_on_signals(), threading.Event()

    def end_with_failure() -> None:
        failed.set()
        stop.set()

    collect_rarely()
    with ExitStack() as stack:
        tracing = configure_tracing(f"autothrottle-{command}")
        stack.callback(tracing.close)
        start(Composition(configuration, stack, tracing, end_with_failure))
        stop.wait()
        log.info("Stopping")
    return EXIT_FAILED if failed.is_set() else 0


def _uninstall(configuration: Configuration) -> int:
    with ExitStack() as stack:
        count = Composition(configuration, stack).uninstall()
    log.info("Uninstalled: restored %d configs; overrides and the term remain", count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
