"""Reads one reassignment of the decision log without Spark, for a simulation; `writer` describes the files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from autothrottle.adapters.decision_log.schema import file_system
from autothrottle.core.errors import Invalid
from autothrottle.core.scoring.decision_records import DecisionRecord, PathRecord, ReassignmentRecord

log = logging.getLogger(__name__)


class LoggedDecisions:
    """The log at one location; every call reads it again."""

    def __init__(self, uri: str) -> None:
        """Check that there is a log.

        Args:
            uri: a local path or a URI, as in the planner's `--decisions`.

        Raises:
            Invalid: the location has no decision log.
        """
        try:
            self._files, self._root = file_system(uri)
            kind = self._files.get_file_info(f"{self._root}/reassignments").type
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Invalid(f"the decision log {uri!r} cannot be read: {error}. Fix: give another location") from None
        if kind is not fs.FileType.Directory:
            raise Invalid(f"{uri!r} holds no decision log. Fix: give the planner's --decisions")

    def reassignments(self) -> Sequence[ReassignmentRecord]:
        """Return the records of reassignments, including duplicates; columns that a file lacks are None."""
        records = []
        for row in self._rows("reassignments"):
            paths = [PathRecord(**_own_fields(path, PathRecord)) for path in row.get("paths") or ()]
            records.append(ReassignmentRecord(**_own_fields(row, ReassignmentRecord) | {"paths": paths}))
        return records

    def decisions(self, reassignment_id: str) -> Sequence[DecisionRecord]:
        """Return the decisions for one reassignment, including duplicates; columns that a file lacks are None."""
        rows = self._rows("decisions", [("reassignment_id", "=", reassignment_id)])
        return [DecisionRecord(**_own_fields(row, DecisionRecord)) for row in rows]

    def _rows(self, kind: str, filters: Any = None) -> Iterator[dict[str, Any]]:
        files = self._files.get_file_info(fs.FileSelector(f"{self._root}/{kind}", allow_not_found=True, recursive=True))
        for info in sorted(files, key=lambda info: str(info.path)):
            if not info.path.endswith(".parquet"):
                continue
            try:
                table = pq.read_table(info.path, filesystem=self._files, filters=filters, partitioning=None)
            except (pa.ArrowException, OSError) as error:
                log.warning("%s cannot be read and is skipped: %s", info.path, error)
                continue
            yield from table.to_pylist()


def _own_fields(row: dict[str, Any], kind: type[PathRecord | ReassignmentRecord | DecisionRecord]) -> dict[str, Any]:
    """The values of a record's fields, without columns that a newer version added."""
    return {name: row.get(name) for name in kind.__dataclass_fields__}
