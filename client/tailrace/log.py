"""Reads and writes of a log without a server and without Spark: ``pip install 'tailrace[log]'``.

::

    import polars
    from tailrace.log import read

    changes = polars.from_arrow(read("log", "shop", "product", starting=41))
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace_server.log_read.plan import open_log, plan
from tailrace_server.log_read.request import Deduplication, ReadRequest, Shape
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Literal

    import pyarrow as pa

    from tailrace.cursor import Cursor

_ROWS_PER_PART: Final = 65_536
"""Number of records in a part that a thread reads: fewer than for tasks, which cost more to start."""


def read(
    log: Path | str,
    catalog: str,
    entity_type: str | None = None,
    *,
    shape: Literal["changes", "state", "captures"] = "changes",
    columns: Sequence[str] | None = None,
    starting: int | datetime | Cursor | None = None,
    ending: int | datetime | Cursor | None = None,
    at: int | datetime | None = None,
    where: str | None = None,
    deduplication: Literal["none", "netChanges"] = "none",
    compute_updates: bool = False,
    misfits: Literal["refuse", "null"] = "refuse",
    threads: int | None = None,
) -> pa.RecordBatchReader:
    """Read a log."""
    request = ReadRequest(
        log=Path(log),
        catalog=catalog,
        entity_type=entity_type,
        shape=Shape(shape),
        columns=None if columns is None else tuple(columns),
        starting=starting,
        ending=ending,
        at=at,
        where=where,
        deduplication=Deduplication(deduplication),
        compute_updates=compute_updates,
        on_misfit=OnMisfit(misfits),
        rows_per_part=_ROWS_PER_PART,
    )
    opened = open_log(request)
    try:
        return plan(request, opened).reader(opened, threads or os.cpu_count() or 1)
    except BaseException:
        opened.close()
        raise


__all__ = ["LogWriter", "Mutation", "read"]
