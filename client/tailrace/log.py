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

from tailrace.cursor import Cursor
from tailrace.tls import tls_of
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

    from tailrace.tls import Trust

_ROWS_PER_PART: Final = 65_536
"""Number of records in a part that a thread reads: fewer than for tasks, which cost more to start."""


def read(
    log: Path | str | None,
    catalog: str,
    entity_type: str | None = None,
    *,
    shape: Literal["changes", "state", "captures"] = "changes",
    columns: Sequence[str] | None = None,
    starting: int | datetime | Cursor | str | None = None,
    ending: int | datetime | Cursor | str | None = None,
    at: int | datetime | None = None,
    where: str | None = None,
    deduplication: Literal["none", "netChanges"] = "none",
    compute_updates: bool = False,
    misfits: Literal["refuse", "null"] = "refuse",
    threads: int | None = None,
    server: str | None = None,
    token: str | None = None,
    tls: Trust | None = None,
) -> pa.RecordBatchReader:
    """Return a reader of a log, which reads while it is iterated. Its metadata has ``tailrace.cursor``.

    The columns of an entity type are typed by its newest schema; those of a state by the schema of its version.
    The cursor in the schema's metadata, and each ``_position`` or ``cursor`` of a row, is a start for a later
    read or for any subscription (``after``).

    - ``changes``: the columns, then ``_change_type``, ``_commit_version``, ``_commit_timestamp`` and
      ``_position``, in the order of the log. An update has two rows, ``update_preimage`` and
      ``update_postimage``, as in Delta's change data feed; only the second if the log has no row before. A
      removal or an expiry is a ``delete``. A truncate is a ``delete`` of each row that existed, which needs the
      state just before it. If a row lacks its key, the columns of the key are read from the primary key.
    - ``state``: the columns, then ``_commit_version`` and ``_commit_timestamp`` of the row's last change, in no
      particular order.
    - ``captures``: the records as they are, with JSON images, of all entity types and the schemas.

    Args:
        log: The log root; None with ``server``.
        catalog: Name of the catalog.
        entity_type: Name of the table; may be left out for ``captures`` only.
        shape: The form of the rows.
        columns: Names of the columns to return, in this order; None: all.
        starting: The first version or commit time, inclusive, or the cursor before the first change; None or 0:
            the oldest retained.
        ending: The last version or time, or the cursor of the last change, inclusive; None: the newest.
        at: The version or time of a state; None: the newest version.
        where: A condition on rows, in the condition language. An update into it becomes an insert, and
            an update out of it a delete.
        deduplication: ``netChanges`` returns at most one net change of each key, in no particular order. This
            needs the state before the range.
        compute_updates: With ``netChanges``, True returns the change of an existing row as an update; False, as
            in Spark, as a delete and an insert.
        misfits: ``refuse`` raises for a value that its column cannot hold; ``null`` returns null, with the text
            in the additional column ``_misfits``.
        threads: Number of reading threads; None: one for each core. Each holds about 32 MiB of rows.
        server: Address of a server to read through, as for `tailrace.connect`. The rows are those that the
            caller is granted; the log's folder is not needed.
        token: Credential of the caller for the server.
        tls: TLS to the server, as for `tailrace.connect`.

    Raises:
        CatalogUnknown, EntityTypeUnknown: A name is wrong; the error has the nearest one.
        InvalidRequest: The request does not fit the log; raised while reading for values that do not fit.
        PositionCompacted: The start was trimmed; raised while reading if a trim overtakes the read.
        CatalogReplaced, HistoryReplaced, CursorAhead: A cursor is of another log or history.
        LogUnreadable, LogCorrupted: The log cannot be read.
        NotPermitted, Unauthenticated, TransportError: The server refuses the caller, or is away.
    """
    request = ReadRequest(
        log=None if log is None else Path(log),
        catalog=catalog,
        entity_type=entity_type,
        shape=Shape(shape),
        columns=None if columns is None else tuple(columns),
        starting=Cursor.parse(starting) if isinstance(starting, str) else starting,
        ending=Cursor.parse(ending) if isinstance(ending, str) else ending,
        at=at,
        where=where,
        deduplication=Deduplication(deduplication),
        compute_updates=compute_updates,
        on_misfit=OnMisfit(misfits),
        rows_per_part=_ROWS_PER_PART,
        server=server,
        token=token,
        tls=None if tls is None or tls is False else tls_of(tls),
    )
    if server is not None:
        return plan(request).reader()
    opened = open_log(request)
    try:
        return plan(request, opened).reader(opened, threads or os.cpu_count() or 1)
    except BaseException:
        opened.close()
        raise


__all__ = ["LogWriter", "Mutation", "read"]
