"""The rows of a table in a SQLite file, which has the cursor in the same transaction.

::

    about    id = 1, catalog, entity_type, typed (0 or 1), cursor (null: no rows yet), condition (JSON text
             with where and parameters; null: all rows)
    rows     primary_key, image (JSON text, byte for byte; null: none was sent), columns
    loaded   id = 1, version: at which all rows were read, whose names of columns the condition has
    columns  id, document: the columns of a version, by which its rows are read; rows that are images have none

A version is one transaction of the file, or several versions that came together are. So a program that was
killed continues behind the last version that the file holds whole. A second connection reads the visible rows,
which stays in one snapshot until the event loop moves it on: reads between two awaits are of one version, while
a thread writes the next one.

Any program may read the file. One table at a time has it: the owner holds a lock on a second file beside it,
``…-owner``, from before it loads until it ends, and the lock dies with its process. A second table is refused.
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
"""``tail``: in the header of the file, so that it is known for what it is."""
_FORMAT: Final = 2
"""Format 1 has no conditions."""
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
"""SQLite's write-ahead log is written back into the file once about so much was committed."""
_PAGE_BYTES: Final = 4_096
"""The cost of a small row there, bytes."""
_READERS_KEPT: Final = 1_024
_KEYS_AT_ONCE: Final = 1_000
_FIND: Final = "SELECT image, columns FROM rows WHERE primary_key = ?"


class InSqlite(Contents):
    """A file."""

    def __init__(self, path: str, catalog: str, rows: Criteria, *, typed: bool) -> None:
        """Keep what it holds, or is to hold."""
        self._path = path
        [entity_type] = rows.entity_type
        self._about = (catalog, entity_type, int(typed), _condition_of(rows))
        self._owner: sqlite3.Connection | None = None
        """Holds the lock that says whose file it is."""
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._stored: str | None = None
        """The cursor in the file, as text."""
        self._passed: Cursor | None = None
        """A later one behind which no row has changed; it is stored with the next change, or a heartbeat."""
        self._written_bytes = 0
        """Since the write-ahead log was last written back."""
        self._ids: dict[RowReader, int] = {}
        self._readers: dict[int, RowReader] = {}

    # On the event loop.

    async def open(self) -> Cursor | None:
        """Open the file, or make it."""
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
            # Last: until here nobody else may write.
            if self._owner is not None:
                self._owner.close()
                self._owner = None

    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Write the steps, and show the rows as of the last whole version among them."""
        if any(captures for captures, _ in steps) or self._in_transaction:
            # Before, not behind: nothing is awaited once other rows are visible, until that is told.
            await self._keep_small()
            await self._in_thread(self._apply, steps, changes)
            self._show()
        elif steps:
            self._passed = steps[-1].cursor

    async def keep(self) -> None:
        """Store the cursor behind versions that had nothing for the table."""
        if self._in_transaction:
            return
        await self._keep_small()
        if self._passed is not None:
            await self._in_thread(self._store_passed)
            self._show()

    async def begin_again(self) -> None:
        """Make an empty table for the new rows."""
        await self._in_thread(self._begin_again)

    async def add(self, rows: Sequence[StateRow]) -> None:
        """Write some of the new rows, hidden from readers."""
        await self._in_thread(self._add, rows)
        await self._keep_small()

    async def replace(self, cursor: Cursor) -> None:
        """Put the new rows in the place of the others, in one transaction."""
        await self._in_thread(self._replace, cursor)
        self._show()

    def get(self, key: str) -> StoredRow | None:
        """Read a row."""
        assert self._reading is not None
        found = self._read(_FIND, key)
        return self._row_of(self._reading, *found[0]) if found else None

    def all_keys(self) -> Iterator[str]:
        """Read the keys, a page at a time: a statement that is under way would hold the snapshot."""
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
        """Count the rows, which reads the file."""
        return int(self._read("SELECT count(*) FROM rows")[0][0])

    def _read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read all that a statement finds: none is under way when what is visible moves on."""
        assert self._reading is not None
        try:
            return self._reading.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise TableFileError(self._path, str(error)) from error

    def _show(self) -> None:
        """Move what is visible on to what was committed last."""
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

        It begins anew once all of it is written back and no connection reads from it. So the reader's snapshot
        is moved before that, to be out of the way, and after it, to read from the file itself.
        """
        self._show()
        await self._in_thread(self._checkpoint)
        self._show()
        self._written_bytes = 0

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Do what waits for the disk in a thread; one that is cancelled still waits for its end."""
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
        """Become the owner of the file, by whatever name it is opened.

        SQLite's own lock on an empty database is on every system one that ends with the process. A lock on the
        file itself would keep out programs that read it.
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
                self._path, "another table has it open; close that one, or name another file"
            ) from None

    def _open(self) -> None:
        self._own()
        # One call at a time, but not always from one thread.
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
                self._path, "it is a database of something else; name another file"
            )
        elif format > _FORMAT:
            raise TableFileError(
                self._path, f"it has format {format}, of a newer tailrace; this one knows {_FORMAT}"
            )
        self._execute("PRAGMA journal_mode = WAL")
        # Without an fsync for each commit: after a loss of power the last ones may be gone, with their cursor.
        self._execute("PRAGMA synchronous = NORMAL")
        self._execute("PRAGMA wal_autocheckpoint = 0")
        # Format 1 had no such column, and all rows.
        condition = "NULL" if format == 1 else "condition"
        about = f"SELECT catalog, entity_type, typed, {condition}, cursor FROM about"
        *found, self._stored = self._execute(about).fetchone()
        if tuple(found) != self._about:
            raise TableFileError(
                self._path,
                f"it holds {_said(*found)}, not {_said(*self._about)}; name another file",
            )
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
        # 1. All whole versions are committed at once: what is visible moves on by them together.
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
            # 2. Where nothing has changed the cursor can wait.
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
        """Move the cursor on, within a transaction."""
        text = str(cursor)
        moved = self._execute(
            "UPDATE about SET cursor = ? WHERE id = 1 AND cursor IS ?", text, self._stored
        )
        if moved.rowcount != 1:
            raise TableFileError(self._path, "another program writes it")
        self._stored, self._passed = text, None
        self._written_bytes += _PAGE_BYTES

    def _finish(self) -> None:
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
        # Numbers of columns that were stored with it will be those of others.
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

    # In either.

    def _kept(self, row: StoredRow) -> tuple[str | None, int | None]:
        """Return a row as the file has it."""
        image = None if row.image is None else str(row.image, "utf-8")
        self._written_bytes += _PAGE_BYTES + len(row.image or b"")
        return image, None if row.reader is None else self._id_of(row.reader)

    def _id_of(self, reader: RowReader) -> int:
        """Return the number of the columns that a reader knows, which are stored if they are new."""
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
    """Return the condition of a table as its file has it: equal ones have equal texts."""
    where = read_where(rows.where)
    if where is None:
        return None
    form = where if isinstance(where, str) else where.form
    return json.dumps({"where": form, "parameters": dict(rows.parameters)})


def _said(catalog: str, entity_type: str, typed: int, condition: str | None) -> str:
    """Return what a file holds, for an error."""
    meant = "all rows" if condition is None else f"rows by {condition}"
    return f"entity type {entity_type!r} of catalog {catalog!r}, {meant}, typed={bool(typed)}"


def contents_of(
    path: str | os.PathLike[str] | None, catalog: str, rows: Criteria, *, typed: bool
) -> Contents:
    """Return what holds a table: a file, or memory where none is named."""
    if path is None:
        return InMemory()
    return InSqlite(os.fspath(path), catalog, rows, typed=typed)
