"""What the composition root guarantees about the listeners of a process."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from autothrottle.applier import ApplierServicer
from autothrottle.composition import Composition
from autothrottle.core.errors import Invalid
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown
from autothrottle.v1.applier_pb2_grpc import add_ApplierServiceServicer_to_server

APPLIER: Any = add_ApplierServiceServicer_to_server, ApplierServicer(None, None), "autothrottle.v1.ApplierService"  # type: ignore[arg-type]


def test_only_this_user_can_reach_the_sockets_between_the_services_of_run() -> None:
    with Shutdown() as stack:
        directory = Path(Composition(parse([], {}), stack).private_directory())
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_services_with_tokens_and_without_certificates_need_a_token_for_one_another(tmp_path: Path) -> None:
    """All services can share one file of options. With tokens in it, they would refuse one another in every cycle."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"anna {'a' * 16}\n")
    options = [f"--api-tokens-file={tokens}"]
    with Shutdown() as stack:
        with pytest.raises(Invalid, match="Fix: add the line `services TOKEN service`"):
            Composition(parse(options, {}), stack).serve_alone("applier", APPLIER)
        private = Composition(parse([*options, f"--listen=unix:{tmp_path}/s"], {}), stack)
        assert private.serve_alone("applier", APPLIER) == f"unix:{tmp_path}/s"
        tokens.write_text(f"anna {'a' * 16}\nservices {'s' * 16} service\n")
        assert Composition(parse(options, {}), stack).serve_alone("applier", APPLIER).startswith("127.0.0.1:")
