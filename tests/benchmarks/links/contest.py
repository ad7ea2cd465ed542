"""The contest on real links: the same move under every policy, as one table.

`make bench-links` runs it as root: five real brokers in network namespaces, whose links `tc` shapes. A move takes
about two minutes; `ARGS="--policies adaptive --ratio 0.9,0.7 --runs 1"` chooses, `ARGS=--record` keeps each run in
`../results/links.json` as soon as it has ended.
"""

from __future__ import annotations

import argparse
import json
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

from autothrottle.lab.links import unmet
from autothrottle.lab.processes import scratch_directory
from tests.benchmarks.links.layout import SECOND_KINDS, Plan
from tests.benchmarks.links.stage import stage
from tests.benchmarks.links.story import play, warm_up
from tests.benchmarks.links.tally import Run, beside_a_full_one, claims, lines

RESULTS = Path(__file__).parents[1] / "results" / "links.json"
POLICIES = ("none", "static", "headroom", "adaptive")
MEMORY = Path("/dev/shm")
"""Where the brokers' logs are, if there is such a directory: disks shall not play a part."""


def plans(given: argparse.Namespace) -> list[Plan]:
    """All moves, in an order in which those of a policy are apart: what the machine does changes with time."""
    return [
        Plan(
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
        )
        for second in given.second.split(",")
        for ratio in (float(text) for text in given.ratio.split(","))
        for number in range(1, given.runs + 1)
        for policy in given.policies.split(",")
    ]


def record(path: Path, runs: Sequence[Run], given: argparse.Namespace, command: str) -> None:
    """Keep runs in a file; those of other policies, ratios and settings that it holds stay."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    setting = {
        "interval_seconds": given.interval,
        "window_seconds": given.window,
        "fetch_kilobytes": list(given.fetch_kilobytes),
        "record_bytes": given.record_bytes,
        "uneven": given.uneven,
    }
    about = {"command": command, "date": now, **setting}
    played = [(run.policy, run.ratio, run.second) for run in runs]
    before = json.loads(path.read_text())["runs"] if path.exists() else []
    kept = [
        row
        for row in before
        if (row["policy"], row["ratio"], row["second"]) not in played
        or any(row.get(key) != one for key, one in setting.items())
    ]
    rows: list[dict[str, Any]] = [*kept, *({**rounded(asdict(run)), **about} for run in runs)]
    machine = {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "runs": sorted(rows, key=_order)}, indent=1) + "\n")


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -row["ratio"], POLICIES.index(row["policy"]), row.get("fetch_kilobytes", []), row["second"], row["number"]


def rounded(value: Any) -> Any:
    """The same with floats of four decimals.

    >>> rounded({"wait": [0.123456, 2]})
    {'wait': [0.1235, 2]}
    """
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="make bench-links", description=__doc__)
    parser.add_argument("--policies", default=",".join(POLICIES), help="some of %(default)s")
    parser.add_argument("--ratio", default="0.9", help="shares of the headroom, by comma")
    parser.add_argument("--runs", type=int, default=2, help="of each policy and ratio")
    parser.add_argument("--megabytes", type=int, default=16, help="of each of the 16 partitions that move")
    parser.add_argument("--interval", type=int, default=10, help="between two cycles, seconds")
    parser.add_argument("--window", type=int, default=10, help="of the metrics, seconds")
    parser.add_argument("--quiet", type=float, default=20.0, help="time before each move, seconds")
    parser.add_argument("--record-bytes", type=int, default=2000, help="of what moves; four are a batch")
    parser.add_argument(
        "--fetch-kilobytes",
        type=sizes,
        default=sizes("32,64"),
        help="replica.fetch.max.bytes (of a partition) and replica.fetch.response.max.bytes, 1024 bytes each",
    )
    parser.add_argument("--uneven", action="store_true", help="half of the partitions that move have twice the bytes")
    parser.add_argument(
        "--second", default="none", help=f"how a second destination is, by comma: {', '.join(SECOND_KINDS)}"
    )
    parser.add_argument("--record", action="store_true", help=f"keep the table in {RESULTS.name}")
    given = parser.parse_args(arguments)
    for option, text, known in (("policies", given.policies, POLICIES), ("second", given.second, SECOND_KINDS)):
        if unknown := set(text.split(",")) - set(known):
            parser.error(f"--{option} {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return given


def sizes(text: str) -> tuple[int, int]:
    """Read two numbers: the size of a partition's part and of a whole answer.

    >>> sizes("64,128")
    (64, 128)
    """
    of_a_partition, whole = text.split(",")
    return int(of_a_partition), int(whole)


def main(arguments: Sequence[str]) -> int:
    """Run the contest and print it."""
    given = parsed(arguments)
    if problem := unmet(os.geteuid(), shutil.which):
        print(problem, file=sys.stderr)
        return 2
    command = shlex.join(["make", "bench-links", f"ARGS={shlex.join(arguments)}"])
    runs: list[Run] = []
    with (
        scratch_directory(parent=MEMORY if MEMORY.is_dir() else None) as directory,
        stage(directory, *given.fetch_kilobytes) as built,
    ):
        warm_up(built)
        for plan in plans(given):
            runs.append(play(built, plan))
            print("\n".join(lines(runs[-1:])[len(runs) > 1 :]), flush=True)
            if given.record:
                record(RESULTS, runs, given, command)
    print("\n".join(["", *lines(runs), ""]))
    for claim in claims(runs):
        reached = ", ".join(f"{one:g}" for one in claim["runs"])
        print(
            f"{claim['claim']}: {reached} (wanted: at most {claim['wanted']:g}): {'met' if claim['met'] else 'NOT MET'}"
        )
    for (policy, ratio), kept in beside_a_full_one(runs).items():
        print(f"{policy}, {ratio:g}: beside a full destination the other got {kept:.2f} of its rate (wanted: 0.95)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
