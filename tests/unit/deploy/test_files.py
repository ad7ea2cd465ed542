"""The compose file, the configuration of two hosts and the systemd unit."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import shutil
import subprocess
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import pytest
import yaml

from autothrottle.runtime.command_line import COMMANDS
from autothrottle.runtime.configuration import StateStore
from autothrottle.runtime.configuration_reader import parse
from autothrottle.scorer.command import NOTHING_NEW
from autothrottle.scorer.command import make_parser as make_score_parser
from autothrottle.scorer.compaction import make_parser as make_compact_parser
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.pages import commands
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}


def test_replicas_of_the_compose_file_start_and_reach_each_other() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    replicas = {name: service for name, service in services.items() if name.startswith("autothrottle")}
    assert len(replicas) == 2
    for name, service in replicas.items():
        command, *flags = service["command"]
        assert command == "run" and service["read_only"]
        configuration = parse(flags, service["environment"], used=COMMANDS["run"].options)
        assert configuration.advertise.partition(":")[0] == name
        assert set(configuration.api_hosts) == replicas.keys()
        assert {address.partition(":")[0] for address in configuration.bootstrap_servers} <= services.keys()
        assert configuration.state_store is StateStore.KAFKA and configuration.metrics_source == "kafka"


def test_the_kafka_user_of_strimzi_has_the_acls_of_the_page() -> None:
    user = yaml.safe_load((DEPLOY / "kafka-user.yaml").read_text("utf-8"))
    assert (user["kind"], user["spec"]["authorization"]["type"]) == ("KafkaUser", "simple")
    acls: dict[str, set[str]] = {}
    for acl in user["spec"]["authorization"]["acls"]:
        resource = acl["resource"]
        assert resource == {"type": "cluster"} or resource.pop("patternType") == "literal"
        acls[" ".join(resource.values())] = {*acl["operations"]}
    granted: dict[str, set[str]] = {}
    for words in commands("kafka-acls.sh", page="docs/security.md"):
        if "--add" in words:
            kind = next(kind for kind in ("cluster", "topic", "group") if f"--{kind}" in words)
            name = [] if kind == "cluster" else [words[words.index(f"--{kind}") + 1]]
            operations = {value for word, value in pairwise(words) if word == "--operation"}
            granted[" ".join([kind, *name])] = operations
            assert words[words.index("--allow-principal") + 1] == f"User:{user['metadata']['name']}"
    assert acls == granted


def test_the_compose_file_names_the_tested_release_of_kafka() -> None:
    """It named Kafka 4.1.0, which no test has run."""
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    release = services["kafka"]["image"].partition(":-apache/kafka:")[2].removesuffix("}")
    assert release == inspect.signature(KraftCluster).parameters["version"].default


def test_prometheus_and_grafana_of_the_compose_file_find_the_replicas_and_the_dashboard() -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    services, contents = compose["services"], {n: yaml.safe_load(c["content"]) for n, c in compose["configs"].items()}
    mounted = [config["source"] for service in services.values() for config in service.get("configs", ())]
    assert {*mounted} == contents.keys()
    (scrape,) = contents["prometheus"]["scrape_configs"]
    replicas = {name: service for name, service in services.items() if name.startswith("autothrottle")}
    for target in (target for config in scrape["static_configs"] for target in config["targets"]):
        name, _, port = target.partition(":")
        configuration = parse(
            replicas[name]["command"][1:], replicas[name]["environment"], used=COMMANDS["run"].options
        )
        assert configuration.api_listen == f"0.0.0.0:{port}"
    (source,) = contents["datasources"]["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["type"] == "prometheus"
    (provider,) = contents["dashboards"]["providers"]
    directory, _, inside = services["grafana"]["volumes"][0].removesuffix(":ro").partition(":")
    assert inside == provider["options"]["path"]
    assert [path.suffix for path in (DEPLOY / directory).iterdir()] == [".json"]


def test_configuration_of_two_hosts_listens_for_the_other_one_over_tls() -> None:
    path = str(DEPLOY / "autothrottle-ha.toml")
    configuration = parse(["--config", path], KEYS, used=COMMANDS["run"].options)
    assert configuration.warnings == ()
    assert configuration.tls and configuration.certificate_roles and not configuration.insecure_listen
    assert configuration.grpc_listen.startswith("0.0.0.0:") and configuration.advertise
    assert configuration.state_store is StateStore.KAFKA


def test_every_image_of_the_compose_file_can_be_replaced_by_one_with_a_digest() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    for service in services.values():
        assert re.fullmatch(r"\$\{([A-Z]+_)?IMAGE:-[a-z/]+:[0-9a-z.]+\}", service["image"])


def test_the_image_of_the_score_has_the_tested_spark() -> None:
    """The chart's nightly score needed an image that deploy/ did not build."""
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    pinned = (DEPLOY / "requirements-score.txt").read_text("utf-8")
    assert all(f"\n{name}=={version(name)} " in pinned for name in ("pyarrow", "pyspark"))
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", dockerfile, re.MULTILINE)
    assert ("debian:bookworm-slim", "score") in stages and stages[-1][1] == "", "the last stage is the default image"
    values = yaml.safe_load((DEPLOY / "helm/autothrottle/values.yaml").read_text("utf-8"))
    assert f"--target score -t {values['score']['image']} ." in dockerfile


def test_the_spark_application_scores_the_locations_of_the_chart() -> None:
    application = yaml.safe_load((DEPLOY / "spark-application.yaml").read_text("utf-8"))
    values = yaml.safe_load((DEPLOY / "helm/autothrottle/values.yaml").read_text("utf-8"))
    spec = application["spec"]["template"]
    assert spec["sparkVersion"] == version("pyspark")
    arguments = make_score_parser().parse_args(spec["arguments"])
    assert (arguments.decisions, arguments.out) == (values["score"]["decisions"], values["score"]["out"])
    script = ROOT / "services" / spec["mainApplicationFile"].partition("/site-packages/")[2]
    assert script.is_file() and script.name == "__main__.py"


def test_the_dag_compacts_then_scores_and_skips_where_nothing_is_new() -> None:
    tree = ast.parse((DEPLOY / "airflow_dag.py").read_text("utf-8"))
    operators = [node for node in ast.walk(tree) if _is_call(node, "BashOperator")]
    tasks = {_keyword(node, "task_id"): node for node in operators}
    for name, parser in (("compact", make_compact_parser()), ("score", make_score_parser())):
        program, command, *flags = shlex.split(str(_keyword(tasks[name], "bash_command")))
        assert (program, command) == ("autothrottle", name)
        assert parser.parse_args(flags).decisions
    assert _keyword(tasks["score"], "skip_on_exit_code") == NOTHING_NEW


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _keyword(node: ast.AST, name: str) -> object:
    assert isinstance(node, ast.Call)
    (value,) = [keyword.value for keyword in node.keywords if keyword.arg == name]
    return ast.literal_eval(value)


def test_the_unit_limits_memory_and_threads() -> None:
    lines = (DEPLOY / "autothrottle.service").read_text("utf-8").splitlines()
    limits = {line.partition("=")[0] for line in lines}
    assert {"MemoryMax", "TasksMax"} <= limits


def test_pages_install_packages_only_by_their_hashes() -> None:
    """Two pages installed whatever the package index served for the extras of the service."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    lines = [line.strip() for page in pages for line in page.read_text("utf-8").splitlines() if "pip install" in line]
    assert len(lines) >= 4
    assert [line for line in lines if not re.search(r"--require-hashes -r |--no-index --no-deps", line)] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_rates_the_exposure_of_the_unit_at_most_3() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(DEPLOY / "autothrottle.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
