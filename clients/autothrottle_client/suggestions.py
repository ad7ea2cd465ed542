"""What an operator may mean by a command or an option that does not exist, over all programs of the toolkit.

The programs do not import one another, so their commands are listed here; a test compares the lists with the programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

COMMANDS: Mapping[str, Sequence[str]] = {
    "autothrottle": (
        "run",
        "check",
        "discovery",
        "metrics",
        "planner",
        "applier",
        "admin",
        "gateway",
        "demo",
        "simulate",
        "replay",
        "score",
        "compact",
        "uninstall",
        "state",
        "completion",
        "version",
    ),
    "throttlectl": (
        "get",
        "set",
        "remove",
        "audit",
        "estimate",
        "reassign",
        "cancel",
        "reassignments",
        "plan",
        "catchup",
        "pause",
        "resume",
        "quota",
        "request-quota",
        "state",
        "top",
        "explain",
        "watch",
        "context",
        "completion",
    ),
    "topicmappr": (
        "rebuild",
        "rebalance",
        "scale",
        "decommission",
        "relieve",
        "uncordon",
        "export",
        "apply",
        "pools",
        "capacity",
        "forecast",
        "tag",
        "version",
    ),
    "metricsfetcher": (),
}
"""Program -> its commands."""

_SERVERS = "--bootstrap-servers kafka1:9092"
_CANCEL = ("throttlectl cancel plan.json", "cancels the reassignment of the partitions in a file")
_DECOMMISSION = (f"topicmappr decommission 1002 {_SERVERS}", "plans to empty a broker; --execute submits it")
_SCALE = (f"topicmappr scale --topics '.*' --brokers -1,1007 {_SERVERS}", "moves replicas to new brokers")
_REBUILD = (f"topicmappr rebuild --topics '.*' --brokers 1001,1003 {_SERVERS}", "replaces brokers, also failed ones")
_REBALANCE = (f"topicmappr rebalance --topics '.*' --brokers -1 {_SERVERS}", "evens out the storage of brokers")
_REASSIGN = ("throttlectl reassign plan.json", "submits a file under throttle and follows it")
_REASSIGNMENTS = ("throttlectl reassignments", "shows what moves")
_STATE = ("throttlectl state", "shows the leader, the rates and the overrides")
_TOP = ("throttlectl top", "shows what moves, refreshed every second")
_SET = ("throttlectl set 50MB/s", "sets a rate for all brokers, or for one with --broker")
_GET = ("throttlectl get", "shows the overrides")
_REMOVE = ("throttlectl remove --all", "removes the overrides")
_PAUSE = ("throttlectl pause", "keeps the current throttles, and decides no new ones")
_CLEAR = ("throttlectl pause --clear", "removes the throttles, and decides no new ones")
_RESUME = ("throttlectl resume", "ends a pause")
_AUDIT = ("throttlectl audit", "shows who did what")
_RUN = (f"autothrottle run {_SERVERS} --capacity 1000MB/s", "starts the services")
_CHECK = (f"autothrottle check {_SERVERS} --capacity 1000MB/s", "looks for problems and their fixes")
_UNINSTALL = (f"autothrottle uninstall {_SERVERS}", "removes every throttle of autothrottle and ends its use")
_QUOTA = ("throttlectl quota list", "shows Kafka's client quotas")
_POOLS = (f"topicmappr pools status {_SERVERS}", "shows how full the pools of brokers are")
_PLAN = ("throttlectl plan decommission --topics '.*' --leaving 1002", "plans in the admin service")
_SIMULATE = ("autothrottle simulate deploy/scenario.toml", "plays a reassignment in virtual time")
_SCORE = ("autothrottle score --decisions decisions --out scores", "scores past decisions")
_EXPLAIN = ("throttlectl explain 1006", "says why a broker has its throttles")
_WATCH = ("throttlectl watch", "prints every cycle")

_MEANINGS: Mapping[tuple[str, ...], Sequence[tuple[str, str]]] = {
    ("decommission", "drain", "empty", "evacuate", "cordon", "remove-broker", "shrink"): (_DECOMMISSION, _PLAN),
    ("scale", "add-broker", "add-brokers", "expand", "scale-out"): (_SCALE,),
    ("rebuild", "replace", "replace-broker", "repair", "replication", "replication-factor"): (_REBUILD,),
    ("rebalance", "balance", "even"): (_REBALANCE,),
    ("relieve",): ((f"topicmappr relieve 1002 {_SERVERS}", "moves just enough bytes off a full broker"),),
    ("uncordon",): ((f"topicmappr uncordon 1002 {_SERVERS}", "removes the cordon of a broker"),),
    ("add",): (_SCALE, _SET),
    ("delete", "unset", "rm"): (_REMOVE, _DECOMMISSION),
    ("remove",): (_DECOMMISSION, _REMOVE),
    ("reassign", "execute", "submit", "move", "migrate"): (_REASSIGN, _REBUILD),
    ("reassignments", "list", "moves", "ls", "progress", "verify", "describe"): (_REASSIGNMENTS, _TOP),
    ("status", "state", "show", "info", "health", "leader", "brokers"): (_STATE, _TOP, _POOLS),
    ("top", "live", "monitor", "dashboard"): (_TOP, _STATE),
    ("watch", "follow", "tail", "events", "logs", "log"): (_WATCH, _AUDIT),
    ("explain", "why"): (_EXPLAIN,),
    ("audit", "history", "who"): (_AUDIT,),
    ("set", "throttle", "override", "overrides", "limit", "rate", "slow", "throttles"): (_SET, _GET, _REMOVE),
    ("get",): (_GET, _STATE),
    ("stop", "pause", "suspend", "freeze", "disable", "kill", "halt"): (_PAUSE, _CLEAR, _CANCEL),
    ("start", "serve", "run", "server", "daemon", "restart"): (_RUN,),
    ("resume", "unpause", "continue", "enable"): (_RESUME,),
    ("cancel", "abort", "undo", "rollback", "revert"): (_CANCEL, _REMOVE),
    ("clear", "reset", "clean", "cleanup", "uninstall", "unthrottle"): (_CLEAR, _UNINSTALL),
    ("check", "validate", "doctor", "test", "preflight", "diagnose"): (_CHECK,),
    ("plan", "generate", "topics", "map"): (_REBUILD, _REBALANCE, _PLAN),
    ("estimate", "eta", "dry-run"): (("throttlectl estimate plan.json", "says how long a reassignment takes"),),
    ("catchup", "catch-up", "recover"): (
        ("throttlectl catchup 1006", "throttles a broker until it is in sync"),
        _REBUILD,
    ),
    ("quota", "quotas", "client-quota", "client-quotas"): (_QUOTA,),
    ("request-quota", "request-quotas"): (
        ("throttlectl request-quota list", "shows limits of requests to autothrottle"),
    ),
    ("context", "contexts", "clusters", "cluster"): (("throttlectl context list", "lists the clusters"),),
    ("pools", "pool"): (_POOLS,),
    ("capacity", "size", "sizing"): (
        (
            "topicmappr capacity --bytes-in 200MB/s --retention 24 --instances instances.csv",
            "says how many brokers suffice",
        ),
    ),
    ("forecast", "predict"): (("topicmappr forecast --history history", "says when brokers reach their limits"),),
    ("export",): ((f"topicmappr export cluster.json {_SERVERS}", "writes a cluster file for offline plans"),),
    ("backup", "import", "restore"): (
        (f"autothrottle state export state.json {_SERVERS}", "copies the state of autothrottle to a file"),
    ),
    ("apply",): ((f"topicmappr apply pools.toml {_SERVERS}", "makes a cluster as a pools file says"),),
    ("tag", "tags"): (("topicmappr tag --datadog", "writes topics and pools as host tags to Datadog"),),
    ("score", "report"): (_SCORE,),
    ("replay",): (("autothrottle replay --decisions decisions", "runs logged cycles again"),),
    ("compact",): (("autothrottle compact --decisions decisions", "merges the files of the decision log"),),
    ("simulate", "simulation"): (_SIMULATE,),
    ("demo", "try"): (("autothrottle demo", "replaces a broker of a simulated cluster"),),
    ("fetch", "metrics", "sizes"): (
        (f"metricsfetcher {_SERVERS} --history history", "stores the sizes of partitions"),
        _POOLS,
    ),
}
"""Words for the same purpose -> the commands that serve it, as (an example, what it does)."""

_BY_WORD = {word: commands for words, commands in _MEANINGS.items() for word in words}

RENAMED: Mapping[str, str] = {"i-mean-it": "force"}
"""Option of an earlier version -> its name now."""

_OPTION_MEANINGS: Mapping[str, Sequence[str]] = {
    "bootstrap-servers": (
        "bootstrap-server",
        "bootstrap",
        "brokers-list",
        "broker-list",
        "broker",
        "kafka-addr",
        "kafka",
        "kafka-brokers",
        "servers",
        "server",
    ),
    "admin-addr": (
        "addr",
        "address",
        "addresses",
        "admin",
        "api-addr",
        "grpc-addr",
        "host",
        "url",
        "server",
        "bootstrap-servers",
        "bootstrap-server",
        "kafka-addr",
    ),
    "zk-addr": ("zookeeper", "zookeeper-connect", "zk", "zookeeper-servers", "zk-connect", "zookeeper-addr"),
    "zk-prefix": ("zk-chroot", "chroot"),
    "kafka-client-config": ("command-config", "client-config", "kafka-config", "admin-config", "producer.config"),
    "capacity": ("link-capacity", "bandwidth", "link"),
    "timeout": ("request-timeout", "command-timeout"),
    "execute": ("submit", "apply"),
    "allow-fewer-racks": ("ignore-racks",),
    "dry-run": ("validate-only", "check-only", "whatif"),
}
"""Option -> words for it, also those of Kafka's own tools, of Kafka-Kit and of earlier versions."""

