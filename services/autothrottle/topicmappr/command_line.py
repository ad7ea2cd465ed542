"""`topicmappr`: plans where replicas go, and how many brokers a workload needs. `_COMMANDS` has its commands.

Exit status: 0 success. 1 failure, also if a file could not be written or warnings prevent a map. 2 wrong usage. 3 of
`apply --check`: the cluster is not as its file says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autothrottle import __version__
from autothrottle.core.capacity.broker_tags import broker_tags
from autothrottle.core.capacity.forecasts import PoolsInUse, limit_forecasts
from autothrottle.core.capacity.packing import PoolsState, pools_state
from autothrottle.core.capacity.pools import pool_plans
from autothrottle.core.capacity.values import pool_statuses, pools_difference
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.placement import plan as placement
from autothrottle.core.placement.operations import PlacementResult, check_options, needs_storage, plan_placement
from autothrottle.core.placement.partition_map import TopicPartitionKey, without_no_ops
from autothrottle.runtime.command_line import (
    EXIT_FAILED,
    EXIT_USAGE,
    command_help,
    described,
    program,
    program_help,
)
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse_command
from autothrottle.runtime.option_kinds import declared_options
from autothrottle.runtime.pools_file import format_pools, members_of, read_pools, schema
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle.topicmappr import options as flags
from autothrottle.topicmappr import pools as topic_pools
from autothrottle.topicmappr.capacity import measured_options, plan_capacity, read_instances, workload_of
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.execution import submit
from autothrottle.topicmappr.forecast import write_metrics
from autothrottle.topicmappr.map_files import MapFile, map_files, write_files
from autothrottle.topicmappr.report import files_block, report, result_value
from autothrottle.topicmappr.sources import (
    READ_TIMEOUT,
    measured_cluster,
    open_cordons,
    open_host_tags,
    read_cluster,
    read_history,
)
from autothrottle.topicmappr.tagging import (
    hosts_of_brokers,
    require_hosts,
    tagging_report,
    tagging_value,
    taggings,
)
from autothrottle_client import plan_report
from autothrottle_client.files import write_text
from autothrottle_client.plan_options import flag, plan_options
from autothrottle_client.reassignments import parse_reassignment
from autothrottle_client.suggestions import suggestion

EXIT_DRIFT = 3
_MOST_TOPICS = 1000
"""Of `pools fit`."""

_PURPOSES = {
    "rebuild": "replaces brokers, changes the replication factor, or places topics anew",
    "rebalance": "evens out the free storage of brokers, with few bytes to copy",
    "scale": "evens out the free storage over the old and new brokers",
    "decommission": "moves all replicas away from brokers; with --execute it cordons them first (Kafka 4.3)",
    "relieve": "moves just enough bytes off a full broker",
    "uncordon": "removes the cordons of brokers",
    "export": "writes a cluster file, with which every command works offline",
    "apply": "makes a cluster as a pools file says, with as few moves as possible",
    "pools": "export, status, fit TOPIC... or pack: which topics are on which brokers, and how full they are",
    "capacity": "says how many brokers of which instance type a workload needs",
    "forecast": "says when brokers and pools reach their limits, from the history of metricsfetcher",
    "tag": "writes the topics and pools of brokers as host tags to Datadog",
    "version": "prints the version",
}

_EXAMPLES = {
    "rebuild": "--topics orders --brokers 1001,1003,1004 --bootstrap-servers kafka1:9092",
    "rebalance": "--topics '.*' --brokers -1 --bootstrap-servers kafka1:9092",
    "scale": "--topics '.*' --brokers -1,1007,1008 --bootstrap-servers kafka1:9092",
    "decommission": "1002 --bootstrap-servers kafka1:9092 --execute --admin-addr 10.0.0.1:8090",
    "relieve": "1002 --to 80 --bootstrap-servers kafka1:9092",
    "uncordon": "1002 --bootstrap-servers kafka1:9092",
    "export": "cluster.json --bootstrap-servers kafka1:9092",
    "apply": "pools.toml --check --bootstrap-servers kafka1:9092",
    "pools": "fit orders --pools pools.toml --bootstrap-servers kafka1:9092",
    "capacity": "--bytes-in 200MB/s --fan-out 3 --retention 24 --instances instances.csv",
    "forecast": "--history history --pools pools.toml",
    "tag": "--datadog --pools pools.toml --dry-run",
}

_ARGUMENTS = {
    "export": "FILE ",
    "apply": "FILE ",
    "pools": "ACTION ",
    "decommission": "BROKERS ",
    "relieve": "BROKER ",
    "uncordon": "BROKERS ",
}


@program
def main(words: list[str]) -> int:
    """Run one command; return the exit status."""
    command, *arguments = _without_old_spelling(words) or ["help"]
    if command in ("version", "--version", "-version"):
        print(__version__)
        return 0
    if command in ("help", "--help", "-help", "-h"):
        print(_usage())
        return 0
    if command not in flags.COMMAND_OPTIONS:
        print(f"unknown command {command!r}{suggestion('topicmappr', command)}\n\n{_usage()}", file=sys.stderr)
        return EXIT_USAGE
    return _run(command, arguments)


def _without_old_spelling(arguments: list[str]) -> list[str]:
    """Return the new form of the arguments, and print it if they have the form of early versions."""
    for number, word in enumerate(arguments):
        name, equals, text = word.partition("=")
        if name in ("--rebuild-topics", "-rebuild-topics"):
            others = [*arguments[number + 1 :], *arguments[:number]]  # the value may be the next word
            new = ["rebuild", f"--topics{equals}{text}", *(other for other in others if other != "rebuild")]
            print(f"{name} is an old spelling. The new form: topicmappr {' '.join(new)}", file=sys.stderr)
            return new
    return arguments


def _run(command: str, arguments: Sequence[str]) -> int:
    """Run a command with its options and its words, or print its help text."""
    kind = flags.COMMAND_OPTIONS[command]
    most_words = _MOST_TOPICS + 1 if command == "pools" else int(command in _ARGUMENTS)
    # Datadog's variables are known, although only one command uses them.
    foreign = frozenset() if issubclass(kind, flags.DatadogOptions) else flags.DATADOG_VARIABLES
    environ = {name: text for name, text in os.environ.items() if name not in foreign}
    options, warnings, words = parse_command(
        kind, arguments, environ, flags.PREFIX, flags.IN_ENVIRONMENT, flags.cluster_defaults, most_words
    )
    for warning in warnings:
        print(warning, file=sys.stderr)
    if options is None:
        print(_help(command))
        return 0
    return _COMMANDS[command](options, *words) or 0


def _rebuild(options: flags.RebuildCommandOptions) -> int:
    replicas = parse_reassignment(options.map_string) if options.map_string else {}
    rules = plan_options(placement.RebuildOptions, options, replicas=replicas)
    if rules.strategy is placement.Strategy.STORAGE and not rules.use_metadata:
        raise Invalid("--placement=storage requires --use-meta=true")
    return _finish(options, _planned(options, rules))


def _rebalance(options: flags.RebalanceCommandOptions) -> int:
    return _finish(options, _planned(options, plan_options(placement.RebalanceOptions, options)))


def _scale(options: flags.ScaleCommandOptions) -> int:
    return _finish(options, _planned(options, plan_options(placement.ScaleOptions, options)))


def _planned(options: flags.PlanningOptions, rules: placement.PlanOptions) -> PlacementResult:
    """Read the cluster if the plan needs it, and return the plan."""
    check_options(rules, flag)
    cluster = None
    is_map_alone = isinstance(rules, placement.RebuildOptions) and rules.replicas and not rules.use_metadata
    if not is_map_alone or options.cluster_file:
        cluster = read_cluster(options, needs_storage(rules) is not False, options.metrics_age)
    return plan_placement(rules, cluster, compile_pattern, flag)


def _export(options: flags.ClusterOptions, path: str = "") -> None:
    if not path:
        raise InvalidConfiguration(["export has no file. Fix: topicmappr export cluster.json"])
    cluster = read_cluster(options, with_metrics=True)
    try:
        write_text(Path(path), format_cluster(cluster))
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}; name another file") from None
    print(f"{len(cluster.brokers)} brokers and {len(cluster.partitions)} partitions written to {path}")


def _apply(options: flags.ApplyOptions, path: str = "") -> int:
    if not path:
        raise InvalidConfiguration(["apply has no file. Fix: topicmappr apply pools.toml"])
    if options.check and options.execute:
        raise InvalidConfiguration(["--check changes nothing, and --execute does. Fix: leave one out"])
    pools, source = read_pools(path)
    with_metrics = pools.need_storage or options.metrics_source is flags.MetricsSource.KAFKA
    cluster = read_cluster(options, with_metrics, options.metrics_age)
    plans = pool_plans(
        pools,
        members_of(pools, source, cluster),
        cluster.partitions,
        cluster.brokers,
        repair_lost=options.repair_lost,
        allow_fewer_racks=options.allow_fewer_racks,
    )
    difference = pools_difference(plans)
    files = () if options.check or options.dry_run else topic_pools.map_files_of(plans)
    write_files(options.out_path, files)
    value = {**plan_report.difference_value(difference), "files": _paths(options, files)}
    _show(options.json, value, plan_report.difference_report(difference))
    if not (options.json or options.check or options.dry_run):
        print(files_block(options.out_path, files))
    if options.check:
        return EXIT_DRIFT if plans.has_drift else 0
    status = submit(options, plans.changed) if options.execute else 0
    return EXIT_FAILED if plans.is_refused else status


def _pools(options: flags.PoolsOptions, action: str = "", *topics: str) -> None:
    if action not in _POOL_ACTIONS or bool(topics) != (action == "fit"):
        raise InvalidConfiguration([f"pools needs one of {', '.join(_POOL_ACTIONS)}. Fix: topicmappr pools status"])
    _POOL_ACTIONS[action](options, topics)


def _print_schema(options: flags.PoolsOptions, topics: Sequence[str]) -> None:
    print(json.dumps(schema(), indent=2))


def _print_derived_pools(options: flags.PoolsOptions, topics: Sequence[str]) -> None:
    print(format_pools(topic_pools.derived_pools(read_cluster(options, with_metrics=False))), end="")


def _print_status(options: flags.PoolsOptions, topics: Sequence[str]) -> None:
    state, in_use = _pools_state(options)
    forecasts = limit_forecasts(read_history(options), 1.0, in_use) if options.history else ()
    statuses = pool_statuses(state, forecasts)
    _show(options.json, plan_report.status_values(statuses), plan_report.status_report(statuses))


def _print_fit(options: flags.PoolsOptions, topics: Sequence[str]) -> None:
    new = []
    if options.bytes_in:
        if not options.retention:
            raise InvalidConfiguration(["retention is not given, and --bytes-in is. Fix: --retention=24 (hours)"])
        load = options.bytes_in, options.retention, options.replication, options.fan_out
        new = [topic_pools.new_topic(topic, *load) for topic in topics]
    state, _ = _pools_state(options)
    uses = topic_pools.fitting_pools(state, () if new else topics, new)
    value = {topic: {name: use.ratio for name, use in pools.items()} for topic, pools in uses.items()}
    _show(options.json, value, topic_pools.fit_report(uses, state.offers))


def _print_packing(options: flags.PoolsOptions, topics: Sequence[str]) -> None:
    state, _ = _pools_state(options)
    value = topic_pools.packing_value(state, topic_pools.packed(state, options.new_pools))
    _show(options.json, value, topic_pools.packing_report(value))


def _pools_state(options: flags.PoolsOptions) -> tuple[PoolsState, PoolsInUse]:
    pools, source = read_pools(options.pools)
    if options.sample:
        cluster, rates, _ = measured_cluster(options, options.sample)
    else:
        cluster, rates = read_cluster(options, with_metrics=True), {}
    members = members_of(pools, source, cluster)
    state = pools_state(pools, members, cluster.partitions, cluster.storage_totals, rates)
    return state, PoolsInUse(pools, members, cluster.replication)


_POOL_ACTIONS: Mapping[str, Callable[[flags.PoolsOptions, Sequence[str]], None]] = {
    "export": _print_derived_pools,
    "status": _print_status,
    "fit": _print_fit,
    "pack": _print_packing,
    "schema": _print_schema,
}


def _forecast(options: flags.ForecastOptions) -> None:
    samples, in_use = read_history(options), None
    if options.pools:
        pools, source = read_pools(options.pools)
        cluster = read_cluster(options, with_metrics=False)
        in_use = PoolsInUse(pools, members_of(pools, source, cluster), cluster.replication)
    forecasts = list(limit_forecasts(samples, options.storage_share, in_use))
    if options.prom_file:
        write_metrics(options.prom_file, options.cluster_name, forecasts, datetime.now(UTC))
    _show(options.json, plan_report.forecast_values(forecasts), plan_report.forecast_report(forecasts))


def _capacity(options: flags.CapacityOptions) -> None:
    if not options.instances:
        raise InvalidConfiguration(["instances is not given. Fix: --instances=instances.csv"])
    instances = read_instances(options.instances)
    notes: tuple[str, ...] = ()
    if options.from_cluster:
        options, notes = measured_options(options)
    plan = plan_capacity(options, workload_of(options), instances)
    plan = replace(plan, notes=(*notes, *plan.notes))
    _show(options.json, plan_report.capacity_value(plan), plan_report.capacity_report(plan))


def _tag(options: flags.TagOptions) -> int:
    if not options.datadog:
        raise InvalidConfiguration(["tag has no destination. Fix: topicmappr tag --datadog"])
    pools = read_pools(options.pools) if options.pools else None
    with open_host_tags(options) as host_tags:
        cluster = read_cluster(options, options.metrics_source is flags.MetricsSource.KAFKA)
        brokers = members_of(*pools, cluster).brokers if pools else {}
        tags = broker_tags(cluster.partitions, brokers, options.most_topics)
        hosts = hosts_of_brokers(host_tags.fetch_tags(READ_TIMEOUT), options.broker_id_tag, options.host_tags)
        result, problems = taggings(tags, hosts, host_tags.fetch_own_tags(READ_TIMEOUT))
        require_hosts(result, problems)
        changed = {tagging.host: tagging.tags.tags for tagging in result if tagging.is_changed}
        refused = {} if options.dry_run else host_tags.replace_own_tags(changed, READ_TIMEOUT)
    _show(options.json, tagging_value(result, problems, refused), tagging_report(result, problems, refused))
    return EXIT_FAILED if refused else 0


def _decommission(options: flags.DecommissionCommandOptions, word: str = "") -> int:
    leaving = _broker_ids("decommission", word)
    if not options.execute or options.dry_run:
        return _finish(options, _drain_plan(options, leaving))
    with open_cordons(options) as cordons, ExitStack() as undo:
        cordoned = cordons.cordon(leaving)
        print(f"Cordoned: {_listed(cordoned)}", flush=True)
        undo.callback(lambda: print(f"Uncordoned: {_listed(cordons.uncordon(cordoned))}"))
        result = _drain_plan(options, leaving)
        if _is_refused(options, result):
            return _finish(options, result)
        try:
            status = _finish(options, result)
        except Unavailable:
            undo.pop_all()
            print(
                "The submission may have been accepted, so the brokers stay cordoned. Repeat the command, or uncordon"
            )
            raise
        undo.pop_all()
        return status


def _drain_plan(options: flags.DecommissionCommandOptions, leaving: Sequence[int]) -> PlacementResult:
    scope = placement.PlanScope(options.topics or (".*",), options.topics_exclude, options.brokers)
    return _planned(options, plan_options(placement.DecommissionOptions, options, scope=scope, leaving=tuple(leaving)))


def _relieve(options: flags.RelieveCommandOptions, word: str = "") -> int:
    brokers = _broker_ids("relieve", word)
    if len(brokers) > 1:
        raise InvalidConfiguration(["relieve takes one broker. Fix: relieve one after the other"])
    growth: Mapping[TopicPartitionKey, float] = {}
    if options.sample:
        cluster, growth, _ = measured_cluster(options, options.sample)
    else:
        cluster = read_cluster(options, with_metrics=True, max_age=options.metrics_age)
    scope = placement.PlanScope(options.topics or (".*",), options.topics_exclude, options.brokers)
    rules = plan_options(placement.ReliefOptions, options, scope=scope, broker=brokers[0], growth=growth)
    return _finish(options, plan_placement(rules, cluster, compile_pattern, flag))


def _uncordon(options: flags.ClusterOptions, word: str = "") -> None:
    brokers = _broker_ids("uncordon", word)
    with open_cordons(options) as cordons:
        print(f"Uncordoned: {_listed(cordons.uncordon(brokers))}")


def _broker_ids(command: str, word: str) -> tuple[int, ...]:
    """Return the brokers that the argument of a command names."""
    try:
        return tuple(map(parse_broker_id, word.split(",")))
    except Invalid:
        raise InvalidConfiguration([f"{command} has no broker id. Fix: topicmappr {command} 1002"]) from None


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _finish(options: flags.PlanningOptions, result: PlacementResult) -> int:
    """Print a plan, write its files and submit it, unless warnings prevent that."""
    refused = _is_refused(options, result)
    has_no_ops = isinstance(options, flags.RebuildCommandOptions) and not options.skip_no_ops
    maps = result.steps if has_no_ops else result.changes
    files = () if refused or options.dry_run else map_files(maps, options.out_file)
    if not options.json:
        explained = options.explain or getattr(options, "verbose", False)
        print(report(result, explained, changed_only=not has_no_ops and not explained))
    write_files(options.out_path, files)
    if options.json:
        print(json.dumps(result_value(result, _paths(options, files), options.explain), indent=2))
    elif not refused and not options.dry_run:
        print(files_block(options.out_path, files))
    if refused:
        print(_refusal(options, result), file=sys.stderr)
        return EXIT_FAILED
    if not options.execute:
        return 0
    if len(maps) > 1:
        raise Invalid(
            f"the plan has {len(maps)} maps, and each must end before the next one starts. Fix: leave out "
            "--execute, and submit one file after the other with `throttlectl reassign FILE`"
        )
    return submit(options, without_no_ops(result.plan.old_map, result.plan.new_map))


def _paths(options: flags.OutputOptions, files: Sequence[MapFile]) -> list[str]:
    return [str(Path(options.out_path or ".") / file.name) for file in files]


def _show(as_json: bool, value: object, text: str) -> None:
    print(json.dumps(value, indent=2) if as_json else text)


def _is_refused(options: flags.PlanningOptions, result: PlacementResult) -> bool:
    return bool(result.plan.refusals) or (result.needs_consent and not options.ignore_warns)


def _refusal(options: flags.PlanningOptions, result: PlacementResult) -> str:
    """Return that no map is written, and the fix; the report has the reasons, a line each."""
    if not result.plan.refusals:
        return "Warnings encountered, partition map not created. Override with --ignore-warns."
    place = "`refusals`" if options.json else "WARN"
    return (
        f"The plan is refused, for the reasons in {place}. Partition map not created; --ignore-warns does not change "
        "that. Fix: list other brokers, give a smaller --replication, or for racks --min-rack-ids or "
        "--allow-fewer-racks"
    )


_COMMANDS: Mapping[str, Callable[..., int | None]] = {
    "rebuild": _rebuild,
    "rebalance": _rebalance,
    "scale": _scale,
    "decommission": _decommission,
    "relieve": _relieve,
    "uncordon": _uncordon,
    "export": _export,
    "apply": _apply,
    "pools": _pools,
    "capacity": _capacity,
    "forecast": _forecast,
    "tag": _tag,
}
"""Command -> the function that runs it with its options and its words; it returns the exit status."""


def _usage() -> str:
    purpose = "Plans where the replicas of Kafka's partitions go, and moves as little data as possible."
    return program_help("topicmappr", purpose, _PURPOSES, f"rebuild {_EXAMPLES['rebuild']}")


def _help(command: str) -> str:
    options = described(declared_options(flags.COMMAND_OPTIONS[command], flags.PREFIX).values())
    return command_help(
        f"topicmappr {command}",
        f"{_ARGUMENTS.get(command, '')}[options]",
        _PURPOSES[command],
        options,
        _EXAMPLES[command],
    )


if __name__ == "__main__":
    sys.exit(main())
