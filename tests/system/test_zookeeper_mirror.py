"""A mirror's copies are fresh, even if znodes change between two of its requests."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from tests.system.zookeeper_tree import read_all_changes


def test_mirror_sees_children_of_a_parent_created_between_its_two_requests(
    client: KazooClient, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror requests the children of a missing parent, and then sets a watch with `exists`.

    A leader created the ledger's parent between the two requests. The watch was then a data watch, but the mirror took
    it for a child watch. So the next leader did not see the ledger for two minutes, restored wrong rates, and left the
    lists.
    """
    parent, exists = f"/mirror-{uuid.uuid4().hex}", client.exists_async

    def create_and_check(path: str, watch: Any = None) -> Any:
        other.ensure_path(parent)
        return exists(path, watch=watch)

    monkeypatch.setattr(client, "exists_async", create_and_check)
    mirror = ZnodeMirror(client)
    mirror.track([(Part.CHILDREN, parent)])
    read_all_changes(mirror)
    for name in ("first", "second"):
        other.create(f"{parent}/{name}")
        read_all_changes(mirror)
    assert mirror.children(parent) == ("first", "second")
    mirror.close()


@pytest.mark.parametrize("part", Part)
def test_mirror_sees_each_creation_and_deletion_of_a_node(client: KazooClient, other: KazooClient, part: Part) -> None:
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
