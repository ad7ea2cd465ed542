"""`topicmappr tag`: writes the topics and pools of brokers as host tags, and leaves the tags of others alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autothrottle.core.capacity.broker_tags import BrokerTags
from autothrottle.core.errors import Invalid
from autothrottle.core.texts import datadog_tag, escape_unprintable, excerpt

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class HostTagging:
    """Our tags of one host, now and as they shall be."""

    host: str
    broker_id: int
    old: frozenset[str]
    tags: BrokerTags

    @property
    def is_changed(self) -> bool:
        return self.old != frozenset(self.tags.tags)

    @property
    def added(self) -> list[str]:
        return sorted(frozenset(self.tags.tags) - self.old)

    @property
    def removed(self) -> list[str]:
        return sorted(self.old - frozenset(self.tags.tags))


def hosts_of_brokers(
    host_tags: Mapping[str, Collection[str]], broker_id_tag: str, required: Sequence[str]
) -> Mapping[int, tuple[str, ...]]:
    """Return broker id -> the hosts with its tag.

    Args:
        host_tags: host -> all its tags.
        broker_id_tag: name of the tag with the broker id.
        required: tags that a host must have, too: they choose the cluster if several clusters share an account.
    """
    hosts: dict[int, list[str]] = defaultdict(list)
    required_tags = {datadog_tag(tag) for tag in required}
    for host, tags in sorted(host_tags.items()):
        stored = {datadog_tag(tag) for tag in tags}
        for name, _, value in (tag.partition(":") for tag in stored):
            if name == datadog_tag(broker_id_tag) and value.isascii() and value.isdigit() and required_tags <= stored:
                hosts[int(value)].append(host)
    return {id: tuple(names) for id, names in hosts.items()}


def taggings(
    tags: Mapping[int, BrokerTags], hosts: Mapping[int, tuple[str, ...]], own: Mapping[str, frozenset[str]]
) -> tuple[tuple[HostTagging, ...], tuple[str, ...]]:
    """Return the tagging of each host, and a sentence for each broker without exactly one host of its own.

    Args:
        tags: broker id -> its tags.
        hosts: broker id -> hosts with its tag.
        own: host -> the tags that we wrote.
    """
    brokers_of: dict[str, list[int]] = defaultdict(list)
    for id, names in hosts.items():
        for host in names:
            brokers_of[host].append(id)
    result, problems = [], []
    for id, broker_tags in tags.items():
        names = hosts.get(id, ())
        if len(names) == 1 and len(brokers_of[names[0]]) == 1:
            result.append(HostTagging(names[0], id, own.get(names[0], frozenset()), broker_tags))
        elif not names:
            problems.append(f"broker {id} has no host. Fix: give its host the tag with the broker id")
        elif len(names) > 1:
            shown = ", ".join(names[:3])
            problems.append(f"broker {id} is on {len(names)} hosts: {shown}. Fix: choose the cluster with --host-tags")
        else:
            problems.append(f"host {names[0]} has several broker ids. Fix: remove the wrong tag")
    return tuple(result), tuple(problems)


def require_hosts(result: Sequence[HostTagging], problems: Sequence[str]) -> None:
    """Check that a broker has a host.

    Raises:
        Invalid: no broker has one; it is probably a wrong option.
    """
    if not result:
        raise Invalid(problems[0] if problems else "the cluster has no broker with a replica")


def tagging_report(result: Sequence[HostTagging], problems: Sequence[str], refused: Mapping[str, str]) -> str:
    """Return the changes as text."""
    lines = [line for tagging in result for line in _lines(tagging)]
    lines += [f"WARN: {problem}" for problem in problems]
    lines += [f"Failed: {host}: {reason}" for host, reason in refused.items()]
    changed = sum(tagging.is_changed for tagging in result)
    lines.append(f"Hosts: {changed} change, {len(result) - changed} stay, {len(refused)} failed")
    return "\n".join(map(escape_unprintable, lines))


def _lines(tagging: HostTagging) -> Iterator[str]:
    words = [*(f"+{tag}" for tag in tagging.added), *(f"-{tag}" for tag in tagging.removed)]
    if words:
        yield f"{tagging.host} (broker {tagging.broker_id}): {excerpt(words, _SHOWN, ' ')}"
    if count := tagging.tags.topics_left_out:
        yield f"{tagging.host} (broker {tagging.broker_id}): {count} topics have no tag, see --most-topics"


def tagging_value(result: Sequence[HostTagging], problems: Sequence[str], refused: Mapping[str, str]) -> dict[str, Any]:
    """Return the changes as a JSON value."""
    return {
        "hosts": [
            {
                "host": tagging.host,
                "broker": tagging.broker_id,
                "tags": list(tagging.tags.tags),
                "added": tagging.added,
                "removed": tagging.removed,
                "topics_left_out": tagging.tags.topics_left_out,
            }
            for tagging in result
        ],
        "problems": list(problems),
        "failed": dict(refused),
    }
