"""Combines flags, environment, TOML file and defaults into one configuration, or reports every problem.

Sources in order of precedence: a flag (`-name value`, `--name=value`; one dash or two, as in Go), the
environment variable `AUTOTHROTTLE_NAME`, the TOML file that `--config` names, the default. An empty environment
variable counts as not set. `configuration` declares each option, `sources` reads the sources. The function to know is
`parse`.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from autothrottle.adapters.zookeeper.security import OtherClients
from autothrottle.core.errors import Invalid
from autothrottle.core.policy.registry import policy_class
from autothrottle.core.texts import without_secrets
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.runtime.configuration import (
    METRICS_SOURCES,
    OPTIONS,
    Configuration,
    KafkaBackend,
    StateStore,
)
from autothrottle.runtime.option_kinds import Option, Refused, declared_options
from autothrottle.runtime.sources import SUGGESTION, Flags, Given, Rank, from_environment, from_file
from autothrottle_client.files import read_text
from autothrottle_client.replicas import is_loopback, is_loopback_host

T = TypeVar("T")

_SCRAPE_WINDOW = timedelta(seconds=12)
"""Default of metrics-window with scraping: the shortest that is steady, see docs/how-it-works.md."""

_INTERVAL_OF_KAFKA_STATE = timedelta(seconds=30)
"""Default of interval with the state in Kafka. Elsewhere the original's 180 s stay."""

_SOURCE_OPTIONS: Mapping[str, Sequence[str]] = {
    "datadog": ("api-key", "api-key-file", "app-key", "app-key-file"),
    "prometheus": ("prometheus-url",),
    "scrape": ("scrape-url",),
}
"""Metrics source -> the options each of which makes it the default."""

WAYS_TO_START = """\
nothing says where the loads of the brokers come from. Fix: start it in one of these ways
      Kafka alone, 3.1 or newer:
        --bootstrap-servers kafka1:9092 --capacity 1000MB/s
      Kafka in ZooKeeper mode and Datadog, with its keys in AUTOTHROTTLE_API_KEY and AUTOTHROTTLE_APP_KEY:
        --zk-addr zk1:2181,zk2:2181,zk3:2181 --cap-map '{"d2.2xlarge":120,"d2.4xlarge":240}'
      Kafka 4 and a ZooKeeper for the state of autothrottle:
        --kafka-backend admin --bootstrap-servers kafka1:9092,kafka2:9092 --zk-addr zk1:2181 --capacity 1000MB/s
    or with the options of Prometheus or of exporters, see docs/metrics-sources.md"""

_KAFKA_NODE = re.compile(
    "admin|brokers|cluster|config|consumers|controller|controller_epoch|delegation_token|feature|"
    "isr_change_notification|kafka-acl|kafka-acl-changes|kafka-acl-extended|kafka-acl-extended-changes|"
    "latest_producer_id_block|log_dir_event_notification|migration"
)
"""Names of nodes that Kafka uses directly below its chroot; our own state must not be in one of them."""


class InvalidConfiguration(Invalid):
    """All problems of a configuration; the process exits with status 2."""

    def __init__(self, problems: Sequence[str]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{count} in the configuration:", *(f"  - {p}" for p in problems)]))
        self.problems = tuple(problems)
        """One or two sentences each: the option, its value and source, the range and the fix."""


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    preset: Mapping[str, Given] | None = None,
    used: Collection[str] = (),
) -> Configuration:
    """Return the configuration.

    Args:
        argv: flags, without the program name and the service.
        environ: the environment; only `AUTOTHROTTLE_*` is read.
        preset: option name -> text that replaces the default; None: all defaults stay.
        used: names of options that this command uses. A file may hold options of other services, so the access to its
            listeners is checked only for these, and the metrics source's own options only if it uses the source.

    Raises:
        InvalidConfiguration: contains every problem.
    """
    flags = Flags.parse(argv)
    variables, warnings = from_environment(environ)
    given = variables | flags.given
    file, file_problems = from_file(given.pop("config", None))
    given = {**(preset or {}), **(file or {}), **given}
    values, valid, problems = _parsed(given, OPTIONS)
    unread = [*flags.problems, *file_problems]
    problems = [*unread, *problems]
    if flags.help or values.get("version"):
        return Configuration(help=flags.help, version=not flags.help)
    configuration = Configuration(**values)
    if file is not None:  # otherwise the unread keys may solve or cause such a problem
        combinations = _Combinations(configuration, valid, problems, warnings, used, given.keys() - valid.keys())
        configuration = combinations.checked()
        # An option that is absent may be the one that could not be read.
        if not unread and combinations.absences:
            problems += [*(warning for warning in warnings if SUGGESTION in warning), *combinations.absences]
    if problems:
        raise InvalidConfiguration(problems)
    return replace(configuration, warnings=tuple(warnings))


