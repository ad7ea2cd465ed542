"""Combines flags, environment, TOML file and defaults into one configuration, or reports every problem.

Sources in order of precedence: a flag (`-name value`, `--name=value`; one dash or two, as in Go), the
environment variable `AUTOTHROTTLE_NAME`, the TOML file that `--config` names, the default. An empty environment
variable counts as not set. `options` defines each option, `sources` reads the sources, and `configuration` is the
result. The function to know is `parse`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from autothrottle.adapters.credentials.tls import TlsFiles
from autothrottle.core.errors import Invalid
from autothrottle.core.policy.limits import Limits
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.runtime import options
from autothrottle.runtime.configuration import (
    AddressConfiguration,
    Configuration,
    DatadogConfiguration,
    DecisionsConfiguration,
    KafkaBackend,
    KafkaConfiguration,
    PolicyName,
    SecurityConfiguration,
    ZooKeeperConfiguration,
)
from autothrottle.runtime.option_kinds import Option, Refused
from autothrottle.runtime.options import OPTIONS
from autothrottle.runtime.sources import Flags, Given, Rank, from_environment, from_file

T = TypeVar("T")

KAFKA_NODES = frozenset(
    {
        "admin",
        "brokers",
        "cluster",
        "config",
        "consumers",
        "controller",
        "controller_epoch",
        "delegation_token",
        "feature",
        "isr_change_notification",
        "kafka-acl",
        "kafka-acl-changes",
        "kafka-acl-extended",
        "kafka-acl-extended-changes",
        "latest_producer_id_block",
        "log_dir_event_notification",
        "migration",
    }
)
"""Node names that Kafka uses directly below its chroot; our own state must not be among them."""


class InvalidConfiguration(Invalid):
    """All problems of a configuration; the process exits with status 2."""

    def __init__(self, problems: Sequence[str]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{count} in the configuration:", *(f"  - {p}" for p in problems)]))
        self.problems = tuple(problems)
        """One or two sentences each: the option, its value and source, the range and the fix."""


def parse(argv: Sequence[str], environ: Mapping[str, str], required: Collection[str] = ()) -> Configuration:
    """Return the configuration.

    Args:
        argv: flags, without the program name and the service.
        environ: the environment; only `AUTOTHROTTLE_*` is read.
        required: names of options that this service requires.

    Raises:
        InvalidConfiguration: contains every problem.
    """
    flags = Flags.read(argv)
    variables, warnings = from_environment(environ)
    given = variables | flags.given
    file, file_problems = from_file(given.get(options.CONFIG.name))
    reader = _Reader(file | given, [*flags.problems, *file_problems])
    if flags.help or reader.of(options.VERSION):
        return replace(_configuration(_Reader({}, []), []), help=flags.help, version=not flags.help)
    configuration = _configuration(reader, warnings)
    reader.require(required)
    if reader.problems:
        raise InvalidConfiguration(reader.problems)
    return configuration


class _Reader:
    """Reads options and collects problems instead of stopping at the first."""

    def __init__(self, given: Mapping[str, Given], problems: list[str]) -> None:
        self._given = given
        self._refused: set[str] = set()
        self.problems = problems

    def of(self, option: Option[T]) -> T:
        """Return the option's value. An invalid value is recorded as a problem and replaced by the default."""
        given = self._given.get(option.name)
        if given is not None and option.name not in self._refused:
            try:
                return option.parse(given.text)
            except (Refused, Invalid) as error:
                self.problems.append(_problem(option, given, error))
                self._refused.add(option.name)
        return option.parse(option.default)

    def rank(self, option: Option[Any]) -> Rank:
        """Return the precedence of the option's source."""
        given = None if option.name in self._refused else self._given.get(option.name)
        return given.rank if given else Rank.DEFAULT

    def source(self, option: Option[Any]) -> str:
        """Return the name of the option's source, for messages."""
        given = None if option.name in self._refused else self._given.get(option.name)
        return given.source if given else "default"

    def require(self, names: Collection[str]) -> None:
        """Record required options that are not given. A key may be given as its file instead."""
        for option in (OPTIONS[name] for name in sorted(names)):
            if not {option.name, f"{option.name}-file"} & self._given.keys():
                self.problems.append(
                    f"{option.name} is not given; it must be {option.range}. "
                    f"Fix: --{option.name}={option.good_value} or {option.variable}"
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
    if "://" in text:  # the parts before @ and after ? may be secrets
        text = re.sub(r"\?.*", "?...", re.sub(r"://.*@", "://...@", text), flags=re.DOTALL)
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def _configuration(reader: _Reader, warnings: list[str]) -> Configuration:
    datadog = _datadog(reader, warnings)
    return Configuration(
        datadog=datadog,
        kafka=_kafka(reader, warnings),
        zookeeper=_zookeeper(reader),
        addresses=_addresses(reader),
        security=_security(reader, warnings),
        limits=_limits(reader),
        schedule=reader.of(options.SCHEDULE),
        finish_by=reader.of(options.FINISH_BY),
        policy=PolicyName(reader.of(options.POLICY)),
        static_rate=reader.of(options.STATIC_RATE),
        capacities=_capacities(reader),
        interval=reader.of(options.INTERVAL),
        cleanup_after=reader.of(options.CLEANUP_AFTER),
        cleanup_foreign=reader.of(options.CLEANUP_FOREIGN),
        shadow=reader.of(options.SHADOW),
        decisions=_decisions(reader),
        log_format=reader.of(options.LOG_FORMAT),
        log_level=reader.of(options.LOG_LEVEL),
        warnings=tuple(warnings),
    )


def _datadog(reader: _Reader, warnings: list[str]) -> DatadogConfiguration:
    api_key = _key(reader, options.API_KEY, options.API_KEY_FILE)
    app_key = _key(reader, options.APP_KEY, options.APP_KEY_FILE)
    if bool(api_key) != bool(app_key):
        absent = "app-key" if api_key else "api-key"
        warnings.append(f"{absent} is not given; Datadog rejects queries without both keys")
    url = reader.of(options.DATADOG_URL)
    if url.startswith("http:") and not _is_loopback(urlsplit(url).hostname or ""):
        warnings.append("datadog-url is plain http to another host: the keys are readable on the network")
    return DatadogConfiguration(
        url=url,
        api_key=api_key,
        app_key=app_key,
        net_tx_query=reader.of(options.NET_TX_QUERY),
        net_rx_query=reader.of(options.NET_RX_QUERY),
        broker_id_tag=reader.of(options.BROKER_ID_TAG),
        instance_type_tag=reader.of(options.INSTANCE_TYPE_TAG),
        capacity_tag=reader.of(options.CAPACITY_TAG),
        metrics_window=reader.of(options.METRICS_WINDOW),
        metrics_delay=reader.of(options.METRICS_DELAY),
        event_tags=reader.of(options.DD_EVENT_TAGS),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _key(reader: _Reader, key: Option[str], key_file: Option[str]) -> str:
    """Return a key from the option with the higher precedence."""
    text, path = reader.of(key), reader.of(key_file)
    if not path or reader.rank(key) < reader.rank(key_file):
        return text
    if reader.rank(key) == reader.rank(key_file):
        reader.problems.append(
            f"{key.name} ({reader.source(key)}) and {key_file.name} ({reader.source(key_file)}) are both "
            f"given. Fix: give one"
        )
        return text
    content, reason = _read_key(path)
    if reason:
        reader.problems.append(
            f"{key_file.name}: {path!r} ({reader.source(key_file)}) {reason}; it must be {key_file.range}. "
            f"Fix: put the key there, or name another file"
        )
    return content


def _read_key(path: str) -> tuple[str, str]:
    """Return (key, "") or ("", problem)."""
    try:
        content = Path(path).read_text("utf-8").strip()
    except OSError as error:
        return "", f"cannot be read: {error.strerror}"
    except ValueError:
        return "", "is not a text file"
    if not content or not content.isprintable():
        return "", "contains more than a key" if content else "is empty"
    return content, ""


def _kafka(reader: _Reader, warnings: list[str]) -> KafkaConfiguration:
    backend = KafkaBackend(reader.of(options.KAFKA_BACKEND))
    native = reader.of(options.KAFKA_NATIVE_MODE)
    ranks = (reader.rank(options.KAFKA_BACKEND), reader.rank(options.KAFKA_NATIVE_MODE))
    if Rank.DEFAULT not in ranks and native != (backend is KafkaBackend.ADMIN):
        reader.problems.append(
            f"kafka-native-mode is {str(native).lower()} ({reader.source(options.KAFKA_NATIVE_MODE)}) "
            f"and kafka-backend is {backend} ({reader.source(options.KAFKA_BACKEND)}), which contradict each "
            f"other: native mode means the admin backend. Fix: give kafka-backend only"
        )
    backend = KafkaBackend.ADMIN if native else backend
    servers = reader.of(options.BOOTSTRAP_SERVERS)
    if backend is KafkaBackend.ADMIN and not servers:
        servers = options.BOOTSTRAP_SERVERS.parse(options.BOOTSTRAP_SERVERS.example)
    configuration = KafkaConfiguration(
        backend=backend,
        bootstrap_servers=servers,
        bootstrap_controllers=reader.of(options.KAFKA_BOOTSTRAP_CONTROLLERS),
        client_config=reader.of(options.KAFKA_CLIENT_CONFIG),
        request_timeout=reader.of(options.KAFKA_API_REQUEST_TIMEOUT),
        discovery_poll=reader.of(options.DISCOVERY_POLL),
    )
    if configuration.bootstrap_controllers and backend is not KafkaBackend.ADMIN:
        warnings.append("kafka-bootstrap-controllers is given, but only the admin backend uses it")
    if configuration.client_config and not configuration.bootstrap_servers:
        warnings.append("kafka-client-config is given, but without bootstrap-servers there is no connection to Kafka")
    return configuration


def _zookeeper(reader: _Reader) -> ZooKeeperConfiguration:
    prefix, ours = reader.of(options.ZK_PREFIX), reader.of(options.ZK_CONFIG_PREFIX)
    if _overlap(prefix, ours):
        reader.problems.append(
            f"zk-config-prefix: {ours!r} ({reader.source(options.ZK_CONFIG_PREFIX)}) overlaps Kafka's tree, "
            f"zk-prefix being {prefix!r} ({reader.source(options.ZK_PREFIX)}); it must be a path that Kafka "
            f"does not use. Fix: give {options.ZK_CONFIG_PREFIX.default}, for example"
        )
    return ZooKeeperConfiguration(
        addresses=reader.of(options.ZK_ADDR),
        prefix=prefix,
        config_prefix=ours,
        session_timeout=reader.of(options.ZK_SESSION_TIMEOUT),
    )


def _overlap(prefix: str, ours: str) -> bool:
    """Whether our tree contains Kafka's chroot, or is inside a node that Kafka uses."""
    if f"{prefix}/".startswith(f"{ours}/"):
        return True
    return ours.startswith(f"{prefix}/") and ours.removeprefix(f"{prefix}/").split("/")[0] in KAFKA_NODES


def _addresses(reader: _Reader) -> AddressConfiguration:
    return AddressConfiguration(
        api_listen=reader.of(options.API_LISTEN),
        grpc_listen=reader.of(options.GRPC_LISTEN),
        listen=reader.of(options.LISTEN),
        discovery=reader.of(options.DISCOVERY_ADDR),
        metrics=reader.of(options.METRICS_ADDR),
        planner=reader.of(options.PLANNER_ADDR),
        applier=reader.of(options.APPLIER_ADDR),
        admin=reader.of(options.ADMIN_ADDR),
    )


def _security(reader: _Reader, warnings: list[str]) -> SecurityConfiguration:
    files = (options.TLS_CERT, options.TLS_KEY, options.TLS_CA)
    given = [option.name for option in files if reader.of(option)]
    absent = [option.name for option in files if not reader.of(option)]
    if given and absent:
        reader.problems.append(
            f"{' and '.join(given)} without {' and '.join(absent)}; TLS is mutual and needs all three. "
            f"Fix: --{absent[0]}={OPTIONS[absent[0]].example}, for example"
        )
    paths = (reader.of(options.TLS_CERT), reader.of(options.TLS_KEY), reader.of(options.TLS_CA))
    tls = TlsFiles(*paths, reader.of(options.TLS_SERVER_NAME)) if not absent else None
    tokens = reader.of(options.API_TOKENS_FILE)
    for option in (options.API_LISTEN, options.GRPC_LISTEN, options.LISTEN):
        secured = tls is not None and (option is not options.API_LISTEN or tokens)
        if not secured and not _is_local(reader.of(option)):
            needed = "api-tokens-file" if tls else "tls-cert, tls-key and tls-ca"
            warnings.append(
                f"{option.name} is open to other hosts without authentication: any caller may throttle the cluster; "
                f"give {needed}"
            )
    if tokens and tls is None and not _is_local(reader.of(options.API_LISTEN)):
        warnings.append("api-tokens-file is given without tls-cert: the tokens are readable on the network")
    return SecurityConfiguration(tls, tokens)


def _is_local(address: str) -> bool:
    """Whether only this host can reach an address."""
    return address.startswith("unix:") or _is_loopback(address.rpartition(":")[0].strip("[]"))


def _limits(reader: _Reader) -> Limits:
    both = reader.of(options.MAX_RATE)
    outbound, inbound = reader.of(options.MAX_TX_RATE), reader.of(options.MAX_RX_RATE)
    both_rank = reader.rank(options.MAX_RATE)
    return Limits(
        min_rate=reader.of(options.MIN_RATE),
        # Within one source the specific option wins; otherwise the precedence of the sources decides.
        max_tx_ratio=outbound if reader.rank(options.MAX_TX_RATE) <= both_rank else both,
        max_rx_ratio=inbound if reader.rank(options.MAX_RX_RATE) <= both_rank else both,
        change_threshold=reader.of(options.CHANGE_THRESHOLD),
        failure_threshold=reader.of(options.FAILURE_THRESHOLD),
        keep_throttles=reader.of(options.SKIP_AUTO_DELETE_THROTTLES),
        pause_over_capacity=reader.of(options.PAUSE_OVER_CAPACITY),
    )


def _decisions(reader: _Reader) -> DecisionsConfiguration:
    uri, spool = reader.of(options.DECISIONS), reader.of(options.DECISIONS_SPOOL)
    if "://" in uri and not uri.startswith("file:") and not spool:
        reader.problems.append(
            f"decisions: {uri!r} ({reader.source(options.DECISIONS)}) is an object store and needs a local spool "
            f"directory. Fix: --decisions-spool={options.DECISIONS_SPOOL.example}"
        )
    days = reader.of(options.DECISIONS_RETENTION)
    retention = timedelta(days=days) if days else None
    return DecisionsConfiguration(uri, spool, retention, reader.of(options.CLUSTER_NAME))


def _capacities(reader: _Reader) -> CapacityLimits:
    return CapacityLimits(
        by_broker=reader.of(options.BROKER_CAP_MAP),
        by_instance_type=reader.of(options.CAP_MAP),
        default=reader.of(options.DEFAULT_CAPACITY),
    )
