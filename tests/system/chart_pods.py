"""Pods of the rendered Helm chart as processes: the container's command, environment, files and probes.

Addresses and paths of the cluster become free ports of this machine and directories of the test.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autothrottle_lab.servers.processes import Process, free_ports
from tests.paths import ROOT
from tests.system.dockerfile import read_image

Resources = Sequence[Mapping[str, Any]]

PROGRAMS = Path(sys.executable).parent
"""Directory of the image's entry point in this virtual environment."""


def named(resources: Resources, kind: str, name: str) -> Mapping[str, Any]:
    (found,) = (one for one in resources if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


class Pod:
    """One pod of the StatefulSet; `process` is its container."""

    def __init__(
        self,
        resources: Resources,
        ordinal: int,
        directory: Path,
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Create the files of a pod.

        Args:
            resources: what helm renders.
            ordinal: the pod's number, from 0.
            directory: for its files and its log; created.
            secrets: name of a Secret that the chart does not create -> its keys and values.
        """
        stateful = named(resources, "StatefulSet", "autothrottle")
        self._resources, self._secrets, self._directory = resources, secrets, directory
        self._spec = stateful["spec"]["template"]["spec"]
        (self._container,) = self._spec["containers"]
        self.name = f"{stateful['metadata']['name']}-{ordinal}"
        self.grace_seconds = float(self._spec["terminationGracePeriodSeconds"])
        container_ports = [port["containerPort"] for port in self._container["ports"]]
        self._ports = dict(zip(container_ports, free_ports(len(container_ports)), strict=True))
        self._environment = self._variables()
        directory.mkdir()
        for mount in self._container["volumeMounts"]:
            self._mount(mount)
        entrypoint = read_image(ROOT / "deploy/Dockerfile").entrypoint
        command = [str(PROGRAMS / entrypoint[0]), *entrypoint[1:], *map(self._local, self._container["args"])]
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        self.process = Process(self.name, ["/usr/bin/env", "-i", *variables, *command], directory / "container.log")

    def passes(self, probe: str) -> bool:
        """Send the request of a probe as the kubelet does: to the pod's IP address, without checking the certificate.

        Args:
            probe: `livenessProbe` or `readinessProbe`.
        """
        given = self._container[probe]
        get, seconds = given["httpGet"], given["timeoutSeconds"]
        (port,) = (p["containerPort"] for p in self._container["ports"] if p["name"] == get["port"])
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        address = ("127.0.0.1", self._ports[port])
        connection = (
            http.client.HTTPSConnection(*address, timeout=seconds, context=context)
            if get["scheme"] == "HTTPS"
            else http.client.HTTPConnection(*address, timeout=seconds)
        )
        try:
            connection.request("GET", get["path"], headers={"Host": f"10.1.2.3:{port}"})
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def wait_until_ready(self, within_seconds: float = 120.0) -> None:
        """Wait until the readiness probe passes; it runs once per period."""
        period = float(self._container["readinessProbe"]["periodSeconds"])
        self.process.wait_until(lambda: self.passes("readinessProbe"), within_seconds, poll_seconds=period)

    def restart(self) -> None:
        """Replace the pod, as the StatefulSet's controller does: SIGTERM, end, start, readiness."""
        self.process.terminate()
        assert self.process.wait(self.grace_seconds) == 0, self.process.log_end()
        self.process.start()
        self.wait_until_ready()

    @property
    def grpc_address(self) -> str:
        """Address of the gRPC API."""
        (port,) = (p["containerPort"] for p in self._container["ports"] if p["name"] == "grpc")
        return f"127.0.0.1:{self._ports[port]}"

    def path(self, inside: str) -> Path:
        """Return where a path of the container is."""
        return Path(self._local(inside))

    def _local(self, text: str) -> str:
        for mount in self._container["volumeMounts"]:
            parent = mount["mountPath"]
            if parent != "/tmp" and not parent.startswith("/etc/autothrottle/"):
                text = text.replace(parent, f"{self._directory}{parent}")
        text = text.replace("/etc/autothrottle", f"{self._directory}/etc/autothrottle")
        for port, local in self._ports.items():
            text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{local}")
        return text

    def _variables(self) -> dict[str, str]:
        """Return the container's variables; the pod's DNS name becomes its address here."""
        found: dict[str, str] = {}
        for variable in self._container["env"]:
            if "valueFrom" in variable:
                assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                found[variable["name"]] = self.name
                continue
            value = variable["value"]
            for name, known in found.items():
                value = value.replace(f"$({name})", known)
            found[variable["name"]] = value.replace(f"{self.name}.autothrottle-pods.kafka.svc", "127.0.0.1")
        for source in self._container.get("envFrom", ()):
            found |= self._secret(source["secretRef"]["name"])
        return found

    def _secret(self, name: str) -> Mapping[str, str]:
        if name in self._secrets:
            return self._secrets[name]
        data: Mapping[str, str] = named(self._resources, "Secret", name)["stringData"]
        return data

    def _mount(self, mount: Mapping[str, Any]) -> None:
        (volume,) = (one for one in self._spec["volumes"] if one["name"] == mount["name"])
        target = self.path(mount["mountPath"])
        if target == Path("/tmp"):
            return
        if "emptyDir" in volume:
            target.mkdir(parents=True)
            return
        if "secret" in volume:
            data = self._secret(volume["secret"]["secretName"])
        else:
            data = named(self._resources, "ConfigMap", volume["configMap"]["name"])["data"]
        files = {target: data[mount["subPath"]]} if "subPath" in mount else {target / key: data[key] for key in data}
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._local(content))
