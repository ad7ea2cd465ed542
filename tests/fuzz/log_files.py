"""The door of the decision log: Parquet files of which some bytes were changed."""

from __future__ import annotations

import io
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from autothrottle.adapters.decision_log.files import DECISIONS, REASSIGNMENTS
from autothrottle.core.errors import Invalid
from autothrottle.scorer.log import read_decisions, read_reassignments, recoveries
from tests.fuzz.hostile import Choices
from tests.fuzz.series import require
from tests.unit.autothrottle.scorer.logs import example_rows


class LogFile(NamedTuple):
    """A file of one kind of records."""

    kind: str
    content: bytes


class LogFiles:
    """Files of decisions and reassignments, as the scorer reads them."""

    name = "log"

    def __init__(self) -> None:
        """Write a valid file of each kind, plain and compressed."""
        decisions, reassignments = example_rows()
        tables = {
            "decisions": pa.Table.from_pylist(decisions, schema=DECISIONS),
            "reassignments": pa.Table.from_pylist(reassignments, schema=REASSIGNMENTS),
        }
        self._files = [
            LogFile(kind, _parquet(table, compression))
            for kind, table in tables.items()
            for compression in ("zstd", "none")
        ]

    def make(self, choices: Choices) -> LogFile:
        kind, content = self._files[choices.below(len(self._files))]
        changed = bytearray(content)
        footer = int.from_bytes(content[-8:-4], "little") + 8
        for _ in range(choices.below(4)):
            begin = len(changed) - footer if choices.below(2) else 0
            changed[begin + choices.below(max(len(changed) - begin, 1))] = choices.below(256)
        return LogFile(kind, bytes(changed))

    def check(self, attack: LogFile) -> None:
        if attack.kind == "decisions":
            rows, reading = read_decisions("x.parquet", pa.BufferReader(attack.content))
            require(reading.problem != "" or rows is not None, "neither rows nor a problem")
        else:
            records, reading = read_reassignments("x.parquet", pa.BufferReader(attack.content))
            list(recoveries(records))
        if reading.problem:
            raise Invalid(reading.problem)

    def close(self) -> None:
        """Nothing to release."""


def _parquet(table: pa.Table, compression: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=compression)
    return sink.getvalue()
