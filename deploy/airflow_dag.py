"""A DAG of Airflow 3 that compacts and scores the decision log every night.

The worker needs autothrottle with the extra `score` on its PATH, and access to the log. Set the two locations.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    dag_id="autothrottle_score",
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # Two runs would write the same tables.
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
) as dag:
    compact = BashOperator(
        task_id="compact",
        bash_command="autothrottle compact --decisions s3://bucket/decisions",
    )
    score = BashOperator(
        task_id="score",
        bash_command="autothrottle score --decisions s3://bucket/decisions --out s3://bucket/scores",
        # Nothing is new: the task is skipped, and so is what depends on it.
        skip_on_exit_code=3,
    )
    compact >> score
