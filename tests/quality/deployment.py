"""Lints the files of deploy/: the image, the compose file and the Helm chart. `make check` runs it.

python -m tests.quality.deployment
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autothrottle_lab.servers.jars import cache_directory
from tests.paths import ROOT

with warnings.catch_warnings():  # its own files are read with a function that Python deprecates
    warnings.simplefilter("ignore")
    import kubernetes_validate

# It reads the definitions of all types, some megabytes, for each resource.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

CHART = ROOT / "deploy" / "helm" / "autothrottle"
KUBERNETES = "1.33"
NO_HELM = "no helm on the PATH or in the cache; `make helm` builds it with go"


def find_helm() -> str | None:
    """Return the program `helm` of the PATH, or the one that `make helm` built."""
    return shutil.which("helm", path=f"{os.environ.get('PATH', '')}{os.pathsep}{cache_directory() / 'helm'}")


def render(values: Mapping[str, Any], *flags: str) -> list[dict[str, Any]]:
    """Return the resources of the chart, rendered by helm with further flags.

    Raises:
        ValueError: helm refuses the values.
    """
    helm = find_helm()
    assert helm, NO_HELM
    command = [helm, "template", "autothrottle", str(CHART), "--namespace", "kafka", "--values", "-", *flags]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
    return [resource for resource in yaml.load_all(done.stdout, yaml.CSafeLoader) if resource]


def validate(resources: Sequence[dict[str, Any]]) -> None:
    """Compare resources with the schemas of Kubernetes, which lack the types that operators add.

    Raises:
        kubernetes_validate.ValidationError: a resource is invalid.
    """
    for resource in resources:
        if resource["kind"] != "ServiceMonitor":
            _validate(json.dumps(resource))


@cache
def _validate(resource: str) -> None:
    """Most values of the chart change one resource: compare equal ones once."""
    kubernetes_validate.validate(json.loads(resource), KUBERNETES, strict=True)


def main() -> int:
    """Print what fails or is skipped, and return the exit status."""
    programs = Path(sys.executable).parent
    compose = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml"]
    commands = [["hadolint", "deploy/Dockerfile"], compose]
    status = max(subprocess.run([programs / command[0], *command[1:]], cwd=ROOT).returncode for command in commands)
    if find_helm() is None:
        print(f"skipped: validation of the chart; {NO_HELM}")
        return status
    for values in ({}, {"zookeeper": {"enabled": True}, "score": {"enabled": True}, "spool": {"persistent": True}}):
        validate(render(values))
    return status


if __name__ == "__main__":
    sys.exit(main())
