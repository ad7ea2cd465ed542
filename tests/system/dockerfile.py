"""Builds an image from its Dockerfile without a container daemon: each instruction is carried out in a root directory.

It knows the instructions that deploy/Dockerfile uses, and fails at others. It needs root and debootstrap.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

_HOST_FILES = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d")
"""The build reaches package registries as this machine does. They are copied, so that a build cannot change them."""
_HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATES = "/etc/build-certificates.crt"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Image:
    """A stage of a Dockerfile, built in a directory."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _DEFAULT_PATH})
    directory: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    health_command: tuple[str, ...] = ()

    def configure(self, name: str, rest: str) -> None:
        """Carry out an instruction that says how the image runs."""
        match name:
            case "ENV":
                self.environment |= dict([rest.split("=", 1)])
            case "USER":
                self.user = rest
            case "ENTRYPOINT":
                self.entrypoint = tuple(json.loads(rest))
            case "HEALTHCHECK":
                self.health_command = tuple(json.loads(rest.partition("CMD ")[2]))
            case "EXPOSE" | "CMD":
                pass
            case _:
                raise ValueError(f"{name} is not supported; teach {__name__} the instruction")

    def command(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """Return the command that runs a program as the image's user on a read-only root with a tmpfs at /tmp."""
        root = shlex.quote(str(self.root))
        mounts = f"mount --bind {root} {root} && mount -o remount,bind,ro {root} && mount -t tmpfs tmpfs {root}/tmp"
        variables = [f"{name}={value}" for name, value in {**self.environment, **(environment or {})}.items()]
        inside = ["chroot", f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i", *variables, *arguments]
        script = f"{mounts} && mount -t proc proc {root}/proc && exec {shlex.join(inside)}"
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]

    def run(self, shell_command: str) -> None:
        """Carry out a RUN instruction."""
        root = self.root
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        variables += [f"{name}={_CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
        shell = ["sh", "-ec", f"cd {self.directory} && {shell_command}"]
        inside = shlex.join(["chroot", str(root), "/usr/bin/env", "-i", *variables, *shell])
        script = f"mount -t proc proc {root}/proc && exec {inside}"
        _run(["unshare", "--mount", "--propagation", "private", "sh", "-ec", script])

    def copy(self, sources: Sequence[Path], target: str) -> None:
        """Carry out a COPY instruction."""
        path = self.root / (target if target.startswith("/") else f"{self.directory}/{target}").lstrip("/")
        if target.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, path, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(source, path)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions as (name, arguments).

    >>> instructions("# base\\nFROM a AS b\\nRUN x \\\\\\n && y\\n")
    [('FROM', 'a AS b'), ('RUN', 'x  && y')]
    """
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n", "", lines)
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def _use_registries_of_host(root: Path) -> None:
    for path in filter(os.path.exists, _HOST_FILES):
        target = root / path.lstrip("/")
        if Path(path).is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)
    if _HOST_CERTIFICATES.exists():
        shutil.copy(_HOST_CERTIFICATES, root / _CERTIFICATES.lstrip("/"))


def stages_for(dockerfile: str, target: str = "") -> set[str]:
    """Return the names of the stages that a target needs; "": the last stage. A stage without a name has its number.

    >>> sorted(stages_for("FROM x AS a\\nFROM a AS b\\nFROM x AS c\\nFROM x\\nCOPY --from=c /c /c\\n", "b"))
    ['a', 'b']
    """
    needs: dict[str, set[str]] = {}
    for name, rest in instructions(dockerfile):
        words = rest.split()
        if name == "FROM":
            stage = words[-1] if "AS" in words else str(len(needs))
            needs[stage] = {words[0]} & needs.keys()
        elif name == "COPY" and words[0].startswith("--from="):
            needs[stage].add(words[0].removeprefix("--from="))
    wanted, waiting = set[str](), [target or stage]
    while waiting:
        wanted.add(waiting[-1])
        waiting += needs[waiting.pop()] - wanted
    return wanted


def build(dockerfile: Path, context: Path, base: Path, directory: Path, target: str = "") -> Image:
    """Build a stage, and the stages that it needs, below `directory`; return it.

    Args:
        dockerfile: the file.
        context: directory of the sources of COPY.
        base: root of the image that every stage starts from.
        directory: where the stages' roots are created.
        target: name of the stage; "": the last one.
    """
    stages: dict[str, Image] = {}
    _use_registries_of_host(base)
    text, image, count, stage = dockerfile.read_text(), Image(base), 0, ""
    needed = stages_for(text, target)
    for name, rest in instructions(text):
        words = rest.split()
        if name == "FROM":
            stage, count = words[-1] if "AS" in words else str(count), count + 1
        if stage not in needed:
            continue
        match name:
            case "FROM":
                origin = stages.get(words[0], Image(base))
                image = replace(origin, root=directory / f"stage-{stage}", environment=dict(origin.environment))
                _run(["cp", "-a", str(origin.root), str(image.root)])
                stages[stage] = image
            case "RUN":
                image.run(rest)
            case "WORKDIR":
                image.directory = rest
                (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY" if words[0].startswith("--from="):
                origin = stages[words[0].removeprefix("--from=")]
                image.copy([origin.root / source.lstrip("/") for source in words[1:-1]], words[-1])
            case "COPY":
                image.copy([context / source for source in words[:-1]], words[-1])
            case _:
                image.configure(name, rest)
    return image


def read_image(dockerfile: Path) -> Image:
    """Return the configuration of the last stage, without building it."""
    image = Image(Path("/"))
    for name, rest in instructions(dockerfile.read_text()):
        if name == "FROM":
            image = Image(Path("/"))
        elif name not in ("RUN", "WORKDIR", "COPY"):
            image.configure(name, rest)
    return image


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)[:200]} ends with {done.returncode}:\n{done.stderr[-3000:]}"
