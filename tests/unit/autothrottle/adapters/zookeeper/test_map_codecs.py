"""Texts of the audited maps. tests/contract stores them in a real ZooKeeper."""

import json

import pytest

from autothrottle.adapters.zookeeper.map_codecs import REQUEST_QUOTAS
from autothrottle.core.errors import Incomplete


@pytest.mark.parametrize("quotas", [{"user": "anna"}, "anna", 7, None])
def test_quotas_that_are_no_list_make_the_node_unreadable(quotas: object) -> None:
    """An editor wrote an object or a string in place of the list, and its keys or characters became the entries.

    The next change stored these pieces, so that the rest of the text was lost.
    """
    text = json.dumps({"version": 1, "quotas": quotas}).encode()
    with pytest.raises(Incomplete, match=r"/node cannot be parsed: .*; repair or delete the node"):
        REQUEST_QUOTAS.parse(text, "/node")
