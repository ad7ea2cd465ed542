"""The contract of stores of storage metrics."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.ports.services import StorageMetricsStore

TIMEOUT = timedelta(seconds=10)
SAMPLE = StorageMetrics(
    {("a.b", 0): 1_500_000_000, ("a.b", 10): 0, ("t", 2): 7},
    {1001: 1_200_000_000_000, 1002: 0},
    datetime(2026, 11, 24, 12, 0, tzinfo=UTC),
)


class StorageMetricsContract:
    """Subclasses provide a store without a sample as the fixture `store`."""

    def test_no_sample_is_missing(self, store: StorageMetricsStore) -> None:
        with pytest.raises(Missing, match="metricsfetcher"):
            store.fetch_storage_metrics(TIMEOUT)

    @pytest.mark.parametrize("compress", [True, False])
    def test_a_written_sample_is_read(self, store: StorageMetricsStore, compress: bool) -> None:
        store.write_storage_metrics(SAMPLE, compress, TIMEOUT)
        assert store.fetch_storage_metrics(TIMEOUT) == SAMPLE

    def test_a_sample_says_whether_its_topics_have_the_names_of_kafka(self, store: StorageMetricsStore) -> None:
        for has_exact_names in (True, False):
            store.write_storage_metrics(replace(SAMPLE, has_exact_names=has_exact_names), True, TIMEOUT)
            assert store.fetch_storage_metrics(TIMEOUT).has_exact_names is has_exact_names

    def test_a_later_sample_replaces_an_earlier_one(self, store: StorageMetricsStore) -> None:
        later = StorageMetrics({("t", 2): 8}, {1001: 5}, datetime(2026, 11, 24, 13, 0, tzinfo=UTC))
        store.write_storage_metrics(SAMPLE, True, TIMEOUT)
        store.write_storage_metrics(later, True, TIMEOUT)
        assert store.fetch_storage_metrics(TIMEOUT) == later

    @pytest.mark.parametrize("empty", [{"sizes": {}}, {"storage_free": {}}])
    def test_an_empty_sample_replaces_nothing(self, store: StorageMetricsStore, empty: dict[str, object]) -> None:
        store.write_storage_metrics(SAMPLE, True, TIMEOUT)
        with pytest.raises(Invalid, match="the stored sample stays"):
            store.write_storage_metrics(replace(SAMPLE, **empty), True, TIMEOUT)  # type: ignore[arg-type]
        assert store.fetch_storage_metrics(TIMEOUT) == SAMPLE
