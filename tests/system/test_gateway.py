"""`autothrottle run` on a real ZooKeeper: what is set over HTTP stands where the original reads it."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path

from kazoo.client import KazooClient

from autothrottle.core.configs import FOLLOWER_RATE, LEADER_RATE
from autothrottle.lab.processes import Process
from autothrottle.lab.zookeeper import ZooKeeperServer

START_SECONDS = 30.0
FLAGS = ("--api-listen=127.0.0.1:0", "--datadog-url=http://127.0.0.1:1", "--zk-prefix=/kafka")
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}


def said(address: str, verb: str, target: str) -> str:
    request = urllib.request.Request(f"http://{address}{target}", method=verb)
    with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
        text: str = response.read().decode()
    return text


def rates(client: KazooClient) -> dict[str, str]:
    """The dynamic configs of broker 1001."""
    path = "/kafka/config/brokers/1001"
    found: dict[str, str] = json.loads(client.get(path)[0])["config"] if client.exists(path) else {}
    return found


def test_an_override_set_over_http_stands_in_the_originals_format_and_starts_a_cycle(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    command = [sys.executable, "-m", "autothrottle", "run", f"--zk-addr={fresh_zookeeper.connect}", *FLAGS]
    client = KazooClient(fresh_zookeeper.connect)
    client.start()
    for path in ("/kafka/brokers/ids", "/kafka/brokers/topics", "/kafka/config/brokers", "/kafka/config/changes"):
        client.ensure_path(path)
    client.create("/kafka/brokers/ids/1001", b"{}")
    try:
        with Process("run", command, log, KEYS) as run:
            run.wait_until(lambda: "Admin API: " in log.read_text(), START_SECONDS)
            (address,) = re.findall(r" Admin API: (\S+)$", log.read_text(), re.MULTILINE)
            assert re.search(r" gRPC API: 127\.0\.0\.1:\d+$", log.read_text(), re.MULTILINE)
            set_to = "broker 1001: throttle successfully set to 50MB/s, autoremove==false\n"
            assert said(address, "POST", "/throttle/1001?rate=50") == set_to
            stands = json.loads(client.get("/autothrottle/override_rate/1001")[0])
            assert (stands["rate"], stands["autoremove"]) == (50, False)
            # The interval is 180 s: only a cycle that the POST has started writes it now.
            run.wait_until(lambda: rates(client) == {LEADER_RATE: "50000000", FOLLOWER_RATE: "50000000"}, START_SECONDS)
            assert json.loads(said(address, "GET", "/v1/state"))["overrides"][0]["rateBytesPerSecond"] == "50000000"
            assert said(address, "POST", "/throttle/remove/all") == "broker 1001: throttle removed\n"
            run.wait_until(lambda: rates(client) == {}, START_SECONDS)
            assert client.exists("/autothrottle/override_rate/1001") is None
            run.terminate()
            assert run.wait(START_SECONDS) == 0
            assert "Traceback" not in log.read_text()
    finally:
        client.stop()
        client.close()