class ParsedCommand(NamedTuple, Generic[T]):
    """One parsed command line."""

    options: T | None
    """None: the command line asks for help."""
    warnings: Sequence[str]
    words: Sequence[str]
    """The words that belong to no flag."""


def parse_command(
    kind: type[T],
    argv: Sequence[str],
    environ: Mapping[str, str],
    prefix: str,
    in_environment: Collection[str] | None = None,
    defaults: Callable[[Mapping[str, Given]], Mapping[str, str]] = lambda given: {},
    most_words: int = 0,
) -> ParsedCommand[T]:
    """Return the options and the words of a command.

    An option `config` names a TOML file with options of this command.

    Args:
        kind: dataclass whose fields declare the options.
        argv: flags and words.
        environ: the environment; only variables with the prefix are read.
        prefix: of the environment variables.
        in_environment: names of the options that the environment may give; None: all.
        defaults: given options -> defaults that depend on them.
        most_words: largest number of words that belong to no flag.

    Raises:
        InvalidConfiguration: contains every problem.
    """
    options = declared_options(kind, prefix)
    flags = Flags.parse(argv, options, most_words)
    shared = {name: option for name, option in options.items() if in_environment is None or name in in_environment}
    variables, warnings = from_environment(environ, shared, prefix)
    given = variables | flags.given
    file, file_problems = from_file(given.pop("config", None), options)
    given = (file or {}) | given
    settled = {name: Given(text, "default", Rank.PRESET) for name, text in defaults(given).items()}
    values, _, problems = _parsed(settled | given, options)
    if flags.help:
        return ParsedCommand(None, (), ())
    if problems := [*flags.problems, *file_problems, *problems]:
        raise InvalidConfiguration(problems)
    return ParsedCommand(kind(**values), warnings, flags.words)


def _parsed(
    given: Mapping[str, Given], options: Mapping[str, Option[Any]]
) -> tuple[dict[str, Any], dict[str, Given], list[str]]:
    """Return the values by field name, the valid texts by option name, and the problems of the others."""
    values: dict[str, Any] = {}
    valid: dict[str, Given] = {}
    problems: list[str] = []
    for option in (option for name, option in options.items() if name in given):
        try:
            values[option.name.replace("-", "_")] = option.parse(given[option.name].text)
            valid[option.name] = given[option.name]
        except (Refused, Invalid) as error:
            problems.append(_problem(option, given[option.name], error))
    return values, valid, problems


def _missing(option: Option[Any], source: str) -> str:
    """Return the problem that a metrics source has no value of an option that it needs."""
    flag = f"--{option.name}-file" if option.secret else f"--{option.name}={option.good_value}"
    return (
        f"{option.name} is not given, but metrics-source {source} needs it; it must be {option.range}. "
        f"Fix: {flag} or {option.variable}"
    )


def _problem(option: Option[Any], given: Given, error: Refused | Invalid) -> str:
    fix = f"give {option.good_value}, for example"
    if isinstance(error, Invalid):
        what = f"{error} ({given.source})"
    else:
        what = f"{option.name}: {_shown(option, given.text)} ({given.source}) {error.reason}"
        fix = error.fix or fix
    return f"{what}; it must be {option.range}. Fix: {fix}"


