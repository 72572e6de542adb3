"""The rows of a live table in a SQLite file, which stores the cursor in the same transaction.

::

    about    id = 1, catalog, entity_type, typed (0 or 1), cursor (null: no rows yet), condition (JSON text
             with where and parameters; null: all rows)
    rows     primary_key, image (JSON text, byte for byte; null: none was sent), columns
    loaded   id = 1, version at which all rows were read, by whose column names the condition is read
    columns  id, document: the columns of a version, by which rows are converted; rows.columns has the id,
             or null if rows are images

One transaction of the file holds one version, or several versions that came together. So a program that was
killed continues after the last version that is whole in the file.

A second connection reads the visible rows. It stays in one snapshot until the event loop moves it to the next
one. So all reads between two awaits see one version, while a thread writes the next version.

Any program may read the file, but only one live table may write it. This owner holds a lock on a second file,
``…-owner``, from before it loads until it ends. The lock ends with the process. Another table is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.conditions import read_where
from tailrace.criteria import ContainerType
from tailrace.cursor import Cursor
from tailrace.errors import CursorInvalid, TableFileError
from tailrace.event_loop import waited_out
from tailrace.schema import Column, Origin
from tailrace.table.contents import Contents, InMemory, StoredRow, TableChange, row_after
from tailrace.typed.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.capture import Capture
    from tailrace.criteria import Criteria
    from tailrace.reads.state import StateRow
    from tailrace.table.contents import ChangeLog
    from tailrace.table.fold import Step

_T = TypeVar("_T")

_APPLICATION_ID: Final = 0x7461_696C
"""SQLite's application id in the header of the file, "tail": it identifies the file as ours."""
_FORMAT: Final = 2
"""Format of new files; format 1 has no conditions."""
_TABLES: Final = """
CREATE TABLE about (
    id INTEGER PRIMARY KEY CHECK (id = 1), catalog TEXT NOT NULL, entity_type TEXT NOT NULL,
    typed INTEGER NOT NULL, cursor TEXT, condition TEXT
);
CREATE TABLE columns (id INTEGER PRIMARY KEY AUTOINCREMENT, document TEXT NOT NULL UNIQUE);
"""
_ROWS: Final = """
CREATE TABLE {} (primary_key TEXT PRIMARY KEY, image TEXT, columns INTEGER) WITHOUT ROWID;
"""
_LOADED: Final = """
CREATE TABLE IF NOT EXISTS loaded (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)
"""
_LOG_BYTES: Final = 8 << 20
"""Size of SQLite's write-ahead log above which it is written back into the file, in bytes; an estimate."""
_PAGE_BYTES: Final = 4_096
"""Estimated size of a small row in SQLite's write-ahead log, in bytes: a page."""
_READERS_KEPT: Final = 1_024
_KEYS_AT_ONCE: Final = 1_000
_FIND: Final = "SELECT image, columns FROM rows WHERE primary_key = ?"


