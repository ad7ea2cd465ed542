"""The Helm chart, rendered by helm: its resources are valid, and autothrottle accepts its options and probes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from autothrottle.runtime.command_line import COMMANDS
from autothrottle.runtime.configuration import Configuration, KafkaBackend, StateStore
from autothrottle.runtime.configuration_reader import parse
from tests.pages import code
from tests.quality.deployment import CHART, NO_HELM, find_helm, render, validate

pytestmark = pytest.mark.skipif(find_helm() is None, reason=NO_HELM)

DEFAULTS: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
PEER = {"podSelector": {"matchLabels": {"app": "anna"}}}
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
CONFIG: Mapping[str, Any] = {
    "zk-addr": ["zk1:2181", "zk2:2181"],
    "decisions": "s3://bucket/decisions",
    "interval": 30,
    "max-rate": 72.5,
    "pause-over-capacity": True,
    "cap-map": {"d2.2xlarge": 120, "d2.4xlarge": {"tx": 240, "rx": 200}},
    "net-tx-query": "avg:net.sent{service:kafka,!env:<test>} by {host}",
}
TLS: Mapping[str, Any] = {
    "secretName": "other",
    "serverName": "a.example",
    "certificateRoles": {"anna": "operator"},
}
RESOURCES = {"requests": {"cpu": "1"}}
CHANGES: Mapping[str, Any] = {
    "replicas": 3,
    "image.repository": "registry.example/autothrottle",
    "image.tag": "1",
    "image.digest": DIGEST,
    "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "config": CONFIG,
    "credentials.existingSecret": "datadog",
    "credentials.data": {"AUTOTHROTTLE_API_KEY": "a", "AUTOTHROTTLE_APP_KEY": "b"},
    **{f"tls.{name}": value for name, value in TLS.items()},
    "insecureListen": True,
    "tokens.secretName": "tokens",
    "tokens.key": "callers",
    "kafkaClient.secretName": "client",
    "kafkaClient.key": "kafka.properties",
    "spool.persistent": True,
    "spool.size": "5Gi",
    "spool.storageClassName": "fast",
    "resources": RESOURCES,
    "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4317"}],
    "extraVolumes": [{"name": "kafka-ca", "secret": {"secretName": "kafka-ca"}}],
    "extraVolumeMounts": [{"name": "kafka-ca", "mountPath": "/etc/kafka-ca"}],
    "podAnnotations": {"note": "a"},
    "podLabels": {"team": "kafka"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "ops", "operator": "Exists"}],
    "priorityClassName": "high",
    "antiAffinity": "required",
    "podDisruptionBudget.enabled": False,
    "podDisruptionBudget.maxUnavailable": 2,
    "service.type": "LoadBalancer",
    "service.annotations": {"internal": "yes"},
    "networkPolicy.enabled": False,
    "networkPolicy.httpNamespaces": ["monitoring"],
    "networkPolicy.grpcNamespaces": ["ops"],
    "networkPolicy.egress.enabled": False,
    **{
        f"networkPolicy.egress.{name}.{key}": value
        for name in ("dns", "zookeeper", "kafka", "metricsSource", "otlp", "objectStore")
        for key, value in (("ports", [4317]), ("to", [PEER]))
    },
    "networkPolicy.egress.rules": [{"to": [PEER]}],
    "networkPolicy.http": [PEER],
    "networkPolicy.grpc": [PEER],
    "serviceMonitor.enabled": True,
    "serviceMonitor.interval": "10s",
    "serviceMonitor.labels": {"release": "p"},
    "serviceMonitor.endpoint": {"honorLabels": True},
    "zookeeper.enabled": True,
    "zookeeper.image": f"registry.example/zookeeper:3.9@{DIGEST}",
    "zookeeper.size": "2Gi",
    "zookeeper.storageClassName": "fast",
    "zookeeper.resources": RESOURCES,
    "score.enabled": True,
    "score.image": f"registry.example/score@{DIGEST}",
    "score.schedule": "0 1 * * *",
    "score.decisions": "s3://other/decisions",
    "score.out": "s3://other/scores",
    "score.existingClaim": "scores",
    "score.existingSecret": "store",
    "score.resources": RESOURCES,
}
"""Path of a value -> another value than its default."""

COMPANIONS: Mapping[str, str] = {
    "tokens.key": "tokens.secretName",
    "kafkaClient.key": "kafkaClient.secretName",
    "spool.storageClassName": "spool.persistent",
    **{f"networkPolicy.egress.{name}.to": f"networkPolicy.egress.{name}.ports" for name in ("otlp", "zookeeper")},
    **{name: f"{name.partition('.')[0]}.enabled" for name in CHANGES if re.match(r"(serviceM|zoo|score).*\.", name)},
}
"""Value -> the value that must change, too, so that it has an effect."""


def nested(*names: str) -> dict[str, Any]:
    """Return the changed values with these paths, as helm reads them."""
    found: dict[str, Any] = {}
    for name in names:
        *parents, last = name.split(".")
        inner = found
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = CHANGES[name]
    return found


@cache
def rendered(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the resources with these values changed."""
    return render(nested(*names))


