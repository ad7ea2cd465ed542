"""Builds sdist and wheel, checks them, tries every program of the wheel with and without each extra, and writes SBOMs.

`make release` runs it: python -m tests.quality.release [--extras service,score] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.paths import ROOT

NO_EXTRA = "none"
EXTRAS = (NO_EXTRA, "kafka", "decisions", "service", "score", "lab")
"""The extras that users install; the others contain tools for this repository."""

SBOM_EXTRAS = ("service", "score")
"""The extras that are deployed. Each has an SBOM beside the wheel: what an empty environment contains with it."""

SERVICE, SCORE = frozenset({"service", "score", "lab"}), frozenset({"score", "lab"})
COMMANDS: Mapping[str, frozenset[str]] = {
    "throttlectl --version": frozenset(EXTRAS),
    "throttlectl --help": frozenset(EXTRAS),
    "autothrottle --help": SERVICE,
    "autothrottle run --help": SERVICE,
    "autothrottle planner --help": SERVICE,
    "topicmappr version": SERVICE,
    "topicmappr --help": SERVICE,
    "metricsfetcher --help": SERVICE,
    "autothrottle score --help": SCORE,
    "autothrottle demo --help": SERVICE,
    "autothrottle simulate --help": SERVICE,
}
"""Command -> the extras with which it answers. With any other extra it names one of these in one line."""


def build(directory: Path) -> Path:
    """Build the sdist and, from it, the wheel; check both and return the wheel."""
    _run("build", "--no-isolation", "--outdir", str(directory), str(ROOT))
    sdist, wheel = max(directory.glob("*.tar.gz"), key=_age), max(directory.glob("*.whl"), key=_age)
    _run("twine", "check", "--strict", str(sdist), str(wheel))
    return wheel


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def pinned(requirements: str) -> str:
    """Return the pins of a requirements file without their hashes, which pip would also ask of the wheel."""
    return "\n".join(re.findall(r"^([\w.-]+==[^\\\n]+?) *\\?$", requirements, re.MULTILINE))


def install(wheel: Path, extra: str, directory: Path) -> Path:
    """Install the wheel with an extra into an empty environment; return the folder of its programs."""
    venv.create(directory, with_pip=False, clear=True)
    constraints = directory / "constraints.txt"
    constraints.write_text(pinned((ROOT / "requirements.txt").read_text("utf-8")), "utf-8")
    target = str(wheel) if extra == NO_EXTRA else f"{wheel}[{extra}]"
    quiet = ["--quiet", "--disable-pip-version-check", f"--python={directory / 'bin' / 'python'}"]
    _run("pip", *quiet, "install", f"--constraint={constraints}", target)
    return directory / "bin"


def problem(command: str, extra: str, done: subprocess.CompletedProcess[str]) -> str | None:
    """Return what is wrong with a command's answer in the environment of an extra; None: nothing."""
    if extra in COMMANDS[command]:
        expected, right = "answer", done.returncode == 0 and done.stdout != ""
    else:
        hint = re.fullmatch(r"[^\n]*with the extra `(\w+)`\n", done.stderr)
        expected = "name the extra that it needs"
        right = done.returncode == 1 and hint is not None and hint[1] in COMMANDS[command]
    return (
        None
        if right
        else f"{command!r} with extra {extra}: status {done.returncode}; it should {expected}: {done.stderr}"
    )


def sbom_of(wheel: Path, extra: str) -> Path:
    """Return the path of an extra's SBOM.

    >>> sbom_of(Path("dist/autothrottle-0.2.0-py3-none-any.whl"), "service").as_posix()
    'dist/autothrottle-0.2.0-service.cdx.json'
    """
    return wheel.with_name(f"{'-'.join(wheel.name.split('-')[:2])}-{extra}.cdx.json")


def write_sbom(python: Path, path: Path) -> None:
    """Write which packages an environment contains besides the wheel, in CycloneDX's format."""
    subprocess.run(
        ["make", "--no-print-directory", "build/audit/.installed", f"PYTHON={sys.executable}"], cwd=ROOT, check=True
    )
    program, project = ROOT / "build/audit/bin/cyclonedx-py", ROOT / "pyproject.toml"
    options = [f"--pyproject={project}", "--output-reproducible", f"--output-file={path}"]
    subprocess.run([program, "environment", *options, str(python)], check=True)


def try_programs(wheel: Path, extra: str) -> list[str]:
    """Run every command in an empty environment with the wheel and an extra; return what is wrong."""
    with tempfile.TemporaryDirectory(prefix="autothrottle-release-") as directory:
        programs = install(wheel, extra, Path(directory))
        if extra in SBOM_EXTRAS:
            write_sbom(programs / "python", sbom_of(wheel, extra))
        answers = {
            command: subprocess.run(
                [programs / command.split()[0], *command.split()[1:]], cwd=directory, capture_output=True, text=True
            )
            for command in COMMANDS
        }
    return [text for command, done in answers.items() if (text := problem(command, extra, done))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check and try a release; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.release", description=main.__doc__)
    parser.add_argument("--extras", default=",".join(EXTRAS), help="extras to try, with commas between them")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the sdist and the wheel")
    options = parser.parse_args(arguments)
    wheel = build(options.out)
    problems: list[str] = []
    for extra in options.extras.split(","):
        problems += try_programs(wheel, extra)
        print(f"Tried {len(COMMANDS)} commands of {wheel.name} with extra {extra}", flush=True)
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
