"""The efficiency of each reassignment of a decision log by plain scripts with pandas and DuckDB, for comparison.

`python -m tests.benchmarks.scorer_competitors pandas LOG` prints reassignment id -> efficiency as JSON. The scripts do
what the efficiency needs: the stretches of each link side, its budget, and when it could have carried its bytes. They
leave out the causes of lost time, the counts, the timelines, the report and the tables, and they stop at damaged files.
pandas also computes the unused bytes of each stretch, and reads what its causes would need.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autothrottle.core.scoring.score import REFERENCE_RATIO

_USED = ["cluster", "term", "cycle", "time", "reassignment_id", "broker_id", "role", "capacity", "utilization"]
_USED += ["replication", "mean_throttle", "headroom", "rate_decided", "rate_applied", "reason", "min_rate"]
_USED += ["bytes_landed", "standing", "eta"]


def by_pandas(log: Path) -> Mapping[str, float]:
    """Return the efficiencies: all rows at once, sorted and shifted per link side."""
    import pandas as pd
    import pyarrow.parquet as pq

    rows = pd.concat(
        [pq.ParquetFile(path).read(_USED).to_pandas() for path in sorted((log / "decisions").rglob("*.parquet"))]
    )
    records = pd.concat(
        [pq.ParquetFile(path).read().to_pandas() for path in sorted((log / "reassignments").rglob("*.parquet"))]
    )
    done = records[records.status == "done"].set_index("reassignment_id")
    side = ["reassignment_id", "broker_id", "role"]
    rows = rows.drop_duplicates([*side, "term", "cycle"]).sort_values([*side, "term", "cycle"])
    rows = rows.join(done[["start", "finish"]], on="reassignment_id")
    by_side = rows.groupby(side, sort=False)
    rows["seconds"] = (by_side["time"].shift(-1).fillna(rows.finish) - rows.time).dt.total_seconds()
    rows["forecast"] = (rows.utilization - rows.replication.fillna(rows.mean_throttle)).clip(lower=0)
    rows["client"] = by_side["forecast"].shift(-1).fillna(rows.forecast)
    # The last known load, otherwise the first known one.
    rows["client"] = by_side["client"].ffill()
    rows["client"] = by_side["client"].bfill()
    rows["budget"] = (REFERENCE_RATIO * (rows.capacity - rows.client).clip(lower=0)).clip(lower=rows.min_rate)
    landed = by_side["bytes_landed"].shift(-1) - rows.bytes_landed
    rows["achieved"] = (landed / rows.seconds).fillna(rows.rate_applied)
    rows["unused"] = (rows.budget - rows.achieved) * rows.seconds
    rows["carried"] = rows.budget * rows.seconds
    rows["after"] = by_side["carried"].cumsum()
    rows["at"] = by_side["seconds"].cumsum() - rows.seconds
    amounts = {
        (name, path[role], role): path["bytes_landed"]
        for name, paths in done.paths.items()
        for path in paths
        for role in ("leader", "follower")
    }
    rows["amount"] = pd.Series(amounts).reindex(pd.MultiIndex.from_frame(rows[side])).to_numpy()
    before = rows.after - rows.carried
    here = rows[(before < rows.amount) & (rows.after >= rows.amount)]
    times = here["at"] + (here.amount - (here.after - here.carried)) / here.budget
    bound = times.groupby([here[c] for c in side]).min()
    last = rows.groupby(side, sort=False).tail(1).set_index(side)
    beyond = last["at"] + last.seconds + (last.amount - last.after) / last.budget
    bound = bound.reindex(beyond.index).fillna(beyond)
    efficiency = bound.groupby("reassignment_id").max() / (done.finish - done.start).dt.total_seconds()
    return {str(name): float(value) for name, value in efficiency.items()}


_SQL = """
WITH done AS (
  SELECT reassignment_id, epoch_us(start) / 1e6 AS start, epoch_us(finish) / 1e6 AS finish, paths
  FROM read_parquet('{log}/reassignments/**/*.parquet', hive_partitioning = false) WHERE status = 'done'
), paths AS (
  SELECT reassignment_id, unnest(paths) AS path FROM done
), amounts AS (
  SELECT reassignment_id, path.leader AS broker_id, 'leader' AS role, sum(path.bytes_landed) AS amount
  FROM paths GROUP BY ALL
  UNION ALL
  SELECT reassignment_id, path.follower, 'follower', sum(path.bytes_landed) FROM paths GROUP BY ALL
), logged AS (
  SELECT reassignment_id, broker_id, role, term, cycle, epoch_us(time) / 1e6 AS at_time, capacity, min_rate,
    greatest(utilization - coalesce(replication, mean_throttle), 0) + 0 * utilization AS forecast
  FROM read_parquet('{log}/decisions/**/*.parquet', hive_partitioning = false)
  QUALIFY row_number() OVER (PARTITION BY reassignment_id, broker_id, role, term, cycle) = 1
), neighbours AS (
  SELECT *, lead(at_time) OVER side AS next_time,
    coalesce(lead(forecast) OVER side, forecast) AS next_forecast,
    row_number() OVER side AS number, lead(cycle) OVER side IS NULL AS is_last
  FROM logged WINDOW side AS (PARTITION BY reassignment_id, broker_id, role ORDER BY term, cycle)
), filled AS (
  SELECT *, coalesce(
    last_value(next_forecast IGNORE NULLS) OVER (side ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
    first_value(next_forecast IGNORE NULLS) OVER (side ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
  ) AS client
  FROM neighbours WINDOW side AS (PARTITION BY reassignment_id, broker_id, role ORDER BY number)
), stretches AS (
  SELECT f.*, finish - start AS duration, amount, coalesce(next_time, finish) - at_time AS seconds,
    greatest({ratio} * greatest(capacity - client, 0), min_rate) AS budget
  FROM filled f JOIN done USING (reassignment_id) JOIN amounts USING (reassignment_id, broker_id, role)
), summed AS (
  SELECT *, sum(budget * seconds) OVER side AS after, sum(seconds) OVER side - seconds AS elapsed
  FROM stretches WINDOW side AS (PARTITION BY reassignment_id, broker_id, role ORDER BY number)
), sides AS (
  SELECT reassignment_id, duration, coalesce(
    min(CASE WHEN after - budget * seconds < amount AND after >= amount
      THEN elapsed + (amount - (after - budget * seconds)) / budget END),
    max(CASE WHEN is_last THEN elapsed + seconds + (amount - after) / budget END)
  ) AS bound
  FROM summed GROUP BY reassignment_id, broker_id, role, duration
)
SELECT reassignment_id, max(bound) / any_value(duration) FROM sides GROUP BY reassignment_id
"""


def by_duckdb(log: Path) -> Mapping[str, float]:
    """Return the efficiencies: one query with windows per link side."""
    import duckdb

    result = duckdb.sql(_SQL.format(log=log, ratio=REFERENCE_RATIO))
    rows: list[Any] = result.fetchall() if result else []
    return {name: float(value) for name, value in rows}


COMPETITORS: Mapping[str, Callable[[Path], Mapping[str, float]]] = {"pandas": by_pandas, "duckdb": by_duckdb}

if __name__ == "__main__":
    print(json.dumps(COMPETITORS[sys.argv[1]](Path(sys.argv[2]))))
