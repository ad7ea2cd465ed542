"""The container image: built from its Dockerfile, then run as its user on a read-only root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle import __version__
from autothrottle_lab.servers.processes import Process, free_ports, run_command, scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.paths import ROOT
from tests.system.dockerfile import Image, build

pytestmark = [
    pytest.mark.repeat,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the image is built in a chroot"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs Debian's debootstrap"),
]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with scratch_directory() as directory:
        base = directory / "base"
        status, output = run_command(["debootstrap", "--variant=minbase", "bookworm", str(base)])
        assert status == 0, output[-2000:]
        yield build(ROOT / "deploy/Dockerfile", ROOT, base, directory)


def test_image_has_no_compiler_and_no_build_tools(image: Image) -> None:
    status, output = run_command(image.command(["sh", "-c", "command -v pip gcc make || autothrottle --version"]))
    assert status == 0 and output == f"{__version__}\n", output


def test_image_runs_as_its_user_on_a_read_only_root(image: Image, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    health = image.command(image.health_command, {"HEALTH_URL": f"http://127.0.0.1:{port}/healthz"})
    options = [
        f"--zk-addr={zookeeper.connect}",
        "--zk-config-prefix=autothrottle-image",
        f"--api-listen=127.0.0.1:{port}",
        "--grpc-listen=127.0.0.1:0",
    ]
    keys = {"AUTOTHROTTLE_API_KEY": "a", "AUTOTHROTTLE_APP_KEY": "b", "AUTOTHROTTLE_DATADOG_URL": "http://127.0.0.1:9"}
    command = image.command([*image.entrypoint, "run", *options], keys)
    with Process("image", command, tmp_path / "image.log") as process:
        eventually(lambda: run_command(health)[0] == 0 or not process.running, 60)
        assert process.running, process.log_end()
        owner = subprocess.run(["ps", "-o", "uid=", "-p", str(process.pid)], capture_output=True, text=True, check=True)
        assert owner.stdout.strip() == image.user.partition(":")[0]
        process.terminate()
        assert process.wait(30.0) == 0
