"""A thousand cycles of separate processes on 100 brokers: memory and open files stay where they are."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict

from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.processes import scratch_directory
from tests.benchmarks.big_cluster import Size
from tests.benchmarks.figures import Figures
from tests.benchmarks.test_cycle import House, Installation

CYCLES = int(os.environ.get("AUTOTHROTTLE_SOAK_CYCLES", "1000"))
INTERVAL_SECONDS = 1
EVERY = max(1, CYCLES // 10)
"""Cycles between two samples."""
MOVE_SECONDS = 20
"""So long everything moves, and so long nothing does."""
SIZE = Size(brokers=100, topics=20, partitions_per_topic=50)
SERVICES = ("discovery", "metrics", "planner-1", "applier", "admin")
MOST_GROWTH, MOST_GROWTH_MEGABYTES, MOST_FILES = 0.05, 5.0, 4
"""From a fifth of the way to its end: what is no leak."""


def test_memory_and_open_files_stay_where_they_are(figures: Figures) -> None:
    with (
        scratch_directory() as directory,
        House(SIZE, directory) as house,
        house.installation(1, INTERVAL_SECONDS) as services,
    ):
        memory, files = soak(house, services)
    for name in SERVICES:
        service = name.removesuffix("-1")
        for after in (2 * EVERY, CYCLES):
            figures.add(f"soak, memory of {service} after {after} cycles (RSS)", str(SIZE), "MB", [memory[name][after]])
            figures.add(f"soak, open files of {service} after {after} cycles", str(SIZE), "files", [files[name][after]])
    for name in SERVICES:
        early, late = memory[name][2 * EVERY], memory[name][CYCLES]
        assert late <= early * (1 + MOST_GROWTH) + MOST_GROWTH_MEGABYTES, f"{name}: {memory[name]}"
        # Connections of readings that were given up stay until they are collected: what comes back is no leak.
        late_files = min(count for after, count in files[name].items() if after > CYCLES / 2)
        assert late_files <= files[name][2 * EVERY] + MOST_FILES, f"{name}: {files[name]}"


def soak(house: House, services: Installation) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    """Let everything move and stop again under a changing load; return (megabytes, open files) by name and cycle."""
    chance = random.Random(1)
    memory: dict[str, dict[int, float]] = defaultdict(dict)
    files: dict[str, dict[int, float]] = defaultdict(dict)
    moving, turned, sampled = False, 0.0, 0
    while sampled < CYCLES:
        if time.monotonic() - turned > MOVE_SECONDS:
            (house.cluster.cancel_move if moving else house.cluster.start_move)()
            moving, turned = not moving, time.monotonic()
            house.cluster.clear_notifications()
        rates = {b: (chance.uniform(100, 700) * MEGABYTE,) * 2 for b in house.size.broker_ids}
        house.clients.set_rates(rates)
        time.sleep(1)
        cycle = services.last_cycle()
        assert cycle is None or not cycle.error, cycle.error
        if cycle is not None and cycle.number >= sampled + EVERY:
            sampled += EVERY
            for name in SERVICES:
                memory[name][sampled], files[name][sampled] = (
                    services.memory_megabytes(name)[0],
                    services.open_files(name),
                )
            shown = ", ".join(
                f"{name} {memory[name][sampled]:.1f} MB {files[name][sampled]} files" for name in SERVICES
            )
            print(f"\n  {sampled} cycles: {shown}")
    return memory, files
