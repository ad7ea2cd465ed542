"""Texts of the audited maps. tests/contract stores them in a real ZooKeeper."""

import json

import pytest

from autothrottle.adapters.zookeeper.map_codecs import REQUEST_QUOTAS
from autothrottle.core.errors import Incomplete
from autothrottle.core.request_quotas import RequestQuotaEntity

ANNA, ETL = RequestQuotaEntity("anna", None), RequestQuotaEntity(None, "etl")


@pytest.mark.parametrize("quotas", [{"user": "anna"}, "anna", 7, None])
def test_quotas_that_are_no_list_make_the_node_unreadable(quotas: object) -> None:
    """An editor wrote an object or a string in place of the list, and its keys or characters became the entries.

    The next change stored these pieces, so that the rest of the text was lost.
    """
    text = json.dumps({"version": 1, "quotas": quotas}).encode()
    with pytest.raises(Incomplete, match=r"/node cannot be parsed: .*; repair or delete the node"):
        REQUEST_QUOTAS.parse(text, "/node")


@pytest.mark.parametrize(
    ("unreadable", "remaining"),
    [
        ({"user": "eva", "config": {}}, {}),
        ({"user": "anna", "config": {"request_rate": "many"}}, {ANNA: 100}),
        ({"user": 7, "config": {}}, {ANNA: 100}),
    ],
)
def test_a_removed_quota_ends_although_that_of_another_caller_cannot_be_read(
    unreadable: object, remaining: dict[RequestQuotaEntity, int]
) -> None:
    """One quota could not be read, and an operator removed that of another user.

    The removed one stayed in effect. Now only the last value of the unreadable entry does, and all if it names no user.
    """
    text = json.dumps({"version": 1, "quotas": [unreadable, {"client_id": "etl", "config": {"request_rate": "5"}}]})
    content = REQUEST_QUOTAS.parse(text.encode(), "/node")
    assert content.over({ANNA: 100, ETL: 4}) == {**remaining, ETL: 5}
