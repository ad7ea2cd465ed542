"""Tokens are fetched once for all connections, renewed before they expire, and never waited for in the wrong thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

from autothrottle.adapters.kafka_admin.bearer_tokens import RENEWAL_SHARE, BearerToken, BearerTokens
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from tests.builders import eventually


class Source:
    """Gives the outcomes in order; the last one again and again. `gate` holds all fetches back while it is clear."""

    name = "token endpoint https://idp.example"

    def __init__(self, *outcomes: BearerToken | Exception) -> None:
        self._outcomes = list(outcomes)
        self.fetches = 0
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, deadline: float) -> BearerToken:
        self.fetches += 1
        self.gate.wait()
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def token(text: str, lifetime: float = 100.0) -> BearerToken:
    return BearerToken(text, lifetime, "issuer lab")


def outcome_of(tokens: BearerTokens) -> AutothrottleError | None:
    """Return what a connection that needs a token gets."""
    outcomes: list[AutothrottleError | None] = []
    tokens.when_ready(outcomes.append)
    eventually(lambda: len(outcomes) == 1)
    return outcomes[0]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not any(thread.name == "kafka-token" for thread in threading.enumerate()))


def wait_for(tokens: BearerTokens, text: str) -> None:
    eventually(lambda: tokens.token() == text)


def test_all_connections_wait_for_one_fetch() -> None:
    source = Source(token("one"))
    source.gate.clear()
    tokens = BearerTokens(source, {"logicalCluster": "lkc-1"})
    outcomes: list[AutothrottleError | None] = []
    for _ in range(100):
        tokens.when_ready(outcomes.append)
    assert outcomes == []
    with pytest.raises(Unavailable, match=r"https://idp.example has given no token yet"):
        tokens.token()
    source.gate.set()
    eventually(lambda: outcomes == [None] * 100)
    assert (tokens.token(), source.fetches) == ("one", 1)
    assert tokens.extensions() == {"logicalCluster": "lkc-1"}
    assert tokens.description == "token endpoint https://idp.example, issuer lab"


def test_token_is_renewed_after_three_quarters_of_its_lifetime_and_used_meanwhile() -> None:
    source, clock = Source(token("one"), token("two")), Clock()
    tokens = BearerTokens(source, clock=clock)
    assert outcome_of(tokens) is None
    clock.now += 74.9
    assert tokens.renew_if_due() == pytest.approx(0.1)
    assert (tokens.token(), source.fetches) == ("one", 1)
    source.gate.clear()
    clock.now += 0.2
    assert tokens.token() == "one"
    assert outcome_of(tokens) is None
    source.gate.set()
    wait_for(tokens, "two")
    assert source.fetches == 2


def test_failed_renewal_keeps_the_token_until_it_expires_and_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source, clock = Source(token("one"), Unavailable("idp is down"), Unavailable("idp is down"), token("two")), Clock()
    tokens = BearerTokens(source, clock=clock)
    assert outcome_of(tokens) is None
    clock.now += 76
    assert tokens.token() == "one"
    eventually(lambda: "dp is down" in caplog.text)
    assert caplog.messages == ["Idp is down. The current token stays in use, for 19 s at most"]
    clock.now += 0.9
    assert (tokens.token(), source.fetches) == ("one", 2)
    clock.now += 18.2
    with pytest.raises(Unavailable, match="idp is down"):
        tokens.token()
    eventually(lambda: source.fetches == 3 and not any(t.name == "kafka-token" for t in threading.enumerate()))
    assert str(outcome_of(tokens)) == "idp is down"
    clock.now += 2.1
    assert outcome_of(tokens) is None
    assert tokens.token() == "two"
    assert caplog.messages[1:] == ["A new token of token endpoint https://idp.example is in use"]


def test_refusal_is_repeated_to_all_callers_without_flooding_the_endpoint() -> None:
    source, clock = Source(Invalid("invalid_client")), Clock()
    tokens = BearerTokens(source, clock=clock)
    outcomes = [outcome_of(tokens) for _ in range(50)]
    assert {(type(outcome), str(outcome)) for outcome in outcomes} == {(Invalid, "invalid_client")}
    assert len({id(outcome) for outcome in outcomes}) == 50 and source.fetches == 1
    for seconds in (1, 2, 4, 8, 10, 10):
        clock.now += seconds + 0.1
        assert str(outcome_of(tokens)) == "invalid_client"
    assert source.fetches == 7


def test_token_without_an_end_is_renewed_within_a_day() -> None:
    tokens = BearerTokens(Source(token("one", 1e300)), clock=Clock())
    assert outcome_of(tokens) is None
    assert tokens.renew_if_due() == 86_400 * RENEWAL_SHARE


@pytest.mark.parametrize("lifetime", [0.0, -60.0])
def test_token_that_has_expired_already_is_refused_with_its_claims(lifetime: float) -> None:
    tokens = BearerTokens(Source(token("one", lifetime)))
    problem = outcome_of(tokens)
    assert isinstance(problem, Invalid)
    assert "gives a token that has expired (issuer lab). Fix: compare its clock with this machine's" in str(problem)


def test_unexpected_error_of_a_source_reaches_the_connections(caplog: pytest.LogCaptureFixture) -> None:
    tokens = BearerTokens(Source(RuntimeError("s3cret")))
    problem = outcome_of(tokens)
    assert isinstance(problem, Unavailable) and "cannot be used (RuntimeError)" in str(problem)
    assert "Fix: report this" in caplog.text


def test_token_that_kafka_refuses_is_replaced_unless_it_is_new() -> None:
    source, clock = Source(token("one"), token("two")), Clock()
    tokens = BearerTokens(source, clock=clock)
    assert outcome_of(tokens) is None
    tokens.discard()
    assert (outcome_of(tokens), tokens.token()) == (None, "one")
    clock.now += 11
    tokens.discard()
    assert (outcome_of(tokens), tokens.token()) == (None, "two")


def test_description_and_repr_do_not_contain_the_token() -> None:
    tokens = BearerTokens(Source(token("s3cret")))
    assert outcome_of(tokens) is None
    texts: Sequence[str] = [tokens.description, repr(tokens), repr(token("s3cret"))]
    assert "s3cret" not in "".join(texts)


def test_a_thread_that_cannot_start_is_an_outage_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source, clock = Source(token("one")), Clock()
    tokens = BearerTokens(source, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert "cannot be asked: can't start new thread" in str(outcome_of(tokens))
    clock.now += 1.1
    assert outcome_of(tokens) is None