class InSqlite(Contents):
    """Contents in a SQLite file."""

    def __init__(self, path: str, catalog: str, rows: Criteria, *, typed: bool) -> None:
        """Store the path, and what the file must contain."""
        self._path = path
        [entity_type] = rows.entity_type
        self._about = (catalog, entity_type, int(typed), _condition_of(rows))
        self._owner: sqlite3.Connection | None = None
        """Connection to the second file, which holds the owner's lock."""
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._stored: str | None = None
        """Cursor in the file, as text; None: the file has no rows yet."""
        self._passed: Cursor | None = None
        """Later cursor up to which no row has changed; stored with the next change, or at a heartbeat."""
        self._written_bytes = 0
        """Estimated bytes written since the write-ahead log was last written back."""
        self._ids: dict[RowReader, int] = {}
        self._readers: dict[int, RowReader] = {}

    # On the event loop.

    async def open(self) -> Cursor | None:
        """Open or create the file."""
        await self._in_thread(self._open)
        self._show()
        try:
            return None if self._stored is None else Cursor.parse(self._stored)
        except CursorInvalid as error:
            raise TableFileError(self._path, str(error)) from None

    async def close(self) -> None:
        """Store the cursor, and close the file."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        try:
            if self._writing is not None:
                try:
                    await self._in_thread(self._finish)
                finally:
                    self._writing.close()
                    self._writing = None
        finally:
            # Release the lock last: until here no other table may write.
            if self._owner is not None:
                self._owner.close()
                self._owner = None

    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Write the steps, and make the last whole version among them visible."""
        if any(captures for captures, _ in steps) or self._in_transaction:
            # Write back before the steps and not after them: once new rows are visible, there must be no await
            # until the caller has announced their version.
            await self._keep_small()
            await self._in_thread(self._apply, steps, changes)
            self._show()
        elif steps:
            self._passed = steps[-1].cursor

    async def keep(self) -> None:
        """Store the cursor after versions that did not change the table."""
        if self._in_transaction:
            return
        await self._keep_small()
        if self._passed is not None:
            await self._in_thread(self._store_passed)
            self._show()

    async def begin_again(self) -> None:
        """Create an empty SQL table for the new rows."""
        await self._in_thread(self._begin_again)

    async def add(self, rows: Sequence[StateRow]) -> None:
        """Write some of the new rows; they are not visible yet."""
        await self._in_thread(self._add, rows)
        await self._keep_small()

    async def replace(self, cursor: Cursor) -> None:
        """Replace all rows by the new ones, in one transaction."""
        await self._in_thread(self._replace, cursor)
        self._show()

    def get(self, key: str) -> StoredRow | None:
        """Return the row with a key; None if there is none."""
        assert self._reading is not None
        found = self._read(_FIND, key)
        return self._row_of(self._reading, *found[0]) if found else None

    def all_keys(self) -> Iterator[str]:
        """Yield the keys, which are read in pages: an open statement would hold the snapshot."""
        # Each page begins after the last key of the page before: the key is the primary key of the SQL table.
        page = self._read("SELECT primary_key FROM rows ORDER BY 1 LIMIT ?", _KEYS_AT_ONCE)
        while page:
            for (key,) in page:
                yield key
            page = self._read(
                "SELECT primary_key FROM rows WHERE primary_key > ? ORDER BY 1 LIMIT ?",
                key,
                _KEYS_AT_ONCE,
            )

    def count(self) -> int:
        """Return the number of rows; this reads the file."""
        return int(self._read("SELECT count(*) FROM rows")[0][0])

    def _read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of a statement; an open statement would hold the snapshot."""
        assert self._reading is not None
        try:
            return self._reading.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise TableFileError(self._path, str(error)) from error

    def _show(self) -> None:
        """Move the snapshot of the reader to the last commit."""
        if self._reading is None:
            self._reading = sqlite3.connect(self._path, isolation_level=None)
        else:
            self._read("COMMIT")
        self._read("BEGIN")
        self._read("SELECT cursor FROM about")  # the snapshot begins with the first read

    async def _keep_small(self) -> None:
        if self._written_bytes > _LOG_BYTES and not self._in_transaction:
            await self._write_back()

    async def _write_back(self) -> None:
        """Write the write-ahead log back into the file.

        SQLite restarts its log once all of it is written back and no connection reads from it. So the snapshot
        of the reader is moved twice: before, so that the whole log can be written back, and after, so that the
        reader no longer uses the log.
        """
        self._show()
        await self._in_thread(self._checkpoint)
        self._show()
        self._written_bytes = 0

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Do work that waits for the disk in a thread; a cancelled call still waits for the end of the work."""
        try:
            return await waited_out(asyncio.ensure_future(asyncio.to_thread(work, *arguments)))
        except sqlite3.Error as error:
            raise TableFileError(self._path, str(error)) from error

    # In a thread, one at a time.

    @property
    def _in_transaction(self) -> bool:
        return self._writing is not None and self._writing.in_transaction

    def _execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        assert self._writing is not None
        return self._writing.execute(sql, values)

    def _own(self) -> None:
        """Lock the file for this table, by its real path.

        The lock is an exclusive transaction in an empty second database: on every system SQLite's locks end
        with the process. A lock on the file itself would also block programs that read it.
        """
        name = f"{os.path.realpath(self._path)}-owner"
        self._owner = sqlite3.connect(
            name, isolation_level=None, check_same_thread=False, timeout=0.0
        )
        try:
            self._owner.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise TableFileError(
                self._path, "another table has the file open; close that table, or use another file"
            ) from None

    def _open(self) -> None:
        self._own()
        # Calls come one at a time, but from different threads.
        self._writing = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=5.0
        )
        (application,) = self._execute("PRAGMA application_id").fetchone()
        (format,) = self._execute("PRAGMA user_version").fetchone()
        if (
            application == 0
            and not self._execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        ):
            self._make()
        elif application != _APPLICATION_ID:
            raise TableFileError(
                self._path, "it is a database of another program; use another file"
            )
        elif format > _FORMAT:
            raise TableFileError(
                self._path,
                f"it has format {format}, of a newer tailrace; this one reads format {_FORMAT}; "
                "upgrade it",
            )
        self._execute("PRAGMA journal_mode = WAL")
        # No fsync for each commit. A power failure may lose the last commits; the cursor is lost with them, so
        # the changes come again.
        self._execute("PRAGMA synchronous = NORMAL")
        self._execute("PRAGMA wal_autocheckpoint = 0")
        # Format 1 has no column `condition`: its tables had all rows.
        condition = "NULL" if format == 1 else "condition"
        about = f"SELECT catalog, entity_type, typed, {condition}, cursor FROM about"
        *found, self._stored = self._execute(about).fetchone()
        if tuple(found) != self._about:
            raise TableFileError(
                self._path,
                f"it holds {_said(*found)}, not {_said(*self._about)}; use another file",
            )
        # A load that was interrupted has left its rows behind.
        self._execute("DROP TABLE IF EXISTS new_rows")
        self._execute(_LOADED)
        found = self._execute("SELECT version FROM loaded").fetchone()
        self.loaded = None if found is None else int(found[0])

    def _make(self) -> None:
        self._execute("BEGIN IMMEDIATE")
        for statement in (_TABLES + _ROWS.format("rows")).split(";"):
            self._execute(statement)
        self._execute("INSERT INTO about VALUES (1, ?, ?, ?, NULL, ?)", *self._about)
        self._execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._execute(f"PRAGMA user_version = {_FORMAT}")
        self._execute("COMMIT")

    def _apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        # 1. Commit all whole versions together: readers move from the first to the last in one step. The
        # captures    of an incomplete version stay in the open transaction, which no reader sees.
        last_whole = max(
            (place for place, step in enumerate(steps) if step.cursor is not None), default=-1
        )
        for place, (captures, cursor) in enumerate(steps):
            if captures and not self._in_transaction:
                self._execute("BEGIN IMMEDIATE")
            for each in captures:
                self._change(each, changes)
            if cursor is None:
                continue
            # 2. If no row has changed, the cursor need not be stored now: `keep` or the next change does it.
            self._passed = cursor
            if place == last_whole and self._in_transaction:
                self._store(cursor)
                self._execute("COMMIT")

    def _change(self, capture: Capture, changes: ChangeLog) -> None:
        key = capture.primary_key
        if key is None:
            self._execute("DELETE FROM rows")
            changes.add(TableChange(capture.version, None, None, None, capture.operation))
            return
        assert self._writing is not None
        found = self._execute(_FIND, key).fetchone()
        old = None if found is None else self._row_of(self._writing, *found)
        new = row_after(capture)
        if new is not None:
            self._execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", key, *self._kept(new))
        elif old is not None:
            self._execute("DELETE FROM rows WHERE primary_key = ?", key)
        else:
            return
        changes.add(TableChange(capture.version, key, old, new, capture.operation))

    def _store(self, cursor: Cursor) -> None:
        """Store a later cursor, within a transaction.

        The update is conditional on the old cursor: it detects another program that writes the file.
        """
        text = str(cursor)
        moved = self._execute(
            "UPDATE about SET cursor = ? WHERE id = 1 AND cursor IS ?", text, self._stored
        )
        if moved.rowcount != 1:
            raise TableFileError(self._path, "another program writes to the file")
        self._stored, self._passed = text, None
        self._written_bytes += _PAGE_BYTES

    def _finish(self) -> None:
        # An open transaction has a part of a version only.
        if self._in_transaction:
            self._roll_back()
        self._store_passed()
        self._checkpoint()

    def _store_passed(self) -> None:
        if self._passed is not None:
            self._execute("BEGIN IMMEDIATE")
            self._store(self._passed)
            self._execute("COMMIT")

    def _roll_back(self) -> None:
        self._execute("ROLLBACK")
        # The rollback has removed new rows of `columns`; their ids will be given to other columns.
        self._ids.clear()
        self._readers.clear()

    def _checkpoint(self) -> None:
        self._execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _begin_again(self) -> None:
        if self._in_transaction:
            self._roll_back()
        self._passed = None
        self._execute("DROP TABLE IF EXISTS new_rows")
        self._execute(_ROWS.format("new_rows"))

    def _add(self, rows: Sequence[StateRow]) -> None:
        assert self._writing is not None
        self._execute("BEGIN IMMEDIATE")
        stored = [(row.primary_key, *self._kept(StoredRow(row.image, row.reader))) for row in rows]
        self._writing.executemany("INSERT OR REPLACE INTO new_rows VALUES (?, ?, ?)", stored)
        self._execute("COMMIT")

    def _replace(self, cursor: Cursor) -> None:
        self._execute("BEGIN IMMEDIATE")
        self._execute("DROP TABLE rows")
        self._execute("ALTER TABLE new_rows RENAME TO rows")
        self._execute(
            "DELETE FROM columns WHERE id NOT IN (SELECT columns FROM rows WHERE columns IS NOT NULL)"
        )
        self._execute("INSERT OR REPLACE INTO loaded VALUES (1, ?)", cursor.version)
        self._store(cursor)
        self._execute("COMMIT")
        self.loaded = cursor.version
        self._ids.clear()

    # In a thread or on the event loop.

    def _kept(self, row: StoredRow) -> tuple[str | None, int | None]:
        """Return image and columns' id of a row, as the file stores them."""
        image = None if row.image is None else str(row.image, "utf-8")
        self._written_bytes += _PAGE_BYTES + len(row.image or b"")
        return image, None if row.reader is None else self._id_of(row.reader)

    def _id_of(self, reader: RowReader) -> int:
        """Return the id of a reader's columns in the file; store them if they are new."""
        id = self._ids.get(reader)
        if id is None:
            document = _document_of(reader)
            self._execute("INSERT OR IGNORE INTO columns (document) VALUES (?)", document)
            find = "SELECT id FROM columns WHERE document = ?"
            id = int(self._execute(find, document).fetchone()[0])
            if len(self._ids) >= _READERS_KEPT:
                self._ids.clear()
            self._ids[reader] = id
        return id

    def _row_of(
        self, connection: sqlite3.Connection, image: str | None, columns: int | None
    ) -> StoredRow:
        data = None if image is None else image.encode()
        if columns is None:
            return StoredRow(data, None)
        reader = self._readers.get(columns)
        if reader is None:
            find = "SELECT document FROM columns WHERE id = ?"
            [(document,)] = connection.execute(find, (columns,)).fetchall()
            if len(self._readers) >= _READERS_KEPT:
                self._readers.clear()
            reader = self._readers[columns] = _reader_of(document)
        return StoredRow(data, reader)


