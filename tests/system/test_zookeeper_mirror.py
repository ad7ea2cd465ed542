"""A mirror's copies are fresh whatever happens between two of its requests."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from tests.system.zookeeper_tree import read_all_changes


def test_children_are_followed_also_when_their_parent_is_made_while_it_is_looked_for(
    client: KazooClient, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of a parent that is not there is asked for, then whether it is there now.

    A leader made the ledger's directory between the two. What stands on a node that is there then is a watch of its
    data; the mirror took it for one of its children, and for two minutes a second planner, which led by then, saw
    nothing of the ledger: it gave back the wrong rates and left the lists.
    """
    parent, exists = f"/mirror-{uuid.uuid4().hex}", client.exists_async

    def made_just_before(path: str, watch: Any = None) -> Any:
        other.ensure_path(parent)
        return exists(path, watch=watch)

    monkeypatch.setattr(client, "exists_async", made_just_before)
    mirror = ZnodeMirror(client)
    mirror.track([(Part.CHILDREN, parent)])
    read_all_changes(mirror)
    for name in ("first", "second"):
        other.create(f"{parent}/{name}")
        read_all_changes(mirror)
    assert mirror.children(parent) == ("first", "second")
    mirror.close()


@pytest.mark.parametrize("part", Part)
def test_a_node_that_is_made_deleted_and_made_again_is_seen_each_time(
    client: KazooClient, other: KazooClient, part: Part
) -> None:
    path = f"/mirror-{uuid.uuid4().hex}"
    mirror = ZnodeMirror(client)
    mirror.track([(part, path)])
    assert read_all_changes(mirror) == {(part, path)}
    for data in (b"one", b"two"):
        other.create(path, data)
        other.create(f"{path}/child-{data.decode()}")
        read_all_changes(mirror)
        if part is Part.DATA:
            assert mirror.data(path) == data
        else:
            assert mirror.children(path) == (f"child-{data.decode()}",)
        other.delete(path, recursive=True)
        read_all_changes(mirror)
        assert mirror.data(path) is None
        assert mirror.children(path) == ()
    mirror.close()
