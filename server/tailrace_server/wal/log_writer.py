"""The writer for Python programs without Spark: opens a catalog by name, and creates it if it is new."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tailrace_server.wal.before_images import check_options
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.transaction_writer import TransactionWriter

if TYPE_CHECKING:
    import os
    from typing import Self

    from tailrace.clock import Clock
    from tailrace_server.wal.schema.mapping import SchemaMapping


class LogWriter(TransactionWriter):
    """Appends transactions to the catalog of a name. ``TransactionWriter`` describes the methods."""

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        catalog: str,
        *,
        writer: str = "log-writer",
        take_over: bool = False,
        clock: Clock | None = None,
        mapping: SchemaMapping | None = None,
        whole_removals: bool = False,
        images: Literal["as-sent", "full"] = "as-sent",
    ) -> Self:
        """Open a catalog for writing; create the catalog if it does not exist.

        Arguments and errors are those of ``CatalogWriter.open`` and ``TransactionWriter``.
        """
        check_options(mapping, images)  # before the catalog is created for it
        opened = open_writer(Path(root), catalog, writer=writer, take_over=take_over, clock=clock)
        return cls(opened, mapping, whole_removals=whole_removals, images=images)