def _document_of(reader: RowReader) -> str:
    document = {
        "entity_type": reader.entity_type,
        "columns": [asdict(column) for column in reader.columns],
        "placeholders": reader.placeholders,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _reader_of(document: str) -> RowReader:
    found: dict[str, Any] = json.loads(document)
    columns = [
        Column(**{**each, "role": ContainerType(each["role"]), "origin": Origin(each["origin"])})
        for each in found["columns"]
    ]
    return RowReader(found["entity_type"], columns, found["placeholders"])


def _condition_of(rows: Criteria) -> str | None:
    """Return the condition of a table as text for its file, the same for equal conditions; None without one."""
    where = read_where(rows.where)
    if where is None:
        return None
    form = where if isinstance(where, str) else where.form
    return json.dumps({"where": form, "parameters": dict(rows.parameters)})


def _said(catalog: str, entity_type: str, typed: int, condition: str | None) -> str:
    """Describe the contents of a file, for an error."""
    meant = "all rows" if condition is None else f"rows by {condition}"
    return f"entity type {entity_type!r} of catalog {catalog!r}, {meant}, typed={bool(typed)}"


def contents_of(
    path: str | os.PathLike[str] | None, catalog: str, rows: Criteria, *, typed: bool
) -> Contents:
    """Return the contents for a table: in the file at ``path``, or in memory if it is None."""
    if path is None:
        return InMemory()
    return InSqlite(os.fspath(path), catalog, rows, typed=typed)
