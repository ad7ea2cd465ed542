"""Two hosts with systemd: the commands of docs/two-hosts.md, and the unit's command in two network namespaces."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autothrottle_lab.servers.kafka_kraft import CONTROLLER_ID, KraftCluster
from autothrottle_lab.servers.processes import Process, run_command
from tests.builders import eventually
from tests.pages import commands, issue_certificate
from tests.paths import ROOT
from tests.system.hosts import NEEDS_HOSTS, Host, network

pytestmark = [NEEDS_HOSTS, pytest.mark.repeat, pytest.mark.timeout(600)]

PAGE = "docs/two-hosts.md"
PROGRAMS = Path(sys.executable).parent
THROTTLECTL = "/opt/autothrottle/bin/throttlectl"
ELSEWHERE = ("openssl", THROTTLECTL, "python3", "/opt/autothrottle/bin/pip", "systemctl", "groupadd", "chgrp")
"""Commands of the page that `install` leaves out. Those that would change this machine are not run at all."""


class Installation:
    """What the page installs on one host, below a directory."""

    def __init__(self, host: Host, root: Path) -> None:
        self.host, self._root = host, root
        (root / "etc/systemd/system").mkdir(parents=True)
        self._unit = root / "etc/systemd/system/autothrottle.service"

    def local(self, text: str) -> str:
        """Return a command or file of the page with this host's name and the test's paths."""
        for path in ("/etc/autothrottle", "/etc/systemd/system"):
            text = text.replace(path, f"{self._root}{path}")
        text = text.replace("/opt/autothrottle/bin/", f"{PROGRAMS}/")
        return text.replace("kafka-ops-1.example.com", self.host.name)

    def install(self, authority: Path, kafka: str) -> None:
        """Follow the page up to the start; `authority` is the directory with the authority's files."""
        issue_certificate(authority, self.host.name)
        for words in commands(page=PAGE):
            if words[0] in ELSEWHERE:
                continue
            given = [str(ROOT / word) if word.startswith("deploy/") else self.local(word) for word in words]
            subprocess.run(given, cwd=authority, check=True, capture_output=True, text=True)
        configuration = Path(self.local("/etc/autothrottle/autothrottle.toml"))
        text = self.local(configuration.read_text())
        configuration.write_text(re.sub(r"kafka\d\.example\.com:9092", kafka, text))
        with Path(self.local("/etc/autothrottle/keys")).open("a") as keys:
            keys.write("AUTOTHROTTLE_API_KEY=k1\nAUTOTHROTTLE_APP_KEY=k2\n")

    def setting(self, name: str) -> str:
        """Return a setting of the installed unit."""
        (value,) = re.findall(rf"^{name}=(.*)$", self._unit.read_text(), re.MULTILINE)
        return self.local(value)

    def process(self) -> Process:
        """Return the process that systemd starts, with the variables of the unit only."""
        variables = dict(line.split("=", 1) for line in Path(self.setting("EnvironmentFile")).read_text().splitlines())
        command = self.host.command(shlex.split(self.setting("ExecStart")), variables)
        return Process(self.host.name, command, self._root / "journal.log")

    def state(self) -> dict[str, Any]:
        """Return what the page's `throttlectl state` prints on this host; {}: it failed."""
        (words,) = commands(THROTTLECTL, page=PAGE)
        status, output = run_command(self.host.command([*map(self.local, words), "-o", "json"], {}), 60)
        found: dict[str, Any] = json.loads(output) if status == 0 else {}
        return found


def test_either_host_names_the_leader_and_the_other_one_takes_over(tmp_path: Path) -> None:
    names = ["kafka-ops-1.example.com", "kafka-ops-2.example.com"]
    authority = tmp_path / "authority"
    authority.mkdir()
    with network(tmp_path, names) as found:
        places = dict.fromkeys((CONTROLLER_ID, 1001), found.machine)
        with KraftCluster(tmp_path / "kafka", (1001,), places=places) as kafka:
            installations = {host.name: Installation(host, tmp_path / host.name) for host in found.hosts}
            for one in installations.values():
                one.install(authority, kafka.bootstrap_servers)
                assert one.setting("SupplementaryGroups") == "autothrottle-tls"
            first, second = (one.process() for one in installations.values())
            with first, second:
                processes = dict(zip(names, (first, second), strict=True))
                leader = agreed_leader(installations, processes)
                other = next(name for name in names if name != leader)
                processes[leader].kill()
                killed = time.monotonic()
                eventually(lambda: installations[other].state().get("leader_address") == f"{other}:8090")
                print(f"\nthe other host leads {time.monotonic() - killed:.1f} s after SIGKILL of the leader")
                processes[leader].start()  # as systemd does
                assert agreed_leader(installations, processes) == other
                for name, process in processes.items():
                    process.terminate()
                    assert process.wait(float(installations[name].setting("TimeoutStopSec"))) == 0


def agreed_leader(installations: dict[str, Installation], processes: dict[str, Process]) -> str:
    """Wait until all hosts name the same leader and list both planners; return its name."""
    states: list[dict[str, Any]] = []

    def agree() -> bool:
        for process in processes.values():
            assert process.running, process.log_end()
        states[:] = [one.state() for one in installations.values()]
        addresses = {state.get("leader_address") for state in states}
        hosts = [{member["host"] for member in state.get("members", ())} for state in states]
        return len(addresses) == 1 and None not in addresses and all(found == {*installations} for found in hosts)

    eventually(agree)
    name: str = states[0]["leader_host"]
    assert states[0]["leader_address"] == f"{name}:8090"
    return name