_COMMAND_OF_OPTION: Mapping[str, str] = {
    "all": "throttlectl remove",
    "allow-fewer-racks": "topicmappr rebuild",
    "autoremove": "throttlectl set",
    "bootstrap-servers": "topicmappr rebuild",
    "broker": "throttlectl set",
    "brokers": "topicmappr rebuild",
    "bytes-in": "topicmappr capacity",
    "capacity": "autothrottle run",
    "chunk-step-size": "topicmappr rebuild",
    "cluster-file": "topicmappr rebuild",
    "decisions": "autothrottle run",
    "default-capacity": "autothrottle run",
    "execute": "topicmappr rebuild",
    "expires": "throttlectl set",
    "finish-by": "autothrottle run",
    "force-rebuild": "topicmappr rebuild",
    "instances": "topicmappr capacity",
    "interval": "autothrottle run",
    "leader-evac-brokers": "topicmappr rebuild",
    "leaving": "throttlectl plan",
    "limit": "throttlectl audit",
    "max-rate": "autothrottle run",
    "max-ratio": "throttlectl estimate",
    "min-rate": "autothrottle run",
    "no-wait": "throttlectl reassign",
    "once": "throttlectl top",
    "optimize": "topicmappr rebuild",
    "optimize-leadership": "topicmappr rebuild",
    "out-path": "topicmappr rebuild",
    "partition-limit": "topicmappr rebalance",
    "phased-reassignment": "topicmappr rebuild",
    "placement": "topicmappr rebuild",
    "policy": "autothrottle run",
    "pools": "topicmappr pools",
    "prom-file": "topicmappr forecast",
    "reason": "throttlectl pause",
    "repair-lost": "topicmappr apply",
    "replication": "topicmappr rebuild",
    "retention": "topicmappr capacity",
    "schedule": "autothrottle run",
    "shadow": "autothrottle run",
    "static-rate": "autothrottle run",
    "storage-threshold": "topicmappr rebalance",
    "sub-affinity": "topicmappr rebuild",
    "survive": "topicmappr capacity",
    "throttle": "throttlectl reassign",
    "to": "topicmappr relieve",
    "tolerance": "topicmappr rebalance",
    "topics": "topicmappr rebuild",
    "topics-exclude": "topicmappr rebuild",
    "use-meta": "topicmappr rebuild",
    "until-recovered": "throttlectl quota",
    "within": "throttlectl estimate",
    "zk-metrics-prefix": "topicmappr rebuild",
}
"""Option -> the command that an operator probably means by it in another one."""

