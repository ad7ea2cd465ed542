"""Results as Iceberg tables: a reader sees the rows of the last run or of this one. The type is `IcebergFiles`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.expressions import And, EqualTo, In
from pyiceberg.table import ALWAYS_TRUE, Table

from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.texts import first_line
from autothrottle.scorer.files import ArrowFiles, Reduce
from autothrottle.scorer.log import Folder, with_columns

NAMESPACE = "autothrottle"
"""The tables are `autothrottle.recoveries` and its siblings."""


class IcebergFiles(ArrowFiles):
    """`Files` whose tables are in an Iceberg catalog; the report is a file as elsewhere."""

    tasks_write = False

    def __init__(self, log: str, out: str, catalog: str) -> None:
        """Open the log, the location of the report, and the catalog.

        Args:
            log: a local path or a URI, as in the planner's `--decisions`.
            out: a local path or a URI; the data of an SQL catalog is there.
            catalog: a name in the configuration of pyiceberg, or a URI such as `sqlite:////path/catalog.db`.

        Raises:
            Invalid: a location or the catalog is not usable.
        """
        super().__init__(log, out)
        try:
            self._catalog = _catalog(catalog, self.out)
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
        except NamespaceAlreadyExistsError:
            pass  # another run has made it
        except Exception as error:  # each kind of catalog has errors of its own
            raise Invalid(
                f"the catalog {catalog!r} cannot be used: {first_line(error)}. "
                "Fix: name a catalog of ~/.pyiceberg.yaml or a URI"
            ) from None

    def table(self, name: str, schema: pa.Schema, recovery_ids: Collection[str] | None = None) -> pa.Table:
        table = self._existing(name)
        if table is None:
            return schema.empty_table()
        where = ALWAYS_TRUE if recovery_ids is None else In("recovery_id", sorted(recovery_ids))
        return with_columns(table.scan(where).to_arrow(), schema)

    def reduced(self, name: str, schema: pa.Schema, reduce: Reduce) -> pa.Table:
        table = self._existing(name)
        if table is None:
            return reduce(schema.empty_table())
        batches = table.scan().to_arrow_batch_reader()
        parts = [reduce(with_columns(pa.Table.from_batches([batch]), schema)) for batch in batches]
        return reduce(pa.concat_tables([schema.empty_table(), *parts]) if not parts else pa.concat_tables(parts))

    def write(self, name: str, rows: pa.Table) -> None:
        """Replace the folders of the rows in one commit."""
        if not len(rows):
            return
        with _committing(name):
            table = self._existing(name) or self._create(name, rows.schema)
            with table.update_schema() as update:  # columns that an older version lacked
                update.union_by_name(rows.schema)
            with warnings.catch_warnings():  # about folders that did not exist
                warnings.filterwarnings("ignore", "Delete operation did not match any records")
                table.dynamic_partition_overwrite(rows)

    def remove(self, name: str, folder: Folder) -> None:
        table = self._existing(name)
        if table is not None:
            with _committing(name):
                table.delete(And(EqualTo("cluster", folder[0]), EqualTo("date", folder[1])))

    def _existing(self, name: str) -> Table | None:
        try:
            return self._catalog.load_table(f"{NAMESPACE}.{name}")
        except NoSuchTableError:
            return None

    def _create(self, name: str, schema: pa.Schema) -> Table:
        new = self._catalog.create_table_transaction(f"{NAMESPACE}.{name}", schema)
        with new as transaction, transaction.update_spec() as update:
            update.add_identity("cluster")
            update.add_identity("date")
        return self._catalog.load_table(f"{NAMESPACE}.{name}")


def _catalog(name: str, out: str) -> Catalog:
    if "://" not in name:
        return load_catalog(name)
    kind = {"type": "sql", "warehouse": out} if name.startswith(("sqlite:", "postgresql")) else {}
    return load_catalog(NAMESPACE, uri=name, **kind)


@contextmanager
def _committing(name: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise Unavailable(
            f"another program changed the table {NAMESPACE}.{name} at the same time: {error}. Fix: run it again"
        ) from None
