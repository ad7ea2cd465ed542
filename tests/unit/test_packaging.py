"""The package's metadata agree with the repository."""

from __future__ import annotations

import re
import tomllib

from autothrottle import __version__
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

PRIVATE_NAMES = {
    "kazoo": {
        "_call",
        "_connection",
        "_data_watchers",
        "_read_watch_event",
        "_safe_close",
        "_session_callback",
        "_xid",
    },
    "kafka-python": {"_sock"},
    "pyspark": {"_ensure_initialized", "_jsc", "_jvm"},
    "urllib3": {"_new_conn"},
    "uvicorn": {"_unset_keepalive_if_required"},
}
"""Library -> its private names that we use. kafka-python has public names in modules that are internals."""

OF_PYTHON = {"_ActionsContainer", "_actions", "_asdict", "_current_frames", "_exit", "_fields", "_name_", "_replace"}
OF_PYTHON |= {"_srcfile", "_value_"}


def private_names() -> set[str]:
    """Return the private attributes that our sources use and nowhere define."""
    paths = [path for folder in ("services", "clients") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text("utf-8") for path in paths if "_pb2" not in path.name)
    defined = {*re.findall(r"(?:def |^ *)(_[a-zA-Z]\w*)", text, re.MULTILINE)}
    for line in re.findall(r"^ *(?:self|cls)\..*=", text, re.MULTILINE):
        defined |= {*re.findall(r"\b(?:self|cls)\.(_\w+)", line)}
    return {*re.findall(r"[\w)\]]\.(_[a-zA-Z]\w*)", text)} - defined


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


def test_libraries_whose_private_parts_we_use_have_an_upper_bound() -> None:
    """A new release may change a private part without notice: whoever installs it then finds out at run time."""
    listed = set().union(OF_PYTHON, *PRIVATE_NAMES.values())
    assert private_names() <= listed
    bounded = {
        re.split(r"[^\w-]", requirement)[0]
        for extra in PROJECT["optional-dependencies"].values()
        for requirement in extra
        if "<" in requirement
    }
    assert {"kafka-python", *PRIVATE_NAMES} <= bounded
