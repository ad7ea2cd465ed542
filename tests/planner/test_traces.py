"""What the trace of a cycle says."""

from __future__ import annotations

from autothrottle.adapters.memory import MemorySpan, MemoryTracer
from autothrottle.core.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.errors import Unavailable
from autothrottle.planner.traces import MOST_CHANGE_SPANS
from tests.builders import eventually
from tests.planner.bench import Bench


def traced(bench: Bench, tracer: MemoryTracer, reason: str = "") -> tuple[CycleRecord, MemorySpan]:
    """One cycle and its trace, the only one that it made."""
    before = len(tracer.traces)
    record = bench.cycle(reason)
    (root,) = tracer.traces[before:]
    return record, root


def part(span: MemorySpan, name: str) -> MemorySpan:
    (found,) = [child for child in span.parts if child.name == name]
    return found


def test_a_cycle_is_one_trace_of_what_it_reads_plans_and_applies() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.begin_move()
        record, root = traced(bench, tracer)
        assert root.name == "cycle" and root.ended
        names = [child.name for child in root.parts]
        assert sorted(names[:2]) == ["discovery", "metrics"]  # at the same time
        assert names[2:] == ["plan", "apply"]
        assert all(child.ended and not child.failure for child in root.parts)
        assert root.attributes == {
            "term": record.term,
            "number": 1,
            "reason": "interval",
            "scheduled": True,
            "topics": 1,
            "sentence": record.sentence,
            "error": "",
        }
        assert record.sentence
        _, second = traced(bench, tracer, "test0 changed")
        described = {key: second.attributes[key] for key in ("number", "reason", "scheduled")}
        assert described == {"number": 2, "reason": "test0 changed", "scheduled": False}


def test_every_change_is_a_span_with_its_resource_keys_and_outcome() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.begin_move()
        _, root = traced(bench, tracer)
        apply = part(root, "apply")
        assert apply.attributes == {"changes": 3} and not apply.events
        assert [(c.name, c.attributes["resource"], c.attributes["outcome"]) for c in apply.parts] == [
            ("change", "brokers/1001", "applied"),
            ("change", "brokers/1003", "applied"),
            ("change", "topics/t1", "applied"),
        ]
        assert [sorted(c.attributes["keys"]) for c in apply.parts] == [  # type: ignore[arg-type]
            [LEADER_RATE],
            [FOLLOWER_RATE],
            sorted([FOLLOWER_REPLICAS, LEADER_REPLICAS]),
        ]
        _, idle = traced(bench, tracer)
        assert part(idle, "apply").attributes == {"changes": 0}


def test_beyond_fifty_changes_each_is_an_event() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        for number in range(MOST_CHANGE_SPANS - 2):
            bench.begin_move(f"t{number}")
        _, root = traced(bench, tracer)
        assert len(part(root, "apply").parts) == MOST_CHANGE_SPANS
        for number in range(MOST_CHANGE_SPANS + 1):
            bench.begin_move(f"u{number}")
        _, root = traced(bench, tracer)
        apply = part(root, "apply")
        assert not apply.parts and len(apply.events) == apply.attributes["changes"] == MOST_CHANGE_SPANS + 1
        assert all(name == "change" and what["outcome"] == "applied" for name, what in apply.events)


def test_a_cycle_that_fails_says_where_and_why() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.cluster.unavailable(True)
        record, root = traced(bench, tracer)
        assert record.error and root.failure == root.attributes["error"] == record.error
        assert sorted(child.name for child in root.parts) == ["discovery", "metrics"]
        assert Unavailable.__name__ in part(root, "discovery").failure and root.ended


def test_a_cycle_without_metrics_says_so_and_goes_on() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.metrics.unavailable(True)
        record, root = traced(bench, tracer)
        assert "metrics cannot be read" in part(root, "metrics").failure
        assert not record.error and not root.failure and part(root, "apply").ended


def test_a_change_whose_outcome_is_lost_is_unknown() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.begin_move()
        bench.cycle()
        bench.begin_move("t2")
        bench.electorate.begin_term("elsewhere")
        record, root = traced(bench, tracer)
        apply = part(root, "apply")
        assert record.error and apply.failure.startswith("NotLeader")
        assert [c.attributes["outcome"] for c in apply.parts] == ["unknown"]


def test_a_cycle_that_a_traced_call_asked_for_points_to_it() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer, real_time=True) as bench:
        bench.planner.start("here:1")
        eventually(lambda: bench.planner.state().last_cycle)
        with tracer.span("the call") as call:
            bench.planner.request_cycle("asked for by a test")
        eventually(lambda: [root for root in tracer.traces if root.origins])
        (root,) = [root for root in tracer.traces if root.origins]
        assert (root.name, root.parent, [*root.origins]) == ("cycle", None, [call])