def paths(values: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the paths of all values; maps of the user's own keys are values."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in ("config", "resources"):
            yield from paths(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}"


def of_kind(resources: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [resource for resource in resources if resource["kind"] == kind]


def pod(resources: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(resources, "StatefulSet")[0]["spec"]["template"]["spec"]
    return spec


def options(
    resources: list[dict[str, Any]], directory: Path, secret: Mapping[str, str] = MappingProxyType({})
) -> Configuration:
    """Parse the container's arguments, with the file of the ConfigMap in the place of the mounted one."""
    container = pod(resources)["containers"][0]
    mounted = "/etc/autothrottle/autothrottle.toml"
    assert mounted in [mount["mountPath"] for mount in container["volumeMounts"]]
    command, *flags = container["args"]
    assert command == "run"
    file = directory / "autothrottle.toml"
    file.write_text(of_kind(resources, "ConfigMap")[0]["data"]["autothrottle.toml"], "utf-8")
    names = {variable["name"]: variable.get("value", "autothrottle-0") for variable in container["env"]}
    variables = {n: value.replace("$(POD_NAME)", names["POD_NAME"]) for n, value in names.items()}
    given = [str(file) if flag == mounted else flag for flag in flags]
    return parse(given, {**variables, **secret}, used=COMMANDS["run"].options)


def test_every_value_is_changed_in_a_test() -> None:
    assert CHANGES.keys() == {*paths(DEFAULTS)}


def test_resources_of_the_defaults_are_valid_and_their_options_accepted(tmp_path: Path) -> None:
    resources = render({})
    validate(resources)
    configuration = options(resources, tmp_path)
    assert not configuration.insecure_listen
    assert configuration.state_store is StateStore.KAFKA


@pytest.mark.parametrize("values", [{"config": {"zk-addr": ["zk1:2181"]}}, {"zookeeper": {"enabled": True}}])
def test_a_zookeeper_in_the_values_holds_the_state(values: Mapping[str, Any], tmp_path: Path) -> None:
    configuration = options(render(values, "--is-upgrade"), tmp_path)
    assert configuration.state_store is StateStore.ZOOKEEPER
    assert configuration.kafka_backend is KafkaBackend.ADMIN


def test_an_upgrade_does_not_leave_the_state_behind() -> None:
    """The chart's default was a ZooKeeper. An upgrade would have begun an empty ledger in Kafka."""
    with pytest.raises(ValueError, match="no state store is named"):
        render({}, "--is-upgrade")
    named = {"config": {"state-store": "kafka"}}
    assert render(named, "--is-upgrade") == render(named)


@pytest.mark.parametrize("name", CHANGES)
def test_every_value_has_an_effect_and_resources_stay_valid(name: str, tmp_path: Path) -> None:
    companion = tuple({COMPANIONS.get(name, name)} - {name})
    without_tls: dict[str, Any] = {"tls": {"secretName": ""}} if name == "insecureListen" else {}
    resources = render({**without_tls, **nested(name, *companion)})
    validate(resources)
    assert options(resources, tmp_path).insecure_listen is (name == "insecureListen")
    if not without_tls:  # without TLS, the chart refuses the default
        assert resources != rendered(companion)


def test_values_of_the_page_are_accepted(tmp_path: Path) -> None:
    (text,) = code("yaml", "docs/kubernetes.md")
    resources = render(yaml.safe_load(text))
    validate(resources)
    keys = CHANGES["credentials.data"]
    assert options(resources, tmp_path, keys).metrics_source == "datadog"


def test_pods_call_one_another_by_their_dns_names_over_mutual_tls(tmp_path: Path) -> None:
    resources = render({"tls": TLS})
    configuration = options(resources, tmp_path)
    services = {service["metadata"]["name"] for service in of_kind(resources, "Service")}
    assert of_kind(resources, "StatefulSet")[0]["spec"]["serviceName"] == "autothrottle-pods" in services
    assert configuration.advertise.partition(":")[0] == "autothrottle-0.autothrottle-pods.kafka.svc"
    assert configuration.tls and configuration.tls_server_name == "a.example"
    assert configuration.certificate_roles


def test_options_reach_the_file_in_their_units(tmp_path: Path) -> None:
    configuration = options(render({"config": CONFIG}), tmp_path)
    assert configuration.interval.total_seconds() == 30
    assert configuration.max_tx_rate == 0.725
    assert configuration.pause_over_capacity
    assert configuration.capacities.by_instance_type["d2.4xlarge"].inbound == 200_000_000
    assert configuration.net_tx_query == CONFIG["net-tx-query"]
    assert configuration.decisions_spool == "/var/lib/autothrottle/spool"


def test_listening_without_credentials_needs_a_value_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="insecureListen=true"):
        render({"tls": {"secretName": ""}})
    resources = render({"tls": {"secretName": ""}, "insecureListen": True})
    assert options(resources, tmp_path).insecure_listen
    assert pod(resources)["containers"][0]["livenessProbe"]["httpGet"]["scheme"] == "HTTP"


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 3},
        {"replicas": 0},
        {"config": {"api-key": "secret"}},
        {"image": {"digest": "sha256:abc"}},
        {"image": {"repository": f"registry.example/autothrottle@{DIGEST}"}},
        {"zookeeper": {"image": "zookeeper@3.9"}},
        {"networkPolicy": {"http": [{}]}},
        {"networkPolicy": {"httpNamespaces": ["Monitoring"]}},
        {"networkPolicy": {"egress": {"kafka": {"ports": [0]}}}},
    ],
)
def test_the_schema_refuses_unknown_and_unsafe_values(values: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications"):
        render(values)


@pytest.mark.parametrize("values", [{}, {"zookeeper": {"enabled": True}, "score": {"enabled": True}}])
def test_containers_have_a_read_only_root_no_privileges_and_a_writable_tmp(values: Mapping[str, Any]) -> None:
    resources = render(values)
    templates = [stateful["spec"]["template"] for stateful in of_kind(resources, "StatefulSet")]
    templates += [job["spec"]["jobTemplate"]["spec"]["template"] for job in of_kind(resources, "CronJob")]
    assert len(templates) == 1 + len(values)
    for spec in (template["spec"] for template in templates):
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_the_page_reads_the_volume_that_the_nightly_score_writes_to(tmp_path: Path) -> None:
    """The job wrote to an object store, and the page reads a directory: no values showed the past recoveries."""
    resources = render({"score": {"enabled": True, "existingClaim": "scores"}})
    (job,) = (cron["spec"]["jobTemplate"]["spec"]["template"]["spec"] for cron in of_kind(resources, "CronJob"))
    directory = options(resources, tmp_path).scores
    assert job["containers"][0]["args"][-2:] == ["--out", directory]
    assert job["securityContext"]["fsGroup"] == pod(resources)["securityContext"]["runAsUser"]
    for spec, is_read_only in ((job, False), (pod(resources), True)):
        mount = next(m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == directory)
        assert mount.get("readOnly", False) is is_read_only
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == mount["name"])
        assert volume["persistentVolumeClaim"] == {"claimName": "scores"}
    assert not options(render({"score": {"existingClaim": "scores"}}), tmp_path).scores, "without the job, no volume"


