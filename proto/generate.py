"""Generates the Python package `autothrottle.v1` from `proto/autothrottle/v1/*.proto`.

    python proto/generate.py            replace the generated files in services/
    python proto/generate.py --check    exit with 1 if the committed files are stale
    python proto/generate.py --out DIR  write autothrottle/v1/ under DIR and change nothing else

The proto package, its directory and the Python package have the same name, so generated imports need no rewriting.
Messages carry no comments at run time, so this also writes `comments.json`: full name of a proto element -> comment.

The protos import `google.api` from the Python package googleapis-common-protos. This script copies those protos to
third_party/ for protoc and buf. It generates no code from them, and they are not committed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import google.api
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

PROTO_ROOT = Path(__file__).resolve().parent
SOURCE_ROOT = PROTO_ROOT.parent / "services"
THIRD_PARTY = PROTO_ROOT / "third_party" / "googleapis"
IMPORTED = ("annotations.proto", "http.proto")
PACKAGE = Path("autothrottle", "v1")
COMMENTS = "comments.json"

_Node = FileDescriptorProto | DescriptorProto | EnumDescriptorProto | ServiceDescriptorProto


def generate(out: Path) -> None:
    """Writes messages, services, their stubs and the comments to `out`/autothrottle/v1."""
    protos = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    if not protos:
        sys.exit(f"no .proto file in {PROTO_ROOT / PACKAGE}")
    copy_imported_protos()
    out.mkdir(parents=True, exist_ok=True)
    binaries = Path(sys.executable).parent
    descriptors = out / "descriptors.binpb"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO_ROOT}", f"--proto_path={THIRD_PARTY}"),
            *("--include_source_info", f"--descriptor_set_out={descriptors}"),
            *(f"--plugin={binaries / plugin}" for plugin in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
            *(f"--{kind}_out={out}" for kind in ("python", "grpc_python")),
            *(f"--{kind}_out=quiet:{out}" for kind in ("mypy", "mypy_grpc")),
            *map(str, protos),
        ],
        check=True,
    )
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    descriptors.unlink()
    found = {name: text for file in files for name, text in comments(file)}
    (out / PACKAGE / COMMENTS).write_text(
        json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8"
    )


def copy_imported_protos() -> None:
    """Copies the imported protos of google.api to third_party/, where protoc and buf look for them."""
    target = THIRD_PARTY / "google" / "api"
    target.mkdir(parents=True, exist_ok=True)
    for name in IMPORTED:
        shutil.copyfile(Path(google.api.__path__[0], name), target / name)


def comments(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    """Yields (full name, comment as one line) for each element with a leading comment."""
    for location in file.source_code_info.location:
        text = " ".join(location.leading_comments.split())
        if text and location.path and len(location.path) % 2 == 0:
            yield full_name(file, list(location.path)), text


def full_name(file: FileDescriptorProto, path: list[int]) -> str:
    """Returns the full name, with package, of the element at a path of (field number, index) pairs."""
    node: _Node = file
    names = [file.package]
    for number, index in zip(path[::2], path[1::2], strict=True):
        node = getattr(node, node.DESCRIPTOR.fields_by_number[number].name)[index]
        names.append(getattr(node, "name", ""))
    return ".".join(names)


def generated_files(root: Path) -> dict[str, bytes]:
    """Returns file name -> content of all generated files under `root`/autothrottle/v1."""
    paths = [*(root / PACKAGE).glob("*_pb2*.py*"), *(root / PACKAGE).glob(COMMENTS)]
    return {path.name: path.read_bytes() for path in sorted(paths)}


def stale_files(fresh: Path, committed: Path) -> list[str]:
    """Returns the names of files that differ, are missing or are left over in `committed`, sorted."""
    want, have = generated_files(fresh), generated_files(committed)
    return sorted(name for name in want.keys() | have.keys() if want.get(name) != have.get(name))


def replace(fresh: Path, committed: Path) -> None:
    """Makes the generated files of `committed` equal to those of `fresh`; leaves other files unchanged."""
    for name in stale_files(fresh, committed):
        (committed / PACKAGE / name).unlink(missing_ok=True)
    for name, content in generated_files(fresh).items():
        (committed / PACKAGE / name).write_bytes(content)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Generate autothrottle.v1 from proto/.")
    choice = arguments.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="only compare; exit with 1 if a file is stale")
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
