"""Generates the Python package `autothrottle.v1` from `proto/autothrottle/v1/*.proto`.

    python proto/generate.py            replaces the generated files in services/
    python proto/generate.py --check    exit 1 when the committed files are not what the protos give
    python proto/generate.py --out DIR  writes autothrottle/v1/ under DIR and touches nothing else

Proto package, directory and Python package have one name, so generated imports need no rewriting.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
SOURCE_ROOT = PROTO_ROOT.parent / "services"
PACKAGE = Path("autothrottle", "v1")


def generate(out: Path) -> None:
    """Writes messages, services and the stubs of both to `out`/autothrottle/v1."""
    protos = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    if not protos:
        sys.exit(f"no .proto file in {PROTO_ROOT / PACKAGE}")
    out.mkdir(parents=True, exist_ok=True)
    binaries = Path(sys.executable).parent
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO_ROOT}"),
            *(f"--plugin={binaries / plugin}" for plugin in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
            *(f"--{kind}_out={out}" for kind in ("python", "grpc_python")),
            *(f"--{kind}_out=quiet:{out}" for kind in ("mypy", "mypy_grpc")),
            *map(str, protos),
        ],
        check=True,
    )


def generated_files(root: Path) -> dict[str, bytes]:
    """File name -> content of all generated files under `root`/autothrottle/v1."""
    return {path.name: path.read_bytes() for path in sorted((root / PACKAGE).glob("*_pb2*.py*"))}


def stale_files(fresh: Path, committed: Path) -> list[str]:
    """Names of files that differ, are missing or are left over in `committed`, sorted."""
    want, have = generated_files(fresh), generated_files(committed)
    return sorted(name for name in want.keys() | have.keys() if want.get(name) != have.get(name))


def replace(fresh: Path, committed: Path) -> None:
    """Makes the generated files of `committed` equal to those of `fresh`; leaves other files alone."""
    for name in stale_files(fresh, committed):
        (committed / PACKAGE / name).unlink(missing_ok=True)
    for name, content in generated_files(fresh).items():
        (committed / PACKAGE / name).write_bytes(content)


def main() -> None:
    """Runs the command line."""
    arguments = argparse.ArgumentParser(description="Generate autothrottle.v1 from proto/.")
    choice = arguments.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="compare only; exit 1 when something is stale")
    choice.add_argument("--out", type=Path, help="write to this directory instead")
    options = arguments.parse_args()
    if options.out:
        return generate(options.out)
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = stale_files(Path(scratch), SOURCE_ROOT)
        if not options.check:
            return replace(Path(scratch), SOURCE_ROOT)
    if stale:
        sys.exit(f"generated code is stale: {', '.join(stale)}; run make proto")


if __name__ == "__main__":
    main()
