"""Names of entities in ZooKeeper are those of Kafka's Sanitizer; wrong entities are refused with the fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    Name,
    entity_of_path,
    name_or_default,
    validate_entity,
)

names = st.one_of(st.text(min_size=1, max_size=20), st.just(DEFAULT), st.just("<default>"))


@given(st.one_of(names, st.none()), st.one_of(names, st.none()))
def test_a_path_leads_back_to_its_entity(user: Name | None, client_id: Name | None) -> None:
    entity = ClientQuotaEntity(user, client_id)
    assert (entity_of_path(entity.path) if entity.path else ClientQuotaEntity()) == entity


@pytest.mark.parametrize("ip", ["10.0.0.7", "fe80::1", DEFAULT])
def test_a_path_of_an_address_leads_back_to_it(ip: Name) -> None:
    assert entity_of_path(ClientQuotaEntity(ip=ip).path) == ClientQuotaEntity(ip=ip)


def test_names_are_encoded_like_those_of_kafka_s_sanitizer() -> None:
    """The name is that of Kafka's own SanitizerTest; `*` and `~` are encoded, unlike in most URL encodings."""
    name = "CN=Some characters !@#$%&*()_-+=';:,/~"
    encoded = "CN%3DSome%20characters%20%21%40%23%24%25%26%2A%28%29_-%2B%3D%27%3B%3A%2C%2F%7E"
    assert ClientQuotaEntity(name).path == f"users/{encoded}"


@pytest.mark.parametrize("path", ["users", "topics/t1", "users/a/topics/b", "users/a/clients", "clients/a/b"])
def test_other_paths_are_no_entities(path: str) -> None:
    assert entity_of_path(path) is None


@pytest.mark.parametrize(
    ("entity", "problem"),
    [
        (ClientQuotaEntity(), "has no part; give a user"),
        (ClientQuotaEntity("a", ip="10.0.0.1"), "have no user and no client id"),
        (ClientQuotaEntity(""), "user '' has 0 bytes"),
        (ClientQuotaEntity("a", "b" * 4_097), "has 4097 bytes"),
        (ClientQuotaEntity("a", ".."), "client-id '..' cannot have quotas"),
        (ClientQuotaEntity(ip="host1"), "not an IPv4 or IPv6 address"),
    ],
)
def test_wrong_entities_are_refused(entity: ClientQuotaEntity, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        validate_entity(entity)


def test_a_name_and_the_default_exclude_each_other() -> None:
    assert name_or_default("user", "a", False) == "a"
    assert name_or_default("user", None, True) is DEFAULT
    assert name_or_default("user", None, False) is None
    with pytest.raises(Invalid, match="given as the name 'a' and as the default; give one"):
        name_or_default("user", "a", True)


def test_entities_are_sorted_users_first_and_defaults_before_names() -> None:
    ordered = [
        ClientQuotaEntity(DEFAULT, DEFAULT),
        ClientQuotaEntity(DEFAULT, "c"),
        ClientQuotaEntity(DEFAULT),
        ClientQuotaEntity("a", "b"),
        ClientQuotaEntity("a"),
        ClientQuotaEntity("b"),
        ClientQuotaEntity(client_id=DEFAULT),
        ClientQuotaEntity(client_id="a"),
        ClientQuotaEntity(ip=DEFAULT),
        ClientQuotaEntity(ip="10.0.0.1"),
    ]
    assert sorted(reversed(ordered), key=lambda entity: entity.order) == ordered
