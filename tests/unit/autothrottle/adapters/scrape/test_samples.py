"""The samples that count in the texts of real exporters.

The texts follow the public formats: node_exporter 1.8 (netdev, netclass), cAdvisor 0.49 in the kubelet 1.30,
jmx_exporter 1.0 with the rules of Strimzi 0.41 and with those of its own example for Kafka 2, and MSK's open monitoring
(port 11001), which has no rules.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from autothrottle.adapters.scrape.metrics import Target, scraped
from autothrottle.core.traffic.exporters import EXPORTERS

TEXTS = Path(__file__).with_name("exporter_texts")
NOW = 1_718_000_010.0


def totals(preset: str, text: str) -> dict[str, float]:
    """Return `tx` and `rx` -> the sum of the values that count."""
    found = {"tx": 0.0, "rx": 0.0}
    for (kind, _, _), (_, value) in scraped((TEXTS / f"{text}.txt").read_text(), EXPORTERS[preset], NOW).items():
        if kind in found:
            found[kind] += value
    return found


@pytest.mark.parametrize(
    ("preset", "text", "tx", "rx"),
    [
        ("node_exporter", "flannel", 4.0e8, 3.0e8),
        ("msk", "msk_node", 6.0e8, 4.5e8),
        ("cadvisor", "cadvisor", 4.2e9, 3.1e9),
        ("strimzi", "strimzi", 2.7e9, 1.5e9),
        ("jmx", "strimzi", 2.7e9, 1.5e9),
        ("jmx_persec", "jmx_persec", 2.7e9, 1.5e9),
        ("jmx_count", "msk_jmx", 2.7e9, 1.5e9),
        ("msk_jmx", "msk_jmx", 2.7e9, 1.5e9),
        ("jmx_one_minute_rate", "msk_jmx", 2.7e6, 1.5e6),
        ("jmx_count", "strimzi", 0, 0),
        ("strimzi_reporter", "strimzi_reporter", 4.0e8, 3.0e8),
        ("bitnami", "bitnami", 4.0e8, 3.0e8),
    ],
)
def test_bytes_of_links_count_once(preset: str, text: str, tx: float, rx: float) -> None:
    """Bridges, VLANs, topics and the root of all pods contain bytes that another series counts, too."""
    assert totals(preset, text) == {"tx": tx, "rx": rx}


def test_every_preset_is_in_the_table_above() -> None:
    marks = test_bytes_of_links_count_once.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == {*EXPORTERS}


def test_samples_with_their_own_time_are_not_counted_twice() -> None:
    """cAdvisor reads its counters every 10 s, so that two scrapes may return the same samples."""
    target = Target("http://node/metrics")
    for received in (NOW, NOW + 5):
        target.scrapes.append(scraped((TEXTS / "cadvisor.txt").read_text(), EXPORTERS["cadvisor"], received))
    (series,) = target.series("tx")
    assert series.samples == [(1_718_000_001.2, 4.2e9)]


def test_samples_before_the_newest_window_are_dropped() -> None:
    target = Target("http://b1:9100/metrics", scrapes=deque(maxlen=3))
    for second in range(10):
        text = f'node_network_receive_bytes_total{{device="eth0"}} {second}\n'
        target.scrapes.append(scraped(text, EXPORTERS["node_exporter"], NOW + second))
    (series,) = target.series("rx")
    assert series.samples == [(NOW + 7, 7.0), (NOW + 8, 8.0), (NOW + 9, 9.0)]


@pytest.mark.parametrize("text", ["<html>", "a{", "a b c d", "node_network_receive_bytes_total{device} 1"])
def test_malformed_text_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, IndexError, KeyError, AttributeError)):
        assert scraped(text, EXPORTERS["node_exporter"], NOW)


def test_only_our_lines_of_a_large_text_are_parsed() -> None:
    """Parsing 32 MB of one target takes 16 s of CPU time, in which the others wait. Now only lines that count do."""
    noise = "".join(f'node_cpu_seconds_total{{cpu="{n}"}} 1.5\n' for n in range(40_000))
    counter = '# TYPE node_network_receive_bytes counter\nnode_network_receive_bytes{device="eth0"} 7\n'
    text = f"{noise}{counter}{noise}<html>\n"
    (sample,) = scraped(text, EXPORTERS["node_exporter"], NOW).values()
    assert sample == (NOW, 7.0)


def test_large_text_of_our_lines_is_an_error() -> None:
    text = 'node_network_receive_bytes_total{device="eth0"} 7\n' * 100_000
    with pytest.raises(ValueError, match="characters of counters, and 4000000 are allowed"):
        scraped(text, EXPORTERS["node_exporter"], NOW)
