"""The contest on real links: the same reassignment under every policy, as one table.

`make bench-links` runs it as root, with five real brokers in network namespaces. `tc` shapes their links. A run takes
about two minutes. `ARGS="--policies adaptive --ratio 0.9,0.7 --runs 1"` chooses runs, and `ARGS=--record` stores each
run in `../results/links.csv` when it ends. The environment variable `LINK_MB=5` makes all links and clients 4 times as
slow, for a busy machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autothrottle.runtime.configuration import METRICS_SOURCES
from autothrottle_lab.servers.processes import scratch_directory
from tests.benchmarks.links.layout import READ_BROKER, SECOND_KINDS, RunPlan
from tests.benchmarks.links.shaped_links import missing_requirements
from tests.benchmarks.links.stage import start_testbed
from tests.benchmarks.links.story import run_plan, warm_up
from tests.benchmarks.links.tally import Run, claims, lines, rate_next_to_full_follower, source_lines
from tests.benchmarks.result_files import DIRECTORY, read_rows, write_rows

RESULTS = DIRECTORY / "links.csv"
POLICIES = ("none", "static", "headroom", "adaptive")
SOURCES = tuple(name for name in METRICS_SOURCES if name != "none")
MEMORY = Path("/dev/shm")
"""Directory for the logs of the brokers, if it exists, so that disks do not affect the result."""


def plans(given: argparse.Namespace) -> list[RunPlan]:
    """All runs. Policies alternate, since the load of the machine changes over time."""
    return [
        RunPlan(
            policy,
            ratio,
            number,
            given.megabytes,
            given.interval,
            given.window,
            given.quiet,
            given.record_bytes,
            given.uneven,
            second,
            source,
            given.surge,
            fanout_factor,
        )
        for second in given.second.split(",")
        for ratio in (float(text) for text in given.ratio.split(","))
        for number in range(1, given.runs + 1)
        for policy in given.policies.split(",")
        for source in given.metrics_source.split(",")
        for fanout_factor in given.fanout_factors
    ]


def record(path: Path, runs: Sequence[Run], given: argparse.Namespace, command: str) -> None:
    """Replace recorded runs of the same policies, ratios and settings; keep the others."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    setting = {
        "interval_seconds": given.interval,
        "window_seconds": given.window,
        "fetch_kilobytes": list(given.fetch_kilobytes),
        "record_bytes": given.record_bytes,
        "uneven": given.uneven,
        **({"surge": given.surge} if given.surge != 1 else {}),
    }
    metadata = {"command": command, "date": now, **setting}
    recorded = [(run.policy, run.ratio, run.second, run.source, run.fanout_factor) for run in runs]
    kept = [
        row
        for row in read_rows(path)
        if (row["policy"], row["ratio"], row["second"], row.get("source", "datadog"), row.get("fanout_factor"))
        not in recorded
        or any(row.get(key) != one for key, one in setting.items())
    ]
    rows: list[dict[str, Any]] = [*kept, *({**rounded(asdict(run)), **metadata} for run in runs)]
    machine = {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
    write_rows(path, [{**row, "machine": machine} for row in sorted(rows, key=_order)])


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -row["ratio"], POLICIES.index(row["policy"]), row.get("fetch_kilobytes", []), row["second"], row["number"]


def rounded(value: Any) -> Any:
    """Return the same value with floats rounded to four decimals.

    >>> rounded({"wait": [0.123456, 2]})
    {'wait': [0.1235, 2]}
    """
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-links", description=__doc__)
    parser.add_argument("--policies", default=",".join(POLICIES), help="some of %(default)s")
    parser.add_argument("--ratio", default="0.9", help="shares of the headroom, separated by commas")
    parser.add_argument("--runs", type=int, default=2, help="runs of each policy and ratio")
    parser.add_argument("--megabytes", type=int, default=16, help="size of each of the 16 reassigned partitions")
    parser.add_argument("--interval", type=int, default=10, help="seconds between two cycles")
    parser.add_argument("--window", type=int, default=10, help="window of the metrics, seconds")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without reassignment before each run")
    parser.add_argument(
        "--record-bytes", type=int, default=2000, help="record size of the reassigned topic; a batch has four records"
    )
    parser.add_argument(
        "--fetch-kilobytes",
        type=sizes,
        default=sizes("32,64"),
        help="replica.fetch.max.bytes and replica.fetch.response.max.bytes, in units of 1024 bytes",
    )
    parser.add_argument("--uneven", action="store_true", help="half of the reassigned partitions have twice the size")
    parser.add_argument(
        "--second", default="none", help=f"states of a second follower, separated by commas: {', '.join(SECOND_KINDS)}"
    )
    parser.add_argument(
        "--metrics-source", default="datadog", help=f"some of {', '.join(SOURCES)}, separated by commas"
    )
    parser.add_argument(
        "--surge", type=float, default=1.0, help="factor of the clients' produce rates, 10 s after the submission"
    )
    parser.add_argument(
        "--fanout-factors",
        type=lambda text: [float(factor) for factor in text.split(",")],
        default=[None],
        help=f"add consumers to broker {READ_BROKER}, which then leads all reassigned partitions; --consumer-fanout of "
        "the source kafka as multiples of the true one, separated by commas",
    )
    parser.add_argument("--record", action="store_true", help=f"store the runs in {RESULTS.name}")
    given = parser.parse_args(arguments)
    chosen = (
        ("policies", given.policies, POLICIES),
        ("second", given.second, SECOND_KINDS),
        ("metrics-source", given.metrics_source, SOURCES),
    )
    for option, text, known in chosen:
        if unknown := set(text.split(",")) - set(known):
            parser.error(f"--{option} {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return given


def sizes(text: str) -> tuple[int, int]:
    """Parse two fetch sizes: per partition and per response.

    >>> sizes("64,128")
    (64, 128)
    """
    per_partition, per_response = text.split(",")
    return int(per_partition), int(per_response)


def main(arguments: Sequence[str]) -> int:
    """Run the contest and print it."""
    given = parse_arguments(arguments)
    if problem := missing_requirements(os.geteuid(), shutil.which):
        print(problem, file=sys.stderr)
        return 2
    command = shlex.join(["make", "bench-links", f"ARGS={shlex.join(arguments)}"])
    runs: list[Run] = []
    with (
        scratch_directory(parent=MEMORY if MEMORY.is_dir() else None) as directory,
        start_testbed(directory, *given.fetch_kilobytes) as testbed,
    ):
        warm_up(testbed)
        for plan in plans(given):
            runs.append(run_plan(testbed, plan))
            print("\n".join(lines(runs[-1:])[len(runs) > 1 :]), flush=True)
            if given.record:
                record(RESULTS, runs, given, command)
    print("\n".join(["", *lines(runs), ""]))
    if len({(run.source, run.fanout_factor) for run in runs}) > 1:
        print("\n".join([*source_lines(runs), ""]))
    steady = given.surge == 1 and given.fanout_factors == [None]
    for claim in claims(runs) if steady else ():  # the goals are those of steady producers alone
        reached = ", ".join(f"{one:g}" for one in claim["runs"])
        print(
            f"{claim['claim']}: {reached} (wanted: at most {claim['wanted']:g}): {'met' if claim['met'] else 'NOT MET'}"
        )
    for (policy, ratio), kept in rate_next_to_full_follower(runs).items():
        print(f"{policy}, {ratio:g}: next to a full follower the other one kept {kept:.2f} of its rate (wanted: 0.95)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
