"""The trace of a cycle."""

from __future__ import annotations

from autothrottle.adapters.memory import MemorySpan, MemoryTracer
from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from autothrottle.core.errors import Unavailable
from autothrottle.core.records import Cycle
from autothrottle.planner.calls import MAX_CHANGE_SPANS
from tests.builders import eventually
from tests.unit.autothrottle.planner.bench import Bench


def run_traced(bench: Bench, tracer: MemoryTracer, reason: str = "") -> tuple[Cycle, MemorySpan]:
    """Run one cycle; return it and its only trace."""
    before = len(tracer.traces)
    record = bench.cycle(reason)
    (root,) = tracer.traces[before:]
    return record, root


def child(span: MemorySpan, name: str) -> MemorySpan:
    (found,) = [each for each in span.children if each.name == name]
    return found


def test_a_cycle_is_one_trace_with_spans_for_reading_planning_and_applying() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.begin_reassignment()
        record, root = run_traced(bench, tracer)
        assert root.name == "cycle" and root.ended
        names = [child.name for child in root.children]
        assert sorted(names[:2]) == ["discovery", "metrics"]  # at the same time
        assert names[2:] == ["plan", "apply"]
        assert all(child.ended and not child.failure for child in root.children)
        assert root.attributes == {
            "cluster": "kafka",
            "term": record.term,
            "number": 1,
            "reason": "interval",
            "scheduled": True,
            "topics": 1,
            "sentence": record.sentence,
            "error": "",
        }
        assert record.sentence
        _, second = run_traced(bench, tracer, "test0 changed")
        described = {key: second.attributes[key] for key in ("number", "reason", "scheduled")}
        assert described == {"number": 2, "reason": "test0 changed", "scheduled": False}


def test_every_change_is_a_span_with_its_resource_keys_and_outcome() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.begin_reassignment()
        _, root = run_traced(bench, tracer)
        apply = child(root, "apply")
        assert apply.attributes == {"changes": 3} and not apply.events
        assert [(c.name, c.attributes["resource"], c.attributes["outcome"]) for c in apply.children] == [
            ("change", "brokers/1001", "applied"),
            ("change", "brokers/1003", "applied"),
            ("change", "topics/t1", "applied"),
        ]
        assert [sorted(c.attributes["keys"]) for c in apply.children] == [  # type: ignore[arg-type]
            [LEADER_RATE],
            [FOLLOWER_RATE],
            sorted([FOLLOWER_REPLICAS, LEADER_REPLICAS]),
        ]
        _, idle = run_traced(bench, tracer)
        assert child(idle, "apply").attributes == {"changes": 0}


def test_beyond_fifty_changes_each_is_an_event() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        for number in range(MAX_CHANGE_SPANS - 2):
            bench.begin_reassignment(f"t{number}")
        _, root = run_traced(bench, tracer)
        assert len(child(root, "apply").children) == MAX_CHANGE_SPANS
        for number in range(MAX_CHANGE_SPANS + 1):
            bench.begin_reassignment(f"u{number}")
        _, root = run_traced(bench, tracer)
        apply = child(root, "apply")
        assert not apply.children and len(apply.events) == apply.attributes["changes"] == MAX_CHANGE_SPANS + 1
        assert all(name == "change" and what["outcome"] == "applied" for name, what in apply.events)


def test_a_failed_cycle_has_its_error_in_the_failed_span_and_the_root() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.cluster.unavailable(True)
        record, root = run_traced(bench, tracer)
        assert record.error and root.failure == root.attributes["error"] == record.error
        assert sorted(child.name for child in root.children) == ["discovery", "metrics"]
        assert Unavailable.__name__ in child(root, "discovery").failure and root.ended


def test_a_cycle_without_metrics_marks_only_the_metrics_span_as_failed() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.metrics.unavailable(True)
        record, root = run_traced(bench, tracer)
        assert "metrics cannot be read" in child(root, "metrics").failure
        assert not record.error and not root.failure and child(root, "apply").ended


def test_a_change_without_an_outcome_is_unknown() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.begin_reassignment("t2")
        bench.electorate.begin_term("elsewhere")
        record, root = run_traced(bench, tracer)
        apply = child(root, "apply")
        assert record.error and apply.failure.startswith("NotLeader")
        assert [c.attributes["outcome"] for c in apply.children] == ["unknown"]


def test_a_cycle_links_to_the_traced_call_that_requested_it() -> None:
    tracer = MemoryTracer()
    with Bench(tracer=tracer, real_time=True) as bench:
        bench.planner.start("here:1")
        eventually(lambda: bench.planner.state().last_cycle)
        with tracer.span("the call") as call:
            bench.planner.request_cycle("requested by a test")
        eventually(lambda: [root for root in tracer.traces if root.origins])
        (root,) = [root for root in tracer.traces if root.origins]
        assert (root.name, root.parent, [*root.origins]) == ("cycle", None, [call])
