"""The clients that Kafka knows survive the wire, whatever their names are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, ClientReading
from autothrottle.v1.discovery_pb2 import GetClientsResponse
from autothrottle.wire.discovery import clients_from_message, clients_to_message
from tests.contract.client_quotas_contract import LEVELS, ODD_NAMES
from tests.examples import examples
from tests.unit.autothrottle.wire.strategies import broker_ids, sentences

names = st.sampled_from([DEFAULT, *ODD_NAMES]) | st.text(min_size=1, max_size=8)
entities = (
    st.sampled_from(LEVELS) | st.builds(ClientQuotaEntity, names, names) | st.builds(ClientQuotaEntity, client_id=names)
)
readings = st.builds(
    ClientReading,
    st.frozensets(entities, max_size=5),
    st.dictionaries(broker_ids, sentences, max_size=3),
    st.lists(sentences, max_size=2).map(tuple),
)


@settings(max_examples=examples(10, 100))
@given(readings)
def test_clients_round_trip(reading: ClientReading) -> None:
    raw = clients_to_message(reading).SerializeToString()
    assert clients_from_message(GetClientsResponse.FromString(raw)) == reading


def test_an_entity_of_an_unknown_kind_is_absent() -> None:
    message = GetClientsResponse(entities=["clients/app", "tenants/a"])
    assert clients_from_message(message).entities == {ClientQuotaEntity(client_id="app")}
