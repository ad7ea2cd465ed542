"""The committed `autothrottle.v1` equals the code generated from `proto/`."""

import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

PACKAGE = Path("autothrottle", "v1")


def generated(source_root: Path) -> dict[str, bytes]:
    """File name -> content of each generated file under a source root."""
    package = source_root / PACKAGE
    return {path.name: path.read_bytes() for path in [*package.glob("*_pb2*.py*"), *package.glob("comments.json")]}


def test_the_committed_code_equals_newly_generated_code(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", "--out", tmp_path], check=True)
    fresh, committed = generated(tmp_path), generated(ROOT / "services")
    names = fresh.keys() | committed.keys()
    stale = sorted(name for name in names if fresh.get(name) != committed.get(name))
    assert fresh, "no files were generated: proto/autothrottle/v1 is empty"
    assert not stale, f"{', '.join(stale)} differ from proto/: run make proto"


def test_every_proto_has_generated_messages_services_and_type_stubs() -> None:
    protos = sorted(path.stem for path in (ROOT / "proto" / PACKAGE).glob("*.proto"))
    wanted = {f"{stem}_{kind}" for stem in protos for kind in ("pb2.py", "pb2.pyi", "pb2_grpc.py")}
    assert protos
    assert "comments.json" in generated(ROOT / "services")
    assert wanted <= generated(ROOT / "services").keys()
