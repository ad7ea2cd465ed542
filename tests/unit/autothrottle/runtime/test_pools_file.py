"""The pools file of the services: read again when it has changed. `topicmappr.test_pools` has its faults."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from autothrottle.__main__ import main
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.pools_file import FollowedPools, read_pools
from autothrottle.runtime.sources import Given, Rank, from_file

POOLS = """
[pools.orders]
topics = ["orders"]
brokers = [1, 2, 3]
shared = true

[pools.logs]
topics = ["logs"]
brokers = [3]
shared = true

[pools.large]
topics = ["large"]
brokers = { instance_types = ["large"] }

[pools.zone]
topics = ["zone"]
brokers = { racks = ["a"], instance_types = ["large"] }

[instances.large]
brokers = [7]
storage = "1TB"
network_in = "100MB/s"
network_out = "100MB/s"
"""


def test_only_brokers_in_exactly_one_pool_have_its_name(tmp_path: Path) -> None:
    """The racks of brokers are unknown without a cluster, so a rule on racks names no broker."""
    path = tmp_path / "pools.toml"
    path.write_text(POOLS)
    assert FollowedPools(str(path)).broker_pools() == {1: "orders", 2: "orders", 7: "large"}


def test_a_faulty_new_file_leaves_the_last_good_one_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "pools.toml"
    path.write_text(POOLS)
    pools = FollowedPools(str(path))
    assert [sample.value for sample in pools.samples()] == [1]
    path.write_text(POOLS.replace('"orders"]', '"orders"'))
    assert [sample.value for sample in pools.samples()] == [0]
    assert pools.broker_pools()[1] == "orders" and "is not TOML" in pools.problem
    path.write_text(POOLS.replace("pools.orders", "pools.payments"))
    assert pools.broker_pools()[1] == "payments"
    assert [sample.value for sample in pools.samples()] == [1]
    warning, reload = [record.message for record in caplog.records]
    assert warning.startswith("Pools file: ") and warning.endswith("The previous contents stay in use")
    assert reload == f"Reloaded: {path}"


def test_a_faulty_file_at_the_start_is_a_problem_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pools.toml"
    path.write_text('[pools.a]\ntopics = ["a"]\n')
    assert main(("admin", "--pools", str(path))) == 2
    assert "line 1, pools.a: brokers is absent" in capsys.readouterr().err


def test_many_brokers_and_unknown_keys_take_linear_time(tmp_path: Path) -> None:
    """40,000 brokers in one pool took 5.6 s, and 4,000 unknown keys 6 s: both grew with the square of their number."""
    path = tmp_path / "pools.toml"
    ids = ",".join(map(str, range(40_000)))
    unknown = "\n".join(f"key{number} = 1" for number in range(4_000))
    path.write_text(f'[pools.a]\ntopics = ["x"]\nbrokers = [{ids}]\n{unknown}\nx = """\n{" " * 200_000}"""\n')
    begin = time.process_time()
    with pytest.raises(InvalidConfiguration) as error:
        read_pools(str(path))
    assert error.value.problems[3_999].startswith(f"{path}, line 4003, pools.a.key3999: unknown. Fix: one of topics, ")
    path.write_text(f'[pools.a]\ntopics = ["x"]\nbrokers = [{ids}, 7]\n')
    with pytest.raises(InvalidConfiguration, match="7 is there twice"):
        read_pools(str(path))
    path.write_text(unknown)
    problems = from_file(Given(str(path), "flag", Rank.FLAG))[1]
    assert len(problems) == 4_000 and f"key *** of {path}, line 4000 is unknown" in problems[-1]
    assert time.process_time() - begin < 3
