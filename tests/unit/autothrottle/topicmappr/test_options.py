"""Names of options, and defaults that follow from other options."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from autothrottle.core.placement.plan import (
    DecommissionOptions,
    PlanOptions,
    PlanScope,
    RebalanceOptions,
    RebuildOptions,
    ReliefOptions,
    ScaleOptions,
)
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse_command
from autothrottle.topicmappr import metricsfetcher, sources
from autothrottle.topicmappr.command_line import main
from autothrottle.topicmappr.options import (
    COMMAND_OPTIONS,
    FETCHER_PREFIX,
    IN_ENVIRONMENT,
    PREFIX,
    ClusterOptions,
    FetcherOptions,
    FetchSource,
    MetricsSource,
    OutputOptions,
    RelieveCommandOptions,
    cluster_defaults,
    fetcher_defaults,
)
from autothrottle_client.plan_options import FLAGS, plan_options
from autothrottle_lab.servers.processes import free_ports

pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")

SERVERS = ["--bootstrap-servers=a:1"]


def cluster(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> ClusterOptions:
    options, warnings, _ = parse_command(ClusterOptions, argv, environ or {}, PREFIX, IN_ENVIRONMENT, cluster_defaults)
    assert options and not warnings
    return options


def fetcher(*argv: str) -> FetcherOptions:
    options, warnings, _ = parse_command(FetcherOptions, argv, {}, FETCHER_PREFIX, defaults=fetcher_defaults)
    assert options and not warnings
    return options


@pytest.mark.parametrize(
    ("argv", "source"),
    [
        (SERVERS, MetricsSource.KAFKA),
        ([*SERVERS, "--kafka-backend=admin"], MetricsSource.KAFKA),
        ([*SERVERS, "--kafka-backend=zookeeper"], MetricsSource.ZOOKEEPER),
        ([*SERVERS, "--zk-addr=b:1"], MetricsSource.ZOOKEEPER),
        ([*SERVERS, "--zk-metrics-prefix=b"], MetricsSource.ZOOKEEPER),
        ([*SERVERS, "--zk-addr=b:1", "--metrics-source=kafka"], MetricsSource.KAFKA),
        ([*SERVERS, "--metrics-source=zookeeper"], MetricsSource.ZOOKEEPER),
        (["--kafka-addr=a:1"], MetricsSource.ZOOKEEPER),
        ([], MetricsSource.ZOOKEEPER),
    ],
)
def test_brokers_without_a_zookeeper_mean_kafka_alone(argv: Sequence[str], source: MetricsSource) -> None:
    """On Kafka alone, topicmappr waited 7 s for a ZooKeeper at localhost:2181, and failed."""
    assert cluster(argv).metrics_source is source


def test_both_spellings_and_variables_name_the_same_brokers() -> None:
    for argv in (SERVERS, ["--kafka-addr", "a:1"]):
        assert cluster(argv).bootstrap_servers == ("a:1",)
    for variable in ("TOPICMAPPR_BOOTSTRAP_SERVERS", "TOPICMAPPR_KAFKA_ADDR"):
        assert cluster([], {variable: "a:1"}).bootstrap_servers == ("a:1",)
    both = {"TOPICMAPPR_KAFKA_ADDR": "b:1", "TOPICMAPPR_BOOTSTRAP_SERVERS": "a:1"}
    assert cluster([], both).bootstrap_servers == ("a:1",)
    assert cluster(["--kafka-addr=c:1"], both).bootstrap_servers == ("c:1",)


def test_both_spellings_together_are_refused() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        cluster([*SERVERS, "--kafka-addr=b:1"])
    assert caught.value.problems == (
        "bootstrap-servers: flag --kafka-addr is given twice, also as flag --bootstrap-servers. Fix: give it once",
    )


@pytest.mark.parametrize(
    ("argv", "source", "zookeeper"),
    [
        (["--bootstrap-servers=a:1"], FetchSource.KAFKA, False),
        (["--bootstrap-servers=a:1", "--zk-addr=b:1"], FetchSource.KAFKA, True),
        (["--bootstrap-servers=a:1", "--zk-addr=b:1", "--api-key=k"], FetchSource.DATADOG, True),
        (["--bootstrap-servers=a:1", "--zk-addr=b:1", "--source=kafka"], FetchSource.KAFKA, True),
        (["--bootstrap-servers=a:1", "--zookeeper"], FetchSource.KAFKA, True),
        (["--bootstrap-servers=a:1", "--prometheus-url=http://b:1"], FetchSource.PROMETHEUS, False),
        (["--prometheus-url=http://b:1"], FetchSource.PROMETHEUS, True),
        (["--prometheus-url=http://b:1", "--api-key=k"], FetchSource.DATADOG, True),
        (["--kafka-addr=a:1"], FetchSource.KAFKA, True),
    ],
)
def test_metricsfetcher_follows_the_same_rule(argv: Sequence[str], source: FetchSource, zookeeper: bool) -> None:
    options = fetcher(*argv)
    assert (options.source, options.zookeeper) == (source, zookeeper)


@pytest.mark.parametrize("argv", [["--bootstrap-servers=a:1", "1002"], ["1002", "--bootstrap-servers=a:1"]])
def test_the_argument_of_a_command_may_follow_its_options(argv: Sequence[str]) -> None:
    parsed = parse_command(RelieveCommandOptions, argv, {}, PREFIX, most_words=1)
    assert parsed.options and parsed.words == ["1002"]


def test_metricsfetcher_on_kafka_alone_needs_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert metricsfetcher.main(["--bootstrap-servers=127.0.0.1:1"]) == 2
    assert "Fix: --history=DIR for forecasts, or --zk-addr=zk1:2181" in capsys.readouterr().err


def test_metricsfetcher_without_options_names_the_ways_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    """It asked Datadog with an empty key, and said that the key is invalid."""
    assert metricsfetcher.main([]) == 2
    assert metricsfetcher.WAYS_TO_START in capsys.readouterr().err
    for line in metricsfetcher.WAYS_TO_START.splitlines():
        if line.strip().startswith("--"):
            fetcher(*line.split())
    assert metricsfetcher.main(["--api-key=k"]) == 2
    assert "app-key is not given, and Datadog needs both keys. Fix: the variable METRICSFETCHER_APP_KEY" in (
        capsys.readouterr().err
    )


def test_an_absent_default_zookeeper_fails_at_once_with_the_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(sources, "DEFAULT_ZOOKEEPER", (f"localhost:{port}",))
    monkeypatch.setenv("TOPICMAPPR_ZK_ADDR", f"localhost:{port}")
    start = time.monotonic()
    assert main(["export", str(tmp_path / "x"), "--kafka-backend=zookeeper"]) == 1
    assert time.monotonic() - start < 2
    error = capsys.readouterr().err
    assert error.startswith(f"no ZooKeeper listens at localhost:{port}, the default of --zk-addr")
    assert "Fix: on Kafka alone --bootstrap-servers=kafka1:9092" in error


@pytest.mark.parametrize(
    ("command", "kind", "others"),
    [
        ("rebuild", RebuildOptions, {"map_string", "skip_no_ops"}),
        ("rebalance", RebalanceOptions, {"verbose"}),
        ("scale", ScaleOptions, {"verbose"}),
        ("decommission", DecommissionOptions, set()),
        ("relieve", ReliefOptions, {"sample"}),
    ],
)
def test_each_flag_of_a_plan_is_an_option_of_its_operation(
    command: str, kind: type[PlanOptions], others: set[str]
) -> None:
    """Options are read by the names of their flags, so a renamed flag would be without effect and without a word."""
    flags = {each.name for each in fields(COMMAND_OPTIONS[command])} - {each.name for each in fields(OutputOptions)}
    names = [each.name for options in (kind, PlanScope) for each in fields(options)]
    assert flags - others - {"metrics_age"} <= {FLAGS.get(name, name) for name in names}


def test_flags_of_a_plan_reach_its_operation() -> None:
    flags = ["--topics=a,b", "--topics-exclude=c", "--brokers=-1,7", "--chunk-step-size=2", "--force-rebuild"]
    parsed, _, _ = parse_command(COMMAND_OPTIONS["rebuild"], flags, {}, PREFIX)
    scope = PlanScope(("a", "b"), ("c",), (-1, 7))
    assert plan_options(RebuildOptions, parsed) == RebuildOptions(force=True, scope=scope, brokers_per_step=2)