def test_probes_use_the_paths_and_the_port_of_the_http_api(tmp_path: Path) -> None:
    resources = render({})
    (container,) = pod(resources)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    configuration = options(resources, tmp_path)
    assert configuration.api_listen.endswith(f":{ports['http']}")
    assert configuration.grpc_listen.endswith(f":{ports['grpc']}")
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert [(probe["path"], probe["port"], probe["scheme"]) for probe in probes] == [
        ("/healthz", "http", "HTTPS"),
        ("/readyz", "http", "HTTPS"),
    ]


def ports(rules: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(port["port"] for port in rule.get("ports", ())) for rule in rules]


def test_network_policies_admit_only_the_release_and_the_namespaces_in_the_values() -> None:
    """The default admitted the pods of every namespace to the HTTP API, and no outgoing connection was limited."""
    everything = {"zookeeper": {"enabled": True}, "score": {"enabled": True}}
    policies = {p["metadata"]["name"]: p["spec"] for p in of_kind(render(everything), "NetworkPolicy")}
    assert policies.keys() == {"autothrottle", "autothrottle-zookeeper", "autothrottle-score"}
    release = {"app.kubernetes.io/name": "autothrottle", "app.kubernetes.io/instance": "autothrottle"}
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy.get("ingress", ()):
            assert rule["from"] == [{"podSelector": {"matchLabels": release}}]
    named = {"networkPolicy": {"httpNamespaces": ["monitoring"], "grpcNamespaces": ["ops"], "grpc": [PEER]}}
    http, grpc = sorted(of_kind(render(named), "NetworkPolicy")[0]["spec"]["ingress"], key=lambda r: len(r["from"]))
    assert http["from"][1:] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert grpc["from"][1:] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}}}, PEER]


