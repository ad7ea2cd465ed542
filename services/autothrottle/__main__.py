"""The command line: what each command starts, and its exit status.

`autothrottle <service>` runs one service. `autothrottle run` runs all of them in one process: the same code over the
same gRPC surface. `autothrottle check` reads what `run` reads and prints problems. `autothrottle demo` shows
a recovery on a simulated cluster. `autothrottle uninstall` removes everything that autothrottle has written.
`composition` builds the services, `runtime.command_line` describes the commands.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from autothrottle import __version__
from autothrottle.composition.cluster import new_state, validate_kafka_settings
from autothrottle.composition.services import Composition
from autothrottle.composition.state import copy_state, zookeeper_security
from autothrottle.composition.store_choice import refuse_state_left_behind
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.members import Member, leader_address, page_url
from autothrottle.core.texts import capitalized
from autothrottle.runtime.command_line import (
    COMMANDS,
    EXIT_FAILED,
    EXIT_USAGE,
    SHELLS,
    completion_script,
    help_text,
    program,
    usage,
)
from autothrottle.runtime.configuration import Configuration, StateStore
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle.runtime.connections import descriptors_problem, raise_descriptor_limit
from autothrottle.runtime.extras import WITH_EXTRAS, start
from autothrottle.runtime.logs import configure_logs, log_standard_error
from autothrottle.runtime.server import Servicer
from autothrottle.runtime.shutdown import Shutdown, stop_on_signals
from autothrottle.runtime.sources import nearest
from autothrottle.runtime.tracing import configure_tracing
from autothrottle.runtime.tuning import collect_rarely, give_way, take_back
from autothrottle_client.suggestions import suggestion

log = logging.getLogger("autothrottle")


def _service(name: str, build: Callable[[Composition], Servicer]) -> Callable[[Composition], None]:
    def serve(composition: Composition) -> None:
        address, _ = _serve(composition, name, build(composition))
        log.info("%s listens on %s", name.capitalize(), address)

    return serve


def _serve(composition: Composition, name: str, *servicers: Servicer) -> tuple[str, Member]:
    """Serve the services of one role; return the address, and the entry of this process in the list of members."""
    address = composition.serve_alone(name, *servicers)
    if metrics := composition.metrics_endpoint(name):
        log.info("Metrics of %s: %s", name, metrics)
    return address, composition.join(name, address)


def _planner(composition: Composition) -> None:
    servicer, planner = composition.planner()
    address, member = _serve(composition, "planner", servicer)
    planner.start(leader_address(member), member.host)
    log.info("Autothrottle Running")
    log.info("Planner listens on %s", address)


def _admin(composition: Composition) -> None:
    give_way()
    address, _ = _serve(composition, "admin", composition.admin(), composition.placement(), composition.quotas())
    log.info("gRPC API: %s", address)


def _gateway(composition: Composition) -> None:
    give_way()
    address = _serve_page(composition, "gateway")
    composition.join("gateway", address)
    log.info("Admin API: %s", address)


def _serve_page(composition: Composition, service: str) -> str:
    """Serve the HTTP API, and log first where an operator can watch; return the address."""
    address = composition.gateway(service)
    log.info("Page: %s", page_url(address, socket.gethostname(), composition.configuration.tls is not None))
    return address


def _run(composition: Composition) -> None:
    """Run all services in one process, each with its own server and threads.

    Only the admin server listens on a public address; the others use Unix sockets.
    """
    directory = composition.private_directory()

    def serve_privately(name: str, *servicers: Servicer) -> tuple[str]:
        return (composition.serve(name, servicers, f"unix:{directory}/{name}.sock"),)

    composition.use(
        discovery_addr=serve_privately("discovery", composition.discovery()),
        metrics_addr=serve_privately("metrics", composition.metrics()),
        applier_addr=serve_privately("applier", composition.applier()),
    )
    servicer, planner = composition.planner()
    composition.use(planner_addr=serve_privately("planner", servicer))
    operators = [composition.admin(), composition.placement(), composition.quotas()]
    address = composition.serve("admin", [*operators, servicer], composition.configuration.grpc_listen, "grpc-listen")
    composition.use(admin_addr=serve_privately("admin", *operators))
    http = _serve_page(composition, "run")
    member = composition.join("run", address, _ROLES)
    planner.start(leader_address(member), member.host)
    log.info("Autothrottle Running")
    log.info("gRPC API: %s", address)
    log.info("Admin API: %s", http)


_SERVICES: dict[str, Callable[[Composition], None]] = {
    "discovery": _service("discovery", Composition.discovery),
    "metrics": _service("metrics", Composition.metrics),
    "applier": _service("applier", Composition.applier),
    "planner": _planner,
    "admin": _admin,
    "gateway": _gateway,
    "run": _run,
}
"""Service name -> start function."""

_ROLES = ("discovery", "metrics", "planner", "applier", "admin", "gateway")
"""The roles that `run` has in the list of members."""


@program
def main(arguments: list[str]) -> int:
    """Run one command; return the exit status."""
    command = arguments.pop(0) if arguments else ""
    if command in ("-version", "--version", "version"):
        return _show(__version__)
    if command in ("-help", "--help", "-h", "help"):
        return _show(usage())
    if command in WITH_EXTRAS:
        module, extra = WITH_EXTRAS[command]
        return start(f"autothrottle {command}", module, extra, arguments)
    if command == "completion":
        return _completion(arguments)
    if command == "state":
        return _state(arguments)
    if command not in COMMANDS:
        problem = f"unknown command {command!r}{suggestion('autothrottle', command)}" if command else "missing command"
        print(problem, usage(), sep="\n\n", file=sys.stderr)
        return EXIT_USAGE
    return _configured(command, arguments, {"check": _check, "uninstall": _uninstall}.get(command))


def _completion(arguments: Sequence[str]) -> int:
    if {"-h", "-help", "--help"} & {*arguments}:
        return _show(help_text("completion"))
    if len(arguments) == 1 and arguments[0] in SHELLS:
        return _show(completion_script(arguments[0], _parsers()))
    near = nearest(" ".join(arguments), SHELLS)
    fix = f"did you mean `autothrottle completion {near}`?" if near else "give one of them"
    print(f"completion needs one shell of {', '.join(SHELLS)}. Fix: {fix}", file=sys.stderr)
    return EXIT_USAGE


def _parsers() -> dict[str, ArgumentParser]:
    """Return command -> the parser of its arguments; absent: its extra is not installed."""
    found = {}
    for command, (module, _) in WITH_EXTRAS.items():
        with suppress(ModuleNotFoundError):
            found[command] = import_module(module).make_parser()
    return found


def _show(text: str) -> int:
    print(text, flush=True)
    return 0


def _state(arguments: list[str]) -> int:
    """Run `state export FILE`, `state import FILE` or `state secure [--undo]`."""
    if {"-h", "-help", "--help"} & {*arguments}:
        return _show(help_text("state"))
    if arguments[:1] == ["secure"]:
        options = [argument for argument in arguments[1:] if argument not in ("-undo", "--undo")]
        return _configured("state", options, partial(_secure_state, len(options) < len(arguments) - 1))
    if len(arguments) < 2 or arguments[0] not in ("export", "import") or arguments[1].startswith("-"):
        print(
            "state needs `export FILE`, `import FILE` or `secure` before its options. `throttlectl state` shows the "
            "leader, the rates and the overrides",
            file=sys.stderr,
        )
        return EXIT_USAGE
    return _configured("state", arguments[2:], partial(_copy_state, arguments[0], arguments[1]))


def _copy_state(action: str, path: str, configuration: Configuration) -> int:
    log_standard_error()
    with Shutdown() as shutdown:
        copy = copy_state(action == "import", Path(path), new_state(configuration, shutdown))
    log.info(
        "%sed %d entries, %d audit records and the newest term %d",
        action.capitalize(),
        len(copy.nodes),
        len(copy.audit),
        copy.fence,
    )
    return 0


def _secure_state(undo: bool, configuration: Configuration) -> int:
    log_standard_error()
    with Shutdown() as shutdown:
        change = new_state(configuration, shutdown).set_access(undo)
    access = "open" if undo else configuration.zk_acl
    for process in change.creators:
        log.warning(
            "New nodes of %s have other ACLs. Fix: restart it with --zk-acl=%s, then run this again", process, access
        )
    log.info("Changed the ACLs of %d nodes; zk-acl is %s for all of them", change.changed, access)
    return 0


def _configured(command: str, arguments: Sequence[str], run: Callable[[Configuration], int] | None = None) -> int:
    options = COMMANDS[command].options
    configuration = parse(arguments, os.environ, used=options)
    if configuration.pools and "pools" in options:
        from autothrottle.runtime.pools_file import read_pools

        read_pools(configuration.pools)
    if configuration.version or configuration.help:
        return _show(__version__ if configuration.version else help_text(command))
    configure_logs(configuration.log_format, configuration.log_level)
    for warning in configuration.warnings:
        log.warning("%s", capitalized(warning))
    try:
        if "zk-prefix" in options or configuration.state_store is StateStore.KAFKA:  # it accesses Kafka
            for warning in validate_kafka_settings(configuration):
                log.warning("%s", capitalized(warning))
        if configuration.state_store is StateStore.ZOOKEEPER:
            zookeeper_security(configuration)
        if command != "state":  # it only copies the state of the store
            refuse_state_left_behind(configuration)
    except Invalid as error:
        log.error("%s", capitalized(str(error)))
        return EXIT_USAGE
    try:
        return (run or partial(_until_stopped, command))(configuration)
    except InvalidConfiguration as error:
        for problem in error.problems:
            log.error("%s", capitalized(problem))
        return EXIT_USAGE
    except AutothrottleError as error:
        log.error("%s", capitalized(str(error)))
        return EXIT_FAILED


def _until_stopped(command: str, configuration: Configuration) -> int:
    collect_rarely()
    raise_descriptor_limit()
    log_standard_error()
    compositions: list[Composition] = []

    def read_again() -> None:
        for composition in compositions:
            composition.read_files_again()

    with Shutdown(stop_on_signals(read_again)) as shutdown:
        tracing = configure_tracing(f"autothrottle-{command}")
        shutdown.callback(tracing.close)
        try:
            composition = Composition(configuration, shutdown, tracing)
            compositions.append(composition)
            composition.health.add("descriptors", descriptors_problem)
            composition.export_metrics(command)
            _SERVICES[command](composition)
        except AutothrottleError:
            if not shutdown.requested.is_set():  # otherwise the request to stop has ended the start
                raise
        shutdown.requested.wait()
        log.info("Stopping")
        take_back()
    return EXIT_FAILED if shutdown.failed else 0


def _check(configuration: Configuration) -> int:
    from autothrottle.check import check, check_sources, findings_text

    log_standard_error()
    with Shutdown() as shutdown:
        lines = check(check_sources(Composition(configuration, shutdown, writes=False)), configuration)
        print(findings_text(lines, configuration.output), flush=True)
    return EXIT_FAILED if any(line.fix for line in lines) else 0


def _uninstall(configuration: Configuration) -> int:
    log_standard_error()
    with Shutdown() as shutdown:
        composition = Composition(configuration, shutdown)
        count = composition.uninstall()
    log.info("Uninstalled: restored %d configs; overrides and the term remain in %s", count, composition.state.place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
