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
    counts = re.findall(r"^(.+): (\d+) files on the path, (\d+) in the process$", done.stdout, re.MULTILINE)
    assert [name for name, _, _ in counts] == ["a reassignment to its first throttle", "an HTTP override to its znode"]
    assert all(0 < int(on_path) < int(in_process) for _, on_path, in_process in counts)
    for file in (
        "core/cycle/step.py",
        "planner/loop.py",
        "adapters/kafka_zookeeper/config_writer.py",
        "admin/servicer.py",
    ):
        assert f"\n  services/autothrottle/{file}\n" in done.stdout
    assert "(services/autothrottle/adapters/datadog/metrics.py)" in done.stdout
