"""Memory and open files of separate service processes do not grow over 1,000 cycles with 100 brokers."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict

from autothrottle.core.units import MEGABYTE
from autothrottle_lab.servers.processes import scratch_directory
from tests.benchmarks.big_cluster import Size
from tests.benchmarks.figures import Figures
from tests.benchmarks.test_cycle import ClusterLab, RunningServices

CYCLES = int(os.environ.get("AUTOTHROTTLE_SOAK_CYCLES", "1000"))
INTERVAL_SECONDS = 1
SAMPLE_CYCLES = max(1, CYCLES // 10)
"""Cycles between two samples."""
PHASE_SECONDS = 20
"""Duration of each phase, seconds. Phases with and without reassignments alternate."""
SIZE = Size(brokers=100, topics=20, partitions_per_topic=50)
SERVICES = ("discovery", "metrics", "planner-1", "applier", "admin")
MAX_GROWTH, MAX_GROWTH_MEGABYTES, MAX_NEW_FILES = 0.05, 5.0, 4
"""Permitted growth from a fifth of the run to its end: share and MB of memory, number of files."""


def test_memory_and_open_files_do_not_grow(figures: Figures) -> None:
    with (
        scratch_directory() as directory,
        ClusterLab(SIZE, directory) as lab,
        lab.services(1, INTERVAL_SECONDS) as services,
    ):
        memory, files = soak(lab, services)
    for name in SERVICES:
        service = name.removesuffix("-1")
        for after in (2 * SAMPLE_CYCLES, CYCLES):
            figures.add(f"soak, memory of {service} after {after} cycles (RSS)", str(SIZE), "MB", [memory[name][after]])
            figures.add(f"soak, open files of {service} after {after} cycles", str(SIZE), "files", [files[name][after]])
    for name in SERVICES:
        early, late = memory[name][2 * SAMPLE_CYCLES], memory[name][CYCLES]
        assert late <= early * (1 + MAX_GROWTH) + MAX_GROWTH_MEGABYTES, f"{name}: {memory[name]}"
        # Connections of abandoned reads stay open until garbage collection. A count that falls again is not a leak.
        late_files = min(count for after, count in files[name].items() if after > CYCLES / 2)
        assert late_files <= files[name][2 * SAMPLE_CYCLES] + MAX_NEW_FILES, f"{name}: {files[name]}"


def soak(lab: ClusterLab, services: RunningServices) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    """Start and cancel reassignments under a changing load.

    Returns:
        (memory, open files), each as service name -> cycle -> MB or number of files.
    """
    generator = random.Random(1)
    memory: dict[str, dict[int, float]] = defaultdict(dict)
    files: dict[str, dict[int, float]] = defaultdict(dict)
    active, switched, sampled = False, 0.0, 0
    while sampled < CYCLES:
        if time.monotonic() - switched > PHASE_SECONDS:
            (lab.cluster.cancel_reassignment if active else lab.cluster.start_reassignment)()
            active, switched = not active, time.monotonic()
            lab.cluster.clear_notifications()
        rates = {b: (generator.uniform(100, 700) * MEGABYTE,) * 2 for b in lab.size.broker_ids}
        lab.clients.set_rates(rates)
        time.sleep(1)
        cycle = services.last_cycle()
        assert cycle is None or not cycle.error, cycle.error
        if cycle is not None and cycle.number >= sampled + SAMPLE_CYCLES:
            sampled += SAMPLE_CYCLES
            for name in SERVICES:
                memory[name][sampled], files[name][sampled] = (
                    services.memory_megabytes(name)[0],
                    services.open_files(name),
                )
            line = ", ".join(f"{name} {memory[name][sampled]:.1f} MB {files[name][sampled]} files" for name in SERVICES)
            print(f"\n  {sampled} cycles: {line}")
    return memory, files
