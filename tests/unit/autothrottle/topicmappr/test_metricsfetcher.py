"""When a new sample of metricsfetcher replaces the stored one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.runtime.configuration_reader import parse_command
from autothrottle.topicmappr.metricsfetcher import main, require_complete
from autothrottle.topicmappr.options import FETCHER_PREFIX, FetcherOptions
from autothrottle.topicmappr.sources import check_age
from tests.contract.storage_metrics_contract import SAMPLE

STORED = StorageMetrics({("t", n): 1 for n in range(20)}, {1: 5, 2: 5}, SAMPLE.sampled)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sizes": {}}, "no partition sizes"),
        ({"storage_free": {}}, "no free storage"),
        ({"unanswered": ("broker 2 does not answer",)}, "broker 2 does not answer"),
        ({"storage_free": {1: 5}}, "stored before: 2;"),
        ({"sizes": {("t", n): 1 for n in range(17)}}, "3 of 20 partitions"),
    ],
)
def test_an_empty_or_partial_sample_does_not_replace_a_good_one(change: dict[str, object], problem: str) -> None:
    """An empty answer of Datadog overwrote the original's good data, and the next plan moved everything.

    The stored sample stays, and the error says so."""
    with pytest.raises(Incomplete, match=f"{problem}.*the stored sample stays"):
        require_complete(replace(STORED, **change), STORED)  # type: ignore[arg-type]


def test_a_few_deleted_partitions_and_new_brokers_are_accepted() -> None:
    later = replace(STORED, sizes={("t", n): 2 for n in range(18)}, storage_free={1: 5, 2: 5, 3: 5})
    require_complete(later, STORED)
    require_complete(later, None)


def test_an_old_sample_is_refused_with_its_age() -> None:
    assert SAMPLE.sampled is not None
    check_age(SAMPLE, timedelta(minutes=60), SAMPLE.sampled + timedelta(minutes=60))
    with pytest.raises(Invalid, match="Metrics metadata is older than allowed: 1h2m"):
        check_age(SAMPLE, timedelta(minutes=60), SAMPLE.sampled + timedelta(minutes=62))


def test_wrong_options_have_status_2_and_show_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--api-key", "secret\n", "--span", "x"]) == 2
    assert "secret" not in capsys.readouterr().err


def test_options_that_store_nothing_are_named_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ZooKeeper and history, a sample was read and lost with status 0.

    --rate-sample with another source than kafka failed only after the sample was written to ZooKeeper.
    """
    assert main(["--source=prometheus", "--zookeeper=false", "--rate-sample=3"]) == 2
    error = capsys.readouterr().err
    assert "nothing is stored" in error and "Fix: --history=DIR" in error
    assert "rate-sample is given without history" in error
    assert "Fix: --source=kafka" in error


@pytest.mark.parametrize("option", ["--history DIRECTORY", "--dry-run", "--source kafka"])
def test_the_first_option_is_not_taken_for_a_command(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--history` resembles a word for `throttlectl audit`, and the program asked whether that was meant."""
    assert main([*option.split(), "--help"]) == 0
    assert "Usage: metricsfetcher" in capsys.readouterr().out


def test_an_unreachable_source_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--datadog-url", "http://127.0.0.1:1", "--api-key", "k", "--app-key", "k", "--dry-run"]) == 1
    assert "Datadog (validate)" in capsys.readouterr().err


@pytest.mark.parametrize("root", ["", "/"])
def test_the_root_is_a_valid_prefix(root: str) -> None:
    options, _, _ = parse_command(FetcherOptions, [f"--zk-prefix={root}"], {}, FETCHER_PREFIX)
    assert options is not None and options.zk_prefix == ""


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "METRICSFETCHER_PARTITION_SIZE_QUERY" in out
