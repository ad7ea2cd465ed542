"""Airflow itself accepts the DAG, in an environment that `make test-all` makes: build/airflow."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

PYTHON = ROOT / "build" / "airflow" / "bin" / "python"
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from airflow_dag import dag
print(json.dumps({name: sorted(task.downstream_task_ids) for name, task in dag.task_dict.items()}))
"""


@pytest.mark.repeat
@pytest.mark.skipif(not PYTHON.exists(), reason="no build/airflow; `make test-all` makes it")
def test_airflow_reads_the_dag(tmp_path: Path) -> None:
    variables = {
        "AIRFLOW_HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "error::DeprecationWarning:airflow_dag",
    }
    command = [str(PYTHON), "-c", PROGRAM, str(ROOT / "deploy")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"compact": ["score"], "score": []}