_SIMILARITY = 0.7


def option_fix(name: str, options: Iterable[str], prefix: str = "--") -> str:
    """Return what to give instead of an unknown option: one of `options`, or another command; "": none is similar.

    >>> option_fix("kafka-addr", ["bootstrap-servers", "zk-addr"])
    'did you mean --bootstrap-servers?'
    >>> option_fix("throttle", ["bootstrap-servers", "zk-addr"])
    'it is an option of `throttlectl reassign`'
    """
    word, own = name.replace("_", "-").lower(), list(options)
    meant = (option for option, words in _OPTION_MEANINGS.items() if word in words and option in own)
    if option := RENAMED.get(word) or next(meant, ""):
        return f"did you mean {prefix}{option}?"
    near = get_close_matches(word, own, n=1)
    if word in _COMMAND_OF_OPTION and word not in own and not (near and near[0] == word):
        return f"it is an option of `{_COMMAND_OF_OPTION[word]}`"
    return f"did you mean {prefix}{near[0]}?" if near else ""


def similar_commands(program: str, word: str) -> Sequence[tuple[str, str]]:
    """Return commands of all programs that a wrong one of `program` may mean, the likeliest first.

    Returns:
        (an example of the command, what it does), the latter "" if only the name is similar; () if none is.
    """
    name = word.replace("_", "-").lower()
    meanings = _BY_WORD.get(name, ())
    homonyms = [f"{other} {name}" for other, names in COMMANDS.items() if name in names]
    new = [(command, "") for command in homonyms if not any(example.startswith(command) for example, _ in meanings)]
    if meanings or new:
        return [*meanings, *new]
    if own := get_close_matches(name, COMMANDS[program], n=1):
        return [(f"{program} {own[0]}", "")]
    near = get_close_matches(name, _BY_WORD, n=1, cutoff=_SIMILARITY)
    return _BY_WORD[near[0]] if near else ()


