"""A copy of the state moves it from a real ZooKeeper to a topic and back, and is a backup of both."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.__main__ import main
from autothrottle.adapters.kafka_state import copy as in_kafka
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic
from autothrottle.adapters.state_store.operator_stores import NodeAuditedMap, NodeOverrides, NodePauses
from autothrottle.adapters.state_store.state_copy import StateCopy, parse_copy
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS
from autothrottle.adapters.zookeeper_state import copy as in_zookeeper
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import CatchUp
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually, ledger_entry
from tests.contract.pause_store_contract import KEEP
from tests.system.zookeeper_tree import Tree, session

BROKER, TOPIC = ConfigResource.broker(1001), ConfigResource.topic("a.b_c-1")
ENTRY = ledger_entry(leader_replication_throttled_rate="7")


@pytest.fixture
def tree(zookeeper: ZooKeeperServer) -> Iterator[Tree]:
    """A tree with a ledger, overrides, a pause, catch-ups, audit records and a term."""
    with session(zookeeper) as client:
        tree = Tree(client)
        overrides, pauses = (
            NodeOverrides(ZooKeeperNodeStore(client, tree.own)),
            NodePauses(ZooKeeperNodeStore(client, tree.own)),
        )
        catch_ups = NodeAuditedMap(ZooKeeperNodeStore(client, tree.own), CATCH_UPS)
        overrides.set_override(1001, StoredOverride(7_000_000), who="anna ö")
        pauses.set_pause(KEEP)
        catch_ups.put(1002, CatchUp(1002, "bernd"))
        for store in (overrides, pauses, catch_ups):
            store.close()
        fence = tree.begin_term()
        ZooKeeperLedger(client, tree.own).write(fence, {BROKER: ENTRY, TOPIC: ENTRY}, time.monotonic() + 30)
        yield tree


def settings(copy: StateCopy) -> object:
    return copy.nodes, [(record.time, record.text) for record in copy.audit]


def test_the_state_moves_to_a_topic_and_back(tree: Tree, zookeeper: ZooKeeperServer) -> None:
    exported = in_zookeeper.export_state(tree.client, tree.own)
    assert {*exported.nodes} == {
        "override_rate/1001",
        "pause",
        "catch_ups",
        "ledger/brokers/1001",
        "ledger/topics/a.b_c-1",
    }
    assert len(exported.audit) == 3
    with ExitStack() as stack:
        log = StateLog(MemoryTopic(MemoryPartition()), "state", tree.own.term, 4.0)
        stack.callback(log.close)
        in_kafka.import_state(log, tree.own, parse_copy(exported.encoded()))
        returned = in_kafka.export_state(log, tree.own)
        assert settings(returned) == settings(exported)

        client = stack.enter_context(session(zookeeper))
        other = Tree(client)
        in_zookeeper.import_state(client, other.own, returned)
        again = in_zookeeper.export_state(client, other.own)
        assert again.nodes == exported.nodes
        third = Tree(client)
        in_zookeeper.import_state(client, third.own, again)
        with closing(NodeOverrides(ZooKeeperNodeStore(client, third.own))) as copied:
            assert [r.time for r in copied.read_audit_records(9).records] == [r.time for r in _records(tree)]
        overrides = stack.enter_context(closing(NodeOverrides(ZooKeeperNodeStore(client, other.own))))
        assert [(r.who, r.time) for r in overrides.read_audit_records(9).records] == [
            (r.who, r.time) for r in _records(tree)
        ]
        assert ZooKeeperLedger(client, other.own).read([BROKER], time.monotonic() + 30) == {BROKER: ENTRY}
        election = ZooKeeperElection(client, other.own, timedelta(seconds=6))
        election.join("a:1", lambda: None)
        eventually(lambda: election.term)
        assert election.term is not None and election.term.fence > exported.fence
        election.leave()
        with pytest.raises(Conflict, match="empty store"):
            in_zookeeper.import_state(client, other.own, returned)


def _records(tree: Tree) -> Sequence[StoredAuditRecord]:
    with closing(NodeOverrides(ZooKeeperNodeStore(tree.client, tree.own))) as overrides:
        return overrides.read_audit_records(9).records


def test_the_command_exports_and_imports(
    tree: Tree, zookeeper: ZooKeeperServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "state.json"
    place = ["--zk-addr", zookeeper.connect, "--zk-config-prefix"]
    assert main(["state", "export", str(file), *place, tree.own.prefix]) == 0
    other = Tree(tree.client)
    assert main(["state", "import", str(file), *place, other.own.prefix]) == 0
    assert in_zookeeper.export_state(tree.client, other.own).nodes == parse_copy(file.read_text()).nodes
    assert main(["state", "import", str(file), *place, other.own.prefix]) == 1
    assert main(["state", "import", str(tmp_path / "absent"), *place, other.own.prefix]) == 1
    assert main(["state", "export"]) == 2


@pytest.mark.parametrize(
    "content", ["", "{}", '{"version":2}', '{"version":1,"fence":"7","nodes":{},"audit":[]}', '{"version":1}']
)
def test_a_file_that_is_no_copy_is_refused(content: str) -> None:
    with pytest.raises(Invalid, match=r"Fix|update"):
        parse_copy(content)
