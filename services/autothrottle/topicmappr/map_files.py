"""The map files: JSON that kafka-reassign-partitions.sh and `throttlectl reassign` execute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from autothrottle.core.cluster.configs import validate_topic
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.placement.partition_map import PartitionMap
from autothrottle_client.files import write_text
from autothrottle_client.reassignments import format_targets


@dataclass(frozen=True, slots=True)
class MapFile:
    """One file to write."""

    name: str
    """File name without its directory."""
    partitions: PartitionMap
    combined: bool = False
    """Whether it holds the maps of all topics."""


def map_files(maps: Sequence[PartitionMap], out_file: str) -> tuple[MapFile, ...]:
    """Return the files of a plan: of each map, the combined one if named, then one per topic.

    Several maps have the suffixes -phase0, -phase1 and so on, in the order of their execution.

    Raises:
        Invalid: a topic has no valid name, which would be a path, or `out_file` is another file's name.
    """
    files: dict[str, MapFile] = {}
    for number, partitions in enumerate(maps):
        suffix = f"-phase{number}" if len(maps) > 1 else ""
        of_map = []
        if out_file and partitions:
            of_map.append(MapFile(f"{out_file.removesuffix('.json')}{suffix}.json", partitions, combined=True))
        for topic, rows in groupby(partitions, lambda partition: partition.topic):
            of_map.append(MapFile(f"{validate_topic(topic)}{suffix}.json", tuple(rows)))
        for file in of_map:
            if files.setdefault(file.name, file).partitions != file.partitions:
                raise Invalid(f"{file.name} is the combined map and the map of a topic; give another --out-file")
    return tuple(files.values())


def write_files(directory: str, files: Sequence[MapFile]) -> None:
    """Write the files, readable by all.

    Raises:
        Unavailable: a file cannot be written; the message says which.
    """
    for file in files:
        path = Path(directory or ".") / file.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            targets = {partition.key: partition.replicas for partition in file.partitions}
            write_text(path, format_targets(targets), mode=0o644)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error.strerror}; give a writable --out-path") from None
