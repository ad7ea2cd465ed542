"""Checks of the command lines of other programs in the pages, such as openssl, helm and docker.

`test_docs.py` applies them; `CHECKS` has one for each program.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.pages import PAGES, commands, issue_certificate
from tests.paths import ROOT

KEYS = {"AUTOTHROTTLE_API_KEY", "AUTOTHROTTLE_APP_KEY"}
FOREIGN_FLAGS = {
    "kafka-configs.sh": {
        *("bootstrap-server", "alter", "entity-type", "entity-name", "entity-default", "delete-config", "add-config"),
    },
    "kafka-acls.sh": {
        *("bootstrap-server", "add", "allow-principal", "cluster", "topic", "group", "operation"),
        *("list", "resource-pattern-type"),
    },
    "spark-submit": {"master", "deploy-mode", "py-files"},
    "docker": {"build", "target"},
    "groupadd": {"system"},
    "helm": {"namespace", "values"},
    "journalctl": {"unit"},
    "kubectl": {"namespace", "from-env-file", "from-file", "filename"},
    "node_exporter": {"collector"},
    "systemctl": {"now"},
    "pip": {"require-hashes", "no-index", "no-deps", "no-build-isolation"},
    "kafka-topics.sh": {"bootstrap-server", "delete", "topic"},
    "kafka-reassign-partitions.sh": {"throttle", "verify", "cancel", "preserve-throttles", "bootstrap-server"},
}
"""Foreign program -> its flags in the pages."""


def check_copy(words: list[str], directory: Path) -> None:
    """A file of the repository, or files that the openssl commands write; test_two_hosts.py copies them."""
    assert (ROOT / words[1]).is_file() or {*words[1:-1]} == {"ca.crt", "tls.crt", "tls.key"}


def check_openssl(words: list[str], directory: Path) -> None:
    issue_certificate(directory, "kafka-ops-7.example.com")
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "kafka-ops-7.example.com", "tls.crt"]
    assert subprocess.run(verify, capture_output=True, check=False).returncode == 0
    assert words in commands("openssl", page="docs/two-hosts.md")


def check_sed(words: list[str], directory: Path) -> None:
    """It changes the file of deploy/ that the page installs."""
    original = ROOT / "deploy" / Path(words[-1]).name
    (directory / "installed").write_text(original.read_text("utf-8"))
    subprocess.run([*words[:-1], directory / "installed"], check=True)
    assert (directory / "installed").read_text() != original.read_text("utf-8")


def check_foreign(words: list[str], directory: Path) -> None:
    flags = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
    assert flags <= FOREIGN_FLAGS.get(words[0], set())


def check_helm(words: list[str], directory: Path) -> None:
    """tests/unit/deploy renders the chart."""
    assert words[1] in ("install", "upgrade", "rollback", "uninstall")
    assert words[1] in ("rollback", "uninstall") or (ROOT / words[3] / "Chart.yaml").is_file()
    check_foreign(words, directory)


def check_kubectl(words: list[str], directory: Path) -> None:
    """The Secret has the files that the chart mounts, or variables of the program. Other files exist."""
    if words[1] == "apply":
        assert (ROOT / words[words.index("--filename") + 1]).is_file()
        return check_foreign(words, directory)
    if words[1] == "annotate":
        assert words[2] == "kafkatopic" and words[-1] in ("strimzi.io/managed=false", "strimzi.io/managed-")
        return check_foreign(words, directory)
    assert words[1:4] == ["create", "secret", "generic"]
    given = {word.partition("=")[2].partition("=")[0] for word in words if word.startswith("--from-")}
    if given == {"keys"}:  # a file of variables
        assert all(f"`{key}=...`" in PAGES["docs/kubernetes.md"] for key in KEYS)
        return check_foreign(words, directory)
    assert given == {"tls.crt", "tls.key", "ca.crt"}
    templates = (ROOT / "deploy/helm/autothrottle/templates/_helpers.tpl").read_text("utf-8")
    assert all(f"/etc/autothrottle/tls/{name}" in templates for name in given)
    check_foreign(words, directory)


def check_docker(words: list[str], directory: Path) -> None:
    """test_image.py builds the image, and test_compose.py starts the services, without Docker."""
    if words[1] == "buildx":
        assert words[2:4] == ["imagetools", "inspect"]
        return
    assert (ROOT / words[words.index("-f") + 1]).is_file()
    if words[1] == "build":
        image = words[words.index("-t") + 1]
        assert f":-{image}}}" in (ROOT / "deploy/compose.yaml").read_text("utf-8") or "--target" in words
    else:
        assert words[1] == "compose" and words[4] == "up"
    check_foreign(words, directory)


CHECKS: Mapping[str, Callable[[list[str], Path], None]] = {
    "cp": check_copy,
    "docker": check_docker,
    "helm": check_helm,
    "kubectl": check_kubectl,
    "openssl": check_openssl,
    "sed": check_sed,
    **dict.fromkeys(("kafka-acls.sh", "kafka-configs.sh", "kafka-topics.sh"), check_foreign),
    **dict.fromkeys(
        ("git", "systemctl", "journalctl", "mkdir", "install", "groupadd", "chgrp", "chmod"),
        check_foreign,
    ),
}
"""Program -> how its command line is checked."""
