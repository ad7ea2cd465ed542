"""Capacities: their precedence and their text format."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.capacity import (
    MAX_CAPACITY_MEGABYTES,
    CapacityLimits,
    capacity_of,
    parse_broker_cap_map,
    parse_cap_map,
    parse_capacity,
)
from autothrottle.core.traffic.loads import Capacity

BY_ID = Capacity(1, 1)
BY_TAG = Capacity(2, 2)
BY_TYPE = Capacity(3, 3)
BY_DEFAULT = Capacity(4, 4)
LIMITS = CapacityLimits({1001: BY_ID}, {"d2.xlarge": BY_TYPE}, BY_DEFAULT)


def test_broker_capacity_beats_everything() -> None:
    assert capacity_of(1001, "d2.xlarge", BY_TAG, LIMITS) == BY_ID


def test_capacity_tag_beats_instance_type() -> None:
    assert capacity_of(1002, "d2.xlarge", BY_TAG, LIMITS) == BY_TAG


def test_instance_type_beats_default() -> None:
    assert capacity_of(1002, "d2.xlarge", None, LIMITS) == BY_TYPE


@pytest.mark.parametrize("instance_type", ["i3.large", None])
def test_default_applies_if_no_other_capacity_is_known(instance_type: str | None) -> None:
    assert capacity_of(1002, instance_type, None, LIMITS) == BY_DEFAULT


def test_unknown_instance_type_error_names_broker_type_and_fix() -> None:
    """D7: one unknown instance type aborted the update of all brokers.

    Here it is one broker's error, which names the option and the value to add.
    """
    with pytest.raises(Missing) as raised:
        capacity_of(1002, "d2.xlarge", None, CapacityLimits())
    assert str(raised.value) == (
        'broker 1002 has no known capacity: nothing is set for its instance type "d2.xlarge"; '
        'add "d2.xlarge" to --cap-map or set --default-capacity'
    )


def test_error_for_a_host_without_instance_type_asks_for_a_tag() -> None:
    """D7: one broker without metrics or capacity ended the update of all brokers."""
    with pytest.raises(Missing, match=r"broker 1002 .* instance type is unknown.*--default-capacity"):
        capacity_of(1002, None, None, CapacityLimits())


def test_megabyte_is_a_million_bytes() -> None:
    """D18: the original divided metrics by 1024^2 and multiplied rates by 10^6."""
    assert parse_cap_map('{"d2.xlarge": 120}', "--cap-map") == {"d2.xlarge": Capacity(120_000_000, 120_000_000)}


def test_each_direction_can_have_its_own_capacity() -> None:
    assert parse_cap_map('{"d2.xlarge": {"tx": 100, "rx": 62.5}}', "--cap-map") == {
        "d2.xlarge": Capacity(outbound=100_000_000, inbound=62_500_000)
    }


def test_instance_types_named_like_settings_are_ordinary_names() -> None:
    """D21: the original kept capacities and settings in one map, so an instance type could overwrite a setting."""
    names = ("minimum", "srcMax", "dstMax")
    parsed = parse_cap_map(json.dumps({name: i + 1 for i, name in enumerate(names)}), "--cap-map")
    limits = CapacityLimits(by_instance_type=parsed)
    assert [capacity_of(1, name, None, limits).outbound for name in names] == [1_000_000, 2_000_000, 3_000_000]
    with pytest.raises(Missing):
        capacity_of(1, "d2.xlarge", None, limits)


def test_keys_of_the_broker_map_are_integers() -> None:
    assert parse_broker_cap_map('{"1001": 5}', "--broker-cap-map") == {1001: Capacity(5_000_000, 5_000_000)}
    # Only the first eleven digits were parsed, which gave broker 100.
    assert parse_broker_cap_map('{"000000001001": 5}', "--broker-cap-map").keys() == {1001}


@pytest.mark.parametrize("key", ["-1", "x", "", " 7", "1_0", "1.0", "٣", "2147483648", "9" * 5_000])
def test_malformed_broker_id_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match="--broker-cap-map"):
        parse_broker_cap_map(json.dumps({key: 5}), "--broker-cap-map")


@pytest.mark.parametrize(
    "value",
    [
        *("0", "-1", "true", "null", '"100"', "[1]", "NaN", "Infinity", "1e400", "1e-9", "125000000", "{}"),
        *('{"tx": 1}', '{"tx": 1, "rx": 0}', '{"tx": 1, "rx": 1, "mtu": 1}', '{"tx": 1, "tx": 1, "rx": 1}'),
    ],
)
def test_malformed_capacity_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(Invalid, match=r'--cap-map\["d2.xlarge"\]'):
        parse_cap_map(f'{{"d2.xlarge": {value}}}', "--cap-map")


def test_all_problems_are_listed_with_value_range_and_fix() -> None:
    with pytest.raises(Invalid) as raised:
        parse_broker_cap_map('{"a": -1, "1": {"tx": true, "rx": 0}, "2": 3, "02": 3}', "--broker-cap-map")
    assert str(raised.value).split("; ") == [
        '--broker-cap-map["a"] is -1',
        "give MB/s > 0 and <= 1000000",
        "--broker-cap-map: 'a' is not a broker id",
        "give an integer in 0..2147483647",
        '--broker-cap-map["1"].tx is true',
        "give MB/s > 0 and <= 1000000",
        '--broker-cap-map["1"].rx is 0',
        "give MB/s > 0 and <= 1000000",
        '--broker-cap-map["02"] is given twice',
        "keep one",
    ]


@pytest.mark.parametrize("text", ["{", "[]", "7", "d2.xlarge=7", "[" * 50_000])
def test_map_that_is_not_a_json_object_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(Invalid, match=r"--cap-map is .*give \{"):
        parse_cap_map(text, "--cap-map")


@pytest.mark.parametrize("text", ["", "{}"])
def test_empty_text_is_an_empty_map(text: str) -> None:
    assert parse_cap_map(text, "--cap-map") == {}


def test_single_capacity_has_the_same_two_forms() -> None:
    assert parse_capacity("12.5", "--default-capacity") == Capacity(12_500_000, 12_500_000)
    assert parse_capacity('{"tx": 1, "rx": 2}', "--default-capacity") == Capacity(1_000_000, 2_000_000)


@pytest.mark.parametrize("text", ["100", "100MB", "100MB/s", " 100 MB/s "])
def test_single_capacity_may_have_its_unit(text: str) -> None:
    assert parse_capacity(text, "--default-capacity") == Capacity(100_000_000, 100_000_000)


@pytest.mark.parametrize("text", ["", "fast", "0", "-5", "100GB/s", "0MB", "true", "[" * 50_000])
def test_malformed_single_capacity_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(Invalid, match="--default-capacity is"):
        parse_capacity(text, "--default-capacity")


megabytes = st.one_of(st.integers(1, MAX_CAPACITY_MEGABYTES), st.floats(0.001, MAX_CAPACITY_MEGABYTES, allow_nan=False))


@given(st.dictionaries(st.text(min_size=1).filter(str.strip), st.tuples(megabytes, megabytes)))
def test_every_capacity_map_parses_as_written(written: dict[str, tuple[float, float]]) -> None:
    text = json.dumps({name: {"tx": outbound, "rx": inbound} for name, (outbound, inbound) in written.items()})
    assert parse_cap_map(text, "--cap-map") == {
        name: Capacity(round(outbound * 1_000_000), round(inbound * 1_000_000))
        for name, (outbound, inbound) in written.items()
    }
