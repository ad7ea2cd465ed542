"""What the composition root guarantees about the listeners of a process."""

from __future__ import annotations

import stat
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.credentials import MOST_UNREADABLE_SECONDS
from autothrottle.applier import ApplierServicer
from autothrottle.composition.services import Composition
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import STATE_DIFFERENCES, STATE_LOSSES
from autothrottle.runtime.command_line import COMMANDS
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown
from autothrottle.v1.applier_pb2_grpc import add_ApplierServiceServicer_to_server
from tests.builders import eventually

APPLIER: Any = add_ApplierServiceServicer_to_server, ApplierServicer(None, None), "autothrottle.v1.ApplierService"  # type: ignore[arg-type]


def test_an_entry_point_adds_a_metrics_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "plug-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[autothrottle.metrics_sources]\nplug = plug:Source\n")
    (tmp_path / "plug.py").write_text(
        "class Source:\n"
        "    def __init__(self, configuration): self.closed, self.rate = [], configuration.min_rate\n"
        "    def close(self): self.closed.append(True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    configuration = parse(["--metrics-source=plug", "--min-rate=7"], {}, used=COMMANDS["metrics"].options)
    with Shutdown() as stack:
        source = Composition(configuration, stack).sources.load_source()
        assert vars(source) == {"closed": [], "rate": 7_000_000}
    assert vars(source)["closed"] == [True]


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


def test_a_process_without_a_grpc_server_exports_metrics_of_its_credentials(tmp_path: Path) -> None:
    """Only gRPC servers started the watch of credentials. A gateway of its own did not say when its file was faulty."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"anna {'a' * 16}\n")
    with Shutdown() as stack:
        options = [f"--api-tokens-file={tokens}", "--metrics-listen=127.0.0.1:0"]
        address = Composition(parse(options, {}), stack).metrics_endpoint("gateway")

        def exported() -> bool:
            with urllib.request.urlopen(f"http://{address}/metrics") as response:
                return b'option="api-tokens-file"} 1' in response.read()

        eventually(exported)


def test_process_with_its_state_in_kafka_exports_differences_and_losses_from_its_start() -> None:
    """Prometheus sees no increase of a counter whose first value is 1."""
    with Shutdown() as stack:
        options = ["--bootstrap-servers=127.0.0.1:1", "--state-store=kafka"]
        composition = Composition(parse(options, {}), stack)
        samples = [(s.metric, s.value, s.labels) for s in composition._samples("run")]
        assert (STATE_DIFFERENCES, 0, ()) in samples
        losses = [labels for metric, value, labels in samples if metric is STATE_LOSSES and value == 0]
        assert losses == [("tail",), ("beginning",), ("topic",)]
        assert not composition.state.problems


def test_readiness_fails_while_every_token_is_refused_and_grpc_health_does_not(tmp_path: Path) -> None:
    """Nothing showed that the file of tokens was gone. Health between the services must not stop the loop for it."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"anna {'a' * 16}\n")
    options = [f"--api-tokens-file={tokens}", "--metrics-listen=127.0.0.1:0"]
    with Shutdown() as stack:
        composition = Composition(parse(options, {}), stack)
        composition.metrics_endpoint("applier")
        check = composition.health._checks["api tokens"]
        assert check.services == {"gateway"} and not check.run()
        assert composition._tokens is not None
        tokens.unlink()
        ahead = MOST_UNREADABLE_SECONDS + 1
        composition._tokens._tokens._clock = lambda: time.monotonic() + ahead
        eventually(lambda: "nothing in it counts any more: " in str(check.run()), 30)
