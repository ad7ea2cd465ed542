"""`make release` builds the distributions and tries the wheel in empty environments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.quality.release import COMMANDS, EXTRAS, NO_EXTRA, SBOM_EXTRAS, sbom_of


@pytest.mark.parametrize("extras", [NO_EXTRA, pytest.param(",".join(EXTRAS[1:]), marks=pytest.mark.repeat)])
def test_every_program_of_the_wheel_answers_or_names_its_extra(extras: str, tmp_path: Path) -> None:
    """Three of four programs ended with a traceback where the package was installed without the extra `service`.

    The wheel was never installed outside of the repository's own environment, which has all extras.
    """
    command = ["make", "release", f"ARGS=--extras {extras} --out {tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    for extra in extras.split(","):
        assert f"Tried {len(COMMANDS)} commands of {wheel.name} with extra {extra}" in done.stdout
    assert len(list(tmp_path.glob("*.tar.gz"))) == 1
    deployed = sorted({*extras.split(",")} & {*SBOM_EXTRAS})
    assert sorted(path.name for path in tmp_path.glob("*.cdx.json")) == [
        sbom_of(wheel, extra).name for extra in deployed
    ]
    for extra in deployed:
        text = sbom_of(wheel, extra).read_text("utf-8")
        packages = {component["name"] for component in json.loads(text)["components"]}
        assert {"grpcio", "kafka-python", "kazoo", "uvicorn"} <= packages
        assert ("pyspark" in packages) == (extra == "score")
        assert str(ROOT) not in text and str(tmp_path) not in text and "file:" not in text
