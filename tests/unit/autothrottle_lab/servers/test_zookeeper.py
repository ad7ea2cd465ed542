"""Tests of the command that starts ZooKeeper."""

from __future__ import annotations

import os
from pathlib import Path

from autothrottle_lab.servers.zookeeper import archive_name


def test_jars_installed_anew_at_the_same_path_have_another_archive_of_classes(tmp_path: Path) -> None:
    """After a new installation of pyspark, servers started with the old archive. Java ignored it and started slowly."""
    jar = tmp_path / "zookeeper.jar"
    jar.touch()
    first = archive_name([jar])
    os.utime(jar, (1, 1))
    assert archive_name([jar]) != first
