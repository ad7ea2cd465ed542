"""The container image: built from its Dockerfile, then run as its user on a read-only root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from autothrottle import __version__
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, free_ports, run_command, scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.paths import ROOT
from tests.system.dockerfile import Image, build
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch
from tests.system.zookeeper_tree import ledger_entries

pytestmark = [
    pytest.mark.repeat,
    pytest.mark.xdist_group("kraft_cluster"),  # one process builds the image, once
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


def test_a_recovery_is_throttled_from_inside_the_image(
    image: Image, kraft_cluster: KraftCluster, zookeeper: ZooKeeperServer, client: KazooClient, tmp_path: Path
) -> None:
    """Loads come from Kafka itself, and the state is in ZooKeeper."""
    cluster, topic, prefix, destination = kraft_cluster, "moving-image", "autothrottle-image-recovery", 1005
    (port,) = free_ports(1)
    health = image.command(image.health_command, {"HEALTH_URL": f"http://127.0.0.1:{port}/healthz"})
    options = [
        *("--kafka-backend", "admin", "--bootstrap-servers", cluster.bootstrap_servers, "--metrics-source", "kafka"),
        *("--capacity", "20MB/s", "--min-rate", "1", "--interval", "4", "--metrics-window", "12"),
        *("--zk-addr", zookeeper.connect, "--zk-config-prefix", prefix),
        *("--api-listen", f"127.0.0.1:{port}", "--grpc-listen", "127.0.0.1:0"),
    ]
    cluster.create_topic(topic, {p: [1001 + p, 1002 + p] for p in range(3)})
    fill(cluster, topic, 100 * MEGABYTE, record_bytes=20_000)
    before = cluster.stored_configs()
    command = image.command([*image.entrypoint, "run", *options])
    with Process("image", command, tmp_path / "image.log") as process:
        process.wait_until(lambda: run_command(health)[0] == 0, 60)
        with RecoveryWatch(cluster, topic) as watch:
            cluster.reassign_through_bootstrap({(topic, p): [1001 + p, destination] for p in range(3)})
            throttled = watch.wait_until(
                lambda s: (destination, FOLLOWER_RATE) in s.rates and bool(s.moving) and s.lists == s.expected,
                30,
                "throttled",
            )
            watch.wait_until(lambda s: not s.moving and s.at > throttled.at, 180, "the reassignment ends")
            watch.wait_until(lambda s: not s.rates and not any(s.lists), 30, "clean")
        eventually(lambda: not ledger_entries(client, OwnPaths(prefix)), 10)
        assert run_command(health)[0] == 0
        process.terminate()
        assert process.wait(30.0) == 0
    assert cluster.stored_configs() == before
    cluster.delete_topic(topic)
    rates = [rate for _, rate in watch.rates_of(destination) if rate is not None]
    assert rates and all(MEGABYTE <= rate <= 20 * MEGABYTE for rate in rates), rates


def test_the_image_of_the_score_reaches_an_object_store_from_a_read_only_root() -> None:
    """The chart's nightly score had no image."""
    with scratch_directory() as directory:
        base = directory / "base"
        status, output = run_command(["debootstrap", "--variant=minbase", "bookworm", str(base)])
        assert status == 0, output[-2000:]
        image = build(ROOT / "deploy/Dockerfile", ROOT, base, directory, target="score")
        store = "s3://bucket/decisions?endpoint_override=127.0.0.1:9&scheme=http"
        arguments = ["score", "--decisions", store, "--out", "/tmp/scores"]
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        _, output = run_command(image.command([*image.entrypoint, *arguments], keys), 900)
        assert "cannot be read or written" in output and "curlCode: 7" in output, output[-3000:]