def test_pods_reach_only_the_release_and_the_destinations_in_the_values() -> None:
    policy = of_kind(render({}), "NetworkPolicy")[0]["spec"]
    within, *rules, dns = policy["egress"]
    assert within.keys() == {"to"} and within["to"][0]["podSelector"]["matchLabels"]
    assert ports(rules) == [(9092, 9093, 9094), (443,), (443,)]
    assert ports([dns]) == [(53, 53, 5353, 5353)] and {port["protocol"] for port in dns["ports"]} == {"UDP", "TCP"}
    closed: dict[str, Any] = {name: {"ports": []} for name in ("dns", "kafka", "metricsSource", "objectStore")}
    egress = {**closed, "otlp": {"ports": [4317], "to": [PEER]}, "rules": [{"to": [PEER]}]}
    given = {"networkPolicy": {"egress": egress}, "config": {"zk-addr": [], "bootstrap-servers": []}}
    _, *rules = of_kind(render(given), "NetworkPolicy")[0]["spec"]["egress"]
    assert rules == [{"ports": [{"protocol": "TCP", "port": 4317}], "to": [PEER]}, {"to": [PEER]}]


def test_ports_of_the_options_and_variables_are_open() -> None:
    """A policy without the port of a server looks like a server that is down, and nothing is throttled."""
    config = {
        "zk-addr": ["zk1:2281", "zk2:2282"],
        "bootstrap-servers": "kafka1:19092,kafka2:19093",
        "prometheus-url": "http://prometheus:9090/prometheus",
        "scrape-url": "https://{host}/metrics",
    }
    env = [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4317"}]
    _, *rules, _ = of_kind(render({"config": config, "env": env}), "NetworkPolicy")[0]["spec"]["egress"]
    kafka = (9092, 9093, 9094, 19092, 19093)
    assert ports(rules) == [(2281, 2282), kafka, (443, 9090), (4317,), (443,)]


def test_a_digest_stands_behind_the_tag() -> None:
    assert pod(render({}))["containers"][0]["image"] == "autothrottle:0.2.0"
    pinned = {"image": {"repository": "registry.example/autothrottle", "digest": DIGEST}}
    assert pod(render(pinned))["containers"][0]["image"] == f"registry.example/autothrottle:0.2.0@{DIGEST}"
