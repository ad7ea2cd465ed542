"""The CSV file with instance types.

name,storage,network_in,network_out,disk,price
large,7.5TB,25Gbit/s,25Gbit/s,2000MB/s,990
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autothrottle.core.capacity.sizing import InstanceType
from autothrottle.core.units import parse_quantity
from autothrottle_client.errors import Invalid
from autothrottle_client.files import read_text

_COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "name": str.strip,
    "storage": lambda text: parse_quantity(text, per_second=False),
    "network_in": lambda text: parse_quantity(text, per_second=True),
    "network_out": lambda text: parse_quantity(text, per_second=True),
    "disk": lambda text: parse_quantity(text, per_second=True),
    "price": lambda text: _price(text),
}


def read_instance_file(path: str) -> tuple[tuple[InstanceType, ...], tuple[str, ...]]:
    """Return the instance types of a file, and one sentence for each problem; with a problem no type counts."""
    try:
        lines = csv.reader(read_text(path).splitlines())
        rows = [(number, row) for number, row in enumerate(lines, 1) if row and not row[0].startswith("#")]
    except (OSError, ValueError, csv.Error) as error:
        return (), (f"instances {path!r} cannot be read: {error}. Fix: name a CSV file",)
    if not rows:
        return (), (f"{path} is empty. Fix: begin with the line {','.join(_COLUMNS)}",)
    header = [cell.strip().lower() for cell in rows[0][1]]
    if absent := [name for name in _COLUMNS if name not in header]:
        where, columns = f"{path}, line {rows[0][0]}", ",".join(_COLUMNS)
        return (), (f"{where}: no column {', '.join(absent)}. Fix: begin with the line {columns}",)
    problems: list[str] = []
    instances = [_instance(f"{path}, line {number}", header, row, problems) for number, row in rows[1:]]
    names = Counter(instance.name for instance in instances if instance)
    problems += [f"{path}: {name!r} is there twice. Fix: name each once" for name, count in names.items() if count > 1]
    if not instances:
        problems.append(f"{path} has no instance type. Fix: add a line for each")
    return tuple(instance for instance in instances if instance), tuple(problems)


def _instance(where: str, header: Sequence[str], row: Sequence[str], problems: list[str]) -> InstanceType | None:
    if len(row) != len(header):
        problems.append(f"{where} has {len(row)} values for {len(header)} columns. Fix: {','.join(_COLUMNS)}")
        return None
    values: dict[str, Any] = {}
    for name, parse in _COLUMNS.items():
        try:
            values[name] = parse(row[header.index(name)])
        except Invalid as error:
            problems.append(f"{where}, column {name}: {error}")
    return InstanceType(**values) if len(values) == len(_COLUMNS) else None


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < 1e12:
        raise Invalid(f"{text[:60]!r} is not a price. Fix: a number >= 0, per month")
    return price
