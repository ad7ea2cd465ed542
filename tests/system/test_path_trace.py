"""The trace of the files between an event and its write runs the program as an operator would."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.paths import ROOT


@pytest.mark.repeat
@pytest.mark.server
def test_the_trace_names_the_files_of_both_paths() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.quality.path_trace", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    counts = dict(re.findall(r"^(.+): (\d+) files$", done.stdout, re.MULTILINE))
    assert counts.keys() == {"a reassignment to its first throttle", "an HTTP override to its znode"}
    for file in ("core/cycle/step.py", "planner/loop.py", "adapters/kafka_zookeeper/config_writer.py"):
        assert f"services/autothrottle/{file}" in done.stdout
