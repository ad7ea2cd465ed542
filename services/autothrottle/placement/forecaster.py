"""Computes every hour when brokers and pools reach their limits. The type to know is `LimitForecaster`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Protocol

from autothrottle.core.capacity.forecasts import HistorySample, PoolsInUse, limit_forecasts
from autothrottle.core.capacity.pools import Pools
from autothrottle.core.capacity.results import TimedForecasts
from autothrottle.core.capacity.sizing import UsableShares
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.exported_metrics import POOL_EXHAUSTION, MetricSample
from autothrottle.core.retries import FORECAST
from autothrottle.ports.services import ClusterSource
from autothrottle.runtime.pools_file import PoolsText, members_of

log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 3600.0
_TIMEOUT = timedelta(seconds=120)
"""Timeout of reading the cluster."""

_CLOSE_SECONDS = 1.0


class PoolsFile(Protocol):
    """The pools of a file, and what is wrong with it since they were read."""

    @property
    def problem(self) -> str: ...

    def current(self) -> tuple[Pools, PoolsText]: ...


class LimitForecaster:
    """Computes forecasts in its own thread, from `start` to `close`. Thread-safe.

    After a failure the last forecasts stay.
    """

    def __init__(
        self,
        samples: Callable[[], Iterable[HistorySample]],
        cluster: ClusterSource,
        pools: PoolsFile | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Compute nothing yet.

        Args:
            samples: returns the history, the oldest sample first; it raises Missing, Invalid or Unavailable.
            cluster: the cluster of the history.
            pools: its pools; None: only brokers have forecasts.
            clock: the time, UTC.
        """
        self._samples, self._cluster, self._pools, self._clock = samples, cluster, pools, clock
        self._last: TimedForecasts | None = None
        self._error: AutothrottleError = Unavailable("the first forecast is being computed; try again in a minute")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forecasts", daemon=True)

    def start(self) -> None:
        """Compute now, and then every hour."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waits only briefly for a computation, which ends by itself. Idempotent."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def last(self) -> TimedForecasts:
        """Return the last forecasts.

        Raises:
            AutothrottleError: none could be computed so far.
        """
        if self._last is None:
            raise self._error
        return self._last

    def samples(self) -> Iterator[MetricSample]:
        """Return the time until each limit of a pool, as of now."""
        now = self._clock()
        for forecast in self._last.forecasts if self._last else ():
            if forecast.pool and (seconds := forecast.seconds(now)) is not None:
                yield POOL_EXHAUSTION.sample(seconds, forecast.pool, forecast.resource)

    def compute(self) -> None:
        """Compute the forecasts now.

        Raises:
            AutothrottleError: the history, the cluster or the pools cannot be read.
        """
        try:
            forecasts = tuple(limit_forecasts(self._history(), UsableShares().storage, self._pools_in_use()))
        except AutothrottleError as error:
            self._error = error
            raise
        self._last = TimedForecasts(self._clock(), forecasts)

    def _history(self) -> Iterator[HistorySample]:
        for sample in self._samples():
            if self._closed.is_set():
                raise Unavailable("the service is stopping; call another replica")
            yield sample

    def _pools_in_use(self) -> PoolsInUse | None:
        if self._pools is None:
            return None
        pools, source = self._pools.current()
        cluster = self._cluster.fetch_cluster(_TIMEOUT).complete()
        return PoolsInUse(pools, members_of(pools, source, cluster), cluster.replication)

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                self.compute()
                failures = 0
            except Exception as error:
                failures += 1
                if not self._closed.is_set():
                    is_expected = isinstance(error, AutothrottleError)
                    log.warning("Forecast failed; it is repeated: %s", error, exc_info=not is_expected)
            self._closed.wait(FORECAST.wait(failures) if failures else _INTERVAL_SECONDS)
