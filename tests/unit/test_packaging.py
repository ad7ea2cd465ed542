"""The package's metadata agree with the repository."""

from __future__ import annotations

import re
import tomllib

from autothrottle import __version__
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_version_is_the_same_everywhere_and_has_a_section_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    first, second, *_ = re.findall(r"^## \[([\w.]+)\]", changelog, re.MULTILINE)
    assert (first, second) == ("Unreleased", PROJECT["version"])
    assert __version__ == PROJECT["version"]
    chart = (ROOT / "deploy/helm/autothrottle/Chart.yaml").read_text("utf-8")
    assert re.findall(r"^(?:appV|v)ersion: (\S+)$", chart, re.MULTILINE) == [__version__] * 2


def test_the_hosted_workflow_tries_every_version_of_the_classifiers() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named and all(f'"{version}"' in workflow for version in named)
    assert re.search(r"^ +- run: make release\b", workflow, re.MULTILINE)
    assert PROJECT["authors"] and PROJECT["urls"]
