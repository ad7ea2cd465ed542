"""The matrix of Kafka releases (`make matrix`): its table, and its recovery on the newest release."""

from __future__ import annotations

from datetime import date

import pytest

from tests.system.version_matrix import PAGE, RELEASES, TITLE, Release, Row, cells_of, main, with_rows

DAY = date(2030, 1, 31)


def passed(release: str, store: str = "zookeeper") -> Row:
    return Row(Release.parse(release), store, DAY, 0.91, 0.4, 7.2, clean=True, seconds=22.4)


def test_rows_replace_only_those_of_the_same_release_mode_and_store() -> None:
    page = f"# Page\n\n| a |\n|---|\n| 1 |\n\n{TITLE}\n\nText.\n\n| Kafka |\n|---|\n\n## Next\n"
    page = with_rows(page, [passed("4.10.0"), Row(Release.parse("4.9.1"), "zookeeper", DAY, 0.9)])
    page = with_rows(page, [passed("4.9.1"), passed("4.9.1", "kafka"), passed("4.9.1-zookeeper")])
    above, _, below = page.partition(TITLE)
    assert above == "# Page\n\n| a |\n|---|\n| 1 |\n\n"
    checks = "yes, 0.91 of the rate | yes, after 0.4 s | yes, after 7.2 s | yes | 22 | 2030-01-31 |"
    assert (
        below
        == f"""

Text.

| Kafka | mode | state in | throttled | override | takeover | clean | seconds | date |
|---|---|---|---|---|---|---|---|---|
| 4.9.1 | KRaft | kafka | {checks}
| 4.9.1 | KRaft | zookeeper | {checks}
| 4.9.1 | ZooKeeper | zookeeper | {checks}
| 4.10.0 | KRaft | zookeeper | {checks}

## Next
"""
    )


def test_row_of_a_failed_run_names_the_checks_that_did_not_pass() -> None:
    row = Row(Release.parse("4.9.1"), "zookeeper", DAY, override_seconds=0.4)
    assert row.cells()[3:7] == ["no", "yes, after 0.4 s", "no", "no"]


def test_the_page_has_a_row_for_each_release() -> None:
    section = PAGE.read_text("utf-8").partition(TITLE)[2]
    rows = cells_of(section[section.index("| Kafka |") :])
    modes = {(release.version, "ZooKeeper" if release.zookeeper else "KRaft") for release in RELEASES}
    assert {(version, mode) for version, mode, *_ in rows} == modes


@pytest.mark.repeat
@pytest.mark.timeout(1500)
def test_recovery_passes_on_the_newest_release() -> None:
    assert main(["--releases", str(RELEASES[-1])]) == 0
