"""Some seeds of the chaos tests; `make chaos` runs 200, also on Kafka with `ARGS=--kafka`."""

import pytest

from tests.chaos.on_kafka import series as on_kafka
from tests.chaos.on_kafka.series import Family, KafkaRecord
from tests.chaos.run import Result
from tests.chaos.series import details, line, run_all, summary
from tests.examples import examples

SEEDS = (28, 41, 50, 109)
"""With them every kind of edit happens, and kills, stops, and cuts, before and after a commit.

They lack delays and faults of the metrics service, which `MORE_SEEDS` have.
"""

MORE_SEEDS = tuple(range(1, 21))


def report(result: Result) -> None:
    print(line(result))


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(SEEDS, id="4 seeds"), pytest.param(MORE_SEEDS, id="20 more seeds", marks=pytest.mark.repeat)],
)
def test_faults_and_edits_cause_no_violation(seeds: tuple[int, ...]) -> None:
    print()
    results = run_all(seeds, lanes=2, report=report)
    print(summary(results))
    assert [result.plan.seed for result in results] == list(seeds)
    broken = [details(result) for result in results if result.violations]
    print(*broken, sep="\n")  # the assertion message truncates each of them
    assert broken == []
    assert all(result.verdict.writes for result in results)
    # Faults that miss their targets would prove nothing.
    assert sum(result.kills_inside for result in results) >= 0.3 * sum(result.kills for result in results) > 0
    assert sum(result.cuts_after_commit for result in results) > 0


KAFKA_SEEDS = (27, 29, 30)[: examples(2, 3)]
"""With the first two, the leader is killed during a request, and the broker that leads the state partition is killed.

With the third, the leader is killed after a commit, whose answer is lost. They are among the shortest. Each of two
lanes has brokers of its own, so that `make test` runs one seed on each.
"""


def report_on_kafka(record: KafkaRecord) -> None:
    print(on_kafka.line(record))


def test_faults_and_edits_on_real_brokers_cause_no_violation() -> None:
    print()
    records = on_kafka.run_all(KAFKA_SEEDS, 2, "kafka", report_on_kafka)
    print(on_kafka.summary(records))
    broken = [on_kafka.details(record) for record in records if record.violations]
    print(*broken, sep="\n")
    assert broken == []
    assert all(record.writes for record in records)
    # Faults that miss their targets would prove nothing.
    assert sum(record.kills_inside for record in records) > 0 < sum(record.broker_faults for record in records)


ABSENCE_SEEDS = (12, 15, 36)
"""With them all faults of the state topic but garbage happen, both client quotas, and both kinds of absences."""


@pytest.mark.repeat
def test_absences_of_all_brokers_and_foreign_records_cause_no_violation() -> None:
    print()
    records = on_kafka.run_all(ABSENCE_SEEDS, 2, "kafka", report_on_kafka, family=Family.SHORT_ABSENCES)
    print(on_kafka.summary(records))
    broken = [on_kafka.details(record) for record in records if record.violations]
    print(*broken, sep="\n")
    assert broken == []
    assert all(record.writes and record.returns for record in records)
    # A snapshot that no fault delays would prove nothing.
    assert any("continues in term" in note for record in records for note in record.notes)