def suggestion(program: str, word: str) -> str:
    """Return the end of an error about an unknown command: a question, and rows if there are several answers.

    It is empty for an option, which no command resembles.

    >>> suggestion("throttlectl", "resum")
    '; did you mean `throttlectl resume`?'
    >>> print(suggestion("throttlectl", "decommission"))
    ; did you mean one of these?
      topicmappr decommission 1002 --bootstrap-servers kafka1:9092  plans to empty a broker; --execute submits it
      throttlectl plan decommission --topics '.*' --leaving 1002    plans in the admin service
    """
    commands = () if word.startswith("-") else similar_commands(program, word)
    if not commands:
        return ""
    if len(commands) == 1:
        example, purpose = commands[0]
        return f"; did you mean `{example}`?" + (f" It {purpose}." if purpose else "")
    width = max(len(example) for example, _ in commands)
    rows = [f"\n  {example:<{width}}  {purpose}".rstrip(" ") for example, purpose in commands]
    return f"; did you mean one of these?{''.join(rows)}"


def hidden_key(key: str) -> str:
    """Return an unknown key of a file for a message; `***` if it may be a secret: it has more than lower-case words.

    >>> hidden_key("some-other-name"), hidden_key("hunter2"), hidden_key("xK/b")
    ('some-other-name', '***', '***')
    """
    return key if re.fullmatch(r"[a-z]+([_.-][a-z]+)*", key) else "***"