def _shown(option: Option[Any], text: str) -> str:
    if option.secret:
        return "the value"
    scheme, is_url, rest = text.partition("://")
    if is_url:  # the user, the path and the query may be secrets
        server = re.split("[/?#]", rest.rpartition("@")[2])[0]
        text = f"{scheme}://{server}" + ("" if server == rest else "...")
    text = without_secrets(text)
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


@dataclass(frozen=True, slots=True)
class _Combinations:
    """Checks options that depend on one another, and settles which of them count."""

    values: Configuration
    """Invalid options have their defaults."""
    given: Mapping[str, Given]
    """Option name -> its text and source; absent: not given, or invalid."""
    problems: list[str]
    warnings: list[str]
    used: Collection[str]
    """Names of options that the command uses."""
    refused: Collection[str] = ()
    """Names of given options with an invalid value."""
    absences: list[str] = field(default_factory=list)
    """Problems of options that are not given."""

    def checked(self) -> Configuration:
        """Return the configuration with the options that count; add to the problems and warnings."""
        keys: dict[str, Any] = {}
        for name in ("api-key", "app-key"):
            keys |= self._key(name)
        source = self._metrics_source()
        configuration = replace(
            self.values,
            **keys,
            metrics_source=source,
            **self._ratios(),
            **self._kafka(),
            **self._state_store(),
            **self._session(),
            **self._capacity(),
            **self._window(source),
            **self._cycle_interval(),
        )
        self.warnings.extend(self._suspicions(configuration))
        self._check_metrics_source(configuration)
        self._check_required(source)
        self._check_exporter(source)
        self._check_state_store(configuration)
        self._check_zookeeper()
        self._check_decisions()
        self._check_tls()
        self._check_listeners()
        return configuration

    def _rank(self, name: str) -> Rank:
        return self.given[name].rank if name in self.given else Rank.DEFAULT

    def _source(self, name: str) -> str:
        return self.given[name].source if name in self.given else "default"

    def _named(self, name: str) -> str:
        return f"{name} ({self._source(name)})"

    def _valued(self, name: str) -> str:
        value = getattr(self.values, name.replace("-", "_"))
        return f"{name}: {str(value)!r} ({self._source(name)})"

    def _absent(self, problem: str, *names: str) -> None:
        """Add the problem that none of these options is given, unless the value of one of them is refused."""
        if not {*names} & {*self.refused}:
            self.absences.append(problem)

    def _key(self, name: str) -> Mapping[str, str]:
        """Return a key from its own option or from its file, whichever has the higher precedence; "": the other one."""
        attribute, file = name.replace("-", "_"), f"{name}-file"
        text, path = getattr(self.values, attribute), getattr(self.values, f"{attribute}_file")
        if path and self._rank(name) == self._rank(file):
            self.problems.append(f"{self._named(name)} and {self._named(file)} are both given. Fix: give one")
        elif path and self._rank(file) < self._rank(name):
            text, reason = _read_key(path)
            if reason:
                self.problems.append(
                    f"{self._valued(file)} {reason}; it must be {OPTIONS[file].range}. "
                    f"Fix: put the key there, or name another file"
                )
        else:
            path = ""
        return {attribute: text, f"{attribute}_file": path}

    def _ratios(self) -> Mapping[str, Any]:
        """Within one source the option of a direction wins; otherwise the precedence of the sources decides."""
        both = self._rank("max-rate")
        directions = {"max_tx_rate": self._rank("max-tx-rate"), "max_rx_rate": self._rank("max-rx-rate")}
        return {name: self.values.max_rate for name, rank in directions.items() if both < rank}

    def _metrics_source(self) -> str:
        """Return the given source, or else the one whose options are given."""
        if "metrics-source" in self.given:
            return self.values.metrics_source
        options = {
            source: next((name for name in names if getattr(self.values, name.replace("-", "_"))), "")
            for source, names in _SOURCE_OPTIONS.items()
        }
        sources = [source for source, name in options.items() if name]
        if len(sources) > 1 and "metrics-source" in self.used:
            given = " and ".join(self._named(options[source]) for source in sources)
            fixes = ", or ".join(f"--metrics-source={source}" for source in sources)
            self._absent(f"{given} belong to different metrics sources. Fix: choose one with {fixes}", "metrics-source")
        default = "kafka" if self.values.bootstrap_servers else self.values.metrics_source
        return sources[0] if sources else default

    def _window(self, source: str) -> Mapping[str, Any]:
        is_default = source == "scrape" and self._rank("metrics-window") is Rank.DEFAULT
        return {"metrics_window": _SCRAPE_WINDOW} if is_default else {}

    def _cycle_interval(self) -> Mapping[str, Any]:
        is_default = self._state_store()["state_store"] is StateStore.KAFKA and self._rank("interval") is Rank.DEFAULT
        return {"interval": _INTERVAL_OF_KAFKA_STATE} if is_default else {}

    def _kafka(self) -> Mapping[str, Any]:
        backend, native = self.values.kafka_backend, self.values.kafka_native_mode
        both = {"kafka-backend", "kafka-native-mode"} <= self.given.keys()
        if both and native != (backend is KafkaBackend.ADMIN):
            self.problems.append(
                f"kafka-native-mode is {str(native).lower()} ({self._source('kafka-native-mode')}) "
                f"and kafka-backend is {backend} ({self._source('kafka-backend')}), which contradict each "
                f"other: native mode means the admin backend. Fix: give kafka-backend only"
            )
        backend = KafkaBackend.ADMIN if native or self._is_kafka_alone else backend
        servers = self.values.bootstrap_servers
        if backend is KafkaBackend.ADMIN and not servers:
            servers = (OPTIONS["bootstrap-servers"].example,)
        return {"kafka_backend": backend, "bootstrap_servers": servers}

    @property
    def _access_options(self) -> Sequence[str]:
        """The given options that choose the access to Kafka or ZooKeeper. With one of them no default moves state."""
        return [name for name in ("zk-addr", "zk-prefix", "kafka-backend", "kafka-native-mode") if name in self.given]

    @property
    def _is_kafka_alone(self) -> bool:
        return bool(self.values.bootstrap_servers) and not self._access_options

    def _state_store(self) -> Mapping[str, Any]:
        is_given = "state-store" in self.given
        default = StateStore.KAFKA if self._is_kafka_alone else StateStore.ZOOKEEPER
        return {"state_store": self.values.state_store if is_given else default, "state_store_given": is_given}

    def _session(self) -> Mapping[str, Any]:
        """Return the session timeout from the option of either name."""
        names = ("session-timeout", "zk-session-timeout")
        timeouts = {name: getattr(self.values, name.replace("-", "_")) for name in names}
        if len({timeouts[name] for name in names if self._rank(name) < Rank.PRESET}) > 1:
            both = " and ".join(f"{name}: {self.given[name].text!r} ({self._source(name)})" for name in names)
            self.problems.append(f"{both} have the same meaning and different values. Fix: give session-timeout only")
        timeout = timeouts[min(names, key=self._rank)]
        return {"session_timeout": timeout, "zk_session_timeout": timeout}

    def _capacity(self) -> Mapping[str, Any]:
        names = ("capacity", "default-capacity")
        if all(name in self.given for name in names) and self.values.capacity != self.values.default_capacity:
            both = " and ".join(map(self._named, names))
            self.problems.append(f"{both} have the same meaning and different values. Fix: give one")
        capacity = self.values.capacity
        named = None if capacity is None else replace(capacity, origin="--capacity")
        return {"default_capacity": named or self.values.default_capacity}

    def _check_metrics_source(self, settled: Configuration) -> None:
        source, policy = settled.metrics_source, settled.policy
        if source == "none" and "policy" in self.used and policy_class(policy).follows_load:
            self.problems.append(
                f"{self._valued('policy')} needs loads, but metrics-source is none "
                f"({self._source('metrics-source')}); with it the policy must be static. "
                f"Fix: --policy=static --static-rate={OPTIONS['static-rate'].default}, or another metrics-source"
            )
        if source != "kafka" or "metrics-source" not in self.used:
            return
        if not settled.bootstrap_servers:
            self._absent(
                f"metrics-source kafka ({self._source('metrics-source')}) reads log sizes through Kafka's Admin API, "
                "but bootstrap-servers is not given. Fix: --bootstrap-servers=kafka1:9092, for example",
                "bootstrap-servers",
            )
        if settled.default_capacity is None and not settled.broker_cap_map:
            self._absent(
                f"metrics-source kafka ({self._source('metrics-source')}) does not know the capacity of links, but "
                f"capacity is not given. Fix: --capacity={OPTIONS['capacity'].example}, or broker-cap-map",
                "capacity",
                "default-capacity",
                "broker-cap-map",
            )

    def _check_required(self, source: str) -> None:
        """Check that the metrics source has the options that it needs."""
        if "metrics-source" not in self.used:
            return
        required = METRICS_SOURCES.get(source, ())
        missing = [name for name in required if not {name, f"{name}-file"} & self.given.keys()]
        chooses = [name for names in _SOURCE_OPTIONS.values() for name in names]
        if missing and not {"metrics-source", *chooses} & self.given.keys():
            self._absent(WAYS_TO_START, "metrics-source", "bootstrap-servers", *chooses)
            return
        for name in missing:
            self._absent(_missing(OPTIONS[name], source), "metrics-source", name, f"{name}-file")

    def _suspicions(self, settled: Configuration) -> Iterator[str]:
        """Yield warnings of settings that are valid, but hardly intended."""
        if bool(settled.api_key) != bool(settled.app_key):
            absent = "app-key" if settled.api_key else "api-key"
            yield f"{absent} is not given; Datadog rejects queries without both keys"
        if _is_plain_http(settled.datadog_url):
            yield "datadog-url is plain http to another host: the keys are readable on the network"
        has_devices = settled.broker_device_label or EXPORTERS[settled.broker_exporter].device_label
        if settled.net_devices and not has_devices:
            exporter = settled.broker_exporter
            yield f"net-devices is given, but broker-exporter {exporter} does not report network devices"
        secrets = settled.prometheus_token_file, settled.prometheus_user_file, settled.prometheus_headers_file
        if any(secrets) and _is_plain_http(settled.prometheus_url):
            yield "prometheus-url is plain http to another host: the credentials are readable on the network"
        scrape_url = settled.scrape_url or EXPORTERS[settled.broker_exporter].url
        if (settled.scrape_token_file or settled.scrape_user_file) and _is_plain_http(scrape_url):
            yield "scrape-url is plain http to other hosts: the credentials are readable on the network"
        if settled.kafka_bootstrap_controllers and settled.kafka_backend is not KafkaBackend.ADMIN:
            yield "kafka-bootstrap-controllers is given, but only the admin backend uses it"
        is_remote = any(not is_loopback(server) for server in settled.zk_addr)
        if settled.zk_digest_file and not settled.zk_tls_ca and is_remote:
            yield "zk-digest-file is given without zk-tls-ca: the password is readable on the network"
        for name in ("zk-digest-file", "zk-sasl-file", "zk-tls-key"):
            path = getattr(settled, name.replace("-", "_"))
            if mode := _mode_for_all(path):
                yield f"{name} {path!r} has the mode {mode}, so that every user may read it. Fix: chmod o-rwx {path}"
        if settled.kafka_client_config and not settled.bootstrap_servers:
            yield "kafka-client-config is given, but without bootstrap-servers the Kafka client has no address"
        for name in (name for name in self.given if OPTIONS[name].secret and self._rank(name) is Rank.FLAG):
            yield (
                f"{name} is a flag, which every user of this host can read in the list of processes. "
                f"Fix: give {name}-file or {OPTIONS[name].variable} instead"
            )

    def _check_exporter(self, source: str) -> None:
        values = self.values
        if source == "scrape" and not values.scrape_url and not EXPORTERS[values.broker_exporter].port:
            self.problems.append(
                f"{self._valued('broker-exporter')} reports all pods of a host, so metrics-source scrape cannot read "
                "it. Fix: --metrics-source=prometheus"
            )
        try:
            values.exporter  # noqa: B018  # its series must say what they are
        except Invalid as error:
            self.problems.append(str(error))
        for prefix in ("prometheus", "scrape"):
            if getattr(values, f"{prefix}_token_file") and getattr(values, f"{prefix}_user_file"):
                self.problems.append(f"{prefix}-token-file and {prefix}-user-file are both given. Fix: give one")

    def _check_state_store(self, settled: Configuration) -> None:
        if settled.state_store is not StateStore.KAFKA:
            return
        store = self._named("state-store")
        if not self.values.bootstrap_servers:
            self._absent(
                f"{store} is kafka, whose topic is reached through bootstrap-servers, which is not given. "
                "Fix: --bootstrap-servers=kafka1:9092, for example",
                "bootstrap-servers",
            )
        if settled.kafka_backend is KafkaBackend.ZOOKEEPER and self._access_options:
            default = f"default with {' and '.join(self._access_options)}"
            source = self._source("kafka-backend") if "kafka-backend" in self.given else default
            self.problems.append(
                f"{store} is kafka, and kafka-backend is zookeeper ({source}), which fences its writes with a node in "
                "ZooKeeper. Fix: --kafka-backend=admin, or --state-store=zookeeper"
            )

        if self.values.zk_config_prefix.strip("/") != OPTIONS["zk-config-prefix"].default:
            self.problems.append(
                f"{store} is kafka, where {self._valued('zk-config-prefix')} keeps nothing apart. Fix: "
                "--state-store=zookeeper, where it does; or --state-topic=a topic for each installation, without it"
            )

    def _check_zookeeper(self) -> None:
        self._check_zookeeper_security()
        prefix = self.values.zk_prefix
        if _overlap(prefix, self.values.zk_config_prefix):
            self.problems.append(
                f"{self._valued('zk-config-prefix')} overlaps Kafka's tree, zk-prefix being {prefix!r} "
                f"({self._source('zk-prefix')}); it must be a path that Kafka "
                f"does not use. Fix: give {OPTIONS['zk-config-prefix'].default}, for example"
            )

    def _check_zookeeper_security(self) -> None:
        values = self.values
        if bool(values.zk_tls_cert) != bool(values.zk_tls_key):
            present, absent = ("zk-tls-cert", "zk-tls-key") if values.zk_tls_cert else ("zk-tls-key", "zk-tls-cert")
            self._absent(
                f"{present} without {absent}; a certificate needs its private key. "
                f"Fix: --{absent}={OPTIONS[absent].example}, for example",
                absent,
            )
        if (values.zk_tls_cert or values.zk_tls_key) and not values.zk_tls_ca:
            self._absent(
                "zk-tls-cert and zk-tls-key without zk-tls-ca, which turns on TLS. "
                f"Fix: --zk-tls-ca={OPTIONS['zk-tls-ca'].example}, for example",
                "zk-tls-ca",
            )
        if values.zk_digest_file and values.zk_sasl_file:
            self.problems.append("zk-digest-file and zk-sasl-file are both given. Fix: give one")
        if values.zk_acl is not OtherClients.OPEN and not (values.zk_digest_file or values.zk_sasl_file):
            self._absent(
                f"{self._valued('zk-acl')} closes our znodes to clients without our login, and no login is given. "
                "Fix: --zk-digest-file or --zk-sasl-file, too",
                "zk-digest-file",
                "zk-sasl-file",
            )

    def _check_decisions(self) -> None:
        uri = self.values.decisions
        if "://" in uri and not uri.startswith("file:") and not self.values.decisions_spool:
            self._absent(
                f"{self._valued('decisions')} is an object store and needs a local spool "
                f"directory. Fix: --decisions-spool={OPTIONS['decisions-spool'].example}",
                "decisions-spool",
            )

    def _check_tls(self) -> None:
        files = {"tls-cert": self.values.tls_cert, "tls-key": self.values.tls_key, "tls-ca": self.values.tls_ca}
        present, absent = [name for name, path in files.items() if path], [n for n, path in files.items() if not path]
        if present and absent:
            self._absent(
                f"{' and '.join(present)} without {' and '.join(absent)}; TLS is mutual and needs all three. "
                f"Fix: --{absent[0]}={OPTIONS[absent[0]].example}, for example",
                *absent,
            )
        is_used, is_given = "certificate-roles" in self.used, self.values.certificate_roles is not None
        if is_used and self.values.tls and not is_given:
            self._absent(
                "certificate-roles is not given with tls-cert, so no client certificate has a role. Fix: "
                f"--certificate-roles '{OPTIONS['certificate-roles'].example}', for example; "
                """'{"*":"service"}' lets every certificate of tls-ca do everything, as earlier versions did""",
                "certificate-roles",
            )
        if is_used and is_given and not present:
            self._absent(
                "certificate-roles is given without tls-cert, tls-key and tls-ca, so callers have no certificates. "
                "Fix: give these, too",
                *files,
            )

    def _check_listeners(self) -> None:
        tls, tokens = self.values.tls, self.values.api_tokens_file
        for name in ("api-listen", "grpc-listen", "listen", "metrics-listen"):
            address, is_http = getattr(self.values, name.replace("-", "_")), name in ("api-listen", "metrics-listen")
            if name not in self.used or not address or is_loopback(address) or tls:
                continue
            if tokens and is_http:
                self.warnings.append(
                    "api-tokens-file is given without tls-cert: the tokens are readable on the network"
                )
                continue
            what = f"{self._valued(name)} is open to other hosts, and callers need no certificate"
            credentials = ("tls-cert", "tls-key", "tls-ca", "certificate-roles")
            needed = f"{', '.join(credentials[:-1])} and {credentials[-1]}" + (" or api-tokens-file" if is_http else "")
            if self.values.insecure_listen:
                self.warnings.append(f"{what}: any of them may throttle the cluster; give {needed}")
            else:
                self._absent(
                    f"{what}; this is refused. Fix: give {needed}, or listen on {OPTIONS[name].good_value}; "
                    f"--insecure-listen allows it",
                    *credentials,
                    "api-tokens-file",
                )


