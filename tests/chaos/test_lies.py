"""Some seeds of a proxy that lies, over brokers in memory; `tests/system/test_lying_proxy.py` has living servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.errors import Unavailable
from tests.chaos.lied_calls import APIS, LOG_DIRS, lie_of, play
from tests.chaos.lies import API_VERSIONS, DESCRIBE_CONFIGS, KAFKA_CODES, METADATA, Liar, Lie, LieKind
from tests.chaos.memory_brokers import BROKERS, MemoryBrokers, virtual_network
from tests.chaos.proxy import Answer, Framing

SEEDS = (0, 8, 9, 24, 32, 83)
"""Each kind but a delay: throttled metadata, descriptions without results or with a part of them, and others."""
ALL_SEEDS = 470


def test_all_seeds_have_each_kind_of_lie_about_each_api_and_each_error_code() -> None:
    lies = [lie_of(seed) for seed in range(ALL_SEEDS)]
    pairs = {(lie.kind, api) for lie in lies for api in lie.apis}
    assert pairs == {(kind, api) for kind in LieKind for api in APIS}
    assert {code for lie in lies if lie.kind is LieKind.ERROR for code in lie.codes} == {*KAFKA_CODES}


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS, id=f"{len(SEEDS)} seeds"),
        *(
            pytest.param(range(start, start + 47), id=f"from {start} on", marks=pytest.mark.repeat)
            for start in range(0, ALL_SEEDS, 47)
        ),
    ],
)
def test_lies_of_a_proxy_cost_nothing_but_time(seeds: range | tuple[int, ...]) -> None:
    results = [play(seed) for seed in seeds]
    broken = [f"seed {r.seed}, {r.lie}: {r.violations[:5]}" for r in results if r.violations]
    assert broken == []
    # A lie must reach the client, or it proves nothing.
    assert sum(result.lies for result in results) >= len(results)


class Once(Liar):
    """Lies a number of times."""

    def __init__(self, lie: Lie, times: int) -> None:
        super().__init__(Framing.KAFKA)
        self.times = times
        self.begin(lie)

    def answer(self, request: bytes, answer: bytes) -> Answer:
        changed = super().answer(request, answer) if self.times else Answer(answer)
        self.times -= changed != Answer(answer)
        return changed


@pytest.fixture
def play_once() -> Iterator[Callable[[Lie, int], KafkaAdmin]]:
    """Returns a client of brokers in memory, in virtual time, behind a proxy that lies a number of times."""
    with ExitStack() as stack:

        def begin(lie: Lie, times: int) -> KafkaAdmin:
            network = stack.enter_context(virtual_network(MemoryBrokers(), Once(lie, times)))
            return stack.enter_context(closing(KafkaAdmin(KafkaSettings(network.servers))))

        yield begin


@pytest.mark.parametrize("api", [METADATA, DESCRIBE_CONFIGS, LOG_DIRS], ids=["topics", "configs", "logs"])
def test_read_without_entries_is_repeated_after_the_delay_that_the_broker_asks_for(
    play_once: Callable[[Lie, int], KafkaAdmin], api: int
) -> None:
    """A topic that the answer lacked counted as deleted, and a broker without log directories had no logs."""
    kafka = play_once(Lie(LieKind.EMPTY, frozenset({api}), seed=1), 2)
    assert {*kafka.partitions(["a", "b"]).values} == {"a", "b"}
    assert {*kafka.topic_configs(["a", "b"]).values} == {"a", "b"}
    assert kafka.log_sizes(1, None)


def test_pause_of_days_that_a_damaged_answer_asks_for_ends_after_seconds(
    play_once: Callable[[Lie, int], KafkaAdmin],
) -> None:
    """A flipped bit in the throttle time stopped the connection for 24 days: all requests to the broker failed."""
    for api in (METADATA, API_VERSIONS):
        kafka = play_once(Lie(LieKind.THROTTLED, frozenset({api}), milliseconds=(2**31 - 1,)), 3)
        began = time.monotonic()
        for _ in range(4):
            assert kafka.brokers(timeout=timedelta(seconds=8)) == {*BROKERS}
            assert {*kafka.broker_configs(BROKERS, timeout=timedelta(seconds=8)).values} == {*BROKERS}
        assert time.monotonic() - began <= 40


def test_versions_without_any_request_of_kafka_are_a_damaged_answer(
    play_once: Callable[[Lie, int], KafkaAdmin],
) -> None:
    """They counted as those of a broker that is too old, which ends a start with exit status 2."""
    kafka = play_once(Lie(LieKind.EMPTY, frozenset({API_VERSIONS})), 1_000)
    with pytest.raises(Unavailable, match="to ApiVersions lacks the requests of Kafka"):
        kafka.brokers(timeout=timedelta(seconds=3))


def test_answer_that_cannot_be_decoded_ends_its_connection_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python stopped to read after an IndexError: the requests of this connection waited for their deadlines."""
    liar = Liar(Framing.KAFKA)
    answers = iter([b"\x00\x00\x00\x02" + bytes([0, 0, 0, 0, 0, 0xFF])])

    def answer(request: bytes, truth: bytes) -> Answer:
        is_metadata = request[:2] == METADATA.to_bytes(2, "big")
        return Answer(next(answers, truth) if is_metadata else truth)

    monkeypatch.setattr(liar, "answer", answer)
    with (
        virtual_network(MemoryBrokers(), liar) as network,
        closing(KafkaAdmin(KafkaSettings(network.servers[:1]))) as kafka,
    ):
        began = time.monotonic()
        for _ in range(2):
            with suppress(Unavailable):
                kafka.brokers()
        assert kafka.brokers() == {*BROKERS}
        assert time.monotonic() - began <= 1.0