def _is_plain_http(url: str) -> bool:
    """Whether a URL sends readable text to another host."""
    return url.startswith("http:") and not is_loopback_host(urlsplit(url).hostname or "")


def _mode_for_all(path: str) -> str:
    """Return the mode of a file that every user may read or write; "": it is private or does not exist."""
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode) if path else 0
    except OSError:
        return ""  # the reader of the file reports the error
    return f"{mode:04o}" if mode & (stat.S_IROTH | stat.S_IWOTH) else ""


def _read_key(path: str) -> tuple[str, str]:
    """Return (key, "") or ("", problem)."""
    try:
        content = read_text(path).strip()
    except OSError as error:
        return "", f"cannot be read: {error.strerror}"
    except ValueError:
        return "", "is not a text file"
    if not content or not content.isprintable():
        return "", "contains more than a key" if content else "is empty"
    return content, ""


def _overlap(prefix: str, config_prefix: str) -> bool:
    """Whether our tree contains Kafka's chroot, or is inside a node that Kafka uses."""
    if f"{prefix}/".startswith(f"{config_prefix}/"):
        return True
    first = config_prefix.removeprefix(f"{prefix}/").split("/")[0]
    return config_prefix.startswith(f"{prefix}/") and _KAFKA_NODE.fullmatch(first) is not None
